"""Runs a policy: one thread takes events from a bounded queue, steps, and sends.

Packets beyond the queue's bound are dropped and counted; all other events wait for room.
"""

from __future__ import annotations

import logging
import queue
import ssl
import threading
import time
from typing import Any

from ropewalk.sdn import policy
from ropewalk.sdn import tls as tls_files
from ropewalk.sdn.balance.policy import Balance
from ropewalk.sdn.bicast.policy import Bicast
from ropewalk.sdn.config import Config, Tls
from ropewalk.sdn.openflow.events import Connected, Disconnected, Event, PacketIn, Present, Tick
from ropewalk.sdn.openflow.program import FlowMod, GroupMod, Message, PacketOut
from ropewalk.sdn.openflow.switches import Switches
from ropewalk.sdn.reader import ConfigError

QUEUE_MAX = 4096
CONNECTIONS_MAX = 8
"""At a time; all but one are strangers', or have been replaced and end."""
_NAME = "bridge"
"""Of the one switch, whatever its datapath number."""
AUDIT_S = 30.0
"""Between looks at what the switch really has."""

_log = logging.getLogger(__name__)


class Service:
    """One bridge's controller."""

    def __init__(self, config: Config) -> None:
        """Raises OSError when the controller's address cannot be listened on, ConfigError when
        TLS's files do not fit."""
        self.config = config
        self._policy: Any = Bicast() if config.bicast else Balance()
        self._state = self._policy.begin(config)
        self._events: queue.Queue[Event] = queue.Queue(QUEUE_MAX)
        self._stopped = threading.Event()
        self._audited_s = time.monotonic()
        self._used: frozenset[tuple[str, int]] = frozenset()
        self.counters = {
            "packets_in": 0,
            "packets_dropped": 0,
            "packets_out": 0,
            "flow_mods": 0,
            "group_mods": 0,
            "connections": 0,
            "disconnections": 0,
            "faults": 0,
        }
        tls = context(config.controller.tls) if config.controller.tls else None
        self.switches = Switches(
            config.controller.listen,
            lambda _: _NAME,
            lambda _, event: self._tell(event),
            tls,
            CONNECTIONS_MAX,
            config.controller.rank_among_others,
        )

    def run(self) -> None:
        """Works until `stop`."""
        threading.Thread(target=self._ticks, name="ticks", daemon=True).start()
        while not self._stopped.is_set():
            try:
                event = self._events.get(timeout=policy.TICK_S)
            except queue.Empty:
                continue
            self._step(event)
        self.switches.close()

    def stop(self) -> None:
        """Ends `run`; the switch keeps its flows."""
        self._stopped.set()

    def report(self) -> dict[str, Any]:
        """State and counters, ready for JSON."""
        return {
            **self._policy.report(self._state, time.monotonic()),
            "standing_by": self.switches.standing_by,
            "counters": {
                **self.counters,
                "malformed_messages": self.switches.malformed,
                "refused_messages": self.switches.errors,
            },
        }

    def _tell(self, event: Event) -> None:
        if isinstance(event, PacketIn):
            self.counters["packets_in"] += 1
            try:
                self._events.put_nowait(event)
            except queue.Full:
                self.counters["packets_dropped"] += 1
            return
        while not self._stopped.is_set():
            try:
                self._events.put(event, timeout=1)
                return
            except queue.Full:
                continue

    def _ticks(self) -> None:
        while not self._stopped.wait(policy.TICK_S):
            # A policy that is behind needs no more ticks.
            if self._events.qsize() < QUEUE_MAX // 2:
                self._tell(Tick())
            now = time.monotonic()
            if now - self._audited_s >= AUDIT_S:
                self._audited_s = now
                self.switches.audit()

    def _step(self, event: Event) -> None:
        self._count(event)
        try:
            self._state, messages = self._policy.step(self._state, event, time.monotonic())
        # A fault of one event must not end forwarding decisions for all others.
        except Exception:
            self.counters["faults"] += 1
            _log.exception("an event was not handled; the state stays as it was")
            return
        self._tell_uplinks(self._state.common.carrying)
        if messages and not self.switches.send(_NAME, messages):
            # What was not sent is found again when the switch is back.
            _log.debug("%s messages without a switch", len(messages))
        for message in messages:
            self._count_sent(message)

    def _tell_uplinks(self, used: frozenset[tuple[str, int]]) -> None:
        for name, version in sorted(used ^ self._used):
            what = "is used" if (name, version) in used else "is not used any more"
            _log.info("uplink %s %s with IPv%s", name, what, version)
        self._used = used

    def _count(self, event: Event) -> None:
        match event:
            case Connected(ports):
                self.counters["connections"] += 1
                _log.info("the switch has connected, %s ports", len(ports))
            case Disconnected():
                self.counters["disconnections"] += 1
                _log.info("the switch has gone")
            case Present():
                _log.debug("looked at what the switch has")
            case _:
                pass

    def _count_sent(self, message: Message) -> None:
        _log.debug("sent %s", message)
        match message:
            case PacketOut():
                self.counters["packets_out"] += 1
            case FlowMod():
                self.counters["flow_mods"] += 1
            case GroupMod():
                self.counters["group_mods"] += 1
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
