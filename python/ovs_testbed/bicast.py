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
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ovs_testbed import openvpn, reports
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
from ropewalk.lab.ovs.bicast import (
    BYTES,
    PACKETS,
    PROCESSOR,
    SMALL_BYTES,
    UNSENT,
    UNSENT_MOST,
)
from ropewalk.plan import OvsBicast, Ping, Plan, Tcp
from ropewalk.report import Report
from ropewalk.sdn.config import Config
from ropewalk.sdn.host.copies import loader

NEEDS = ("openvpn", "iperf3", "openssl", "clang", "ping")
"""Programs besides those of every network."""
_GRACE_S = 45
"""For the last pings to come back, and for iperf3 to say what it measured."""
_CONTENT_MBIT = 100
_MODEST = ("chrt", "--other", "0", "nice", "-n", "10")
"""iperf3 spins when its time is over, until the last words come through the filled tunnel: seconds
of a whole processor, which the networks beside need."""
_INTERFACE = "ropeapp0"
_CONTENT = "10.50.0.2"
_IPERF_PORT = 5201
ENDS = {"client": (1, 2), "server": (2, 1)}
"""The last number of addresses here and at the other end."""
_SELECTIVE = {
    "bi-bicast-small": f"packet_bytes_max = {SMALL_BYTES}\n",
    "bi-bicast-by-loss": 'when = "loss"\n',
}
"""What `[bicast]` has besides, by policy."""
_AFRESH = ("bi-bicast-by-loss",)
"""Their controllers begin anew with each run, so that they know no losses of the run before."""


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
            self._links.append(EmulatedLink(sandbox, links, f"w{number}", (client, server)))
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
        self.keys = openvpn.Keys(sandbox.directory, tuple(ENDS))

    def _configure(self, end: str, copies: int, selective: str = "") -> Config:
        text = configuration(end, ENDS[end], self.hosts[end], range(1, 3))
        return self.machines[end].configure(
            f"{text}[probe]\ninterval_ms = {100 if selective else 500}\ndown_after_ms = 5000\n"
            f"[bicast]\ncopies = {copies}\n{selective}"
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
        if carrier.policy != self._policy or carrier.policy in _AFRESH:
            self._control(carrier.policy)
        for link, path in zip(self._links, plan.path, strict=True):
            both = path.both
            link.set("both", f"rate {both.rate_mbit}Mbit delay {both.delay_ms}ms")
            link.set("both", f"loss 0% queue_packets {both.queue_packets}")
        control = KERNEL_NAMES[carrier.congestion]
        for end, (_, other) in ENDS.items():
            route = ["route", "replace", f"10.99.0.{other}", "dev", _INTERFACE]
            run("ip", "-n", self.hosts[end], *route, "congctl", control)
        with openvpn.connected(self.sandbox, self.hosts, self.keys, carrier):
            route = ["ip", "-n", self.hosts["client"], "route", "replace", "10.50.0.0/24"]
            run(*route, "dev", openvpn.TUNNEL)
            for link, path in zip(self._links, plan.path, strict=True):
                link.set("up", f"loss {path.up.loss or 0}")
                link.set("down", f"loss {path.down.loss or 0}")
            before = self._counters()
            began = time.monotonic()
            with openvpn.Unsent(self.hosts["server"]) as waiting:
                download, pings = self._traffic(plan)
            seconds = time.monotonic() - began
            used = self._counters() - before
        end = download["end"]
        goodput = end["sum_received"]["bits_per_second"] / 1e6
        values = used.values(seconds)
        if waiting.bytes:
            values |= {
                UNSENT: sum(waiting.bytes) / len(waiting.bytes) / 1000,
                UNSENT_MOST: max(waiting.bytes) / 1000,
            }
        return report(
            plan,
            (
                reports.download(goodput, int(end["sum_sent"].get("retransmits", 0))),
                reports.pings(ping_count(plan), pings),
            ),
            values=values,
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
            config = self._configure(end, copies, _SELECTIVE.get(policy, ""))
            self.controllers.append(self.machines[end].control(config))
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
        assert isinstance(plan.carrier, OvsBicast), plan.carrier
        ahead_s = plan.carrier.ahead_s
        asking = f"sleep {ahead_s}; exec ping -c {ping_count(plan)} -i {pings.interval_s} -W 20 "
        asking += openvpn.CLIENT_INNER
        loading = [*client, *_MODEST, "iperf3", "-c", _CONTENT, "-R", "-J"]
        loading += ["-t", str(round(ahead_s + plan.duration_s))]
        loading += ["-C", KERNEL_NAMES[flow.congestion]]
        loading += ["-w", str(flow.window)] if flow.window is not None else []
        ping = subprocess.Popen([*content, "sh", "-c", asking], stdout=subprocess.PIPE, text=True)
        download = subprocess.Popen(loading, stdout=subprocess.PIPE, text=True)
        try:
            text, _ = download.communicate(timeout=ahead_s + plan.duration_s + _GRACE_S)
            answers, _ = ping.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"the traffic took {_GRACE_S} s longer than planned") from error
        finally:
            for process in (ping, download, server):
                stop(process)
        result = json.loads(text or "{}")
        if "error" in result or "end" not in result:
            raise SandboxError(f"iperf3: {result.get('error', 'no result')}")
        return result, [float(time) for time in re.findall(r"time=([0-9.]+)", answers)]

    def _counters(self) -> Counters:
        given = [_transmitted(self.hosts[end], _INTERFACE) for end in ENDS]
        sent = [
            _transmitted(machine.namespace, f"w{number}")
            for machine in self.machines.values()
            for number in range(2)
        ]
        return Counters(
            given_packets=sum(packets for packets, _ in given),
            given_bytes=sum(octets for _, octets in given),
            sent_packets=sum(packets for packets, _ in sent),
            sent_bytes=sum(octets for _, octets in sent),
            cpu_s=sum(_cpu_s(machine) for machine in self.machines.values()),
        )


@dataclass(frozen=True)
class Counters:
    """What the hosts gave to the switches, what the links got, CPU seconds of both switches."""

    given_packets: float
    given_bytes: float
    sent_packets: float
    sent_bytes: float
    cpu_s: float

    def __sub__(self, before: Counters) -> Counters:
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Counters(*(now - then for now, then in pairs))

    def values(self, seconds: float) -> dict[str, float]:
        """The cost of copies in a run of so many seconds."""
        return {
            PACKETS: self.sent_packets / max(1.0, self.given_packets),
            BYTES: self.sent_bytes / max(1.0, self.given_bytes),
            PROCESSOR: self.cpu_s / seconds,
        }


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


def _transmitted(namespace: str, interface: str) -> tuple[int, int]:
    """Packets and bytes."""
    text = run("ip", "-n", namespace, "-j", "-s", "link", "show", "dev", interface)
    sent = json.loads(text)[0]["stats64"]["tx"]
    return sent["packets"], sent["bytes"]


def _cpu_s(machine: Machine) -> float:
    # `ip netns exec` becomes the program, so this is the switch itself.
    fields = Path(f"/proc/{machine.switch.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
