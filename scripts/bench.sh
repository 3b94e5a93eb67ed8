#!/usr/bin/env bash
# Throughput of shared memory and TCP beside this machine's limits. With --check every target, a line
# each: limits, single calls, the index, peers, many clients. `sweep`: sizes, batches and clients.
. "$(dirname "$0")/stage.sh"
name=bench files=()
case " $* " in
  *" sweep "*) name=bench-sweep files=(--svg build/bench-sweep.svg) ;;
  *" --check "*) name=bench-check ;;
esac
files+=(--json "build/$name.json" --markdown "build/$name.md")
stage "benchmark" 20 infinistore bench "$@" "${files[@]}"
say "the tables are in build/$name.md, everything else in build/$name.json"
