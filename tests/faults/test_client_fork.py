"""A process that forks while it has a client: neither it nor its child hangs or is misled."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infinistore
from infinistore import UsageError
from server_process import ServerProcess
from waiting import until

PAGE = 4096


def in_child(body: Callable[[], None]) -> int:
    """Runs `body` in a forked child; its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_is_told_to_connect_itself(
    connect: Any, server: ServerProcess, transport: str
) -> None:
    client = connect(transport=transport)
    cache = np.ones(64 * PAGE, np.uint8)
    blocks = [(f"{transport}{i}", i * PAGE) for i in range(64)]
    batch = client.write_cache(cache, blocks, PAGE)

    def child() -> None:
        for use in (
            lambda: client.exists(["k"]),
            lambda: client.write_cache(cache, blocks, PAGE),
            lambda: client.sync(),
            lambda: client.transport,
        ):
            with pytest.raises(UsageError, match=r"fork.*connect\(\) in the child"):
                use()
        client.release([1])  # never raises
        client.close()
        with infinistore.connect(server.url, "child", transport=transport) as own:
            own.write_cache(cache, [("k", 0)], PAGE)
            own.sync()
            assert own.exists(["k"]) == [True]

    assert in_child(child) == 0
    assert batch.wait(5).all_ok
    assert client.exists([key for key, _ in blocks]) == [True] * 64


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_lives_on_does_not_hide_the_parents_end(server: ServerProcess) -> None:
    """Its copies of the sockets would keep the server's sessions open."""
    before = server.stats()["sessions"]
    reading, writing = os.pipe()
    grandchild = [0]

    def parent() -> None:
        infinistore.connect(server.url, transport="tcp")
        grandchild[0] = os.fork()
        if grandchild[0] == 0:
            os.read(reading, 1)
            os._exit(0)

    pid = os.fork()
    if pid == 0:
        os.close(writing)
        parent()
        os._exit(0)  # as abrupt as a crash: no goodbye
    os.close(reading)
    try:
        os.waitpid(pid, 0)
        until(lambda: server.stats()["sessions"] == before, 2)
    finally:
        os.close(writing)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_can_connect_whatever_its_parent_was_doing(
    server: ServerProcess, host: str
) -> None:
    """Born while a thread of the parent's dials: its second connection, right after connect()."""
    url = server.url.replace("127.0.0.1", host)

    def child() -> None:
        with infinistore.connect(url, "child", transport="tcp") as own:
            assert own.exists(["never written"]) == [False]

    for _ in range(30):
        with infinistore.connect(url, "parent", transport="tcp"):
            assert in_child(child) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_can_connect_and_fork_whatever_all_its_parents_threads_were_doing(
    server: ServerProcess,
) -> None:
    """Threads that wait while it forks are in no child, and nothing there may wait for them."""
    url = server.url.replace("127.0.0.1", "localhost")
    is_over = threading.Event()

    def dial() -> None:
        while not is_over.is_set():
            with contextlib.suppress(infinistore.InfiniStoreError):
                infinistore.connect(url, "parent", transport="tcp").close()

    def child() -> None:
        with infinistore.connect(url, "child", transport="tcp") as own:
            assert own.exists(["never written"]) == [False]
        assert in_child(lambda: None) == 0

    threads = [threading.Thread(target=dial) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            assert in_child(child) == 0
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
