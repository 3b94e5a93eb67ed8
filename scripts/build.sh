#!/usr/bin/env bash
# Rebuilds the extension and core_tests where their sources changed, and refreshes _native.pyi.
# `build.sh extension` leaves core_tests out.
. "$(dirname "$0")/stage.sh"

# The same flags as the extension's: ccache compiles the core once.
build_core_tests() {
  cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DINFINISTORE_BUILD_TESTS=ON \
    -DINFINISTORE_WERROR=ON >build/dev-configure.log || { tail -20 build/dev-configure.log; return 1; }
  cmake --build build/dev
}

# What the extension is made of, and where it is installed: a repository that moved installs anew.
# New Python modules need no build: the package is found where its sources are.
inputs() {
  find core bindings cmake CMakeLists.txt pyproject.toml -type f ! -name '*_test.cpp' | sort
  echo "$VENV"
}

build_extension() {
  # Not by pip's own option for it: Debian 12's pip lacks it.
  CMAKE_ARGS=-DINFINISTORE_WERROR=ON quiet_pip --no-build-isolation --no-deps -e .
  cp "$(find build/cp* -name _native.pyi -path '*bindings*' | head -1)" src/infinistore/_native.pyi
}

mkdir -p build "$STAMPS"
mapfile -t sources < <(inputs)
# Not through pip when nothing changed: hashing the sources is quicker than its start.
if fresh extension "${sources[@]}"; then
  say "extension: up to date"
else
  before=$(digest "${sources[@]}")  # someone may edit while it builds
  stage "extension" 15 build_extension
  echo "$before" >"$STAMPS/extension"
fi
[ "${1:-}" = extension ] || stage "C++ tests, built" 15 build_core_tests
