"""`infinistore doctor`: what this machine offers, what is missing, and how to mend it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from infinistore.cli._admin import Admin, admin_options, find_admin, print_json
from infinistore.config import ServerConfig
from infinistore.errors import ConfigError, InfiniStoreError
from infinistore.server import unix_socket
from infinistore.server.machine import Limits, Memory, read_limits, read_memory
from infinistore.server.startup import choose_pool
from infinistore.units import format_bytes

OPEN_FILES_MIN = 4096  # a connection takes one descriptor a channel, and a server takes hundreds
LOCKED_MIN = 1 << 30

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it stands, and the fix if it stands badly."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def check_cpu(flags: frozenset[str], cpus: int) -> Finding:
    detail = f"{cpus} CPUs to use, {platform.machine()}"
    if platform.machine() == "x86_64" and "avx2" not in flags:
        fix = "copies fall back to plain memcpy; choose a machine type with AVX2"
        return Finding("cpu", "warn", f"{detail}, no AVX2", fix)
    return Finding("cpu", "ok", detail + (", AVX2" if "avx2" in flags else ""))


def check_memory(memory: Memory, limits: Limits) -> Finding:
    free, total = format_bytes(memory.available), format_bytes(memory.total)
    detail = f"{free} of {total} free ({memory.source})"
    try:
        pool = choose_pool(ServerConfig(), memory, limits)
        choose_pool(ServerConfig(pool_bytes=pool), memory, limits)
    except ConfigError as error:
        return Finding("memory", "fail", detail, str(error))
    return Finding("memory", "ok", f"{detail}; a pool without --pool takes {format_bytes(pool)}")


def check_huge_pages(memory: Memory) -> Finding:
    if not memory.huge_page:
        return Finding("huge pages", "warn", "this kernel has none", "nothing to do; 4 KiB pages")
    detail = f"{format_bytes(memory.huge_free)} free, {format_bytes(memory.huge_page)} each"
    if memory.huge_free:
        return Finding("huge pages", "ok", detail)
    pages = memory.available // 4 // memory.huge_page
    fix = f"optional, for faster start and copies: sysctl vm.nr_hugepages={pages}"
    return Finding("huge pages", "warn", detail, fix)


def check_memlock(limits: Limits) -> Finding:
    if limits.locked_bytes is None or limits.locked_bytes >= LOCKED_MIN:
        shown = "unlimited" if limits.locked_bytes is None else format_bytes(limits.locked_bytes)
        return Finding("memlock", "ok", shown)
    fix = "only RDMA needs more: ulimit -l unlimited (containers: --ulimit memlock=-1)"
    return Finding("memlock", "warn", format_bytes(limits.locked_bytes), fix)


def check_open_files(limits: Limits) -> Finding:
    if limits.open_files is None or limits.open_files >= OPEN_FILES_MIN:
        shown = "unlimited" if limits.open_files is None else str(limits.open_files)
        return Finding("open files", "ok", shown)
    fix = f"ulimit -n {OPEN_FILES_MIN * 4} before starting the server"
    return Finding("open files", "warn", str(limits.open_files), fix)


def check_shared_memory() -> Finding:
    """Pools are memfds: neither /dev/shm nor its size matters."""
    try:
        memfd = os.memfd_create("infinistore-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        fix = "allow memfd_create in the seccomp profile; until then clients use TCP"
        return Finding("shared memory", "fail", f"memfd_create: {error.strerror}", fix)
    os.close(memfd)
    return Finding("shared memory", "ok", "memfd works")


def check_unix_socket(path: Path) -> Finding:
    try:
        unix_socket.prepare_folder(path.parent)
    except InfiniStoreError as error:
        return Finding("unix socket", "fail", str(path), str(error))
    return Finding("unix socket", "ok", str(path))


def check_native() -> Finding:
    try:
        importlib.import_module("infinistore._native")
    except ImportError as error:
        fix = "reinstall infinistore; from a checkout: make build"
        return Finding("native part", "fail", str(error), fix)
    return Finding("native part", "ok", "loads")


def check_package(name: str, fix: str, missing: Status = "warn") -> Finding:
    """Looks for a package without importing it: torch alone would take seconds."""
    if importlib.util.find_spec(name) is None:
        return Finding(name, missing, "not installed", fix)
    return Finding(name, "ok", _version_of(name))


def _version_of(name: str) -> str:
    owners = importlib.metadata.packages_distributions().get(name, [name])
    for owner in owners:
        try:
            return f"{owner} {importlib.metadata.version(owner)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "installed"


def check_server(admin: Admin) -> Finding:
    try:
        health = admin.ask("GET", "/health")
    except InfiniStoreError as error:
        return Finding("server", "warn", f"none reached at {admin}", str(error))
    if "pool_bytes" not in health:
        fix = "set INFINISTORE_TOKEN or give --token-file"
        return Finding("server", "warn", f"{admin} is {health.get('status')}, token not shown", fix)
    detail = f"{admin} is {health['status']}, pool {format_bytes(health['pool_bytes'])}"
    return Finding("server", "ok" if health["status"] == "ok" else "warn", detail)


def examine(admin: Admin) -> Iterable[Finding]:
    """Every check, in order."""
    memory, limits = read_memory(), read_limits()
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: check_cpu(_cpu_flags(), len(os.sched_getaffinity(0))),
        lambda: check_memory(memory, limits),
        lambda: check_huge_pages(memory),
        lambda: check_memlock(limits),
        lambda: check_open_files(limits),
        check_shared_memory,
        lambda: check_unix_socket(unix_socket.default_path(ServerConfig().port)),
        check_native,
        lambda: check_package("uvloop", "pip install uvloop; until then asyncio's own loop"),
        lambda: check_package("torch", "only for tensors: pip install 'infinistore[torch]'"),
        lambda: check_package("vllm", "only for the connector: install vLLM in this environment"),
        lambda: check_server(admin),
    )
    for check in checks:
        yield check()


def _cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


@click.command("doctor")
@admin_options
def command(address: str | None, token_file: str | None, as_json: bool) -> None:
    """Checks this machine; exits with 1 if something must be mended before a server can run."""
    admin = find_admin(address, token_file)
    findings = list(examine(admin))
    is_well = all(finding.status != "fail" for finding in findings)
    if as_json:
        print_json({"ok": is_well, "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    sys.exit(0 if is_well else 1)


def _show(findings: Iterable[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "fix"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        mark = Text(finding.status, style=styles[finding.status])
        table.add_row(mark, finding.name, Text(finding.detail), Text(finding.fix))
    Console().print(table)
