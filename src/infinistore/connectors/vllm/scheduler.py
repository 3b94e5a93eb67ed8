"""The scheduler side: what to load, what to save; asks the store and hardly waits for it.

One thread, the engine core's. Plain values and vLLM's objects by their attributes: no vLLM import.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from infinistore.connectors import _spans
from infinistore.connectors.vllm import decisions, epochs
from infinistore.connectors.vllm.counters import Counters, Warner
from infinistore.connectors.vllm.decisions import Verdict
from infinistore.connectors.vllm.epochs import OldBlocks
from infinistore.connectors.vllm.identity import EngineShape
from infinistore.connectors.vllm.lookups import Lookup, Lookups
from infinistore.connectors.vllm.metadata import BlockLoad, BlockSaves, StepPlan
from infinistore.connectors.vllm.requests import ExtraKeys, RequestPlan, Unkeyed, read_extras
from infinistore.connectors.vllm.settings import ASYNC, ConnectorSettings
from infinistore.connectors.vllm.weights import AdapterDigests
from infinistore.errors import InfiniStoreError

if TYPE_CHECKING:
    from infinistore import Client

logger = logging.getLogger("vllm." + __name__)  # so that it shows in vLLM's log


class SchedulerSide:
    """Decides for each request; `StepPlan` carries the decisions to the workers."""

    def __init__(
        self,
        settings: ConnectorSettings,
        shape: EngineShape,
        client: Callable[[], Client | None],
        *,
        saves: bool = True,
        loads: bool = True,
        extra_keys: ExtraKeys = lambda request, start, end: None,
        move: Callable[[str], None] = lambda epoch: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self.shape = shape
        self._block_tokens = shape.block_tokens
        self._parts = shape.parts
        self._saves = saves
        self._loads = loads
        self._extra_keys = extra_keys
        self._clock = clock
        self._lookups = Lookups(client, clock)
        self._adapters = AdapterDigests()
        self._plans: dict[str, RequestPlan] = {}
        self._loading: dict[str, RequestPlan] = {}  # outlives a plan whose request was aborted
        self._to_load: list[BlockLoad] = []
        # Leases of loads within a step, and after how many more outputs that step has surely ended.
        self._step_leases: list[tuple[list[int], int]] = []
        self._steps_ahead = shape.stages + 1
        self._has_waited = False  # for an answer, in this step
        self._is_saving = True  # what the workers last reported
        self.epoch = settings.weights_epoch
        self._move = move  # the link, to the namespace of another epoch
        self._is_updating = False  # the weights change: nothing is loaded or saved
        self._is_unnamed = False  # a reset began the epoch, and nobody has named it yet
        self._awaits_reset = False  # it was named before the engine's own cache was reset
        self._old = OldBlocks()
        self.counters = Counters()
        self._warner = Warner(logger, clock)

    # What the engine asks, in the order of a request's life.

    def on_new_request(self, request: Any) -> None:
        """Sends the first question early, so that its answer may be there when it is needed."""
        plan = self._plan(request)
        if self._may_ask(plan):
            self._ask(plan)

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens the store has beyond `computed_tokens`; None: ask again next step."""
        plan = self._plan(request)
        plan.asked_computed = computed_tokens
        if not self._may_ask(plan):
            return 0, False
        blocks = self._hit_blocks(plan)
        if blocks is None:
            return None, False
        tokens = decisions.external_tokens(blocks, computed_tokens, self._block_tokens)
        return tokens, tokens > 0 and self._settings.load_mode == ASYNC

    def after_allocation(
        self, request: Any, block_ids: Sequence[Sequence[int]], external: int
    ) -> None:
        """Notes the blocks of each group to load, if any; lets the lease go if none."""
        plan = self._plan(request)
        plan.block_ids = [list(ids) for ids in block_ids]
        self._old.allocated(request.request_id, plan.asked_computed)
        lookup, plan.lookup = plan.lookup, None
        if external <= 0:
            self._lookups.abandon(lookup)
            return
        first = plan.asked_computed // self._block_tokens
        end = first + external // self._block_tokens
        lease_ids = lookup.lease_ids if lookup else []
        self._to_load += self._loads_of(plan, first, end)
        self.counters.add("tokens_hit", external)
        if self._settings.load_mode == ASYNC:
            plan.loading_leases = lease_ids
            self._loading[request.request_id] = plan
        else:
            self._step_leases.append((lease_ids, self._steps_ahead))

    def _loads_of(self, plan: RequestPlan, first: int, end: int) -> list[BlockLoad]:
        """What each group is to load of blocks [first, end): with a window, only where it is."""
        names = plan.names(first, end)
        loads = []
        for number, group in enumerate(self.shape.groups):
            wanted = [
                index
                for index in range(first, end)
                if decisions.is_kept(
                    index, self._block_tokens, end * self._block_tokens, group.window
                )
            ]
            load = BlockLoad(
                request_id=plan.request.request_id,
                names=[names[index - first] for index in wanted],
                block_ids=[plan.block_ids[number][index] for index in wanted],
                group=number,
            )
            if wanted:
                loads.append(load)
        return loads

    def build_step(self, output: Any) -> StepPlan:
        """The plan of a step; after this the step is the workers'."""
        self._has_waited = False
        self._lookups.sweep()
        self._old.step(getattr(output, "preempted_req_ids", None) or ())
        loads, self._to_load = self._to_load, []
        return StepPlan(
            loads=loads,
            saves=self._collect_saves(output),
            is_idle=output.total_num_scheduled_tokens == 0,
            is_asking=any(plan.lookup is not None for plan in self._plans.values()),
            epoch=self.epoch,
        )

    # Weights that change.

    def reset(self) -> None:
        """The engine empties its cache and wants ours empty: a new epoch, which costs no deletion.

        It is the one named just before, if it was; or nobody's but this engine's until it is named.
        """
        if self._awaits_reset or self._settings.epoch_on_reset == "keep":
            self._awaits_reset = False
        else:
            self._begin(epochs.private())
            self._is_unnamed = True
        self._old.cache_was_reset()

    def set_epoch(self, epoch: str | None) -> None:
        """The weights are to change (None), or have changed and are now called so."""
        self._is_updating = epoch is None
        if epoch is None or epoch == self.epoch:
            return
        if self._is_unnamed:  # what was computed since the reset is by these weights
            self._go_to(epoch)
        else:
            self._begin(epoch)
            self._awaits_reset = True
        self._is_unnamed = False

    def _begin(self, epoch: str) -> None:
        self._old.weights_changed()
        self._go_to(epoch)

    def _go_to(self, epoch: str) -> None:
        logger.info("weights epoch %r follows %r", epoch, self.epoch)
        self.epoch = epoch
        self.counters.add("weights_epochs")
        for plan in self._plans.values():
            self._lookups.abandon(plan.lookup)
            plan.lookup = plan.in_store = None
            plan.loading_leases = []  # leases end with their connection
        self._step_leases = []
        self._move(epoch)

    def on_output(
        self,
        finished: Iterable[str],
        invalid: set[int],
        is_saving: bool,
        wanted_epoch: str = "",
        failed: Iterable[str] = (),
    ) -> None:
        """Ends the loads that the workers report, with their leases."""
        self._is_saving = is_saving
        if wanted_epoch:
            self.set_epoch(wanted_epoch)
        for request_id in failed:
            plan = self._loading.get(request_id)
            if plan is not None:
                plan.note_failure()
        for request_id in finished:
            plan = self._loading.pop(request_id, None)
            if plan is not None:
                self._lookups.release(plan.loading_leases)
                plan.loading_leases = []
        if invalid:
            self._note_failures(invalid)
        leases = [(lease_ids, outputs - 1) for lease_ids, outputs in self._step_leases]
        self._step_leases = [lease for lease in leases if lease[1] > 0]
        for lease_ids, outputs in leases:
            if outputs <= 0:
                self._lookups.release(lease_ids)

    def on_finished(self, request: Any) -> dict[str, object] | None:
        """Forgets a request; returns what its answer says of the blocks that it saved."""
        plan = self._plans.pop(request.request_id, None)
        self._old.ended(request.request_id)
        if plan is None:
            return None
        self._lookups.abandon(plan.lookup)
        if plan.extras is None or not self._saves or not self._is_saving:
            return None
        return decisions.announcement(plan.hashes(plan.saved), plan.saved)

    def close(self) -> None:
        """Lets all leases go."""
        for plan in self._plans.values():
            self._lookups.abandon(plan.lookup)
        self._lookups.sweep()
        self._adapters.close()

    # Lookups.

    def _plan(self, request: Any) -> RequestPlan:
        plan = self._plans.get(request.request_id)
        if plan is None:
            plan = RequestPlan(request, self._block_tokens, self._read_extras(request))
            self._plans[request.request_id] = plan
        return plan

    def _read_extras(self, request: Any) -> Any:
        try:
            return read_extras(request, self._block_tokens, self._adapters, self._extra_keys)
        except (Unkeyed, InfiniStoreError) as error:
            self.counters.add("requests_unkeyed")
            self._warner.warn("a request is not cached: %s", error)
            return None

    def _may_ask(self, plan: RequestPlan) -> bool:
        return (
            self._loads
            and not self._is_updating
            and plan.extras is not None
            and not plan.has_failed
            and not getattr(plan.request, "skip_reading_prefix_cache", False)
            and self._usable(plan) > 0
        )

    def _usable(self, plan: RequestPlan) -> int:
        return decisions.usable_blocks(plan.request.num_tokens, self._block_tokens)

    def _ask(self, plan: RequestPlan) -> None:
        usable = self._usable(plan)
        keys = self._parts.keys(plan.names(0, usable))
        plan.lookup = Lookup(keys, len(self._parts), self._clock())
        self.counters.add("lookups")
        self._lookups.ask(plan.lookup)

    def _hit_blocks(self, plan: RequestPlan) -> int | None:
        """The blocks that the store has, once known; None while it is not."""
        if plan.lookup is not None and plan.lookup.taken is not None:
            # Asked in every step until there is room: the answer stands while its lease does.
            if self._lookups.keep(plan.lookup):
                return plan.lookup.taken
            self._lookups.abandon(plan.lookup)
            plan.lookup = None
        if plan.lookup is None:
            self._ask(plan)
        lookup = plan.lookup
        assert lookup is not None
        if not self._has_waited:  # once a step: it is all requests' time
            self._has_waited = lookup.await_answer()
        verdict = self._judge(plan, lookup)
        if verdict is Verdict.REPEAT and lookup.may_repeat(self._clock()):
            self._lookups.ask(lookup)
        if verdict in (Verdict.WAIT, Verdict.REPEAT):
            return None
        if verdict is Verdict.GIVE_UP:
            self.counters.add("lookups_failed")
            self._warner.warn("the store did not answer a lookup in time: the engine computes")
            self._lookups.abandon(lookup)
            lookup.is_refused = True
            lookup.taken = 0
            plan.in_store = None
        else:
            lookup.taken = plan.in_store = lookup.view().blocks
        self._tell(plan, lookup)
        return lookup.taken

    def _tell(self, plan: RequestPlan, lookup: Lookup) -> None:
        counts = {"blocks": len(lookup.keys) // lookup.group, "hit_blocks": lookup.taken or 0}
        _spans.record(
            "lookup",
            self._clock() - lookup.first_asked_at_s,
            {"request_id": plan.request.request_id} | counts,
            failure="no answer in time" if lookup.is_refused else "",
            headers=getattr(plan.request, "trace_headers", None),
        )

    def _judge(self, plan: RequestPlan, lookup: Lookup) -> Verdict:
        announced = decisions.announced_blocks(
            getattr(plan.request, "kv_transfer_params", None),
            plan.chain.hashes,
            self._usable(plan),
        )
        return decisions.judge(
            lookup.view(),
            self._clock(),
            lookup.asked_at_s + self._settings.lookup_timeout_s,
            announced,
            lookup.first_asked_at_s + self._settings.delivery_timeout_s,
        )

    # Ends of loads.

    def _note_failures(self, invalid: set[int]) -> None:
        for plan in [*self._plans.values(), *self._loading.values()]:
            if any(not invalid.isdisjoint(ids) for ids in plan.block_ids):
                plan.note_failure()

    # Saves.

    def _collect_saves(self, output: Any) -> list[BlockSaves]:
        saves = [BlockSaves(group=number) for number in range(len(self.shape.groups))]
        for new in output.scheduled_new_reqs:
            self._admit(new.req_id, new.block_ids, new.num_computed_tokens)
            self._save(saves, new.req_id, new.num_computed_tokens, output)
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            computed = cached.num_computed_tokens[index]
            fresh = cached.new_block_ids[index]
            if request_id in cached.resumed_req_ids:
                self._admit(request_id, fresh, computed)
            elif fresh is not None and request_id in self._plans:
                plan = self._plans[request_id]
                for ids, more in zip(plan.block_ids, fresh, strict=True):
                    ids.extend(more)
            self._save(saves, request_id, computed, output)
        return [of_group for of_group in saves if of_group]

    def _admit(self, request_id: str, block_ids: Sequence[Sequence[int]], computed: int) -> None:
        plan = self._plans.get(request_id)
        if plan is not None:
            plan.block_ids = [list(ids) for ids in block_ids]
            # One that never asks offers all: the store says what it has.
            in_store = plan.in_store if self._loads else 0
            plan.saved = decisions.first_to_save(computed, self._block_tokens, in_store)
            plan.in_store = None

    def _save(self, saves: list[BlockSaves], request_id: str, computed: int, output: Any) -> None:
        plan = self._plans.get(request_id)
        if plan is None or plan.extras is None or not self._saves:
            return
        if self._is_updating or self._old.is_under(request_id):
            return
        scheduled = output.num_scheduled_tokens[request_id]
        # A failed load takes a running request back: what it computes again is saved again.
        plan.saved = min(plan.saved, computed // self._block_tokens)
        end = decisions.last_to_save(
            plan.request.num_tokens, computed + scheduled, self._block_tokens
        )
        end = min(end, *map(len, plan.block_ids))
        if end <= plan.saved:
            return
        for of_group, group in zip(saves, self.shape.groups, strict=True):
            self._save_group(of_group, plan, end, computed, group.window)
            of_group.by_layer = of_group.by_layer or scheduled > 1
        plan.saved = end

    def _save_group(
        self, saves: BlockSaves, plan: RequestPlan, end: int, computed: int, window: int | None
    ) -> None:
        before = max(0, plan.saved - 1)
        names = plan.names(before, end)
        # Requests that begin alike in one step share blocks: one of them saves.
        offered = set(saves.names)
        for index in range(plan.saved, end):
            name = names[index - before]
            if name in offered or not decisions.is_kept(
                index, self._block_tokens, computed, window
            ):
                continue
            saves.names.append(name)
            saves.parents.append(names[index - 1 - before] if index else b"")
            saves.depths.append(index)
            saves.block_ids.append(plan.block_ids[saves.group][index])
