#!/usr/bin/env bash
# Prefill/decode separation on one host: a store, prefill and decode vLLM servers, and the router.
#
#   examples/pd_separation.sh MODEL [vLLM arguments for every server...]
#
# MODEL is a directory or a name that vLLM knows. Then talk to http://127.0.0.1:8000/v1 as to any
# OpenAI server. Ctrl-C ends everything. docs/pd-separation.md explains what happens.
#
#   DEVICE=auto|cuda|cpu   auto: cuda where nvidia-smi finds a GPU
#   PREFILLS=1 DECODES=1   how many of each; each takes TP GPUs, or one CPU core
#   TP=1                   GPUs of a server (tensor parallel)
#   POOL=8GiB              memory of the store
#   LOAD_MODE=async        or layerwise: loads of layer k+1 under the compute of layer k
#   PORT=8000              of the router; the servers take free ports
#   PYTHON=python3         of the environment that has vLLM and InfiniStore
#   LOGS=./pd-logs         where the servers write what they say
set -euo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
  sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi
model=$1
shift
device=${DEVICE:-auto} prefills=${PREFILLS:-1} decodes=${DECODES:-1} tp=${TP:-1}
pool=${POOL:-8GiB} load_mode=${LOAD_MODE:-async} port=${PORT:-8000}
python=${PYTHON:-python3} logs=${LOGS:-./pd-logs}
mkdir -p "$logs"

if [[ $device == auto ]]; then
  device=cpu
  if command -v nvidia-smi >/dev/null && nvidia-smi -L | grep -q GPU; then device=cuda; fi
fi
if [[ $device != cuda && $device != cpu ]]; then
  echo "DEVICE is $device; it must be auto, cuda or cpu" >&2
  exit 2
fi

pids=()
# Every server is a process group of its own: Ctrl-C comes here, and the groups end in order.
end_all() {
  trap '' INT TERM HUP
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill -TERM "${pids[i]}" 2>/dev/null || true; done
  for _ in $(seq 100); do
    alive=0
    for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null && alive=1; done
    ((alive)) || break
    sleep 0.1
  done
  for pid in "${pids[@]}"; do kill -KILL -- "-$pid" 2>/dev/null || true; done
  echo "ended; the servers' words are in $logs"
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

start() { # NAME COMMAND...: in the background, in a group of its own, with a log
  local name=$1
  shift
  setsid "$@" >"$logs/$name.log" 2>&1 </dev/null &
  pids+=("$!")
}

give_up() { # NAME REASON
  echo "$1 $2; the end of $logs/$1.log:" >&2
  tail -n 15 "$logs/$1.log" >&2
  exit 1
}

wait_line() { # NAME TEXT PID: until the log has a line that begins with TEXT
  until grep -q "^$2" "$logs/$1.log" 2>/dev/null; do
    kill -0 "$3" 2>/dev/null || give_up "$1" "has ended"
    sleep 0.2
  done
  grep -m1 "^$2" "$logs/$1.log"
}

answers() { "$python" -c "import urllib.request as u; u.urlopen('$1', timeout=2)" 2>/dev/null; }
free_port() {
  "$python" -c "import socket as s; p = s.socket(); p.bind(('127.0.0.1', 0)); print(p.getsockname()[1])"
}

echo "the store starts ($pool)"
start store "$python" -m infinistore.server --pool "$pool" --port 0 --admin-port 0
ready=$(wait_line store "infinistore ready" "${pids[-1]}")
data=$(sed -n 's/.* data=\([^ ]*\).*/\1/p' <<<"$ready")
admin=$(sed -n 's/.* admin=\([^ ]*\).*/\1/p' <<<"$ready")

# kv_both: decode's blocks are worth keeping too, and any server may find any block.
transfer='{"kv_connector": "InfiniStoreConnector", "kv_role": "kv_both",
  "kv_connector_module_path": "infinistore.connectors.vllm", "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {"url": "infinistore://'$data'", "load_mode": "'$load_mode'"}}'

common=(--model "$model" --host 127.0.0.1 --tensor-parallel-size "$tp"
  --kv-transfer-config "$transfer")
if [[ $device == cpu ]]; then
  mapfile -t cores < <("$python" -c "import os; print(*sorted(os.sched_getaffinity(0)), sep='\n')")
  # Blocks of 32 are the smallest that the CPU kernels take; float32 is the fast type without AMX.
  common+=(--dtype float32 --block-size 32 --enforce-eager)
fi

urls=() index=0
for role in prefill decode; do
  count=$prefills
  [[ $role == decode ]] && count=$decodes
  for ((n = 0; n < count; n++, index++)); do
    at=$(free_port)
    if [[ $device == cuda ]]; then
      where=(env "CUDA_VISIBLE_DEVICES=$(seq -s, $((index * tp)) $((index * tp + tp - 1)))")
    else
      binding=""
      for ((rank = 0; rank < tp; rank++)); do
        binding+="${binding:+|}${cores[$(((index * tp + rank) % ${#cores[@]}))]}"
      done
      where=(env "VLLM_CPU_OMP_THREADS_BIND=$binding"
        "VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}")
    fi
    start "$role-$n" "${where[@]}" "$python" -m vllm.entrypoints.openai.api_server \
      "${common[@]}" --port "$at" "$@"
    urls+=("$role-$n ${pids[-1]} http://127.0.0.1:$at")
  done
done

router=("$python" -m infinistore router --host 127.0.0.1 --port "$port")
for entry in "${urls[@]}"; do
  read -r name pid url <<<"$entry"
  echo "waiting for $name at $url"
  until answers "$url/health"; do
    kill -0 "$pid" 2>/dev/null || give_up "$name" "has ended"
    sleep 1
  done
  router+=("--${name%-*}" "$url")
done
start router "${router[@]}"
front=$(wait_line router "infinistore router ready" "${pids[-1]}" | cut -d' ' -f4)

cat <<EOF
ready: $front/v1 (router), http://$admin/stats (store)

  curl $front/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "$model", "prompt": "The capital of France is", "max_tokens": 8}'

Ctrl-C ends everything.
EOF
# Whoever ends first, ends the whole: a half is of no use.
wait -n || true
echo "a server has ended by itself" >&2
exit 1
