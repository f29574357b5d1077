"""The flows and groups of `bicast`.

Table 0 classifies, table 1 decides what is copied, table 2 what is small enough. Group 1 is of
type ALL: one slot for each copy. A slot is a fast-failover group: its own path first, then the
spares, so that the switch leaves a dead port without asking. Group 2 is for what is sent once.
"""

from __future__ import annotations

from ropewalk.sdn import policy
from ropewalk.sdn.config import Chosen, Uplink
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    IN_PORT,
    Action,
    Bucket,
    CheckLarger,
    Flow,
    Group,
    Move,
    Output,
    Program,
    Resubmit,
    SetField,
    ToGroup,
    Value,
    match,
)
from ropewalk.sdn.policy import Common

COPIES = 1
ONCE = 2
SLOT = 10
"""Number of the first slot's group."""
PROBE_BYTES = 128
_IP = 0x0800
_UDP = 17
_PRIORITY_TRAFFIC = 500
_ETHERNET_BYTES = 14


def build(state: Common, copying: bool) -> Program:
    """The whole program for what is known; without a usable path or host only what can be."""
    flows = policy.base_flows(state) | probe_flows(state)
    application = state.config.application
    port = state.ports.get(application.port)
    mac = state.neighbours.mac(application.port)
    if port is not None and mac is not None:
        flows |= _arriving(state, port.number, mac)
    paths = policy.usable(state)
    if port is None or not paths:
        return Program(frozenset(flows))
    bicast = state.config.bicast
    assert bicast is not None, "the configuration is of this mode"
    copies = min(bicast.copies, len(paths)) if copying else 1
    leaving = match(
        in_port=port.number, eth_type=_IP, ipv4_src=application.ip, ipv4_dst=application.far
    )
    flows.add(Flow(0, _PRIORITY_TRAFFIC, leaving, (Resubmit(1),)))
    flows |= _deciding(bicast.chosen, bicast.packet_bytes_max, copies)
    return Program(frozenset(flows), frozenset(_groups(state, paths, copies)))


def probe_flows(state: Common) -> set[Flow]:
    """Probes of the far end are sent back by the switch; what comes back goes to the controller."""
    flows: set[Flow] = set()
    number = state.config.probe.port
    for uplink in state.config.uplinks:
        port = state.ports.get(uplink.name)
        if port is None:
            continue
        fields: dict[str, Value] = {
            "in_port": port.number,
            "eth_type": _IP,
            "ip_proto": _UDP,
            "ipv4_src": uplink.peer,
            "ipv4_dst": uplink.ip,
        }
        back: tuple[Action, ...] = (
            Move("eth_src", "eth_dst", 48),
            SetField("eth_src", port.mac),
            SetField("ipv4_src", uplink.ip),
            SetField("ipv4_dst", uplink.peer),
            SetField("udp_src", number),
            SetField("udp_dst", number + 1),
            Output(IN_PORT),
        )
        flows.add(Flow(0, policy.PRIORITY_PROBE, match(**fields, udp_dst=number), back))
        told = (Output(CONTROLLER, PROBE_BYTES),)
        flows.add(Flow(0, policy.PRIORITY_PROBE, match(**fields, udp_dst=number + 1), told))
    return flows


def _arriving(state: Common, application_port: int, mac: str) -> set[Flow]:
    """The inverse rewriting: what comes over any path looks as if it came from the far host."""
    application = state.config.application
    flows = set()
    for uplink in state.config.uplinks:
        port = state.ports.get(uplink.name)
        if port is None:
            continue
        arriving = match(
            in_port=port.number, eth_type=_IP, ipv4_src=uplink.peer, ipv4_dst=uplink.ip
        )
        actions: tuple[Action, ...] = (
            SetField("eth_src", policy.VIRTUAL_MAC),
            SetField("eth_dst", mac),
            SetField("ipv4_src", application.far),
            SetField("ipv4_dst", application.ip),
            Output(application_port),
        )
        flows.add(Flow(0, _PRIORITY_TRAFFIC, arriving, actions))
    return flows


def _deciding(chosen: tuple[Chosen, ...], bytes_max: int, copies: int) -> set[Flow]:
    once = (ToGroup(ONCE),)
    flows = {Flow(1, 0, match(), once)}
    if copies < 2:
        return flows
    copied: tuple[Action, ...] = (ToGroup(COPIES),)
    if bytes_max:
        copied = (CheckLarger(bytes_max + _ETHERNET_BYTES), Resubmit(2))
        flows.add(Flow(2, 1, match(reg0=(0, 1)), (ToGroup(COPIES),)))
        flows.add(Flow(2, 0, match(), once))
    if not chosen:
        return (flows - {Flow(1, 0, match(), once)}) | {Flow(1, 0, match(), copied)}
    for rule in chosen:
        for fields in _matches(rule):
            flows.add(Flow(1, 1, match(**fields), copied))
    return flows


def _matches(rule: Chosen) -> list[dict[str, int]]:
    fields = {"eth_type": _IP, "ip_proto": rule.protocol}
    if rule.port is None:
        return [fields]
    name = "udp" if rule.protocol == _UDP else "tcp"
    return [{**fields, f"{name}_{end}": rule.port} for end in ("src", "dst")]


def _groups(state: Common, paths: list[Uplink], copies: int) -> list[Group]:
    firsts, spares = paths[:copies], paths[copies:]
    groups = [Group(ONCE, "ff", tuple(_bucket(state, path) for path in paths))]
    if copies < 2:
        return groups
    for number, first in enumerate(firsts):
        # Slots begin at different spares, so that two that fail at once do not meet on one.
        turn = number % len(spares) if spares else 0
        order = [first, *spares[turn:], *spares[:turn]]
        groups.append(Group(SLOT + number, "ff", tuple(_bucket(state, path) for path in order)))
    slots = tuple(Bucket((ToGroup(SLOT + number),)) for number in range(copies))
    return [*groups, Group(COPIES, "all", slots)]


def _bucket(state: Common, uplink: Uplink) -> Bucket:
    port = state.ports[uplink.name]
    mac = state.neighbours.mac(uplink.name)
    assert mac is not None, "a usable uplink has a neighbour"
    actions: tuple[Action, ...] = (
        SetField("eth_src", port.mac),
        SetField("eth_dst", mac),
        SetField("ipv4_src", uplink.ip),
        SetField("ipv4_dst", uplink.peer),
        Output(port.number),
    )
    return Bucket(actions, watch_port=port.number)
