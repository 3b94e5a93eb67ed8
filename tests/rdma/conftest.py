"""Tests that need an RDMA device; `make test-rdma` runs them in a virtual machine that has some.

Servers and clients meet on one host, over a device's own loopback: clients ask for RDMA by name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import infinistore
from server_process import ServerProcess
from transports import has_rdma

HERE = Path(__file__).parent
LINK = "rdma0"  # the network interface under the device, in the virtual machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_rdma():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no RDMA device; make test-rdma"))


def address() -> str:
    """The host's address on the RDMA network; loopback where it is another than ours."""
    text = subprocess.run(
        ["ip", "-4", "-o", "address", "show", "dev", LINK], capture_output=True, text=True
    ).stdout
    return text.split("inet ")[1].split("/")[0] if "inet " in text else "127.0.0.1"


@pytest.fixture
def rdma_server(start_server: Callable[..., ServerProcess]) -> Callable[..., ServerProcess]:
    """Starts a server that serves over RDMA or not at all."""

    def start(*flags: str, **options: Any) -> ServerProcess:
        return start_server("--rdma=on", f"--host={address()}", "--insecure", *flags, **options)

    return start


@pytest.fixture
def rdma(connect: Any) -> Callable[..., infinistore.Client]:
    """Connects over RDMA."""

    def open_client(server: ServerProcess, **settings: Any) -> infinistore.Client:
        client = connect(server, transport="rdma", **settings)
        assert client.transport == "rdma"
        return client

    return open_client


@pytest.fixture
def link() -> Iterator[Callable[[str], None]]:
    """Takes the link under the device down or up; it is up, with its address, afterwards."""
    own = address()

    def change(state: str) -> None:
        subprocess.run(["ip", "link", "set", LINK, state], check=True)
        if state == "up":  # IPv6 addresses go with the link, IPv4's stay
            subprocess.run(["ip", "address", "replace", f"{own}/24", "dev", LINK], check=True)

    if not Path(f"/sys/class/net/{LINK}").exists() or os.geteuid() != 0:
        pytest.skip(f"no interface {LINK} that may be changed")
    yield change
    change("up")
