"""The flows of one switch.

Table 0 looks at where a frame came in: known senders and links go on to table 1, anything else at
an access port is asked about. Table 1 forwards by receiver; what is for a station that is away
goes to the controller from there. Tables 2 and 3 copy TCP towards and from stations to the
controller. Every way to the controller passes a meter: of its station, or of its port for unknown
senders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    IN_PORT,
    Action,
    Flow,
    Meter,
    MeterMod,
    Output,
    Resubmit,
    match,
)
from ropewalk.sdn.roam.config import Bounds
from ropewalk.sdn.roam.frames import HEADERS_MAX

CLASSIFY, FORWARD, COPY, ANSWER = 0, 1, 2, 3
WHOLE_PACKET = 0xFFFF
"""OFPCML_NO_BUFFER: the packet as it is."""
STATION_METERS = 1000
"""Number of the first station's meter; ports have theirs below."""
COUNT_METERS = 10_000
"""Number of the meter that counts what the first station is given, for `zwa-adaptive`.

Open vSwitch adds what its datapath has forwarded to a flow up to half a second later, and never to
a flow that has been removed meanwhile. A meter is in the datapath itself."""
_UNLIMITED_PER_S = 1_000_000
"""Of a meter that only counts: more packets than such a switch forwards."""
_BURST_S = 0.25
_GROUP_BIT = ("01:00:00:00:00:00", "01:00:00:00:00:00")
_TCP = ({"eth_type": 0x0800, "ip_proto": 6}, {"eth_type": 0x86DD, "ip_proto": 6})
"""Over IPv4 and over IPv6."""
_FROM_LINK, _ELSEWHERE, _NEW = 300, 150, 100
_KNOWN = (200, 201)
"""Two, that one flow may take the place of the other without a gap."""
_AWAY, _BACK, PRIORITY_TO, _GROUP = 400, 350, 300, 50


@dataclass(frozen=True)
class Ports:
    """A switch's ports by purpose; `tree` are the links on the tree for what goes to everybody."""

    access: Mapping[str, int]
    hosts: Mapping[str, int]
    links: Mapping[str, int]
    tree: frozenset[int]


@dataclass(frozen=True)
class Way:
    """How a switch sees a station: the port towards it, and whether it is at this very switch."""

    mac: str
    slot: int
    out: int | None
    at: int | None
    away: bool
    kept: bool
    """Whether the controller keeps what is for it: copies while it is here, all while away."""
    fixed: bool
    counted: bool = False
    """Whether a meter counts what it is given."""


def base(ports: Ports) -> frozenset[Flow]:
    """What does not depend on stations."""
    flows = {
        Flow(CLASSIFY, _FROM_LINK, match(in_port=port), (Resubmit(FORWARD),))
        for port in ports.links.values()
    }
    for index, port in enumerate(_edge(ports), 1):
        asked = (Meter(index), Output(CONTROLLER, WHOLE_PACKET))
        flows.add(Flow(CLASSIFY, _NEW, match(in_port=port), asked))
    everybody = sorted({*ports.tree, *_edge(ports)})
    if everybody:
        flood = tuple(Output(port) for port in everybody)
        flows.add(Flow(FORWARD, _GROUP, match(eth_dst=_GROUP_BIT), flood))
    return frozenset(flows)


def base_meters(ports: Ports, bounds: Bounds) -> list[MeterMod]:
    """The meters of edge ports; those before are removed."""
    meters = [MeterMod(0)]
    return meters + [_meter(index, bounds.new_per_s) for index, _ in enumerate(_edge(ports), 1)]


def station_meter(slot: int, bounds: Bounds) -> MeterMod:
    """The meter of a station."""
    return _meter(STATION_METERS + slot, bounds.copies_per_s)


def count_meter(slot: int) -> MeterMod:
    """The meter that counts what a station is given, and drops nothing."""
    return _meter(COUNT_METERS + slot, _UNLIMITED_PER_S)


def station(ports: Ports, way: Way) -> frozenset[Flow]:
    """The flows of one station."""
    ask = (Meter(STATION_METERS + way.slot), Output(CONTROLLER, WHOLE_PACKET))
    to = match(eth_dst=way.mac)
    flows = set()
    if not way.fixed and ports.access:
        flows.add(Flow(CLASSIFY, _ELSEWHERE, match(eth_src=way.mac), ask))
    if way.away:
        flows.add(Flow(FORWARD, _AWAY, to, ask if way.kept else ()))
        return frozenset(flows)
    if way.out is None:
        return frozenset(flows)
    copied: tuple[Action, ...] = ()
    if way.at is not None:
        onward: tuple[Action, ...] = (Resubmit(FORWARD),)
        if way.kept:
            copied = (Resubmit(COPY),)
            onward += (Resubmit(ANSWER),)
            answer = (ask[0], Output(CONTROLLER, HEADERS_MAX))
            for tcp in _TCP:
                flows.add(Flow(COPY, 100, match(eth_dst=way.mac, **tcp), ask))
                flows.add(Flow(ANSWER, 100, match(eth_src=way.mac, **tcp), answer))
        flows.add(Flow(CLASSIFY, _KNOWN[0], match(in_port=way.at, eth_src=way.mac), onward))
    # A switch sends nothing back to where it came from unless told: what is still on its way to
    # where a station was has to turn round.
    back = match(in_port=way.out, eth_dst=way.mac)
    if way.at is None:
        flows.add(Flow(FORWARD, _BACK, back, (Output(IN_PORT),)))
    counts: tuple[Action, ...] = ()
    if way.counted and way.at is not None:
        counts = (Meter(COUNT_METERS + way.slot),)
    flows.add(Flow(FORWARD, PRIORITY_TO, to, (*counts, Output(way.out), *copied)))
    return frozenset(flows)


def by_station(flows: frozenset[Flow]) -> dict[str, frozenset[Flow]]:
    """The flows of stations, by their addresses."""
    found: dict[str, set[Flow]] = {}
    for flow in flows:
        fields = dict(flow.match)
        mac = fields.get("eth_src", fields.get("eth_dst"))
        if isinstance(mac, str):
            found.setdefault(mac, set()).add(flow)
    return {mac: frozenset(rows) for mac, rows in found.items()}


def place(flows: frozenset[Flow]) -> int | None:
    """The port at which a station is, by its flows; None when it is not at this switch."""
    for flow in flows:
        port = dict(flow.match).get("in_port")
        if counts(flow) and isinstance(port, int):
            return port
    return None


def counts(flow: Flow) -> bool:
    """Whether a flow counts what a station says at its port."""
    return flow.table == CLASSIFY and flow.priority in _KNOWN


def turn(flows: frozenset[Flow]) -> int:
    """Which of the two flows that count a station has."""
    return max((_KNOWN.index(flow.priority) for flow in flows if counts(flow)), default=0)


def turned(flows: frozenset[Flow], number: int) -> frozenset[Flow]:
    """A station's flows with the one or the other that counts."""
    return frozenset(
        replace(flow, priority=_KNOWN[number]) if counts(flow) else flow for flow in flows
    )


def _edge(ports: Ports) -> list[int]:
    return sorted({*ports.access.values(), *ports.hosts.values()})


def _meter(number: int, rate: int) -> MeterMod:
    return MeterMod(number, rate, max(1, int(rate * _BURST_S)))
