"""The flows and groups of `balance`.

A flow's uplink is the mark of its connection in one zone, the memory; its address translation is
in a zone of its uplink. So a flow moves to another uplink by a new mark, and what a dead uplink
translated needs no clearing.

Table 0 classifies. From the host: table 1 reads the mark; a new flow is decided by the controller
or by the group; table 3 does what register 0 says, the uplink's number. From an uplink: table 2
lets pass what belongs to a flow, table 4 gives it to the host.
"""

from __future__ import annotations

from ropewalk.sdn import policy
from ropewalk.sdn.config import KINDS, Config, Uplink
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    Action,
    Bucket,
    DecrementTtl,
    Flow,
    Group,
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
SELECT = 1
WEIGHT_MAX = 1000
_IP = 0x0800
_NEW, _ESTABLISHED, _RELATED, _INVALID, _TRACKED = 0x01, 0x02, 0x04, 0x10, 0x20
_WHOLE = 0xFFFF
"""Bytes of a new flow's first packet for the controller: all, because it sends the packet on."""
_PROTOCOLS: dict[str, dict[str, Value]] = {
    "tcp": {"ip_proto": 6},
    "quic": {"ip_proto": 17, "udp_dst": 443},
    "udp": {"ip_proto": 17},
    "icmp": {"ip_proto": 1},
}


def zones(config: Config) -> list[int]:
    """The zones in use: the memory, then one for each uplink."""
    assert config.balance is not None, "the configuration is of this mode"
    return [config.balance.zone + number for number in range(len(config.uplinks) + 1)]


def build(state: Common, weights: dict[str, float]) -> Program:
    """The whole program; `weights` are for the group of the mode without the controller."""
    flows = policy.base_flows(state) | probe_flows(state)
    config = state.config
    application = config.application
    port = state.ports.get(application.port)
    mac = state.neighbours.mac(application.port)
    if port is None or mac is None:
        return Program(frozenset(flows))
    memory = zones(config)[0]
    from_host = match(in_port=port.number, eth_type=_IP, ipv4_src=application.ip)
    flows.add(Flow(0, 500, from_host, (Track(memory, table=FROM_HOST),)))
    flows |= _returning(port.number, mac, memory)
    alive = policy.usable(state)
    for uplink in config.uplinks:
        flows |= _leaving(state, uplink, alive)
    flows |= _new(config, alive, {"ct_state": (_NEW | _TRACKED, _NEW | _TRACKED)}, 10)
    groups = frozenset[Group]()
    assert config.balance is not None, "the configuration is of this mode"
    if config.balance.decide == "switch" and alive:
        groups = frozenset({_select(state, alive, weights)})
    return Program(frozenset(flows), groups)


def number_of(config: Config, uplink: Uplink) -> int:
    """An uplink's number, from 1: its mark and its value of register 0."""
    return config.uplinks.index(uplink) + 1


def probe_flows(state: Common) -> set[Flow]:
    """Arriving packets are looked up in the uplink's zone; answers to probes are shown as well."""
    flows = set()
    for uplink in state.config.uplinks:
        port = state.ports.get(uplink.name)
        if port is None:
            continue
        fields: dict[str, Value] = {
            "in_port": port.number,
            "eth_type": _IP,
            "ipv4_dst": uplink.ip,
        }
        zone = zones(state.config)[number_of(state.config, uplink)]
        tracked = Track(zone, table=FROM_UPLINK, nat="")
        flows.add(Flow(0, 500, match(**fields), (tracked,)))
        # The host may ping the same address: its answers go both ways.
        answer = match(**fields, ip_proto=1, icmpv4_type=0, ipv4_src=uplink.peer)
        shown = (Output(CONTROLLER, 128), tracked)
        flows.add(Flow(0, policy.PRIORITY_PROBE, answer, shown))
    return flows


def _returning(port: int, mac: str, memory: int) -> set[Flow]:
    back: tuple[Action, ...] = (
        SetField("eth_src", policy.VIRTUAL_MAC),
        SetField("eth_dst", mac),
        DecrementTtl(),
        Output(port),
    )
    refused = _NEW | _INVALID
    return {
        Flow(
            FROM_UPLINK,
            10,
            match(ct_state=(_TRACKED | state, _TRACKED | state | refused), eth_type=_IP),
            (Track(memory, table=TO_HOST),),
        )
        for state in (_ESTABLISHED, _RELATED)
    } | {Flow(TO_HOST, 0, match(eth_type=_IP), back)}


def _leaving(state: Common, uplink: Uplink, alive: list[Uplink]) -> set[Flow]:
    config = state.config
    number = number_of(config, uplink)
    marked: dict[str, Value] = {"ct_mark": number, "eth_type": _IP}
    tracked: dict[str, Value] = {**marked, "ct_state": (_TRACKED, _TRACKED)}
    if uplink not in alive:
        # Nothing can be kept: TCP is reset by the controller, a first packet and all else moves.
        new = {**marked, "ct_state": (_NEW | _TRACKED, _NEW | _TRACKED)}
        flows = _new(config, alive, new, 40) | _new(config, alive, tracked, 30)
        reset = match(**tracked, ip_proto=6)
        return {flow for flow in flows if flow.match != reset} | {
            Flow(FROM_HOST, 32, reset, (Output(CONTROLLER, _WHOLE),))
        }
    port = state.ports[uplink.name]
    mac = state.neighbours.mac(uplink.name)
    assert mac is not None, "a usable uplink has a neighbour"
    out: tuple[Action, ...] = (
        Track(zones(config)[number], commit=True, nat=uplink.ip),
        SetField("eth_src", port.mac),
        SetField("eth_dst", mac),
        DecrementTtl(),
        Output(port.number),
    )
    remember = Track(zones(config)[0], commit=True, mark=number)
    valid = {**marked, "ct_state": (_TRACKED, _TRACKED | _INVALID)}
    return {
        Flow(FROM_HOST, 30, match(**valid), out),
        Flow(TAKE, 10, match(reg0=number, eth_type=_IP), (remember, *out)),
    }


def _new(config: Config, alive: list[Uplink], fields: dict[str, Value], priority: int) -> set[Flow]:
    """What happens to a flow without an uplink, by its kind."""
    if not alive:
        return set()
    balance = config.balance
    assert balance is not None, "the configuration is of this mode"
    first: tuple[Action, ...] = (SetField("reg0", number_of(config, alive[0])), Resubmit(TAKE))
    spread: tuple[Action, ...] = (Output(CONTROLLER, _WHOLE),)
    if balance.decide == "switch":
        spread = (ToGroup(SELECT),)
    base = {"eth_type": _IP, **fields}
    flows = {Flow(FROM_HOST, priority, match(**base), first)}
    for kind in KINDS:
        actions = spread if kind in balance.spread else first
        more = _PROTOCOLS[kind]
        # QUIC is UDP to one port, and stronger.
        strength = priority + 1 + (len(more) > 1)
        flows.add(Flow(FROM_HOST, strength, match(**base, **more), actions))
    return flows


def _select(state: Common, alive: list[Uplink], weights: dict[str, float]) -> Group:
    largest = max(weights.get(uplink.name, 1.0) for uplink in alive)
    buckets = []
    for uplink in alive:
        weight = max(1, round(WEIGHT_MAX * weights.get(uplink.name, 1.0) / largest))
        # ct() must not be in the bucket itself: the switch skips it there.
        take: tuple[Action, ...] = (
            SetField("reg0", number_of(state.config, uplink)),
            Resubmit(TAKE),
        )
        buckets.append(Bucket(take, weight, state.ports[uplink.name].number))
    return Group(SELECT, "select", tuple(buckets))
