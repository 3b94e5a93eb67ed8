"""A native server without the native part, for tests of what manages it."""

from __future__ import annotations

from typing import Any

from infinistore.server.native import ServerOptions


class FakeNative:
    """Holds counters; remembers what it was asked."""

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.options = options
        self.calls: list[tuple[str, Any]] = []
        self.start_error: Exception | None = None
        self.keys = {"a": 3, "b": 4}
        self.wrong = ""
        self.damaged: list[tuple[bytes, bytes]] = []
        self.scrub_steps = 3
        self.counters = {
            "capacity_bytes": 1000,
            "populated_bytes": 1000,
            "free_bytes": 400,
            "sealed_bytes": 600,
            "keys": 7,
            "hits": 5,
        }

    def start(self) -> dict[str, Any]:
        self.calls.append(("start", None))
        if self.start_error:
            raise self.start_error
        return {"port": 4321, "incarnation": 77}

    def stop(self, drain_s: float) -> None:
        self.calls.append(("stop", drain_s))

    def snapshot(self) -> dict[str, int]:
        return dict(self.counters)

    def evict(self, bytes_wanted: int) -> int:
        self.calls.append(("evict", bytes_wanted))
        self.counters["free_bytes"] += bytes_wanted
        self.counters["sealed_bytes"] -= bytes_wanted
        return bytes_wanted

    def purge(self, namespace: str | None, below: bool = False) -> int:
        self.calls.append(("purge", namespace))
        doomed = self._meant(namespace, below)
        return sum(self.keys.pop(name) for name in doomed)

    def key_count(self, namespace: str | None, below: bool = False) -> int:
        return sum(self.keys[name] for name in self._meant(namespace, below))

    def _meant(self, namespace: str | None, below: bool) -> list[str]:
        return [
            name
            for name in self.keys
            if namespace in (None, name) or (below and name.startswith(namespace or ""))
        ]

    def tenant_use(self, tenant: str) -> dict[str, int]:
        used = {"a": 600}.get(tenant, 0)
        return {"used_bytes": used, "quota_evictions": used // 100, "quota_evicted_bytes": used}

    def recent_log(self) -> list[dict[str, Any]]:
        return [{"time_s": 1.0, "level": "WARNING", "text": "of the core"}]

    def check_integrity(self) -> str:
        return self.wrong

    def hottest(self, count_max: int) -> list[tuple[bytes, bytes, int, float]]:
        return [(b"a", b"k\xff", 8, 2.5)][:count_max]

    def list_keys(
        self, cursor: int, count_max: int
    ) -> tuple[int, list[tuple[bytes, bytes, int, float]]]:
        return 0, [(b"a", b"k\xff", 8, 2.5)]

    def begin_move(self, namespace: str, keys: list[bytes]) -> int:
        return 1

    def end_move(self, move: int) -> list[bool]:
        return []

    def scrub(self) -> FakeScrub:
        return FakeScrub(self)

    def explain(self, namespace: str, keys: list[bytes]) -> list[dict[str, Any]]:
        self.calls.append(("explain", (namespace, keys)))
        return [{"state": "unknown", "elsewhere": [b"a"], "forgotten": False} for _ in keys]

    def namespaces(self) -> list[dict[str, Any]]:
        return [
            {"namespace": name.encode(), "keys": count, "bytes": count * 10, "hits": 1, "misses": 2,
             "idle_s": 1.5}
            for name, count in self.keys.items()
        ]  # fmt: skip

    def hit_curve(self, pool_bytes: list[int]) -> dict[str, Any]:
        rates = [min(1.0, size / 8000) for size in pool_bytes]
        return {"asked": 100.0, "sampled_share": 0.5, "bytes_max": 8000, "hit_rates": rates}

    def staged(self) -> list[dict[str, Any]]:
        return [{"key": b"k\xff", "namespace": "a", "value_bytes": 8, "filled": [(0, 4)]}]


class FakeScrub:
    """Sees all of the counters' keys in so many steps as its server says."""

    def __init__(self, native: FakeNative) -> None:
        self._native = native
        self.steps: list[int] = []

    def step(self, bytes_max: int) -> bool:
        self.steps.append(bytes_max)
        self._native.calls.append(("scrub", bytes_max))
        return len(self.steps) < self._native.scrub_steps

    def found(self) -> dict[str, Any]:
        damaged = self._native.damaged
        return {"values": 7, "bytes": 600, "corrupt": len(damaged), "damaged": list(damaged)}
