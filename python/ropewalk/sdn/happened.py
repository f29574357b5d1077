"""Remembers what the controller's log said last, for people who look later."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

LINES_MAX = 200
"""More: a longer past, and memory."""
_CHARACTERS_MAX = 500


class Happened(logging.Handler):
    """Takes what is told to people, from level INFO on; from any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[dict[str, Any]] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Remembers a line."""
        try:
            text = record.getMessage()[:_CHARACTERS_MAX]
        except Exception:
            self.handleError(record)
            return
        self._lines.append({"at_s": int(record.created), "what": text})

    def lines(self) -> list[dict[str, Any]]:
        """`at_s`, seconds since 1970, and `what`; the oldest first."""
        return list(self._lines.copy())
