#!/usr/bin/env bash
# Every target of speed and of keeping, measured now: a line each, and exit status 1 if one is short.
. "$(dirname "$0")/stage.sh"

short=()
# part NAME COMMAND...: goes on when a target is short, so that all are seen.
part() {
  local name=$1
  shift
  say "$name"
  "$@" || short+=("$name")
}

python benchmarks/peers.py "$@" || true  # a peer that is not there counts as short
part "limits, single calls, the index, peers, many clients" scripts/bench.sh --check
part "eviction and the use of the pool" infinistore bench trace --trace benchmarks/traces --check
[ -n "${INFINISTORE_WITHOUT_VLLM:-}" ] ||
  part "what the connector costs an engine" scripts/connector_cpu.sh
[ ${#short[@]} = 0 ] || { say "short: ${short[*]}"; exit 1; }
say "every target holds"
