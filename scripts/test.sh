#!/usr/bin/env bash
# Every test: C++, then Python from unit to end to end. Arguments go to pytest.
. "$(dirname "$0")/stage.sh"

# What is quick comes first.
tests=()
for path in tests/test_*.py tests/unit tests/conformance tests/compat tests/device tests/model tests/faults tests/fuzz tests/operations tests/e2e; do
  [ -e "$path" ] && tests+=("$path")
done

[ -n "${INFINISTORE_WITHOUT_VLLM:-}" ] || stage "tiny models" 4 python scripts/make_models.py tiny-llama tiny-opt
stage "C++ tests" 8 ctest --test-dir build/dev --output-on-failure -j "$JOBS"
stage "Python tests" 40 python -m pytest "${tests[@]}" "$@"
