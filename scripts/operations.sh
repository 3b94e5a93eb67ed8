#!/usr/bin/env bash
# All that an operator relies on: commands, admin port, web page (in a real browser), security,
# deployment. Installs what the tests need beside the environment; the last line sums up.
. "$(dirname "$0")/stage.sh"

install_browser() {
  command -v chromium chromium-browser google-chrome >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium; } \
      >build/chromium.log 2>&1 || { tail -5 build/chromium.log >&2; return 1; }
  else
    say "no Chromium here: the web page's tests are skipped"
  fi
}

install_tools() {
  python -c "import kubernetes_validate, yaml" 2>/dev/null && command -v hadolint >/dev/null && return
  python scripts/requirements.py operations >build/operations.txt
  quiet_pip -r build/operations.txt
}

run_tests() {
  python -m pytest tests/operations tests/unit/server tests/unit/cli tests/e2e/test_cli.py \
    tests/e2e/test_serve.py tests/e2e/test_verify.py "$@" | tee build/operations.log
  return "${PIPESTATUS[0]}"
}

mkdir -p build
stage "Chromium" 5 install_browser
stage "tools for manifests" 5 install_tools
rc=0
(stage "operations" 20 run_tests "$@") || rc=$?
say "test-operations: $(tail -1 build/operations.log | tr -d '=' | sed 's/^ *//; s/ *$//')"
exit "$rc"
