"""The flows and groups of `balance`.

A flow's uplink, by its number, is the mark of its connection in one zone, the memory; its address
translation is in a zone of its uplink. So a flow moves to another uplink by a new mark, and what a
dead uplink translated needs no clearing.

Table 0 classifies. From the host: table 1 reads the mark; a new flow is decided by the controller,
or by the switch, whose hash is looked up in table 5; table 3 does what register 0 says, the
uplink's number. From an uplink: table 2 lets pass what belongs to a flow, table 4 gives it to the
host. Why not a group of type select: its hash leaves the ports of UDP away.
"""

from __future__ import annotations

from ropewalk._native import apportion
from ropewalk.sdn import policy
from ropewalk.sdn.config import KINDS, Config, Host, Way
from ropewalk.sdn.family import Family
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    Action,
    Bucket,
    DecrementTtl,
    Flow,
    Group,
    HashToSlot,
    Output,
    Program,
    Resubmit,
    SetField,
    ToGroup,
    Track,
    Value,
    match,
)
from ropewalk.sdn.policy import Common

FROM_HOST, FROM_UPLINK, TAKE, TO_HOST = 1, 2, 3, 4
_PRIORITY_NOT_ROUTED, _PRIORITY_TRAFFIC = 600, 500
CHOOSE = 5
SLOTS = 64
"""Parts in which the switch shares out new flows by itself."""
IPV6_GROUPS = 50
"""Added to the numbers of groups for IPv6."""
_NEW, _ESTABLISHED, _RELATED, _INVALID, _TRACKED = 0x01, 0x02, 0x04, 0x10, 0x20
_WHOLE = 0xFFFF
"""Bytes of a new flow's first packet for the controller: all, because it sends the packet on."""


def zones(config: Config) -> list[int]:
    """The zones in use: the memory, then one for each uplink."""
    assert config.balance is not None, "the configuration is of this mode"
    return [config.balance.zone + number for number in range(len(config.uplinks) + 1)]


def build(state: Common, weights: dict[str, float]) -> Program:
    """The whole program; `weights` are for the mode without the controller."""
    flows = policy.base_flows(state) | probe_flows(state)
    groups: set[Group] = set()
    application = state.config.application
    port = state.ports.get(application.port)
    for host in application.hosts:
        mac = state.neighbours.mac((application.port, host.family.version))
        if port is not None and mac is not None:
            flows |= _from_host(state, host, port.number)
            flows |= _returning(state.config, host.family, port.number, mac)
            chosen, alternatives = _select(state, host.family, weights)
            flows |= chosen
            groups |= alternatives
    return Program(frozenset(flows), frozenset(groups))


def probe_flows(state: Common) -> set[Flow]:
    """Arriving packets are looked up in the uplink's zone; answers to probes are shown as well."""
    flows = set()
    for way in state.config.ways:
        port = state.ports.get(way.uplink)
        if port is None:
            continue
        family = way.family
        fields: dict[str, Value] = {"in_port": port.number, "eth_type": family.ethernet}
        fields[family.target] = way.ip
        zone = zones(state.config)[state.config.number_of(way.uplink)]
        tracked = Track(zone, table=FROM_UPLINK, nat="")
        flows.add(Flow(0, _PRIORITY_TRAFFIC, match(**fields), (tracked,)))
        # The host may ping the same address: its answers go both ways.
        kind, number = family.echo_reply
        fields |= {"ip_proto": family.icmp, kind: number, family.source: way.peer}
        shown = (Output(CONTROLLER, 128), tracked)
        flows.add(Flow(0, policy.PRIORITY_PROBE, match(**fields), shown))
    return flows


def _from_host(state: Common, host: Host, port: int) -> set[Flow]:
    config, family = state.config, host.family
    fields: dict[str, Value] = {"in_port": port, "eth_type": family.ethernet}
    fields[family.source] = host.ip
    memory = zones(config)[0]
    flows = {Flow(0, _PRIORITY_TRAFFIC, match(**fields), (Track(memory, table=FROM_HOST),))}
    for address in family.not_routed:
        flows.add(Flow(0, _PRIORITY_NOT_ROUTED, match(**{**fields, family.target: address}), ()))
    alive = policy.usable(state, family.version)
    for way in config.ways:
        if way.family == family:
            flows |= _leaving(state, way, alive)
    return flows | _new(config, family, alive, {"ct_state": (_NEW | _TRACKED, _NEW | _TRACKED)}, 10)


def _returning(config: Config, family: Family, port: int, mac: str) -> set[Flow]:
    back: tuple[Action, ...] = (
        SetField("eth_src", policy.VIRTUAL_MAC),
        SetField("eth_dst", mac),
        DecrementTtl(),
        Output(port),
    )
    refused = _NEW | _INVALID
    memory = zones(config)[0]
    kind = family.ethernet
    return {
        Flow(
            FROM_UPLINK,
            10,
            match(ct_state=(_TRACKED | state, _TRACKED | state | refused), eth_type=kind),
            (Track(memory, table=TO_HOST),),
        )
        for state in (_ESTABLISHED, _RELATED)
    } | {Flow(TO_HOST, 0, match(eth_type=kind), back)}


def _leaving(state: Common, way: Way, alive: list[Way]) -> set[Flow]:
    config, family = state.config, way.family
    number = config.number_of(way.uplink)
    marked: dict[str, Value] = {"ct_mark": number, "eth_type": family.ethernet}
    tracked: dict[str, Value] = {**marked, "ct_state": (_TRACKED, _TRACKED)}
    if way not in alive:
        # Nothing can be kept: TCP is reset by the controller, a first packet and all else moves.
        new = {**marked, "ct_state": (_NEW | _TRACKED, _NEW | _TRACKED)}
        flows = _new(config, family, alive, new, 40) | _new(config, family, alive, tracked, 30)
        reset = match(**tracked, ip_proto=6)
        return {flow for flow in flows if flow.match != reset} | {
            Flow(FROM_HOST, 32, reset, (Output(CONTROLLER, _WHOLE),))
        }
    port = state.ports[way.uplink]
    mac = state.neighbours.mac(way.key)
    assert mac is not None, "a usable way has a neighbour"
    out: tuple[Action, ...] = (
        Track(zones(config)[number], commit=True, nat=way.ip),
        SetField("eth_src", port.mac),
        SetField("eth_dst", mac),
        DecrementTtl(),
        Output(port.number),
    )
    remember = Track(zones(config)[0], commit=True, mark=number)
    valid = {**marked, "ct_state": (_TRACKED, _TRACKED | _INVALID)}
    return {
        Flow(FROM_HOST, 30, match(**valid), out),
        Flow(TAKE, 10, match(reg0=number, eth_type=family.ethernet), (remember, *out)),
    }


def _new(
    config: Config, family: Family, alive: list[Way], fields: dict[str, Value], priority: int
) -> set[Flow]:
    """What happens to a flow without an uplink, by its kind."""
    if not alive:
        return set()
    balance = config.balance
    assert balance is not None, "the configuration is of this mode"
    first: tuple[Action, ...] = (
        SetField("reg0", config.number_of(alive[0].uplink)),
        Resubmit(TAKE),
    )
    spread: tuple[Action, ...] = (Output(CONTROLLER, _WHOLE),)
    if balance.decide == "switch":
        spread = (HashToSlot(SLOTS), Resubmit(CHOOSE))
    base = {**fields, "eth_type": family.ethernet}
    flows = {Flow(FROM_HOST, priority, match(**base), first)}
    for kind in KINDS:
        actions = spread if kind in balance.spread else first
        more = _kind(kind, family)
        # QUIC is UDP to one port, and stronger.
        strength = priority + 1 + (len(more) > 1)
        flows.add(Flow(FROM_HOST, strength, match(**base, **more), actions))
    return flows


def _kind(name: str, family: Family) -> dict[str, Value]:
    """What tells a kind of flows."""
    match name:
        case "tcp":
            return {"ip_proto": 6}
        case "quic":
            return {"ip_proto": 17, "udp_dst": 443}
        case "udp":
            return {"ip_proto": 17}
        case _:
            return {"ip_proto": family.icmp}


def _select(
    state: Common, family: Family, weights: dict[str, float]
) -> tuple[set[Flow], set[Group]]:
    """The switch's own choice: a hash gives a slot, slots are shared out by weight, and a slot's
    group goes over to another uplink by itself when a port goes down."""
    config = state.config
    alive = policy.usable(state, family.version)
    assert config.balance is not None, "the configuration is of this mode"
    if config.balance.decide != "switch" or not alive:
        return set(), set()
    base = IPV6_GROUPS if family.version == 6 else 0
    takes = {}
    for way in alive:
        # ct() must not be in the bucket itself: the switch skips it there.
        number = config.number_of(way.uplink)
        actions: tuple[Action, ...] = (SetField("reg0", number), Resubmit(TAKE))
        takes[number] = Bucket(actions, watch_port=state.ports[way.uplink].number)
    groups = set()
    for number, take in takes.items():
        others = (bucket for other, bucket in takes.items() if other != number)
        groups.add(Group(base + number, "ff", (take, *others)))
    shares = slots({way.uplink: weights[way.uplink] for way in alive})
    owners = [config.number_of(name) for name, count in shares.items() for _ in range(count)]
    flows = {
        Flow(CHOOSE, 0, match(reg1=slot, eth_type=family.ethernet), (ToGroup(base + owner),))
        for slot, owner in enumerate(owners)
    }
    return flows, groups


def slots(weights: dict[str, float]) -> dict[str, int]:
    """How many of the `SLOTS` each gets: in proportion to the weights, but one at least. There are
    fewer names than slots."""
    shares = [max(1, round(weight * 1e6)) for weight in weights.values()]
    return dict(zip(weights, apportion(shares, SLOTS), strict=True))
