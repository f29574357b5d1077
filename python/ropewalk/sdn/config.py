"""The configuration of `ropewalk-sdn`, parsed once into typed values.

docs/sdn.md lists the keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path

from ropewalk.sdn import endpoint, family, reader
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.family import Family
from ropewalk.sdn.openflow.roles import RANKS_MAX
from ropewalk.sdn.reader import NAMESPACE_NAME_MAX, Table

UPLINKS_MAX = 16
FLOWS_MAX = 15
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "esp": 50, "gre": 47}
KINDS = ("tcp", "quic", "udp", "icmp")
CAPACITY_PROBES = ("none", "train", "vps")
_LOOPBACK = "127.0.0.1:6653"
_DATAPATH = re.compile(r"[0-9A-Fa-f]{16}")
_RUN_DIRS = (Path("/run/openvswitch"), Path("/var/run/openvswitch"))
"""Open vSwitch's own; the second is what the first was called once."""


@dataclass(frozen=True)
class Bridge:
    """The bridge and its switch."""

    name: str
    datapath: str
    database: str
    """Socket of ovsdb-server as `ovs-vsctl --db` takes it; "" for the system's."""
    datapath_id: int | None = None
    """The number that the switch gets; None for one of its own."""


@dataclass(frozen=True)
class Tls:
    """Keys of the OpenFlow connection: the controller's, and the switch's for `setup`."""

    key: Path
    certificate: Path
    authority: Path
    switch_key: Path | None
    switch_certificate: Path | None


@dataclass(frozen=True)
class Controller:
    """Where the controller listens, and which others there are."""

    listen: Endpoint
    tls: Tls | None
    others: tuple[Endpoint, ...]
    """Where the switch finds the other controllers."""
    rank: int

    @property
    def targets(self) -> tuple[str, ...]:
        """What the switch connects to, as Open vSwitch writes it."""
        return tuple(self._target(endpoint) for endpoint in (self.listen, *self.others))

    @property
    def rank_among_others(self) -> int | None:
        """The rank where there are others."""
        return self.rank if self.others else None

    def _target(self, endpoint: Endpoint) -> str:
        # Open vSwitch connects to sockets in its run directory alone, compares paths letter by
        # letter, and writes that directory in its own way: so their names without it.
        if endpoint.path is not None:
            return f"unix:{endpoint.path.name}"
        return f"{'ssl' if self.tls else 'tcp'}:{endpoint}"


@dataclass(frozen=True)
class Host:
    """The application's host in one address family."""

    address: str
    """With the length of its prefix."""
    far: str
    """The other end's application (`bicast`), or the gateway the host sees (`balance`)."""

    @property
    def ip(self) -> str:
        """The address alone."""
        return str(ip_interface(self.address).ip)

    @property
    def family(self) -> Family:
        """Its address family."""
        return family.of(self.address)


@dataclass(frozen=True)
class Application:
    """What the bridge works beneath."""

    namespace: str
    interface: str
    port: str
    hosts: tuple[Host, ...]
    """One for each address family."""


@dataclass(frozen=True)
class Way:
    """An uplink in one address family."""

    uplink: str
    address: str
    """With the length of its prefix."""
    gateway: str
    """The next hop."""
    peer: str
    """The other end's address of this path (`bicast`), or the address probed (`balance`)."""

    @property
    def ip(self) -> str:
        """The address alone."""
        return str(ip_interface(self.address).ip)

    @property
    def family(self) -> Family:
        """Its address family."""
        return family.of(self.address)

    @property
    def key(self) -> tuple[str, int]:
        """What it is known by: uplink and version of IP."""
        return (self.uplink, self.family.version)


@dataclass(frozen=True)
class Uplink:
    """One interface with a way out in one address family or both."""

    name: str
    ways: tuple[Way, ...]
    weight: float | None
    rate_mbit: float | None


@dataclass(frozen=True)
class Probe:
    """How paths are probed."""

    interval_s: float
    down_after_s: float
    port: int
    capacity: str
    """How `balance` finds what idle uplinks carry: "none", or a method of `balance.probing`."""
    capacity_interval_s: float


@dataclass(frozen=True)
class Chosen:
    """Flows that are copied: an IP protocol with, perhaps, one of its ports."""

    protocol: int
    port: int | None


@dataclass(frozen=True)
class Bicast:
    """What is copied, and when."""

    copies: int
    when: str
    loss_on: float
    loss_off: float
    packet_bytes_max: int
    chosen: tuple[Chosen, ...]
    remove_copies: bool


@dataclass(frozen=True)
class Balance:
    """How new flows are spread."""

    decide: str
    rule: str
    spread: tuple[str, ...]
    flow_bytes: int
    affinity_minutes: int
    """How long a client keeps its uplink to a site; 0 for not at all."""
    tcp_idle_s: int
    udp_idle_s: int
    icmp_idle_s: int
    zone: int
    """First of the connection tracking zones; one more for each uplink."""


@dataclass(frozen=True)
class Config:
    """One bridge in one mode; exactly one of `bicast` and `balance` is there."""

    path: Path
    bridge: Bridge
    controller: Controller
    application: Application
    uplinks: tuple[Uplink, ...]
    probe: Probe
    bicast: Bicast | None
    balance: Balance | None
    socket: Path
    state_dir: Path

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways of all uplinks, in their order."""
        return tuple(way for uplink in self.uplinks for way in uplink.ways)

    def number_of(self, uplink: str) -> int:
        """An uplink's number, from 1."""
        return [known.name for known in self.uplinks].index(uplink) + 1

    @property
    def mode(self) -> str:
        """ "bicast" or "balance"."""
        return "bicast" if self.bicast else "balance"


def read(path: Path) -> Config:
    """Reads and checks a file of mode `bicast` or `balance`.

    Raises:
        ConfigError: with every error, each naming file, key and remedy.
    """
    return read_table(reader.load(path))


def read_table(top: Table) -> Config:
    """Checks the top table of a file of mode `bicast` or `balance`.

    Raises:
        ConfigError: with every error, each naming file, key and remedy.
    """
    mode = top.choice("mode", ("bicast", "balance"), "bicast")
    bridge = _bridge(top.table("bridge"))
    controller = read_controller(top.table("controller"), bridge.database, bridge.name)
    if controller.tls is not None and bridge.datapath_id is None:
        top.error(
            "bridge.datapath_id",
            "missing; with TLS the switch's certificate names it",
            "write 16 hexadecimal digits of your own",
        )
    uplinks = tuple(_uplink(table, mode) for table in top.tables("uplink", UPLINKS_MAX))
    if not uplinks:
        top.error("uplink", "missing", "describe each uplink in an [[uplink]]")
    _distinct(top, uplinks)
    other = "balance" if mode == "bicast" else "bicast"
    if top.has(other):
        top.error(other, f'is for mode = "{other}"', f'remove it, or write mode = "{other}"')
        top.table(other)
    application = _application(top.table("application"), mode)
    _same_families(top, application, uplinks)
    _names_once(top, bridge, application, uplinks)
    probe = _probe(top.table("probe"), mode)
    bicast = _bicast(top.table("bicast"), len(uplinks)) if mode == "bicast" else None
    if bicast and bicast.when == "loss" and not probe.interval_s:
        top.error(
            "probe.interval_ms", "0", 'loss is measured by probes: raise it for when = "loss"'
        )
    config = Config(
        path=top.path,
        bridge=bridge,
        controller=controller,
        application=application,
        uplinks=uplinks,
        probe=probe,
        bicast=bicast,
        balance=_balance(top.table("balance")) if mode == "balance" else None,
        socket=top.file("socket", f"/run/ropewalk/sdn-{bridge.name}.sock") or Path(),
        state_dir=top.file("state_dir", "/var/lib/ropewalk") or Path(),
    )
    top.finish()
    return config


def _bridge(table: Table) -> Bridge:
    bridge = Bridge(
        table.name("name", "ropebr0"),
        table.choice("datapath", ("netdev", "system"), "netdev"),
        read_database(table),
        read_datapath(table) if table.has("datapath_id") else None,
    )
    table.end()
    return bridge


def read_datapath(table: Table) -> int:
    """The key datapath_id; 0 when it is wrong, which is noted."""
    text = table.text("datapath_id")
    datapath = int(text, 16) if _DATAPATH.fullmatch(text) else 0
    # Open vSwitch takes 0 for none, and makes one up.
    if text and not datapath:
        table.error("datapath_id", f'"{text}" is none', "write its 16 hexadecimal digits")
    return datapath


def read_database(table: Table) -> str:
    """Which ovsdb-server is asked, "" for the system's."""
    text = table.text("database", "")
    if text and not text.startswith(("unix:/", "tcp:", "ssl:")):
        table.error("database", f'"{text}" is no server', 'write it like "unix:/run/…/db.sock"')
    return text


def read_controller(table: Table, database: str, name: str) -> Controller:
    """The table [controller].

    Without TLS what listens by default is a socket in the directory of the switch's `database`,
    where only the switch's user can connect, and the switch connects to no others.
    """
    run_dir = _RUN_DIRS[0]
    if database.startswith("unix:/"):
        run_dir = Path(database.removeprefix("unix:")).parent
    own = _LOOPBACK if table.has("tls") else f"unix:{run_dir}/ropewalk-{name}.sock"
    listen = table.endpoint("listen", own) or Endpoint("127.0.0.1", 6653)
    if listen.is_anywhere:
        table.error("listen", f'"{listen}" is no address', "name the one that switches connect to")
    if listen.path is not None and table.has("tls"):
        table.error("listen", "TLS is not for sockets in the file system", f'write "{_LOOPBACK}"')
    elif listen.path is not None and listen.path.parent not in (run_dir, *_RUN_DIRS):
        table.error(
            "listen",
            f"Open vSwitch connects to sockets in {run_dir} only",
            "choose one there; its run directory is that of bridge.database",
        )
    others = tuple(_others(table, listen))
    rank = table.whole("rank", 1, 1, RANKS_MAX)
    tls = None
    if table.has("tls"):
        keys = table.table("tls")
        tls = Tls(
            keys.file("key") or _needed(keys, "key"),
            keys.file("certificate") or _needed(keys, "certificate"),
            keys.file("authority") or _needed(keys, "authority"),
            keys.file("switch_key"),
            keys.file("switch_certificate"),
        )
        if (tls.switch_key is None) != (tls.switch_certificate is None):
            lacks = "switch_key" if tls.switch_key is None else "switch_certificate"
            keys.error(lacks, "missing", "give switch_key and switch_certificate, or neither")
        keys.end()
    table.end()
    return Controller(listen, tls, others, rank)


def _others(table: Table, listen: Endpoint) -> list[Endpoint]:
    found: list[Endpoint] = []
    for text in table.words("others", RANKS_MAX - 1):
        try:
            other = endpoint.parse(text)
        except ValueError as error:
            table.error("others", str(error), 'write it like "192.0.2.1:6653"')
            continue
        if other in (listen, *found) or other.is_anywhere:
            table.error("others", f'"{other}" is no other controller', "each has its own address")
        found.append(other)
    return found


def _needed(table: Table, key: str) -> Path:
    table.error(key, "missing", "name the file; TLS needs key, certificate and authority")
    return Path()


def _application(table: Table, mode: str) -> Application:
    interface = table.name("interface", "ropeapp0")
    key = "peer" if mode == "bicast" else "gateway"
    addresses, fars = table.interfaces("address"), table.addresses(key)
    _paired(table, addresses, key, fars)
    application = Application(
        namespace=table.name("namespace", "", length_max=NAMESPACE_NAME_MAX),
        interface=interface,
        port=table.name("port", "ropesw0"),
        hosts=tuple(
            Host(address, fars[version])
            for version, address in addresses.items()
            if version in fars
        ),
    )
    for host in application.hosts:
        if host.ip == host.far:
            table.error(key, f"{host.far} is address itself", "name the other one")
    if application.interface == application.port:
        table.error("port", "the same as interface", "the two ends need different names")
    table.end()
    return application


def _uplink(table: Table, mode: str) -> Uplink:
    name = table.name("name")
    addresses = table.interfaces("address")
    gateways = table.addresses("gateway", "" if mode == "bicast" else None)
    weight = rate = None
    if mode == "bicast":
        peers = table.addresses("peer")
        _paired(table, addresses, "peer", peers)
        # Without a gateway the peer is a neighbour.
        gateways = {**peers, **gateways}
        if gateways.keys() != peers.keys():
            _paired(table, addresses, "gateway", gateways)
    else:
        peers = {**gateways, **table.addresses("probe", "")}
        weight = table.number("weight", 1, 0.001, 1000, "") if table.has("weight") else None
        rate = (
            table.number("rate_mbit", 1, 0.01, 400_000, "Mbit/s")
            if table.has("rate_mbit")
            else None
        )
        _paired(table, addresses, "gateway", gateways)
        _paired(table, addresses, "probe", peers)
    table.end()
    ways = tuple(
        Way(name, address, gateways[version], peers[version])
        for version, address in addresses.items()
        if version in gateways and version in peers
    )
    for way in ways:
        if way.ip in (way.peer, way.gateway):
            wrong = "peer" if mode == "bicast" else "gateway"
            table.error(wrong, f"{way.ip} is address itself", "name the other one")
    return Uplink(name, ways, weight, rate)


def _paired(table: Table, addresses: dict[int, str], key: str, others: dict[int, str]) -> None:
    """Each address family is at both ends, or at none."""
    for version in sorted(addresses.keys() ^ others.keys()):
        # What could not be read at all has its own error.
        if addresses and others:
            has, lacks = ("address", key) if version in addresses else (key, "address")
            table.error(
                lacks, f"no IPv{version} address", f"{has} has one: give both or remove that"
            )


def _same_families(top: Table, application: Application, uplinks: tuple[Uplink, ...]) -> None:
    """What the application speaks has a way out, and no way is for what it does not speak."""
    spoken = {host.family.version for host in application.hosts}
    out = {way.family.version for uplink in uplinks for way in uplink.ways}
    if not spoken or not out:
        return
    for version in sorted(spoken - out):
        top.error(
            "uplink", f"none has an IPv{version} address", "application.address has: add or remove"
        )
    for version in sorted(out - spoken):
        top.error(
            "application.address",
            f"no IPv{version} address",
            "an uplink has one: addresses are rewritten within a family, so add or remove",
        )


def _distinct(top: Table, uplinks: tuple[Uplink, ...]) -> None:
    for what, values in (
        ("name", [uplink.name for uplink in uplinks]),
        ("address", [way.ip for uplink in uplinks for way in uplink.ways]),
    ):
        if len(set(values)) < len(values):
            top.error(f"uplink.{what}", "the same twice", f"each uplink needs its own {what}")


def _names_once(
    top: Table, bridge: Bridge, application: Application, uplinks: tuple[Uplink, ...]
) -> None:
    """No interface is used for two things; the two ends of the application's pair are
    compared where they are read."""
    taken = {"lo": "the loopback interface"}
    if bridge.name in taken:
        top.error("bridge.name", "is the loopback interface", "choose another name")
    taken[bridge.name] = "bridge.name"
    if application.port in taken:
        top.error("application.port", f"is {taken[application.port]}", "choose another name")
    taken[application.port] = "application.port"
    if not application.namespace:
        if application.interface in ("lo", bridge.name):
            other = taken[application.interface]
            top.error("application.interface", f"is {other}", "choose another name")
        taken[application.interface] = "application.interface"
    for number, uplink in enumerate(uplinks, 1):
        if uplink.name in taken:
            top.error(
                f"uplink[{number}].name",
                f"is {taken[uplink.name]}",
                "name the interface of an uplink",
            )


def _probe(table: Table, mode: str) -> Probe:
    for key in ("capacity", "capacity_interval_s"):
        if mode != "balance" and table.has(key):
            table.error(key, 'is for mode = "balance"', "remove it")
    probe = Probe(
        table.number("interval_ms", 100, 0, 60_000, "ms, 0 for none") / 1000,
        table.number("down_after_ms", 1000, 100, 600_000, "ms") / 1000,
        table.whole("port", 4790, 1, 65_534),
        table.choice("capacity", CAPACITY_PROBES, "none"),
        table.number("capacity_interval_s", 300, 10, 86_400, "s"),
    )
    table.end()
    return probe


def _bicast(table: Table, uplinks: int) -> Bicast:
    chosen = []
    for row in table.tables("flow", FLOWS_MAX):
        protocol = row.choice("protocol", tuple(PROTOCOLS), "tcp")
        port = row.whole("port", 1, 1, 65_535) if row.has("port") else None
        if port is not None and protocol not in ("tcp", "udp"):
            row.error("port", f"{protocol} has no ports", "remove it")
        row.end()
        chosen.append(Chosen(PROTOCOLS[protocol], port))
    bicast = Bicast(
        copies=table.whole("copies", 2, 1, UPLINKS_MAX),
        when=table.choice("when", ("always", "loss"), "always"),
        loss_on=table.number("loss_on_percent", 1, 0.01, 100, "%") / 100,
        loss_off=table.number("loss_off_percent", 0.3, 0, 100, "%") / 100,
        packet_bytes_max=table.whole("packet_bytes_max", 0, 0, 65_535, "bytes, 0 for any"),
        chosen=tuple(chosen),
        remove_copies=table.flag("remove_copies", False),
    )
    if uplinks and bicast.copies > uplinks:
        table.error("copies", f"{bicast.copies} copies", f"there are {uplinks} uplinks: use fewer")
    if bicast.loss_off > bicast.loss_on:
        table.error("loss_off_percent", "above loss_on_percent", "make it smaller")
    table.end()
    return bicast


def _balance(table: Table) -> Balance:
    balance = Balance(
        decide=table.choice("decide", ("controller", "switch"), "controller"),
        rule=table.choice(
            "rule", ("weighted-round-robin", "least-expected-finish"), "weighted-round-robin"
        ),
        spread=table.texts("spread", KINDS, KINDS),
        flow_bytes=table.whole("flow_bytes", 50_000, 1, 1_000_000_000, "bytes"),
        affinity_minutes=table.whole("affinity_minutes", 0, 0, 1_440, "minutes"),
        tcp_idle_s=table.whole("tcp_idle_s", 7_200, 10, 1_000_000, "s"),
        udp_idle_s=table.whole("udp_idle_s", 180, 1, 1_000_000, "s"),
        icmp_idle_s=table.whole("icmp_idle_s", 30, 1, 1_000_000, "s"),
        zone=table.whole("zone", 4700, 1, 65_000),
    )
    table.end()
    return balance
