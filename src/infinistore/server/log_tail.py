"""The newest warnings and errors of the management, for who asks over HTTP."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

LINES_MAX = 64
TEXT_MAX = 240


class LogTail(logging.Handler):
    """Keeps the last lines; as a log's, they hold no secrets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[dict[str, Any]] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # a line that cannot be shown must not end its writer
            self.handleError(record)
            return
        self._lines.append(
            {"time_s": record.created, "level": record.levelname, "text": text[:TEXT_MAX]}
        )

    def lines(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return list(self._lines)
