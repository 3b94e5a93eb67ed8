"""`infinistore doctor`: what this machine offers, what is missing, and how to mend it."""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

from infinistore import __version__
from infinistore.cli import _rdma
from infinistore.cli._admin import Admin, admin_options, find_admin, print_json
from infinistore.cli._table import console
from infinistore.config import ServerConfig, load
from infinistore.errors import ConfigError, InfiniStoreError
from infinistore.server import unix_socket
from infinistore.server.machine import (
    Limits,
    Memory,
    read_cpu_quota,
    read_limits,
    read_memory,
)
from infinistore.server.startup import choose_pool
from infinistore.units import format_bytes

OPEN_FILES_MIN = 4096  # a connection takes one descriptor a channel, and a server takes hundreds
LOCKED_MIN = 1 << 30
SHM_MIN = 1 << 30
CPUS_MIN = 2
CUDA_DRIVER_MIN = 520  # as core/device/driver.cpp says

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


def check_rdma(ports: Sequence[_rdma.Port], has_library: bool, can_open: bool) -> Finding:
    if not ports:
        return Finding("RDMA", "ok", "no device; other machines are reached over TCP")
    detail = ", ".join(port.name for port in ports)
    if not has_library:
        fix = "apt-get install libibverbs1 ibverbs-providers; until then clients use TCP"
        return Finding("RDMA", "warn", f"{detail}; no {_rdma.LIBRARY}", fix)
    if not can_open:
        fix = "give this process /dev/infiniband (containers: --device /dev/infiniband)"
        return Finding("RDMA", "warn", f"{detail}; no access to /dev/infiniband/uverbs*", fix)
    return Finding("RDMA", "ok", detail)


def check_rdma_port(port: _rdma.Port) -> Finding:
    name = f"RDMA {port.name}"
    usable = port.routable()
    shown = ", ".join(f"{address} ({kind}, index {index})" for index, address, kind in usable)
    over = f" on {port.interface}, MTU {port.mtu}" if port.interface else ""
    detail = f"{port.state}, {port.link_layer}{over}; addresses: {shown or 'none'}"
    if port.state != "ACTIVE":
        up = f"ip link set {port.interface or 'DEV'} up"
        fix = "start a subnet manager (opensm)" if port.link_layer == "InfiniBand" else up
        return Finding(name, "warn", detail, fix)
    if not usable:
        fix = f"give {port.interface or 'its interface'} an IP address: RoCE v2 takes it from there"
        return Finding(name, "warn", detail, fix)
    if 0 < port.mtu < _rdma.JUMBO_MTU:
        fix = f"optional, for larger packets: ip link set {port.interface} mtu 9000, switches too"
        return Finding(name, "warn", detail, fix)
    return Finding(name, "ok", detail)


def check_peer_memory(module: str, has_ports: bool) -> Finding:
    if module or not has_ports:
        return Finding("GPUDirect", "ok", module or "not needed: no RDMA device")
    fix = "nothing to do: GPUs' blocks pass through pinned memory (docs/rdma.md)"
    return Finding("GPUDirect", "warn", f"neither {' nor '.join(_rdma.PEER_MODULES)} loaded", fix)


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
    for owner in (name, *_owners().get(name, ())):
        try:
            return f"{owner} {importlib.metadata.version(owner)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "installed"


@functools.cache
def _owners() -> Mapping[str, Sequence[str]]:
    """Which distributions a package is of; reads all of them, so that once is enough."""
    return importlib.metadata.packages_distributions()


def check_container(quota: float | None, cpus: int, memory: Memory) -> Finding:
    limits = [] if memory.source == "this machine" else [f"memory of {memory.source}"]
    if quota is not None and quota < cpus:
        limits.append(f"time of {quota:g} CPUs")
    detail = f"limits {' and '.join(limits)}" if limits else "no limits of cgroups"
    if quota is not None and quota < CPUS_MIN:
        fix = f"copies will wait for the CPU: give {CPUS_MIN} or more (docker: --cpus)"
        return Finding("container", "warn", detail, fix)
    return Finding("container", "ok", detail)


def check_dev_shm(path: Path = Path("/dev/shm")) -> Finding:
    """Ours are memfds; vLLM's workers and NCCL use it."""
    try:
        stat = os.statvfs(path)
    except OSError as error:
        fix = f"vLLM's workers need it: mount -t tmpfs tmpfs {path}"
        return Finding("/dev/shm", "warn", f"{path}: {error.strerror}", fix)
    detail = f"{format_bytes(stat.f_bavail * stat.f_frsize)} free"
    if stat.f_bavail * stat.f_frsize < SHM_MIN:
        fix = "vLLM's workers and NCCL need it (this store does not): docker run --shm-size=16g"
        return Finding("/dev/shm", "warn", detail, fix)
    return Finding("/dev/shm", "ok", detail)


def check_ports(ports: Mapping[str, tuple[str, int]], has_server: bool) -> Finding:
    """Whether a server could listen, or does. `ports`: flag to address."""
    taken = {flag: at for flag, at in ports.items() if not _can_listen(*at)}
    detail = ", ".join(
        f"{port} {'taken' if f in taken else 'free'}" for f, (_, port) in ports.items()
    )
    if not taken or has_server:
        return Finding("ports", "ok", detail + (" (by the server)" if taken else ""))
    flag, (_, port) = next(iter(taken.items()))
    fix = f"see who has it: ss -ltnp 'sport = :{port}'; or start the server with another {flag}"
    return Finding("ports", "fail", detail, fix)


def _can_listen(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # other reasons are of the address, not of the port
    return True


def check_ipv6() -> Finding:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        fix = "only IPv6 addresses need it: sysctl net.ipv6.conf.all.disable_ipv6=0"
        return Finding("ipv6", "warn", f"no ::1 ({error.strerror})", fix)
    return Finding("ipv6", "ok", "::1 can be listened on")


def check_cuda(root: Path = Path("/"), library: str | None = None) -> Finding:
    """The driver's library loads, and the kernel's module is there; calls no GPU."""
    name = library or os.environ.get("INFINISTORE_CUDA_LIBRARY") or "libcuda.so.1"
    module = root / "proc/driver/nvidia/version"
    try:
        ctypes.CDLL(name)
    except OSError:
        if not module.exists():
            return Finding("cuda", "warn", "no NVIDIA driver", "nothing to do without a GPU")
        fix = "the kernel has the driver, this environment not: docker run --gpus all"
        return Finding("cuda", "fail", f"{name} cannot be loaded", fix)
    version = module.read_text().split("\n")[0] if module.exists() else "no kernel module"
    match = re.search(r"\b(\d{3})\.\d+", version)
    if match and int(match[1]) < CUDA_DRIVER_MIN:
        fix = f"install the driver {CUDA_DRIVER_MIN} or newer"
        return Finding("cuda", "fail", f"driver {match[0]}", fix)
    return Finding("cuda", "ok", f"driver {match[0]}" if match else f"{name} loads")


def check_connector(timeout_s: float = 120.0) -> Finding:
    """Loads the connector as vLLM would, in a process of its own: it takes seconds."""
    if importlib.util.find_spec("vllm") is None:
        return Finding("connector", "ok", "not looked at without vLLM")
    script = "from infinistore.connectors.vllm.connector import InfiniStoreConnector"
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        fix = "try it by hand: python -c '" + script + "'"
        return Finding("connector", "warn", f"still loading after {timeout_s:g} s", fix)
    if done.returncode == 0:
        return Finding("connector", "ok", "loads")
    last = next(reversed(done.stderr.strip().splitlines()), f"status {done.returncode}")
    fix = f"install a vLLM that the connector knows (docs/vllm.md); try: python -c '{script}'"
    return Finding("connector", "fail", last, fix)


Health = Mapping[str, Any] | InfiniStoreError


def ask_health(admin: Admin) -> Health:
    """What the server says of itself, or why there is no answer."""
    try:
        return dict(admin.ask("GET", "/health"))
    except InfiniStoreError as error:
        return error


def check_server(admin: Admin, health: Health) -> Finding:
    if isinstance(health, InfiniStoreError):
        return Finding("server", "warn", f"none reached at {admin}", str(health))
    if "pool_bytes" not in health:
        fix = "set INFINISTORE_TOKEN or give --token-file"
        return Finding("server", "warn", f"{admin} is {health.get('status')}, token not shown", fix)
    detail = f"{admin} is {health['status']}, pool {format_bytes(health['pool_bytes'])}"
    if health.get("version") != __version__:
        fix = "install the same version on both sides; the older one first needs a restart"
        versions = f"version {health.get('version')}, here {__version__}"
        return Finding("server", "warn", f"{detail}, {versions}", fix)
    return Finding("server", "ok" if health["status"] == "ok" else "warn", detail)


@dataclass(frozen=True, slots=True)
class Facts:
    """What checks look at, read once."""

    admin: Admin
    config: ServerConfig
    memory: Memory
    limits: Limits
    health: Health
    rdma_ports: Sequence[_rdma.Port] = ()

    def ports(self) -> dict[str, tuple[str, int]]:
        """The addresses that a server would take, by the flag that changes them."""
        config = self.config
        admin_host = config.admin_host or config.host
        return {
            "--port": (config.host, config.port),
            "--admin-port": (admin_host, config.admin_port),
        }


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the screen; a new one is a row of CHECKS."""

    look: Callable[[Facts], Finding]
    is_slow: bool = False  # left out by --quick


CHECKS = (
    Check(lambda facts: check_cpu(_cpu_flags(), len(os.sched_getaffinity(0)))),
    Check(lambda facts: check_memory(facts.memory, facts.limits)),
    Check(
        lambda facts: check_container(read_cpu_quota(), len(os.sched_getaffinity(0)), facts.memory)
    ),
    Check(lambda facts: check_huge_pages(facts.memory)),
    Check(lambda facts: check_dev_shm()),
    Check(lambda facts: check_memlock(facts.limits)),
    Check(
        lambda facts: check_rdma(facts.rdma_ports, _rdma.has_library(), _rdma.can_open_devices())
    ),
    Check(lambda facts: check_peer_memory(_rdma.peer_module(), bool(facts.rdma_ports))),
    Check(lambda facts: check_open_files(facts.limits)),
    Check(lambda facts: check_shared_memory()),
    Check(lambda facts: check_unix_socket(unix_socket.default_path(facts.config.port))),
    Check(lambda facts: check_ports(facts.ports(), not isinstance(facts.health, InfiniStoreError))),
    Check(lambda facts: check_ipv6()),
    Check(lambda facts: check_cuda()),
    Check(lambda facts: check_native()),
    Check(lambda facts: check_package("uvloop", "pip install uvloop; until then asyncio's loop")),
    Check(lambda facts: check_package("torch", "for tensors: pip install 'infinistore[torch]'")),
    Check(lambda facts: check_package("vllm", "for the connector: install vLLM here")),
    Check(lambda facts: check_connector(), is_slow=True),
    Check(lambda facts: check_server(facts.admin, facts.health)),
)


def examine(admin: Admin, is_quick: bool = False) -> Iterator[Finding]:
    """Every check, in order."""
    facts = Facts(
        admin,
        load(ServerConfig),
        read_memory(),
        read_limits(),
        ask_health(admin),
        _rdma.read_ports(),
    )
    for check in CHECKS:
        if not (is_quick and check.is_slow):
            yield check.look(facts)
    for port in facts.rdma_ports:
        yield check_rdma_port(port)


def _cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


@click.command("doctor")
@click.option(
    "--quick", is_flag=True, help="Without loading vLLM's connector, which takes seconds."
)
@admin_options
def command(quick: bool, address: str | None, token_file: str | None, as_json: bool) -> None:
    """Checks this machine; exits with 1 if something must be mended before a server can run."""
    admin = find_admin(address, token_file)
    findings = _looked_at(examine(admin, quick), is_quiet=as_json or not sys.stderr.isatty())
    is_well = all(finding.status != "fail" for finding in findings)
    if as_json:
        print_json({"ok": is_well, "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    sys.exit(0 if is_well else 1)


def _looked_at(findings: Iterable[Finding], is_quiet: bool) -> list[Finding]:
    """All of them, with a sign of life meanwhile."""
    if is_quiet:
        return list(findings)
    from rich.console import Console

    with Console(stderr=True).status("looking"):
        return list(findings)


def _show(findings: Iterable[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "fix"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        mark = Text(finding.status, style=styles[finding.status])
        table.add_row(mark, finding.name, Text(finding.detail), Text(finding.fix))
    console().print(table)
