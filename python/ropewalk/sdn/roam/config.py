"""The configuration of roaming: switches, links, access ports, bounds (docs/sdn-roam.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropewalk.sdn import reader
from ropewalk.sdn.config import Controller, read_controller, read_database, read_datapath
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.reader import INTERFACE_NAME_MAX, Table, is_name

SCHEMES = ("replay", "zwa-adaptive", "zwa", "bare")
SWITCHES_MAX = 256
LINKS_MAX = 1024
PORTS_MAX = 256


@dataclass(frozen=True)
class Switch:
    """A bridge: `access` ports carry stations, `hosts` ports what does not move."""

    name: str
    datapath: int
    access: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Link:
    """Two ports that are joined; routes are those of the least sum of costs."""

    a: tuple[str, str]
    b: tuple[str, str]
    cost: float


@dataclass(frozen=True)
class Bounds:
    """What may be kept of stations' packets, and what switches may ask.

    `copies_per_s` is a station's share of packets to the controller, `new_per_s` an access port's
    for stations that are not known.
    """

    station_bytes: int = 4 << 20
    station_packets: int = 4096
    all_bytes: int = 64 << 20
    age_s: float = 30.0
    stations: int = 1024
    port_stations: int = 64
    copies_per_s: int = 4000
    new_per_s: int = 50


@dataclass(frozen=True)
class Config:
    """Everything."""

    path: Path
    scheme: str
    """How moves are treated (`policy.py`)."""
    frames: bool
    """Whether a station's own frames say where it is, or access points' notices alone."""
    controller: Controller
    notices: Endpoint | None
    """Where agents at access points connect."""
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    bounds: Bounds
    database: str
    socket: Path
    state_dir: Path

    def switch(self, name: str) -> Switch | None:
        """The switch of a name."""
        return next((switch for switch in self.switches if switch.name == name), None)

    def has_access(self, name: str, port: str) -> bool:
        """Whether stations may be at this port of the switch of this name."""
        switch = self.switch(name)
        return switch is not None and port in switch.access


def read(path: Path) -> Config:
    """Reads and checks a file.

    Raises:
        ConfigError: with every error, each naming file, key and remedy.
    """
    return read_table(reader.load(path))


def read_table(top: Table) -> Config:
    """Checks the top table of a file.

    Raises:
        ConfigError: with every error, each naming file, key and remedy.
    """
    top.choice("mode", ("roam",), "roam")
    roam = top.table("roam")
    switches = tuple(_switch(table) for table in top.tables("switch", SWITCHES_MAX))
    if not switches:
        top.error("switch", "missing", "describe each bridge in a [[switch]]")
    for what, values in (
        ("name", [switch.name for switch in switches]),
        ("datapath_id", [switch.datapath for switch in switches]),
    ):
        if len(set(values)) < len(values):
            top.error(f"switch.{what}", "the same twice", f"each switch needs its own {what}")
    names = {switch.name for switch in switches}
    database = read_database(top)
    config = Config(
        path=top.path,
        scheme=roam.choice("scheme", SCHEMES, "replay"),
        frames=roam.flag("frames", True),
        controller=read_controller(top.table("controller"), database, "roam"),
        notices=_notices(roam),
        switches=switches,
        links=tuple(_link(table, names) for table in top.tables("link", LINKS_MAX)),
        bounds=_bounds(top.table("bounds")),
        database=database,
        socket=top.file("socket", "/run/ropewalk/sdn-roam.sock") or Path(),
        state_dir=top.file("state_dir", "/var/lib/ropewalk") or Path(),
    )
    roam.end()
    if config.notices == config.controller.listen:
        top.error("roam.notices", "the same as controller.listen", "choose another port")
    _ports_once(top, config)
    _joined(top, config)
    top.finish()
    return config


def _notices(table: Table) -> Endpoint | None:
    endpoint = table.endpoint("notices", "")
    if endpoint is not None and endpoint.path is not None:
        table.error("notices", "is a file", 'agents need an address like "192.0.2.1:6654"')
        return None
    return endpoint


def _switch(table: Table) -> Switch:
    datapath = read_datapath(table)
    switch = Switch(
        table.name("name"),
        datapath,
        _ports(table, "access"),
        _ports(table, "hosts"),
    )
    table.end()
    return switch


def _ports(table: Table, key: str) -> tuple[str, ...]:
    words = table.words(key, PORTS_MAX)
    for word in words:
        if not _is_port(word):
            table.error(key, f'"{word}" is no interface', "`ip link` lists them")
    return words


def _is_port(word: str) -> bool:
    return is_name(word) and len(word) <= INTERFACE_NAME_MAX and word != "lo"


def _link(table: Table, names: set[str]) -> Link:
    ends = []
    for key in ("a", "b"):
        switch, _, port = table.text(key).partition(":")
        if switch not in names or not _is_port(port):
            known = ", ".join(sorted(names)[:8])
            problem = f'"{switch}:{port}" is no port of a switch here ({known})'
            table.error(key, problem, 'write it like "s1:s1-s2"')
        ends.append((switch, port))
    link = Link(ends[0], ends[1], table.number("cost", 1, 0.001, 1e6, ""))
    if link.a == link.b:
        table.error("b", "the same as a", "name the port at the other end")
    table.end()
    return link


def _bounds(table: Table) -> Bounds:
    default = Bounds()
    bounds = Bounds(
        station_bytes=table.whole("station_bytes", default.station_bytes, 0, 1 << 30, "bytes"),
        station_packets=table.whole("station_packets", default.station_packets, 0, 1 << 20),
        all_bytes=table.whole("all_bytes", default.all_bytes, 0, 1 << 34, "bytes"),
        age_s=table.number("age_s", default.age_s, 0.1, 600, "s"),
        stations=table.whole("stations", default.stations, 1, 4096),
        port_stations=table.whole("port_stations", default.port_stations, 1, 4096),
        copies_per_s=table.whole("copies_per_s", default.copies_per_s, 1, 100_000),
        new_per_s=table.whole("new_per_s", default.new_per_s, 1, 10_000),
    )
    table.end()
    return bounds


def _joined(top: Table, config: Config) -> None:
    """All switches are one network."""
    joined = {config.switches[0].name} if config.switches else set()
    left = list(config.links)
    while found := [link for link in left if {link.a[0], link.b[0]} & joined]:
        joined |= {end[0] for link in found for end in (link.a, link.b)}
        left = [link for link in left if link not in found]
    apart = [switch.name for switch in config.switches if switch.name not in joined]
    if apart:
        top.error("link", f"none leads to {', '.join(apart)}", "join all switches by [[link]]")


def _ports_once(top: Table, config: Config) -> None:
    seen = set()
    ends = [end for link in config.links for end in (link.a, link.b)]
    for switch in config.switches:
        ends += [(switch.name, port) for port in switch.access + switch.hosts]
    for end in ends:
        if end in seen:
            top.error("link", f"{end[0]}:{end[1]} is used twice", "a port has one purpose")
        if end[0] == end[1]:
            top.error("switch", f"{end[0]}:{end[1]} is the bridge", "name an interface")
        seen.add(end)
