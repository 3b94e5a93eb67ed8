#!/usr/bin/env bash
# Formats every source in place.
. "$(dirname "$0")/stage.sh"

PYTHON_DIRS=(src tests scripts demo examples benchmarks)

format() {
  ruff format "${PYTHON_DIRS[@]}"
  ruff check --fix-only --quiet "${PYTHON_DIRS[@]}"
  git ls-files -co --exclude-standard 'core/*.h' 'core/*.cpp' 'bindings/*.h' 'bindings/*.cpp' \
    'benchmarks/*.cpp' 'tests/fuzz/*.h' 'tests/fuzz/*.cpp' 'tests/fake_*/*.h' 'tests/fake_*/*.cpp' |
    xargs clang-format -i
}

stage "format" 1 format
