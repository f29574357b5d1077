"""The flows and groups of `bicast`.

Table 0 classifies, table 1 decides what is copied, table 2 what is small enough. Group 1 is of
type ALL: one slot for each copy. A slot is a fast-failover group: its own path first, then the
spares, so that the switch leaves a dead port without asking. Group 2 is for what is sent once.
IPv6 has flows and groups of its own: addresses are rewritten within a family.
"""

from __future__ import annotations

from ropewalk.sdn import policy
from ropewalk.sdn.config import Chosen, Host, Way
from ropewalk.sdn.family import Family
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
IPV6_GROUPS = 50
"""Added to the numbers of groups for IPv6."""
PROBE_BYTES = 128
_ICMP = 1
_UDP = 17
_PRIORITY_TRAFFIC = 500
_ETHERNET_BYTES = 14


def build(state: Common, copying: bool) -> Program:
    """The whole program for what is known; without a usable path or host only what can be."""
    flows = policy.base_flows(state) | probe_flows(state)
    groups: set[Group] = set()
    application = state.config.application
    port = state.ports.get(application.port)
    bicast = state.config.bicast
    assert bicast is not None, "the configuration is of this mode"
    for host in application.hosts:
        if port is None:
            break
        family = host.family
        mac = state.neighbours.mac((application.port, family.version))
        if mac is not None:
            flows |= _arriving(state, host, port.number, mac)
        paths = policy.usable(state, family.version)
        if not paths:
            continue
        copies = min(bicast.copies, len(paths)) if copying else 1
        fields: dict[str, Value] = {"in_port": port.number, "eth_type": family.ethernet}
        fields |= {family.source: host.ip, family.target: host.far}
        flows.add(Flow(0, _PRIORITY_TRAFFIC, match(**fields), (Resubmit(1),)))
        flows |= _deciding(family, bicast.chosen, bicast.packet_bytes_max, copies)
        groups |= set(_groups(state, family, paths, copies))
    return Program(frozenset(flows), frozenset(groups))


def probe_flows(state: Common) -> set[Flow]:
    """Probes of the far end are sent back by the switch; what comes back goes to the controller."""
    flows: set[Flow] = set()
    number = state.config.probe.port
    for way in state.config.ways:
        port = state.ports.get(way.uplink)
        if port is None:
            continue
        fields = {**_from_peer(way, port.number), "ip_proto": _UDP}
        back: tuple[Action, ...] = (
            Move("eth_src", "eth_dst", 48),
            SetField("eth_src", port.mac),
            SetField(way.family.source, way.ip),
            SetField(way.family.target, way.peer),
            SetField("udp_src", number),
            SetField("udp_dst", number + 1),
            Output(IN_PORT),
        )
        flows.add(Flow(0, policy.PRIORITY_PROBE, match(**fields, udp_dst=number), back))
        told = (Output(CONTROLLER, PROBE_BYTES),)
        flows.add(Flow(0, policy.PRIORITY_PROBE, match(**fields, udp_dst=number + 1), told))
    return flows


def _arriving(state: Common, host: Host, application_port: int, mac: str) -> set[Flow]:
    """The inverse rewriting: what comes over any path looks as if it came from the far host."""
    flows = set()
    for way in state.config.ways:
        port = state.ports.get(way.uplink)
        if port is None or way.family != host.family:
            continue
        actions: tuple[Action, ...] = (
            # The removal of copies reads from it which path this one took.
            SetField("eth_src", path_mac(state.config.number_of(way.uplink))),
            SetField("eth_dst", mac),
            SetField(way.family.source, host.far),
            SetField(way.family.target, host.ip),
            Output(application_port),
        )
        arriving = match(**_from_peer(way, port.number))
        flows.add(Flow(0, _PRIORITY_TRAFFIC, arriving, actions))
    return flows


def path_mac(number: int) -> str:
    """The source address, towards the application, of what came over a path."""
    return f"02:72:6f:70:66:{number:02x}"


def _from_peer(way: Way, port: int) -> dict[str, Value]:
    fields: dict[str, Value] = {"in_port": port, "eth_type": way.family.ethernet}
    return {**fields, way.family.source: way.peer, way.family.target: way.ip}


def _deciding(family: Family, chosen: tuple[Chosen, ...], bytes_max: int, copies: int) -> set[Flow]:
    base = _numbers_from(family)
    any_packet: dict[str, Value] = {"eth_type": family.ethernet}
    once = (ToGroup(base + ONCE),)
    if copies < 2:
        return {Flow(1, 0, match(**any_packet), once)}
    copied: tuple[Action, ...] = (ToGroup(base + COPIES),)
    flows: set[Flow] = set()
    if bytes_max:
        copied = (CheckLarger(bytes_max + _ETHERNET_BYTES), Resubmit(2))
        flows.add(Flow(2, 1, match(**any_packet, reg0=(0, 1)), (ToGroup(base + COPIES),)))
        flows.add(Flow(2, 0, match(**any_packet), once))
    flows.add(Flow(1, 0, match(**any_packet), once if chosen else copied))
    for rule in chosen:
        for fields in _matches(family, rule):
            flows.add(Flow(1, 1, match(**any_packet, **fields), copied))
    return flows


def _matches(family: Family, rule: Chosen) -> list[dict[str, int]]:
    fields = {"ip_proto": family.icmp if rule.protocol == _ICMP else rule.protocol}
    if rule.port is None:
        return [fields]
    name = "udp" if rule.protocol == _UDP else "tcp"
    return [{**fields, f"{name}_{end}": rule.port} for end in ("src", "dst")]


def _numbers_from(family: Family) -> int:
    return IPV6_GROUPS if family.version == 6 else 0


def _groups(state: Common, family: Family, paths: list[Way], copies: int) -> list[Group]:
    base = _numbers_from(family)
    firsts, spares = paths[:copies], paths[copies:]
    groups = [Group(base + ONCE, "ff", tuple(_bucket(state, path) for path in paths))]
    if copies < 2:
        return groups
    for number, first in enumerate(firsts):
        # Slots begin at different spares, so that two that fail at once do not meet on one.
        turn = number % len(spares) if spares else 0
        order = [first, *spares[turn:], *spares[:turn]]
        buckets = tuple(_bucket(state, path) for path in order)
        groups.append(Group(base + SLOT + number, "ff", buckets))
    slots = tuple(Bucket((ToGroup(base + SLOT + number),)) for number in range(copies))
    return [*groups, Group(base + COPIES, "all", slots)]


def _bucket(state: Common, way: Way) -> Bucket:
    port = state.ports[way.uplink]
    mac = state.neighbours.mac(way.key)
    assert mac is not None, "a usable way has a neighbour"
    actions: tuple[Action, ...] = (
        SetField("eth_src", port.mac),
        SetField("eth_dst", mac),
        SetField(way.family.source, way.ip),
        SetField(way.family.target, way.peer),
        Output(port.number),
    )
    return Bucket(actions, watch_port=port.number)
