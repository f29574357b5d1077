"""Open vSwitch's database, by `ovs-vsctl`.

Every command is one transaction, which waits until the switch has done it. Why not the protocol
itself: docs/decisions/sdn.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from ropewalk.sdn.config import Config, Controller, Tls
from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.host.commands import CommandError, run

SYSTEMD = Path("/run/systemd/system")
"""A directory that exists where systemd runs."""
APPLICATION_PORT = 1
FIRST_UPLINK_PORT = 2
PACKETS_PER_S_MAX = 2_000
"""For the controller: several times what probes and new flows need. Beyond it the switch queues
packets by port and takes turns: a flood from one does not drown what others have to tell."""
PACKETS_BURST_MAX = 500
_BACKOFF_MS = "1000"
_PROBE_MS = "5000"


def vsctl(database: str, *arguments: str) -> list[str]:
    """An `ovs-vsctl` command for the switch with this database, "" for the system's."""
    return ["ovs-vsctl", "--timeout=10", *([f"--db={database}"] if database else []), *arguments]


def start() -> str:
    """The command that starts Open vSwitch on this machine, with systemd or without."""
    if SYSTEMD.is_dir():
        return "`systemctl start openvswitch-switch`"
    return "`/usr/share/openvswitch/scripts/ovs-ctl start`"


def bridges(database: str) -> list[str]:
    """The names of the bridges that are there.

    Raises:
        CommandError: when the switch cannot be asked.
    """
    try:
        return run(vsctl(database, "list-br")).split()
    except CommandError as error:
        if "Permission denied" in str(error):
            raise CommandError(f"{error}; run as root") from error
        if "no program" in str(error):
            raise
        raise CommandError(f"{error}; is Open vSwitch running ({start()})?") from error


def add_bridge(config: Config) -> list[str]:
    """Makes the bridge, with its ports and its controller, in one transaction.

    Without a controller nothing is forwarded but by the flows that are there (`secure`), and the
    flows stay: the switch clears them only when its last controller is removed.
    """
    name = config.bridge.name
    number = config.bridge.datapath_id
    known = [] if number is None else [f"other_config:datapath-id={number:016x}"]
    command = vsctl(
        config.bridge.database,
        "add-br",
        name,
        *("--", "set", "bridge", name),
        f"datapath_type={config.bridge.datapath}",
        "fail_mode=secure",
        "protocols=OpenFlow13",
        "other_config:disable-in-band=true",
        "external_ids:ropewalk=sdn",
        *known,
        *controllers(
            name,
            config.controller,
            f"controller_rate_limit={PACKETS_PER_S_MAX}",
            f"controller_burst_limit={PACKETS_BURST_MAX}",
        ),
    )
    ports = [config.application.port, *(uplink.name for uplink in config.uplinks)]
    for number, port in enumerate(ports, APPLICATION_PORT):
        command += ["--", "add-port", name, port]
        command += ["--", "set", "interface", port, f"ofport_request={number}"]
    return command


def made(database: str, bridge: str) -> list[str]:
    """Waits until the switch has made a bridge: one without such a datapath only logs that."""
    return vsctl(database, "--timeout=5", "wait-until", "bridge", bridge, "datapath_id!=[]")


def controllers(bridge: str, controller: Controller, *settings: str) -> list[str]:
    """The part of a command that gives a bridge all its controllers, with settings of each."""
    words = []
    names = []
    for number, target in enumerate(controller.targets):
        name = f"@controller{number}"
        names.append(name)
        words += ["--", f"--id={name}", "create", "controller", f'target="{target}"']
        words += ["connection_mode=out-of-band", f"max_backoff={_BACKOFF_MS}"]
        words += [f"inactivity_probe={_PROBE_MS}", *settings]
    return [*words, "--", "set", "bridge", bridge, f"controller=[{','.join(names)}]"]


def delete_bridge(config: Config) -> list[str]:
    """Removes the bridge with its ports and controller."""
    return vsctl(config.bridge.database, "--if-exists", "del-br", config.bridge.name)


def datapath_known(config: Config) -> bool:
    """Whether the database has a record of the datapath, which idle times need."""
    kind = config.bridge.datapath
    asked = vsctl(config.bridge.database, "get", "Open_vSwitch", ".", "datapaths")
    return f"{kind}=" in run(asked)


def add_datapath(config: Config) -> list[str]:
    """Makes that record."""
    make = ("--", "--id=@made", "create", "Datapath", "datapath_version=0")
    kind = config.bridge.datapath
    known = ("--", "set", "Open_vSwitch", ".", f"datapaths:{kind}=@made")
    return vsctl(config.bridge.database, *make, *known)


def delete_datapath(config: Config) -> list[str]:
    """Removes that record."""
    kind = config.bridge.datapath
    return vsctl(config.bridge.database, "remove", "Open_vSwitch", ".", "datapaths", kind)


def zones_with_timeouts(config: Config) -> set[int]:
    """The zones that have idle times already."""
    if not datapath_known(config):
        return set()
    text = run(vsctl(config.bridge.database, "list-zone-tp", config.bridge.datapath))
    return {int(zone) for zone in re.findall(r"^Zone:(\d+)", text, re.MULTILINE)}


def set_timeouts(config: Config, zone: int) -> list[str]:
    """How long connection tracking remembers idle flows in a zone."""
    balance = config.balance
    assert balance is not None, "the configuration is of this mode"
    times = [
        f"tcp_established={balance.tcp_idle_s}",
        f"udp_single={balance.udp_idle_s}",
        f"udp_multiple={balance.udp_idle_s}",
        f"icmp_first={balance.icmp_idle_s}",
        f"icmp_reply={balance.icmp_idle_s}",
    ]
    add = ("--may-exist", "add-zone-tp", config.bridge.datapath, f"zone={zone}")
    return vsctl(config.bridge.database, *add, *times)


def unset_timeouts(config: Config, zone: int) -> list[str]:
    """Back to the switch's own times."""
    delete = ("--if-exists", "del-zone-tp", config.bridge.datapath, f"zone={zone}")
    return vsctl(config.bridge.database, *delete)


def keys(database: str, tls: Tls | None) -> list[Step]:
    """Gives the switch its own key for TLS towards controllers, where the configuration has one.

    Raises:
        CommandError: when the switch has a key already, or a file is not there.
    """
    if tls is None or tls.switch_key is None or tls.switch_certificate is None:
        return []
    files = (tls.switch_key, tls.switch_certificate, tls.authority)
    for file in files:
        if not file.is_file():
            raise CommandError(f"{file}: no such file; see [controller.tls]")
    if run(vsctl(database, "--bare", "--columns=private_key", "list", "SSL")).strip():
        raise CommandError(
            "the switch has a key for TLS already; leave controller.tls.switch_key and "
            "switch_certificate away"
        )
    give = vsctl(database, "set-ssl", *(str(file) for file in files))
    return [Step(tuple(give), (tuple(vsctl(database, "del-ssl")),), outlives_boot=True)]
