"""Affinity: which client keeps its uplink to which site.

Pure. The rule is that of `ropewalk balance` (`crates/balance/src/kept.rs`): a client keeps its
uplink to a web site that it opens, by the first connection after a pause, and to everything that is
not of the web. Connections that follow at once fetch what a page is put together from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import TypeVar

from ropewalk._native import PAUSE_S, WEB_PORTS
from ropewalk.sdn import family, packets

PAIRS_MAX = 1024
"""Most pairs of client and site; the one that was used least lately goes. More: more sites are
kept, each new flow takes longer."""
_TCP, _UDP = 6, 17
_SITE_BITS = {4: 24, 6: 48}
"""Servers of one site are seldom farther apart, by the version of IP."""

Pair = tuple[str, str]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Affinity:
    """What is remembered; the one that was used least lately comes first."""

    uplinks: Mapping[Pair, tuple[str, float]] = field(default_factory=dict)
    """Each pair's uplink, and when it was used last."""
    web_s: Mapping[str, float] = field(default_factory=dict)
    """Each client's last new connection of the web."""


def uplink(affinity: Affinity, packet: packets.Ip, seconds: float, now: float) -> str | None:
    """The uplink that a new flow's client keeps to its site; None for any."""
    name, used_s = affinity.uplinks.get(_pair(packet), ("", float("-inf")))
    return name if now - used_s < seconds else None


def noted(
    affinity: Affinity, packet: packets.Ip, name: str, seconds: float, now: float
) -> Affinity:
    """A new flow was given an uplink."""
    is_web = packet.protocol in (_TCP, _UDP) and packet.target_port in WEB_PORTS
    is_opened = now - affinity.web_s.get(packet.source, float("-inf")) >= PAUSE_S
    is_known = uplink(affinity, packet, seconds, now) is not None
    if is_web:
        affinity = replace(affinity, web_s=_put(affinity.web_s, packet.source, now))
    if is_known or is_opened or not is_web:
        affinity = replace(affinity, uplinks=_put(affinity.uplinks, _pair(packet), (name, now)))
    return affinity


def _pair(packet: packets.Ip) -> Pair:
    bits = _SITE_BITS[family.of(packet.target).version]
    return packet.source, str(ip_network(f"{packet.target}/{bits}", strict=False))


def _put(table: Mapping[_Key, _Value], key: _Key, value: _Value) -> Mapping[_Key, _Value]:
    """With this value as the newest."""
    kept = {other: had for other, had in table.items() if other != key}
    while len(kept) >= PAIRS_MAX:
        del kept[next(iter(kept))]
    return {**kept, key: value}
