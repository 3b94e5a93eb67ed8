"""The part of vLLM that the connector sees: requests, steps, and a KV cache in plain memory.

A block's bytes are a function of its tokens and of those before them, as a model's are; so a test
can tell right bytes from wrong ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fake_store import GPU, FakeStore

from infinistore.connectors.vllm.identity import EngineShape
from infinistore.connectors.vllm.layout import LayerGroup
from infinistore.connectors.vllm.link import StoreLink
from infinistore.connectors.vllm.metadata import StepPlan
from infinistore.connectors.vllm.scheduler import SchedulerSide
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.connectors.vllm.worker import WorkerSide
from waiting import until

BLOCK_TOKENS = 4
LAYERS = 3
RUN_BYTES = 64
BLOCK_COUNT = 64
LAYER_NAMES = [f"model.layers.{n}.attn" for n in range(LAYERS)]


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Request:
    """The attributes of vllm.v1.request.Request that are read."""

    request_id: str
    all_token_ids: list[int]
    kv_transfer_params: dict[str, Any] | None = None
    cache_salt: str | None = None
    lora_request: Any = None
    mm_features: list[Any] = field(default_factory=list)
    prompt_embeds: Any = None
    resumable: bool = False
    skip_reading_prefix_cache: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


@dataclass
class NewRequest:
    req_id: str
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class CachedRequests:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class StepOutput:
    """The attributes of vllm's SchedulerOutput that are read."""

    scheduled_new_reqs: list[NewRequest] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequests = field(default_factory=CachedRequests)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    preempted_req_ids: set[str] = field(default_factory=set)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())

    def new(self, request: Request, block_ids: list[int], computed: int, scheduled: int) -> Any:
        """Adds a request that is scheduled for the first time."""
        self.scheduled_new_reqs.append(NewRequest(request.request_id, (block_ids,), computed))
        self.num_scheduled_tokens[request.request_id] = scheduled
        return self

    def running(
        self,
        request: Request,
        fresh: list[int],
        computed: int,
        scheduled: int,
        resumed: bool = False,
    ) -> Any:
        """Adds a request that was scheduled before."""
        cached = self.scheduled_cached_reqs
        cached.req_ids.append(request.request_id)
        cached.new_block_ids.append((fresh,) if fresh else None)
        cached.num_computed_tokens.append(computed)
        if resumed:
            cached.resumed_req_ids.add(request.request_id)
        self.num_scheduled_tokens[request.request_id] = scheduled
        return self


class FakeTensor:
    """One layer's KV cache in numpy, with the methods of a torch tensor that are used."""

    def __init__(
        self, blocks: int = BLOCK_COUNT, run_bytes: int = RUN_BYTES, device: str = "cpu"
    ) -> None:
        self.bytes = np.zeros((blocks, run_bytes), dtype=np.uint8)
        self.device = device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bytes.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(self.bytes.strides)

    def data_ptr(self) -> int:
        return int(self.bytes.ctypes.data)

    def element_size(self) -> int:
        return 1


def true_bytes(tokens: list[int], block: int, layer: int, rank: int = 0) -> bytes:
    """What a model computes for one layer of one block."""
    seen = tokens[: (block + 1) * BLOCK_TOKENS]
    return hashlib.sha256(repr((seen, layer, rank)).encode()).digest() * (RUN_BYTES // 32)


class Engine:
    """A scheduler side and its workers over one fake store."""

    def __init__(
        self,
        store: FakeStore,
        *,
        ranks: int = 1,
        kv_heads: int = 4,
        saves: bool = True,
        loads: bool = True,
        weights: str = "w",
        device: str = "cpu",
        block_count: int = BLOCK_COUNT,
        groups: tuple[LayerGroup, ...] = (LayerGroup((), BLOCK_TOKENS),),
        cache_of: Callable[[int], dict[str, Any]] | None = None,  # by rank
        **extra: Any,
    ) -> None:
        self.settings = ConnectorSettings.of(extra)
        self._gpu = None if device == "cpu" else store.gpu
        self.shape = EngineShape(
            block_tokens=BLOCK_TOKENS,
            ranks=ranks,
            stages=1,
            kv_heads=kv_heads,
            groups=groups,
            split_tp=self.settings.split_tp,
        )
        self.clock = Clock()
        self.links = [StoreLink(self.settings, lambda: weights) for _ in range(ranks + 1)]
        self.scheduler = SchedulerSide(
            self.settings,
            self.shape,
            lambda: self.links[0].client,
            saves=saves,
            loads=loads,
            move=self.links[0].move,
            clock=self.clock,
        )
        self.workers: list[WorkerSide] = []
        self.caches: list[dict[str, Any]] = []
        layers = [name for group in groups for name in group.layers] or LAYER_NAMES
        for rank in range(ranks):
            worker = WorkerSide(
                self.settings,
                self.shape,
                self.links[1 + rank],
                rank=rank,
                saves=saves,
                clock=self.clock,
            )
            cache = (
                {name: FakeTensor(block_count, device=device) for name in layers}
                if cache_of is None
                else cache_of(rank)
            )
            worker.register(cache, block_count)
            self.workers.append(worker)
            self.caches.append(cache)
        if not store.is_dead:
            until(lambda: all(link.client for link in self.links))

    @property
    def worker(self) -> WorkerSide:
        return self.workers[0]

    def wait_connected(self) -> None:
        """Waits until the links have clients (again)."""
        until(lambda: all(link.client for link in self.links))

    def match(self, request: Request, computed: int = 0) -> tuple[int | None, bool]:
        """Asks until the answer is there."""
        return self.scheduler.matched_tokens(request, computed)

    def admitted(
        self, request: Request, block_ids: list[int], computed: int, scheduled: int
    ) -> StepOutput:
        """A step that schedules a request for the first time, asked about before as vLLM does."""
        if request.request_id not in self.scheduler._plans:
            self.match(request, computed)
            self.scheduler.after_allocation(request, [block_ids], 0)
        return StepOutput().new(request, block_ids, computed, scheduled)

    def compute(self, request: Request, block_ids: list[int], layer: int, end: int) -> None:
        """What the model's layer does to the blocks that hold tokens before `end`.

        On a GPU it is only launched: it happens when somebody waits for it.
        """

        def work() -> None:
            for rank, cache in enumerate(self.caches):
                tensor = list(cache.values())[layer]
                for block in range(end // BLOCK_TOKENS):
                    value = true_bytes(request.all_token_ids, block, layer, rank)
                    tensor.bytes[block_ids[block]] = np.frombuffer(value, dtype=np.uint8)

        if self._gpu is None:
            work()
        else:
            self._gpu.launch(work)

    def holds(self, request: Request, block_ids: list[int], blocks: int) -> bool:
        """Whether the KV cache has the right bytes of a request's first blocks."""
        if self._gpu is not None:
            self._gpu.synchronize(GPU)
        return all(
            list(cache.values())[layer].bytes[block_ids[block]].tobytes()
            == true_bytes(request.all_token_ids, block, layer, rank)
            for rank, cache in enumerate(self.caches)
            for layer in range(LAYERS)
            for block in range(blocks)
        )

    def wipe(self) -> None:
        """The KV cache after a restart."""
        if self._gpu is not None:
            self._gpu.synchronize(GPU)
        for cache in self.caches:
            for tensor in cache.values():
                tensor.bytes[:] = 0

    def begin(self, output: StepOutput) -> StepPlan:
        """The scheduler's end of a step and the workers' begin."""
        plan = self.scheduler.build_step(output)
        for worker in self.workers:
            loads = list(plan.loads)
            worker.begin_step(StepPlan(loads, plan.saves, plan.is_idle, plan.is_asking, plan.epoch))
        return plan

    def end(self) -> tuple[set[str], set[int]]:
        """The workers' end of a step and what the scheduler hears of it."""
        finished: set[str] | None = None
        invalid: set[int] = set()
        for worker in self.workers:
            worker.end_saves()
            ended = worker.take_finished()
            finished = ended if finished is None else finished & ended
            invalid |= worker.take_invalid()
        is_saving = all(worker.is_saving for worker in self.workers)
        wanted = {worker.wanted_epoch for worker in self.workers}
        told = wanted.pop() if len(wanted) == 1 else ""
        self.scheduler.on_output(finished or set(), invalid, is_saving, told)
        return finished or set(), invalid

    def prefill(self, request: Request, block_ids: list[int], computed: int = 0) -> None:
        """One step that computes a whole prompt, its layers' hooks called in order."""
        count = request.num_tokens - computed
        self.begin(self.admitted(request, block_ids, computed, count))
        self.forward(request, block_ids)
        self.end()

    def forward(self, request: Request, block_ids: list[int]) -> None:
        """The layers of a step."""
        for layer in range(LAYERS):
            name = f"model.layers.{layer}.attn"
            for worker in self.workers:
                worker.wait_layer(name)
            self.compute(request, block_ids, layer, request.num_tokens)
            for worker in self.workers:
                worker.save_layer(name)

    def close(self) -> None:
        self.scheduler.close()
        for link in self.links:
            link.close()
