"""Log lines that a flood cannot multiply."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LINES_MAX = 10
"""Lines of one kind in each `WINDOW_S`."""
WINDOW_S = 60.0


class Limited:
    """Warnings of one kind: the first few of each window are logged, the others are counted."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s = clock()
        self._lines = 0
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        """Logs a line, or counts it; from any thread."""
        with self._lock:
            now = self._clock()
            if now - self._began_s >= WINDOW_S:
                self._began_s, self._lines = now, 0
            if self._lines >= LINES_MAX:
                self._left_out += 1
                return
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._log.warning("%s lines like the next one were left out", left_out)
        self._log.warning(text, *values)
