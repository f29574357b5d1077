"""Experiment `roam-ovs`: one download while its station moves between access points.

Singh et al., section 3: eight switches, three access points, link delays of 1 to 80 ms, a gap
without association, one download. How its figure 5 is wired is not said in words; here S1 to S3
carry the access points and join at S4, from where S5 to S8 follow one another. Hops count links
between the correspondent and the station: it hangs at S1 (2 hops), S4 (3), S6 (5) or S8 (7).
After the move from AP1 to AP2 the correspondent at S1 is 4 links away.

    python -m ropewalk.sdn.experiments.roam_ovs --out out/lab/roam-ovs --quick

Idle times are from the moment the station is associated again to the sender's first segment and
to the first new byte at the receiving program. `notice_ms` is how long the access point takes to
tell that the station has gone: what is sent to it meanwhile dies.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ropewalk.lab.programs import LINK, find
from ropewalk.lab.provenance import Load, machine, source, stamp
from ropewalk.sdn.api import ApiError, ask
from ropewalk.sdn.experiments.machine import Lab, LabError, run, stop, wait
from ropewalk.sdn.roam.agent import counted
from ropewalk.sdn.roam.events import Notice
from ropewalk.sdn.roam.notices import written

PREFIX = "roam-ovs-"
MODES = ("bare", "zwa", "zwa-adaptive", "replay")
HOPS = {2: "s1", 3: "s4", 5: "s6", 7: "s8"}
GAPS_S = (1.0, 2.0, 3.5, 6.0)
RATE = "20Mbit"
STATION = "10.0.0.100"
MAC = "02:00:00:00:00:64"
NOTICES_PORT = 6654
_LINKS = [
    *((f"ap{number}", f"s{number}") for number in (1, 2, 3)),
    *((f"s{number}", "s4") for number in (1, 2, 3)),
    *((f"s{number}", f"s{number + 1}") for number in (4, 5, 6, 7)),
]
_AFTER_S = 3.0
_PAPER_WINDOW = 40_000
_WINDOWS = {("reno", True): _PAPER_WINDOW, ("cubic", False): 0, ("bbr", False): 0}
"""Without SACK a full queue's losses are repaired one each round trip, with or without a move, so
Reno runs with the paper's window; the others with the system's own."""
_QUICK = (
    *((hops, 20, gap, 0) for hops in (2, 7) for gap in (1.0, 6.0)),
    *((3, delay, 2.0, 0) for delay in (1, 80)),
    *((hops, 20, 2.0, 100) for hops in (3, 5)),
)
"""Hops, delay of each link, gap, notice."""
_FULL = (
    *product(HOPS, (20,), GAPS_S, (0,)),
    *product((3, 7), (1, 80), (2.0,), (0,)),
    *product((3, 5, 7), (20,), (1.0, 3.5), (100,)),
)
_TRAFFIC = "ropewalk.sdn.experiments.roam_traffic"


@dataclass(frozen=True)
class Cell:
    """One run. `old`: Reno as the paper had it, without SACK and with an initial window of 1."""

    mode: str
    congestion: str
    old: bool
    hops: int
    delay_ms: int
    gap_s: float
    notice_ms: int
    window_bytes: int
    """The receiver's; 0 for the system's own choice."""
    run: int = 1


@dataclass(frozen=True)
class Result:
    """What a run gave; times in milliseconds, None when it never came."""

    cell: Cell
    rtt_ms: float
    rerouted_ms: float | None
    """From the association to the switches' confirmation (barrier) that the new flows are there."""
    sender_idle_ms: float | None
    receiver_idle_ms: float | None
    ended: str
    complete: bool
    """Every byte arrived, with the right checksum."""
    lost_bytes: int
    retransmitted: int
    cwnd_before: int
    cwnd_after: int
    throughput_mbit: float
    waited_ms: float
    """How long controller and switch, ready to run, waited for a processor in the first second
    after the association, all threads together."""
    counters: dict[str, int]
    conditions: dict[str, Any]


def cells(quick: bool, runs: int = 1) -> list[Cell]:
    """The runs; `quick` are the bounds of each claim."""
    replay = [
        Cell("replay", congestion, old, hops, delay, gap, notice, window)
        for (congestion, old), window in _WINDOWS.items()
        for hops, delay, gap, notice in (_QUICK if quick else _FULL)
    ]
    gaps = (2.0,) if quick else (1.5, 3.0, 6.0)
    modes = [
        Cell(mode, "reno", True, 2, 80, gap, notice, _PAPER_WINDOW)
        for mode, notice, gap in product(MODES, (0, 1, 100), gaps)
        # Only with a notice there is a count from the moment of leaving: 1 ms is a prompt one.
        if (mode == "zwa-adaptive") or notice != 1
    ]
    others = [
        Cell(mode, congestion, old, hops, 20, 2.0, 0, window)
        for (congestion, old), window in _WINDOWS.items()
        for mode, hops in product(MODES[:2], (3, 5, 7))
    ]
    once = {*replay, *modes, *([] if quick else others)}
    found = [replace(cell, run=number) for cell in once for number in range(1, runs + 1)]
    return sorted(found, key=lambda cell: (MODES.index(cell.mode), name(cell)))


class Bench:
    """The network of the experiment; without a program for links they have no delay."""

    def __init__(self, lab: Lab, links: Path | None) -> None:
        self.lab = lab
        self.net = lab.machine("net")
        self.station = lab.namespace("sta")
        self.hosts = {hops: lab.namespace(f"cn{hops}") for hops in HOPS}
        self._links = links
        self._names: list[str] = []
        self.controller: subprocess.Popen[Any] | None = None
        self._wire()
        self.config = self.net.directory / "roam.toml"
        self._write("replay")
        self.command("setup")
        self._radio = self._start_radio()
        self._teller: subprocess.Popen[bytes] | None = None
        self.at = 0

    def _wire(self) -> None:
        net = self.net.namespace
        for a, b in _LINKS:
            self._link(f"{a}-{b}", f"{net}:{a}-{b}", f"{net}:{b}-{a}")
        for hops, switch in HOPS.items():
            self._link(f"{switch}-cn", f"{net}:{switch}-cn", f"{self.hosts[hops]}:eth0")
            self._host(self.hosts[hops], "eth0", f"10.0.0.{hops}", f"02:00:00:00:00:0{hops}")
        run("ip", "-n", self.station, "link", "add", "sta0", "type", "bridge")
        self._host(self.station, "sta0", STATION, MAC)
        for number in (1, 2, 3):
            pair = ["type", "veth", "peer", "name", f"wl{number}", "netns", self.station]
            run("ip", "-n", net, "link", "add", f"ap{number}-air", *pair)
            for namespace, name in ((self.station, f"wl{number}"), (net, f"ap{number}-air")):
                _inside(namespace, "ethtool", "-K", name, "tx", "off", "gro", "off")
            run("ip", "-n", net, "link", "set", f"ap{number}-air", "up")
        for hops, namespace in self.hosts.items():
            run("ip", "-n", namespace, "neigh", "replace", STATION, "lladdr", MAC, "dev", "eth0")
            arguments = ["lladdr", f"02:00:00:00:00:0{hops}", "dev", "sta0"]
            run("ip", "-n", self.station, "neigh", "replace", f"10.0.0.{hops}", *arguments)

    def _link(self, name: str, a: str, b: str) -> None:
        if self._links is None:
            _veth(a, b)
            return
        control = self.lab.directory / f"{name}.ctl"
        command = [str(self._links), "--a", a, "--b", b, "--control", str(control)]
        command += ["--rate", RATE, "--delay", "1ms", "--exit-with-parent"]
        self.lab.start(self.net.namespace, *command, log="links.log")
        wait(control.exists, f"the link {name} did not start")
        self._names.append(name)

    def _host(self, namespace: str, interface: str, address: str, mac: str) -> None:
        _inside(namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        run("ip", "-n", namespace, "link", "set", interface, "address", mac, "up")
        run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", interface)
        _inside(namespace, "ethtool", "-K", interface, "tx", "off")

    def _write(self, mode: str) -> None:
        net = self.net
        text = f'mode = "{mode}"\nnotices = "127.0.0.1:{NOTICES_PORT}"\n'
        text += f'database = "{net.database}"\nsocket = "{net.directory}/api.sock"\n'
        text += f'state_dir = "{net.directory}"\n[controller]\nlisten = "127.0.0.1:6653"\n'
        names = sorted({name for link in _LINKS for name in link})
        for number, name in enumerate(names, 1):
            text += f'[[switch]]\nname = "{name}"\ndatapath_id = "{number:016x}"\n'
            if name.startswith("ap"):
                text += f'access = ["{name}-air"]\n'
            if name in HOPS.values():
                text += f'hosts = ["{name}-cn"]\n'
        for a, b in _LINKS:
            text += f'[[link]]\na = "{a}:{a}-{b}"\nb = "{b}:{b}-{a}"\n'
        self.config.write_text(text)

    def command(self, *words: str) -> str:
        """Runs `ropewalk-sdn roam`."""
        program = [sys.executable, "-m", "ropewalk.sdn", "roam", "--config", str(self.config)]
        return self.net.run(*program, *words)

    def _start_radio(self) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", self.station, sys.executable, "-m", _TRAFFIC, "radio"]
        return subprocess.Popen(
            [*command, MAC, "sta0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """Ends the helpers; the lab ends the rest."""
        for helper in (self._radio, self._teller):
            if helper is not None:
                stop(helper)

    def air(self, command: str, number: int) -> float:
        """Tells the station's radio; when it did that."""
        assert self._radio.stdin and self._radio.stdout, "made with pipes"
        self._radio.stdin.write(f"{command} wl{number}\n")
        self._radio.stdin.flush()
        return float(self._radio.stdout.readline())

    def report(self) -> dict[str, Any]:
        """What the controller says."""
        return ask(self.net.directory / "api.sock")

    def mode(self, mode: str) -> None:
        """Restarts the controller in a mode."""
        if self.controller:
            stop(self.controller)
        if self._teller:
            stop(self._teller)
            self._teller = None
        self._write(mode)
        program = [sys.executable, "-m", "ropewalk.sdn", "roam", "--config", str(self.config)]
        self.controller = self.lab.start(self.net.namespace, *program, "run", log="controller.log")
        wait(self._connected, "the controller did not get its switches")
        if self.at:
            self.air("leave", self.at)
            time.sleep(0.3)
        self.at = 0

    def _connected(self) -> bool:
        try:
            return all(switch["connected"] for switch in self.report()["switches"])
        except ApiError:
            return False

    def place(self, number: int) -> None:
        """Brings the station to an access point."""
        if self.at and self.at != number:
            self.air("leave", self.at)
            time.sleep(0.2)
        self.air("join", number)
        self.at = number
        self.seen(number)

    def seen(self, number: int) -> None:
        """Waits until the controller knows the station at an access point."""
        wait(lambda: self.where() == f"ap{number}", f"the station was not seen at ap{number}")

    def where(self) -> str | None:
        """The switch at which the controller knows the station."""
        for station in self.report()["stations"]:
            if station["mac"] == MAC and station["here"]:
                return str(station["switch"])
        return None

    def delays(self, delay_ms: int) -> None:
        """Sets the delay of every link."""
        for name in self._names:
            _tell(self.lab.directory / f"{name}.ctl", f"set both delay {delay_ms}ms")

    def packets(self, number: int) -> int:
        """What the station's flow at an access point has counted."""
        text = self.net.run(
            *("ovs-ofctl", "-O", "OpenFlow13", "dump-flows"),
            f"unix:{self.net.directory}/ap{number}.mgmt",
            f"table=1,dl_dst={MAC}",
        )
        return counted(text)

    def notice(self, notice: Notice) -> None:
        """Says what an access point's agent would."""
        program = ["ip", "netns", "exec", self.net.namespace, sys.executable, "-m", _TRAFFIC]
        if self._teller is None or self._teller.poll() is not None:
            self._teller = subprocess.Popen(
                [*program, "tell", str(NOTICES_PORT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._teller.stdin and self._teller.stdout, "made with pipes"
        self._teller.stdin.write(written(notice))
        self._teller.stdin.flush()
        answer = self._teller.stdout.readline()
        if b"taken" not in answer:
            raise LabError(f"a notice was refused: {answer!r}")

    def measure(self, cell: Cell) -> Result:
        """One run: a download, and one move in the middle of it."""
        host = self.hosts[cell.hops]
        for namespace in (host, self.station):
            _inside(namespace, "sysctl", "-qw", f"net.ipv4.tcp_sack={int(not cell.old)}")
        window = cell.window_bytes or 6_291_456
        memory = f"net.ipv4.tcp_rmem=4096 {min(window, 131_072)} {window}"
        _inside(self.station, "sysctl", "-qw", memory)
        initial = ["initcwnd", "1"] if cell.old else []
        route = ["route", "replace", "10.0.0.0/24", "dev", "eth0", *initial]
        run("ip", "-n", host, *route)
        _inside(host, "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1")
        self.place(1)
        self.delays(cell.delay_ms)
        rtt_s = self._ping(host)
        warm_s = 3.0 + 8 * rtt_s
        after_s = _AFTER_S + 4 * rtt_s + (2 * cell.gap_s if cell.mode == "bare" else 0)
        before = self.report()["counters"]
        load = Load.now()
        python = ["ip", "netns", "exec", self.station, sys.executable, "-m", _TRAFFIC]
        receiver = subprocess.Popen([*python, "receive", "5001"], stdout=subprocess.PIPE, text=True)
        wait(lambda: "5001" in _inside(self.station, "ss", "-Hltn"), "no receiver")
        python[3] = host
        seconds = warm_s + cell.gap_s + after_s
        sender = subprocess.Popen(
            [*python, "send", STATION, "5001", str(seconds), cell.congestion],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            time.sleep(warm_s)
            left_s = self._leave(cell)
            time.sleep(max(0.0, left_s + cell.gap_s - time.monotonic()))
            ready_s = self._waited_s()
            joined_s = self.air("join", 2)
            self.at = 2
            time.sleep(1)
            waited_ms = round(1e3 * (self._waited_s() - ready_s), 1)
            sent, _ = sender.communicate(timeout=seconds + 40)
            try:
                received, _ = receiver.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                # Killed, it says nothing: the connection never ended for it.
                received = ""
        finally:
            stop(sender)
            stop(receiver)
        report = self.report()
        after = report["counters"]
        # The first arrival after the gap; times are of one clock.
        confirmed_s = next(
            (
                row["confirmed_s"]
                for row in report["handovers"]
                if row["mac"] == MAC and row["joined_s"] > joined_s - 0.001
            ),
            None,
        )
        counted = {key: value - before.get(key, 0) for key, value in after.items()}
        times = Times(rtt_s, left_s, joined_s, confirmed_s)
        row = _result(cell, times, json.loads(sent), json.loads(received or "{}"))
        counters = {key: value for key, value in counted.items() if value}
        conditions = stamp(load, Load.now())
        return Result(**row, waited_ms=waited_ms, counters=counters, conditions=conditions)

    def _waited_s(self) -> float:
        assert self.controller, "started before"
        return _run_delay_s(self.controller.pid) + _run_delay_s(self.net.switch.pid)

    def _leave(self, cell: Cell) -> float:
        if not cell.notice_ms:
            return self.air("leave", 1)
        packets = self.packets(1)
        left_s = self.air("silent", 1)
        time.sleep(cell.notice_ms / 1e3)
        self.notice(Notice("ap1", "ap1-air", MAC, False, packets))
        return left_s

    def _ping(self, host: str) -> float:
        text = _inside(host, "ping", "-c", "3", "-i", "0.2", "-W", "3", STATION)
        return float(re.findall(r"= [0-9.]+/([0-9.]+)", text)[0]) / 1e3


@dataclass(frozen=True)
class Times:
    """Of one run."""

    rtt_s: float
    left_s: float
    joined_s: float
    confirmed_s: float | None


def _result(
    cell: Cell, times: Times, sent: dict[str, Any], received: dict[str, Any]
) -> dict[str, Any]:
    left_s, joined_s, rtt_s = times.left_s, times.joined_s, times.rtt_s
    samples, arrivals = sent["samples"], received.get("arrivals", [])
    before = [sample for sample in samples if sample[0] < left_s]
    later = [sample for sample in samples if sample[0] >= joined_s]
    former = [sample for sample in samples if sample[0] < joined_s][-1]
    began = next((sample[0] for sample in later if sample[1] > former[1]), None)
    had = max((total for at_s, total in arrivals if at_s < joined_s), default=0)
    came = next((at_s for at_s, total in arrivals if at_s >= joined_s and total > had), None)
    span = (arrivals[-1][0] - arrivals[0][0]) if len(arrivals) > 1 else 0.0
    return dict(
        cell=cell,
        rtt_ms=round(rtt_s * 1e3, 1),
        rerouted_ms=_ms(times.confirmed_s, joined_s),
        sender_idle_ms=_ms(began, joined_s),
        receiver_idle_ms=_ms(came, joined_s),
        ended=sent["ended"] if received else "hung",
        complete=bool(received)
        and (sent["bytes"], sent["sha256"]) == (received["bytes"], received["sha256"]),
        lost_bytes=sent["bytes"] - received.get("bytes", 0),
        retransmitted=samples[-1][4],
        cwnd_before=before[-1][3] if before else 0,
        cwnd_after=next((s[3] for s in later if s[0] >= joined_s + 1.2 * rtt_s), samples[-1][3]),
        throughput_mbit=round(8e-6 * received.get("bytes", 0) / span, 3) if span else 0.0,
    )


def _ms(at_s: float | None, since_s: float) -> float | None:
    return None if at_s is None else round(1e3 * (at_s - since_s), 1)


def _run_delay_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def _veth(a: str, b: str) -> None:
    (a_space, a_name), (b_space, b_name) = a.split(":"), b.split(":")
    peer = ["peer", "name", b_name, "netns", b_space]
    run("ip", "-n", a_space, "link", "add", a_name, "type", "veth", *peer)
    for namespace, name in ((a_space, a_name), (b_space, b_name)):
        _inside(namespace, "ethtool", "-K", name, "tx", "off")
        run("ip", "-n", namespace, "link", "set", name, "up")
    if b_name == "eth0":
        shaper = ["tbf", "rate", RATE.lower(), "burst", "16kb", "latency", "100ms"]
        run("tc", "-n", b_space, "qdisc", "add", "dev", b_name, "root", *shaper)


def _tell(control: Path, command: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(control))
        client.sendall(command.encode() + b"\n")
        answer = client.makefile().readline()
    if '"error"' in answer:
        raise LabError(f"{control.stem}: {command}: {answer}")


def _inside(namespace: str, *command: str) -> str:
    return run("ip", "netns", "exec", namespace, *command)


def summary(results: list[Result]) -> list[dict[str, object]]:
    """What is claimed (idle for a round trip and 100 ms at most), beside what was measured."""
    rows: list[dict[str, object]] = []
    for result in results:
        idle = [result.sender_idle_ms, result.receiver_idle_ms]
        bound = result.rtt_ms + 100
        rows.append(
            {
                **asdict(result.cell),
                "rtt_ms": result.rtt_ms,
                "idle_ms": idle,
                "within": all(value is not None and value <= bound for value in idle),
                "ended": result.ended,
                "complete": result.complete,
                "rerouted_ms": result.rerouted_ms,
                "waited_ms": result.waited_ms,
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Runs the experiment; finished runs are kept and not repeated."""
    parser = argparse.ArgumentParser(
        prog="python -m ropewalk.sdn.experiments.roam_ovs",
        description="A station moves between access points during a download (as root).",
    )
    parser.add_argument("--out", type=Path, default=Path("out/lab/roam-ovs"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="the bounds of each claim alone")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each setting")
    parser.add_argument("--programs", type=Path, metavar="DIR", help="where ropewalk-linkem is")
    parser.add_argument("--only", default="", metavar="REGEX", help="runs whose name matches")
    options = parser.parse_args(arguments)
    for row in summary(_run(options)):
        print(json.dumps(row))
    return 0


def _run(options: argparse.Namespace) -> list[Result]:
    path = options.out / "result.json"
    options.out.mkdir(parents=True, exist_ok=True)
    results = _stored(path)
    done = {result.cell for result in results}
    left = [cell for cell in cells(options.quick, options.runs) if cell not in done]
    left = [cell for cell in left if re.search(options.only, name(cell))]
    if not left:
        return results
    with Lab(PREFIX) as lab:
        bench = Bench(lab, find(LINK, options.programs))
        try:
            mode = ""
            for number, cell in enumerate(left, 1):
                if cell.mode != mode:
                    mode = cell.mode
                    bench.mode(mode)
                try:
                    result = bench.measure(cell)
                except LabError as error:
                    print(f"{number}/{len(left)} {name(cell)}: failed: {error}", file=sys.stderr)
                    continue
                results.append(result)
                _store(path, results)
                print(f"{number}/{len(left)} {json.dumps(asdict(result))}", flush=True)
        finally:
            bench.close()
    return results


def name(cell: Cell) -> str:
    """A run's name: its settings with slashes between."""
    return "/".join(map(str, asdict(cell).values()))


def _stored(path: Path) -> list[Result]:
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["results"]
    return [Result(**{**row, "cell": Cell(**row["cell"])}) for row in rows]


def _store(path: Path, results: list[Result]) -> None:
    value = {
        "experiment": "roam-ovs",
        "source": asdict(source(Path.cwd())),
        "machine": machine(None),
        "results": [asdict(result) for result in results],
        "claims": summary(results),
    }
    path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
