#!/usr/bin/env bash
# Builds InfiniStore for the python3 of a machine without a package index, and installs it.
#
#   scripts/gpu/setup.sh SITE [WHEELS]     then  export PYTHONPATH=SITE
#
# WHEELS: a folder with wheels of what that python3 lacks (see scripts/gpu/wheels.sh); those of build
# tools are used for the build alone. Needs a C++20 compiler, CMake and ninja.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
site=$(realpath -m "${1:?usage: setup.sh SITE [WHEELS]}")
wheels=${2:+$(realpath "$2")}
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
pip_install() { python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade "$@"; }

mkdir -p "$site"
for wheel in ${wheels:+"$wheels"/*.whl}; do
  case $(basename "$wheel") in
    nanobind-* | scikit_build_core-* | pathspec-* | packaging-*) pip_install --target "$tools" "$wheel" ;;
    *) pip_install --target "$site" "$wheel" ;;
  esac
done

export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
PYTHONPATH=$tools${PYTHONPATH:+:$PYTHONPATH} pip_install --no-build-isolation --target "$site" .

PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} python3 - <<'PY'
import importlib
import sys

missing = []
for name in ("aiohttp", "click", "numpy", "rich", "uvloop"):
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing.append(f"{name} ({error})")
if missing:
    sys.exit("missing: " + ", ".join(missing) + "; bring their wheels")
import infinistore

print(f"infinistore {infinistore.__version__} for Python {sys.version.split()[0]}: {infinistore.__file__}")
PY
