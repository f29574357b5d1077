"""The DevTools protocol over pipes, against a browser of a few lines."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from ropewalk.lab.browser.devtools import DevTools, TimedOutError
from ropewalk.lab.runner import RunError


class Peer:
    """The browser's ends of both pipes."""

    def __init__(self) -> None:
        from_tools, to_browser = os.pipe()
        from_browser, to_tools = os.pipe()
        self.reader, self.writer = from_tools, to_tools
        self.stopped = threading.Event()
        self.tools = DevTools(from_browser, to_browser, self.stopped)

    def send(self, *messages: dict[str, object]) -> None:
        for part in b"".join(json.dumps(m).encode() + b"\0" for m in messages).partition(b"{"):
            os.write(self.writer, part)


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_answers_find_their_calls_and_events_keep_their_order(peer: Peer) -> None:
    peer.send(
        {"method": "A", "params": {"x": 1}, "sessionId": "s"},
        {"id": 1, "result": {"value": 7}},
        {"method": "B"},
    )
    assert peer.tools.call("Do.it", "s", what=3) == {"value": 7}
    asked = json.loads(os.read(peer.reader, 1000).rstrip(b"\0"))
    assert asked == {"id": 1, "method": "Do.it", "params": {"what": 3}, "sessionId": "s"}
    end = time.monotonic() + 5
    events = [peer.tools.event(end) for _ in range(2)]
    assert [(event.method, event.session) for event in events] == [("A", "s"), ("B", "")]
    assert events[0].parameters == {"x": 1}


def test_refusals_and_the_end_of_the_browser_are_told(peer: Peer) -> None:
    peer.send({"id": 1, "error": {"message": "no such thing"}})
    with pytest.raises(RunError, match=r"refuses Do\.it: no such thing"):
        peer.tools.call("Do.it")
    os.close(peer.writer)
    with pytest.raises(RunError, match="gone"):
        peer.tools.call("Do.it")


def test_waiting_ends_in_time_and_when_all_is_stopped(peer: Peer) -> None:
    with pytest.raises(TimedOutError):
        peer.tools.event(time.monotonic() + 0.05)
    peer.stopped.set()
    with pytest.raises(RunError, match="stopped"):
        peer.tools.event(time.monotonic() + 60)
