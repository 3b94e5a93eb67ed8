"""What a server will run with: settings checked against this machine, every 0 resolved."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infinistore.cluster.node.plan import ClusterPlan, plan_cluster
from infinistore.config import GIB, MIB, ServerConfig, is_loopback, read_readers_token, read_token
from infinistore.errors import ConfigError, SetupError
from infinistore.server.certificate import Certificate, read_certificate
from infinistore.server.machine import Limits, Memory, read_limits, read_memory
from infinistore.server.tenants import Tenant, read_tenants
from infinistore.server.unix_socket import default_path
from infinistore.units import format_bytes

logger = logging.getLogger(__name__)

POOL_SHARE = 4  # a default pool takes one part in so many of what is free
POOL_DEFAULT_MAX = 64 * GIB  # a shared machine is not ours to fill unasked
POOL_MIN = 8 * MIB
POOL_STEP = 2 * MIB  # the largest page; also a huge page
WORKERS_DEFAULT_MAX = 8
FILES_PER_SESSION = 2  # its socket; over shared memory also its client's process
FILES_BESIDE = 256  # the pool's regions, listeners, pollers, admin connections
UNFENCED_VARIABLE = "INFINISTORE_UNSAFE_WITHOUT_FENCING"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a start needs; nothing in it is left to choose but free ports."""

    config: ServerConfig
    host: str  # numeric
    admin_host: str  # numeric
    unix_socket: Path | None
    pool_bytes: int
    workers: int
    token: str = field(repr=False)
    read_token: str = field(default="", repr=False)
    tenants: tuple[Tenant, ...] = ()
    certificate: Certificate | None = None
    without_fencing: bool = False
    cluster: ClusterPlan | None = None


def plan(config: ServerConfig) -> Plan:
    """Checks `config` against this machine. Raises `ConfigError` or `SetupError`."""
    token = read_token(config)
    readers = read_readers_token(config, token)
    tenants = read_tenants(config.tenants_file, *filter(None, (token, readers)))
    host = resolve(config.host, "host")
    admin_host = resolve(config.admin_host, "admin_host") if config.admin_host else host
    check_exposure(config, bool(token or tenants), (host, admin_host))
    pool_bytes = choose_pool(config, read_memory(), read_limits())
    check_quotas(tenants, pool_bytes)
    return Plan(
        config=config,
        host=host,
        admin_host=admin_host,
        unix_socket=choose_socket(config),
        pool_bytes=pool_bytes,
        workers=config.workers or choose_workers(len(os.sched_getaffinity(0))),
        token=token,
        read_token=readers,
        tenants=tenants,
        certificate=read_certificate(config),
        without_fencing=fencing_is_off(os.environ),
        cluster=plan_cluster(config, host),
    )


def fencing_is_off(environ: Mapping[str, str]) -> bool:
    """Whether a test wants to see what goes wrong without fences. No setting: no user wants it."""
    is_off = environ.get(UNFENCED_VARIABLE, "") == "1"
    if is_off:
        logger.warning(
            "%s=1: memory of vanished writers is reused at once; values WILL be damaged",
            UNFENCED_VARIABLE,
        )
    return is_off


def resolve(host: str, setting: str) -> str:
    """The first address of `host`, numeric. Raises `SetupError` if there is none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise SetupError(
            f"{setting} = {host!r}: {reason}; give an address of this machine, such as 127.0.0.1"
        ) from error
    # IPv4 first for a name with both: what connects to "localhost" elsewhere tries it too.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def check_exposure(config: ServerConfig, is_guarded: bool, addresses: tuple[str, ...]) -> None:
    """Raises `ConfigError` if a stranger on the network could reach the server without a token."""
    wide = [address for address in addresses if not is_loopback(address)]
    if wide and not is_guarded and not config.insecure:
        raise ConfigError(
            f"{wide[0]} can be reached from other machines and no token is set; set "
            "INFINISTORE_TOKEN (or --token-file), or give --insecure on a network you trust"
        )


def check_quotas(tenants: tuple[Tenant, ...], pool_bytes: int) -> None:
    """Warns where one tenant's values can push out another's that are within its quota."""
    promised = sum(tenant.quota_bytes for tenant in tenants)
    if promised > pool_bytes:
        logger.warning(
            "the tenants' quotas are %s in all, the pool has %s: they evict each other's values",
            format_bytes(promised),
            format_bytes(pool_bytes),
        )


def choose_socket(config: ServerConfig) -> Path | None:
    """The path to bind; None: TCP only."""
    if config.unix_socket == "none":
        return None
    return Path(config.unix_socket).absolute() if config.unix_socket else default_path(config.port)


def choose_workers(cpus: int) -> int:
    """Half of the CPUs, as the engine beside us needs the others; yet two where there are two.

    A client's two TCP connections are then served at the same time.
    """
    return max(min(cpus, 2), min(cpus // 2, WORKERS_DEFAULT_MAX))


def choose_pool(config: ServerConfig, memory: Memory, limits: Limits) -> int:
    """The pool's bytes. Raises `ConfigError` if they cannot be had."""
    if not config.pool_bytes:
        room = min(memory.available // POOL_SHARE, POOL_DEFAULT_MAX, *_caps(limits))
        return max(room // POOL_STEP * POOL_STEP, POOL_MIN)
    pool, shown = config.pool_bytes, format_bytes(config.pool_bytes)
    if pool < POOL_MIN:
        raise ConfigError(f"pool = {shown} is too small; give at least {format_bytes(POOL_MIN)}")
    if config.huge_pages == "on" and pool > memory.huge_free:
        wanted = -(-pool // memory.huge_page) if memory.huge_page else 0
        remedy = (
            f"run: sysctl vm.nr_hugepages={wanted}, or give --huge-pages auto"
            if wanted
            else "this kernel has none; give --huge-pages auto"
        )
        free = format_bytes(memory.huge_free)
        raise ConfigError(f"pool = {shown} needs huge pages, of which {free} are free; {remedy}")
    # Free huge pages are set aside already and count in no figure of available memory.
    from_huge = config.huge_pages != "off" and pool <= memory.huge_free
    if pool > memory.available and not from_huge:
        quarter = memory.available // POOL_SHARE // POOL_STEP * POOL_STEP
        raise ConfigError(
            f"pool = {shown} does not fit: {memory.source} has "
            f"{format_bytes(memory.available)} of {format_bytes(memory.total)} free; "
            f"give less, such as --pool {quarter // MIB}MiB, or raise that limit"
        )
    for name, limit in (("RLIMIT_FSIZE", limits.file_bytes), ("RLIMIT_AS", limits.address_space)):
        if limit is not None and pool > limit:
            flag = "f" if name == "RLIMIT_FSIZE" else "v"
            raise ConfigError(
                f"pool = {shown} is above {name} = {format_bytes(limit)}; "
                f"run: ulimit -{flag} unlimited, or give a smaller --pool"
            )
    return pool


def allow_open_files(sessions_max: int) -> None:
    """Raises this process's soft limit of open files to what so many sessions may take."""
    wanted = sessions_max * FILES_PER_SESSION + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return
    allowed = wanted if hard == unlimited else min(wanted, hard)
    # A container may forbid even this: then fewer sessions fit, and each refusal says so.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        logger.warning(
            "ulimit -n is %d at most; %d sessions (sessions_max) may take %d",
            allowed,
            sessions_max,
            wanted,
        )


def _caps(limits: Limits) -> list[int]:
    return [cap // 2 for cap in (limits.file_bytes, limits.address_space) if cap is not None]
