"""`infinistore.connect` and `connect_async`: to one server, or to a cluster, as the URL says."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from infinistore.client._session import Session, dialer, open_native
from infinistore.client.address import SCHEME as PLAIN_SCHEME
from infinistore.client.address import SECURE_SCHEME, is_secure
from infinistore.client.aio import AsyncClient, opened
from infinistore.client.sync import Client
from infinistore.cluster.view import NOTE_NAMESPACE, SCHEME, SECURE, SOURCES
from infinistore.config import ClientConfig, load
from infinistore.errors import UsageError

REPLICAS_MAX = 8
# With other nodes to turn to, one that says nothing is given up sooner.
_SOONER = {"connect_timeout_s": 0.5, "progress_timeout_s": 0.5}


def connect(
    url: str,
    namespace: str = "default",
    token: str | None = None,
    *,
    transport: str | None = None,
    replicas: int = 1,
    **settings: Any,
) -> Client:
    """Connects to a server, `infinistore://host[:port]`, or to several as one pool.

    Several: `infinistore://a,b:port,c`, or `infinistore+etcd://host:2379/name`. By TLS:
    `infinistores://`. Waits until it, or one of them, has answered. Keys live in `namespace`.
    `transport` is "auto" (shared memory on the same machine, else RDMA if both ends have it, else
    TCP), "shm", "rdma" or "tcp"; `replicas` is on how many nodes of a cluster each value is
    written; `settings` are the client's (docs/settings.md); what is not given comes from
    INFINISTORE_* and its default.
    Raises `ConnectError`, `AuthError`, `UsageError`.
    """
    return Client(_opener(url, namespace, token, transport, replicas, settings)())


async def connect_async(
    url: str,
    namespace: str = "default",
    token: str | None = None,
    *,
    transport: str | None = None,
    replicas: int = 1,
    **settings: Any,
) -> AsyncClient:
    """See `connect`."""
    return await opened(_opener(url, namespace, token, transport, replicas, settings))


def _opener(
    url: str,
    namespace: str,
    token: str | None,
    transport: str | None,
    replicas: int,
    others: dict[str, Any],
) -> Callable[[], Session]:
    """Checks the arguments; what it returns connects, which waits."""
    if (
        isinstance(replicas, bool)
        or not isinstance(replicas, int)
        or not 1 <= replicas <= REPLICAS_MAX
    ):
        raise UsageError(f"replicas is {replicas!r}; give 1 to {REPLICAS_MAX}")
    if not is_cluster(url):
        if replicas > 1:
            raise UsageError(f"replicas is {replicas}, but {url!r} is one server; name several")
        return open_native(url, namespace, token, transport, others)
    # Here, for they load numpy: one server's client does without.
    from infinistore.cluster.cluster import Cluster
    from infinistore.cluster.fleet import Fleet
    from infinistore.cluster.watch import Watch

    config = load(ClientConfig, {**others, "token": token, "transport": transport})
    sooner = {n: v for n, v in _SOONER.items() if getattr(config, n) == getattr(ClientConfig(), n)}
    dial = dialer(namespace, token, transport, {**sooner, **others})
    notes = {**sooner, **others, "channels": 1}
    dial_notes = dialer(NOTE_NAMESPACE, token, "tcp", notes)
    scheme = url.strip().partition("://")[0]

    def open_cluster() -> Session:
        source = SOURCES[scheme](url, config)
        fleet = Fleet(replicas)
        watch = Watch(
            source,
            fleet,
            dial,
            lambda at: Client(Session(dial_notes(at), at)),
            namespace=namespace,
            scheme=SECURE_SCHEME if is_secure(url) else PLAIN_SCHEME,
        )
        watch.connect()
        cluster = Cluster(fleet, watch)
        weakref.finalize(cluster, watch.stop.set)  # a cluster that nobody has closed
        return Session(cluster, url, config.read_only)

    return open_cluster


def is_cluster(url: object) -> bool:
    """Whether a URL is not one server's."""
    if not isinstance(url, str):
        return False
    scheme, has_scheme, rest = url.strip().partition("://")
    return (
        bool(has_scheme) and scheme in SOURCES and (scheme not in (SCHEME, SECURE) or "," in rest)
    )
