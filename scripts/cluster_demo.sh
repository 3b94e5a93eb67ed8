#!/usr/bin/env bash
# Nodes that come and go under a load, second by second; build/cluster-demo.svg is its picture.
#
#   LOAD=trace  the requests of mooncake_trace_1000.jsonl instead of Zipf's law
#   TRACE=FILE  where that is; by default beside this repository, in shared/traces
. "$(dirname "$0")/stage.sh"
export PYTHONPATH=$ROOT/scripts:$ROOT/tests
[ -z "${TRACE:-}" ] || set -- --trace "$TRACE" "$@"
exec python -m cluster.demo --load "${LOAD:-zipf}" "$@"
