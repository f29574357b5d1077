"""Copies beneath unmodified OpenVPN over TCP: two switches, two links that lose, a VPN, a download.

Namespaces: application at the client (its VPN client in it), the client's switch, two links, the
VPN server's switch, the VPN server, a link to the content server. Source: Takeuchi et al., sections
IV.A and IV.B.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ovs_testbed import reports
from ovs_testbed.links import EmulatedLink
from ovs_testbed.machine import (
    KERNEL_NAMES,
    Machine,
    Sandbox,
    SandboxError,
    inside,
    listens,
    run,
    stop,
    wait,
)
from ovs_testbed.reports import report
from ropewalk.lab.ovs.bicast import PACKETS, PROCESSOR
from ropewalk.plan import OvsBicast, Ping, Plan, Tcp
from ropewalk.report import Report
from ropewalk.sdn.config import Config
from ropewalk.sdn.host.copies import loader

NEEDS = ("openvpn", "iperf3", "openssl", "clang", "ping")
"""Programs besides those of every network."""
_TRAFFIC_S_MAX = 60
_CONTENT_MBIT = 100
_INTERFACE = "ropeapp0"
_TUNNEL = "ovpn0"
_CLIENT_INNER, _SERVER_INNER = "10.8.0.2", "10.8.0.1"
_CONTENT = "10.50.0.2"
_IPERF_PORT = 5201
ENDS = {"client": (1, 2), "server": (2, 1)}
"""The last number of addresses here and at the other end."""


class Bench:
    """The network."""

    def __init__(self, sandbox: Sandbox, links: Path) -> None:
        """`links` is the program that emulates them."""
        self.sandbox = sandbox
        self.machines = {end: sandbox.machine(end) for end in ENDS}
        self.hosts = {end: sandbox.namespace(f"{end}-app") for end in ENDS}
        self.content = sandbox.namespace("content")
        self.controllers: list[subprocess.Popen[Any]] = []
        self._policy = ""
        self._links = []
        for number in range(2):
            client, server = (f"{self.machines[end].namespace}:w{number}" for end in ENDS)
            # With one seed both would lose the same packets, since both carry the same.
            seed = ("--seed", str(number + 1))
            self._links.append(EmulatedLink(sandbox, links, f"w{number}", (client, server), *seed))
        EmulatedLink(
            *(sandbox, links, "content"),
            (f"{self.hosts['server']}:content0", f"{self.content}:content0"),
            *("--rate", f"{_CONTENT_MBIT}Mbit", "--delay", "5ms"),
            *("--address-a", "10.50.0.1/24", "--address-b", f"{_CONTENT}/24"),
        )
        run("ip", "-n", self.content, "route", "add", "10.8.0.0/24", "via", "10.50.0.1")
        inside(self.hosts["server"], "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for end in ENDS:
            self.machines[end].command(self._configure(end, 1), "setup")
        self.keys = {end: certificate(sandbox.directory, end) for end in ENDS}

    def _configure(self, end: str, copies: int) -> Config:
        text = configuration(end, ENDS[end], self.hosts[end], range(1, 3))
        return self.machines[end].configure(
            f"{text}[probe]\ninterval_ms = 500\ndown_after_ms = 5000\n[bicast]\ncopies = {copies}\n"
        )

    def close(self) -> None:
        """The sandbox ends everything."""

    def run(self, plan: Plan) -> Report:
        """One run, with an OpenVPN connection of its own.

        Raises:
            SandboxError: when something does not come about.
        """
        carrier = plan.carrier
        assert isinstance(carrier, OvsBicast), carrier
        if carrier.policy != self._policy:
            self._control(carrier.policy)
        for link, path in zip(self._links, plan.path, strict=True):
            both = path.both
            link.set("both", f"rate {both.rate_mbit}Mbit delay {both.delay_ms}ms")
            link.set("both", f"loss 0% queue_packets {both.queue_packets}")
        control = KERNEL_NAMES[carrier.congestion]
        for end, (_, other) in ENDS.items():
            route = ["route", "replace", f"10.99.0.{other}", "dev", _INTERFACE]
            run("ip", "-n", self.hosts[end], *route, "congctl", control)
        with self._vpn(carrier.tunnel_queue):
            for link, path in zip(self._links, plan.path, strict=True):
                link.set("up", f"loss {path.up.loss or 0}")
                link.set("down", f"loss {path.down.loss or 0}")
            before = self._counters()
            began = time.monotonic()
            download, pings = self._traffic(plan)
            seconds = time.monotonic() - began
            after = self._counters()
        given, sent, cpu_s = (b - a for a, b in zip(before, after, strict=True))
        end = download["end"]
        goodput = end["sum_received"]["bits_per_second"] / 1e6
        return report(
            plan,
            (
                reports.download(goodput, int(end["sum_sent"].get("retransmits", 0))),
                reports.pings(ping_count(plan), pings),
            ),
            values={PACKETS: sent / max(1.0, given), PROCESSOR: cpu_s / seconds},
        )

    def _control(self, policy: str) -> None:
        """Restarts the controllers, over links that lose nothing."""
        for controller in self.controllers:
            stop(controller)
        self.controllers = []
        for link in self._links:
            link.set("both", "loss 0% queue_packets 1000")
        for end in ENDS:
            both = policy.startswith("bi-")
            copies = 2 if both or (policy == "c-bicast" and end == "client") else 1
            self.controllers.append(self.machines[end].control(self._configure(end, copies)))
            remove_copies(self.hosts[end], self.sandbox.directory, policy == "bi-bicast-removed")
        self._policy = policy

    def _traffic(self, plan: Plan) -> tuple[dict[str, Any], list[float]]:
        """What iperf3 says of the download, and the round trips of the pings in ms."""
        flow, pings = plan.traffic
        assert isinstance(flow, Tcp) and isinstance(pings, Ping), "what this network carries"
        client, content = (
            ["ip", "netns", "exec", name] for name in (self.hosts["client"], self.content)
        )
        # A server for each run: what the last one left in its queues would keep it busy.
        server = self.sandbox.start(self.content, "iperf3", "-s", "-1")
        wait(lambda: listens(self.content, _IPERF_PORT), "iperf3 did not start")
        count = str(ping_count(plan))
        asking = [*content, "ping", "-c", count, "-i", str(pings.interval_s), "-W", "20"]
        loading = [*client, "iperf3", "-c", _CONTENT, "-R", "-t", str(round(plan.duration_s)), "-J"]
        loading += ["-C", KERNEL_NAMES[flow.congestion]]
        ping = subprocess.Popen([*asking, _CLIENT_INNER], stdout=subprocess.PIPE, text=True)
        download = subprocess.Popen(loading, stdout=subprocess.PIPE, text=True)
        try:
            text, _ = download.communicate(timeout=_TRAFFIC_S_MAX)
            answers, _ = ping.communicate(timeout=_TRAFFIC_S_MAX)
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"the traffic took longer than {_TRAFFIC_S_MAX} s") from error
        finally:
            for process in (ping, download, server):
                stop(process)
        result = json.loads(text or "{}")
        if "error" in result or "end" not in result:
            raise SandboxError(f"iperf3: {result.get('error', 'no result')}")
        return result, [float(time) for time in re.findall(r"time=([0-9.]+)", answers)]

    @contextlib.contextmanager
    def _vpn(self, queue: int | None) -> Iterator[None]:
        ends = {
            "server": "--proto tcp4-server --local 10.99.0.2 --lport 1194 --tls-server --dh none "
            f"--ifconfig {_SERVER_INNER} {_CLIENT_INNER}",
            "client": "--proto tcp4-client --remote 10.99.0.2 1194 --nobind --tls-client "
            f"--ifconfig {_CLIENT_INNER} {_SERVER_INNER}",
        }
        started = []
        try:
            for end, arguments in ends.items():
                other = "client" if end == "server" else "server"
                certificate, key, _ = self.keys[end]
                command = ["openvpn", "--dev", _TUNNEL, "--dev-type", "tun", "--disable-dco"]
                command += ["--connect-retry", "1", "1", "--data-ciphers", "AES-256-GCM"]
                command += ["--cert", certificate, "--key", key, "--verb", "3"]
                command += [] if queue is None else ["--txqueuelen", str(queue)]
                command += ["--peer-fingerprint", self.keys[other][2], *arguments.split()]
                started.append(self.sandbox.start(self.hosts[end], *command, log=f"vpn-{end}.log"))
            wait(lambda: _answers(self.hosts["client"]), "OpenVPN did not connect", 30)
            route = ["ip", "-n", self.hosts["client"], "route", "replace", "10.50.0.0/24"]
            run(*route, "dev", _TUNNEL)
            yield
        finally:
            for process in started:
                stop(process)

    def _counters(self) -> tuple[float, float, float]:
        """Packets the hosts gave to the switches, packets on the links, CPU seconds of switches."""
        given = sum(_transmitted(self.hosts[end], _INTERFACE) for end in ENDS)
        sent = sum(
            _transmitted(machine.namespace, f"w{number}")
            for machine in self.machines.values()
            for number in range(2)
        )
        cpu = sum(_cpu_s(machine) for machine in self.machines.values())
        return given, sent, cpu


def configuration(
    end: str, numbers: tuple[int, int], host: str, networks: range, ipv6: bool = False
) -> str:
    """The start of a switch's configuration: an uplink `wN` for each path, in network 10.M.

    With `ipv6` in network fd0M, too, and all of it in both address families.
    """
    own, other = numbers

    def written(ipv4: str, beside: str) -> str:
        return f'["{ipv4}", "{beside}"]' if ipv6 else f'"{ipv4}"'

    uplinks = "".join(
        f'[[uplink]]\nname = "w{number}"\n'
        f"address = {written(f'10.{network}.0.{own}/24', f'fd0{network}::{own}/64')}\n"
        f"peer = {written(f'10.{network}.0.{other}', f'fd0{network}::{other}')}\n"
        for number, network in enumerate(networks)
    )
    return (
        f'mode = "bicast"\n[bridge]\nname = "{end}br"\ndatabase = "DATABASE"\n'
        f'[application]\nnamespace = "{host}"\ninterface = "{_INTERFACE}"\n'
        f"address = {written(f'10.99.0.{own}/24', f'fd99::{own}/64')}\n"
        f"peer = {written(f'10.99.0.{other}', f'fd99::{other}')}\n{uplinks}"
    )


def certificate(directory: Path, name: str) -> tuple[str, str, str]:
    """Makes a certificate; the files of it and of its key, and its fingerprint."""
    file, key = f"{directory}/{name}.crt", f"{directory}/{name}.key"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    request += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"]
    run(*request, "-keyout", key, "-out", file)
    text = run("openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", file)
    return file, key, text.strip().partition("=")[2]


def remove_copies(namespace: str, directory: Path, on: bool) -> None:
    """Whether second copies are removed in front of the application."""
    with contextlib.suppress(SandboxError):
        inside(namespace, "tc", "qdisc", "del", "dev", _INTERFACE, "clsact")
    if on:
        for step in loader.steps(namespace, _INTERFACE, directory):
            run(*step.do)


def ping_count(plan: Plan) -> int:
    """Pings that fit in the download; the last leaves a second before its end."""
    pings = plan.traffic[1]
    assert isinstance(pings, Ping), pings
    return round((plan.duration_s - 1) / pings.interval_s)


def _answers(namespace: str) -> bool:
    inside(namespace, "ping", "-c1", "-W1", _SERVER_INNER)
    return True


def _transmitted(namespace: str, interface: str) -> float:
    text = run("ip", "-n", namespace, "-j", "-s", "link", "show", "dev", interface)
    return float(json.loads(text)[0]["stats64"]["tx"]["packets"])


def _cpu_s(machine: Machine) -> float:
    # `ip netns exec` becomes the program, so this is the switch itself.
    fields = Path(f"/proc/{machine.switch.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
