"""The steps that make the configured bridges on this machine, and what undoes them.

Access ports, hosts' ports and links are interfaces that exist already. Their GRO is turned off: the
userspace datapath drops what it has merged (docs/sdn.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.host.commands import CommandError, run
from ropewalk.sdn.roam.config import Config, Switch

_PROBE_MS = "5000"
_BACKOFF_MS = "1000"


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
    existing = run(_vsctl(config, "list-br")).split()
    plan = []
    for switch in config.switches:
        if only and switch.name not in only:
            continue
        if switch.name in existing:
            raise CommandError(
                f"the bridge {switch.name} exists and is not of this setup; "
                "choose another name or remove it"
            )
        for port in ports(config, switch):
            if not Path("/sys/class/net", port).exists():
                raise CommandError(f"{switch.name}: no interface {port}; `ip link` lists them")
            if "generic-receive-offload: on" in run(["ethtool", "-k", port]):
                back = ("ethtool", "-K", port, "gro", "on")
                plan.append(Step(("ethtool", "-K", port, "gro", "off"), (back,)))
            plan.append(Step(("ip", "link", "set", port, "up")))
        undo = (tuple(_vsctl(config, "--if-exists", "del-br", switch.name)),)
        plan.append(Step(tuple(_bridge(config, switch)), undo, outlives_boot=True))
    return plan


def _bridge(config: Config, switch: Switch) -> list[str]:
    name = switch.name
    scheme = "ssl" if config.controller.tls else "tcp"
    controller = f"{scheme}:{config.controller.address}:{config.controller.port}"
    command = _vsctl(config, "add-br", name, "--", "set", "bridge", name)
    command += ["datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13"]
    command += [f"other_config:datapath-id={switch.datapath:016x}"]
    command += ["other_config:disable-in-band=true", "external_ids:ropewalk=sdn"]
    command += ["--", "set-controller", name, controller, "--", "set", "controller", name]
    command += ["connection_mode=out-of-band", f"max_backoff={_BACKOFF_MS}"]
    command += [f"inactivity_probe={_PROBE_MS}"]
    for port in ports(config, switch):
        command += ["--", "add-port", name, port]
    return command


def _vsctl(config: Config, *arguments: str) -> list[str]:
    database = [f"--db={config.database}"] if config.database else []
    return ["ovs-vsctl", "--timeout=10", *database, *arguments]
