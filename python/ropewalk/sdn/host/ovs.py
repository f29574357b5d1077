"""Open vSwitch's database, by `ovs-vsctl`.

Every command is one transaction, which waits until the switch has done it. Why not the protocol
itself: docs/decisions/sdn.md.
"""

from __future__ import annotations

import re

from ropewalk.sdn.config import Config
from ropewalk.sdn.host.commands import CommandError, run

APPLICATION_PORT = 1
FIRST_UPLINK_PORT = 2
PACKETS_PER_S_MAX = 2_000
"""For the controller: several times what probes and new flows need. Beyond it the switch queues
packets by port and takes turns: a flood from one does not drown what others have to tell."""
PACKETS_BURST_MAX = 500
_BACKOFF_MS = "1000"
_PROBE_MS = "5000"


def vsctl(config: Config, *arguments: str) -> list[str]:
    """An `ovs-vsctl` command for the configured switch."""
    database = config.bridge.database
    return ["ovs-vsctl", "--timeout=10", *([f"--db={database}"] if database else []), *arguments]


def bridge_exists(config: Config) -> bool:
    """Whether the bridge is there.

    Raises:
        CommandError: when the switch cannot be asked.
    """
    try:
        return config.bridge.name in run(vsctl(config, "list-br")).split()
    except CommandError as error:
        raise CommandError(
            f"{error}; is Open vSwitch running (`systemctl start openvswitch-switch`)?"
        ) from error


def add_bridge(config: Config) -> list[str]:
    """Makes the bridge, with its ports and its controller, in one transaction.

    Without a controller nothing is forwarded but by the flows that are there (`secure`), and the
    flows stay: the switch clears them only when its last controller is removed.
    """
    name = config.bridge.name
    controller = config.controller
    scheme = "ssl" if controller.tls else "tcp"
    command = vsctl(
        config,
        "add-br",
        name,
        *("--", "set", "bridge", name),
        f"datapath_type={config.bridge.datapath}",
        "fail_mode=secure",
        "protocols=OpenFlow13",
        "other_config:disable-in-band=true",
        "external_ids:ropewalk=sdn",
        *("--", "set-controller", name, f"{scheme}:{controller.address}:{controller.port}"),
        *("--", "set", "controller", name),
        "connection_mode=out-of-band",
        f"max_backoff={_BACKOFF_MS}",
        f"inactivity_probe={_PROBE_MS}",
        f"controller_rate_limit={PACKETS_PER_S_MAX}",
        f"controller_burst_limit={PACKETS_BURST_MAX}",
    )
    ports = [config.application.port, *(uplink.name for uplink in config.uplinks)]
    for number, port in enumerate(ports, APPLICATION_PORT):
        command += ["--", "add-port", name, port]
        command += ["--", "set", "interface", port, f"ofport_request={number}"]
    return command


def delete_bridge(config: Config) -> list[str]:
    """Removes the bridge with its ports and controller."""
    return vsctl(config, "--if-exists", "del-br", config.bridge.name)


def datapath_known(config: Config) -> bool:
    """Whether the database has a record of the datapath, which idle times need."""
    kind = config.bridge.datapath
    return f"{kind}=" in run(vsctl(config, "get", "Open_vSwitch", ".", "datapaths"))


def add_datapath(config: Config) -> list[str]:
    """Makes that record."""
    make = ("--", "--id=@made", "create", "Datapath", "datapath_version=0")
    kind = config.bridge.datapath
    return vsctl(config, *make, "--", "set", "Open_vSwitch", ".", f"datapaths:{kind}=@made")


def delete_datapath(config: Config) -> list[str]:
    """Removes that record."""
    return vsctl(config, "remove", "Open_vSwitch", ".", "datapaths", config.bridge.datapath)


def zones_with_timeouts(config: Config) -> set[int]:
    """The zones that have idle times already."""
    if not datapath_known(config):
        return set()
    text = run(vsctl(config, "list-zone-tp", config.bridge.datapath))
    return {int(zone) for zone in re.findall(r"^Zone:(\d+)", text, re.MULTILINE)}


def has_keys(config: Config) -> bool:
    """Whether the switch has a key for TLS already."""
    return bool(run(vsctl(config, "--bare", "--columns=private_key", "list", "SSL")).strip())


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
    return vsctl(
        config, "--may-exist", "add-zone-tp", config.bridge.datapath, f"zone={zone}", *times
    )


def unset_timeouts(config: Config, zone: int) -> list[str]:
    """Back to the switch's own times."""
    return vsctl(config, "--if-exists", "del-zone-tp", config.bridge.datapath, f"zone={zone}")


def set_keys(config: Config) -> list[str]:
    """The switch's own key for TLS towards controllers."""
    tls = config.controller.tls
    assert tls is not None, "asked for with TLS only"
    return vsctl(
        config, "set-ssl", str(tls.switch_key), str(tls.switch_certificate), str(tls.authority)
    )


def unset_keys(config: Config) -> list[str]:
    """Takes the switch's key away again."""
    return vsctl(config, "del-ssl")
