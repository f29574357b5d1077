"""What is kept of packets to stations, acknowledged in their name, and sent when they are back."""

from __future__ import annotations

from ropewalk.sdn import packets
from ropewalk.sdn.contract import Out
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import Output, PacketOut, Resubmit
from ropewalk.sdn.roam import frames, program, ways
from ropewalk.sdn.roam.state import Freeze, State, number


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
    found = state.buffers.released(mac, now)
    if state.config.scheme != "replay":
        state.buffers.forget(mac)
    state.buffers.counters["released"] += len(found)
    return [(station.place.switch, PacketOut(frame, (Output(port),))) for frame in found]


def flow_removed(state: State, name: str, removed: events.FlowRemoved) -> list[Out]:
    """`zwa-adaptive`: whether anything was sent to a station between its leaving and this."""
    fields = dict(removed.match)
    mac = str(fields.get("eth_dst"))
    station, freeze = state.table.by_mac.get(mac), state.freezes.get(mac)
    if station is None or freeze is None or freeze.allowed is not None:
        return []
    if name != station.place.switch or removed.table != program.FORWARD or len(fields) != 1:
        return []
    allowed = removed.packets == freeze.counted
    state.freezes[mac] = Freeze(freeze.counted, allowed)
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
