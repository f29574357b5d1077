"""What is kept of packets to stations, acknowledged in their name, and sent when they are back."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.sdn import packets
from ropewalk.sdn.contract import Out
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import AskMeterStatistics, Output, PacketOut, Resubmit
from ropewalk.sdn.roam import frames, program, ways
from ropewalk.sdn.roam.state import State, number

SETTLE_S = 0.02
"""After a flow is removed Open vSwitch forwards by it until its datapath has been looked through.

That takes some milliseconds. What is counted earlier says less than what was sent."""


def towards(
    state: State, name: str, mac: str, frame: bytes, now: float, *, copy: bool
) -> list[Out]:
    """A packet to a station, copied while it is there or asked about while it is not."""
    station = state.table.by_mac.get(mac)
    if station is None:
        return []
    segment = frames.parse(frame)
    if station.here:
        port = number(state, station.place)
        if copy and name == station.place.switch:
            state.buffers.add(mac, frame, segment, now, away=False)
            return []
        if mac in state.due:
            state.buffers.add(mac, frame, segment, now, away=True)
            return []
        if port is None or state.config.scheme != "replay":
            return []
        # It was asked about, or copied elsewhere, before the station was here.
        state.buffers.add(mac, frame, segment, now, away=False)
        state.buffers.counters["late"] += 1
        return [(station.place.switch, PacketOut(frame, (Output(port),)))]
    freeze = state.freezes.get(mac)
    if freeze and freeze.allowed is False:
        return []
    kept = state.buffers.add(mac, frame, segment, now, away=True)
    state.buffers.counters["kept"] += kept
    if state.config.scheme == "replay" or segment is None:
        return []
    if freeze and freeze.allowed is None:
        return []
    # A segment that did not fit is not acknowledged: its sender has to keep it.
    held = state.buffers.holds(mac, segment)
    return _zero_window(state, name, frame, segment) if held else []


def _zero_window(state: State, name: str, frame: bytes, segment: frames.Segment) -> list[Out]:
    if segment.flags & (packets.SYN | packets.RST) or not segment.flags & packets.ACK:
        return []
    state.buffers.counters["zero_windows"] += 1
    answer = frames.zero_window(frame, segment)
    return [(name, PacketOut(answer, (Resubmit(program.FORWARD),)))]


def released(state: State, mac: str, now: float) -> list[Out]:
    """Acknowledgements that waited are known by now, so that nothing is sent twice for them."""
    station = state.table.by_mac.get(mac)
    if state.due.pop(mac, None) is None or station is None or not station.here:
        return []
    port = number(state, station.place)
    if port is None:
        return []
    if state.config.scheme == "replay":
        return _sent(state, mac, state.buffers.begin(mac, now))
    found = state.buffers.released(mac, now)
    state.buffers.forget(mac)
    return _sent(state, mac, found)


def went_on(state: State, mac: str) -> list[Out]:
    """What the station may get now that it has acknowledged something, or time has passed."""
    station = state.table.by_mac.get(mac)
    if station is None or not station.here:
        return []
    return _sent(state, mac, state.buffers.more(mac))


def _sent(state: State, mac: str, found: list[bytes]) -> list[Out]:
    station = state.table.by_mac[mac]
    port = number(state, station.place)
    if port is None:
        return []
    state.buffers.counters["released"] += len(found)
    return [(station.place.switch, PacketOut(frame, (Output(port),))) for frame in found]


def undecided(state: State, now: float) -> list[str]:
    """`zwa-adaptive`: stations whose switch can tell by now what it had given them."""
    return [
        mac
        for mac, freeze in state.freezes.items()
        if freeze.allowed is None and not freeze.asked and now - freeze.since_s >= SETTLE_S
    ]


def asked(state: State, stations: list[str]) -> list[Out]:
    """Asks what stations had been given by the removal of their flows."""
    out: list[Out] = []
    for mac in stations:
        station = state.table.by_mac.get(mac)
        if station is not None:
            state.freezes[mac] = replace(state.freezes[mac], asked=True)
            number = program.COUNT_METERS + station.slot
            out.append((station.place.switch, AskMeterStatistics(number)))
    return out


def metered(state: State, name: str, counted: events.MeterStatistics) -> list[Out]:
    """`zwa-adaptive`: whether anything was sent to a station between its leaving and this."""
    slot = counted.number - program.COUNT_METERS
    station = next((row for row in state.table.by_mac.values() if row.slot == slot), None)
    freeze = state.freezes.get(station.mac) if station else None
    if station is None or freeze is None or freeze.allowed is not None or not freeze.asked:
        return []
    if name != station.place.switch:
        return []
    allowed = counted.bytes == freeze.given
    state.freezes[station.mac] = replace(freeze, allowed=allowed)
    state.counters["freezes_allowed" if allowed else "freezes_denied"] += 1
    if allowed:
        return [
            answer
            for frame in state.buffers.released(station.mac, float("-inf"))
            if (segment := frames.parse(frame))
            for answer in _zero_window(state, station.place.switch, frame, segment)
        ]
    state.buffers.forget(station.mac)
    return ways.installed(state, [station], first=station.place.switch)
