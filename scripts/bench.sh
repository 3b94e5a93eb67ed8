#!/usr/bin/env bash
# Throughput of shared memory and TCP beside this machine's limits; --check: a line for each target.
. "$(dirname "$0")/stage.sh"
stage "benchmark" 10 infinistore bench --json build/bench.json --markdown build/bench.md "$@"
say "the table is in build/bench.md, everything else in build/bench.json"
