"""Both sides of the connector over real servers: three of them as one pool."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import Engine, Request, StepOutput, true_bytes

from cluster_nodes import InProcessCluster
from waiting import until

# 600 tokens of 4 a block: 150 blocks, of 3 groups.
PROMPT = list(range(600))
BLOCKS = list(range(150))
NO_FAKE: Any = SimpleNamespace(is_dead=False, gpu=None)


@pytest.fixture
def cluster() -> Iterator[InProcessCluster]:
    running = InProcessCluster(3)
    yield running
    running.kill()


@pytest.fixture
def engine(cluster: InProcessCluster, request: pytest.FixtureRequest) -> Iterator[Engine]:
    extra = getattr(request, "param", {})
    made = Engine(NO_FAKE, block_count=160, url=cluster.url, transport="tcp", **extra)
    yield made
    made.close()


def hit_tokens(engine: Engine, request: Request) -> int:
    """Asks, as each step of the scheduler does, until the store has answered."""
    found: list[int] = []

    def is_known() -> bool:
        tokens, _ = engine.match(request)
        if tokens is not None:
            found.append(tokens)
        return bool(found)

    until(is_known)
    return found[0]


def load(engine: Engine, request: Request) -> set[int]:
    """Loads what was found; the blocks that did not come."""
    engine.scheduler.after_allocation(request, [BLOCKS], hit_tokens(engine, request))
    engine.begin(StepOutput())
    engine.worker.start_loads()
    failed: set[int] = set()

    def is_over() -> bool:
        finished, invalid = engine.end()
        failed.update(invalid)
        engine.begin(StepOutput())
        return request.request_id in finished

    until(is_over)
    return failed


def test_a_prompt_saved_on_three_nodes_is_loaded_from_them(
    engine: Engine, cluster: InProcessCluster
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    assert engine.worker.counters.totals["blocks_saved"] == 150
    sizes = [node.native.key_count(None) for node in cluster.nodes]
    assert sum(sizes) == 150
    assert set(sizes) <= {0, 22, 64, 86, 128, 150}  # whole groups, the last of 22 blocks
    engine.wipe()
    request = Request("s", [*PROMPT, 1])
    assert load(engine, request) == set()
    assert engine.worker.counters.totals["blocks_loaded"] == 150
    assert engine.holds(request, BLOCKS, 150)
    until(lambda: all(node.native.snapshot()["leases"] == 0 for node in cluster.nodes))


def test_a_node_that_dies_costs_its_blocks_and_what_follows_them(
    engine: Engine, cluster: InProcessCluster
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    request = Request("s", [*PROMPT, 1])
    holder = next(node for node in cluster.nodes if node.native.key_count(None))
    holder.kill()
    found = hit_tokens(engine, request)
    assert found in {0, 64 * 4, 128 * 4}
    # The worker, which has not heard of it, loses one step's saves to that node; what is computed
    # after that is saved where it is found from now on.
    engine.prefill(Request("t", PROMPT), BLOCKS)
    lost = engine.worker.counters.totals["blocks_save_failed"]
    assert lost in {0, 22, 64, 86, 128, 150}  # all groups may have been its own
    engine.prefill(Request("v", PROMPT), BLOCKS)
    assert engine.worker.counters.totals["blocks_save_failed"] == lost
    other = Request("u", [*PROMPT, 2])
    engine.wipe()
    assert load(engine, other) == set()
    assert engine.holds(other, BLOCKS, 150)


def test_a_node_that_dies_between_lookup_and_load_is_a_failed_load(
    engine: Engine, cluster: InProcessCluster
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    request = Request("s", [*PROMPT, 1])
    assert hit_tokens(engine, request) == 600
    holder = next(node for node in cluster.nodes if node.native.key_count(None))
    lost = holder.native.key_count(None)
    holder.kill()
    engine.wipe()
    failed = load(engine, request)
    assert len(failed) == lost
    for layer, tensor in enumerate(engine.caches[0].values()):
        for index in set(BLOCKS) - failed:
            assert tensor.bytes[index].tobytes() == true_bytes(PROMPT, index, layer)


@pytest.mark.parametrize("engine", [{"load_mode": "layerwise"}], indirect=True)
def test_layers_are_loaded_one_by_one(engine: Engine, cluster: InProcessCluster) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    engine.wipe()
    request = Request("s", [*PROMPT, 1])
    assert hit_tokens(engine, request) == 600
    engine.scheduler.after_allocation(request, [BLOCKS], 600)
    engine.begin(StepOutput().new(request, [*BLOCKS, 155], 600, 1))
    engine.worker.start_loads()
    engine.forward(request, [*BLOCKS, 155])
    assert engine.end() == (set(), set())
    assert engine.holds(request, BLOCKS, 150)
