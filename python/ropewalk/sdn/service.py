"""Runs a policy: one thread takes events by their urgency, steps, and sends.

The thread never waits for room in its own queues. Whoever has news that must not be lost waits
instead; packets for which there is no room are dropped and counted.
"""

from __future__ import annotations

import itertools
import logging
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ropewalk.sdn import tls as tls_files
from ropewalk.sdn.config import Controller, Tls
from ropewalk.sdn.contract import LEVELS, E, Policy, S, Told, Urgency
from ropewalk.sdn.openflow.events import At, Connected, Disconnected, Event, PacketIn, Tick
from ropewalk.sdn.openflow.program import FlowMod, GroupMod, Message, PacketOut
from ropewalk.sdn.openflow.switches import Switches
from ropewalk.sdn.reader import ConfigError

AUDIT_S = 30.0
"""Between looks at what the switches really have."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Inbox(Generic[T]):
    """Events that wait, by their urgency; within a level in the order of their arrival."""

    def __init__(self, urgency: Callable[[T], Urgency]) -> None:
        self._urgency = urgency
        self._queues: tuple[deque[T], ...] = tuple(deque() for _ in range(LEVELS))
        lock = threading.Lock()
        self._ready = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._closed = False
        self.counters = Counter(packets_in=0, packets_dropped=0, events_dropped=0)
        """Dropped events include dropped packets."""

    def put(self, event: T) -> None:
        """Adds an event, waits for room, or drops it; a closed inbox takes nothing."""
        urgency = self._urgency(event)
        queue = self._queues[urgency.level]
        packet = isinstance(event, At) and isinstance(event.event, PacketIn)
        with self._ready:
            self.counters["packets_in"] += packet
            if urgency.waits:
                self._room.wait_for(lambda: self._closed or len(queue) < urgency.bound)
            if self._closed:
                return
            if len(queue) >= urgency.bound:
                self.counters["events_dropped"] += 1
                self.counters["packets_dropped"] += packet
                return
            queue.append(event)
            self._ready.notify()

    def get(self, timeout_s: float) -> T | None:
        """The most urgent event; None when there is none in time."""
        with self._ready:
            self._ready.wait_for(lambda: any(self._queues), timeout_s)
            for queue in self._queues:
                if queue:
                    self._room.notify_all()
                    return queue.popleft()
        return None

    def close(self) -> None:
        """Lets everybody go who waits for room."""
        with self._ready:
            self._closed = True
            self._room.notify_all()


class Service(Generic[S, E]):
    """The controller of one or more switches."""

    def __init__(
        self,
        policy: Policy[S, E],
        controller: Controller,
        name_of: Callable[[int], str | None],
        connections_max: int,
    ) -> None:
        """`name_of` and `connections_max` are those of `Switches`.

        Raises:
            OSError: when the controller's address cannot be listened on.
            ConfigError: when TLS's files do not fit.
        """
        self._policy = policy
        self._state = policy.begin()
        self._inbox: Inbox[Told[E]] = Inbox(policy.urgency)
        self._stopped = threading.Event()
        self._tick_waits = False
        self._counters = Counter(
            packets_out=0,
            flow_mods=0,
            group_mods=0,
            messages_sent=0,
            connections=0,
            disconnections=0,
            faults=0,
        )
        self.switches = Switches(
            controller.listen,
            name_of,
            self._said,
            context(controller.tls) if controller.tls else None,
            connections_max,
            controller.rank_among_others,
        )

    def run(self) -> None:
        """Works until `stop`."""
        audited_s = time.monotonic()
        due_s = audited_s + self._policy.tick_s
        while not self._stopped.is_set():
            event = self._inbox.get(max(0.0, due_s - time.monotonic()))
            if event is not None:
                self._step(event)
            now = time.monotonic()
            if now >= due_s:
                due_s = now + self._policy.tick_s
                self._tick()
            if now - audited_s >= AUDIT_S:
                audited_s = now
                self.switches.audit()
        self._inbox.close()
        self.switches.close()

    def stop(self) -> None:
        """Ends `run`; the switches keep their flows."""
        self._stopped.set()

    def put(self, event: E) -> None:
        """Tells the policy an event of its own; from any thread but that of `run`."""
        self._inbox.put(event)

    def report(self) -> dict[str, Any]:
        """State and counters, ready for JSON; from any thread."""
        report = self._policy.report(self._state, time.monotonic())
        known = report.get("counters")
        counters = {
            **(known if isinstance(known, dict) else {}),
            **self._inbox.counters,
            **self._counters,
            "malformed_messages": self.switches.malformed,
            "refused_messages": self.switches.errors,
            "refused_connections": self.switches.refused,
        }
        return {**report, "standing_by": self.switches.standing_by, "counters": counters}

    def _said(self, name: str, event: Event) -> None:
        self._inbox.put(At(name, event))

    def _tick(self) -> None:
        # A policy that is behind needs no more ticks.
        if not self._tick_waits:
            self._tick_waits = True
            self._inbox.put(Tick())

    def _step(self, event: Told[E]) -> None:
        if isinstance(event, Tick):
            self._tick_waits = False
        elif isinstance(event, At):
            self._count(event)
        try:
            self._state, out = self._policy.step(self._state, event, time.monotonic())
        # A fault of one event must not end forwarding decisions for all others.
        except Exception:
            self._counters["faults"] += 1
            _log.exception("an event was not handled; the state stays as it was")
            return
        for asked in self._policy.asked(self._state):
            self._inbox.put(asked)
        for name, rows in itertools.groupby(out, key=lambda row: row[0]):
            messages = [message for _, message in rows]
            if not self.switches.send(name, messages):
                # What was not sent is found again when the switch is back.
                _log.debug("%s messages without switch %s", len(messages), name)
            for message in messages:
                self._count_sent(message)

    def _count(self, event: At) -> None:
        match event:
            case At(name, Connected(ports)):
                self._counters["connections"] += 1
                _log.info("switch %s has connected, %s ports", name, len(ports))
            case At(name, Disconnected()):
                self._counters["disconnections"] += 1
                _log.info("switch %s has gone", name)
            case _:
                pass

    def _count_sent(self, message: Message) -> None:
        _log.debug("sent %s", message)
        self._counters["messages_sent"] += 1
        match message:
            case PacketOut():
                self._counters["packets_out"] += 1
            case FlowMod():
                self._counters["flow_mods"] += 1
            case GroupMod():
                self._counters["group_mods"] += 1
            case _:
                pass


def context(tls: Tls) -> ssl.SSLContext:
    """What the switches' connections are protected with; both ends show a certificate.

    Raises:
        ConfigError: when a file cannot be read or is none of its kind.
    """
    try:
        return tls_files.context(ssl.Purpose.CLIENT_AUTH, tls.key, tls.certificate, tls.authority)
    except tls_files.TlsError as error:
        raise ConfigError([f"{error}; mend [controller.tls]"]) from error
