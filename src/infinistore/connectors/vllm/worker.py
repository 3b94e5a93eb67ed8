"""The worker side: moves blocks between vLLM's KV cache and the store, in vLLM's order of calls.

One thread, the model runner's. Nothing escapes: a failed load is reported as invalid blocks, a
failed save is a block that nobody will find.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from infinistore.connectors import _spans, _streams
from infinistore.connectors.vllm.counters import Counters, Warner
from infinistore.connectors.vllm.groups import GroupCache, LayerPlace, layer_places, map_groups
from infinistore.connectors.vllm.identity import EngineShape
from infinistore.connectors.vllm.layout import TensorLike
from infinistore.connectors.vllm.link import StoreLink
from infinistore.connectors.vllm.loads import AsyncLoads, LayerLoads, LoadedBlocks
from infinistore.connectors.vllm.metadata import StepPlan
from infinistore.connectors.vllm.saves import SaveGate, SaveReport, StepSave
from infinistore.connectors.vllm.settings import ASYNC, ConnectorSettings
from infinistore.errors import Code

if TYPE_CHECKING:
    from infinistore import Client

logger = logging.getLogger("vllm." + __name__)  # so that it shows in vLLM's log

_IDLE_WAIT_S = 0.005  # an engine with nothing to compute waits for its loads instead of spinning
# While it asks the store it waits twice as long each time: each step without work costs a
# millisecond of CPU, and an answer that is late is noticed at most as late again.
_ASKING_WAIT_S, _ASKING_WAIT_MAX_S = 0.0005, 0.008


class WorkerSide:
    """One worker's half: `begin_step`, then vLLM's hooks, then `end_step`."""

    def __init__(
        self,
        settings: ConnectorSettings,
        shape: EngineShape,
        link: StoreLink,
        *,
        rank: int = 0,
        stage: int = 0,
        saves: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._link = link
        self._shape, self._rank, self._stage = shape, rank, stage
        self._saves = saves and shape.is_writer(rank)
        self._clock = clock
        self._groups: list[GroupCache] = []  # none until vLLM has made its caches
        self._layers: dict[str, LayerPlace] = {}
        self._loads: AsyncLoads | None = None
        self._plan = StepPlan()
        self._step_saves: dict[int, StepSave] = {}  # by group
        self._is_save_begun = False
        self._save_began_s = self._load_began_s = 0.0
        self._step_load: LayerLoads | None = None
        self._invalid: set[int] = set()
        self._failed: set[str] = set()
        self._asking_wait_s = _ASKING_WAIT_S
        self._gate = SaveGate(clock)
        self._epoch = settings.weights_epoch
        self._is_updating = False  # the weights change: nothing is loaded or saved
        self.wanted_epoch = ""  # the scheduler's side has not heard of it yet
        self._warner = Warner(logger, clock)
        self.counters = Counters()

    def register(self, caches: Mapping[str, TensorLike], block_count: int) -> None:
        """Learns where the KV cache lies. Raises `ConfigError` for memory it cannot address."""
        self._groups = map_groups(caches, block_count, self._shape, self._rank, self._stage)
        self._layers = layer_places(self._groups)
        self._loads = AsyncLoads(
            self._groups, self._settings.load_timeout_s, self._clock, self._link.drop
        )
        device = self._device
        if device is not None:
            self._link.prepare_device(device)
        for group in self._groups:
            logger.info(
                "%d layers, %d blocks, %d bytes a value, in the memory of %s",
                len(group.cache.layers),
                block_count,
                group.cache.value_bytes,
                "the host" if device is None else f"GPU {device}",
            )

    @property
    def value_bytes(self) -> int:
        """Bytes of one value: all layers of the first group in a block, of this worker's heads."""
        return self._groups[0].cache.value_bytes if self._groups else 0

    @property
    def _device(self) -> int | None:
        return self._groups[0].cache.device if self._groups else None

    @property
    def is_saving(self) -> bool:
        """Whether saves are on their way to the store and not paused."""
        return self._gate.is_open and self._client is not None and not self._link.only_reads

    def begin_step(self, plan: StepPlan) -> None:
        """Takes the step's plan; before any hook of the step."""
        if plan.epoch != self._epoch:
            self._epoch = plan.epoch
            self._void_loads()
            self._link.move(plan.epoch)
        if self.wanted_epoch == self._epoch:
            self.wanted_epoch = ""
        self._plan = plan
        self._step_saves = {}
        self._is_save_begun = False

    def set_epoch(self, epoch: str | None) -> None:
        """The weights are to change (None), or have changed; between steps."""
        self._is_updating = epoch is None
        self.wanted_epoch = "" if epoch in (None, self._epoch) else str(epoch)
        if self._is_fenced:
            self._void_loads()

    @property
    def _is_fenced(self) -> bool:
        return self._is_updating or bool(self.wanted_epoch)

    def _void_loads(self) -> None:
        if self._loads is not None:
            self._loads.void()

    @property
    def _client(self) -> Client | None:
        return None if self._is_fenced else self._link.client

    def _save(self) -> dict[int, StepSave]:
        # When it is first needed: with its first layer the GPU has work, and this takes a while.
        if not self._is_save_begun:
            self._is_save_begun = True
            self._save_began_s = self._clock()
            self._step_saves = self._begin_save(self._plan)
        return self._step_saves

    def _begin_save(self, plan: StepPlan) -> dict[int, StepSave]:
        if not plan.saves or not self._saves or not self._groups:
            return {}
        client = self._client
        if client is None or not self.is_saving:
            self.counters.add("blocks_save_skipped", sum(map(len, plan.saves)))
            return {}
        return {
            saves.group: StepSave(client, self._groups[saves.group], saves) for saves in plan.saves
        }

    # Loads.

    def start_loads(self) -> None:
        """Submits the step's loads; none is waited for."""
        loads, self._plan.loads = self._plan.loads, []
        if not loads or self._loads is None:
            return
        if self._settings.load_mode == ASYNC:
            self._loads.start(self._client, loads)
        else:  # which models of one group alone have
            self._load_began_s = self._clock()
            self._step_load = LayerLoads(self._groups[0], self._client, loads, self._link.drop)

    def wait_layer(self, name: str) -> None:
        """Waits until one layer of this step's loads is in place, or has failed."""
        if self._step_load is not None:
            place = self._layers.get(name)
            if place is not None:
                self._wait_layer(self._step_load, place.index)

    def _wait_layer(self, load: LayerLoads, layer: int) -> None:
        load.wait_layer(layer, self._settings.load_timeout_s)
        if load.failed_ids:
            for save in self._save().values():
                save.poison()

    def _end_layers(self) -> None:
        load, self._step_load = self._step_load, None
        if load is None:
            return
        for layer in range(load.layer_count):
            self._wait_layer(load, layer)
        self._count_load(load, self._clock() - self._load_began_s)

    def _count_load(
        self, load: LoadedBlocks | LayerLoads, seconds: float, request: str = ""
    ) -> None:
        loaded, failed = load.loaded, load.failed_ids
        names = _names(load.causes) if failed else ""
        self.counters.add("blocks_loaded", loaded)
        self.counters.add("bytes_loaded", load.loaded_bytes)
        if failed:
            self.counters.add("blocks_load_failed", len(failed))
            if self._shape.has_windows:
                self._failed.add(request)
            else:
                self._invalid.update(failed)
            self.counters.add("blocks_load_corrupt", load.corrupt)
            self._warner.warn("%d blocks did not load (%s): recomputed", len(failed), names)
        told: dict[str, str | int] = {"request_id": request} if request else {}
        told |= {"blocks": loaded, "bytes": load.loaded_bytes, "failed": len(failed)}
        _spans.record("load", seconds, told, failure=names)

    # Saves.

    def save_layer(self, name: str) -> None:
        """Submits one layer of the blocks that this step completes; returns at once."""
        place = self._layers.get(name)
        if place is None or not any(saves.by_layer for saves in self._plan.saves):
            return
        save = self._save().get(place.group)
        if save is not None:
            save.submit_layer(place.index)

    def end_saves(self) -> None:
        """Waits for the step's loads by layer, then until its saves are sealed."""
        self._end_layers()
        saves, self._step_saves = self._save(), {}
        self._plan.saves = []
        self._is_save_begun = False
        if not saves:
            return
        for save in saves.values():
            save.submit_rest()
        device = self._device
        if device is not None:
            _streams.wait_computed(device)  # the time that the model takes is none of the store's
        deadline_s = time.monotonic() + self._settings.save_timeout_s
        report = SaveReport()
        for save in saves.values():
            left_s = max(0.0, deadline_s - time.monotonic())
            report += save.finish(left_s, self._link.drop)
        self._count_save(report)

    def _count_save(self, report: SaveReport) -> None:
        self.counters.add("blocks_saved", report.saved)
        self.counters.add("bytes_saved", report.saved_bytes)
        self.counters.add("blocks_save_present", report.present)
        self.counters.add("blocks_save_failed", report.failed)
        if report.is_link_lost:
            self._gate.failed()
        else:
            self._gate.succeeded()
        names = (_names(report.causes) or "link lost") if report.failed else ""
        if report.failed and not report.is_withdrawn:
            self._warner.warn("%d blocks were not saved (%s)", report.failed, names)
        told = {"blocks": report.saved, "bytes": report.saved_bytes}
        told |= {"present": report.present, "failed": report.failed}
        _spans.record("save", self._clock() - self._save_began_s, told, failure=names)

    # Ends.

    def take_finished(self) -> set[str]:
        """The requests whose loads between steps have ended, well or not."""
        if self._loads is None:
            return set()
        if self._plan.is_idle and not self._loads.wait(_IDLE_WAIT_S) and self._plan.is_asking:
            time.sleep(self._asking_wait_s)
            self._asking_wait_s = min(2 * self._asking_wait_s, _ASKING_WAIT_MAX_S)
        else:
            self._asking_wait_s = _ASKING_WAIT_S
        ended = self._loads.take_ended()
        for load in ended:
            self._count_load(load, load.seconds, load.request_id)
        return {load.request_id for load in ended}

    def take_invalid(self) -> set[int]:
        """The engine's blocks that did not load, since the last call."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def take_failed(self) -> set[str]:
        """The requests that must begin anew, for blocks of them did not load; of `has_windows`."""
        failed, self._failed = self._failed, set()
        return failed

    def close(self) -> None:
        """Ends all copies and the link."""
        self._link.close()


def _names(causes: Iterable[Code]) -> str:
    return ", ".join(sorted(code.name.lower() for code in causes))
