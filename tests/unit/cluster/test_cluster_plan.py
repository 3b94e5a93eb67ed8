"""Which node of which cluster: settings that fit together, and refusals that name the remedy."""

from __future__ import annotations

import pytest

from infinistore.cluster.node.plan import parse_list, plan_cluster
from infinistore.config import ServerConfig
from infinistore.errors import ConfigError

ETCD = "infinistore+etcd://e:2379/c"
LIST = "infinistore://127.0.0.1:7,127.0.0.2:7"
SECURE = LIST.replace("infinistore", "infinistores")


def test_without_a_cluster_there_is_no_plan() -> None:
    assert plan_cluster(ServerConfig(), "127.0.0.1") is None


def test_in_etcd_a_node_is_named_by_its_address_or_its_name() -> None:
    made = plan_cluster(ServerConfig(cluster=ETCD, port=0), "127.0.0.1")
    assert made is not None
    node = made.node("127.0.0.1", 99, 1 << 20, 5)
    assert (node.name, node.address, node.state) == ("127.0.0.1:99", "127.0.0.1:99", "joining")
    config = ServerConfig(cluster=ETCD, advertise="node-1:7", node_name="one")
    made = plan_cluster(config, "0.0.0.0")
    assert made is not None
    assert made.node("0.0.0.0", 99, 1 << 20, 5).address == "node-1:7"
    assert made.node("0.0.0.0", 99, 1 << 20, 5).name == "one"


def test_in_a_list_a_node_finds_itself() -> None:
    made = plan_cluster(ServerConfig(cluster=LIST, port=7), "127.0.0.2")
    assert made is not None
    assert (made.address, made.listed) == ("127.0.0.2:7", ("127.0.0.1:7", "127.0.0.2:7"))
    assert parse_list("infinistore://a,[::1]:3") == ("a:22345", "[::1]:3")


@pytest.mark.parametrize("cluster", [SECURE, ETCD.replace("infinistore+", "infinistores+")])
def test_a_cluster_by_tls_is_one_of_nodes_by_tls(cluster: str) -> None:
    config = ServerConfig(cluster=cluster, port=7, tls_cert_file="chain", tls_key_file="key")
    made = plan_cluster(config, "127.0.0.1")
    assert made is not None
    assert made.is_secure
    assert (made.etcd is None) == (cluster == SECURE)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"advertise": "a:1"}, "cluster is not"),
        ({"node_name": "a"}, "cluster is not"),
        ({"cluster": LIST, "port": 8}, "not in the list"),
        ({"cluster": LIST, "port": 0}, "not in the list"),
        ({"cluster": LIST, "advertise": "127.0.0.3:7"}, "not in the list"),
        ({"cluster": LIST, "port": 7, "node_name": "x"}, "leave it out"),
        ({"cluster": "infinistore://a:1,a:1", "advertise": "a:1"}, "twice"),
        ({"cluster": "infinistore://a:1,,b:1", "advertise": "a:1"}, "no host"),
        ({"cluster": "redis://a:1", "advertise": "a:1"}, "scheme"),
        ({"cluster": "infinistore+etcd://a:1", "port": 7}, "no cluster"),
        ({"cluster": ETCD, "advertise": "a:b"}, "port"),
        ({"cluster": SECURE, "port": 7}, "give tls_cert_file"),
        ({"cluster": LIST, "port": 7, "tls_cert_file": "x"}, "write infinistores://"),
    ],
)
def test_what_does_not_fit_is_refused(config: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_cluster(ServerConfig(**config), "127.0.0.1")  # type: ignore[arg-type]


def test_a_wildcard_needs_an_advertised_address() -> None:
    with pytest.raises(ConfigError, match="--advertise"):
        plan_cluster(ServerConfig(cluster=ETCD), "0.0.0.0")
