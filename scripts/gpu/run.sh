#!/usr/bin/env bash
# What needs a GPU: tests, how fast copies are, vLLM beside its own offloading.
#
#   scripts/gpu/run.sh test|bench     with PYTHON=python3 whose PyTorch sees a CUDA GPU
#
# Builds for that python3 into build/gpu/site; WHEELS: a folder with wheels of what it lacks.
# bench leaves build/gpu/*.json and build/gpu/report.md; its vLLM part needs vLLM there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$PWD/build/gpu}
SITE=${SITE:-$PWD/build/gpu/site}
what=${1:-}
case $what in
  test | bench) ;;
  *) echo "usage: $0 test|bench" >&2; exit 2 ;;
esac
if ! "$PYTHON" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "error: $PYTHON has no PyTorch that sees a CUDA GPU" >&2
  echo "       run this on a GPU host; PYTHON=... names another interpreter" >&2
  exit 1
fi
mkdir -p "$OUT"
[ -n "${KEEP_SITE:-}" ] || scripts/gpu/setup.sh "$SITE" ${WHEELS:+"$WHEELS"}
# The driver's own library, not the double that the other tests use.
export PYTHONPATH=$SITE:$PWD/tests${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export INFINISTORE_CUDA_LIBRARY=${INFINISTORE_CUDA_LIBRARY:-libcuda.so.1}
# From elsewhere: here the package's sources lie without its native part.
tests=$PWD/tests/gpu scripts=$PWD/scripts/gpu
cd "$OUT"
if [ "$what" = test ]; then
  exec "$PYTHON" -m pytest -q -c /dev/null -p no:cacheprovider "$tests"
fi
rc=0
"$PYTHON" "$scripts/copy_sweep.py" --json copies.json || rc=$?
"$PYTHON" "$scripts/vllm_bench.py" times --out "$OUT" || rc=$?
"$PYTHON" "$scripts/vllm_bench.py" outputs --out "$OUT" || rc=$?
"$PYTHON" "$scripts/report.py" "$OUT" || rc=$?
exit "$rc"
