"""The steps that make the configured bridges on this machine, and what undoes them.

Access ports, hosts' ports and links are interfaces that exist already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ropewalk.sdn.host import interfaces, ovs
from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.host.commands import CommandError
from ropewalk.sdn.roam.config import Config, Switch


def state_file(config: Config) -> Path:
    """Where the list of changes lies."""
    return config.state_dir / "sdn-roam.json"


def fingerprint(config: Config) -> str:
    """Changes when a setup of this configuration would."""
    text = f"{config.switches} {config.links} {config.controller} {config.database}"
    return hashlib.sha256(text.encode()).hexdigest()


def ports(config: Config, switch: Switch) -> list[str]:
    """All ports of a switch."""
    linked = [end[1] for link in config.links for end in (link.a, link.b) if end[0] == switch.name]
    return [*switch.access, *switch.hosts, *linked]


def steps(config: Config, only: Sequence[str] = ()) -> list[Step]:
    """What `setup` does, in order; `only` some switches when they are on several machines.

    Raises:
        CommandError: when the machine is not as the configuration says.
    """
    existing = ovs.bridges(config.database)
    plan = ovs.keys(config.database, config.controller.tls)
    for switch in config.switches:
        if only and switch.name not in only:
            continue
        if switch.name in existing:
            raise CommandError(
                f"the bridge {switch.name} exists and is not of this setup; "
                "choose another name or remove it"
            )
        for port in ports(config, switch):
            if not interfaces.exists(port):
                raise CommandError(f"{switch.name}: no interface {port}; `ip link` lists them")
            plan += interfaces.prepared(port)
        delete = ovs.vsctl(config.database, "--if-exists", "del-br", switch.name)
        undo = (tuple(delete),)
        plan.append(Step(tuple(_bridge(config, switch)), undo, outlives_boot=True))
        plan.append(Step(tuple(ovs.made(config.database, switch.name))))
    return plan


def _bridge(config: Config, switch: Switch) -> list[str]:
    name = switch.name
    command = ovs.vsctl(config.database, "add-br", name, "--", "set", "bridge", name)
    command += ["datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13"]
    command += [f"other_config:datapath-id={switch.datapath:016x}"]
    command += ["other_config:disable-in-band=true", "external_ids:ropewalk=sdn"]
    command += ovs.controllers(name, config.controller)
    for port in ports(config, switch):
        command += ["--", "add-port", name, port]
    return command
