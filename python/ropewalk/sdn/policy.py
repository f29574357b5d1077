"""What a policy is: a pure function of state, event and time.

Both modes share how ports, neighbours and paths are followed; what differs is the program they
want.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from ropewalk.sdn import packets
from ropewalk.sdn.config import Config, Uplink
from ropewalk.sdn.events import Port
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    IN_PORT,
    Flow,
    Message,
    Move,
    Output,
    PacketOut,
    Program,
    SetField,
    match,
)
from ropewalk.sdn.paths import liveness, neighbours
from ropewalk.sdn.paths.liveness import Path
from ropewalk.sdn.paths.neighbours import Neighbour, Neighbours

TICK_S = 0.05
"""Time between ticks."""
GRACE_S = 3.0
"""After the switch has connected: how long neighbours and paths may take to be known before the
program is changed without them."""
VIRTUAL_MAC = "02:72:6f:70:65:01"
"""Of the gateway that the application's host sees; locally administered."""
ARP_BYTES = 64
PRIORITY_ARP = 900
PRIORITY_PROBE = 850

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
    paths: Mapping[str, Path] = field(default_factory=dict)


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
    paths = {
        uplink.name: state.paths.get(uplink.name) or Path(state.config.probe.down_after_s)
        for uplink in state.config.uplinks
    }
    state = replace(
        state,
        connected_s=now,
        settled=False,
        installed=present,
        ports={port.name: port for port in ports},
        paths=paths if state.config.probe.interval_s else {},
        neighbours=neighbours.doubted(state.neighbours, *state.neighbours.by_name),
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
    """Asks for the neighbour of every port that is there."""
    known = state.neighbours
    application = state.config.application
    port = state.ports.get(application.port)
    if port:
        neighbour = Neighbour(port.number, VIRTUAL_MAC, application.far, application.ip)
        known = neighbours.wanted(known, application.port, neighbour)
    for uplink in state.config.uplinks:
        port = state.ports.get(uplink.name)
        if port:
            neighbour = Neighbour(port.number, port.mac, uplink.ip, uplink.gateway)
            known = neighbours.wanted(known, uplink.name, neighbour)
    return replace(state, neighbours=known)


def usable(state: Common) -> list[Uplink]:
    """The uplinks that carry traffic now, in the configuration's order."""
    return [uplink for uplink in state.config.uplinks if _usable(state, uplink)]


def _usable(state: Common, uplink: Uplink) -> bool:
    port = state.ports.get(uplink.name)
    path = state.paths.get(uplink.name)
    return (
        port is not None
        and port.live
        and state.neighbours.mac(uplink.name) is not None
        and (path is None or path.alive)
    )


def ready(state: Common, now: float) -> bool:
    """Whether enough is known to change what the switch has."""
    if state.connected_s is None:
        return False
    if now - state.connected_s >= GRACE_S:
        return True
    names = [state.config.application.port, *(uplink.name for uplink in state.config.uplinks)]
    return all(state.neighbours.mac(name) for name in names) and all(
        path.known for path in state.paths.values()
    )


def base_flows(state: Common) -> set[Flow]:
    """ARP: questions for the bridge's addresses are answered in the switch, answers are learned."""
    flows = set()
    for name, neighbour in state.neighbours.by_name.items():
        if name not in state.ports:
            continue
        arp = {"in_port": neighbour.port, "eth_type": 0x0806}
        answer = (
            Move("eth_src", "eth_dst", 48),
            SetField("eth_src", neighbour.own_mac),
            SetField("arp_op", packets.ARP_REPLY),
            Move("arp_sha", "arp_tha", 48),
            SetField("arp_sha", neighbour.own_mac),
            Move("arp_spa", "arp_tpa", 32),
            SetField("arp_spa", neighbour.own),
            Output(IN_PORT),
        )
        question = match(**arp, arp_op=packets.ARP_REQUEST, arp_tpa=neighbour.own)
        reply = match(**arp, arp_op=packets.ARP_REPLY, arp_tpa=neighbour.own)
        flows.add(Flow(0, PRIORITY_ARP, question, answer))
        flows.add(Flow(0, PRIORITY_ARP, reply, (Output(CONTROLLER, ARP_BYTES),)))
    return flows


def passed(state: Common, now: float) -> tuple[Common, list[Message]]:
    """Time has passed: late probes are lost, ARP is asked again."""
    if state.connected_s is None:
        return state, []
    paths = {name: liveness.passed(path, now) for name, path in state.paths.items()}
    known, messages = neighbours.asked(state.neighbours, now)
    return replace(state, paths=paths, neighbours=known), messages


def due_probes(state: Common, now: float) -> tuple[Common, list[tuple[Uplink, Port, str, int]]]:
    """The probes that leave now: uplink, its port, the next hop's address, the probe's number."""
    due = []
    paths = dict(state.paths)
    if state.connected_s is None:
        return state, []
    for uplink in state.config.uplinks:
        path = paths.get(uplink.name)
        port = state.ports.get(uplink.name)
        mac = state.neighbours.mac(uplink.name)
        # Ticks are not exact: half a tick early is on time.
        early = state.config.probe.interval_s - TICK_S / 2
        if path is None or port is None or mac is None or now - path.sent_s < early:
            continue
        paths[uplink.name], number = liveness.probed(path, now)
        due.append((uplink, port, mac, number))
    return replace(state, paths=paths), due


def arp_in(state: Common, port: int, arp: packets.Arp, now: float) -> Common:
    """Learns from an ARP packet."""
    return replace(state, neighbours=neighbours.learned(state.neighbours, port, arp, now))


def answered(state: Common, name: str, number: int, now: float) -> Common:
    """A probe of a path came back."""
    path = state.paths.get(name)
    if path is None:
        return state
    return replace(state, paths={**state.paths, name: liveness.answered(path, number, now)})


def uplink_at(state: Common, number: int) -> Uplink | None:
    """The uplink at a port."""
    for uplink in state.config.uplinks:
        port = state.ports.get(uplink.name)
        if port is not None and port.number == number:
            return uplink
    return None


def packet_out(data: bytes, port: int) -> PacketOut:
    """Sends a frame out of a port."""
    return PacketOut(data, (Output(port),))


def report(state: Common, now: float) -> dict[str, object]:
    """Ports, neighbours and paths, for people."""
    chosen = {uplink.name for uplink in usable(state)}
    uplinks = []
    for uplink in state.config.uplinks:
        path = state.paths.get(uplink.name)
        port = state.ports.get(uplink.name)
        uplinks.append(
            {
                "name": uplink.name,
                "address": uplink.ip,
                "usable": uplink.name in chosen,
                "port_live": bool(port and port.live),
                "gateway_mac": state.neighbours.mac(uplink.name),
                "probes_alive": path.alive if path else None,
                "rtt_ms": None if not path or path.rtt_s is None else round(path.rtt_s * 1e3, 3),
                "loss": None if not path or path.loss is None else round(path.loss, 4),
            }
        )
    return {
        "mode": state.config.mode,
        "bridge": state.config.bridge.name,
        "connected": state.connected_s is not None,
        "settled": state.settled,
        "application_mac": state.neighbours.mac(state.config.application.port),
        "flows": len(state.installed.flows),
        "groups": len(state.installed.groups),
        "uplinks": uplinks,
    }
