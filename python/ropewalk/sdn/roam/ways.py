"""Which flows every switch has: ways to stations, and what each gets when it connects."""

from __future__ import annotations

from collections.abc import Iterable

from ropewalk.sdn.contract import Out
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import Flow, FlowMod, Message, Meter, Program, difference
from ropewalk.sdn.roam import program, stations, topology
from ropewalk.sdn.roam.program import Ports, Way
from ropewalk.sdn.roam.state import Heard, State, View
from ropewalk.sdn.roam.stations import Place, Station


def connected(
    state: State, name: str, ports: tuple[events.Port, ...], present: Program, now: float
) -> list[Out]:
    """A switch has connected: what it lacks, and who is at it."""
    config = state.config.switch(name)
    if config is None:
        return []
    view = state.views[name] = View(config, {port.name: port for port in ports}, now)
    follow(state)
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
    return [(name, message) for message in messages] + rerouted(state)


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
            # Where frames say nothing, access points have said so to the one before.
            told = not fixed and not state.config.frames
            state.table = stations.joined(state.table, mac, place, now, told, maximum)
            if mac in state.table.by_mac and not fixed and not told:
                state.heard[mac] = Heard(now, again=True)


def mended(state: State, name: str, present: Program) -> list[Out]:
    """What differs from what a switch should have."""
    view = state.views.get(name)
    if view is None:
        return []
    messages = difference(present, _wanted(view))
    state.counters["mended"] += len(messages)
    return [(name, _telling(message)) for message in messages]


def _wanted(view: View) -> Program:
    return Program(view.base.union(*view.flows.values()))


def _metered(flow: Flow) -> bool:
    return any(isinstance(action, Meter) for action in flow.actions)


def follow(state: State) -> None:
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


def rerouted(state: State) -> list[Out]:
    """What gives every switch its flows again after ways have changed."""
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
    return out + installed(state, state.table.by_mac.values())


def installed(state: State, moved: Iterable[Station], first: str = "") -> list[Out]:
    """What gives every switch the flows of some stations; the switch `first` comes first."""
    out: list[Out] = []
    moved = list(moved)
    for name in sorted(state.views, key=lambda name: name != first):
        view = state.views[name]
        for station in moved:
            if station.slot not in view.metered:
                view.metered.add(station.slot)
                out.append((name, program.station_meter(station.slot, state.config.bounds)))
                if state.config.scheme == "zwa-adaptive":
                    out.append((name, program.count_meter(station.slot)))
            flows = program.station(view.ports, _way(state, view, station))
            turn = program.turn(view.flows.get(station.mac, frozenset()))
            out += _replaced(state, name, station.mac, program.turned(flows, turn))
    return out


def recounted(state: State, station: Station) -> list[Out]:
    """What makes a station's switch tell what it has counted of it, and count anew."""
    name = station.place.switch
    flows = state.views[name].flows.get(station.mac) if name in state.views else None
    if flows is None:
        return []
    return _replaced(state, name, station.mac, program.turned(flows, 1 - program.turn(flows)))


def _replaced(state: State, name: str, mac: str, flows: frozenset[Flow]) -> list[Out]:
    """What gives a switch a station's flows."""
    view = state.views[name]
    former = view.flows.get(mac, frozenset())
    view.flows[mac] = flows
    messages = difference(Program(former), Program(flows))
    return [(name, _telling(message)) for message in messages]


def _telling(message: Message) -> Message:
    """Asks for the counters of flows that count a station's frames."""
    if not isinstance(message, FlowMod):
        return message
    return FlowMod(message.flow, message.remove, tell=program.counts(message.flow))


def _way(state: State, view: View, station: Station) -> Way:
    name = view.config.name
    place = station.place
    at = None
    if place.switch == name:
        at = (view.ports.hosts if place.fixed else view.ports.access).get(place.port)
        out = at
    else:
        out = view.ports.links.get(state.ways.get(place.switch, {}).get(name, ""))
    scheme = state.config.scheme
    freeze = state.freezes.get(station.mac)
    frozen = scheme in ("zwa", "zwa-adaptive") and not (freeze and freeze.allowed is False)
    # Copies are for replay alone; the published scheme keeps only what comes while it is away.
    kept = not place.fixed and (scheme == "replay" or (frozen and not station.here))
    counted = scheme == "zwa-adaptive" and not place.fixed
    return Way(station.mac, station.slot, out, at, not station.here, kept, place.fixed, counted)
