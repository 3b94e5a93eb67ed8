#!/usr/bin/env bash
# The main job on a small real model: plain vLLM against prefill and decode through the store.
. "$(dirname "$0")/stage.sh"
[ -z "${INFINISTORE_WITHOUT_VLLM:-}" ] || die "the demo needs vLLM" "unset INFINISTORE_WITHOUT_VLLM"
python -c 'import vllm' 2>/dev/null ||
  die "vLLM cannot be imported in .venv" "run make setup with Python 3.11 or later (INFINISTORE_PYTHON)"
stage "SmolLM2-135M-Instruct" 5 python scripts/make_models.py smollm2-135m
exec python scripts/demo.py "$@"  # no stage: it ends its processes itself, on Ctrl-C too
