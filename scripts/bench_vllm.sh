#!/usr/bin/env bash
# Times to the first token beside plain vLLM and vLLM's own MooncakeStoreConnector.
. "$(dirname "$0")/stage.sh"
[ -z "${INFINISTORE_WITHOUT_VLLM:-}" ] || die "this needs vLLM" "unset INFINISTORE_WITHOUT_VLLM"
stage "SmolLM2-135M-Instruct" 5 python scripts/make_models.py smollm2-135m
exec python benchmarks/vllm_peers.py "$@"  # no stage: it ends its processes itself, on Ctrl-C too
