"""What the policy of roaming knows, and what it tells people of that.

A step never changes the state that it is given: it changes a copy, which is the next state. Only
the buffers of kept packets are one value for all states.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import Flow
from ropewalk.sdn.roam.buffers import Buffers
from ropewalk.sdn.roam.config import Config, Switch
from ropewalk.sdn.roam.program import Ports
from ropewalk.sdn.roam.stations import Place, Table

HANDOVERS_MAX = 64
"""Arrivals that are reported."""


@dataclass
class View:
    """What is known of a connected switch."""

    config: Switch
    by_name: dict[str, events.Port]
    connected_s: float
    ports: Ports = field(default_factory=lambda: Ports({}, {}, {}, frozenset()))
    base: frozenset[Flow] = frozenset()
    flows: dict[str, frozenset[Flow]] = field(default_factory=dict)
    metered: set[int] = field(default_factory=set)
    """Slots of stations whose meters are there."""
    edge_meters: int = 0

    def copied(self) -> View:
        """Another one with containers of its own."""
        return replace(
            self, by_name={**self.by_name}, flows={**self.flows}, metered={*self.metered}
        )


@dataclass(frozen=True)
class Freeze:
    """`zwa-adaptive`: a station's leaving. `allowed` is None until it is decided.

    `given` are the bytes that its access point had given it by then, `since_s` when that was told.
    """

    given: int
    allowed: bool | None
    since_s: float
    asked: bool = False
    """Whether its switch has been asked what it had given by the removal of the flow."""


COUNTERS = (
    *("joined", "left", "left_by_joining", "stale_events", "stale_frames", "frames_untrusted"),
    *("notices_elsewhere", "packets_elsewhere", "packets_unread", "mended"),
    *("stations_refused", "stations_forgotten", "kept", "released", "repeated", "overflowed"),
    *("overwritten", "too_old", "late", "zero_windows", "freezes_allowed", "freezes_denied"),
)
"""All that are counted: told from the beginning, so that who watches finds them."""


@dataclass(frozen=True)
class Heard:
    """When a station that only frames have shown last spoke, as far as is known."""

    at_s: float
    again: bool
    """Not only when it came."""
    doubted: bool = False
    """Its room is wanted: it goes if it has said nothing when its switch tells."""


@dataclass(frozen=True)
class Handover:
    """A station's arrival until every switch has confirmed the ways to it."""

    mac: str
    joined_s: float
    waiting: frozenset[str]
    confirmed_s: float | None = None


@dataclass
class State:
    """Everything the policy knows.

    What a step changes is a container of the next state's own (`next`), or one that replaces the
    former (`shallow`).
    """

    config: Config
    buffers: Buffers
    views: dict[str, View] = field(default_factory=dict)
    table: Table = field(default_factory=Table)
    ways: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each switch: the ports of all others towards it."""
    freezes: dict[str, Freeze] = field(default_factory=dict)
    heard: dict[str, Heard] = field(default_factory=dict)
    """All stations that only frames have shown, and no others."""
    rota: deque[str] = field(default_factory=deque)
    """Stations whose switches are still to tell in this round, which began at `round_s`."""
    round_s: float = 0.0
    credit: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    handovers: tuple[tuple[int, Handover], ...] = ()
    """The latest by number."""
    number: int = 0
    due: dict[str, float] = field(default_factory=dict)
    """Stations whose `Release` is awaited, and since when."""
    asked: tuple[str, ...] = ()
    """Those for which the last step asks for one, behind the packets that wait already."""

    def shallow(self) -> State:
        """Another one with the same containers, for what replaces some of them."""
        after = object.__new__(State)
        # Per packet: `replace` takes five times as long.
        after.__dict__.update(self.__dict__)
        return after

    def next(self) -> State:
        """Another one with containers of its own, but for those that are only ever replaced."""
        after = self.shallow()
        after.views = {name: view.copied() for name, view in self.views.items()}
        after.freezes = {**self.freezes}
        after.heard = {**self.heard}
        after.rota = self.rota.copy()
        after.credit = {**self.credit}
        after.counters = {**self.counters}
        after.due = {**self.due}
        return after

    def counted(self, name: str) -> State:
        """Another one that has counted one more."""
        after = self.shallow()
        after.counters = {**self.counters, name: self.counters[name] + 1}
        return after


def number(state: State, place: Place) -> int | None:
    """The number of a port that is connected now."""
    view = state.views.get(place.switch)
    port = view.by_name.get(place.port) if view else None
    return port.number if port else None


def report(state: State, now: float) -> dict[str, object]:
    """What people are told, ready for JSON."""
    return {
        "mode": "roam",
        "scheme": state.config.scheme,
        "switches": [
            {"name": switch.name, "connected": switch.name in state.views}
            for switch in state.config.switches
        ],
        "stations": [
            {
                "mac": station.mac,
                "address": station.address,
                "switch": station.place.switch,
                "port": station.place.port,
                "moves": not station.place.fixed,
                "here": station.here,
                "since_s": round(now - station.since_s, 3),
                "kept_packets": state.buffers.packets(station.mac),
            }
            for station in state.table.by_mac.values()
        ],
        "handovers": [
            {
                "mac": handover.mac,
                "joined_s": round(handover.joined_s, 4),
                "confirmed_s": handover.confirmed_s and round(handover.confirmed_s, 4),
            }
            for _, handover in state.handovers
        ],
        "kept_bytes": state.buffers.bytes,
        "counters": {**state.counters, **state.buffers.counters},
    }
