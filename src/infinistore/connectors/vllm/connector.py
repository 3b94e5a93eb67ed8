"""What vLLM sees: its connector interface, each call forwarded to the side that it is made for.

The interface is vLLM's and changes between its versions; tested with 0.32.0 on CPUs and 0.26.0 on
GPUs.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import base

from infinistore.connectors.vllm import epochs, identity
from infinistore.connectors.vllm.link import StoreLink
from infinistore.connectors.vllm.metadata import StepPlan
from infinistore.connectors.vllm.scheduler import SchedulerSide
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.connectors.vllm.stats import InfiniStorePromMetrics, InfiniStoreStats
from infinistore.connectors.vllm.worker import WorkerSide

logger = logging.getLogger("vllm." + __name__)  # so that it shows in vLLM's log

_START_WAIT_S = 10.0  # for the weights' digest and the first connection; later it goes on behind


@dataclass
class InfiniStoreMetadata(base.KVConnectorMetadata):  # type: ignore[misc]
    """Carries a step's plan to the workers."""

    plan: StepPlan = field(default_factory=StepPlan)


_WorkerMetadata: Any = getattr(base, "KVConnectorWorkerMetadata", object)


@dataclass
class InfiniStoreWorkerState(_WorkerMetadata):  # type: ignore[misc]
    """Carries back whether the workers' saves reach the store."""

    is_saving: bool = True
    wanted_epoch: str = ""  # of the weights, as somebody told the workers

    def aggregate(self, other: InfiniStoreWorkerState) -> InfiniStoreWorkerState:
        is_agreed = self.wanted_epoch == other.wanted_epoch
        return InfiniStoreWorkerState(
            self.is_saving and other.is_saving, self.wanted_epoch if is_agreed else ""
        )


# Versions without it cannot take back a request whose load failed, only blocks.
_TransferResults: Any = getattr(base, "KVConnectorTransferResults", None)

# Named or not by the version, it says that the connector knows of several KV groups: those that it
# does not serve it refuses itself, with the remedy, where vLLM would quietly switch its hybrid
# memory off.
_SupportsHMA: Any = getattr(base, "SupportsHMA", object)


class InfiniStoreConnector(base.KVConnectorBase_V1, _SupportsHMA):  # type: ignore[misc]
    """Saves and loads KV blocks in an InfiniStore; `role` says which side an object is."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        settings = ConnectorSettings.of(transfer.kv_connector_extra_config)
        identity.check_failure_policy(vllm_config, settings)
        identity.check_load_mode(vllm_config, settings)
        shape = identity.engine_shape(vllm_config, kv_cache_config, settings)
        identity.check_windows(shape, settings, takes_requests_back=_TransferResults is not None)
        self._block_count = kv_cache_config.num_blocks
        self.link = StoreLink(
            settings, lambda: identity.namespace(vllm_config, kv_cache_config, settings)
        )
        self.scheduler: SchedulerSide | None = None
        self.worker: WorkerSide | None = None
        if role == base.KVConnectorRole.SCHEDULER:
            self.scheduler = SchedulerSide(
                settings,
                shape,
                lambda: self.link.client,
                saves=transfer.is_kv_producer,
                loads=transfer.is_kv_consumer,
                extra_keys=_extra_keys,
                move=self.link.move,
            )
        else:
            rank, stage = _ranks()
            self.worker = WorkerSide(
                settings,
                shape,
                self.link,
                rank=rank,
                stage=stage,
                saves=transfer.is_kv_producer,
            )
        epochs.register(self)
        if not self.link.wait_tried(_START_WAIT_S):
            logger.warning("no store at %s yet: the engine starts without it", settings.url)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is not delivered is computed

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # full graphs would skip the layers' hooks

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> InfiniStoreStats:
        return InfiniStoreStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> InfiniStorePromMetrics:
        return InfiniStorePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def get_kv_connector_stats(self) -> InfiniStoreStats | None:
        side = self.scheduler or self.worker
        fresh = side.counters.take() if side else {}
        return InfiniStoreStats(data=fresh) if fresh else None

    def set_weights_epoch(self, epoch: str | None) -> None:
        """See `epochs.set_weights_epoch`."""
        side = self.scheduler or self.worker
        if side is not None:
            side.set_epoch(epoch)

    def shutdown(self) -> None:
        if self.scheduler is not None:
            self.scheduler.close()
        if self.worker is not None:
            self.worker.close()
        self.link.close()

    # The scheduler side.

    @property
    def _scheduler(self) -> SchedulerSide:
        assert self.scheduler is not None, "a scheduler's call on a worker's connector"
        return self.scheduler

    def on_new_request(self, request: Any) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.after_allocation(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> InfiniStoreMetadata:
        return InfiniStoreMetadata(self._scheduler.build_step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        state = getattr(connector_output, "kv_connector_worker_meta", None)
        self._scheduler.on_output(
            connector_output.finished_recving or (),
            set(connector_output.invalid_block_ids or ()),
            state.is_saving if isinstance(state, InfiniStoreWorkerState) else True,
            state.wanted_epoch if isinstance(state, InfiniStoreWorkerState) else "",
            getattr(connector_output, "failed_recving", None) or (),
        )

    def reset_cache(self) -> bool:
        self._scheduler.reset()
        return True

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduler.on_finished(request)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduler.on_finished(request)

    # The worker side.

    @property
    def _worker(self) -> WorkerSide:
        assert self.worker is not None, "a worker's call on a scheduler's connector"
        return self.worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._worker.register(kv_caches, self._block_count)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker.begin_step(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.start_loads()

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        self._worker.save_layer(layer_name)

    def wait_for_save(self) -> None:
        self._worker.end_saves()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.take_finished()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """In versions that have it vLLM asks this instead of `get_finished`."""
        finished = self._worker.take_finished()
        return _TransferResults(
            finished_recving=finished, failed_recving=self._worker.take_failed()
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_invalid()

    def build_connector_worker_meta(self) -> InfiniStoreWorkerState | None:
        # Saying nothing means that all is well.
        worker = self._worker
        if worker.is_saving and not worker.wanted_epoch:
            return None
        return InfiniStoreWorkerState(worker.is_saving, worker.wanted_epoch)


def _register() -> None:
    """Makes the class known by its name: by it alone MultiConnector finds whose counters it has."""
    with contextlib.suppress(ValueError):  # it is known
        KVConnectorFactory.register_connector(
            InfiniStoreConnector.__name__,
            InfiniStoreConnector.__module__,
            InfiniStoreConnector.__name__,
        )


_register()


def _ranks() -> tuple[int, int]:
    from vllm.distributed import parallel_state

    return (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_pp_group().rank_in_group,
    )


def _extra_keys(request: Any, start: int, end: int) -> tuple[Any, ...] | None:
    """The extra keys that vLLM's own block hash would take in."""
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

    keys, _ = generate_block_hash_extra_keys(request, start, end, 0)
    return tuple(keys) if keys else None
