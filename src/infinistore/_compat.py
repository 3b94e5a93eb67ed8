"""What Python 3.10 lacks of the standard library that we use."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    from asyncio import timeout, timeout_at

    import tomllib
else:
    import tomli as tomllib
    from async_timeout import timeout, timeout_at  # there with aiohttp before 3.11

__all__ = ["run_loop", "timeout", "timeout_at", "tomllib"]

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T], new_loop: Callable[[], asyncio.AbstractEventLoop]) -> T:
    """Runs `main` to its end on a loop from `new_loop`, as asyncio.Runner (3.11) does."""
    loop = new_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
