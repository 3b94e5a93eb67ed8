#!/usr/bin/env bash
# All that can be found out without running the product: format, lint, types, shape, sanitizers.
. "$(dirname "$0")/stage.sh"

PYTHON_DIRS=(src tests scripts demo examples benchmarks)

cxx_files() {
  git ls-files -co --exclude-standard 'core/*.h' 'core/*.cpp' 'bindings/*.h' 'bindings/*.cpp' \
    'benchmarks/*.cpp' 'tests/fuzz/*.h' 'tests/fuzz/*.cpp' 'tests/fake_*/*.h' 'tests/fake_*/*.cpp'
}

check_format() {
  ruff format --check "${PYTHON_DIRS[@]}"
  ruff check "${PYTHON_DIRS[@]}"
  cxx_files | xargs clang-format --dry-run -Werror
}

# The committed stub is how an API change shows in a review; the build has just made it anew.
check_stub() {
  [ -z "${CI:-}" ] || git diff --exit-code --stat -- src/infinistore/_native.pyi ||
    die "src/infinistore/_native.pyi is not what the extension says" "run make build and commit it"
}

# sanitized NAME SANITIZERS: core_tests built and run with them.
sanitized() {
  local build=build/$1
  configure "$1" "$2" ON
  cmake --build "$build"
  # TSan of older compilers cannot live with the address randomisation of newer kernels.
  local fixed=()
  if setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
  "${fixed[@]}" ctest --test-dir "$build" --output-on-failure -j "$JOBS"
}

# Its own commands, never built: it reads each file with that file's includes only.
check_tidy() {
  configure tidy address,undefined OFF
  python scripts/clang_tidy.py --build build/tidy --jobs "$JOBS"
}

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=second_deadlock_stack=1

stage "format and lint" 2 check_format
stage "types" 5 mypy
stage "stub of the extension" 1 check_stub
stage "shape and mirrors" 3 python -m pytest -q tests/test_tidy.py tests/test_mirrors.py
stage "ASan and UBSan" 15 sanitized asan address,undefined
stage "TSan" 15 sanitized tsan thread
stage "clang-tidy" 15 check_tidy
