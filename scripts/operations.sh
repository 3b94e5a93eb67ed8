#!/usr/bin/env bash
# All that an operator relies on: commands against a server under load, a cluster and nothing at all;
# explain and what-if; admin port and web page (in a real browser), whose numbers and Grafana's are the
# command line's; security, TLS, deployment; and the time from a clone to the README's first hit.
# Installs what the tests need beside the environment; the last line sums up. `WITHOUT_FIRST_HIT=1`
# leaves the clone out.
. "$(dirname "$0")/stage.sh"

install_tools() {
  python -c "import kubernetes_validate, yaml" 2>/dev/null && command -v hadolint >/dev/null && return
  python scripts/requirements.py operations >build/operations.txt
  quiet_pip -r build/operations.txt
}

run_tests() {
  python -m pytest tests/operations tests/faults/test_tls.py tests/conformance/test_readers.py \
    tests/unit/server tests/unit/cli tests/unit/connectors/test_connector_spans.py \
    tests/unit/test_what_if.py tests/e2e/test_cli.py tests/e2e/test_every_command.py \
    tests/e2e/test_explain.py tests/e2e/test_readme.py tests/e2e/test_serve.py tests/e2e/test_verify.py \
    -rs --junitxml=build/operations.xml "$@" | tee build/operations.log
  return "${PIPESTATUS[0]}"
}

run_first_hit() { scripts/first_hit.sh | tee build/first-hit.log; return "${PIPESTATUS[0]}"; }

mkdir -p build
stage "Chromium" 5 scripts/chromium.sh
stage "tools for manifests" 5 install_tools
parts=() rc=0
rm -f build/operations.xml
(stage "operations" 20 run_tests "$@") || rc=$?
[ ! -f build/operations.xml ] || { say "what was shown:"; python scripts/operations_summary.py build/operations.xml; }
parts+=("tests $(tail -1 build/operations.log | tr -d '=' | sed 's/^ *//; s/ *$//')")
if [ -n "${WITHOUT_FIRST_HIT:-}" ]; then
  parts+=("first hit left out")
elif (stage "from a clone to the first hit" 12 run_first_hit); then
  parts+=("$(tail -1 build/first-hit.log | sed 's/^==> //')")
else
  rc=1 parts+=("first hit FAILED")
fi
say "test-operations: $([ "$rc" = 0 ] && echo passed || echo FAILED): $(IFS=';'; echo "${parts[*]}" | sed 's/;/; /g')"
exit "$rc"
