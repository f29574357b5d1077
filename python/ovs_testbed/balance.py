"""Each new flow over one of two uplinks: a host, the machine with the switch, the network.

Namespaces: the application's host, the machine with the switch, and the network with both gateways
and the server; the uplinks are plain veth pairs, without delay, and without rate unless a case
limits them. Where idle uplinks are probed they are emulated links: what limits veth pairs lets
the first packets of a train through at once.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ovs_testbed.links import EmulatedLink, limited, veth
from ovs_testbed.machine import Sandbox, SandboxError, inside, listens, run, stop, wait
from ovs_testbed.reports import report
from ropewalk._native import ROUNDS
from ropewalk.lab.ovs.balance import (
    ADDED,
    ADDED_99,
    AFTERWARDS,
    BROKEN,
    CAPACITY,
    CHANGES,
    CONNECTIONS,
    DEAD,
    ENDED,
    FAILED,
    FALL,
    KEPT,
    LOST,
    NEW_FLOWS,
    NEW_FLOWS_PER_S,
    NOTICED,
    RATE,
    RISE,
    SHARE,
    STEP,
    WEIGHTS,
    WENT_ON,
)
from ropewalk.plan import OvsBalance, Plan
from ropewalk.report import Report
from ropewalk.sdn.api import ask
from ropewalk.sdn.config import Config

NEEDS = ("iperf3", "nft")
"""Programs besides those of every network."""
SERVER, SERVER_IPV6 = "192.0.2.1", "2001:db8:1::1"
HOST = "10.98.0.2"
PORT = 8080
_LOAD = str(Path(__file__).with_name("load.py"))
SHARED_FLOWS = 1000
_IPERF_PORT = 5201
_STREAMS = 8
_FILL_S = 6
_STEPS_S = 90
_RIGHT = 0.15
"""An estimate is right when it is within this part of the rate."""
_SOON_S = 20.0
"""In which an estimate must be right after a step, for the case to go on."""
_AFTERWARDS_S = 8.0
DELAY_MS = 10.0
"""One way, of idle uplinks."""
_PROBED_S = 60.0
"""In which both idle uplinks are to be estimated; what lasts is one sample a second, and rounds."""


@dataclass(frozen=True)
class Idle:
    """Uplinks that carry nothing: their rate, and how it is probed."""

    rate_mbit: float
    probe: str


class Bench:
    """The network, set up and controlled."""

    def __init__(
        self,
        sandbox: Sandbox,
        decide: str = "controller",
        weights: tuple[float, ...] = WEIGHTS,
        links: Path | None = None,
        idle: Idle | None = None,
    ) -> None:
        """`links` is the program that emulates links, which `idle` ones are."""
        self.sandbox = sandbox
        self.links = links
        self.idle = idle
        self.machine = sandbox.machine("switch")
        self.host = sandbox.namespace("host")
        self.network = sandbox.namespace("net")
        for number in range(2):
            self._join(f"u{number}")
            for gateway in (f"10.{number + 1}.0.1/24", f"fd0{number + 1}::1/64"):
                self._give(f"u{number}", gateway)
        for server in (f"{SERVER}/32", f"{SERVER_IPV6}/128"):
            self._give("lo", server)
        self.config = self.configure(decide, weights)
        self.machine.command(self.config, "setup")
        self.controller = self.control()
        for what in ("serve-tcp", "serve-udp"):
            for server in (SERVER, SERVER_IPV6):
                words = (what, server, str(PORT))
                sandbox.start(self.network, sys.executable, _LOAD, *words, log="serve.log")
        wait(lambda: self._servers() == 4, "a server did not start")

    def _join(self, name: str) -> None:
        """An uplink between the machine with the switch and the network."""
        ends = (f"{self.machine.namespace}:{name}", f"{self.network}:{name}")
        if self.idle is None:
            veth(*ends)
            return
        assert self.links is not None, "idle uplinks are emulated"
        settings = ("--rate", f"{self.idle.rate_mbit:g}Mbit", "--delay", f"{DELAY_MS:g}ms")
        EmulatedLink(self.sandbox, self.links, name, ends, *settings)
        for end in ends:
            space, _, _ = end.partition(":")
            wait(partial(_is_up, space, name), f"the link {name} did not come up")

    def _give(self, interface: str, address: str) -> None:
        """An address in the network; of IPv6 used at once, without asking whether it is free."""
        unchecked = ["nodad"] if ":" in address else []
        run("ip", "-n", self.network, "addr", "add", address, "dev", interface, *unchecked)

    def configure(
        self,
        decide: str,
        weights: tuple[float, ...] = WEIGHTS,
        rule: str = "weighted-round-robin",
        rate_mbit: float | None = None,
    ) -> Config:
        """The configuration with a way to decide; without weights they follow what is carried."""
        probe = "" if self.idle is None else f'[probe]\ncapacity = "{self.idle.probe}"\n'
        rate = "" if rate_mbit is None else f"rate_mbit = {rate_mbit}\n"
        uplinks = "".join(
            f'[[uplink]]\nname = "u{number}"\n'
            f'address = ["10.{number + 1}.0.2/24", "fd0{number + 1}::2/64"]\n'
            f'gateway = ["10.{number + 1}.0.1", "fd0{number + 1}::1"]\n{rate}'
            + (f"weight = {weights[number]}\n" if weights else "")
            for number in range(2)
        )
        return self.machine.configure(
            'mode = "balance"\n[bridge]\nname = "balancebr"\ndatabase = "DATABASE"\n'
            f'[application]\nnamespace = "{self.host}"\naddress = ["{HOST}/24", "fd98::2/64"]\n'
            f'gateway = ["10.98.0.1", "fd98::1"]\n{uplinks}'
            f'[balance]\ndecide = "{decide}"\nrule = "{rule}"\n{probe}'
        )

    def restart(self, config: Config) -> None:
        """The controller anew, as `configure` says."""
        stop(self.controller)
        self.config = config
        self.controller = self.control()

    def control(self) -> subprocess.Popen[Any]:
        """Starts the controller, and waits until it uses both uplinks."""
        controller = self.machine.control(self.config)
        wait(lambda: all(self.usable(f"u{n}") for n in range(2)), "an uplink is not used")
        return controller

    def close(self) -> None:
        """The sandbox ends everything."""

    def run(self, plan: Plan) -> Report:
        """One case, with a controller of its own.

        Raises:
            SandboxError: when something does not come about.
        """
        carrier = plan.carrier
        assert isinstance(carrier, OvsBalance), carrier
        self.restart(self.configure(carrier.decide, carrier.weights))
        cases: dict[str, Callable[[Bench, Plan], dict[str, float]]] = {
            "set-up": _set_up,
            "shares": _shares,
            "new-flows": _new_flows,
            "controller-killed": _killed,
            "uplink-dies": _dies,
            "capacity": _capacity,
            "idle-capacity": _idle_capacity,
            "capacity-steps": _steps,
        }
        return report(plan, values=cases[carrier.case](self, plan))

    def load(self, *arguments: str, seconds: float = 60) -> dict[str, Any]:
        """Runs a load at the host; what it reports."""
        command = ["ip", "netns", "exec", self.host, sys.executable, _LOAD, *arguments]
        return dict(json.loads(run(*command, seconds=seconds)))

    def begin(self, *arguments: str) -> subprocess.Popen[Any]:
        """Begins a load at the host; its report comes on its output."""
        return self.sandbox.start(self.host, sys.executable, _LOAD, *arguments, quiet=False)

    def gateway(self, number: int, alive: bool) -> None:
        """Lets everything on an uplink vanish beyond its first hop, or not any more."""
        rule = f"add table inet cut{number}; add chain inet cut{number} c "
        rule += "{ type filter hook prerouting priority -300; }; "
        found = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept"
        rule += f"add rule inet cut{number} c {found}; "
        rule += f"add rule inet cut{number} c iifname u{number} drop"
        nft = ["ip", "netns", "exec", self.network, "nft"]
        run(*nft, f"delete table inet cut{number}" if alive else rule)

    def status(self) -> dict[str, Any]:
        """The controller's report."""
        return ask(self.config.socket)

    def rounds(self) -> int:
        """Rounds of probing that found a rate, of the uplink with fewer."""
        found = self.status()["capacity_probed_mbit"]
        return min(len(found.get(f"u{number}", ())) for number in range(2))

    def usable(self, name: str) -> bool:
        """Whether the controller uses an uplink, in both address families."""
        return all(self._used(name))

    def given_up(self, name: str) -> bool:
        """Whether the controller uses an uplink in no address family."""
        return not any(self._used(name))

    def established(self) -> int:
        """TCP connections of the host that are there now."""
        return len(inside(self.host, "ss", "-Htn", "state", "established").splitlines())

    def _used(self, name: str) -> list[bool]:
        return [bool(row["usable"]) for row in self.status()["uplinks"] if row["name"] == name]

    def _servers(self) -> int:
        return len(inside(self.network, "ss", "-Hltun", f"sport = {PORT}").splitlines())


def killed(bench: Bench, seconds: int = 15, tries: int = 3) -> dict[str, Any]:
    """A long connection and new ones while the controller is killed and started again."""
    before = bench.established()
    steady = bench.begin("steady", SERVER, str(PORT), str(seconds))
    wait(lambda: bench.established() > before, "the connection did not come about")
    time.sleep(1)
    bench.controller.kill()
    bench.controller.wait()
    during = bench.load("connect", SERVER, str(PORT), str(tries), "0.5")
    bench.controller = bench.control()
    after = bench.load("connect", SERVER, str(PORT), "20")
    out, _ = steady.communicate(timeout=60)
    return {
        "steady": json.loads(out),
        "new_while_away": during["connected"],
        "new_after": after["connected"],
        "flow_mods_after": bench.status()["counters"]["flow_mods"],
    }


def dies(bench: Bench, seconds: int = 12) -> dict[str, Any]:
    """Connections on an uplink that falls silent are reset, UDP moves, new flows avoid it."""
    end = (SERVER, str(PORT), str(seconds))
    before = bench.established()
    tcp = [bench.begin("steady", *end) for _ in range(4)]
    udp = [bench.begin("steady-udp", *end) for _ in range(4)]
    wait(lambda: bench.established() >= before + 4, "the connections did not come about")
    time.sleep(1)
    bench.gateway(0, alive=False)
    began = time.monotonic()
    wait(lambda: bench.given_up("u0"), "the uplink was not given up", 20)
    noticed = time.monotonic() - began
    new = bench.load("connect", SERVER, str(PORT), "20")
    ends = [json.loads(process.communicate(timeout=60)[0]) for process in (*tcp, *udp)]
    bench.gateway(0, alive=True)
    wait(lambda: bench.usable("u0"), "the uplink did not come back", 20)
    return {
        "noticed_s": round(noticed, 2),
        "new": new,
        "tcp": ends[:4],
        "udp": ends[4:],
        "resets": bench.status()["resets"],
        "again": bench.load("connect", SERVER, str(PORT), "40")["by"],
    }


def _set_up(bench: Bench, _: Plan) -> dict[str, float]:
    row = bench.load("connect", SERVER, str(PORT), str(CONNECTIONS))
    return {
        FAILED: float(row["of"] - row["connected"]),
        ADDED: row["added_ms_median"],
        ADDED_99: row["added_ms_p99"],
    }


def _shares(bench: Bench, _: Plan) -> dict[str, float]:
    row = bench.load("connect", SERVER, str(PORT), str(SHARED_FLOWS))
    return {
        FAILED: float(row["of"] - row["connected"]),
        SHARE: _first(row),
    }


def _new_flows(bench: Bench, _: Plan) -> dict[str, float]:
    row = bench.load("flows", SERVER, str(PORT), str(NEW_FLOWS), str(NEW_FLOWS_PER_S))
    return {
        LOST: float(row["lost"]),
        RATE: row["rate"],
        SHARE: _first(row),
    }


def _killed(bench: Bench, _: Plan) -> dict[str, float]:
    row = killed(bench)
    return {
        BROKEN: float(row["steady"]["ended"] != "complete"),
        "longest wait of the connection, s": row["steady"]["longest_s"],
        "new connections without a controller, of 3": float(row["new_while_away"]),
        AFTERWARDS: float(row["new_after"]),
        CHANGES: float(row["flow_mods_after"]),
    }


def _dies(bench: Bench, _: Plan) -> dict[str, float]:
    row = dies(bench)
    ended = [
        flow["ended"] == ("reset" if flow["address"] == "10.1.0.2" else "complete")
        for flow in row["tcp"]
    ]
    moved = [flow for flow in row["udp"] if len(flow["by"]) == 2]
    return {
        NOTICED: row["noticed_s"],
        ENDED: float(sum(ended)),
        WENT_ON: float(sum(flow["ended"] == "complete" for flow in row["udp"])),
        "UDP flows that moved": float(len(moved)),
        "longest wait of a UDP flow that moved, s": max(
            (flow["longest_s"] for flow in moved), default=0.0
        ),
        DEAD: float(row["new"]["by"].get("10.1.0.2", 0)),
        "new connections over it after its return, of 40": float(row["again"].get("10.1.0.2", 0)),
    }


def _capacity(bench: Bench, plan: Plan) -> dict[str, float]:
    """Fills both uplinks at their rates with downloads, and asks what the controller found."""
    for number, path in enumerate(plan.path):
        limited(f"{bench.network}:u{number}", path.both.rate_mbit or 0.0)
    try:
        server = bench.sandbox.start(bench.network, "iperf3", "-s", "-1")
        wait(lambda: listens(bench.network, _IPERF_PORT), "iperf3 did not start")
        download = ["iperf3", "-c", SERVER, "-R", "-P", str(_STREAMS), "-t", str(_FILL_S), "-J"]
        run("ip", "netns", "exec", bench.host, *download, seconds=60)
        stop(server)
        found = bench.status()["capacity_mbit"]
    finally:
        for number in range(len(plan.path)):
            run("tc", "-n", bench.network, "qdisc", "del", "dev", f"u{number}", "root")
    return {
        f"{CAPACITY}, {path.name}": found[path.name] / (path.both.rate_mbit or 1.0)
        for path in plan.path
    }


def _steps(bench: Bench, plan: Plan) -> dict[str, float]:
    """Downloads fill both uplinks while the first becomes slower by `STEP`, and fast again."""
    rate_mbit = plan.path[0].both.rate_mbit or 0.0
    try:
        for number in range(2):
            limited(f"{bench.network}:u{number}", rate_mbit)
        server = bench.sandbox.start(bench.network, "iperf3", "-s", "-1")
        wait(lambda: listens(bench.network, _IPERF_PORT), "iperf3 did not start")
        download = ("iperf3", "-c", SERVER, "-R", "-P", str(_STREAMS), "-t", str(_STEPS_S))
        client = bench.sandbox.start(bench.host, *download)
        _right_after(bench, rate_mbit)
        time.sleep(_FILL_S)
        fall_s = _stepped(bench, rate_mbit / STEP)
        time.sleep(_FILL_S)
        rise_s = _stepped(bench, rate_mbit)
        time.sleep(_FILL_S)
        for process in (client, server):
            stop(process)
        end, least = time.monotonic() + _AFTERWARDS_S, rate_mbit
        while time.monotonic() < end:
            least = min(least, bench.status()["capacity_mbit"]["u0"])
            time.sleep(0.1)
    finally:
        for number in range(2):
            run("tc", "-n", bench.network, "qdisc", "del", "dev", f"u{number}", "root")
    return {FALL: fall_s, RISE: rise_s, KEPT: least / rate_mbit}


def _stepped(bench: Bench, rate_mbit: float) -> float:
    """Gives the first uplink a rate; how many seconds its estimate is wrong."""
    limited(f"{bench.network}:u0", rate_mbit)
    return _right_after(bench, rate_mbit)


def _right_after(bench: Bench, rate_mbit: float) -> float:
    """Seconds until the estimate of the first uplink is right."""

    def is_right() -> bool:
        found: float = bench.status()["capacity_mbit"].get("u0", 0.0)
        return abs(found / rate_mbit - 1) <= _RIGHT

    began = time.monotonic()
    wait(is_right, f"the estimate did not come near {rate_mbit:g} Mbit/s", _SOON_S)
    return round(time.monotonic() - began, 2)


def _idle_capacity(bench: Bench, plan: Plan) -> dict[str, float]:
    """What probing finds while nothing is carried, in a network of its own."""
    carrier, rate_mbit = plan.carrier, plan.path[0].both.rate_mbit or 0.0
    assert isinstance(carrier, OvsBalance), carrier
    with Sandbox("ropewalk-ovs-idle-") as sandbox:
        idle = Idle(rate_mbit, carrier.probe)
        return probed(Bench(sandbox, weights=(), links=bench.links, idle=idle))


def probed(bench: Bench) -> dict[str, float]:
    """What is found of idle uplinks, by their rate; those of which nothing is are left out."""
    assert bench.idle is not None, "the network was made for that"
    began = time.monotonic()
    with contextlib.suppress(SandboxError):
        wait(lambda: bench.rounds() >= ROUNDS, "too few rounds of probing found a rate", _PROBED_S)
    status = bench.status()
    found = {
        f"{CAPACITY}, {name}": status["capacity_mbit"][name] / bench.idle.rate_mbit
        for name, source in status["capacity_source"].items()
        if source == bench.idle.probe
    }
    return {**found, "known after, s": round(time.monotonic() - began, 1)}


def _is_up(space: str, name: str) -> bool:
    return "state DOWN" not in run("ip", "-n", space, "link", "show", "dev", name)


def _first(row: dict[str, Any]) -> float:
    """Share of the first uplink among the flows that were answered."""
    return float(row["by"].get("10.1.0.2", 0) / max(1, sum(row["by"].values())))
