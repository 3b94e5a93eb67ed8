"""Many processes write one key, each with another size: one of them wins, whole."""

from __future__ import annotations

import os
import traceback

import numpy as np
import pytest

import infinistore
from infinistore import Code
from server_process import ServerProcess
from transports import TRANSPORTS
from waiting import until

PAGE = 4096
WRITERS = 16
ROUNDS = 12
WRITTEN = {Code.OK, Code.EXISTS, Code.SIZE_MISMATCH}


def size_of(writer: int) -> int:
    return (writer + 1) * 5000 - 7


def write(url: str, transport: str, on_exists: str, writer: int) -> None:
    """Its value says who wrote it: `size_of(writer)` bytes of `writer`."""
    source = np.full(size_of(writer), writer, np.uint8)
    target = np.zeros(size_of(WRITERS), np.uint8)
    with infinistore.connect(url, on_exists, transport=transport, connect_timeout_s=20) as client:
        for number in range(ROUNDS):
            key = f"{transport}-{number}"
            batch = client.write_cache(source, [(key, 0)], source.size, on_exists=on_exists)
            assert batch.wait(20)[0] in WRITTEN, batch.wait(20)[0]
            assert on_exists == "keep" or batch.wait(20)[0] == Code.OK
            # Never half, nor null, nor two: of all sizes at most one is there, and whole.
            for other in range(WRITERS):
                target[:] = 255
                size = size_of(other)
                read = client.read_cache(target, [(key, 0)], size, value_bytes=size).wait(20)[0]
                assert read in (Code.OK, Code.SIZE_MISMATCH), read
                if read == Code.OK:
                    assert (target[:size] == other).all()
                assert (target[size:] == 255).all()


@pytest.mark.parametrize("on_exists", ["keep", "replace"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_sixteen_processes_write_one_key_with_different_sizes(
    server: ServerProcess, transport: str, on_exists: str
) -> None:
    children = []
    for writer in range(WRITERS):
        pid = os.fork()
        if pid == 0:
            try:
                write(server.url, transport, on_exists, writer)
                os._exit(0)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
                os._exit(1)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * WRITERS
    until(lambda: server.stats()["reserved_bytes"] + server.stats()["quarantined_bytes"] == 0)
    with infinistore.connect(server.url, on_exists) as client:
        for number in range(ROUNDS):
            target = np.zeros(size_of(WRITERS), np.uint8)
            found = []
            for other in range(WRITERS):
                size = size_of(other)
                batch = client.read_cache(
                    target, [(f"{transport}-{number}", 0)], size, value_bytes=size
                )
                if batch.wait(20)[0] == Code.OK:
                    assert (target[:size] == other).all()
                    found.append(other)
            assert len(found) == 1
