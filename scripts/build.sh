#!/usr/bin/env bash
# Rebuilds the extension and core_tests where their sources changed, and refreshes _native.pyi.
. "$(dirname "$0")/stage.sh"

build_core_tests() {
  cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DINFINISTORE_BUILD_TESTS=ON \
    -DINFINISTORE_WERROR=ON >build/dev-configure.log || { tail -20 build/dev-configure.log; return 1; }
  cmake --build build/dev
}

# Not through pip when nothing changed: hashing the sources is quicker than its start.
build_extension() {
  local sources
  sources=$(find core bindings cmake CMakeLists.txt pyproject.toml -type f ! -name '*_test.cpp' | sort)
  # shellcheck disable=SC2086
  if fresh extension $sources; then say "the extension is up to date"; return; fi
  quiet_pip --no-build-isolation --no-deps -e .
  # shellcheck disable=SC2086
  mark extension $sources
  cp "$(find build/cp* -name _native.pyi -path '*bindings*' | head -1)" src/infinistore/_native.pyi
}

mkdir -p build
stage "extension" 8 build_extension
stage "C++ tests, built" 8 build_core_tests
