"""Where stations are: who has come, who has left, who is too many."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.sdn.contract import Out
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import Confirm, PacketOut, Resubmit
from ropewalk.sdn.roam import frames, program, silence, stations, ways
from ropewalk.sdn.roam.state import HANDOVERS_MAX, Freeze, Handover, Heard, State, View
from ropewalk.sdn.roam.stations import Place, Station

NEW_BURST = 20
"""Stations that may be new at one port at once."""


def join(state: State, mac: str, place: Place, now: float, *, told: bool) -> list[Out]:
    """A station is at a place; `told` by its access point, not by its own frame."""
    former = state.table.by_mac.get(mac)
    out: list[Out] = []
    if former is None:
        room, out = silence.make_room(state, place, now, told=told)
        if not room:
            state.counters["stations_refused"] += 1
            return out
    table = stations.joined(state.table, mac, place, now, told, state.config.bounds.stations)
    station = table.by_mac.get(mac)
    if station is None:
        state.counters["stations_refused"] += 1
        return out
    moved = former is None or not former.here or former.place != place
    if told:
        state.heard.pop(mac, None)
    elif moved:
        silence.arrived(state, mac, former, place, now)
    if not moved:
        state.table = table
        return out
    if former is not None and former.here:
        state.counters["left_by_joining"] += 1
    state.counters["joined"] += 1
    state.table = table
    freeze = state.freezes.pop(mac, None)
    # Where the station is comes first, then the ways there.
    changes = ways.installed(state, [station], first=place.switch)
    if former is not None and not place.fixed and (freeze is None or freeze.allowed is not False):
        state.due[mac] = now
        state.asked = (*state.asked, mac)
    else:
        state.buffers.forget(mac)
    return out + changes + _confirm(state, station, now)


def _confirm(state: State, station: Station, now: float) -> list[Out]:
    state.number = state.number % 0x7FFF_FFFF + 1
    arrival = Handover(station.mac, now, frozenset(state.views))
    state.handovers = (*state.handovers, (state.number, arrival))[-HANDOVERS_MAX:]
    return [(name, Confirm(state.number)) for name in state.views]


def confirmed(state: State, name: str, number: int, now: float) -> State:
    """A switch has done what was sent before a `Confirm`; the next state."""
    for at, (known, handover) in enumerate(state.handovers):
        if known == number and name in handover.waiting:
            waiting = handover.waiting - {name}
            told = replace(handover, waiting=waiting, confirmed_s=None if waiting else now)
            after = state.shallow()
            after.handovers = (*state.handovers[:at], (known, told), *state.handovers[at + 1 :])
            return after
    return state


def leave(state: State, mac: str, switch: str, port: str, now: float, given: int = -1) -> list[Out]:
    """A station has left a port; `given` are the bytes it had been given, -1 when not known."""
    table = stations.left(state.table, mac, switch, port, now)
    if table is state.table:
        state.counters["stale_events"] += 1
        return []
    state.counters["left"] += 1
    state.table = table
    if mac in state.heard:
        state.heard[mac] = Heard(now, state.heard[mac].again)
    if state.config.scheme == "zwa-adaptive":
        # Without a count from the moment of leaving nobody can tell what died.
        state.freezes[mac] = Freeze(given, None if given >= 0 else False, now)
    return ways.installed(state, [table.by_mac[mac]], first=switch)


def seen(
    state: State, view: View, mac: str, packet: events.PacketIn, now: float
) -> tuple[State, list[Out]]:
    """A frame of a station that its switch asks about: the next state, and what to send.

    Tables are copied for whom the frame moves, and for nobody in a flood.
    """
    port = next((p.name for p in view.by_name.values() if p.number == packet.port), "")
    fixed = port in view.config.hosts
    if not fixed and port not in view.config.access:
        return state.counted("packets_elsewhere"), []
    place = Place(view.config.name, port, fixed)
    former = state.table.by_mac.get(mac)
    if not fixed and not state.config.frames:
        return state.counted("frames_untrusted"), []
    if former is not None and former.here and former.place == place:
        # It came before its flow was there.
        return state, [_onward(view, packet)]
    if former is None:
        # First of all, because a flood consists of these.
        state, may_be_new = _credit(state, place, now)
        if not may_be_new:
            return state, []
    elif not stations.may_move(state.table, mac, place, frames.announces(packet.data), now):
        return state.counted("stale_frames"), []
    state = state.next()
    out = join(state, mac, place, now, told=False)
    address = frames.address(packet.data)
    if address and mac in state.table.by_mac:
        state.table = stations.addressed(state.table, mac, address)
    return state, [*out, _onward(view, packet)]


def _onward(view: View, packet: events.PacketIn) -> Out:
    """The frame that showed a station goes on as any other, past the flow that counts what the
    station says later."""
    tables = (Resubmit(program.FORWARD), Resubmit(program.ANSWER))
    return view.config.name, PacketOut(packet.data, tables, in_port=packet.port)


def _credit(state: State, place: Place, now: float) -> tuple[State, bool]:
    """The next state, and whether another station may be new at a port: a bucket that refills
    within ten seconds. Who may not is counted."""
    key = (place.switch, place.port)
    had, at_s = state.credit.get(key, (float(NEW_BURST), now))
    had = min(float(NEW_BURST), had + (now - at_s) * NEW_BURST / 10)
    enough = had >= 1
    after = state.shallow() if enough else state.counted("stations_refused")
    # Who is refused takes nothing: the bucket would stay empty as long as a flood lasts.
    after.credit = {**state.credit, key: (had - 1 if enough else had, now)}
    return after, enough
