"""What a policy is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ropewalk.sdn.openflow.program import Match, Program


@dataclass(frozen=True)
class Port:
    """A port of the bridge; `live` when it is up and has a carrier."""

    number: int
    name: str
    mac: str
    live: bool


@dataclass(frozen=True)
class Connected:
    """The switch has connected: its ports, and what it has of this project."""

    ports: tuple[Port, ...]
    present: Program = field(default_factory=Program)


@dataclass(frozen=True)
class Disconnected:
    """The connection to the switch has gone; its flows stay."""


@dataclass(frozen=True)
class Present:
    """What the switch has of this project, asked for again now and then."""

    present: Program


@dataclass(frozen=True)
class PortChanged:
    """A port came, changed, or went (`gone`)."""

    port: Port
    gone: bool = False


@dataclass(frozen=True)
class PacketIn:
    """A packet the switch asks about; `data` may be cut short."""

    port: int
    table: int
    data: bytes
    bytes_all: int
    arrived_s: float | None = field(default=None, compare=False)
    """When it was read from the switch, by the clock of policies: what waits in a queue since has
    arrived earlier than it is handled. None for now."""


@dataclass(frozen=True)
class FlowRemoved:
    """A flow that was to tell has gone, with what it counted."""

    table: int
    match: Match
    packets: int
    bytes: int


@dataclass(frozen=True)
class Confirmed:
    """All that was sent before a `Confirm` of this number is done."""

    number: int


@dataclass(frozen=True)
class Counters:
    """Bytes of a port since it was added, which was `seconds` ago by the switch's clock."""

    received: int
    sent: int
    seconds: float


@dataclass(frozen=True)
class PortStatistics:
    """Counters by port number."""

    by_port: Mapping[int, Counters]


@dataclass(frozen=True)
class MeterStatistics:
    """What a meter has been given since it was made, dropped or not."""

    number: int
    packets: int
    bytes: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Connected
    | Disconnected
    | Present
    | PortChanged
    | PacketIn
    | FlowRemoved
    | Confirmed
    | PortStatistics
    | MeterStatistics
    | Tick
)


@dataclass(frozen=True)
class At:
    """An event of one switch, of several that a controller has."""

    switch: str
    event: Event
