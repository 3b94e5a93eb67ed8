"""The connector's counters in the forms that vLLM's log and its /metrics take."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1 import metrics

from infinistore.connectors.vllm.counters import COUNTER_NAMES


class InfiniStoreStats(metrics.KVConnectorStats):  # type: ignore[misc]
    """Counts of one interval, by the names in `COUNTER_NAMES`."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> InfiniStoreStats:
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


# Versions without it do not ask for it.
_PromMetrics: Any = getattr(metrics, "KVConnectorPromMetrics", object)


class InfiniStorePromMetrics(_PromMetrics):  # type: ignore[misc]
    """One Prometheus counter for each of `COUNTER_NAMES`."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labels: list[str], engines: dict[int, list[Any]]
    ) -> None:
        super().__init__(vllm_config, metric_types, labels, engines)
        self._engines = engines
        self._counters = {
            name: metric_types[Counter](
                name=f"vllm:infinistore_{name}",
                documentation=f"InfiniStore connector: {name.replace('_', ' ')}.",
                labelnames=labels,
            )
            for name in COUNTER_NAMES
        }

    def observe(self, transfer_stats_data: dict[str, Any] | None, engine_idx: int = 0) -> None:
        for name, amount in (transfer_stats_data or {}).items():
            if name in self._counters:
                self._counters[name].labels(*self._engines[engine_idx]).inc(amount)
