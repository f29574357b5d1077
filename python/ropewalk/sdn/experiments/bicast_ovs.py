"""Experiment `bicast-ovs`: copies beneath unmodified OpenVPN over TCP, on Open vSwitch.

Takeuchi et al., sections IV.A and IV.B: two links of 10 Mbit/s between client and VPN server that
lose packets in both directions, a server behind it; a download by iperf3 -R while 30 pings go
from the server to the client. The paper does not say how long its queues were, what "RTT 10 ms"
means (here 5 ms each way) and which congestion control ran: both ends here use the named one, in
the tunnel and beneath it.

    python -m ropewalk.sdn.experiments.bicast_ovs --out out/lab/bicast-ovs --quick

Namespaces: application at the client (its VPN client in it), the client's switch, two links, the
VPN server's switch, the VPN server, a link to the content server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ropewalk.lab.claims import Claim, claim, worst_first
from ropewalk.lab.claims import number as shown
from ropewalk.lab.programs import LINK, find
from ropewalk.lab.provenance import Load, machine, source, stamp
from ropewalk.lab.statistics import paired_ratio
from ropewalk.sdn.config import Config
from ropewalk.sdn.copies import loader
from ropewalk.sdn.experiments.machine import Lab, LabError, Machine, run, stop, wait

PREFIX = "sdn-bo-"
LOSSES = ((0, 0), (0, 5), (0, 10), (5, 0), (5, 5), (5, 10))
"""Percent upstream (client to server) and downstream."""
POLICIES = ("unicast", "c-bicast", "bi-bicast", "bi-bicast-removed")
QUEUES = (100, 1000)
"""Packets; 1,000 is the default of netem, which the paper used."""
PINGS = 30
PING_EVERY_S = 0.5
TRAFFIC_S = 16
RUN_S_MAX = 60
_INTERFACE = "ropeapp0"
_TUNNEL = "ovpn0"
_CLIENT_INNER, _SERVER_INNER = "10.8.0.2", "10.8.0.1"
_CONTENT = "10.50.0.2"
_ENDS = {"client": (1, 2), "server": (2, 1)}


@dataclass(frozen=True)
class Cell:
    """One run; `run` tells repetitions apart."""

    policy: str
    congestion: str
    queue_packets: int
    loss_up: int
    loss_down: int
    run: int = 1
    tunnel_queue: int = 0
    """Packets that wait in front of OpenVPN at most; 0 for its own, 500."""


@dataclass(frozen=True)
class Result:
    """What a run gave. `sent_ratio`: packets on the links for each that the ends gave away."""

    cell: Cell
    throughput_mbit: float
    pings_answered: int
    rtt_avg_ms: float | None
    rtt_max_ms: float | None
    sent_ratio: float
    switch_cpu: float
    """Of one core, both switches together."""
    retransmitted: int
    conditions: dict[str, Any]


def cells(quick: bool, runs: int, tunnel_queue: int = 0) -> list[Cell]:
    """The runs; `quick` are those of the claims alone."""
    losses = LOSSES[-2:] if quick else LOSSES
    queues = QUEUES[-1:] if quick else QUEUES
    numbers = range(1, runs + 1)
    grid = [
        Cell(policy, "cubic", queue, up, down, number)
        for policy, number, queue, (up, down) in product(POLICIES, numbers, queues, losses)
    ]
    others = [
        Cell(policy, congestion, QUEUES[-1], up, down, number)
        for policy, number, congestion, (up, down) in product(
            POLICIES, numbers, ("reno", "bbr"), LOSSES[-2:]
        )
    ]
    chosen = [
        replace(cell, tunnel_queue=tunnel_queue) for cell in (grid if quick else grid + others)
    ]
    return sorted(chosen, key=lambda cell: POLICIES.index(cell.policy))


class Bench:
    """The network of the experiment."""

    def __init__(self, lab: Lab, links: Path) -> None:
        self.lab = lab
        self.machines = {end: lab.machine(end) for end in _ENDS}
        self.hosts = {end: lab.namespace(f"{end}-app") for end in _ENDS}
        self.content = lab.namespace("content")
        self.configs: dict[str, Config] = {}
        self.controllers: list[subprocess.Popen[Any]] = []
        self._links = links
        for number in range(2):
            ends = [f"{self.machines[end].namespace}:w{number}" for end in _ENDS]
            # With one seed both would lose the same packets, since both carry the same.
            seed = ("--seed", str(number + 1))
            self._link(f"w{number}", *ends, "--rate", "10Mbit", "--delay", "5ms", *seed)
        self._link(
            "content",
            f"{self.hosts['server']}:content0",
            f"{self.content}:content0",
            *("--rate", "100Mbit", "--delay", "5ms"),
            *("--address-a", "10.50.0.1/24", "--address-b", f"{_CONTENT}/24"),
        )
        run("ip", "-n", self.content, "route", "add", "10.8.0.0/24", "via", "10.50.0.1")
        run("ip", "netns", "exec", self.hosts["server"], "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for end in _ENDS:
            config = self._configure(end, 1)
            self.machines[end].command(config, "setup")
        self.keys = {end: _certificate(lab.directory, end) for end in _ENDS}

    def _link(self, name: str, a: str, b: str, *settings: str) -> None:
        control = self.lab.directory / f"{name}.ctl"
        command = [str(self._links), "--a", a, "--b", b, "--control", str(control)]
        self.lab.start(self.content, *command, *settings, "--exit-with-parent", log="links.log")
        wait(control.exists, f"the link {name} did not start")

    def _configure(self, end: str, copies: int) -> Config:
        own, other = _ENDS[end]
        uplinks = "".join(
            f'[[uplink]]\nname = "w{number}"\naddress = "10.{number + 1}.0.{own}/24"\n'
            f'peer = "10.{number + 1}.0.{other}"\n'
            for number in range(2)
        )
        return self.machines[end].configure(
            f'mode = "bicast"\n[bridge]\nname = "{end}br"\ndatabase = "DATABASE"\n'
            f'[application]\nnamespace = "{self.hosts[end]}"\ninterface = "{_INTERFACE}"\n'
            f'address = "10.99.0.{own}/24"\npeer = "10.99.0.{other}"\n{uplinks}'
            f"[probe]\ninterval_ms = 500\ndown_after_ms = 5000\n[bicast]\ncopies = {copies}\n"
        )

    def policy(self, name: str) -> None:
        """Restarts the controllers with a policy."""
        for controller in self.controllers:
            stop(controller)
        self.controllers = []
        for number in range(2):
            self._tell(f"w{number}", "set both loss 0% queue_packets 1000")
        for end in _ENDS:
            both = name.startswith("bi-")
            copies = 2 if both or (name == "c-bicast" and end == "client") else 1
            config = self._configure(end, copies)
            self.configs[end] = config
            self.controllers.append(self.machines[end].control(config))
            _remove_copies(self.hosts[end], self.lab.directory, name == "bi-bicast-removed")

    def measure(self, cell: Cell) -> Result:
        """One run, with an OpenVPN connection of its own."""
        for number in range(2):
            self._tell(f"w{number}", f"set both queue_packets {cell.queue_packets}")
            self._tell(f"w{number}", "set both loss 0%")
        for end, (_, other) in _ENDS.items():
            route = ["route", "replace", f"10.99.0.{other}", "dev", _INTERFACE]
            run("ip", "-n", self.hosts[end], *route, "congctl", cell.congestion)
        with self._vpn(cell.tunnel_queue):
            for number in range(2):
                self._tell(f"w{number}", f"set up loss {cell.loss_up}%")
                self._tell(f"w{number}", f"set down loss {cell.loss_down}%")
            load = Load.now()
            before = self._counters()
            began = time.monotonic()
            download, pings = self._traffic(cell.congestion)
            seconds = time.monotonic() - began
            after = self._counters()
            conditions = stamp(load, Load.now())
        times = [float(text) for text in re.findall(r"time=([0-9.]+)", pings)]
        given, sent, cpu = (b - a for a, b in zip(before, after, strict=True))
        return Result(
            cell=cell,
            throughput_mbit=round(download["end"]["sum_received"]["bits_per_second"] / 1e6, 3),
            pings_answered=len(times),
            rtt_avg_ms=round(sum(times) / len(times), 1) if times else None,
            rtt_max_ms=max(times, default=None),
            sent_ratio=round(sent / max(1, given), 3),
            switch_cpu=round(cpu / seconds, 3),
            retransmitted=int(download["end"]["sum_sent"].get("retransmits", 0)),
            conditions=conditions,
        )

    def _traffic(self, congestion: str) -> tuple[dict[str, Any], str]:
        client, content = (
            ["ip", "netns", "exec", name] for name in (self.hosts["client"], self.content)
        )
        # A server for each run: what the last one left in its queues would keep it busy.
        server = self.lab.start(self.content, "iperf3", "-s", "-1")
        wait(lambda: _listens(self.content), "iperf3 did not start")
        ping = subprocess.Popen(
            [
                *content,
                "ping",
                "-c",
                str(PINGS),
                "-i",
                str(PING_EVERY_S),
                "-W",
                "20",
                _CLIENT_INNER,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        download = subprocess.Popen(
            [*client, "iperf3", "-c", _CONTENT, "-R", "-t", str(TRAFFIC_S), "-J", "-C", congestion],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            text, _ = download.communicate(timeout=RUN_S_MAX)
            pings, _ = ping.communicate(timeout=RUN_S_MAX)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"the traffic took longer than {RUN_S_MAX} s") from error
        finally:
            for process in (ping, download, server):
                stop(process)
        result = json.loads(text or "{}")
        if "error" in result or "end" not in result:
            raise LabError(f"iperf3: {result.get('error', 'no result')}")
        return result, pings

    @contextlib.contextmanager
    def _vpn(self, queue: int) -> Iterator[None]:
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
                command += ["--txqueuelen", str(queue)] if queue else []
                command += ["--peer-fingerprint", self.keys[other][2], *arguments.split()]
                started.append(self.lab.start(self.hosts[end], *command, log=f"vpn-{end}.log"))
            wait(lambda: _answers(self.hosts["client"]), "OpenVPN did not connect", 30)
            route = ["ip", "-n", self.hosts["client"], "route", "replace", "10.50.0.0/24"]
            run(*route, "dev", _TUNNEL)
            yield
        finally:
            for process in started:
                stop(process)

    def _counters(self) -> tuple[float, float, float]:
        """Packets the hosts gave to the switches, packets on the links, CPU seconds of switches."""
        given = sum(_transmitted(self.hosts[end], _INTERFACE) for end in _ENDS)
        sent = sum(
            _transmitted(machine.namespace, f"w{number}")
            for machine in self.machines.values()
            for number in range(2)
        )
        cpu = sum(_cpu_s(machine) for machine in self.machines.values())
        return given, sent, cpu

    def _tell(self, link: str, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(5)
            control.connect(str(self.lab.directory / f"{link}.ctl"))
            control.sendall(command.encode() + b"\n")
            answer = control.makefile().readline()
        if '"error"' in answer:
            raise LabError(f"link {link}: {command}: {answer}")


def _certificate(directory: Path, name: str) -> tuple[str, str, str]:
    certificate, key = f"{directory}/{name}.crt", f"{directory}/{name}.key"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    request += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"]
    run(*request, "-keyout", key, "-out", certificate)
    text = run("openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", certificate)
    return certificate, key, text.strip().partition("=")[2]


def _remove_copies(namespace: str, directory: Path, on: bool) -> None:
    with contextlib.suppress(LabError):
        run("ip", "netns", "exec", namespace, "tc", "qdisc", "del", "dev", _INTERFACE, "clsact")
    if on:
        for command in loader.commands(namespace, _INTERFACE, directory):
            run(*command)


def _answers(namespace: str) -> bool:
    run("ip", "netns", "exec", namespace, "ping", "-c1", "-W1", _SERVER_INNER)
    return True


def _listens(namespace: str) -> bool:
    return "5201" in run("ip", "netns", "exec", namespace, "ss", "-Hltn", "sport = 5201")


def _transmitted(namespace: str, interface: str) -> float:
    text = run("ip", "-n", namespace, "-j", "-s", "link", "show", "dev", interface)
    return float(json.loads(text)[0]["stats64"]["tx"]["packets"])


def _cpu_s(machine: Machine) -> float:
    # `ip netns exec` becomes the program, so this is the switch itself.
    fields = Path(f"/proc/{machine.switch.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


_TARGETS = {(5, 5): (3.0, 3.0), (5, 10): (5.0, 6.0)}
"""For copies both ways by what is lost: least gain in throughput, and what the paper found."""
_RTT_TARGET = 0.25
_RTT_PAPER = {(5, 5): 0.244, (5, 10): 0.2}


def claims(results: list[Result]) -> list[Claim]:
    """What is claimed beside what was measured: ratios to unicast in the same setting and run."""
    found = {result.cell: result for result in results}
    rows = []
    for setting in sorted({replace(cell, run=1) for cell in found}, key=str):
        if setting.policy == "unicast":
            continue
        runs = {cell.run: row for cell, row in found.items() if replace(cell, run=1) == setting}
        alone = {
            cell.run: row
            for cell, row in found.items()
            if replace(cell, run=1) == replace(setting, policy="unicast")
        }
        loss = (setting.loss_up, setting.loss_down)
        judged = (
            setting.policy.startswith("bi-")
            and (setting.congestion, setting.queue_packets) == ("cubic", QUEUES[-1])
            and loss in _TARGETS
        )
        name = f"{setting.policy}, {setting.congestion}, {setting.queue_packets} packets, "
        name += f"{loss[0]} / {loss[1]} %"
        if setting.tunnel_queue:
            name += f", {setting.tunnel_queue} in front of the tunnel"
        least, paper = _TARGETS[loss] if judged else (None, None)
        gain = paired_ratio(
            {run: row.throughput_mbit for run, row in runs.items()},
            {run: row.throughput_mbit for run, row in alone.items()},
        )
        rows.append(claim(f"{name}: throughput", "× unicast", gain, target=least, paper=paper))
        longest = paired_ratio(
            {run: row.rtt_max_ms for run, row in runs.items() if row.rtt_max_ms},
            {run: row.rtt_max_ms for run, row in alone.items() if row.rtt_max_ms},
        )
        rows.append(
            claim(
                f"{name}: longest round trip",
                "× unicast",
                longest,
                relation="<=",
                target=_RTT_TARGET if judged else None,
                paper=_RTT_PAPER[loss] if judged else None,
            )
        )
    return worst_first([row for row in rows if row.measured is not None])


def main(arguments: list[str] | None = None) -> int:
    """Runs the experiment; finished runs are kept and not repeated."""
    parser = argparse.ArgumentParser(
        prog="python -m ropewalk.sdn.experiments.bicast_ovs",
        description="Copies beneath OpenVPN over TCP on Open vSwitch (as root).",
    )
    parser.add_argument("--out", type=Path, default=Path("out/lab/bicast-ovs"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="the runs of the claims alone")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each setting (1)")
    parser.add_argument("--programs", type=Path, metavar="DIR", help="where ropewalk-linkem is")
    parser.add_argument(
        "--tunnel-queue",
        type=int,
        default=0,
        metavar="N",
        help="packets in front of OpenVPN (its own 500), unicast's runs too",
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="runs whose name matches")
    options = parser.parse_args(arguments)
    results = _run(options)
    for row in claims(results):
        verdict = {True: "met", False: "missed", None: ""}[row.ok]
        print(f"{row.name}: {shown(row.measured)} {row.unit} {row.wanted()} {verdict}".rstrip())
    return 0


def _run(options: argparse.Namespace) -> list[Result]:
    path = options.out / "result.json"
    options.out.mkdir(parents=True, exist_ok=True)
    results = _stored(path)
    done = {result.cell for result in results}
    left = [
        cell
        for cell in cells(options.quick, options.runs, options.tunnel_queue)
        if cell not in done
    ]
    left = [
        cell for cell in left if re.search(options.only, "/".join(map(str, asdict(cell).values())))
    ]
    if not left:
        return results
    with Lab(PREFIX) as lab:
        bench = Bench(lab, find(LINK, options.programs))
        policy = ""
        for number, cell in enumerate(left, 1):
            if cell.policy != policy:
                policy = cell.policy
                bench.policy(policy)
            try:
                result = bench.measure(cell)
            except LabError as error:
                print(f"{number}/{len(left)} {cell}: failed: {error}", file=sys.stderr, flush=True)
                continue
            results.append(result)
            _store(path, results)
            print(f"{number}/{len(left)} {json.dumps(asdict(result))}", flush=True)
    return results


def _stored(path: Path) -> list[Result]:
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["results"]
    return [Result(**{**row, "cell": Cell(**row["cell"])}) for row in rows]


def _store(path: Path, results: list[Result]) -> None:
    value = {
        "experiment": "bicast-ovs",
        "source": asdict(source(Path.cwd())),
        "machine": machine(None),
        "results": [asdict(result) for result in results],
        "claims": [row.to_json() for row in claims(results)],
    }
    path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
