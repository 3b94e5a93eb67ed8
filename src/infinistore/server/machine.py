"""What this machine and container can give: memory, huge pages, limits. Only reads."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
# cgroup v1 writes "no limit" as the largest page-aligned 63-bit number.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes, at one moment. `source` says which limit `available` comes from."""

    total: int
    available: int
    source: str
    huge_page: int  # bytes of one; 0: the kernel has none
    huge_free: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this process; None is unlimited."""

    file_bytes: int | None  # RLIMIT_FSIZE: bounds a memfd too
    address_space: int | None
    locked_bytes: int | None
    open_files: int | None


def read_memory(root: Path = ROOT) -> Memory:
    """What a new pool could take: the least that the machine and its cgroups have left."""
    facts = _meminfo(root)
    total, available, source = facts["MemTotal"], facts["MemAvailable"], "this machine"
    for folder, limit, used in _cgroups(root):
        total = min(total, limit)
        if limit - used < available:
            available, source = max(limit - used, 0), f"the container ({folder})"
    huge_page = facts.get("Hugepagesize", 0)
    huge_free = max(facts.get("HugePages_Free", 0) - facts.get("HugePages_Rsvd", 0), 0)
    return Memory(total, available, source, huge_page, huge_free * huge_page)


def read_cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that this process's cgroups give it; None: as much as there is."""
    quotas = []
    mounts = _cgroup_mounts(root, "cpu")
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, inside = line.split(":", 2)
        version = 2 if not controllers else 1
        if (version == 1 and "cpu" not in controllers.split(",")) or version not in mounts:
            continue
        folder = mounts[version] / inside.lstrip("/")
        while folder != mounts[version].parent:
            here = root / folder.relative_to("/")
            if version == 2:
                quota, _, period = next(iter(_lines(here / "cpu.max")), "max").partition(" ")
            else:
                quota = next(iter(_lines(here / "cpu.cfs_quota_us")), "-1")
                period = next(iter(_lines(here / "cpu.cfs_period_us")), "0")
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                quotas.append(int(quota) / int(period))
            folder = folder.parent
    return min(quotas, default=None)


def _meminfo(root: Path) -> dict[str, int]:
    facts = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if number.isdigit():
            facts[name] = int(number) * (1024 if unit == "kB" else 1)
    facts.setdefault("MemAvailable", facts["MemFree"])
    return facts


def _cgroups(root: Path) -> Iterator[tuple[Path, int, int]]:
    """Folder, limit and use of every memory cgroup around this process that has a limit."""
    mounts = _cgroup_mounts(root)
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, inside = line.split(":", 2)
        version = 2 if not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        mount = mounts.get(version)
        if mount is None:
            continue
        yield from _walk(root, mount, inside, version)


def _walk(root: Path, mount: Path, inside: str, version: int) -> Iterator[tuple[Path, int, int]]:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    max_name, used_name, cache_name = names[version]
    folder = mount / inside.lstrip("/")
    # Inside a cgroup namespace or a container's bind mount the path may not exist below the
    # mount; the mount itself is then the container's own group.
    while folder != mount.parent:
        here = root / folder.relative_to("/")
        limit = _number(here / max_name)
        used = _number(here / used_name)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            # The page cache counts as used, yet the kernel drops it when memory is asked for.
            yield folder, limit, max(used - _stat(here / "memory.stat", cache_name), 0)
        folder = folder.parent


def _cgroup_mounts(root: Path, controller: str = "memory") -> dict[int, Path]:
    mounts: dict[int, Path] = {}
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            mounts.setdefault(2, Path(before.split()[4]))
        elif kind == "cgroup" and controller in options.split(","):
            mounts.setdefault(1, Path(before.split()[4]))
    return mounts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _stat(path: Path, name: str) -> int:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def read_limits() -> Limits:
    """This process's limits that bear on a pool."""

    def soft(which: int) -> int | None:
        limit = resource.getrlimit(which)[0]
        return None if limit == resource.RLIM_INFINITY else limit

    return Limits(
        file_bytes=soft(resource.RLIMIT_FSIZE),
        address_space=soft(resource.RLIMIT_AS),
        locked_bytes=soft(resource.RLIMIT_MEMLOCK),
        open_files=soft(resource.RLIMIT_NOFILE),
    )
