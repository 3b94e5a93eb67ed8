"""What the scheduler side tells the workers about one step. Plain values: it is pickled."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class BlockLoad:
    """One request's blocks of a group that the store has: into which of the engine's they go."""

    request_id: str
    names: list[bytes]  # what their keys begin with
    block_ids: list[int]
    group: int = 0


@dataclass(slots=True)
class BlockSaves:
    """The blocks of a group that this step completes, of all requests; columns of one length."""

    names: list[bytes] = field(default_factory=list)
    parents: list[bytes] = field(default_factory=list)  # b"": the first of a chain
    depths: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    group: int = 0
    by_layer: bool = False  # a prefill step: save while it runs; else in one piece at its end

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True)
class StepPlan:
    """One step: what to load, what to save, and whether anybody computes meanwhile."""

    loads: list[BlockLoad] = field(default_factory=list)
    saves: list[BlockSaves] = field(default_factory=list)  # of each group that has any
    is_idle: bool = False  # no token is computed: the worker may wait for its loads
    is_asking: bool = False  # requests wait for the store's word
    epoch: str = ""  # of the weights: in whose namespace the workers are from this step on
