"""What `setup` changes at interfaces that are there already, so that a bridge can have them.

Offloads, each measured: every device of the bridge needs generic receive offload off, because the
userspace datapath drops segments larger than the MTU without a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.host.commands import CommandError, rows, run

ROUTES_MAX = 1_000
"""Routes of an interface, which all have to be written down."""
_FOREVER = 0xFFFF_FFFF
_BY_ITSELF = ("kernel_ra", "kernel_lo", "kernel_ll")
"""Origins of addresses that come again when IPv6 is switched on."""
_SHOWN_ONLY = {
    *("linkdown", "dead", "pervasive", "notify", "cache", "cloned"),
    *("offload", "trap", "offload_failed", "rt_offload", "rt_trap", "rt_offload_failed"),
}
"""What `ip route show` says of a route and `ip route append` does not take."""
_LOCKED_TIMER = ("rto_min", "lock")
"""The lock is shown, and set, without being said."""


def exists(name: str) -> bool:
    """Whether there is such an interface; `/sys` may show those of another namespace."""
    return any(row.get("ifname") == name for row in rows(["ip", "-j", "link", "show"]))


def prepared(name: str) -> list[Step]:
    """An interface for a bridge: up, and without what the switch would drop.

    Raises:
        CommandError: when there is no such interface.
    """
    offloads = run(["ethtool", "-k", name])
    link = rows(["ip", "-j", "link", "show", "dev", name])[0]
    plan = []
    if "generic-receive-offload: on" in offloads:
        back = ("ethtool", "-K", name, "gro", "on")
        plan.append(Step(("ethtool", "-K", name, "gro", "off"), (back,)))
    if "UP" not in link.get("flags", []):
        down = ("ip", "link", "set", name, "down")
        plan.append(Step(("ip", "link", "set", name, "up"), (down,)))
    return plan


def without_addresses(names: Sequence[str]) -> list[Step]:
    """Takes interfaces' IPv4 addresses away: the kernel would answer beside the bridge.

    Raises:
        CommandError: when there is no such interface.
    """
    plan = []
    routes = _routes(names, 4)
    for name in names:
        if held := _addresses(name, 4):
            flush = ("ip", "-4", "addr", "flush", "dev", name)
            plan.append(Step(flush, tuple(held)))
    return _with_routes(plan, routes)


def without_ipv6(names: Sequence[str]) -> list[Step]:
    """Switches IPv6 of interfaces off, where it is on: otherwise the next advertisement of a
    router would give the kernel an address and a route again.

    Raises:
        CommandError: when there is no such interface.
    """
    plan = []
    on = [name for name in names if _has_ipv6(name)]
    routes = _routes(on, 6)
    for name in on:
        undo = (_set_ipv6(name, disabled=False), *_addresses(name, 6))
        plan.append(Step(_set_ipv6(name, disabled=True), undo))
    return _with_routes(plan, routes)


def _with_routes(plan: list[Step], routes: Sequence[tuple[str, ...]]) -> list[Step]:
    """The first change is the last to be undone: then all addresses are there that routes need."""
    if not plan:
        return []
    return [Step(plan[0].do, (*plan[0].undo, *routes)), *plan[1:]]


def _has_ipv6(name: str) -> bool:
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    return switch.exists() and switch.read_text().strip() != "1"


def _set_ipv6(name: str, *, disabled: bool) -> tuple[str, ...]:
    # With slashes, because names of interfaces may have dots.
    return ("sysctl", "-qw", f"net/ipv6/conf/{name}/disable_ipv6={int(disabled)}")


def _addresses(name: str, version: int) -> list[tuple[str, ...]]:
    """What brings the addresses that an administrator gave back, in their order: the first of a
    subnet is the one that is used. What routers gave comes back by itself."""
    shown = _held(name, version)
    if version == 6:
        # The newest is shown first.
        shown.reverse()
    return [
        ("ip", "addr", "replace", *_address(info), "dev", name)
        for info in shown
        if not (info.get("temporary") or info.get("protocol") in _BY_ITSELF)
    ]


def _held(name: str, version: int) -> list[dict[str, Any]]:
    shown = rows(["ip", "-j", f"-{version}", "addr", "show", "dev", name])
    return [info for row in shown for info in row.get("addr_info", []) if info]


def _address(info: dict[str, Any]) -> list[str]:
    length = info["prefixlen"]
    words = [f"{info['local']}/{length}"]
    if "address" in info:
        words = [info["local"], "peer", f"{info['address']}/{length}"]
    for key in ("broadcast", "scope", "label", "metric"):
        # IPv6 tells the scope by the address.
        if key in info and not (key == "scope" and info["family"] == "inet6"):
            words += [key, str(info[key])]
    words += [flag for flag in ("noprefixroute", "home", "autojoin") if info.get(flag)]
    for key, word in (("valid_life_time", "valid_lft"), ("preferred_life_time", "preferred_lft")):
        if info.get(key, _FOREVER) != _FOREVER:
            words += [word, str(info[key])]
    if info["family"] == "inet6":
        # It was this machine's up to then; and a route with a source waits for no check.
        words.append("nodad")
    return words


def _routes(names: Sequence[str], version: int) -> list[tuple[str, ...]]:
    """What brings interfaces' routes in all tables back, but those that the kernel or a router
    makes; those that others go through come first."""
    found: dict[tuple[str, ...], None] = {}
    show = ["ip", "-o", f"-{version}", "route", "show", "table", "all"]
    for name in names:
        # Without a route of its own for the prefix the kernel's was made by somebody, too.
        by_hand = any(info.get("noprefixroute") for info in _held(name, version))
        lines = [f"{line} dev {name}" for line in run([*show, "dev", name]).splitlines()]
        # Several next hops are not shown by `dev`.
        lines += [
            line for line in run(show).splitlines() if "nexthop" in line and f"dev {name} " in line
        ]
        for line in lines:
            words = _route(line.replace("\\", " ").split(), by_hand)
            if words:
                # Not `replace`, which would take the place of another interface's.
                found[("ip", f"-{version}", "route", "append", *words)] = None
    if len(found) > ROUTES_MAX:
        raise CommandError(
            f"{len(found)} routes lead through {', '.join(names)}; at most {ROUTES_MAX} can be "
            "brought back by teardown: remove some first"
        )
    return sorted(found, key=lambda command: ("nexthop" in command, "via" in command))


def _route(words: Sequence[str], kernels_too: bool) -> list[str]:
    """A route as `ip route append` takes it; empty for those that come back by themselves.

    Raises:
        CommandError: when it cannot be written as it is shown.
    """
    pairs = set(pairwise(words))
    if ("proto", "ra") in pairs:
        return []
    by_kernel = ("proto", "kernel") in pairs
    if by_kernel and (not kernels_too or "ff00::/8" in words or ("table", "local") in pairs):
        return []
    if "encap" in words:
        raise CommandError(
            f"the route {' '.join(words)} is encapsulated, which cannot be brought back by "
            "teardown: remove it first"
        )
    kept: list[str] = []
    for before, word in pairwise(["", *words]):
        if before == "expires":
            kept.append(word.removesuffix("sec"))
        elif before == "dev" or not (
            word in _SHOWN_ONLY or "error" in (before, word) or (before, word) == _LOCKED_TIMER
        ):
            kept.append(word)
    return _by_number(kept) if "nhid" in kept else kept


def _by_number(words: Sequence[str]) -> list[str]:
    """A route that has its next hop by number needs and takes nothing more."""
    end = words.index("nhid")
    named = [*words[:end], *words[end : end + 2]]
    for key in ("table", "proto", "metric"):
        if key in words[end:]:
            at = words.index(key, end)
            named += words[at : at + 2]
    return named
