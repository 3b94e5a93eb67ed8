# The commands of this repository; each is one script. `make setup` first, or let the others do it.
.PHONY: setup build test check fmt demo bench bench-vllm clean

setup: ;      @scripts/setup.sh
build: setup; @scripts/build.sh
test: build;  @scripts/test.sh
check: build; @scripts/check.sh
fmt: setup;   @scripts/fmt.sh
demo: build;  @scripts/demo.sh
bench: build; @scripts/bench.sh
bench-vllm: build; @scripts/bench_vllm.sh
clean: ;      @scripts/clean.sh
