"""Decides where stations are, which flows that means, and what is kept and sent again.

Decisions take the state, one event and the time and give the next state and messages; nothing
here opens a socket or reads a clock. `step` copies what an event may change; the functions that it
calls change that copy. Where stations are is decided in `whereabouts`, who is forgotten in
`silence`, which flows that means in `ways`, what is kept and sent again in `keeping`.

Modes: `replay` copies what goes to a station until the station acknowledges it, keeps what comes
while it is away, and sends all of that in order when it is back, at the pace of its
acknowledgements; nothing is acknowledged in its name. `zwa` follows Singh et al., Algorithms 1 and
2: what comes while the station is away is kept and acknowledged with a zero window, and sent once
when it is back. Unlike Algorithm 2 it answers repeated segments and probes, too. `zwa-adaptive` is
the paper's whole scheme: `zwa` only where a comparison of counted bytes (section 2.2) shows that
nothing was sent to the station between its leaving and the removal of its flow. A meter counts
here, because counters of flows are late on Open vSwitch. `bare` changes routes only.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.sdn.contract import Out, Urgency
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import At
from ropewalk.sdn.openflow.program import Program, difference
from ropewalk.sdn.roam import frames, keeping, program, silence, ways, whereabouts
from ropewalk.sdn.roam.buffers import Buffers
from ropewalk.sdn.roam.config import Config
from ropewalk.sdn.roam.events import Event, Notice, Own, Release
from ropewalk.sdn.roam.state import State, report
from ropewalk.sdn.roam.stations import Place

RELEASE_S = 0.05
"""A controller that is behind sends what was kept after so long, read or not."""
FORGET_S = 600.0
"""A station that has been away so long is forgotten; one that is here after `silence.SILENT_S`."""
UNKNOWN_S = 30.0
"""After a switch has connected: how long it keeps ways to stations not known yet."""


TICK_S = 0.05
CONTROL_MAX = 4096
NEW_MAX = 512
COPIES_MAX = 8192
"""Events that wait, by their urgency: where stations are, packets of new senders, copies."""


class Roam:
    """The policy, as `service` runs it.

    What changes where stations are goes before new senders, and those before copies: a flood of
    packets delays no handover.
    """

    tick_s = TICK_S

    def __init__(self, config: Config) -> None:
        self._config = config

    def begin(self) -> State:
        """Nothing is known yet."""
        return begin(self._config)

    def step(self, state: State, event: Event, now: float) -> tuple[State, list[Out]]:
        """The next state, and what to send."""
        return step(state, event, now)

    def asked(self, state: State) -> Sequence[Own]:
        """Stations that are to get what was kept, behind the packets that wait already."""
        return [Release(mac) for mac in state.asked]

    def urgency(self, event: Event) -> Urgency:
        """Where an event waits."""
        match event:
            case events.Tick():
                return Urgency(0, 1)
            case At(_, events.PacketIn(table=program.CLASSIFY)):
                return Urgency(2, NEW_MAX)
            case At(_, events.PacketIn()):
                return Urgency(3, COPIES_MAX)
            case Release():
                # Behind the copies, whose acknowledgements say what need not be sent.
                return Urgency(3, COPIES_MAX + 1)
            case _:
                return Urgency(1, CONTROL_MAX, waits=True)

    def report(self, state: State, now: float) -> dict[str, object]:
        """What people are told."""
        return report(state, now)


def begin(config: Config) -> State:
    """Nothing is known yet."""
    return State(config, Buffers(config.bounds))


def step(state: State, event: Event, now: float) -> tuple[State, list[Out]]:
    """The next state, and what to send; `now` in seconds of a clock that never goes back.

    `state` stays as it is, but for its buffers.
    """
    if state.asked:
        state = state.shallow()
        state.asked = ()
    match event:
        case At(name, events.PacketIn() as packet):
            return _packet(state, name, packet, now)
        case At(name, inner):
            return _at(state, name, inner, now)
        case Notice():
            after = state.next()
            return after, _noticed(after, event, now)
        case Release(mac):
            after = state.shallow()
            after.due = {**state.due}
            return after, keeping.released(after, mac, now)
        case events.Tick():
            return _passed(state, now)


def _at(state: State, name: str, event: events.Event, now: float) -> tuple[State, list[Out]]:
    """What a switch says besides packets."""
    if isinstance(event, events.Confirmed):
        return whereabouts.confirmed(state, name, event.number, now), []
    after = state.next()
    match event:
        case events.Connected(ports, present):
            return after, ways.connected(after, name, ports, present, now)
        case events.Disconnected():
            after.views.pop(name, None)
        case events.Present(present):
            return after, ways.mended(after, name, present)
        case events.PortChanged(port, gone):
            return after, _port_changed(after, name, port, gone, now)
        case events.FlowRemoved(table=program.CLASSIFY):
            return after, silence.counted(after, name, event, now)
        case events.MeterStatistics():
            return after, keeping.metered(after, name, event)
        case _:
            pass
    return after, []


def _noticed(state: State, notice: Notice, now: float) -> list[Out]:
    if not state.config.has_access(notice.switch, notice.port):
        state.counters["notices_elsewhere"] += 1
        return []
    if notice.joined:
        place = Place(notice.switch, notice.port)
        return whereabouts.join(state, notice.mac, place, now, told=True)
    return whereabouts.leave(state, notice.mac, notice.switch, notice.port, now, notice.bytes)


def _packet(
    state: State, name: str, packet: events.PacketIn, now: float
) -> tuple[State, list[Out]]:
    """A packet: the next state is the former where nothing changes but the buffers."""
    view = state.views.get(name)
    found = frames.ends(packet.data)
    if view is None or found is None:
        return state.counted("packets_unread"), []
    source, target = found
    match packet.table:
        case program.COPY:
            return state, keeping.towards(state, name, target, packet.data, now, copy=True)
        case program.FORWARD:
            return state, keeping.towards(state, name, target, packet.data, now, copy=False)
        case program.ANSWER:
            segment = frames.parse(packet.data)
            if segment:
                state.buffers.acknowledged(source, segment, now)
            return state, keeping.went_on(state, source)
        case _:
            return whereabouts.seen(state, view, source, packet, now)


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
                out += whereabouts.leave(state, station.mac, name, port.name, now)
    before = {key: value.ports for key, value in state.views.items()}
    former = state.ways
    ways.follow(state)
    if state.ways != former or any(view.ports != before[key] for key, view in state.views.items()):
        out += ways.rerouted(state)
    return out


def _passed(state: State, now: float) -> tuple[State, list[Out]]:
    """Time has passed: the next state is the former where nothing is due."""
    state.buffers.passed(now)
    late = [mac for mac, since_s in state.due.items() if now - since_s > RELEASE_S]
    stations = state.table.by_mac
    away = [
        station
        for station in stations.values()
        if not station.here and now - station.since_s > FORGET_S
    ]
    unknown = [
        (name, mac)
        for name, view in state.views.items()
        if now - view.connected_s > UNKNOWN_S
        for mac in view.flows
        if mac not in stations
    ]
    undecided = keeping.undecided(state, now)
    out = [row for mac in state.buffers.stalled() for row in keeping.went_on(state, mac)]
    if not (late or away or unknown or undecided or silence.is_due(state, now)):
        return state, out
    after = state.next()
    for mac in late:
        out += keeping.released(after, mac, now)
    for station in away:
        out += silence.forget(after, station)
    out += silence.asked(after, now)
    out += keeping.asked(after, undecided)
    for name, mac in unknown:
        former = Program(after.views[name].flows.pop(mac))
        out += [(name, message) for message in difference(former, Program())]
    return after, out
