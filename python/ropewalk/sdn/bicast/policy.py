"""Decides what is copied over which paths."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from ropewalk.sdn import packets, policy
from ropewalk.sdn.bicast import program
from ropewalk.sdn.config import Config
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import Message, Program, apply, difference
from ropewalk.sdn.policy import Common

_MAGIC = b"rwp1"
_PROBE = struct.Struct("!4sI")


@dataclass(frozen=True)
class State:
    """What is known, and whether copies are made now."""

    common: Common
    copying: bool


class Bicast:
    """The policy of mode `bicast`."""

    def begin(self, config: Config) -> State:
        """Nothing is known; copies are made at once unless they wait for losses."""
        assert config.bicast is not None, "the configuration is of this mode"
        return State(Common(config), config.bicast.when == "always")

    def step(self, state: State, event: object, now: float) -> tuple[State, list[Message]]:
        """The next state, and what to send."""
        messages: list[Message] = []
        common = state.common
        match event:
            case events.Connected(ports, present):
                common = policy.connected(common, ports, present, now)
            case events.Disconnected():
                return replace(state, common=policy.disconnected(common)), []
            case events.Present(present):
                common = replace(common, installed=present)
            case events.PortChanged(port, gone):
                common = policy.port_changed(common, port, gone, now)
            case events.PacketIn(port, _, data):
                # It takes effect with the next tick: a flood costs no new program each.
                common, messages = self._packet(common, port, data, now)
                return replace(state, common=common), messages
            case events.Tick():
                common, messages = policy.passed(common, now)
                common, probes = self._probes(common, now)
                messages += probes
            case _:
                pass
        state = self._loss(replace(state, common=common))
        return self._installed(state, now, messages)

    def report(self, state: State, now: float) -> dict[str, object]:
        """What people are told."""
        bicast = state.common.config.bicast
        assert bicast is not None, "the configuration is of this mode"
        versions = [host.family.version for host in state.common.config.application.hosts]
        paths = min(len(policy.usable(state.common, version)) for version in versions)
        return {
            **policy.report(state.common, now),
            "copying": state.copying and bicast.copies > 1,
            "copies": min(bicast.copies, paths) if state.copying else min(1, paths),
        }

    def _packet(
        self, common: Common, port: int, data: bytes, now: float
    ) -> tuple[Common, list[Message]]:
        resolved = policy.resolved(common, port, data, now)
        if resolved is not None:
            return resolved
        packet = packets.parse(data)
        if packet is None or len(packet.payload) < _PROBE.size:
            return common, []
        magic, number = _PROBE.unpack_from(packet.payload)
        if packet.protocol != packets.UDP or magic != _MAGIC:
            return common, []
        common, _ = policy.answered(common, port, packet.source, number, now)
        return common, []

    def _probes(self, common: Common, now: float) -> tuple[Common, list[Message]]:
        common, due = policy.due_probes(common, now)
        first = common.config.probe.port
        messages: list[Message] = []
        for way, port, mac, number in due:
            frame = packets.udp(
                (port.mac, mac),
                (way.ip, way.peer),
                (first + 1, first),
                _PROBE.pack(_MAGIC, number),
            )
            messages.append(policy.packet_out(frame, port.number))
        return common, messages

    def _loss(self, state: State) -> State:
        """Copies begin and end by the loss of the path that is used alone, the worse family's."""
        bicast = state.common.config.bicast
        assert bicast is not None, "the configuration is of this mode"
        if bicast.when == "always":
            return state
        losses = []
        for host in state.common.config.application.hosts:
            ways = policy.usable(state.common, host.family.version)
            path = state.common.paths.get(ways[0].key) if ways else None
            if path is not None and path.loss is not None:
                losses.append(path.loss)
        if not losses:
            return state
        loss = max(losses)
        if state.copying and loss <= bicast.loss_off:
            return replace(state, copying=False)
        if not state.copying and loss >= bicast.loss_on:
            return replace(state, copying=True)
        return state

    def _installed(
        self, state: State, now: float, messages: list[Message]
    ) -> tuple[State, list[Message]]:
        common = state.common
        if common.connected_s is None:
            return state, []
        settled = common.settled or policy.ready(common, now)
        if settled:
            changes = difference(common.installed, program.build(common, state.copying))
        else:
            base = Program(frozenset(policy.base_flows(common) | program.probe_flows(common)))
            changes = difference(common.installed, base, add_only=True)
        common = policy.installed(common, apply(common.installed, changes), settled)
        return replace(state, common=common), [*changes, *messages]
