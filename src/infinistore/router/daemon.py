"""The router as a process: listens, says so, serves until a signal, drains."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from aiohttp import web

from infinistore.errors import SetupError
from infinistore.router.front import Front

if TYPE_CHECKING:
    from infinistore.router.settings import RouterSettings


def make_runner(settings: RouterSettings) -> web.AppRunner:
    """The front, ready to be set up on any event loop."""
    # Without handler_cancellation a client that left would keep its decode generating for nobody.
    return web.AppRunner(
        Front(settings).application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=settings.drain_s,
    )


async def serve(settings: RouterSettings) -> None:
    """Serves until SIGTERM or SIGINT, then lets requests in flight end for `drain_s`.

    Prints one line when it accepts: `infinistore router ready http://HOST:PORT ...`.
    """
    runner = make_runner(settings)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            raise SetupError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror or error}); "
                "free it, or choose another with --port or --host"
            ) from error
        stop = _stop_signal()  # before the line: who reads it may signal at once
        host, port = runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        print(
            f"infinistore router ready http://{shown}:{port} "
            f"prefill={len(settings.prefill_urls)} decode={len(settings.decode_urls)}",
            flush=True,
        )
        await stop.wait()
    finally:
        await runner.cleanup()


def _stop_signal() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; a second one has its usual effect."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop_once() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, stop_once)
    return stop
