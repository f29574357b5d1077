"""What the policy of a bridge is: a pure function of state, event and time.

Both modes share how ports, neighbours and paths are followed; what differs is the program they
want.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from ropewalk._native import Watch
from ropewalk.sdn import resolution
from ropewalk.sdn.config import Config, Way
from ropewalk.sdn.openflow.events import Port
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    IN_PORT,
    Flow,
    Message,
    Move,
    Output,
    PacketOut,
    Program,
    Resubmit,
    SetField,
    Value,
    match,
)
from ropewalk.sdn.paths import neighbours
from ropewalk.sdn.paths.neighbours import Key, Neighbour, Neighbours

TICK_S = 0.05
"""Time between ticks."""
GRACE_S = 3.0
"""After the switch has connected: how long neighbours and paths may take to be known before the
program is changed without them."""
NUMBER_MAX = 0xFFFF
"""Of a probe; larger ones never left."""
VIRTUAL_MAC = "02:72:6f:70:65:01"
"""Of the gateway that the application's host sees; locally administered."""
RESOLUTION_BYTES = 128
"""Of a question or answer, for the controller: with all that is read of it."""
PRIORITY_RESOLUTION = 900
PRIORITY_PROBE = 850
ANSWER = 20
"""Table in which answers of neighbour discovery get their option."""

S = TypeVar("S")


@dataclass(frozen=True)
class Common:
    """What is known of the bridge."""

    config: Config
    connected_s: float | None = None
    settled: bool = False
    """Whether the whole program has been installed since the switch connected."""
    installed: Program = field(default_factory=Program)
    ports: Mapping[str, Port] = field(default_factory=dict)
    neighbours: Neighbours = field(default_factory=Neighbours)
    paths: Mapping[Key, Watch] = field(default_factory=dict)
    carrying: frozenset[Key] = frozenset()
    """The ways that the installed program uses."""


class Policy(Protocol[S]):
    """Decides; see the module."""

    def begin(self, config: Config) -> S:
        """The state before anything happened."""

    def step(self, state: S, event: object, now: float) -> tuple[S, list[Message]]:
        """The next state, and what to send; `now` in seconds of a clock that never goes back."""

    def report(self, state: S, now: float) -> dict[str, object]:
        """What people are told, ready for JSON."""


def begin(config: Config) -> Common:
    """Nothing is known yet."""
    return Common(config)


def connected(state: Common, ports: tuple[Port, ...], present: Program, now: float) -> Common:
    """The switch is there."""
    probe = state.config.probe
    paths = {
        way.key: state.paths.get(way.key) or Watch(probe.interval_s, probe.down_after_s)
        for way in state.config.ways
    }
    state = replace(
        state,
        connected_s=now,
        settled=False,
        installed=present,
        ports={port.name: port for port in ports},
        paths=paths if probe.interval_s else {},
        neighbours=neighbours.doubted(state.neighbours, *(port.name for port in ports)),
    )
    return follow_neighbours(state)


def disconnected(state: Common) -> Common:
    """The switch is gone; what it has stays."""
    return replace(state, connected_s=None, settled=False)


def port_changed(state: Common, port: Port, gone: bool, now: float) -> Common:
    """A port came, changed or went."""
    ports = {**state.ports}
    if gone:
        ports.pop(port.name, None)
    else:
        ports[port.name] = port
    known = neighbours.doubted(state.neighbours, port.name)
    return follow_neighbours(replace(state, ports=ports, neighbours=known))


def follow_neighbours(state: Common) -> Common:
    """Asks for the neighbours at every port that is there."""
    known = state.neighbours
    application = state.config.application
    port = state.ports.get(application.port)
    if port:
        for host in application.hosts:
            neighbour = Neighbour(port.number, VIRTUAL_MAC, host.far, host.ip, router=True)
            known = neighbours.wanted(known, (application.port, host.family.version), neighbour)
    for way in state.config.ways:
        port = state.ports.get(way.uplink)
        if port:
            neighbour = Neighbour(port.number, port.mac, way.ip, way.gateway)
            known = neighbours.wanted(known, way.key, neighbour)
    return replace(state, neighbours=known)


def usable(state: Common, version: int) -> list[Way]:
    """The ways of an address family that carry traffic now, in the configuration's order."""
    return [
        way for way in state.config.ways if way.family.version == version and _usable(state, way)
    ]


def installed(state: Common, program: Program, now_settled: bool) -> Common:
    """The switch has a program now; `now_settled` when it is a whole one."""
    state = replace(state, settled=now_settled, installed=program)
    if not now_settled:
        return state
    return replace(
        state, carrying=frozenset(way.key for way in state.config.ways if _usable(state, way))
    )


def _usable(state: Common, way: Way) -> bool:
    port = state.ports.get(way.uplink)
    path = state.paths.get(way.key)
    return (
        port is not None
        and port.live
        and state.neighbours.mac(way.key) is not None
        and (path is None or path.usable)
    )


def ready(state: Common, now: float) -> bool:
    """Whether enough is known to change what the switch has."""
    if state.connected_s is None:
        return False
    if now - state.connected_s >= GRACE_S:
        return True
    application = state.config.application
    keys = [(application.port, host.family.version) for host in application.hosts]
    keys += [way.key for way in state.config.ways]
    return all(state.neighbours.mac(key) for key in keys) and all(
        path.known for path in state.paths.values()
    )


def base_flows(state: Common) -> set[Flow]:
    """Questions for the bridge's addresses are answered in the switch, answers are learned."""
    flows: set[Flow] = set()
    for (name, version), neighbour in state.neighbours.by_key.items():
        if name in state.ports:
            flows |= (_arp_flows if version == 4 else _discovery_flows)(neighbour)
    return flows


_LEARN = (Output(CONTROLLER, RESOLUTION_BYTES),)


def _arp_flows(neighbour: Neighbour) -> set[Flow]:
    arp: dict[str, Value] = {
        "in_port": neighbour.port,
        "eth_type": 0x0806,
        "arp_tpa": neighbour.own,
    }
    answer = (
        Move("eth_src", "eth_dst", 48),
        SetField("eth_src", neighbour.own_mac),
        SetField("arp_op", resolution.ARP_REPLY),
        Move("arp_sha", "arp_tha", 48),
        SetField("arp_sha", neighbour.own_mac),
        Move("arp_spa", "arp_tpa", 32),
        SetField("arp_spa", neighbour.own),
        Output(IN_PORT),
    )
    question = match(**arp, arp_op=resolution.ARP_REQUEST)
    reply = match(**arp, arp_op=resolution.ARP_REPLY)
    return {
        Flow(0, PRIORITY_RESOLUTION, question, answer),
        Flow(0, PRIORITY_RESOLUTION, reply, _LEARN),
    }


def _discovery_flows(neighbour: Neighbour) -> set[Flow]:
    """The question's own option becomes the answer's; where there is none the controller answers.

    The answer's option can only be written where the packet is an answer already: table ANSWER.
    """
    message: dict[str, Value] = {"in_port": neighbour.port, "eth_type": 0x86DD, "ip_proto": 58}
    asked: dict[str, Value] = {**message, "ipv6_nd_target": neighbour.own}
    flags = resolution.SOLICITED | resolution.OVERRIDE
    if neighbour.router:
        flags |= resolution.ROUTER
    turned = (
        Move("eth_src", "eth_dst", 48),
        SetField("eth_src", neighbour.own_mac),
        Move("ipv6_src", "ipv6_dst", 128),
        SetField("ipv6_src", neighbour.own),
        SetField("nd_options_type", resolution.TARGET_OPTION),
        SetField("nd_reserved", flags),
        SetField("icmpv6_type", resolution.ADVERTISEMENT),
        Resubmit(ANSWER),
    )
    completed = (SetField("ipv6_nd_tll", neighbour.own_mac), Output(IN_PORT))
    question = match(**asked, icmpv6_type=resolution.SOLICITATION)
    bare = match(**asked, icmpv6_type=resolution.SOLICITATION, ipv6_nd_sll="00:00:00:00:00:00")
    answer = match(**asked, icmpv6_type=resolution.ADVERTISEMENT)
    reply = match(**message, icmpv6_type=resolution.ADVERTISEMENT, ipv6_dst=neighbour.own)
    return {
        Flow(0, PRIORITY_RESOLUTION, question, turned),
        Flow(0, PRIORITY_RESOLUTION + 1, bare, _LEARN),
        Flow(0, PRIORITY_RESOLUTION, reply, _LEARN),
        Flow(ANSWER, PRIORITY_RESOLUTION, answer, completed),
    }


def passed(state: Common, now: float) -> tuple[Common, list[Message]]:
    """Time has passed: late probes are lost, neighbours are asked for again."""
    if state.connected_s is None:
        return state, []
    paths = {name: path.passed(now) for name, path in state.paths.items()}
    known, messages = neighbours.asked(state.neighbours, now)
    return replace(state, paths=paths, neighbours=known), messages


def due_probes(state: Common, now: float) -> tuple[Common, list[tuple[Way, Port, str, int]]]:
    """The probes that leave now: way, its port, the next hop's address, the probe's number."""
    due = []
    paths = dict(state.paths)
    if state.connected_s is None:
        return state, []
    for way in state.config.ways:
        path = paths.get(way.key)
        port = state.ports.get(way.uplink)
        mac = state.neighbours.mac(way.key)
        # Ticks are not exact: half a tick early is on time.
        if path is None or port is None or mac is None or not path.is_due(now + TICK_S / 2):
            continue
        paths[way.key], number = path.sent(now)
        due.append((way, port, mac, number))
    return replace(state, paths=paths), due


def resolved(
    state: Common, port: int, data: bytes, now: float
) -> tuple[Common, list[Message]] | None:
    """What a question or answer of address resolution does; None for all other packets."""
    message = resolution.parse(data)
    if message is None:
        return None
    if isinstance(message, resolution.Answer):
        known = neighbours.learned(state.neighbours, port, message, now)
        return replace(state, neighbours=known), []
    for neighbour in state.neighbours.by_key.values():
        if neighbour.port == port and neighbour.own == message.target:
            frame = resolution.answer(
                neighbour.own_mac, neighbour.own, message, router=neighbour.router
            )
            return state, [packet_out(frame, port)]
    return state, []


def answered(
    state: Common, port: int, source: str, number: int, now: float
) -> tuple[Common, tuple[Way, float] | None]:
    """A probe came back over a port from the peer that was probed.

    Also the way and the round trip, seconds, where the answer tells one.
    """
    way = way_of(state, port, source)
    path = state.paths.get(way.key) if way else None
    if way is None or path is None or number > NUMBER_MAX:
        return state, None
    path, rtt_s = path.answered(number, now)
    state = replace(state, paths={**state.paths, way.key: path})
    return state, None if rtt_s is None else (way, rtt_s)


def way_of(state: Common, port: int, source: str) -> Way | None:
    """The way over which a packet of its peer came."""
    for way in state.config.ways:
        at = state.ports.get(way.uplink)
        if at is not None and at.number == port and way.peer == source:
            return way
    return None


def heard(state: Common, way: Way, now: float) -> Common:
    """Something came back over a way, though no answer to what liveness asks."""
    path = state.paths.get(way.key)
    if path is None:
        return state
    return replace(state, paths={**state.paths, way.key: path.heard(now)})


def packet_out(data: bytes, port: int) -> PacketOut:
    """Sends a frame out of a port."""
    return PacketOut(data, (Output(port),))


def report(state: Common, now: float) -> dict[str, object]:
    """Ports, neighbours and paths, for people: a row for each way."""
    rows = []
    for way in state.config.ways:
        path = state.paths.get(way.key)
        port = state.ports.get(way.uplink)
        rows.append(
            {
                "name": way.uplink,
                "family": way.family.name,
                "address": way.ip,
                "usable": way.key in state.carrying,
                "port_live": bool(port and port.live),
                "gateway_mac": state.neighbours.mac(way.key),
                "probes_alive": path.usable if path else None,
                "rtt_ms": None if not path or path.rtt_s is None else round(path.rtt_s * 1e3, 3),
                "loss": None if not path or path.loss is None else round(path.loss, 4),
            }
        )
    application = state.config.application
    macs = (
        state.neighbours.mac((application.port, host.family.version)) for host in application.hosts
    )
    return {
        "mode": state.config.mode,
        "bridge": state.config.bridge.name,
        "connected": state.connected_s is not None,
        "settled": state.settled,
        "application_mac": next((mac for mac in macs if mac), None),
        "flows": len(state.installed.flows),
        "groups": len(state.installed.groups),
        "uplinks": rows,
    }
