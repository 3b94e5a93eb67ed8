#!/usr/bin/env bash
# Throughput of shared memory and TCP beside this machine's limits; with --check every target, a line
# each: shares of limits, single calls, the index, peers (`make peers` first), many clients.
. "$(dirname "$0")/stage.sh"
case " $* " in
  *" --check "*) name=bench-check ;;
  *) name=bench ;;
esac
stage "benchmark" 20 infinistore bench --json "build/$name.json" --markdown "build/$name.md" "$@"
say "the table is in build/$name.md, everything else in build/$name.json"
