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
"""Of an interface, which all have to be written down."""
_SHOWN_ONLY = {
    *("linkdown", "dead", "pervasive", "notify", "cache", "cloned"),
    *("offload", "trap", "offload_failed", "rt_offload", "rt_trap", "rt_offload_failed"),
}
"""What `ip route show` says of a route and `ip route replace` does not take."""


def prepared(name: str) -> list[Step]:
    """An interface for a bridge: up, and without what the switch would drop.

    Raises:
        CommandError: when there is no such interface.
    """
    offloads = run(["ethtool", "-k", name])
    (link,) = rows(["ip", "-j", "link", "show", "dev", name])
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
    return [
        ("ip", "addr", "replace", *_address(info), "dev", name)
        for info in shown
        if not (version == 6 and (info.get("dynamic") or info.get("scope") == "link"))
    ]


def _held(name: str, version: int) -> list[dict[str, Any]]:
    shown = rows(["ip", "-j", f"-{version}", "addr", "show", "dev", name])
    return [info for row in shown for info in row.get("addr_info", []) if info]


def _address(info: dict[str, Any]) -> list[str]:
    length = info["prefixlen"]
    words = [f"{info['local']}/{length}"]
    if "address" in info:
        words = [info["local"], "peer", f"{info['address']}/{length}"]
    for key, word in (
        ("broadcast", "broadcast"),
        ("scope", "scope"),
        ("label", "label"),
        ("metric", "metric"),
    ):
        # What IPv6 calls global has no word of its own to be given.
        if key in info and not (key == "scope" and info["family"] == "inet6"):
            words += [word, str(info[key])]
    if info.get("noprefixroute"):
        words.append("noprefixroute")
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
                found[("ip", f"-{version}", "route", "replace", *words)] = None
    if len(found) > ROUTES_MAX:
        raise CommandError(
            f"{len(found)} routes lead through {', '.join(names)}; at most {ROUTES_MAX} can be "
            "brought back by teardown: remove some first"
        )
    return sorted(found, key=lambda command: ("nexthop" in command, "via" in command))


def _route(words: Sequence[str], kernels_too: bool) -> list[str]:
    """A route as `ip route replace` takes it; empty for those that come back by themselves."""
    pairs = set(pairwise(words))
    if ("table", "local") in pairs or ("proto", "ra") in pairs or "expires" in words:
        return []
    if ("proto", "kernel") in pairs and (not kernels_too or words[0] == "ff00::/8"):
        return []
    kept = []
    skip = False
    for word in words:
        if skip or word == "error":
            skip = not skip
        elif word not in _SHOWN_ONLY:
            kept.append(word)
    return kept
