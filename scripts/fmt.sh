#!/usr/bin/env bash
# Formats every source in place.
. "$(dirname "$0")/stage.sh"

# shellcheck disable=SC2046
format() {
  ruff format $(ls -d src tests scripts demo examples benchmarks 2>/dev/null)
  ruff check --fix-only --quiet $(ls -d src tests scripts demo examples benchmarks 2>/dev/null)
  git ls-files -co --exclude-standard 'core/*.h' 'core/*.cpp' 'bindings/*.h' 'bindings/*.cpp' \
    'benchmarks/*.cpp' |
    xargs clang-format -i
}

stage "format" 1 format
