"""The native server as the daemon sees it: its calls, and the options handed down once."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from infinistore.errors import SetupError
from infinistore.server.startup import Plan

# Namespace, key, bytes of the value, bytes of it served a second lately.
HeatRow = tuple[bytes, bytes, int, float]


class NativeScrub(Protocol):
    """`_native.Scrub`: a walk over all values, in steps of the caller's."""

    def step(self, bytes_max: int, /) -> bool: ...
    def found(self) -> dict[str, Any]: ...


class NativeServer(Protocol):
    """`_native.Server`. No call of it but start and stop waits for anything."""

    def start(self) -> Mapping[str, Any]: ...
    def stop(self, drain_s: float) -> None: ...
    def snapshot(self) -> Mapping[str, int]: ...
    def evict(self, bytes_wanted: int, /) -> int: ...
    def purge(self, namespace: str | None, below: bool = False, /) -> int: ...
    def key_count(self, namespace: str | None, below: bool = False, /) -> int: ...
    def tenant_use(self, tenant: str, /) -> Mapping[str, int]: ...
    def staged(self) -> list[dict[str, Any]]: ...
    def hottest(self, count_max: int, /) -> list[HeatRow]: ...
    def list_keys(self, cursor: int, count_max: int, /) -> tuple[int, list[HeatRow]]: ...
    def reload_certificate(self) -> str: ...
    def begin_move(self, namespace: str, keys: list[bytes], /) -> int: ...
    def end_move(self, move: int, /) -> list[bool]: ...
    def recent_log(self) -> list[dict[str, Any]]: ...
    def check_integrity(self) -> str: ...
    def scrub(self) -> NativeScrub: ...
    def explain(self, namespace: str, keys: list[bytes], /) -> list[dict[str, Any]]: ...
    def namespaces(self) -> list[dict[str, Any]]: ...
    def hit_curve(self, pool_bytes: list[int], /) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What goes down, once; mirrors core/server/options.h."""

    host: str
    port: int
    unix_socket: str  # empty: none
    pool_bytes: int
    huge_pages: str
    workers: int
    rdma: str
    rdma_device: str
    token: str
    read_token: str  # empty: none
    tenants: list[tuple[str, str, int]]  # name, token, quota
    tls_cert_file: str  # empty: TCP's bytes travel as they are
    tls_key_file: str
    eviction: str
    stage_timeout_s: float
    stage_share: float
    lease_max_s: float
    sessions_max: int
    heat_half_life_s: float
    log_level: str
    log_format: str
    version: str
    without_fencing: bool  # for tests only

    def __repr__(self) -> str:
        return "ServerOptions(...)"  # it holds the token


def options_for(plan: Plan, version: str) -> ServerOptions:
    """The native half of a plan."""
    config = plan.config
    return ServerOptions(
        host=plan.host,
        port=config.port,
        unix_socket=str(plan.unix_socket or ""),
        pool_bytes=plan.pool_bytes,
        huge_pages=config.huge_pages,
        workers=plan.workers,
        rdma=config.rdma,
        rdma_device=config.rdma_device,
        token=plan.token,
        read_token=plan.read_token,
        tenants=[(each.name, each.token, each.quota_bytes) for each in plan.tenants],
        tls_cert_file=config.tls_cert_file,
        tls_key_file=config.tls_key_file,
        eviction=config.eviction,
        stage_timeout_s=config.stage_timeout_s,
        stage_share=config.stage_share,
        lease_max_s=config.lease_max_s,
        sessions_max=config.sessions_max,
        heat_half_life_s=config.heat_half_life_s,
        log_level=config.log_level,
        log_format=config.log_format,
        version=version,
        without_fencing=plan.without_fencing,
    )


def make_server(options: ServerOptions) -> NativeServer:
    """Raises `SetupError` if the extension is not built."""
    try:
        module: Any = importlib.import_module("infinistore._native")
    except ImportError as error:
        raise SetupError(
            f"the native part is missing ({error}); install a wheel, or run `make build`"
        ) from error
    return cast(NativeServer, module.Server(options))
