"""What the doctor looks at for RDMA: library, ports, addresses, as the kernel tells them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

LIBRARY = "libibverbs.so.1"
SYSFS = Path("/sys")
# Either lets a NIC reach a GPU's memory; the newer drivers export dma-buf without them.
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
ROCE_V2 = "RoCE v2"
JUMBO_MTU = 4200  # of the interface: then a path has the largest MTU of verbs, 4096


@dataclass(frozen=True, slots=True)
class Port:
    """One port, as sysfs shows it."""

    device: str
    number: int
    state: str  # "ACTIVE", "DOWN", ...
    link_layer: str  # "InfiniBand" or "Ethernet"
    interface: str  # of Ethernet; empty: none
    mtu: int  # the interface's; 0: unknown
    gids: tuple[tuple[int, str, str], ...]  # index, address, type

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"

    def routable(self) -> list[tuple[int, str, str]]:
        """The addresses that a connection can take."""
        if self.link_layer == "InfiniBand":
            return list(self.gids)
        return [gid for gid in self.gids if gid[2] == ROCE_V2]


def read_ports(sysfs: Path = SYSFS) -> list[Port]:
    """Every port of this machine; empty: it has no RDMA."""
    root = sysfs / "class/infiniband"
    if not root.is_dir():
        return []
    return [
        _read_port(sysfs, device, number)
        for device in sorted(path.name for path in root.iterdir())
        for number in sorted(int(path.name) for path in (root / device / "ports").iterdir())
    ]


def _read_port(sysfs: Path, device: str, number: int) -> Port:
    path = sysfs / "class/infiniband" / device / "ports" / str(number)
    interface = _text(path / "gid_attrs/ndevs/0")
    mtu = _text(sysfs / "class/net" / interface / "mtu") if interface else ""
    return Port(
        device=device,
        number=number,
        state=_text(path / "state").rpartition(":")[2].strip(),
        link_layer=_text(path / "link_layer"),
        interface=interface,
        mtu=int(mtu) if mtu.isdigit() else 0,
        gids=tuple(_read_gids(path)),
    )


def _read_gids(path: Path) -> Iterator[tuple[int, str, str]]:
    for index in sorted(int(each.name) for each in (path / "gids").iterdir()):
        raw = _text(path / "gids" / str(index))
        kind = _text(path / "gid_attrs/types" / str(index))
        if not raw or not int(raw.replace(":", ""), 16) or not kind:
            continue
        address = IPv6Address(raw)
        yield index, str(address.ipv4_mapped or address), kind


def _text(path: Path) -> str:
    """A file's only line; empty if it cannot be read, as entries of unused addresses cannot."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def has_library(name: str = LIBRARY) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def can_open_devices(folder: Path = Path("/dev/infiniband")) -> bool:
    """Whether this process may use the devices: containers are often not given them."""
    nodes = list(folder.glob("uverbs*")) if folder.is_dir() else []
    return any(os.access(node, os.R_OK | os.W_OK) for node in nodes)


def peer_module(modules: Path = Path("/proc/modules")) -> str:
    """The loaded module that shows GPUs' memory to NICs; empty: none."""
    loaded = {line.split(" ")[0] for line in _text(modules).splitlines()}
    return next((name for name in PEER_MODULES if name in loaded), "")
