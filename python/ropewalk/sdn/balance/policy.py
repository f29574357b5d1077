"""Decides which uplink carries a new flow, and resets what cannot go on."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ropewalk._native import PLACES, Capacity, assumed, places, shares
from ropewalk.sdn import family, packets, policy
from ropewalk.sdn.balance import affinity, capacity, probing, program
from ropewalk.sdn.balance.affinity import Affinity
from ropewalk.sdn.balance.capacity import Meter
from ropewalk.sdn.balance.probing import Probing
from ropewalk.sdn.config import Config, Uplink, Way
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import Counters
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
_CAPACITY_ID = 0x7278
_ETHERNET_BYTES = 14
_HEADERS_BYTES = {4: 20 + 8, 6: 40 + 8}
"""Of an echo with its IP header, by the latter's version."""

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
    turn: int = 0
    """Flows that were shared out by the table of places."""
    backlog: Mapping[str, float] = field(default_factory=dict)
    """Bytes that flows decided lately are expected to want still, at `backlog_s`."""
    backlog_s: float = 0.0
    meters: Mapping[str, Meter] = field(default_factory=dict)
    asked_s: float = float("-inf")
    flows_by_uplink: Mapping[str, int] = field(default_factory=dict)
    affinity: Affinity = field(default_factory=Affinity)
    resets: int = 0
    probing: Probing | None = None


class Balance:
    """The policy of mode `balance`."""

    def begin(self, config: Config) -> State:
        """Nothing is known or decided."""
        method = probing.METHODS.get(config.probe.capacity)
        probes = Probing(method, config.probe.capacity_interval_s) if method else None
        return State(Common(config), probing=probes)

    def step(self, state: State, event: object, now: float) -> tuple[State, list[Message]]:
        """The next state, and what to send."""
        common = state.common
        match event:
            case events.PacketIn():
                return self._packet(state, event, now)
            case events.PortStatistics(counters):
                return self._sampled(state, counters, now), []
            case events.Connected(ports, present):
                common = policy.connected(common, ports, present, now)
            case events.Disconnected():
                probes = state.probing and probing.stopped(state.probing)
                return replace(state, common=policy.disconnected(common), probing=probes), []
            case events.Present(present):
                common = replace(common, installed=present)
            case events.PortChanged(port, gone):
                state = self._renewed(state, port, gone)
                common = policy.port_changed(common, port, gone, now)
            case events.Tick():
                return self._tick(state, now)
            case _:
                pass
        return self._installed(replace(state, common=common), now)

    def report(self, state: State, now: float) -> dict[str, object]:
        """What people are told."""
        rates = self._rates(state)
        return {
            **policy.report(state.common, now),
            "new_flows": dict(state.flows_by_uplink),
            "resets": state.resets,
            "weights": self._weights(state),
            "capacity_mbit": {name: round(rates[name] / 1e6, 3) for name in state.meters},
            "capacity_source": {
                name: self._source(state, name, rates[name]) for name in state.meters
            },
            "capacity_probed_mbit": self._rounds(state),
            "load_mbit": {
                name: round(meter.capacity.present_bps / 1e6, 3)
                for name, meter in state.meters.items()
            },
        }

    def _rounds(self, state: State) -> dict[str, list[float]]:
        """Rates of the last rounds of probing, Mbit/s, the oldest first."""
        records = state.probing.records if state.probing else {}
        return {
            name: [round(rate / 1e6, 3) for rate in record.rounds.rates_bps]
            for name, record in records.items()
        }

    def _source(self, state: State, name: str, bps: float) -> str:
        """Where an estimate is from.

        "given", "full" when the uplink was seen full, "carried", a method of probing, or "assumed".
        """
        known = self._meter(state, name).capacity
        if self._uplink(state, name).rate_mbit:
            return "given"
        if known.is_full:
            return "full"
        record = state.probing.records.get(name) if state.probing else None
        if bps == known.carried_bps:
            return "carried"
        probed = record is not None and record.rounds.estimate_bps is not None
        return state.common.config.probe.capacity if probed else "assumed"

    def _packet(
        self, state: State, event: events.PacketIn, now: float
    ) -> tuple[State, list[Message]]:
        common = state.common
        port, data = event.port, event.data
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
            return self._answer(state, event, packet, now)
        if packet.tcp is not None and not packet.tcp.flags & packets.SYN:
            return self._reset(state, port, packet, packet.tcp)
        return self._decide(state, port, packet, data, now)

    def _answer(
        self, state: State, event: events.PacketIn, packet: packets.Ip, now: float
    ) -> tuple[State, list[Message]]:
        if packet.protocol not in (packets.ICMP, packets.ICMPV6):
            return state, []
        if packet.target_port == _CAPACITY_ID:
            return self._echoed(state, event, packet, now)
        if packet.target_port != _PROBE_ID or len(packet.payload) < _PROBE.size:
            return state, []
        (number,) = _PROBE.unpack_from(packet.payload)
        common, told = policy.answered(state.common, event.port, packet.source, number, now)
        state = replace(state, common=common)
        if told is None:
            return state, []
        way, rtt_s = told
        meter = capacity.answered(self._meter(state, way.uplink), rtt_s)
        return replace(state, meters={**state.meters, way.uplink: meter}), []

    def _echoed(
        self, state: State, event: events.PacketIn, packet: packets.Ip, now: float
    ) -> tuple[State, list[Message]]:
        """An answer to a probe of the capacity; also a sign of life, since it holds up others."""
        way = policy.way_of(state.common, event.port, packet.source)
        if way is None or state.probing is None:
            return state, []
        arrived_s = now if event.arrived_s is None else event.arrived_s
        size = event.bytes_all - _ETHERNET_BYTES
        probes, known = probing.answered(state.probing, way.key, packet.payload, size, arrived_s)
        if not known:
            return state, []
        received = capacity.probed(self._meter(state, way.uplink), event.bytes_all, 0)
        common = policy.heard(state.common, way, now)
        meters = {**state.meters, way.uplink: received}
        state = replace(state, common=common, meters=meters)
        # At once, not with the next tick: a tick's work would be in the round trip.
        probes, leaving = probing.continued(probes, now)
        return self._leaving(replace(state, probing=probes), leaving)

    def _renewed(self, state: State, port: events.Port, gone: bool) -> State:
        """What probing found counts no longer when a port went or its link did."""
        former = state.common.ports.get(port.name)
        is_uplink = any(uplink.name == port.name for uplink in state.common.config.uplinks)
        unchanged = former is not None and former.live == port.live and not gone
        if state.probing is None or not is_uplink or unchanged:
            return state
        renewed = capacity.estimated(self._meter(state, port.name), None)
        return replace(
            state,
            probing=probing.changed(state.probing, port.name),
            meters={**state.meters, port.name: renewed},
        )

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
            state, name = self._kept(state, packet, alive, now)
            counts = {**state.flows_by_uplink, name: state.flows_by_uplink.get(name, 0) + 1}
            decisions = state.decisions.add(packet.flow, name, now)
            state = replace(state, decisions=decisions, flows_by_uplink=counts)
        number = state.common.config.number_of(name)
        take = (SetField("reg0", number), Resubmit(program.TAKE))
        return state, [PacketOut(data, take, port)]

    def _kept(
        self, state: State, packet: packets.Ip, names: list[str], now: float
    ) -> tuple[State, str]:
        """The uplink that the client keeps to the site, or one that is chosen."""
        balance = state.common.config.balance
        assert balance is not None, "the configuration is of this mode"
        seconds = 60.0 * balance.affinity_minutes
        if not seconds:
            return self._choose(state, names, now)
        name = affinity.uplink(state.affinity, packet, seconds, now)
        if name is None or name not in names:
            state, name = self._choose(state, names, now)
        noted = affinity.noted(state.affinity, packet, name, seconds, now)
        return replace(state, affinity=noted), name

    def _choose(self, state: State, names: list[str], now: float) -> tuple[State, str]:
        balance = state.common.config.balance
        assert balance is not None, "the configuration is of this mode"
        if balance.rule == "weighted-round-robin":
            weights = self._weights(state)
            wanted = shares("weighted", [(weights[name] * 1e6, 0.0) for name in names], 1, 0)
            place = places(wanted, PLACES)[state.turn % PLACES]
            return replace(state, turn=state.turn + 1), names[place]
        rates = self._rates(state)
        # The controller sees every flow: what it has just given an uplink counts as well as what
        # the uplink carries.
        passed_s = now - state.backlog_s
        backlog = {
            name: max(0.0, left - rates[name] / 8 * passed_s)
            for name, left in state.backlog.items()
        }
        loads = [
            (rates[name], self._meter(state, name).capacity.present_bps + 8 * backlog.get(name, 0))
            for name in names
        ]
        first = shares("least-finish", loads, 1, balance.flow_bytes)
        name = names[first.index(max(first))]
        backlog[name] = backlog.get(name, 0.0) + balance.flow_bytes
        return replace(state, backlog=backlog, backlog_s=now), name

    def _weights(self, state: State) -> dict[str, float]:
        """Given weights; without any, what is known of the capacities in Mbit/s."""
        rates = self._rates(state)
        return {
            uplink.name: uplink.weight or rates[uplink.name] / 1e6
            for uplink in state.common.config.uplinks
        }

    def _rates(self, state: State) -> dict[str, float]:
        """What each uplink is taken to carry, bits a second."""
        uplinks = state.common.config.uplinks
        known = [
            Capacity().estimated(uplink.rate_mbit * 1e6)
            if uplink.rate_mbit
            else self._meter(state, uplink.name).capacity
            for uplink in uplinks
        ]
        return {
            uplink.name: uplink.rate_mbit * 1e6 if uplink.rate_mbit else bps
            for uplink, bps in zip(uplinks, assumed(known), strict=True)
        }

    def _meter(self, state: State, name: str) -> Meter:
        return state.meters.get(name) or Meter()

    def _uplink(self, state: State, name: str) -> Uplink:
        return next(uplink for uplink in state.common.config.uplinks if uplink.name == name)

    def _sampled(self, state: State, counters: Mapping[int, Counters], now: float) -> State:
        meters = dict(state.meters)
        for uplink in state.common.config.uplinks:
            port = state.common.ports.get(uplink.name)
            if port is not None and port.number in counters:
                former = self._meter(state, uplink.name)
                meters[uplink.name] = capacity.sampled(former, counters[port.number], now)
        return replace(state, meters=meters)

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
        state, probes = self._probed(state, now)
        state, changes = self._installed(state, now)
        return state, [*changes, *messages, *probes]

    def _probed(self, state: State, now: float) -> tuple[State, list[Message]]:
        """Probes of the capacity that leave now, the last ones' result taken over."""
        common = state.common
        if state.probing is None or common.connected_s is None:
            return state, []
        idle = [way for way in self._asked(common) if self._meter(state, way.uplink).is_idle]
        probes, leaving = probing.passed(state.probing, [way.key for way in idle], now)
        meters = dict(state.meters)
        for name, record in probes.records.items():
            found_bps = record.rounds.estimate_bps
            meters[name] = capacity.estimated(self._meter(state, name), found_bps)
        return self._leaving(replace(state, probing=probes, meters=meters), leaving)

    def _leaving(self, state: State, leaving: list[probing.Packet]) -> tuple[State, list[Message]]:
        """Probes of the capacity in their frames."""
        common, meters = state.common, dict(state.meters)
        messages: list[Message] = []
        for packet in leaving:
            way = next(way for way in common.config.ways if way.key == packet.key)
            port, mac = common.ports.get(way.uplink), common.neighbours.mac(way.key)
            # The way may have gone while a round was under way.
            if port is not None and mac is not None:
                payload = packet.payload(_HEADERS_BYTES[way.family.version])
                frame = packets.echo_request(
                    (port.mac, mac), (way.ip, way.peer), _CAPACITY_ID, payload
                )
                messages.append(policy.packet_out(frame, port.number))
                known = meters.get(way.uplink) or Meter()
                meters[way.uplink] = capacity.probed(known, 0, len(frame))
        return replace(state, meters=meters), messages

    def _asked(self, common: Common) -> list[Way]:
        """The first usable way of each uplink whose capacity nobody has given."""
        ways: list[Way] = []
        for uplink in common.config.uplinks:
            if uplink.weight is None and uplink.rate_mbit is None:
                versions = (way.family.version for way in uplink.ways)
                usable = [way for version in versions for way in policy.usable(common, version)]
                ways += [way for way in usable if way.uplink == uplink.name][:1]
        return ways

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
