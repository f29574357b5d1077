"""The steps that prepare the machine for one configuration.

Offload rules, each measured: a veth that enters the userspace datapath needs transmit offloads
off at its far end (L4 checksums stay partial otherwise) and every device of the bridge needs GRO
off (segments larger than the MTU are dropped without a count).
"""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

from ropewalk.sdn.balance.program import zones
from ropewalk.sdn.config import Config, Uplink
from ropewalk.sdn.copies import loader
from ropewalk.sdn.host import ovs
from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.host.commands import CommandError, inside, ip, rows, run

_ROUTE_METRIC = "50"


def state_file(config: Config) -> Path:
    """Where the list of changes lies."""
    return config.state_dir / f"sdn-{config.bridge.name}.json"


def steps(config: Config) -> list[Step]:
    """What `setup` does, in order.

    Raises:
        CommandError: when the machine is not as the configuration says; the message says what to
        do.
    """
    if ovs.bridge_exists(config):
        raise CommandError(
            f"the bridge {config.bridge.name} exists and is not of this setup; "
            "choose another bridge.name or remove it"
        )
    _refuse_what_is_there(config)
    plan = _namespace(config) + _application(config)
    for uplink in config.uplinks:
        plan += _uplink(uplink)
    plan += _bridge(config)
    if config.balance:
        if not ovs.datapath_known(config):
            record = (tuple(ovs.delete_datapath(config)),)
            plan.append(Step(tuple(ovs.add_datapath(config)), record, outlives_boot=True))
        taken = ovs.zones_with_timeouts(config) & set(zones(config))
        if taken:
            raise CommandError(
                f"connection tracking zone {min(taken)} has idle times of somebody else; "
                "choose another balance.zone"
            )
        plan += [
            Step(
                tuple(ovs.set_timeouts(config, zone)),
                (tuple(ovs.unset_timeouts(config, zone)),),
                outlives_boot=True,
            )
            for zone in zones(config)
        ]
    if config.bicast and config.bicast.remove_copies:
        application = config.application
        plan += [
            Step(tuple(command))
            for command in loader.commands(
                application.namespace, application.interface, config.state_dir
            )
        ]
    return plan


def fingerprint(config: Config) -> str:
    """Changes when a setup of this configuration would."""
    text = f"{config.bridge} {config.controller} {config.application} {config.uplinks}"
    text += f" {config.balance} {config.bicast and config.bicast.remove_copies}"
    return hashlib.sha256(text.encode()).hexdigest()


def written(plan: list[Step]) -> list[str]:
    """The commands as a shell takes them."""
    return [shlex.join(step.do) for step in plan]


def _refuse_what_is_there(config: Config) -> None:
    """What somebody else made must not be taken for ours, and removed by teardown."""
    application = config.application
    spaces = [("", application.port, "port")]
    if not application.namespace or not _namespace(config):
        spaces.append((application.namespace, application.interface, "interface"))
    for namespace, name, key in spaces:
        present = [row.get("ifname") for row in rows(ip(namespace, "-j", "link", "show"))]
        if name in present:
            raise CommandError(
                f"there is an interface {name} already; choose another application.{key}"
            )
    tls = config.controller.tls
    if tls and tls.switch_key and ovs.has_keys(config):
        raise CommandError(
            "the switch has a key for TLS already; leave controller.tls.switch_key and "
            "switch_certificate away"
        )


def _namespace(config: Config) -> list[Step]:
    name = config.application.namespace
    if not name or name in [row.get("name") for row in rows(["ip", "-j", "netns", "list"])]:
        return []
    return [
        Step(("ip", "netns", "add", name), (("ip", "netns", "del", name),)),
        Step(tuple(ip(name, "link", "set", "lo", "up"))),
    ]


def _application(config: Config) -> list[Step]:
    application = config.application
    namespace, interface, port = application.namespace, application.interface, application.port
    make = ["ip", "link", "add", port, "type", "veth", "peer", "name", interface]
    if namespace:
        make += ["netns", namespace]
    plan = [
        Step(tuple(make), (("ip", "link", "del", port),)),
        # Checksums must be whole before the switch rewrites addresses.
        Step(tuple(inside(namespace, ["ethtool", "-K", interface, "tx", "off"]))),
        Step(("ethtool", "-K", port, "gro", "off")),
    ]
    for host in application.hosts:
        # Nobody else can have it: the veth pair has no other end but the bridge.
        checked = ["nodad"] if host.family.version == 6 else []
        add = ["addr", "add", host.address, "dev", interface, *checked]
        plan.append(Step(tuple(ip(namespace, *add))))
    plan += [
        Step(tuple(ip(namespace, "link", "set", interface, "up"))),
        Step(("ip", "link", "set", port, "up")),
    ]
    for host in application.hosts:
        target = "default" if config.balance else host.far
        via = ["via", host.far] if config.balance else []
        route = ["route", "add", target, *via, "dev", interface, "metric", _ROUTE_METRIC]
        plan.append(Step(tuple(ip(namespace, f"-{host.family.version}", *route))))
    return plan


def _uplink(uplink: Uplink) -> list[Step]:
    name = uplink.name
    try:
        plan = _addresses(name)
        if any(way.family.version == 6 for way in uplink.ways):
            plan += _addresses_ipv6(name)
        offloads = run(["ethtool", "-k", name])
    except CommandError as error:
        raise CommandError(f"uplink {name}: {error}; `ip link` lists the interfaces") from error
    if "generic-receive-offload: on" in offloads:
        back = ("ethtool", "-K", name, "gro", "on")
        plan.append(Step(("ethtool", "-K", name, "gro", "off"), (back,)))
    plan.append(Step(("ip", "link", "set", name, "up")))
    return plan


def _addresses(name: str) -> list[Step]:
    """Takes an interface's IPv4 addresses away: the kernel would answer beside the bridge."""
    plan = []
    held = _held(rows(["ip", "-j", "-4", "addr", "show", "dev", name]))
    routes = _routes(name, 4)
    for position, address in enumerate(held):
        undo: list[tuple[str, ...]] = [("ip", "addr", "replace", address, "dev", name)]
        if position == 0:
            undo += routes
        plan.append(Step(("ip", "addr", "del", address, "dev", name), tuple(undo)))
    return plan


def _addresses_ipv6(name: str) -> list[Step]:
    """Switches IPv6 of an interface off, where it is on: otherwise the next advertisement of a
    router would give the kernel an address and a route again."""
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    if not switch.exists() or switch.read_text().strip() == "1":
        return []
    held = _held(rows(["ip", "-j", "-6", "addr", "show", "dev", name, "scope", "global"]))
    undo = [
        _set_ipv6(name, disabled=False),
        *(("ip", "addr", "replace", address, "dev", name) for address in held),
        *_routes(name, 6),
    ]
    return [Step(_set_ipv6(name, disabled=True), tuple(undo))]


def _set_ipv6(name: str, *, disabled: bool) -> tuple[str, ...]:
    # With slashes, because names of interfaces may have dots.
    return ("sysctl", "-qw", f"net/ipv6/conf/{name}/disable_ipv6={int(disabled)}")


def _held(shown: list[dict[str, Any]]) -> list[str]:
    """Addresses that an administrator gave; what routers gave comes back by itself."""
    return [
        f"{info['local']}/{info['prefixlen']}"
        for row in shown
        for info in row.get("addr_info", [])
        # With a scope asked for, `ip` shows the others as empty objects.
        if info and not (info["family"] == "inet6" and info.get("dynamic"))
    ]


def _routes(name: str, version: int) -> list[tuple[str, ...]]:
    """What brings an interface's routes back, but those that the kernel or a router makes."""
    shown = rows(["ip", "-j", f"-{version}", "route", "show", "dev", name])
    return [
        ("ip", f"-{version}", "route", "replace", *_route(row), "dev", name)
        for row in shown
        if row.get("protocol") not in ("kernel", "ra")
    ]


def _route(row: dict[str, object]) -> list[str]:
    words = [str(row["dst"])]
    for key, word in (("gateway", "via"), ("prefsrc", "src"), ("metric", "metric")):
        if key in row:
            words += [word, str(row[key])]
    if row.get("scope") == "link":
        words += ["scope", "link"]
    return words


def _bridge(config: Config) -> list[Step]:
    plan = []
    tls = config.controller.tls
    if tls and tls.switch_key and tls.switch_certificate:
        plan.append(
            Step(
                tuple(ovs.set_keys(config)),
                (tuple(ovs.unset_keys(config)),),
                outlives_boot=True,
            )
        )
    undo = (tuple(ovs.delete_bridge(config)),)
    return [*plan, Step(tuple(ovs.add_bridge(config)), undo, outlives_boot=True)]
