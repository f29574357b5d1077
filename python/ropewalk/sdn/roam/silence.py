"""Which stations have fallen silent, and which have to go when room runs out.

Nobody says that a station has gone which only frames have shown. Whether it still speaks is
what its flow at its access port has counted: the flow is replaced by its like now and then, and
the switch tells of the former one. No packet is asked about for that, so a flood at the port hides
nobody. Who is to make room is asked about once more and goes only if it has said nothing; what has
been told by an access point, and hosts, stay.
"""

from __future__ import annotations

from dataclasses import replace

from ropewalk.sdn.contract import Out
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import Program, difference
from ropewalk.sdn.roam import stations, ways
from ropewalk.sdn.roam.state import Heard, State, number
from ropewalk.sdn.roam.stations import Place, Station

SILENT_S = 300.0
"""A station that has said nothing for so long is forgotten.

Bridges take the same (IEEE 802.1D, ageing time). Who sends to a station over IP asks it for its
address within a minute or so, by broadcast or multicast in the end, and hears the answer as the
switch does: silent for so long is only who nobody talks to."""
QUIET_S = 60.0
"""A station that has said nothing for so long may have to make room."""
COUNT_S = 40.0
"""What flows have counted is read so often: within `QUIET_S`, so that who speaks is known to, and
seldom together with the audits, which say nothing while flows change."""
COUNT_MAX = 64
"""Flows that are read in one go, at each tick: where stations are goes first."""


def arrived(state: State, mac: str, former: Station | None, place: Place, now: float) -> None:
    """Frames alone have shown a station at a new place."""
    known = state.heard.pop(mac, None)
    if place.fixed:
        return
    again = known.again if known else former is not None and former.told
    state.heard[mac] = Heard(now, again)


def is_due(state: State, now: float) -> bool:
    """Whether switches are to tell now what they have counted."""
    return bool(state.rota) or now - state.round_s >= COUNT_S


def asked(state: State, now: float) -> list[Out]:
    """Makes switches tell what they have counted, some stations at a time."""
    if not is_due(state, now):
        return []
    if not state.rota:
        state.round_s = now
        state.rota.extend(state.heard)
    out: list[Out] = []
    for _ in range(min(COUNT_MAX, len(state.rota))):
        mac = state.rota.popleft()
        station = state.table.by_mac.get(mac)
        if station is not None and station.here and mac in state.heard:
            out += ways.recounted(state, station)
    return out


def counted(state: State, name: str, removed: events.FlowRemoved, now: float) -> list[Out]:
    """A station's flow at its port has gone, with what it had counted."""
    fields = dict(removed.match)
    mac = str(fields.get("eth_src"))
    station, heard = state.table.by_mac.get(mac), state.heard.get(mac)
    if station is None or heard is None or not station.here or station.place.switch != name:
        return []
    if fields.get("in_port") != number(state, station.place):
        return []
    if removed.packets:
        state.heard[mac] = Heard(now, again=True)
        return []
    if heard.doubted or now - heard.at_s > SILENT_S:
        return forget(state, station)
    return []


def make_room(state: State, place: Place, now: float, *, told: bool) -> tuple[bool, list[Out]]:
    """Whether there is room for one more at a place, and what that takes.

    For whom only frames show there may be room a moment later, when the switch has told that
    another one is silent.
    """
    bounds = state.config.bounds
    found = [state.table.by_mac[mac] for mac in state.heard]
    if not told and not place.fixed:
        there = [station for station in found if station.here and station.place == place]
        if len(there) >= bounds.port_stations:
            return _displaced(state, there, now)
    if place.fixed and len(state.table.at(place)) >= max(1, bounds.stations // 2):
        # Made-up hosts must not fill the table.
        return False, []
    if len(state.table.by_mac) < bounds.stations:
        return True, []
    if told:
        return True, forget(state, _longest_unheard(state, found)) if found else []
    return _displaced(state, found, now)


def _displaced(state: State, found: list[Station], now: float) -> tuple[bool, list[Out]]:
    """Whether one of them has made room for a station that only frames show."""
    first = _first(state, found)
    open_ = [station for station in first if not state.heard[station.mac].doubted]
    if not open_:
        return False, []
    station = _longest_unheard(state, open_)
    heard = state.heard[station.mac]
    if now - heard.at_s < QUIET_S:
        return False, []
    if not station.here:
        return True, forget(state, station)
    state.heard[station.mac] = replace(heard, doubted=True)
    return False, ways.recounted(state, station)


def _first(state: State, found: list[Station]) -> list[Station]:
    """Stations that were silent since they came, else all: made-up senders do not come back.

    While such are there, however young, the others stay.
    """
    return [station for station in found if not state.heard[station.mac].again] or found


def _longest_unheard(state: State, found: list[Station]) -> Station:
    return min(
        _first(state, found), key=lambda station: (state.heard[station.mac].at_s, station.mac)
    )


def forget(state: State, station: Station) -> list[Out]:
    """Nothing is known of a station any more."""
    state.counters["stations_forgotten"] += 1
    state.table = stations.removed(state.table, station.mac)
    state.heard.pop(station.mac, None)
    state.buffers.forget(station.mac)
    state.freezes.pop(station.mac, None)
    state.due.pop(station.mac, None)
    out: list[Out] = []
    for name, view in state.views.items():
        former = Program(view.flows.pop(station.mac, frozenset()))
        out += [(name, message) for message in difference(former, Program())]
    return out
