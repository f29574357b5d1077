"""Who is where.

Events of different access points come in any order. What is known is therefore where a station is
now: being at B means having left A, and leaving a place where it is not counts as stale. Events of
one access point keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SETTLED_S = 1.0
"""A frame that need not be a station's first at an access point moves it only after so long."""


@dataclass(frozen=True)
class Place:
    """A port of a switch; a host's does not move."""

    switch: str
    port: str
    fixed: bool = False


@dataclass(frozen=True)
class Station:
    """A station or host. Not `here`: it has left `place` and is not yet anywhere else."""

    mac: str
    slot: int
    place: Place
    here: bool
    since_s: float
    told: bool
    """Whether an access point has said so, or only its frames."""
    address: str = ""
    """IPv4, when known."""


@dataclass(frozen=True)
class Table:
    """All stations by MAC address."""

    by_mac: Mapping[str, Station] = field(default_factory=dict)

    def at(self, place: Place) -> list[Station]:
        """Those at a place."""
        return [
            station
            for station in self.by_mac.values()
            if station.here
            and (station.place.switch, station.place.port) == (place.switch, place.port)
        ]


def joined(table: Table, mac: str, place: Place, now: float, told: bool, maximum: int) -> Table:
    """A station is at a place; the same table when that is known, or the table is full."""
    former = table.by_mac.get(mac)
    if former and former.here and former.place == place:
        if told and not former.told:
            return _with(table, replace(former, told=True))
        return table
    if former:
        return _with(table, replace(former, place=place, here=True, since_s=now, told=told))
    if len(table.by_mac) >= maximum:
        return table
    return _with(table, Station(mac, _slot(table), place, True, now, told))


def left(table: Table, mac: str, switch: str, port: str, now: float) -> Table:
    """A station has left a place; the same table when it is not there (stale)."""
    station = table.by_mac.get(mac)
    if station is None or not station.here:
        return table
    if (station.place.switch, station.place.port) != (switch, port):
        return table
    return _with(table, replace(station, here=False, since_s=now))


def removed(table: Table, mac: str) -> Table:
    """Forgets a station."""
    return Table({key: value for key, value in table.by_mac.items() if key != mac})


def addressed(table: Table, mac: str, address: str) -> Table:
    """A station has an address."""
    station = table.by_mac.get(mac)
    if station is None or station.address == address:
        return table
    return _with(table, replace(station, address=address))


def may_move(table: Table, mac: str, place: Place, announces: bool, now: float) -> bool:
    """Whether a frame at a place shows that its sender is there now.

    A gratuitous ARP packet or an 802.2 XID frame announces itself. Another frame may have been on
    its way when the station left.
    """
    station = table.by_mac.get(mac)
    if station is None:
        return True
    if station.place.fixed or (station.here and station.place == place):
        return False
    return announces or not station.here or now - station.since_s >= SETTLED_S


def _with(table: Table, station: Station) -> Table:
    return Table({**table.by_mac, station.mac: station})


def _slot(table: Table) -> int:
    used = {station.slot for station in table.by_mac.values()}
    return next(number for number in range(len(used) + 1) if number not in used)
