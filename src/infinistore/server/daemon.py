"""One server's life: start, main loop, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from infinistore._compat import run_loop
from infinistore.cluster.node.agent import Agent
from infinistore.config import ServerConfig, is_loopback
from infinistore.errors import SetupError
from infinistore.server import unix_socket
from infinistore.server.admin import Admin, listen
from infinistore.server.housekeeping import Watermarks, keep_house
from infinistore.server.log_tail import LogTail
from infinistore.server.native import NativeServer, ServerOptions, make_server, options_for
from infinistore.server.startup import Plan, allow_open_files, plan
from infinistore.server.unix_socket import SocketClaim
from infinistore.units import format_bytes

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: ServerConfig, version: str) -> None:
    """Serves until a stop signal. Raises `ConfigError` or `SetupError` if it cannot start."""
    made = plan(config)
    allow_open_files(config.sessions_max)
    os.umask(0o077)  # whatever this process makes (socket, lock) is its user's alone
    run_loop(serve(made, version), _choose_loop())


def _choose_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError as error:
        logger.warning("uvloop cannot be imported (%s); asyncio's own loop manages instead", error)
        return asyncio.new_event_loop
    return uvloop.new_event_loop  # type: ignore[no-any-return]


async def serve(
    plan: Plan,
    version: str,
    make_native: Callable[[ServerOptions], NativeServer] = make_server,
) -> None:
    """Starts, announces itself, serves, drains. Leaves nothing behind however it ends."""
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as cleanup:
        if plan.unix_socket:
            cleanup.callback(_claim(plan).release)
        _stop_on_signals(stop, cleanup)
        server = make_native(options_for(plan, version))
        started = await asyncio.to_thread(_start, server, plan)
        agent, drain_s = None, 0.0
        try:
            agent = _join_cluster(plan, started, server, stop)
            admin = Admin(
                server,
                version,
                plan.token,
                int(started.get("incarnation", 0)),
                plan.tenants,
                read_token=plan.read_token,
                is_local=is_loopback(plan.admin_host),
                log=_tail_log(cleanup),
                agent=agent,
            )
            runner, admin_port = await listen(
                admin,
                plan.admin_host,
                plan.config.admin_port,
                plan.certificate.context if plan.certificate else None,
            )
            cleanup.push_async_callback(runner.cleanup)
            announce(plan, started, admin_port)
            await _until(stop, _work(server, plan))
            admin.draining = True
            drain_s = plan.config.drain_timeout_s
        finally:
            if agent is not None:  # first of all: clients and nodes go elsewhere from now on
                await asyncio.to_thread(agent.stop)
            await asyncio.to_thread(server.stop, drain_s)
    logger.info("stopped")


def _join_cluster(
    plan: Plan, started: Mapping[str, Any], server: NativeServer, stop: asyncio.Event
) -> Agent | None:
    if plan.cluster is None:
        return None
    loop, port = asyncio.get_running_loop(), int(started["port"])
    own_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(plan.host, plan.host)
    node = plan.cluster.node(plan.host, port, plan.pool_bytes, int(started["incarnation"]))
    agent = Agent(
        plan.cluster,
        plan.config,
        node,
        # By TLS a node calls itself by the name that its certificate has.
        node.address if plan.cluster.is_secure else _address(own_host, port),
        plan.token,
        server,
        on_drained=lambda: loop.call_soon_threadsafe(stop.set),
    )
    agent.start()
    return agent


def _tail_log(cleanup: contextlib.AsyncExitStack) -> LogTail:
    tail = LogTail()
    logging.getLogger().addHandler(tail)
    cleanup.callback(logging.getLogger().removeHandler, tail)
    return tail


def _claim(plan: Plan) -> SocketClaim:
    path = plan.unix_socket
    assert path is not None
    if not plan.config.unix_socket:
        unix_socket.prepare_folder(path.parent)
        for stale in unix_socket.sweep(path.parent):
            logger.info("removed %s, left by a server that was killed", stale)
    return SocketClaim(path)


def _start(server: NativeServer, plan: Plan) -> Mapping[str, Any]:
    try:
        return server.start()
    except (RuntimeError, OSError) as error:
        raise SetupError(str(error)) from error


def _stop_on_signals(stop: asyncio.Event, cleanup: contextlib.AsyncExitStack) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if stop.is_set():
            logger.warning("second %s: stopping without waiting", name)
            # The kernel frees everything but the socket's file, which the next start removes.
            os._exit(130)
        logger.info("%s", name)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, signal.Signals(number).name)
        cleanup.callback(loop.remove_signal_handler, number)


async def _work(server: NativeServer, plan: Plan) -> None:
    house = keep_house(server, _marks(plan), plan.config.housekeeping_interval_s)
    if plan.certificate is None:
        await house
    else:
        await asyncio.gather(house, plan.certificate.watch(server.reload_certificate))


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until `stop`; what it raises ends the wait too."""
    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        for each in (task, waiter):
            each.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)


def _marks(plan: Plan) -> Watermarks:
    return Watermarks(plan.config.evict_start, plan.config.evict_stop)


def announce(plan: Plan, started: Mapping[str, Any], admin_port: int) -> None:
    """Prints the readiness line, which scripts wait for and parse."""
    line = ready_line(plan, int(started["port"]), admin_port)
    try:
        print(line, flush=True)
    except OSError:  # whoever started us closed the pipe: no reason not to serve
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # or the exit's flush fails, and with it the status
        os.close(nowhere)
    logger.info("RDMA: %s", started.get("rdma") or "off")
    logger.info(
        "serving with a pool of %s (%d workers); memory is populated behind",
        format_bytes(plan.pool_bytes),
        plan.workers,
    )


def ready_line(plan: Plan, port: int, admin_port: int) -> str:
    return (
        f"infinistore ready data={_address(plan.host, port)} "
        f"admin={_address(plan.admin_host, admin_port)} "
        f"unix={plan.unix_socket or 'none'} pool={plan.pool_bytes}"
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
