#!/usr/bin/env bash
# Fetches wheels of build and test tools that a GPU machine's python3 (CPython 3.12) may lack or have
# too old.
#
#   scripts/gpu/wheels.sh OUT
set -euo pipefail
out=${1:?usage: wheels.sh OUT}
mkdir -p "$out"
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
  --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
  -d "$out" nanobind==3.1.0 scikit-build-core==1.1.2 pathspec==1.1.1 packaging==26.4 pytest-asyncio==1.5.0
ls -l "$out"
