"""The original's configurations, names, flags and functions of the server in one process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

import infinistore
from infinistore import lib, server
from infinistore.server import embedded
from server_process import ServerProcess
from waiting import until

CLIENT = {"host_addr": "127.0.0.1", "service_port": 22345, "connection_type": "RDMA"}
SERVER = {"service_port": 22345, "manage_port": 18080}


def test_every_name_is_where_clients_look_for_it() -> None:
    names = (
        "InfinityConnection register_server ClientConfig ServerConfig TYPE_RDMA TYPE_TCP Logger "
        "LINK_ETHERNET LINK_IB purge_kv_map get_kvmap_len InfiniStoreException "
        "InfiniStoreKeyNotFound evict_cache check_supported DisableTorchCaching"
    )
    for name in names.split():
        assert getattr(infinistore, name) is getattr(lib, name), name
        assert name in infinistore.__all__
    assert infinistore._infinistore is lib._infinistore
    words = [infinistore.TYPE_RDMA, infinistore.TYPE_TCP]
    words += [infinistore.LINK_ETHERNET, infinistore.LINK_IB]
    assert words == ["RDMA", "TCP", "Ethernet", "IB"]


def test_importing_changes_nothing_in_the_process() -> None:
    code = (
        "import os, signal, sys; before = dict(os.environ), signal.getsignal(signal.SIGSEGV)\n"
        "import infinistore, infinistore.lib; infinistore.InfinityConnection\n"
        "assert before == (dict(os.environ), signal.getsignal(signal.SIGSEGV))\n"
        "assert not {'torch', 'aiohttp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_client_config_takes_any_keyword_and_keeps_attributes() -> None:
    config = infinistore.ClientConfig(**CLIENT, never_heard_of=3)
    config.verify()
    assert (config.dev_name, config.ib_port, config.link_type) == ("mlx5_1", 1, "IB")
    assert (config.log_level, config.hint_gid_index) == ("warning", -1)
    config.connection_type = infinistore.TYPE_TCP
    config.hint_gid_index = 7
    config.verify()
    assert repr(config).startswith("ClientConfig(")
    secret = infinistore.ClientConfig(**CLIENT, token="s3cret")
    assert "s3cret" not in repr(secret)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"connection_type": None}, "Invalid connection type"),
        ({"connection_type": "UDP"}, "Invalid connection type"),
        ({"host_addr": ""}, "Host address is empty"),
        ({"service_port": 0}, "Service port is 0"),
        ({"log_level": "loud"}, "log level"),
        ({"ib_port": 0}, "ib port"),
        ({"link_type": "Token Ring"}, "link type"),
    ],
    ids=str,
)
def test_a_client_config_says_what_is_wrong(changed: dict[str, Any], message: str) -> None:
    config = infinistore.ClientConfig(**CLIENT | changed)
    with pytest.raises(Exception, match=message):
        infinistore.InfinityConnection(config)


def test_what_has_no_default_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="host_addr"):
        infinistore.ClientConfig(service_port=1)
    with pytest.raises(TypeError, match="service_port"):
        infinistore.ClientConfig(host_addr="127.0.0.1")


def test_the_link_matters_to_rdma_only(monkeypatch: pytest.MonkeyPatch) -> None:
    infinistore.ClientConfig(**CLIENT | {"connection_type": "TCP", "link_type": "none"}).verify()
    monkeypatch.setenv("INFINISTORE_LOG_LEVEL", "debug")
    assert infinistore.ClientConfig(**CLIENT).log_level == "debug"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"service_port": 0}, "Service port is 0"),
        ({"manage_port": 0}, "Manage port is 0"),
        ({"minimal_allocate_size": 8}, "minimal allocate size"),
        ({"link_type": "x"}, "link type"),
    ],
    ids=str,
)
def test_a_server_config_says_what_is_wrong(changed: dict[str, Any], message: str) -> None:
    infinistore.ServerConfig(**SERVER, host="0.0.0.0", enable_periodic_evict=True).verify()
    with pytest.raises(Exception, match=message):
        infinistore.ServerConfig(**SERVER | changed).verify()


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["infinistore", *words])
    return server.parse_args()


def test_flags_of_eviction_are_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = parsed(monkeypatch, "--evict-min-threshold", "0.25", "--evict-interval=2")
    config = lib.ServerConfig(**vars(flags))
    config.verify()
    marks = (config.evict_min_threshold, config.evict_max_threshold, config.evict_interval)
    assert marks == (0.25, 0.8, 2)
    assert [type(mark) for mark in marks] == [float, float, int]
    with pytest.raises(SystemExit) as ended:
        parsed(monkeypatch, "--evict-interval=soon")
    assert ended.value.code == 2
    assert "--evict-interval" in capsys.readouterr().err


def test_the_eviction_task_evicts_and_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    evict, sleep = Mock(), AsyncMock(side_effect=asyncio.CancelledError)
    monkeypatch.setattr(lib._infinistore, "evict_cache", evict)
    monkeypatch.setattr(server.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(server.periodic_evict(0.25, 0.75, 2))
    evict.assert_called_once_with(0.25, 0.75)
    sleep.assert_awaited_once_with(2)


def test_a_server_lives_in_the_process_that_registers_it(tmp_path: Any) -> None:
    config = infinistore.ServerConfig(
        service_port=65535, manage_port=1, pool_bytes=32 << 20, port=0, unix_socket="none"
    )
    loop = asyncio.new_event_loop()
    try:
        infinistore.register_server(loop, config)
        with pytest.raises(Exception, match="Failed to register server"):
            infinistore.register_server(loop, config)
        port = embedded._running.port  # type: ignore[union-attr]
        client = infinistore.InfinityConnection(
            infinistore.ClientConfig(
                host_addr="127.0.0.1", service_port=port, connection_type=infinistore.TYPE_TCP
            )
        )
        client.connect()
        pool = embedded._running.server.snapshot  # type: ignore[union-attr]
        until(lambda: pool()["populated_bytes"] == 32 << 20)
        value = np.ones(1 << 20, np.uint8)
        for index in range(20):
            client.tcp_write_cache(str(index), int(value.ctypes.data), value.nbytes)
        assert infinistore.get_kvmap_len() == 20
        infinistore.evict_cache(0.3, 0.9)  # 20 of 32 MiB: below
        assert infinistore.get_kvmap_len() == 20
        infinistore.evict_cache(0.3, 0.5)
        assert infinistore.get_kvmap_len() == 9
        for low, high in ((0.8, 0.6), (0.5, 0.5), (-1, 0.5), (0.5, 2)):
            with pytest.raises(Exception, match="in order"):
                infinistore.evict_cache(low, high)
        assert infinistore.purge_kv_map() is None
        assert infinistore.get_kvmap_len() == 0
        assert client.check_exist("19") is False
        client.close()
    finally:
        embedded.stop_server()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    with pytest.raises(Exception, match="register_server"):
        infinistore.get_kvmap_len()


def test_the_flags_that_aibrix_gives_start_a_server(
    start_server: Callable[..., ServerProcess],
) -> None:
    running = start_server(
        "--service-port=0",
        "--port=0",
        "--manage-port=0",
        "--admin-port=0",
        "--link-type=Ethernet",
        "--hint-gid-index=7",
        "--dev-name=mlx5_9",
        "--prealloc-size=1",
        "--pool=64MiB",
        "--log-level=warning",
        "--evict-max-threshold=0.8",
        "--enable-periodic-evict",
    )
    assert running.admin("/kvmap_len") == {"len": 0}
    purged = running.admin("/purge", "POST")
    assert (purged["status"], purged["num"]) == ("ok", 0)
    assert "infinistore_" in running.admin("/metrics")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        running.admin("/selftest")
