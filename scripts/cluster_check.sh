#!/usr/bin/env bash
# Nodes and clients as processes of this machine, and every line that must hold of the cluster.
#
#   MINUTES=20  of chaos over the cluster
#   TRACE=FILE  mooncake_trace_1000.jsonl; by default beside this repository, in shared/traces
. "$(dirname "$0")/stage.sh"
export PYTHONPATH=$ROOT/scripts:$ROOT/tests
[ -z "${TRACE:-}" ] || set -- --trace "$TRACE" "$@"
exec python -m cluster.check --chaos-minutes "${MINUTES:-20}" "$@"
