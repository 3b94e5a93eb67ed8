#!/usr/bin/env bash
# Every test: C++, then Python from unit to end to end. Arguments go to pytest.
. "$(dirname "$0")/stage.sh"

# What is quick comes first.
tests=()
for path in tests/test_*.py tests/unit tests/conformance tests/compat tests/device tests/model tests/faults tests/fuzz tests/operations; do
  [ -e "$path" ] && tests+=("$path")
done
# Most of their time goes by in waits for processes: two side by side, each file on one of them.
# End to end, engines fill the machine, and what a process costs is measured: one after another.
python_tests() { python -m pytest -n 2 --dist loadfile "${tests[@]}"; }

[ -n "${INFINISTORE_WITHOUT_VLLM:-}" ] || stage "tiny models" 4 python scripts/make_models.py tiny-llama tiny-opt
# Without it the web page's tests skip: no reason to leave out the others.
(stage "Chromium" 5 scripts/chromium.sh) || say "no Chromium could be installed: the web page's tests skip"
stage "C++ tests" 8 ctest --test-dir build/dev --output-on-failure -j "$JOBS"
if [ $# -gt 0 ]; then
  stage "Python tests" 40 python -m pytest "${tests[@]}" tests/e2e "$@"
else
  stage "Python tests" 30 python_tests
  stage "Python tests, end to end" 30 python -m pytest tests/e2e
fi
