#!/usr/bin/env bash
# A server, its clients and a proxy under faults of every kind, and a check of every byte.
#
#   MINUTES=20   how long
#   FENCING=off  memory of vanished writers is reused at once: exit status 0 only if that is seen to harm
#   CLUSTER=3    so many nodes, and etcd, instead of one server
#   SEED=TEXT    what an earlier run printed; else a new one
. "$(dirname "$0")/stage.sh"
mkdir -p build
[ -z "${SEED:-}" ] || set -- --seed "$SEED" "$@"
export PYTHONPATH=$ROOT/tests
# No stage: it ends its processes itself, on Ctrl-C too.
exec python -m chaos --minutes "${MINUTES:-20}" --fencing "${FENCING:-on}" --nodes "${CLUSTER:-0}" --json build/chaos.json "$@"
