"""`scripts/machines dhcp`: a site whose uplinks live by DHCP and router advertisements."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from machinery import (
    ANSWERS,
    CACHE,
    HUB,
    NET,
    RESOLVER,
    UPLINK_RESOLVER,
    Machine,
    Stream,
    claim,
    configure,
    difference,
    log_of,
    machines,
    output,
    wait,
    who,
)
from supervision import Escapes, down

NETWORKD = """\
for n in 0 1; do
    printf '[Match]\\nName=eth%s\\n[Network]\\nDHCP=ipv4\\nIPv6AcceptRA=yes\\n' $n \\
        >/etc/systemd/network/1$n.network
    printf '[DHCPv4]\\nRouteMetric=10%s\\n' $n >>/etc/systemd/network/1$n.network
done
systemctl restart systemd-networkd
"""
DHCLIENT = """\
for n in 0 1; do
    systemd-run --quiet --unit=dhclient$n dhclient -d -e IF_METRIC=10$n \\
        -pf /run/dhclient$n.pid -lf /run/dhclient$n.leases eth$n
done
"""
# A container has no udev, which dhcpcd would wait for.
DHCPCD = "systemd-run --quiet --unit=uplinks dhcpcd --nobackground --nodev eth0 eth1"
NETWORK_MANAGER = """\
systemctl unmask NetworkManager
systemctl restart NetworkManager
for n in 0 1; do
    nmcli -w 1 connection add type ethernet con-name eth$n ifname eth$n ipv4.method auto \\
        ipv4.route-metric 10$n ipv6.method auto || true
    nmcli -w 1 connection up eth$n || true
done
"""
CLIENTS = {
    "systemd-networkd": ("systemd-resolved", NETWORKD),
    "dhclient": ("clients", DHCLIENT),
    "dhcpcd": ("clients", DHCPCD),
    "NetworkManager": ("clients", NETWORK_MANAGER),
}
"""Of each client: kind of machine, and how it is started."""
LURED = "192.0.2.0/24"
"""A network that option 121 leads to the uplink, past the tunnel."""
RENEW_S = 6
"""After this time a client asks for its lease again. The least that a lease lasts is 120 s."""


def server(directory: Path, moved: bool = False) -> subprocess.Popen[bytes]:
    """A DHCP server for both uplinks that advertises IPv6, too; `moved` has other addresses.

    Its routes by option 121 lead past any route of a tunnel: they are more specific.
    """
    lines = [
        *("port=0", "keep-in-foreground", "log-facility=-", "bind-dynamic", "dhcp-authoritative"),
        *(f"dhcp-leasefile={directory}/leases", "enable-ra", "ra-param=*,5,60", "user=root"),
        *(f"dhcp-option=option:T1,{RENEW_S}", f"dhcp-option=option:T2,{2 * RENEW_S}", "no-ping"),
    ]
    for number in (1, 2):
        net = f"192.168.{number}"
        routes = ",".join(f"{to},{net}.1" for to in ("0.0.0.0/0", LURED))
        lines += [
            f"interface=site{number - 1}",
            f"dhcp-range=set:site{number - 1},{net}.100,{net}.220,255.255.255.0,2m",
            f"dhcp-range=2001:db8:{number}::,ra-stateless,64,2m",
            f"dhcp-option=tag:site{number - 1},121,{routes}",
            f"dhcp-option=tag:site{number - 1},option:router,{net}.1",
            f"dhcp-option=tag:site{number - 1},option:dns-server,{UPLINK_RESOLVER}",
        ]
        if moved:
            # Whoever has another address has to give it up.
            lines.append(f"dhcp-host=02:00:00:00:04:{number - 1:02x},{net}.200")
    config = directory / "dnsmasq"
    config.write_text("\n".join(lines) + "\n")
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            ("ip", "netns", "exec", NET, "dnsmasq", f"--conf-file={config}"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server."""
    process.terminate()
    process.wait(10)


def acknowledged(directory: Path) -> int:
    """How many leases the server has given or prolonged."""
    return (directory / "log").read_text().count("DHCPACK(")


def settings(site: Machine) -> str:
    """What a site changes and leases do not."""
    return site.run(
        "ip rule; ip -6 rule; nft list ruleset; ip -br link | sed 's/@.*//' | cut -d' ' -f1;"
        "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding;"
        "grep . /proc/sys/net/ipv4/conf/*/rp_filter"
    )


def addresses(site: Machine) -> list[str]:
    """The addresses of the uplinks by DHCP."""
    return re.findall(r"inet (192\.168\.\d\.\d+)/", site.run("ip -4 address show"))


def asked(site: Machine) -> str:
    """What the machine's name servers answer a user without rights."""
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    script = f"timeout 4 {nobody} getent ahostsv4 name.example || true"
    return site.run(script).partition(" ")[0]


def names(site: Machine, what: str, server: str) -> None:
    """Claims which name server answers."""
    expected = ANSWERS[server]
    answers: list[str] = []

    def right() -> bool:
        answers.append(asked(site))
        return answers[-1] == expected

    took = wait(what, right, 15)
    where = {RESOLVER: "behind the tunnel", UPLINK_RESOLVER: "of the uplink"}[server]
    file = site.run("ls -lL /etc/resolv.conf; cat /etc/resolv.conf") + log_of(site, "ropewalk-site")
    text = f"{what}: the name server {where} answers ({took:.1f} s)"
    claim(text, answers[-1] == expected, file)


@contextlib.contextmanager
def leased(
    client: str, packages: Path
) -> Iterator[tuple[Machine, Machine, Path, list[subprocess.Popen[bytes]]]]:
    """A hub, a site with a DHCP client, and the server."""
    kind, _ = CLIENTS[client]
    with (
        tempfile.TemporaryDirectory(dir=CACHE) as name,
        machines(["hub", "site"], packages, kind, leases=True) as both,
    ):
        for number in (1, 2):
            far = f"2001:db8:{number}::1/64"
            link = ("dev", f"site{number - 1}", "nodad")
            output("ip", "-n", NET, "address", "add", far, *link)
        serving = [server(Path(name))]
        try:
            yield both["hub"], both["site"], Path(name), serving
        finally:
            stop(serving[-1])


def dhcp(options: argparse.Namespace) -> None:
    """Each client of DHCP."""
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        packages = Path(name)
        shutil.copy(options.new, packages / "new.deb")
        for client in options.client or CLIENTS:
            with leased(client, packages) as (hub, site, directory, serving):
                leases(client, hub, site, directory, serving)


def leases(
    client: str,
    hub: Machine,
    site: Machine,
    directory: Path,
    serving: list[subprocess.Popen[bytes]],
) -> None:
    """What leases do to a site, step by step."""
    _, script = CLIENTS[client]
    site.run(script)
    took = wait(f"{client}: addresses", lambda: len(addresses(site)) == 2)
    wait(f"{client}: IPv6", lambda: "2001:db8:1:" in site.run("ip -6 address show dev eth0"))
    time.sleep(1)
    routes = site.run("ip route")
    said = f"{client}: leases after {took:.1f} s, with the routes of option 121"
    claim(said, LURED in routes, routes)
    names(site, f"{client}: before", UPLINK_RESOLVER)
    before, resolver = settings(site), site.run("cat /etc/resolv.conf")
    for machine in (hub, site):
        machine.install("new.deb")
    configure(hub, site, f'kill_switch = true\\ndns = ["{RESOLVER}"]')
    escapes, stream = Escapes(site), Stream(site.netns)
    claim(f"{client}: connections go out at the hub", stream.peer == HUB, stream.peer)
    names(site, f"{client}: up", RESOLVER)
    count = acknowledged(directory)
    time.sleep(2.5 * RENEW_S)
    renewed = acknowledged(directory) - count
    claim(f"{client}: {renewed} renewals while the site runs", renewed >= 2, log_of(site, "*"))
    names(site, f"{client}: renewed", RESOLVER)
    stop(serving[-1])
    serving.append(server(directory, moved=True))

    def moved() -> bool:
        return sum(address.endswith(".200") for address in addresses(site)) == 2

    took = wait(f"{client}: other addresses", moved, 40)
    claim(f"{client}: both uplinks have other addresses after {took:.1f} s", moved())
    took = wait(f"{client}: the tunnel carries", lambda: who(site.netns) == HUB)
    claim(f"{client}: new connections go out at the hub {took:.1f} s later", who(site.netns) == HUB)
    stream.finish(f"{client}: a TCP connection outlives renewals and other addresses", 30)
    site.run("systemctl restart ropewalk-site")
    wait(f"{client}: the tunnel carries", lambda: who(site.netns) == HUB)
    names(site, f"{client}: the site is restarted", RESOLVER)
    site.run("systemctl stop ropewalk-site")
    time.sleep(1)
    escapes.claim(f"{client}: up to the stop")
    luring = site.run("ping -c 3 -i 0.2 -W 1 192.0.2.1 2>&1", check=False)
    claim(f"{client}: what option 121 leads away is refused", "filtered" in luring, luring)
    escapes.claim(f"{client}: of three pings there")
    claim(f"{client}: stopped, nothing is reached", who(site.netns) == "", who(site.netns))
    escapes.stopped = True
    escapes.thread.join()
    escapes.claim(f"{client}: while it is stopped")
    down(site, client)
    names(site, f"{client}: after `down`", UPLINK_RESOLVER)
    changed = difference(before, settings(site))
    claim(f"{client}: rules, firewall and settings are as before", not changed, changed)
    now = site.run("cat /etc/resolv.conf")
    claim(f"{client}: resolv.conf is as before", now == resolver, resolver + now)
