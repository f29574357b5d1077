"""A station moves between access points of eight switches during a download.

Singh et al., section 3. How its figure 5 is wired is not said in words; here S1 to S3 carry the
access points and join at S4, from where S5 to S8 follow one another. Hops count links between the
correspondent and the station: it hangs at S1 (2 hops), S4 (3), S6 (5) or S8 (7). After a move to
AP2 or AP3 the correspondent at S1 is 4 links away.

Idle times are from the moment the station is associated again to the sender's first segment and
to the first new byte at the receiving program. A move's `notice_ms` is how long the access point
takes to tell that the station has gone: what is sent to it meanwhile dies.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ovs_testbed import reports, roam_results
from ovs_testbed.hostapd import Hostapd
from ovs_testbed.links import EmulatedLink, limited, veth
from ovs_testbed.machine import (
    KERNEL_NAMES,
    Sandbox,
    SandboxError,
    inside,
    listens,
    run,
    stop,
    wait,
)
from ovs_testbed.roam_results import Moved
from ropewalk.lab.ovs import roam as times
from ropewalk.plan import Move, OvsRoam, Plan, Tcp
from ropewalk.report import Report
from ropewalk.sdn.api import ApiError, ask
from ropewalk.sdn.roam.agent import counter
from ropewalk.sdn.roam.events import Notice
from ropewalk.sdn.roam.notices import written

NEEDS: tuple[str, ...] = ()
"""Programs besides those of every network."""
HOPS = {2: "s1", 3: "s4", 5: "s6", 7: "s8"}
"""Where the correspondent hangs, by hops."""
STATION = "10.0.0.100"
STATION_6 = "fd00::100"
MAC = "02:00:00:00:00:64"
NOTICES_PORT = 6654
_PORT = 5001
_LINKS = [
    *((f"ap{number}", f"s{number}") for number in (1, 2, 3)),
    *((f"s{number}", "s4") for number in (1, 2, 3)),
    *((f"s{number}", f"s{number + 1}") for number in (4, 5, 6, 7)),
]
_VETH_MBIT = 20.0
"""Of links without a program that emulates them."""
_WINDOW_DEFAULT = 6_291_456
_END_S = 40
_COMMAND_S = 300.0
"""For a command of `ropewalk-sdn`: `setup` starts 60 programs, which an emulated processor does in
two minutes."""
LOAD = str(Path(__file__).with_name("roam_load.py"))
"""The program that both ends, the station's radio and the sender of notices run."""


class Bench:
    """The network; without a program for links they have no delay."""

    def __init__(self, sandbox: Sandbox, links: Path | None) -> None:
        self.sandbox = sandbox
        self.net = sandbox.machine("net")
        self.station = sandbox.namespace("sta")
        self.hosts = {hops: sandbox.namespace(f"cn{hops}") for hops in HOPS}
        self._links = links
        self._emulated: list[EmulatedLink] = []
        self.controller: subprocess.Popen[Any] | None = None
        self.frames = True
        """Whether the station's own frames say where it is, or the agents alone."""
        self._wire()
        self.config = self.net.directory / "roam.toml"
        self._write("replay")
        self.command("setup")
        self._radio = self._start_radio()
        self._teller: subprocess.Popen[bytes] | None = None
        self._hostapds: dict[int, Hostapd] = {}
        self.at = 0
        self._controlled = ("", True)

    def _wire(self) -> None:
        net = self.net.namespace
        for a, b in _LINKS:
            self._link(f"{a}-{b}", f"{net}:{a}-{b}", f"{net}:{b}-{a}")
        for hops, switch in HOPS.items():
            self._link(f"{switch}-cn", f"{net}:{switch}-cn", f"{self.hosts[hops]}:eth0")
            self._host(self.hosts[hops], "eth0", f"10.0.0.{hops}", f"02:00:00:00:00:0{hops}")
        self._wire_air()
        self._host(self.station, "sta0", STATION, MAC)
        for hops, namespace in self.hosts.items():
            run("ip", "-n", namespace, "neigh", "replace", STATION, "lladdr", MAC, "dev", "eth0")
            arguments = ["lladdr", f"02:00:00:00:00:0{hops}", "dev", "sta0"]
            run("ip", "-n", self.station, "neigh", "replace", f"10.0.0.{hops}", *arguments)

    def _wire_air(self) -> None:
        """Makes the ports of access points to stations, `apN-air`, and the station's, `sta0`."""
        net = self.net.namespace
        run("ip", "-n", self.station, "link", "add", "sta0", "type", "bridge")
        for number in (1, 2, 3):
            pair = ["type", "veth", "peer", "name", f"wl{number}", "netns", self.station]
            run("ip", "-n", net, "link", "add", f"ap{number}-air", *pair)
            for namespace, name in ((self.station, f"wl{number}"), (net, f"ap{number}-air")):
                inside(namespace, "ethtool", "-K", name, "tx", "off", "gro", "off")
            run("ip", "-n", net, "link", "set", f"ap{number}-air", "up")

    def _link(self, name: str, a: str, b: str) -> None:
        if self._links is not None:
            self._emulated.append(EmulatedLink(self.sandbox, self._links, name, (a, b)))
            return
        veth(a, b)
        if b.endswith(":eth0"):
            limited(b, _VETH_MBIT)

    def _host(self, namespace: str, interface: str, address: str, mac: str) -> None:
        inside(namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        run("ip", "-n", namespace, "link", "set", interface, "address", mac, "up")
        run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", interface)
        inside(namespace, "ethtool", "-K", interface, "tx", "off")

    def _six(self) -> None:
        """Gives all ends IPv6 addresses of their own, once."""
        ends = {namespace: ("eth0", f"fd00::{hops}") for hops, namespace in self.hosts.items()}
        for namespace, (interface, address) in [*ends.items(), (self.station, ("sta0", STATION_6))]:
            run("ip", "-n", namespace, "link", "set", interface, "addrgenmode", "none")
            inside(namespace, "sysctl", "-qw", f"net.ipv6.conf.{interface}.disable_ipv6=0")
            words = f"-6 addr replace {address}/64 dev {interface} nodad"
            run("ip", "-n", namespace, *words.split())
        for hops, namespace in self.hosts.items():
            words = f"-6 neigh replace {STATION_6} lladdr {MAC} dev eth0"
            run("ip", "-n", namespace, *words.split())
            words = f"-6 neigh replace fd00::{hops} lladdr 02:00:00:00:00:0{hops} dev sta0"
            run("ip", "-n", self.station, *words.split())

    def _write(self, scheme: str) -> None:
        net = self.net
        text = 'mode = "roam"\n'
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
        text += f'[roam]\nscheme = "{scheme}"\nnotices = "127.0.0.1:{NOTICES_PORT}"\n'
        text += f"frames = {str(self.frames).lower()}\n"
        self.config.write_text(text)

    def command(self, *words: str) -> str:
        """Runs `ropewalk-sdn`."""
        program = [sys.executable, "-m", "ropewalk.sdn", "--config", str(self.config)]
        return self.net.run(*program, *words, seconds=_COMMAND_S)

    def _start_radio(self) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", self.station, sys.executable, LOAD, "radio"]
        return subprocess.Popen(
            [*command, MAC, "sta0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def agents(self) -> None:
        """Starts an agent at each access point, once."""
        if self._hostapds:
            return
        for number in range(1, times.ACCESS_POINTS + 1):
            path = self.sandbox.directory / f"hostapd{number}"
            self._hostapds[number] = Hostapd(path)
            self.sandbox.start(
                *(self.net.namespace, sys.executable, "-m", "ropewalk.sdn", "ap-agent"),
                *("--hostapd", str(path), "--controller", f"127.0.0.1:{NOTICES_PORT}"),
                *("--switch", f"ap{number}", "--port", f"ap{number}-air"),
                *("--counters", f"unix:{self.net.directory}/ap{number}.mgmt"),
                log="agents.log",
            )
        wait(
            lambda: all(hostapd.attached for hostapd in self._hostapds.values()),
            "the agents did not attach",
        )

    def say(self, number: int, event: str) -> None:
        """Has an access point's hostapd say something of the station."""
        self._hostapds[number].say(f"<3>AP-STA-{event} {MAC}")

    def close(self) -> None:
        """Ends the helpers; the sandbox ends the rest."""
        for hostapd in self._hostapds.values():
            hostapd.close()
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

    def control(self, scheme: str) -> None:
        """Restarts the controller with a way to treat moves; see `frames`, too."""
        if self.controller:
            stop(self.controller)
        if self._teller:
            stop(self._teller)
            self._teller = None
        self._write(scheme)
        program = [sys.executable, "-m", "ropewalk.sdn", "--config", str(self.config)]
        self.controller = self.sandbox.start(
            self.net.namespace, *program, "run", log="controller.log"
        )
        wait(self._connected, "the controller did not get its switches")
        if self.at:
            self.air("leave", self.at)
            time.sleep(0.3)
        self.at = 0
        self._controlled = (scheme, self.frames)

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
        self._join(number)
        self.seen(number)

    def _join(self, number: int) -> float:
        joined_s = self.air("join", number)
        if not self.frames:
            self.say(number, "CONNECTED")
        self.at = number
        return joined_s

    def seen(self, number: int) -> None:
        """Waits until the controller knows the station at an access point."""
        wait(lambda: self.where() == f"ap{number}", f"the station was not seen at ap{number}")

    def where(self) -> str | None:
        """The switch at which the controller knows the station."""
        for station in self.report()["stations"]:
            if station["mac"] == MAC and station["here"]:
                return str(station["switch"])
        return None

    def links(self, settings: str) -> None:
        """Sets every link."""
        for link in self._emulated:
            link.set("both", settings)

    def given(self, number: int) -> tuple[int, int]:
        """Packets and bytes that an access point has given the station, as its agent reads them."""
        return counter(f"unix:{self.net.directory}/ap{number}.mgmt")(MAC)

    def notice(self, notice: Notice) -> None:
        """Says what an access point's agent would."""
        program = ["ip", "netns", "exec", self.net.namespace, sys.executable, LOAD]
        if self._teller is None or self._teller.poll() is not None:
            self._teller = subprocess.Popen(
                [*program, "tell", str(NOTICES_PORT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,
            )
        assert self._teller.stdin and self._teller.stdout, "made with pipes"
        self._teller.stdin.write(written(notice))
        self._teller.stdin.flush()
        answer = self._teller.stdout.readline()
        if b'"taken": true' not in answer:
            raise SandboxError(f"a notice was refused: {answer!r}")

    def run(self, plan: Plan) -> Report:
        """A download, and the station's moves during it; from AP1 on to the next each time.

        Raises:
            SandboxError: when something does not come about.
        """
        carrier, (flow,) = plan.carrier, plan.traffic
        assert isinstance(carrier, OvsRoam) and isinstance(flow, Tcp), "what this network carries"
        self.frames = not carrier.agents
        if carrier.agents:
            self.agents()
        if (carrier.scheme, self.frames) != self._controlled:
            self.control(carrier.scheme)
        host = self._prepare(plan, carrier, flow)
        before = self.report()["counters"]
        address = STATION_6 if carrier.ipv6 else STATION
        with self._download(plan, (host, address), flow) as (sender, receiver):
            time.sleep(times.warm_s(plan.path[0].both, carrier))
            moves = [self._move(plan, carrier, move) for move in carrier.moves]
            sent, _ = sender.communicate(timeout=plan.duration_s + _END_S)
            received = _said(receiver)
        known = self.report()
        counters = {
            f"{key} (counter)": float(value - before.get(key, 0))
            for key, value in known["counters"].items()
            if value != before.get(key, 0)
        }
        ends = json.loads(sent), json.loads(received)
        if ends[0]["ended"] == "complete" and ends[0]["ended_s"] < moves[-1].joined_s:
            raise SandboxError("the download ended before its last move: the machine was too slow")
        confirmed = [self._confirmed_s(known, move.joined_s) for move in moves]
        return reports.report(
            plan,
            (roam_results.download(*ends),),
            roam_results.handovers(moves, confirmed, *ends),
            {**roam_results.values(*ends), **counters},
        )

    def _prepare(self, plan: Plan, carrier: OvsRoam, flow: Tcp) -> str:
        """Sets links and both ends, brings the station to AP1; the sender's namespace."""
        host = self.hosts[carrier.hops]
        for namespace in (host, self.station):
            inside(namespace, "sysctl", "-qw", f"net.ipv4.tcp_sack={int(carrier.sack)}")
        window = flow.window or _WINDOW_DEFAULT
        memory = f"net.ipv4.tcp_rmem=4096 {min(window, 131_072)} {window}"
        inside(self.station, "sysctl", "-qw", memory)
        initial = ["initcwnd", str(carrier.initial_window)] if carrier.initial_window else []
        if carrier.ipv6:
            self._six()
        for network in ["10.0.0.0/24", "fd00::/64"][: 1 + carrier.ipv6]:
            run("ip", "-n", host, "route", "replace", network, "dev", "eth0", *initial)
        inside(host, "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1")
        self.place(1)
        both = plan.path[0].both
        queue = f"queue_packets {both.queue_packets or 'unlimited'}"
        self.links(f"rate {both.rate_mbit}Mbit delay {both.delay_ms}ms loss 0 {queue}")
        inside(host, "ping", "-c", "1", "-W", "3", STATION)
        self.links(f"loss {both.loss or 0}")
        return host

    @contextlib.contextmanager
    def _download(self, plan: Plan, way: tuple[str, str], flow: Tcp) -> Iterator[Ends]:
        host, address = way
        receive = [sys.executable, LOAD, "receive", address, str(_PORT)]
        receiver = self.sandbox.start(self.station, *receive, quiet=False)
        try:
            wait(lambda: listens(self.station, _PORT), "the receiver did not start")
            send = [sys.executable, LOAD, "send", address, str(_PORT), str(plan.duration_s)]
            control = KERNEL_NAMES[flow.congestion]
            sender = self.sandbox.start(host, *send, control, quiet=False)
            try:
                yield sender, receiver
            finally:
                stop(sender)
        finally:
            stop(receiver)

    def _move(self, plan: Plan, carrier: OvsRoam, move: Move) -> Moved:
        """Away from one access point, to the next after the gap, and the time to go on."""
        link, former = plan.path[0].both, self.at
        left_s = self._told_leaving(move) if carrier.agents else self._leave(move)
        time.sleep(max(0.0, left_s + move.gap_s - time.monotonic()))
        waited_s = self._waited_s()
        joined_s = self._join(self.at % times.ACCESS_POINTS + 1)
        time.sleep(1)
        waited_s = self._waited_s() - waited_s
        settle_s = times.settle_s(link, carrier, move)
        time.sleep(max(0.0, joined_s + settle_s - time.monotonic()))
        rtts = [times.rtt_s(link, carrier.hops, number) for number in (former, self.at)]
        until_s = time.monotonic()
        return Moved(move, min(rtts), max(rtts), left_s, joined_s, waited_s, until_s)

    def _leave(self, move: Move) -> float:
        if not move.notice_ms:
            return self.air("leave", self.at)
        name, given = f"ap{self.at}", self.given(self.at)
        left_s = self.air("silent", self.at)
        time.sleep(move.notice_ms / 1e3)
        self.notice(Notice(name, f"{name}-air", MAC, False, *given))
        return left_s

    def _told_leaving(self, move: Move) -> float:
        """The access point's hostapd says that the station has gone, late or never."""
        left_s = self.air("silent", self.at)
        if not move.lost:
            time.sleep(move.notice_ms / 1e3)
            self.say(self.at, "DISCONNECTED")
        return left_s

    def _waited_s(self) -> float:
        assert self.controller, "started before"
        return _run_delay_s(self.controller.pid) + _run_delay_s(self.net.switch.pid)

    def _confirmed_s(self, known: dict[str, Any], joined_s: float) -> float | None:
        """When all switches had confirmed the first arrival since then; times are of one clock."""
        for row in known["handovers"]:
            if row["mac"] == MAC and row["joined_s"] > joined_s - 0.001:
                return None if row["confirmed_s"] is None else float(row["confirmed_s"])
        return None


Ends = tuple[subprocess.Popen[Any], subprocess.Popen[Any]]
"""Sender and receiver."""


def _said(receiver: subprocess.Popen[Any]) -> str:
    """What the receiver reports, when its connection ended or when it never does."""
    try:
        return str(receiver.communicate(timeout=5)[0], "ascii")
    except subprocess.TimeoutExpired:
        receiver.terminate()
        return str(receiver.communicate(timeout=5)[0], "ascii")


def _run_delay_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9
