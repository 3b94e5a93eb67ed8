"""The original's constants and its logger."""

from __future__ import annotations

import logging

TYPE_RDMA = "RDMA"
TYPE_TCP = "TCP"
TYPE_LOCAL_GPU = "LOCAL_GPU"  # of 2024: memory of a GPU of the server's machine
LINK_ETHERNET = "Ethernet"
LINK_IB = "IB"

LOG_LEVELS = ("error", "debug", "info", "warning")

_logger = logging.getLogger("infinistore")


class Logger:
    """The original's logger: a name for the `infinistore` one of Python's logging."""

    @staticmethod
    def info(msg: str) -> None:
        """Logs at INFO."""
        _logger.info("%s", msg)

    @staticmethod
    def debug(msg: str) -> None:
        """Logs at DEBUG."""
        _logger.debug("%s", msg)

    @staticmethod
    def error(msg: str) -> None:
        """Logs at ERROR."""
        _logger.error("%s", msg)

    @staticmethod
    def warn(msg: str) -> None:
        """Logs at WARNING."""
        _logger.warning("%s", msg)

    @staticmethod
    def set_log_level(level: str) -> None:
        """Raises `ValueError` for a level that is none."""
        if level not in LOG_LEVELS:
            raise ValueError(f"log level {level!r} is none of {', '.join(LOG_LEVELS)}")
        _logger.setLevel(level.upper())
