#!/usr/bin/env bash
# CPU seconds that the connector adds to a cold prefill, and the store's share of a hit's first token.
. "$(dirname "$0")/stage.sh"
[ -z "${INFINISTORE_WITHOUT_VLLM:-}" ] || die "this needs vLLM" "unset INFINISTORE_WITHOUT_VLLM"
stage "SmolLM2-135M-Instruct" 5 python scripts/make_models.py smollm2-135m
exec python benchmarks/connector_cpu.py "$@"  # no stage: it ends its processes itself, on Ctrl-C too
