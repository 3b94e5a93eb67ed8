"""What programs use of the original's server module: its parsed flags, and its eviction task."""

from __future__ import annotations

import argparse
import asyncio

from infinistore.config import LOG_LEVELS
from infinistore.server import embedded

FLAGS: tuple[tuple[str, type, object], ...] = (
    ("--host", str, "127.0.0.1"),
    ("--manage-port", int, 18080),
    ("--service-port", int, 22345),
    ("--log-level", str, "info"),
    ("--prealloc-size", int, 16),
    ("--dev-name", str, "mlx5_1"),
    ("--ib-port", int, 1),
    ("--link-type", str, "IB"),
    ("--minimal-allocate-size", int, 64),
    ("--num-stream", int, 1),
    ("--evict-interval", int, 5),
    ("--evict-min-threshold", float, 0.6),
    ("--evict-max-threshold", float, 0.8),
    ("--hint-gid-index", int, -1),
)
SWITCHES = ("--auto-increase", "--enable-periodic-evict")


def parse_args() -> argparse.Namespace:
    """The command line as the original had it, for who builds a `ServerConfig` of it."""
    parser = argparse.ArgumentParser("infinistore", allow_abbrev=False)
    for flag, kind, default in FLAGS:
        choices = LOG_LEVELS if flag == "--log-level" else None
        parser.add_argument(flag, type=kind, default=default, choices=choices)
    for switch in SWITCHES:
        parser.add_argument(switch, action="store_true")
    return parser.parse_args()


async def periodic_evict(min_threshold: float, max_threshold: float, interval: float) -> None:
    """Evicts from the server in this process, again and again, until it is cancelled."""
    while True:
        await asyncio.to_thread(embedded.evict_cache, min_threshold, max_threshold)
        await asyncio.sleep(interval)
