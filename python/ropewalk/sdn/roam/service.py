"""Runs the policy of roaming: one thread takes events from bounded queues, steps, and sends.

What changes where stations are goes before new senders, and those before copies: a flood of packets
delays no handover. Packets beyond a queue's bound are dropped and counted.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter, deque
from typing import Any

from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import Message
from ropewalk.sdn.openflow.switches import Switches
from ropewalk.sdn.roam import policy, program
from ropewalk.sdn.roam.config import Config
from ropewalk.sdn.roam.events import At, Event, Notice, Release
from ropewalk.sdn.roam.notices import Notices
from ropewalk.sdn.roam.state import report
from ropewalk.sdn.service import AUDIT_S, context

TICK_S = 0.1
CONTROL_MAX = 4096
NEW_MAX = 512
COPIES_MAX = 8192
_SPARE = 16
"""Connections beyond one for each switch: those about to be replaced or refused."""

_log = logging.getLogger(__name__)


class Inbox:
    """Three queues by urgency; only the first makes its senders wait."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._queues: tuple[deque[Event], deque[Event], deque[Event]] = (deque(), deque(), deque())
        self.dropped = 0

    def put(self, event: Event) -> None:
        """Adds an event."""
        level, maximum = _urgency(event)
        with self._ready:
            if level == 0:
                self._ready.wait_for(lambda: len(self._queues[0]) < maximum, timeout=5)
            if len(self._queues[level]) >= maximum:
                self.dropped += 1
                return
            self._queues[level].append(event)
            self._ready.notify_all()

    def get(self, timeout: float) -> Event | None:
        """The most urgent event; None when there is none in time."""
        with self._ready:
            self._ready.wait_for(lambda: any(self._queues), timeout=timeout)
            for number, queue in enumerate(self._queues):
                if queue:
                    event = queue.popleft()
                    if number == 0:
                        self._ready.notify_all()
                    return event
        return None


def _urgency(event: Event) -> tuple[int, int]:
    match event:
        case At(_, events.PacketIn(table=program.CLASSIFY)):
            return 1, NEW_MAX
        case At(_, events.PacketIn()):
            return 2, COPIES_MAX
        case Release():
            # Behind the copies, whose acknowledgements say what need not be sent.
            return 2, COPIES_MAX + 1
        case _:
            return 0, CONTROL_MAX


class Service:
    """The controller of all switches."""

    def __init__(self, config: Config) -> None:
        """Raises OSError when an address cannot be listened on."""
        self.config = config
        self._state = policy.begin(config)
        self._inbox = Inbox()
        self._stopped = threading.Event()
        self._audited_s = time.monotonic()
        self._reported = report(self._state, time.monotonic())
        self.counters: Counter[str] = Counter(packets_in=0, messages_sent=0, faults=0)
        tls = context(config.controller.tls) if config.controller.tls else None
        names = {switch.datapath: switch.name for switch in config.switches}
        self.switches = Switches(
            config.controller.listen,
            names.get,
            lambda name, event: self._inbox.put(At(name, event)),
            tls,
            len(names) + _SPARE,
            config.controller.rank_among_others,
        )
        self.notices: Notices | None = None
        try:
            if config.notices:
                self.notices = Notices(config.notices, self._noticed, tls)
        except OSError:
            self.switches.close()
            raise

    def run(self) -> None:
        """Works until `stop`."""
        due_s = time.monotonic()
        while not self._stopped.is_set():
            event = self._inbox.get(TICK_S)
            if event is not None:
                self._step(event)
            now = time.monotonic()
            if now >= due_s:
                due_s = now + TICK_S
                self._step(events.Tick())
                self._reported = report(self._state, now)
            if now - self._audited_s >= AUDIT_S:
                self._audited_s = now
                self.switches.audit()
        if self.notices:
            self.notices.close()
        self.switches.close()

    def stop(self) -> None:
        """Ends `run`; the switches keep their flows."""
        self._stopped.set()

    def report(self) -> dict[str, Any]:
        """State and counters as they were at the last tick, ready for JSON."""
        report = {**self._reported, "standing_by": self.switches.standing_by}
        counters = dict(self.counters)
        counters |= {"events_dropped": self._inbox.dropped}
        counters |= {"malformed_messages": self.switches.malformed}
        counters |= {"refused_messages": self.switches.errors}
        if self.notices:
            counters |= {"malformed_notices": self.notices.malformed}
        known = report.get("counters")
        report["counters"] = {**(known if isinstance(known, dict) else {}), **counters}
        return report

    def _noticed(self, notice: Notice) -> None:
        self._inbox.put(notice)

    def _step(self, event: Event) -> None:
        match event:
            case At(_, events.PacketIn()):
                self.counters["packets_in"] += 1
            case At(name, events.Connected()):
                _log.info("switch %s has connected", name)
            case At(name, events.Disconnected()):
                _log.info("switch %s has gone", name)
            case Notice():
                _log.info("%s", event)
            case _:
                pass
        try:
            self._state, out = policy.step(self._state, event, time.monotonic())
        # A fault of one event must not end forwarding decisions for all others.
        except Exception:
            self.counters["faults"] += 1
            _log.exception("an event was not handled")
            return
        for mac in self._state.asked:
            self._inbox.put(Release(mac))
        self._state.asked.clear()
        for name, rows in itertools.groupby(out, key=lambda row: row[0]):
            messages: list[Message] = [message for _, message in rows]
            self.counters["messages_sent"] += len(messages)
            if not self.switches.send(name, messages):
                # What was not sent is found again when the switch is back.
                _log.debug("%s messages without switch %s", len(messages), name)
