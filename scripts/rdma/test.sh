#!/usr/bin/env bash
# All tests that need an RDMA device: on this machine's, or on Soft-RoCE in a virtual machine
# (scripts/rdma/vm.sh), which is made when there is none.  The last line sums up.
#
#   INFINISTORE_RDMA_VM=uml|qemu  which machine (default: uml, whose kernel is built once, 7 minutes)
#   INFINISTORE_RDMA_SMOKE=1      a few of them only, for qemu's slow one
# Arguments go to pytest.
. "$(dirname "$0")/../stage.sh"

PEERS=$ROOT/build/rdma-peers
LOG=$ROOT/build/test-rdma.log

# Other people's code, as the far end of a queue pair; never in the environment itself.
install_peers() {
  [ -d "$PEERS/ibverbs" ] || quiet_pip --target "$PEERS" --no-deps ibverbs
  command -v ib_write_bw >/dev/null || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null ||
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends perftest >/dev/null
}

run_tests() {
  local command=("$VENV/bin/python" -m pytest -q -p no:cacheprovider --color=no)
  if [ -n "${INFINISTORE_RDMA_SMOKE:-}" ]; then
    command+=(tests/rdma tests/conformance/test_transports.py -k "rdma and not hundred and not twenty")
  else
    command+=(tests/rdma tests/conformance tests/faults -k rdma)
  fi
  export PYTHONPATH=$PEERS
  if [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
    "${command[@]}" "$@"
  else
    scripts/rdma/vm.sh -k "${INFINISTORE_RDMA_VM:-uml}" -t 2400 -- "${command[@]}" "$@"
  fi
}

logged() {
  set -o pipefail
  run_tests "$@" 2>&1 | tee "$LOG"
}

stage "peers of RDMA tests" 3 install_peers
status=0
(stage "RDMA tests" 45 logged "$@") || status=$?
kind=$([ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] && echo "this machine's devices" ||
  echo "Soft-RoCE, ${INFINISTORE_RDMA_VM:-uml}")
say "test-rdma over $kind: $(grep -E '[0-9]+ (passed|failed)' "$LOG" | tail -1 || echo 'no result')"
exit "$status"
