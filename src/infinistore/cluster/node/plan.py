"""Which node of which cluster a server will be: its settings, checked before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from infinistore.client.address import SCHEME, SECURE_SCHEME, is_secure, parse_address
from infinistore.cluster.members import etcd
from infinistore.cluster.members.etcd import EtcdAddress, parse_etcd
from infinistore.cluster.nodes import NODES_MAX, Node
from infinistore.config import ServerConfig
from infinistore.errors import ConfigError, UsageError

WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Of `etcd` and `listed` one is there. What is empty is known once the server listens."""

    name: str
    address: str
    etcd: EtcdAddress | None
    listed: tuple[str, ...]  # addresses
    is_secure: bool = False  # TLS between the nodes

    def node(self, host: str, port: int, capacity_bytes: int, incarnation: int) -> Node:
        """The node, for a server that listens there."""
        address = self.address or shown(host, port)
        return Node(self.name or address, address, capacity_bytes, incarnation, "joining")


def plan_cluster(config: ServerConfig, host: str) -> ClusterPlan | None:
    """None: no cluster. Raises `ConfigError`; `host` is where the server will listen."""
    if not config.cluster:
        given = [name for name in ("advertise", "node_name") if getattr(config, name)]
        if given:
            raise ConfigError(f"{given[0]} is set and cluster is not; set both or neither")
        return None
    _check_tls(config)
    address = _advertised(config, host)
    if config.cluster.startswith(etcd.SCHEMES):
        found = parse_etcd(config.cluster, config.etcd_user, config.etcd_password)
        return ClusterPlan(config.node_name, address, found, (), is_secure(config.cluster))
    listed = parse_list(config.cluster)
    if config.node_name:
        raise ConfigError(
            f"node_name = {config.node_name!r}: in a static list a node's name is its address; "
            "leave it out"
        )
    if address not in listed:
        raise ConfigError(
            f"advertise = {address or '(port 0)'!r} is not in the list {config.cluster!r}; "
            "give this server's own address as it stands there"
        )
    return ClusterPlan("", address, None, listed, is_secure(config.cluster))


def _check_tls(config: ServerConfig) -> None:
    """A node speaks to the others, and to itself, as the cluster's clients do."""
    if is_secure(config.cluster) and not config.tls_cert_file:
        raise ConfigError(
            f"cluster = {config.cluster!r} asks for TLS; give tls_cert_file and tls_key_file"
        )
    if config.tls_cert_file and not is_secure(config.cluster):
        raise ConfigError(
            f"cluster = {config.cluster!r} is without TLS and tls_cert_file is set; write "
            f"{config.cluster.replace('infinistore', 'infinistores', 1)}"
        )


def parse_list(url: str) -> tuple[str, ...]:
    """The addresses of `infinistore://A:1,B:2`, each once. Raises `ConfigError`."""
    rest = url.strip().removeprefix(SECURE_SCHEME).removeprefix(SCHEME)
    listed = tuple(_address(part, url) for part in rest.split(","))
    if len(listed) > NODES_MAX:
        raise ConfigError(f"cluster lists {len(listed)} nodes; at most {NODES_MAX} can be one")
    if len(set(listed)) < len(listed):
        raise ConfigError(f"cluster = {url!r} lists a node twice")
    return listed


def shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _advertised(config: ServerConfig, host: str) -> str:
    """Empty: known once the server listens."""
    if config.advertise:
        return _address(config.advertise, config.advertise)
    if host in WILDCARDS:
        raise ConfigError(
            f"host = {config.host!r} is every address of this machine; name one that the other "
            "nodes and the clients reach: --advertise HOST:PORT"
        )
    return shown(host, config.port) if config.port else ""


def _address(text: str, source: str) -> str:
    try:
        return shown(*parse_address(text))
    except UsageError as error:
        raise ConfigError(f"{source!r}: {error}") from None
