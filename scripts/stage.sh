# Sourced by the other scripts: paths, stages with a time and a budget, stamps of what is done.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
VENV=$ROOT/.venv
STAMPS=$VENV/.infinistore
JOBS=${JOBS:-$(nproc)}
PATH=$VENV/bin:$PATH
CMAKE_BUILD_PARALLEL_LEVEL=$JOBS
PIP_DISABLE_PIP_VERSION_CHECK=1
export ROOT VENV STAMPS JOBS PATH CMAKE_BUILD_PARALLEL_LEVEL PIP_DISABLE_PIP_VERSION_CHECK

say() { printf '==> %s\n' "$*"; }

# die WHAT [REMEDY]: ends the script with what is wrong and what to do about it.
die() {
  printf 'error: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf '       %s\n' "$2" >&2
  exit 1
}

# stage NAME MINUTES COMMAND...: runs a program or a function of the calling script, says how long
# it took, and ends it past its budget. It has a process group of its own, which ends as a whole.
stage() {
  local name=$1 minutes=$2 start=$SECONDS rc=0 child watchdog
  shift 2
  say "$name (budget $minutes min)"
  set -m
  ("$@") </dev/null &
  child=$!
  (sleep "$((minutes * 60))"; kill -TERM -- "-$child"; sleep 10; kill -KILL -- "-$child") \
    >/dev/null 2>&1 </dev/null &
  watchdog=$!
  disown "$watchdog"
  set +m
  # Ctrl-C reaches our group only: pass it on.
  trap 'kill -TERM -- "-$child" "-$watchdog" 2>/dev/null; exit 130' INT TERM
  wait "$child" || rc=$?
  trap - INT TERM
  kill -TERM -- "-$watchdog" 2>/dev/null || true
  if [ "$rc" = 0 ]; then
    say "$name: done in $((SECONDS - start)) s"
  elif [ "$((SECONDS - start))" -ge "$((minutes * 60))" ]; then
    die "$name: over its budget of $minutes min"
  else
    die "$name: failed after $((SECONDS - start)) s (exit status $rc)"
  fi
}

# quiet_pip ARGUMENTS...: pip install, of whose output only a failure is shown.
quiet_pip() {
  local log=$ROOT/build/pip.log rc=0
  mkdir -p "$ROOT/build"
  "$VENV/bin/python" -m pip install --progress-bar off "$@" >"$log" 2>&1 </dev/null || rc=$?
  [ "$rc" = 0 ] && return
  grep -m 20 -A 5 '[0-9]: error: ' "$log" >&2 || true  # a compiler's, far above the end
  grep -v 'is ignored: it is' "$log" | tail -20 >&2
  say "the whole output is in $log" >&2
  return "$rc"
}

# configure NAME SANITIZERS PRECOMPILE: build/NAME, made ready to build core_tests and fuzz_server.
configure() {
  # ccache takes a precompiled header only if told so.
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
  cmake -S . -B "build/$1" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
    -DINFINISTORE_BUILD_TESTS=ON -DINFINISTORE_WERROR=ON -DINFINISTORE_SANITIZE="$2" \
    -DINFINISTORE_PRECOMPILE="$3" >"build/$1-configure.log" ||
    { tail -20 "build/$1-configure.log"; return 1; }
}

# fresh STAMP INPUTS...: whether `mark STAMP INPUTS...` was the last word on these (files or words).
digest() {
  for input in "$@"; do
    if [ -f "$input" ]; then cat "$input"; else printf '%s\n' "$input"; fi
  done | sha256sum
}
fresh() { [ -f "$STAMPS/$1" ] && [ "$(digest "${@:2}")" = "$(cat "$STAMPS/$1")" ]; }
mark() { mkdir -p "$STAMPS" && digest "${@:2}" >"$STAMPS/$1"; }
