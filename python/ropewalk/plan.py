"""An experiment as the runners read it: the plan of `crates/plan`, as frozen dataclasses.

Carriers on Open vSwitch are of Python only (`ropewalk/lab/runner/ovs.py`).

Units are in the names: rates in Mbit/s of IP packets, delays in milliseconds one way, times in
seconds. Absent settings are not written, so that the runner's defaults hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeAlias

import tomli_w

Direction: TypeAlias = Literal["down", "up"]
Congestion: TypeAlias = Literal["new-reno", "cubic", "bbr"]
Aqm: TypeAlias = Literal["none", "codel", "fq-codel", "pie"]
"""How the queue of a link is managed."""
OvsPolicy: TypeAlias = Literal[
    "unicast", "c-bicast", "bi-bicast", "bi-bicast-removed", "bi-bicast-small", "bi-bicast-by-loss"
]
OvsCase: TypeAlias = Literal[
    "set-up",
    "shares",
    "new-flows",
    "controller-killed",
    "uplink-dies",
    "capacity",
    "idle-capacity",
    "capacity-steps",
    "pages",
]
OvsDecider: TypeAlias = Literal["controller", "switch"]
OvsProbe: TypeAlias = Literal["none", "train", "vps"]
OvsScheme: TypeAlias = Literal["bare", "zwa", "zwa-adaptive", "replay"]
OvsHops: TypeAlias = Literal[2, 3, 5, 7]
Protocol: TypeAlias = Literal["http/1.1", "h2", "h3"]
"""Protocols of pages, by the names of ALPN (RFC 7301)."""

TUNNEL_OVERHEAD = (1500 - 64 - 11) / 1500
"""Inner TCP payload by outer IP bytes of a full packet: `crates/plan/src/ceiling.rs`."""
DIRECT_OVERHEAD = (1500 - 52) / 1500
"""TCP payload by IP bytes of a full packet of 1,500 bytes."""


@dataclass(frozen=True)
class Gilbert:
    """Gilbert-Elliott loss; all values are probabilities, 0 to 1."""

    p: float
    r: float
    loss_good: float = 0.0
    loss_bad: float = 1.0


@dataclass(frozen=True)
class Link:
    """Settings of one direction of a path; what is `None` keeps its value."""

    rate_mbit: float | None = None
    trace: str | None = None
    trace_start: str | None = None
    """Where in the recording the link begins: a time such as `30s`, or `seed` to draw it."""
    delay_ms: float | None = None
    jitter_ms: float | None = None
    reorder: bool | None = None
    loss: float | None = None
    loss_burst: float | None = None
    gilbert: Gilbert | None = None
    queue_bytes: int | None = None
    queue_packets: int | None = None
    mtu: int | None = None
    blackhole: bool | None = None
    aqm: Aqm | None = None
    ecn: bool | None = None
    aqm_target_ms: float | None = None
    aqm_interval_ms: float | None = None
    ce_threshold_ms: float | None = None


@dataclass(frozen=True)
class Change:
    """New settings of a path from `at_s` seconds after the start of the traffic."""

    at_s: float
    both: Link = Link()
    up: Link = Link()
    down: Link = Link()


@dataclass(frozen=True)
class Path:
    """One link between site and hub; "up" leaves the site."""

    name: str
    both: Link = Link()
    up: Link = Link()
    down: Link = Link()
    change: tuple[Change, ...] = ()
    leaving_s: tuple[float, ...] = ()
    """When the site's tunnel is told that the path will end; kernel only."""
    through: str | None = None
    """The shared link that the path goes on over towards the hub."""

    def down_mbit(self) -> float | None:
        """Capacity towards the site, if it is a fixed rate."""
        return self.down.rate_mbit if self.down.rate_mbit is not None else self.both.rate_mbit


@dataclass(frozen=True)
class SharedLink:
    """A link that paths, and other such links, go on over towards the hub."""

    name: str
    both: Link = Link()
    up: Link = Link()
    down: Link = Link()
    change: tuple[Change, ...] = ()
    through: str | None = None


@dataclass(frozen=True)
class Direct:
    """A path without any tunnel; the first one unless named."""

    path: str | None = None


@dataclass(frozen=True)
class Tunnel:
    """A Ropewalk tunnel; what is `None` is the program's default."""

    scheduler: str | None = None
    congestion: str | None = None
    protect_up: str | None = None
    protect_down: str | None = None
    paths: tuple[str, ...] | None = None
    freeze: Literal["off", "planned", "custody"] | None = None
    accelerate: bool | None = None
    order: Literal["on", "off"] | None = None
    compress_headers: bool | None = None
    coupled: bool | None = None
    """All paths count as paths through one bottleneck."""
    send_buffer: int | None = None
    """Packets of each path's send buffer; packets are bound to a path late unless given."""


@dataclass(frozen=True)
class Relay:
    """Tunnels in a row with the same settings, over the paths named for each hop."""

    hops: tuple[tuple[str, ...], ...]
    tunnel: Tunnel = Tunnel()


@dataclass(frozen=True)
class Chain:
    """Paths in a row without any tunnel, from the site to the server."""

    hops: tuple[str, ...]


@dataclass(frozen=True)
class TcpNc:
    """Sessions of TCP/NC in a row, as far as its authors publish it (`crates/tcpnc`).

    `n` and `k` fix the coding; without them it follows the losses.
    """

    hops: tuple[str, ...]
    n: int | None = None
    k: int | None = None


@dataclass(frozen=True)
class Mptcp:
    """MPTCP over all paths, as Linux has it; in the simulator without shared links and ECN."""


@dataclass(frozen=True)
class Balance:
    """`ropewalk balance` over all paths; kernel only. What is `None` is the program's default."""

    mode: str | None = None
    affinity_minutes: int | None = None
    affinity_sites: str | None = None


@dataclass(frozen=True)
class RoundRobin:
    """A firewall rule that gives connections to all paths in turn; kernel only."""


@dataclass(frozen=True)
class Peer:
    """Another program, by the name the testbed knows it under; kernel only."""

    peer: str


@dataclass(frozen=True)
class OvsBicast:
    """OpenVPN above Open vSwitch that copies over all paths; `ovs` only.

    `policy` says which end copies: none, the client (`c-bicast`), both; and with both, whether
    second copies are removed in front of OpenVPN, or only small packets are copied, or only while
    the first path loses packets. `congestion` is that of OpenVPN's own connection, and
    `tunnel_queue` how many packets wait in front of it at most, unless it is OpenVPN's 500.
    `send_buffer_bytes` is what OpenVPN's sockets may hold at first; Linux lets the 16 KiB that it
    gives grow with the window. `send_limit_bytes` is OpenVPN's `--sndbuf`, which stops that.
    `multi_client` runs the server with `--mode server`. `sack` is
    whether OpenVPN's connection has selective acknowledgements (RFC 2018) and RACK (RFC 8985). The
    download begins `ahead_s` before the first ping.
    """

    policy: OvsPolicy
    congestion: Congestion
    tunnel_queue: int | None = None
    protocol: Literal["tcp", "udp"] = "tcp"
    send_buffer_bytes: int | None = None
    send_limit_bytes: int | None = None
    multi_client: bool = False
    sack: bool = True
    ahead_s: float = 0.0


@dataclass(frozen=True)
class OvsBalance:
    """Open vSwitch that gives each new flow one of the paths; `ovs` only.

    `case` is the load and what happens to it (`python/ovs_testbed/balance.py`), `decide` who
    chooses. Without `weights` the paths' shares follow what they are found to carry, with `probe`
    also while they carry nothing. The case `pages` is for pages in a browser, on the runner
    `kernel`.
    """

    case: OvsCase
    decide: OvsDecider = "controller"
    weights: tuple[float, ...] = ()
    probe: OvsProbe = "none"
    affinity_minutes: int = 0


@dataclass(frozen=True)
class Move:
    """A station leaves its access point and joins the next after `gap_s`.

    `notice_ms` is how long the controller is not told that it has left; when that notice is `lost`,
    it learns so by the arrival.
    """

    gap_s: float
    notice_ms: float = 0.0
    lost: bool = False


@dataclass(frozen=True)
class OvsRoam:
    """A station that moves between access points of eight switches during a download; `ovs` only.

    Every link is as the first path; `hops` are links between sender and station at first.
    `initial_window` is the sender's, in segments. `compared` gives the download as much time after
    a return as those have whose sender waits for a timer: what is compared lasts equally long. With
    `agents` only the agents at the access points say where the station is, by hostapd's events.
    The download is over IPv4 unless `ipv6`.
    """

    scheme: OvsScheme
    hops: OvsHops
    moves: tuple[Move, ...]
    sack: bool = True
    initial_window: int | None = None
    compared: bool = False
    agents: bool = False
    ipv6: bool = False


@dataclass(frozen=True)
class OvsRoamWifi(OvsRoam):
    """`OvsRoam` over radios of 802.11, which the kernel emulates; `ovs` only.

    The station leaves with a frame that says so. After a gap of 0 s it goes straight from one
    access point to the next, as phones roam, and the former one is not told.
    """


Carrier: TypeAlias = (
    Direct
    | Tunnel
    | Relay
    | Chain
    | TcpNc
    | Mptcp
    | Balance
    | RoundRobin
    | Peer
    | OvsBicast
    | OvsBalance
    | OvsRoam
)


@dataclass(frozen=True)
class Tcp:
    """Bulk TCP connections that always have something to send.

    `segment` is the most data in a segment, bytes. With `Relay`, `Chain` and `TcpNc`, `enter` is
    the gateway that the host of the site's side is at, from 1, and `access` its own link to it;
    `plain` hosts have no TCP options. `window` is about the receiver's largest window in bytes;
    pauses are reported then.
    `duplicates`, for the simulator only: losses are found by so many segments that arrived
    beyond, instead of by time.
    `beside` names a path or a shared link: the connections go from hosts of their own at its site's
    end to the server, beside the carrier. With `tunnel`, a site of their own has a tunnel over that
    link to the carrier's hub. They stop at `until_s`, and use ECN with `ecn`.
    """

    flows: int = 1
    congestion: Congestion = "cubic"
    direction: Direction = "down"
    start_s: float = 0.0
    segment: int | None = None
    window: int | None = None
    plain: bool | None = None
    duplicates: int | None = None
    enter: int | None = None
    access: Link = Link()
    beside: str | None = None
    tunnel: bool | None = None
    until_s: float | None = None
    ecn: bool | None = None


@dataclass(frozen=True)
class Quic:
    """Bulk QUIC connections with a fixed packet threshold, RFC 9002 section 6.1.1."""

    flows: int = 1
    congestion: Congestion = "cubic"
    direction: Direction = "down"
    start_s: float = 0.0
    packet_threshold: int = 3


@dataclass(frozen=True)
class Ping:
    """Echo requests from the site, one every `interval_s` (at least 10 ms)."""

    interval_s: float = 0.1


@dataclass(frozen=True)
class Call:
    """One small packet every `interval_s` each way; in time when under way at most `deadline_s`."""

    interval_s: float = 0.02
    bytes: int = 160
    deadline_s: float = 0.15


@dataclass(frozen=True)
class Web:
    """Page loads one after the other."""

    users: int = 1
    objects: int = 42
    pause_s: float = 1.0


@dataclass(frozen=True)
class Pages:
    """Pages that a real browser loads, of which `ropewalk.lab.browser` knows; for no program.

    `count` pages, each begun `every_s` after the one before or as soon as that has been looked at.
    All sizes are `scale` times those that are drawn. With `video`, a film plays beside them;
    without any page, for the duration of the plan.
    """

    protocol: Protocol = "http/1.1"
    count: int = 60
    every_s: float = 0.0
    scale: float = 1.0
    video: bool = False


Traffic: TypeAlias = Tcp | Quic | Ping | Call | Web | Pages

_KINDS: dict[type, str] = {
    Tcp: "tcp",
    Quic: "quic",
    Ping: "ping",
    Call: "call",
    Web: "web",
    Pages: "pages",
}


@dataclass(frozen=True)
class Plan:
    """One experiment: paths, what carries the traffic, and the traffic."""

    name: str
    duration_s: float
    path: tuple[Path, ...]
    carrier: Carrier = Direct()
    traffic: tuple[Traffic, ...] = ()
    warmup_s: float = 0.0
    seed: int = 1
    link: tuple[SharedLink, ...] = ()

    def with_seed(self, seed: int) -> Plan:
        """This plan with another seed."""
        return replace(self, seed=seed)

    def to_toml(self) -> str:
        """The plan as the programs read it.

        Raises:
            ValueError: when a text is not Unicode; the message names the key.
        """
        return dumps(
            {
                "name": self.name,
                "seed": self.seed,
                "duration": _seconds(self.duration_s),
                "warmup": _seconds(self.warmup_s),
                "path": [_settings(path) for path in self.path],
                **({"link": [_settings(link) for link in self.link]} if self.link else {}),
                "carrier": _carrier(self.carrier),
                "traffic": [
                    {"kind": _KINDS[type(traffic)], **_settings(traffic)}
                    for traffic in self.traffic
                ],
            }
        )


def dumps(table: Mapping[str, Any]) -> str:
    """A plan's keys as TOML.

    Raises:
        ValueError: when a value has no place in TOML; the message names the key.
    """
    for key, value in table.items():
        try:
            # A lone surrogate is in no UTF-8 file.
            tomli_w.dumps({key: value}).encode()
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{key}: {value!r} has no place in a plan") from error
    return tomli_w.dumps(table)


def paths_used(plan: Plan) -> tuple[Path, ...]:
    """The paths the carrier may use."""
    match plan.carrier:
        case Direct(path=None):
            return plan.path[:1]
        case Direct(path=name):
            return tuple(path for path in plan.path if path.name == name)
        case Tunnel(paths=names) if names is not None:
            return tuple(path for path in plan.path if path.name in names)
        case Relay(hops=hops):
            return tuple(path for path in plan.path if any(path.name in hop for hop in hops))
        case Chain(hops=names) | TcpNc(hops=names):
            return tuple(path for path in plan.path if path.name in names)
        case _:
            return plan.path


def capacity_mbit(plan: Plan) -> float:
    """Sum of the fixed rates towards the site of the paths in use; 0 for recordings."""
    return sum(path.down_mbit() or 0.0 for path in paths_used(plan))


def _carrier(carrier: Carrier) -> dict[str, object]:
    match carrier:
        case Direct(path=None):
            return {"kind": "direct"}
        case Direct(path=path):
            return {"kind": "path", "path": path}
        case _:
            return {"kind": _CARRIER_KINDS[type(carrier)], **_settings(carrier)}


_CARRIER_KINDS: dict[type, str] = {
    Tunnel: "tunnel",
    Relay: "relay",
    Chain: "chain",
    TcpNc: "tcp-nc",
    Mptcp: "mptcp",
    Balance: "balance",
    RoundRobin: "round-robin",
    Peer: "peer",
    OvsBicast: "ovs-bicast",
    OvsBalance: "ovs-balance",
    OvsRoam: "ovs-roam",
    OvsRoamWifi: "ovs-roam-wifi",
}
_SUFFIXES = ("_mbit", "_bytes", "_ms", "_s")


def _settings(value: object) -> dict[str, object]:
    """The fields that are set, in their order, each with its unit in the value, not in the key."""
    assert is_dataclass(value), value
    found: dict[str, object] = {}
    for field in fields(value):
        setting = getattr(value, field.name)
        if setting in (None, (), Link(), Tunnel()):
            continue
        key = field.name
        for suffix in _SUFFIXES:
            key = key.removesuffix(suffix)
        found[key] = _value(field.name, setting)
    return found


def _value(name: str, value: object) -> object:
    match value:
        case bool() | str():
            return value
        case float() | int() if name.endswith("_mbit"):
            return f"{value:g}Mbit"
        case float() | int() if name.endswith("_ms"):
            return f"{value:g}ms"
        case float() | int() if name.endswith("_s"):
            return _seconds(value)
        case float() | int():
            return value
        case tuple():
            return [_value(name, item) for item in value]
        case _:
            return _settings(value)


def _seconds(seconds: float) -> str:
    return f"{round(seconds)}s" if seconds == round(seconds) else f"{round(seconds * 1e6)}us"
