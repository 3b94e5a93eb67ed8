#!/usr/bin/env bash
# Plain vLLM, ours over shared memory and TCP, and an unmodified peer, on the same prompts in turn.
. "$(dirname "$0")/stage.sh"
[ -z "${INFINISTORE_WITHOUT_VLLM:-}" ] || die "this needs vLLM" "unset INFINISTORE_WITHOUT_VLLM"
stage "SmolLM2-135M-Instruct" 5 python scripts/make_models.py smollm2-135m
exec python benchmarks/vllm_peers.py "$@"  # no stage: it ends its processes itself
