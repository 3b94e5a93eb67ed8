"""The transports that this machine has, for tests that run over each of them."""

from __future__ import annotations

from pathlib import Path


def has_rdma() -> bool:
    """Whether there is an RDMA device, Soft-RoCE's included: `make test-rdma` has one."""
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


TRANSPORTS = ("tcp", "shm", "rdma") if has_rdma() else ("tcp", "shm")
