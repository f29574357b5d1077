"""Decides where stations are, which flows that means, and what is kept and sent again.

Decisions take the state, one event and the time and give the next state and messages; nothing
here opens a socket or reads a clock. The state's tables are replaced, its buffers change in
place.

Modes: `replay` copies what goes to a station until the station acknowledges it, keeps what comes
while it is away, and sends all of that in order when it is back; nothing is acknowledged in its
name. `zwa` is Singh et al., Algorithms 1 and 2: what comes while the station is away is kept and
acknowledged with a zero window, and sent once when it is back. `zwa-adaptive` is `zwa` only where
a comparison of flow counters (section 2.2) shows that nothing was sent to the station between its
leaving and the removal of its flow. `bare` changes routes only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ropewalk.sdn import events
from ropewalk.sdn.openflow.program import (
    Confirm,
    Flow,
    FlowMod,
    Message,
    Meter,
    Output,
    PacketOut,
    Program,
    Resubmit,
    difference,
)
from ropewalk.sdn.roam import frames, program, stations, topology
from ropewalk.sdn.roam.buffers import Buffers
from ropewalk.sdn.roam.config import Config, Switch
from ropewalk.sdn.roam.events import At, Event, Notice, Release
from ropewalk.sdn.roam.program import Ports, Way
from ropewalk.sdn.roam.stations import Place, Station, Table

TABLE_PORT = 0xFFFF_FFF9
"""OFPP_TABLE: as if the packet had come in."""
RELEASE_S = 0.05
"""A controller that is behind sends what was kept after so long, read or not."""
FORGET_S = 600.0
"""A station that has been away so long is forgotten."""
UNKNOWN_S = 30.0
"""After a switch has connected: how long it keeps ways to stations not known yet."""
NEW_BURST = 20
"""Stations that may be new at one port at once."""
HANDOVERS_MAX = 64
"""Arrivals that are reported."""
Out = tuple[str, Message]
"""A switch's name and what to send to it."""


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


@dataclass
class Freeze:
    """`zwa-adaptive`: a station's leaving. `allowed` is None until it is decided."""

    counted: int
    allowed: bool | None


@dataclass
class Handover:
    """A station's arrival until every switch has confirmed the ways to it."""

    mac: str
    joined_s: float
    waiting: set[str]
    confirmed_s: float | None = None


@dataclass
class State:
    """Everything the policy knows."""

    config: Config
    buffers: Buffers
    views: dict[str, View] = field(default_factory=dict)
    table: Table = field(default_factory=Table)
    ways: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each switch: the ports of all others towards it."""
    freezes: dict[str, Freeze] = field(default_factory=dict)
    credit: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    handovers: deque[tuple[int, Handover]] = field(
        default_factory=lambda: deque(maxlen=HANDOVERS_MAX)
    )
    """The latest by number."""
    number: int = 0
    due: dict[str, float] = field(default_factory=dict)
    """Stations whose `Release` is awaited, and since when."""
    asked: list[str] = field(default_factory=list)
    """Those for which the caller is to give one, behind the packets that wait already."""


def begin(config: Config) -> State:
    """Nothing is known yet."""
    return State(config, Buffers(config.bounds))


def step(state: State, event: Event, now: float) -> tuple[State, list[Out]]:
    """The next state, and what to send; `now` in seconds of a clock that never goes back."""
    match event:
        case At(name, inner):
            return state, _at(state, name, inner, now)
        case Notice():
            return state, _noticed(state, event, now)
        case Release(mac):
            return state, _released(state, mac, now)
        case events.Tick():
            return state, _passed(state, now)


def _at(state: State, name: str, event: events.Event, now: float) -> list[Out]:
    match event:
        case events.PacketIn():
            return _packet(state, name, event, now)
        case events.Connected(ports, present):
            return _connected(state, name, ports, present, now)
        case events.Disconnected():
            state.views.pop(name, None)
        case events.Present(present):
            return _mended(state, name, present)
        case events.PortChanged(port, gone):
            return _port_changed(state, name, port, gone, now)
        case events.FlowRemoved():
            return _flow_removed(state, name, event)
        case events.Confirmed(number):
            _confirmed(state, name, number, now)
        case _:
            pass
    return []


def _noticed(state: State, notice: Notice, now: float) -> list[Out]:
    switch = state.config.switch(notice.switch)
    if switch is None or notice.port not in switch.access:
        state.counters["notices_elsewhere"] += 1
        return []
    if notice.joined:
        place = Place(notice.switch, notice.port)
        return _join(state, notice.mac, place, now, told=True)
    return _leave(state, notice.mac, notice.switch, notice.port, now, notice.packets)


def _join(state: State, mac: str, place: Place, now: float, *, told: bool) -> list[Out]:
    former = state.table.by_mac.get(mac)
    out: list[Out] = []
    if former is None:
        out = _make_room(state, place, told)
    table = stations.joined(state.table, mac, place, now, told, state.config.bounds.stations)
    station = table.by_mac.get(mac)
    if station is None:
        state.counters["stations_refused"] += 1
        return out
    moved = former is None or not former.here or former.place != place
    if not moved:
        state.table = table
        return out
    if former is not None and former.here:
        state.counters["left_by_joining"] += 1
    state.counters["joined"] += 1
    state.table = table
    freeze = state.freezes.pop(mac, None)
    # Where the station is comes first, then the ways there.
    changes = _installed(state, [station], first=place.switch)
    if former is not None and not place.fixed and (freeze is None or freeze.allowed):
        state.due[mac] = now
        state.asked.append(mac)
    else:
        state.buffers.forget(mac)
    return out + changes + _confirm(state, station, now)


def _confirm(state: State, station: Station, now: float) -> list[Out]:
    state.number = state.number % 0x7FFF_FFFF + 1
    state.handovers.append((state.number, Handover(station.mac, now, set(state.views))))
    return [(name, Confirm(state.number)) for name in state.views]


def _confirmed(state: State, name: str, number: int, now: float) -> None:
    for known, handover in state.handovers:
        if known == number and name in handover.waiting:
            handover.waiting.discard(name)
            if not handover.waiting:
                handover.confirmed_s = now


def _released(state: State, mac: str, now: float) -> list[Out]:
    """Acknowledgements that waited are known by now, so that nothing is sent twice for them."""
    station = state.table.by_mac.get(mac)
    if state.due.pop(mac, None) is None or station is None or not station.here:
        return []
    port = _number(state, station.place)
    if port is None:
        return []
    found = state.buffers.released(mac, now)
    if state.config.mode != "replay":
        state.buffers.forget(mac)
    state.counters["released"] += len(found)
    return [(station.place.switch, PacketOut(frame, (Output(port),))) for frame in found]


def _leave(
    state: State, mac: str, switch: str, port: str, now: float, packets: int = -1
) -> list[Out]:
    table = stations.left(state.table, mac, switch, port, now)
    if table is state.table:
        state.counters["stale_events"] += 1
        return []
    state.counters["left"] += 1
    state.table = table
    if state.config.mode == "zwa-adaptive":
        # Without a count from the moment of leaving nobody can tell what died.
        state.freezes[mac] = Freeze(packets, None if packets >= 0 else False)
    return _installed(state, [table.by_mac[mac]], first=switch)


def _flow_removed(state: State, name: str, removed: events.FlowRemoved) -> list[Out]:
    fields = dict(removed.match)
    mac = str(fields.get("eth_dst"))
    station, freeze = state.table.by_mac.get(mac), state.freezes.get(mac)
    if station is None or freeze is None or freeze.allowed is not None:
        return []
    if name != station.place.switch or removed.table != program.FORWARD or len(fields) != 1:
        return []
    freeze.allowed = removed.packets == freeze.counted
    state.counters["freezes_allowed" if freeze.allowed else "freezes_denied"] += 1
    if freeze.allowed:
        return [
            answer
            for frame in state.buffers.released(station.mac, float("-inf"))
            if (segment := frames.parse(frame))
            for answer in _zero_window(state, station.place.switch, frame, segment)
        ]
    state.buffers.forget(station.mac)
    return _installed(state, [station], first=station.place.switch)


def _packet(state: State, name: str, packet: events.PacketIn, now: float) -> list[Out]:
    view = state.views.get(name)
    found = frames.ends(packet.data)
    if view is None or found is None:
        state.counters["packets_unread"] += 1
        return []
    source, target = found
    match packet.table:
        case program.COPY:
            return _towards(state, name, target, packet.data, now, copy=True)
        case program.FORWARD:
            return _towards(state, name, target, packet.data, now, copy=False)
        case program.ANSWER:
            segment = frames.parse(packet.data)
            if segment:
                state.buffers.acknowledged(source, segment, now)
            return []
        case _:
            return _seen(state, view, source, packet, now)


def _towards(
    state: State, name: str, mac: str, frame: bytes, now: float, *, copy: bool
) -> list[Out]:
    station = state.table.by_mac.get(mac)
    if station is None:
        return []
    segment = frames.parse(frame)
    if station.here:
        port = _number(state, station.place)
        if copy and name == station.place.switch:
            state.buffers.add(mac, frame, segment, now, away=False)
            return []
        if mac in state.due:
            state.buffers.add(mac, frame, segment, now, away=True)
            return []
        if port is None or state.config.mode != "replay":
            return []
        # It was asked about, or copied elsewhere, before the station was here.
        state.buffers.add(mac, frame, segment, now, away=False)
        state.counters["late"] += 1
        return [(station.place.switch, PacketOut(frame, (Output(port),)))]
    freeze = state.freezes.get(mac)
    if freeze and freeze.allowed is False:
        return []
    kept = state.buffers.add(mac, frame, segment, now, away=True)
    state.counters["kept"] += kept
    if state.config.mode == "replay" or segment is None:
        return []
    if freeze and freeze.allowed is None:
        return []
    # What there was no room for is not acknowledged: its sender has to keep it.
    held = state.buffers.holds(mac, segment)
    return _zero_window(state, name, frame, segment) if held else []


def _zero_window(state: State, name: str, frame: bytes, segment: frames.Segment) -> list[Out]:
    if segment.flags & (frames.SYN | frames.RST) or not segment.flags & frames.ACK:
        return []
    state.counters["zero_windows"] += 1
    answer = frames.zero_window(frame, segment)
    return [(name, PacketOut(answer, (Resubmit(program.FORWARD),)))]


def _seen(state: State, view: View, mac: str, packet: events.PacketIn, now: float) -> list[Out]:
    port = next((p.name for p in view.by_name.values() if p.number == packet.port), "")
    fixed = port in view.config.hosts
    if not fixed and port not in view.config.access:
        state.counters["packets_elsewhere"] += 1
        return []
    place = Place(view.config.name, port, fixed)
    former = state.table.by_mac.get(mac)
    if not fixed and not state.config.frames:
        state.counters["frames_untrusted"] += 1
        return []
    # The frame that showed it goes on as any other.
    again = (
        view.config.name,
        PacketOut(packet.data, (Output(TABLE_PORT),), in_port=packet.port),
    )
    if former is not None and former.here and former.place == place:
        # It came before its flow was there.
        return [again]
    if not stations.may_move(state.table, mac, place, frames.announces(packet.data), now):
        state.counters["stale_frames"] += 1
        return []
    if former is None and not _credit(state, place, now):
        state.counters["stations_refused"] += 1
        return []
    out = _join(state, mac, place, now, told=False)
    address = frames.address(packet.data)
    if address and mac in state.table.by_mac:
        state.table = stations.addressed(state.table, mac, address)
    return [*out, again]


def _credit(state: State, place: Place, now: float) -> bool:
    """Whether another station may be new at a port: a bucket that refills within ten seconds."""
    key = (place.switch, place.port)
    had, at_s = state.credit.get(key, (float(NEW_BURST), now))
    had = min(float(NEW_BURST), had + (now - at_s) * NEW_BURST / 10)
    state.credit[key] = (max(0.0, had - 1), now)
    return had >= 1


def _make_room(state: State, place: Place, told: bool) -> list[Out]:
    """Forgets the youngest that only frames have shown, when its port or the table is full."""
    bounds = state.config.bounds
    here = state.table.at(place)
    full = len(state.table.by_mac) >= bounds.stations
    if not full and len(here) < bounds.port_stations:
        return []
    guessed = [
        station
        for station in (state.table.by_mac.values() if full and told else here)
        if not station.told and not station.place.fixed
    ]
    if not guessed:
        return []
    return _forget(state, max(guessed, key=lambda station: (station.since_s, station.mac)))


def _forget(state: State, station: Station) -> list[Out]:
    state.counters["stations_forgotten"] += 1
    state.table = stations.removed(state.table, station.mac)
    state.buffers.forget(station.mac)
    state.freezes.pop(station.mac, None)
    state.due.pop(station.mac, None)
    out: list[Out] = []
    for name, view in state.views.items():
        former = Program(view.flows.pop(station.mac, frozenset()))
        out += [(name, message) for message in difference(former, Program())]
    return out


def _passed(state: State, now: float) -> list[Out]:
    state.buffers.passed(now)
    out: list[Out] = []
    for mac in [mac for mac, since_s in state.due.items() if now - since_s > RELEASE_S]:
        out += _released(state, mac, now)
    for station in list(state.table.by_mac.values()):
        if not station.here and now - station.since_s > FORGET_S:
            out += _forget(state, station)
    for name, view in state.views.items():
        if now - view.connected_s > UNKNOWN_S:
            for mac in [mac for mac in view.flows if mac not in state.table.by_mac]:
                former = Program(view.flows.pop(mac))
                out += [(name, message) for message in difference(former, Program())]
    return out


def _connected(
    state: State, name: str, ports: tuple[events.Port, ...], present: Program, now: float
) -> list[Out]:
    config = state.config.switch(name)
    if config is None:
        return []
    view = state.views[name] = View(config, {port.name: port for port in ports}, now)
    _follow(state)
    # Meters are made anew, and what used them went with the old ones.
    meters = program.base_meters(view.ports, state.config.bounds)
    view.edge_meters = len(meters) - 1
    left = frozenset(flow for flow in present.flows if not _metered(flow))
    view.flows = program.by_station(left)
    _recover(state, view, now)
    view.base = program.base(view.ports)
    former = Program(left.difference(*view.flows.values()))
    messages: list[Message] = [*meters, *difference(former, Program(view.base))]
    # Ways to stations at switches that are still to connect stay for a while.
    return [(name, message) for message in messages] + _rerouted(state)


def _recover(state: State, view: View, now: float) -> None:
    """Learns from the switch's flows, an earlier controller's perhaps, who is at it."""
    for mac, flows in view.flows.items():
        number = program.place(flows)
        port = next((port for port in view.by_name.values() if port.number == number), None)
        if mac in state.table.by_mac or port is None or not port.live:
            continue
        fixed = port.name in view.config.hosts
        if fixed or port.name in view.config.access:
            place = Place(view.config.name, port.name, fixed)
            maximum = state.config.bounds.stations
            state.table = stations.joined(state.table, mac, place, now, False, maximum)


def _mended(state: State, name: str, present: Program) -> list[Out]:
    view = state.views.get(name)
    if view is None:
        return []
    messages = difference(present, _wanted(view))
    state.counters["mended"] += len(messages)
    return [(name, message) for message in messages]


def _wanted(view: View) -> Program:
    return Program(view.base.union(*view.flows.values()))


def _metered(flow: Flow) -> bool:
    return any(isinstance(action, Meter) for action in flow.actions)


def _port_changed(state: State, name: str, port: events.Port, gone: bool, now: float) -> list[Out]:
    view = state.views.get(name)
    if view is None:
        return []
    if gone:
        view.by_name.pop(port.name, None)
    else:
        view.by_name[port.name] = port
    out: list[Out] = []
    if gone or not port.live:
        for station in state.table.at(Place(name, port.name)):
            if not station.place.fixed:
                out += _leave(state, station.mac, name, port.name, now)
    before = {key: value.ports for key, value in state.views.items()}
    ways = state.ways
    _follow(state)
    if state.ways != ways or any(view.ports != before[key] for key, view in state.views.items()):
        out += _rerouted(state)
    return out


def _follow(state: State) -> None:
    """Links and ways, as the ports now are; a link is up when both its known ends are."""
    live = [
        link for link in state.config.links if all(_live(state, end) for end in (link.a, link.b))
    ]
    state.ways = {switch.name: topology.ways(live, switch.name) for switch in state.config.switches}
    tree = topology.tree(live)
    linked = {end for link in state.config.links for end in (link.a, link.b)}
    for name, view in state.views.items():
        numbers = {port.name: port.number for port in view.by_name.values()}
        view.ports = Ports(
            {port: numbers[port] for port in view.config.access if port in numbers},
            {port: numbers[port] for port in view.config.hosts if port in numbers},
            {port: number for port, number in numbers.items() if (name, port) in linked},
            frozenset(number for port, number in numbers.items() if (name, port) in tree),
        )


def _live(state: State, end: tuple[str, str]) -> bool:
    view = state.views.get(end[0])
    # A switch whose controller connection is lost goes on forwarding.
    if view is None:
        return True
    port = view.by_name.get(end[1])
    return port is not None and port.live


def _rerouted(state: State) -> list[Out]:
    out: list[Out] = []
    for name, view in state.views.items():
        base = program.base(view.ports)
        if base != view.base:
            meters = program.base_meters(view.ports, state.config.bounds)[1:]
            out += [(name, meter) for meter in meters[view.edge_meters :]]
            view.edge_meters = max(view.edge_meters, len(meters))
            messages = difference(Program(view.base), Program(base))
            out += [(name, message) for message in messages]
            view.base = base
    return out + _installed(state, state.table.by_mac.values())


def _installed(state: State, moved: Iterable[Station], first: str = "") -> list[Out]:
    """What gives every switch the flows of some stations; the switch `first` comes first."""
    out: list[Out] = []
    moved = list(moved)
    for name in sorted(state.views, key=lambda name: name != first):
        view = state.views[name]
        for station in moved:
            if station.slot not in view.metered:
                view.metered.add(station.slot)
                out.append((name, program.station_meter(station.slot, state.config.bounds)))
            flows = program.station(view.ports, _way(state, view, station))
            former = view.flows.get(station.mac, frozenset())
            for message in difference(Program(former), Program(flows)):
                if isinstance(message, FlowMod) and state.config.mode == "zwa-adaptive":
                    message = FlowMod(message.flow, message.remove, tell=_tells(message.flow))
                out.append((name, message))
            view.flows[station.mac] = flows
    return out


def _tells(flow: Flow) -> bool:
    """Whether a flow's counters are compared: one that gives a station its packets."""
    return flow.table == program.FORWARD and len(flow.match) == 1 and bool(flow.actions)


def _way(state: State, view: View, station: Station) -> Way:
    name = view.config.name
    place = station.place
    at = None
    if place.switch == name:
        at = (view.ports.hosts if place.fixed else view.ports.access).get(place.port)
        out = at
    else:
        out = view.ports.links.get(state.ways.get(place.switch, {}).get(name, ""))
    mode = state.config.mode
    freeze = state.freezes.get(station.mac)
    frozen = mode in ("zwa", "zwa-adaptive") and not (freeze and freeze.allowed is False)
    # Copies are for replay alone; the published scheme keeps only what comes while it is away.
    kept = not place.fixed and (mode == "replay" or (frozen and not station.here))
    return Way(station.mac, station.slot, out, at, not station.here, kept, place.fixed)


def _number(state: State, place: Place) -> int | None:
    view = state.views.get(place.switch)
    port = view.by_name.get(place.port) if view else None
    return port.number if port else None


def report(state: State, now: float) -> dict[str, object]:
    """What people are told, ready for JSON."""
    return {
        "mode": state.config.mode,
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
