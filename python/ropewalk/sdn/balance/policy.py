"""Decides which uplink carries a new flow, and resets what cannot go on."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ropewalk.sdn import events, family, packets, policy
from ropewalk.sdn.balance import capacity, program, selection
from ropewalk.sdn.balance.capacity import Capacity
from ropewalk.sdn.config import Config, Uplink
from ropewalk.sdn.events import Counters
from ropewalk.sdn.openflow.program import (
    AskPortStatistics,
    Message,
    Output,
    PacketOut,
    Program,
    Resubmit,
    SetField,
    apply,
    difference,
)
from ropewalk.sdn.policy import Common

GENERATION_MAX = 1024
"""Decisions in one generation of the memory; two generations are remembered."""
GENERATION_S = 5.0
"""A decision is remembered at least so long while there is room: far longer than a first packet's
repetitions take to the controller. What comes later finds the switch's own mark."""
STATISTICS_S = 1.0
_PROBE_ID = 0x7277
_PROBE = struct.Struct("!I")

Flow5 = tuple[str, str, int, int, int]


@dataclass(frozen=True)
class Decisions:
    """The uplink of every flow decided lately."""

    young: Mapping[Flow5, str] = field(default_factory=dict)
    old: Mapping[Flow5, str] = field(default_factory=dict)
    turned_s: float = 0.0

    def get(self, flow: Flow5) -> str | None:
        """The decision on a flow, if it is remembered."""
        return self.young.get(flow) or self.old.get(flow)

    def add(self, flow: Flow5, uplink: str, now: float) -> Decisions:
        """Remembers a decision."""
        if len(self.young) >= GENERATION_MAX or now - self.turned_s >= GENERATION_S:
            return Decisions({flow: uplink}, self.young, now)
        return Decisions({**self.young, flow: uplink}, self.old, self.turned_s)


@dataclass(frozen=True)
class State:
    """What is known, and what has been decided."""

    common: Common
    decisions: Decisions = field(default_factory=Decisions)
    credit: Mapping[str, float] = field(default_factory=dict)
    backlog: Mapping[str, float] = field(default_factory=dict)
    backlog_s: float = 0.0
    capacities: Mapping[str, Capacity] = field(default_factory=dict)
    asked_s: float = float("-inf")
    flows_by_uplink: Mapping[str, int] = field(default_factory=dict)
    resets: int = 0


class Balance:
    """The policy of mode `balance`."""

    def begin(self, config: Config) -> State:
        """Nothing is known or decided."""
        return State(Common(config))

    def step(self, state: State, event: object, now: float) -> tuple[State, list[Message]]:
        """The next state, and what to send."""
        common = state.common
        match event:
            case events.PacketIn(port, _, data):
                return self._packet(state, port, data, now)
            case events.PortStatistics(counters):
                return self._sampled(state, counters), []
            case events.Connected(ports, present):
                common = policy.connected(common, ports, present, now)
            case events.Disconnected():
                return replace(state, common=policy.disconnected(common)), []
            case events.Present(present):
                common = replace(common, installed=present)
            case events.PortChanged(port, gone):
                common = policy.port_changed(common, port, gone, now)
            case events.Tick():
                return self._tick(state, now)
            case _:
                pass
        return self._installed(replace(state, common=common), now)

    def report(self, state: State, now: float) -> dict[str, object]:
        """What people are told."""
        return {
            **policy.report(state.common, now),
            "new_flows": dict(state.flows_by_uplink),
            "resets": state.resets,
            "weights": self._weights(state),
            "capacity_mbit": {
                name: round(value.bps / 1e6, 3) for name, value in state.capacities.items()
            },
        }

    def _packet(
        self, state: State, port: int, data: bytes, now: float
    ) -> tuple[State, list[Message]]:
        common = state.common
        application = common.ports.get(common.config.application.port)
        resolved = policy.resolved(common, port, data, now)
        if resolved is not None:
            # It takes effect with the next tick: a flood costs no new program each.
            after, messages = resolved
            return replace(state, common=after), messages
        packet = packets.parse(data)
        if packet is None:
            return state, []
        if application is None or port != application.number:
            return self._answer(state, port, packet, now), []
        if packet.tcp is not None and not packet.tcp.flags & packets.SYN:
            return self._reset(state, port, packet, packet.tcp)
        return self._decide(state, port, packet, data, now)

    def _answer(self, state: State, port: int, packet: packets.Ip, now: float) -> State:
        ours = packet.protocol in (packets.ICMP, packets.ICMPV6)
        ours = ours and packet.target_port == _PROBE_ID and len(packet.payload) >= _PROBE.size
        if not ours:
            return state
        (number,) = _PROBE.unpack_from(packet.payload)
        common = policy.answered(state.common, port, packet.source, number, now)
        return replace(state, common=common)

    def _reset(
        self, state: State, port: int, packet: packets.Ip, segment: packets.Segment
    ) -> tuple[State, list[Message]]:
        if segment.flags & packets.RST:
            return state, []
        frame = packets.reset_for(packet, segment)
        after = replace(state, resets=state.resets + 1)
        return after, [PacketOut(frame, (Output(port),))]

    def _decide(
        self, state: State, port: int, packet: packets.Ip, data: bytes, now: float
    ) -> tuple[State, list[Message]]:
        version = family.of(packet.source).version
        alive = [way.uplink for way in policy.usable(state.common, version)]
        if not alive:
            return state, []
        name = state.decisions.get(packet.flow)
        if name not in alive:
            state, name = self._choose(state, alive, now)
            counts = {**state.flows_by_uplink, name: state.flows_by_uplink.get(name, 0) + 1}
            decisions = state.decisions.add(packet.flow, name, now)
            state = replace(state, decisions=decisions, flows_by_uplink=counts)
        number = state.common.config.number_of(name)
        take = (SetField("reg0", number), Resubmit(program.TAKE))
        return state, [PacketOut(data, take, port)]

    def _choose(self, state: State, names: list[str], now: float) -> tuple[State, str]:
        balance = state.common.config.balance
        assert balance is not None, "the configuration is of this mode"
        if balance.rule == "weighted-round-robin":
            weights = self._weights(state)
            credit, name = selection.weighted_round_robin(
                state.credit, {name: weights[name] for name in names}
            )
            return replace(state, credit=credit), name
        rates = {name: self._rate(state, name) for name in names}
        used = {name: self._capacity(state, name).present_bps / rates[name] for name in names}
        backlog = selection.drained(state.backlog, rates, now - state.backlog_s)
        backlog, name = selection.least_expected_finish(backlog, rates, used, balance.flow_bytes)
        return replace(state, backlog=backlog, backlog_s=now), name

    def _weights(self, state: State) -> dict[str, float]:
        """Given weights; without any, what is known of the capacities in Mbit/s."""
        return {
            uplink.name: uplink.weight or self._rate(state, uplink.name) / 1e6
            for uplink in state.common.config.uplinks
        }

    def _rate(self, state: State, name: str) -> float:
        uplink = self._uplink(state, name)
        given = uplink.rate_mbit
        return given * 1e6 if given else self._capacity(state, name).bps

    def _capacity(self, state: State, name: str) -> Capacity:
        return state.capacities.get(name) or Capacity()

    def _uplink(self, state: State, name: str) -> Uplink:
        return next(uplink for uplink in state.common.config.uplinks if uplink.name == name)

    def _sampled(self, state: State, counters: Mapping[int, Counters]) -> State:
        capacities = dict(state.capacities)
        for uplink in state.common.config.uplinks:
            port = state.common.ports.get(uplink.name)
            if port is not None and port.number in counters:
                former = self._capacity(state, uplink.name)
                capacities[uplink.name] = capacity.sampled(former, counters[port.number])
        return replace(state, capacities=capacities)

    def _tick(self, state: State, now: float) -> tuple[State, list[Message]]:
        common, messages = policy.passed(state.common, now)
        common, due = policy.due_probes(common, now)
        for way, port, mac, number in due:
            frame = packets.echo_request(
                (port.mac, mac), (way.ip, way.peer), _PROBE_ID, _PROBE.pack(number)
            )
            messages.append(policy.packet_out(frame, port.number))
        state = replace(state, common=common)
        if common.connected_s is not None and now - state.asked_s >= STATISTICS_S:
            state = replace(state, asked_s=now)
            messages.append(AskPortStatistics())
        state, changes = self._installed(state, now)
        return state, [*changes, *messages]

    def _installed(self, state: State, now: float) -> tuple[State, list[Message]]:
        common = state.common
        if common.connected_s is None:
            return state, []
        settled = common.settled or policy.ready(common, now)
        if settled:
            wanted = program.build(common, self._weights(state))
            changes = difference(common.installed, wanted)
        else:
            base = Program(frozenset(policy.base_flows(common) | program.probe_flows(common)))
            changes = difference(common.installed, base, add_only=True)
        common = policy.installed(common, apply(common.installed, changes), settled)
        return replace(state, common=common), changes
