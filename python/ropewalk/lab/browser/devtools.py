"""The DevTools protocol over pipes: messages are JSON, each ended by a zero byte."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from ropewalk.lab.runner import RunError

CALL_SECONDS = 30.0
_READ_BYTES = 1 << 16
_STEP_SECONDS = 0.5
_EVENTS_MAX = 100_000


class TimedOutError(Exception):
    """What was waited for did not come in time."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a session of the browser."""

    method: str
    parameters: dict[str, Any]
    session: str


class DevTools:
    """One connection to a browser, which answers calls and tells what happens."""

    def __init__(self, reader: int, writer: int, stopped: threading.Event) -> None:
        """`reader` and `writer` are descriptors of pipes; `stopped` ends every wait."""
        self._reader, self._writer = reader, writer
        self._stopped = stopped
        self._rest = b""
        self._last = 0
        self._events: deque[Event] = deque(maxlen=_EVENTS_MAX)
        self._answers: dict[int, dict[str, Any]] = {}

    def call(self, method: str, session: str = "", **parameters: object) -> dict[str, Any]:
        """Asks for something and waits for the answer.

        Raises:
            RunError: when the browser refuses, is gone, or does not answer.
        """
        self._last += 1
        number = self._last
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._write(json.dumps(message).encode() + b"\0")
        end = time.monotonic() + CALL_SECONDS
        try:
            while number not in self._answers:
                self._read(end)
        except TimedOutError:
            raise RunError(f"the browser did not answer {method}") from None
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RunError(f"the browser refuses {method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def event(self, end: float) -> Event:
        """The next thing that happened, until `end` by the monotonic clock.

        Raises:
            TimedOutError: when nothing did.
            RunError: when the browser is gone.
        """
        while not self._events:
            self._read(end)
        return self._events.popleft()

    def forget(self) -> None:
        """Drops what happened so far."""
        self._events.clear()

    def close(self) -> None:
        """Closes the pipes."""
        os.close(self._reader)
        os.close(self._writer)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._writer, data) :]
        except BrokenPipeError:
            raise RunError("the browser is gone") from None

    def _read(self, end: float) -> None:
        left = end - time.monotonic()
        if left <= 0:
            raise TimedOutError
        if self._stopped.is_set():
            raise RunError("stopped")
        if not select.select([self._reader], [], [], min(left, _STEP_SECONDS))[0]:
            return
        data = os.read(self._reader, _READ_BYTES)
        if not data:
            raise RunError("the browser is gone")
        *messages, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                session = message.get("sessionId", "")
                self._events.append(Event(message["method"], message.get("params", {}), session))
