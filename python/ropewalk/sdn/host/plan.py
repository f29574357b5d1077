"""The steps that prepare the machine for one configuration.

Measured: a veth that enters the userspace datapath needs transmit offloads off at its far end
(L4 checksums stay partial otherwise); for the rest see `interfaces.py`.
"""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

from ropewalk.sdn.balance.program import zones
from ropewalk.sdn.config import Config, Uplink
from ropewalk.sdn.host import interfaces, ovs
from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.host.commands import CommandError, inside, ip, rows
from ropewalk.sdn.host.copies import loader

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
    if config.bridge.name in ovs.bridges(config.bridge.database):
        raise CommandError(
            f"the bridge {config.bridge.name} exists and is not of this setup; "
            "choose another bridge.name or remove it"
        )
    _refuse_what_is_there(config)
    plan = _namespace(config) + _application(config)
    plan += _uplinks(config.uplinks)
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
        plan += loader.steps(application.namespace, application.interface, config.state_dir)
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


def _namespace(config: Config) -> list[Step]:
    name = config.application.namespace
    if not name or name in [row.get("name") for row in rows(["ip", "-j", "netns", "list"])]:
        return []
    if not _may_add_namespaces():
        raise CommandError(
            f"a namespace made within `ip netns exec` is gone when that ends; make it outside "
            f"(`ip netns add {name}`), or leave application.namespace away"
        )
    return [
        Step(("ip", "netns", "add", name), (("ip", "netns", "del", name),)),
        Step(tuple(ip(name, "link", "set", "lo", "up"))),
    ]


def _may_add_namespaces() -> bool:
    """Whether mounts made here are seen by others: `ip netns exec` has a mount namespace of its
    own."""
    try:
        return Path("/proc/self/ns/mnt").readlink() == Path("/proc/1/ns/mnt").readlink()
    except OSError:
        return True


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
        # Nobody else can have it: the only other end of the veth pair is at the bridge.
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


def _uplinks(uplinks: tuple[Uplink, ...]) -> list[Step]:
    names = [uplink.name for uplink in uplinks]
    speak_ipv6 = [
        uplink.name for uplink in uplinks if any(way.family.version == 6 for way in uplink.ways)
    ]
    for name in names:
        if not interfaces.exists(name):
            raise CommandError(f"uplink {name}: no such interface; `ip link` lists them")
    plan = interfaces.without_addresses(names) + interfaces.without_ipv6(speak_ipv6)
    return plan + [step for name in names for step in interfaces.prepared(name)]


def _bridge(config: Config) -> list[Step]:
    keys = ovs.keys(config.bridge.database, config.controller.tls)
    undo = (tuple(ovs.delete_bridge(config)),)
    return [
        *keys,
        Step(tuple(ovs.add_bridge(config)), undo, outlives_boot=True),
        Step(tuple(ovs.made(config.bridge.database, config.bridge.name))),
    ]
