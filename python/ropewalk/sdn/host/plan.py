"""The steps that prepare the machine for one configuration.

Offload rules, each measured: a veth that enters the userspace datapath needs transmit offloads
off at its far end (L4 checksums stay partial otherwise) and every device of the bridge needs GRO
off (segments larger than the MTU are dropped without a count).
"""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

from ropewalk.sdn.balance.program import zones
from ropewalk.sdn.config import Config
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
        plan += _uplink(uplink.name)
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
        Step(tuple(ip(namespace, "addr", "add", application.address, "dev", interface))),
        Step(tuple(ip(namespace, "link", "set", interface, "up"))),
        Step(("ip", "link", "set", port, "up")),
    ]
    target = "default" if config.balance else application.far
    via = ["via", application.far] if config.balance else []
    route = ["route", "add", target, *via, "dev", interface, "metric", _ROUTE_METRIC]
    return [*plan, Step(tuple(ip(namespace, *route)))]


def _uplink(name: str) -> list[Step]:
    try:
        addresses = rows(["ip", "-j", "-4", "addr", "show", "dev", name])
        routes = rows(["ip", "-j", "-4", "route", "show", "dev", name])
        offloads = run(["ethtool", "-k", name])
    except CommandError as error:
        raise CommandError(f"uplink {name}: {error}; `ip link` lists the interfaces") from error
    plan = []
    held = [
        f"{info['local']}/{info['prefixlen']}"
        for row in addresses
        for info in row.get("addr_info", [])
    ]
    # The kernel makes its own again with the address.
    restored = [
        ("ip", "route", "replace", *_route(row), "dev", name)
        for row in routes
        if row.get("protocol") != "kernel"
    ]
    for position, address in enumerate(held):
        # The kernel would answer beside the bridge.
        undo: list[tuple[str, ...]] = [("ip", "addr", "replace", address, "dev", name)]
        if position == 0:
            undo += restored
        plan.append(Step(("ip", "addr", "del", address, "dev", name), tuple(undo)))
    if "generic-receive-offload: on" in offloads:
        back = ("ethtool", "-K", name, "gro", "on")
        plan.append(Step(("ethtool", "-K", name, "gro", "off"), (back,)))
    plan.append(Step(("ip", "link", "set", name, "up")))
    return plan


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
