"""Our server against a client whose verbs are other people's code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import infinistore
from server_process import ServerProcess

ib = pytest.importorskip("ibverbs")


def test_memory_registered_by_the_package_ibverbs_is_read_and_written(
    rdma_server: Callable[..., ServerProcess], rdma: Callable[..., infinistore.Client]
) -> None:
    from rdma_peer import Peer

    size, count = 32768, 8
    keys = [f"k{index}".encode() for index in range(count)]
    server = rdma_server("--pool=64MiB")
    with Peer(ib, server.address, 2 * count * size, space=b"shared") as peer:
        values = np.random.default_rng(1).integers(0, 256, count * size, dtype=np.uint8)
        peer.memory[: count * size] = values
        places = [index * size for index in range(count)]
        assert peer.put(keys, places, size) == [0] * count
        answer = peer.get(keys, [count * size + place for place in places], size)
        assert answer.outcomes == [0] * count
        assert answer.payload == b""  # it came by RDMA
        assert np.array_equal(peer.memory[count * size :], values)
        ours = rdma(server, namespace="shared")
        target = np.zeros_like(values)
        blocks = [(key.decode(), place) for key, place in zip(keys, places, strict=True)]
        assert ours.read_cache(target, blocks, size).wait(30).all_ok
        assert np.array_equal(target, values)
