"""Memory of machine and container, read from made-up trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from infinistore.server.machine import read_cpu_quota, read_limits, read_memory

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(
        tmp_path / "proc/meminfo",
        f"MemTotal: {32 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {20 * 2**20} kB\n"
        "HugePages_Free: 10\nHugePages_Rsvd: 2\nHugepagesize: 2048 kB\n",
    )
    return tmp_path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def mount_v2(root: Path, inside: str) -> Path:
    write(root / "proc/self/cgroup", f"0::{inside}")
    write(root / "proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw")
    return root / "sys/fs/cgroup"


def test_a_bare_machine_gives_what_it_has_available(root: Path) -> None:
    memory = read_memory(root)
    assert (memory.total, memory.available) == (32 * GIB, 20 * GIB)
    assert memory.source == "this machine"
    assert (memory.huge_page, memory.huge_free) == (2**21, 8 * 2**21)


def test_a_cgroup_of_version_2_bounds_it_and_its_page_cache_does_not_count(root: Path) -> None:
    folder = mount_v2(root, "/pod/box") / "pod/box"
    write(folder / "memory.max", 8 * GIB)
    write(folder / "memory.current", 5 * GIB)
    write(folder / "memory.stat", f"anon 1\ninactive_file {2 * GIB}")
    memory = read_memory(root)
    assert (memory.total, memory.available) == (8 * GIB, 5 * GIB)
    assert "/sys/fs/cgroup/pod/box" in memory.source


def test_the_tightest_of_the_enclosing_cgroups_counts(root: Path) -> None:
    mount = mount_v2(root, "/pod/box")
    for folder, limit in ((mount / "pod", 4 * GIB), (mount / "pod/box", 16 * GIB)):
        write(folder / "memory.max", limit)
        write(folder / "memory.current", GIB)
    assert read_memory(root).available == 3 * GIB


def test_no_limit_is_no_bound(root: Path) -> None:
    folder = mount_v2(root, "/pod") / "pod"
    write(folder / "memory.max", "max")
    write(folder / "memory.current", GIB)
    assert read_memory(root).available == 20 * GIB


def test_a_namespaced_path_falls_back_to_the_mount(root: Path) -> None:
    mount = mount_v2(root, "/")
    write(mount / "memory.max", 2 * GIB)
    write(mount / "memory.current", 3 * GIB)  # over the limit for a moment
    memory = read_memory(root)
    assert (memory.total, memory.available) == (2 * GIB, 0)


def test_a_cgroup_of_version_1_bounds_it(root: Path) -> None:
    write(root / "proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/")
    write(
        root / "proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
    )
    folder = root / "sys/fs/cgroup/memory/docker/abc"
    write(folder / "memory.limit_in_bytes", 6 * GIB)
    write(folder / "memory.usage_in_bytes", 2 * GIB)
    write(folder / "memory.stat", f"total_inactive_file {GIB}")
    write(folder.parent / "memory.limit_in_bytes", 9223372036854771712)  # version 1's "no limit"
    write(folder.parent / "memory.usage_in_bytes", 10 * GIB)
    assert read_memory(root).available == 5 * GIB


def test_this_machine_can_be_read() -> None:
    memory = read_memory()
    assert 0 < memory.available <= memory.total
    assert read_limits().open_files != 0


def test_the_least_cpu_quota_of_the_groups_around_counts(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/box")
    write(tmp_path / "proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    assert read_cpu_quota(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "150000 100000")
    write(tmp_path / "sys/fs/cgroup/pod/box/cpu.max", "max 100000")
    assert read_cpu_quota(tmp_path) == 1.5


def test_the_cpu_quota_of_cgroup_v1(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:cpu,cpuacct:/box\n3:memory:/box")
    write(
        tmp_path / "proc/self/mountinfo",
        "30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
    )
    write(tmp_path / "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1")
    write(tmp_path / "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000")
    assert read_cpu_quota(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000")
    assert read_cpu_quota(tmp_path) == 2.5
