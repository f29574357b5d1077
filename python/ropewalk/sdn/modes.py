"""What the command does differently by mode: with uplinks (`bicast`, `balance`) and with `roam`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ropewalk.sdn import reader, status
from ropewalk.sdn.config import Config, read_table
from ropewalk.sdn.host import certificates, plan
from ropewalk.sdn.host.certificates import Holder
from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.reader import ConfigError
from ropewalk.sdn.roam import setup as roam_setup
from ropewalk.sdn.roam import status as roam_status
from ropewalk.sdn.roam.config import Config as RoamConfig
from ropewalk.sdn.roam.config import read_table as read_roam

MODES = ("bicast", "balance", "roam")
AnyConfig: TypeAlias = Config | RoamConfig


class Controller(Protocol):
    """What runs until it is stopped."""

    def run(self) -> None:
        """Works until `stop`."""

    def stop(self) -> None:
        """Ends `run`; from any thread or signal handler."""

    def report(self) -> dict[str, Any]:
        """State and counters, ready for JSON."""


def configuration(path: Path) -> AnyConfig:
    """Reads and checks a file.

    Raises:
        ConfigError: with every error, each naming file, key and remedy.
    """
    top = reader.load(path)
    mode = top.choice("mode", MODES, "bicast")
    if top.is_wrong:
        # With the mode that is probably meant the rest of the file is checked, too.
        mode = top.meant("mode", MODES) or ""
        if not mode:
            top.check()
        top = top.corrected("mode", mode)
    return read_roam(top) if mode == "roam" else read_table(top)


def summary(config: AnyConfig) -> str:
    """What a configuration is about, in a few words."""
    if isinstance(config, RoamConfig):
        what = f"{len(config.switches)} switches, {len(config.links)} links"
        return f"mode roam, {config.scheme}, {what}"
    return f"mode {config.mode}, {len(config.uplinks)} uplinks"


def check_files(config: AnyConfig) -> None:
    """Looks for the files that a configuration names; those of several machines' switches need not
    be on this one.

    Raises:
        ConfigError: when one is not there.
    """
    tls = config.controller.tls
    if isinstance(config, RoamConfig) or tls is None:
        return
    found = {field.name: getattr(tls, field.name) for field in fields(tls)}
    missing = [
        f"{config.path}: controller.tls.{key}: {file} is no file; make it, or name another"
        for key, file in found.items()
        if file is not None and not file.is_file()
    ]
    if missing:
        raise ConfigError(missing)


def holders(config: AnyConfig, hosts: Sequence[str], together: bool) -> list[Holder]:
    """Who needs a certificate; `hosts` are further names of the controller's, and with `together`
    all switches are on one machine.

    Raises:
        ConfigError: when the configuration is not for TLS.
        ValueError: for what is no name of a host.
    """
    if config.controller.tls is None:
        text = "missing; certificates are for TLS; write the files that [controller.tls] needs"
        raise ConfigError([f"{config.path}: controller.tls: {text}"])
    if not isinstance(config, RoamConfig):
        assert config.bridge.datapath_id is not None, "checked with TLS"
        switch = certificates.switch("switch", [config.bridge.datapath_id])
        return [certificates.controller(config.controller, None, hosts), switch]
    found = [certificates.controller(config.controller, config.notices, hosts)]
    if together:
        numbers = [switch.datapath for switch in config.switches]
        found.append(certificates.switch("switch", numbers))
    else:
        found += [certificates.switch(f"switch-{s.name}", [s.datapath]) for s in config.switches]
    if config.notices:
        found += [
            certificates.agent(f"agent-{s.name}", [s.name]) for s in config.switches if s.access
        ]
    return found


def bridges(config: AnyConfig) -> str:
    """What `setup` makes."""
    if isinstance(config, RoamConfig):
        return ", ".join(switch.name for switch in config.switches)
    return config.bridge.name


def steps(config: AnyConfig, only: Sequence[str]) -> list[Step]:
    """What `setup` does; `only` some of several switches.

    Raises:
        CommandError: when the machine is not as the configuration says.
        ConfigError: when `only` names what is not there.
    """
    names = [switch.name for switch in config.switches] if isinstance(config, RoamConfig) else []
    for name in only:
        if name not in names:
            problem = f"no switch {name} there" if names else "there is one bridge"
            remedy = f"there are {', '.join(names)}" if names else "leave it away"
            raise ConfigError([f"{config.path}: --only {name}: {problem}; {remedy}"])
    return roam_setup.steps(config, only) if isinstance(config, RoamConfig) else plan.steps(config)


def state_file(config: AnyConfig) -> Path:
    """Where the list of changes lies."""
    if isinstance(config, RoamConfig):
        return roam_setup.state_file(config)
    return plan.state_file(config)


def fingerprint(config: AnyConfig) -> str:
    """Changes when a setup of this configuration would."""
    if isinstance(config, RoamConfig):
        return roam_setup.fingerprint(config)
    return plan.fingerprint(config)


def controller(config: AnyConfig) -> Controller:
    """The controller; raises OSError when an address cannot be listened on."""
    # Imported here: os-ken takes a second, which the other commands do not need.
    from ropewalk.sdn import bridge
    from ropewalk.sdn.balance.policy import Balance
    from ropewalk.sdn.bicast.policy import Bicast
    from ropewalk.sdn.roam.controller import Controller as RoamController
    from ropewalk.sdn.service import Service

    if isinstance(config, RoamConfig):
        return RoamController(config)

    known = config.bridge.datapath_id

    def name_of(number: int) -> str | None:
        return bridge.NAME if known in (None, number) else None

    most = bridge.CONNECTIONS_MAX
    if config.bicast:
        return Service(bridge.Bridge(Bicast(), config), config.controller, name_of, most)
    return Service(bridge.Bridge(Balance(), config), config.controller, name_of, most)


def lines(report: dict[str, Any]) -> list[str]:
    """A controller's report, for people."""
    return roam_status.lines(report) if report["mode"] == "roam" else status.lines(report)
