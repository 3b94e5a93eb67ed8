#!/usr/bin/env bash
# Fuzzes the codec and the stream, coverage-guided, then live servers:
#   fuzz.sh [EXECUTIONS [FRAMES [PART...]]]      parts: codec stream live asan-live; none: all of them
# Exit status 1 if anything was found; what does it again is in build/fuzz/found. docs/fuzzing.md.
. "$(dirname "$0")/stage.sh"

EXECUTIONS=${1:-100000000}
FRAMES=${2:-10000000}
PARTS=${*:3}
OUT=$ROOT/build/fuzz
FOUND=$OUT/found
# Shares of the two numbers that run with AddressSanitizer; a stream's execution is a connection's life.
CODEC_ASAN=$((EXECUTIONS / 50 + 1))
STREAM_ASAN=$((EXECUTIONS / 500 + 1))
FRAMES_ASAN=$((FRAMES / 10 + 1))

has_libfuzzer() {
  command -v clang++ >/dev/null && mkdir -p "$OUT" && echo 'int main() {}' |
    clang++ -x c++ -fsanitize=fuzzer-no-link,address - -o "$OUT/probe" 2>/dev/null &&
    [ -n "$(find "$(clang++ -print-resource-dir)" -name 'libclang_rt.fuzzer*.a' -print -quit)" ]
}

install_clang() {
  local packages=(clang libclang-rt-14-dev)
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}"; } \
      >"$OUT/apt.log" 2>&1 || tail -5 "$OUT/apt.log" >&2
  fi
  has_libfuzzer || die "clang with libFuzzer is missing" "on Debian 12, as root: apt-get install ${packages[*]}"
}

# build_targets NAME FLAGS SANITIZERS: the two targets, steered by libFuzzer.
build_targets() {
  cmake -S . -B "$OUT/$1" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_FLAGS_DEBUG="$2 -g1" -DINFINISTORE_WERROR=ON -DINFINISTORE_LIBFUZZER=ON \
    -DINFINISTORE_SANITIZE="$3" -DINFINISTORE_LAYERS="base;wire" >"$OUT/$1-configure.log" ||
    { tail -20 "$OUT/$1-configure.log"; return 1; }
  cmake --build "$OUT/$1"
}

# The same build as that of `make check`.
build_server() {
  configure asan address,undefined ON
  cmake --build build/asan --target fuzz_server
}

# Of libFuzzer's logs: executions in all, and the most edges that one process reached, of how many.
executions() { sed -n 's/^stat::number_of_executed_units: *//p' "$@" | awk '{ sum += $1 } END { print sum + 0 }'; }
edges() { sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$@" | sort -n | tail -1; }
edges_there() { sed -n 's/.*(\([0-9]*\) inline 8-bit counters.*/\1/p' "$@" | head -1; }

# run_target BUILD TARGET EXECUTIONS: a process a CPU, which share what they learn at their starts.
run_target() {
  local build=$1 target=$2 each=$((($3 + JOBS - 1) / JOBS)) job pid rc=0 reporter pids=() logs=()
  local corpus=$OUT/corpus/$target seeds=$OUT/seeds/$target
  mkdir -p "$corpus" "$seeds" "$FOUND"
  rm -f "$OUT/$target-$build-"*.log
  for job in $(seq "$JOBS"); do
    logs+=("$OUT/$target-$build-$job.log")
    FUZZ_SEEDS=$seeds "$OUT/$build/tests/fuzz/${target}_fuzz" -runs="$each" -max_len=512 -timeout=20 -rss_limit_mb=2048 -reload=0 \
      -artifact_prefix="$FOUND/$target-" -print_final_stats=1 "$corpus" "$seeds" "tests/fuzz/corpus/$target" \
      >"${logs[-1]}" 2>&1 &
    pids+=($!)
  done
  (while sleep 20; do printf '    %s: %s\n' "$target" "$(grep -h '^#' "${logs[0]}" | tail -1 | cut -c1-90)"; done) &
  reporter=$!
  for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
  kill "$reporter"
  if [ "$rc" != 0 ]; then
    tail -n 40 "${logs[@]}"
    return 1
  fi
  say "$target ($build): $(executions "${logs[@]}") executions, $(edges "${logs[@]}") of" \
    "$(edges_there "${logs[@]}") edges"
}

run_live() { python tests/fuzz/live.py --out "$FOUND/live" --jobs "$JOBS" "$@" | tee "$OUT/live.log"; }

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
wants() { [ -z "$PARTS" ] || [[ " $PARTS " == *" $1 "* ]]; }

start=$SECONDS
figures=""
mkdir -p "$OUT"
rm -rf "$FOUND"
if wants codec || wants stream; then
  has_libfuzzer || stage "clang with libFuzzer" 5 install_clang
  stage "targets with ASan and UBSan" 15 build_targets asan -O1 address,undefined
fi
if wants codec; then
  # Checks of the standard library's bounds stand in for AddressSanitizer, at a tenth of its price.
  stage "targets with UBSan" 15 build_targets fast "-O2 -D_GLIBCXX_ASSERTIONS" undefined
  stage "codec with ASan and UBSan" 60 run_target asan codec "$CODEC_ASAN"
  stage "codec with UBSan" 120 run_target fast codec "$EXECUTIONS"
  figures+=" codec: $(executions "$OUT"/codec-fast-*.log) executions, with ASan $(executions "$OUT"/codec-asan-*.log);"
fi
if wants stream; then
  stage "stream with ASan and UBSan" 60 run_target asan stream "$STREAM_ASAN"
  figures+=" stream: $(executions "$OUT"/stream-asan-*.log) executions with ASan;"
fi
if wants live; then
  stage "live server" 120 run_live --frames "$FRAMES"
  figures+=" live server: $FRAMES frames;"
fi
if wants asan-live; then
  stage "server with ASan and UBSan" 15 build_server
  stage "live server with ASan and UBSan" 60 run_live --frames "$FRAMES_ASAN" --server build/asan/tests/fuzz/fuzz_server
  figures+=" with ASan: $FRAMES_ASAN frames;"
fi
say "nothing found in $((SECONDS - start)) s;$figures"
