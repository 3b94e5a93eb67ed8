#!/usr/bin/env bash
# Every test: C++, then Python from unit to end to end. Arguments go to pytest.
. "$(dirname "$0")/stage.sh"

tests=()
for folder in unit conformance model faults e2e; do
  [ -d "tests/$folder" ] && tests+=("tests/$folder")
done

[ -n "${INFINISTORE_WITHOUT_VLLM:-}" ] || stage "tiny models" 2 python scripts/make_models.py tiny-llama tiny-opt
stage "C++ tests" 4 ctest --test-dir build/dev --output-on-failure -j "$JOBS"
stage "Python tests" 15 python -m pytest "${tests[@]}" tests/test_tidy.py tests/test_mirrors.py "$@"
