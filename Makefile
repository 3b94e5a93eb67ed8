# The commands of this repository; each is one script. `make setup` first, or let the others do it.
.PHONY: setup build test check fuzz chaos fmt demo bench bench-check bench-sweep bench-vllm test-operations gpu-test gpu-bench derive-eviction what-if clean must-hold
PEERS := redis mooncake nixl
.PHONY: peers $(PEERS:%=peer-%) test-clients
PROOFS := demo vllm survival layerwise cpu peers kill faults integrity eviction bench manners clone
.PHONY: $(PROOFS:%=proof-%)

setup: ;      @scripts/setup.sh
build: setup; @scripts/build.sh
test: build;  @scripts/test.sh
# Commands, page in a real Chromium, security, deployment; installs what that takes.
test-operations: build; @scripts/operations.sh
check: setup; @scripts/check.sh
fmt: setup;   @scripts/fmt.sh
# Any bytes against the decoders and a live server; hours of it: more of these.
EXECUTIONS ?= 100000000
FRAMES ?= 10000000
fuzz: build; @scripts/fuzz.sh $(EXECUTIONS) $(FRAMES)
demo: build;  @scripts/demo.sh
# make chaos MINUTES=n, FENCING=off, CLUSTER=3, SEED=text: docs/chaos.md.
chaos: build; @scripts/chaos.sh
# A cluster that nodes join and leave, as a film; and every line that must hold of it: docs/cluster-nodes.md.
.PHONY: cluster-demo cluster-check
cluster-demo: build; @scripts/cluster_demo.sh
cluster-check: build; @scripts/cluster_check.sh
bench: build; @scripts/bench.sh
# What cannot be installed is reported as short, or as missing.
bench-check: build; @scripts/bench_check.sh $(PEERS)
bench-sweep: build; @.venv/bin/python benchmarks/peers.py $(PEERS) || true; scripts/bench.sh sweep
# Hit rates by pool size from a sample, beside the truth.
what-if: build; @.venv/bin/python benchmarks/what_if.py
# The numbers of the eviction policy reuse, from generated workloads.
derive-eviction: build; @.venv/bin/python benchmarks/derive_reuse.py
bench-vllm: build; @scripts/bench_vllm.sh
# On a host with a CUDA GPU, with its own python3 and PyTorch: docs/gpu.md.
gpu-test:  ; @scripts/gpu/run.sh test
gpu-bench: ; @scripts/gpu/run.sh bench
# Over RDMA: this machine's devices, or Soft-RoCE in a virtual machine: docs/rdma.md.
.PHONY: test-rdma
test-rdma: build; @scripts/rdma/test.sh
# Other stores to measure beside, installed below build/peers/, never into the environment.
$(PEERS:%=peer-%): peer-%: setup; @.venv/bin/python benchmarks/peers.py $*
peers: $(PEERS:%=peer-%)
# What must hold, line by line with its figure; must-hold: all of them, in one table.
$(PROOFS:%=proof-%): proof-%: build; @.venv/bin/python scripts/prove.py $*
must-hold: build; @.venv/bin/python scripts/prove.py --all
# Other packages' own clients against ours, each installed below build/clients/.
test-clients: build; @.venv/bin/python scripts/test_clients.py
# The documentation as a site: build/site/index.html. site.sh installs its generator below build/.
.PHONY: docs
docs: ;       @scripts/docs/site.sh
clean: ;      @scripts/clean.sh
