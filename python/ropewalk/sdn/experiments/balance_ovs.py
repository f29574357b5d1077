"""Experiment `balance-ovs`: each new flow over one of two uplinks, on Open vSwitch.

What is measured: how much longer a connection takes to be set up than without a decision, the
shares of the uplinks, many new flows a second, and what happens to traffic when the controller is
killed and when an uplink dies.

    python -m ropewalk.sdn.experiments.balance_ovs --out out/lab/balance-ovs

Namespaces: the application's host, the machine with the switch, and the network with both gateways
and the server; the uplinks are plain veth pairs without rate or delay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ropewalk.lab.provenance import Load, machine, source, stamp
from ropewalk.sdn.api import ask
from ropewalk.sdn.config import Config
from ropewalk.sdn.experiments.machine import Lab, run, stop, wait

PREFIX = "sdn-ba-"
SERVER, SERVER_IPV6 = "192.0.2.1", "2001:db8:1::1"
HOST = "10.98.0.2"
PORT = 8080
_TRAFFIC = str(Path(__file__).with_name("traffic.py"))
WEIGHTS = (3, 1)


class Bench:
    """The network of the experiment, set up and controlled."""

    def __init__(self, lab: Lab, decide: str = "controller", rule: str = "") -> None:
        self.lab = lab
        self.machine = lab.machine("switch")
        self.host = lab.namespace("host")
        self.network = lab.namespace("net")
        for number in range(2):
            self._uplink(number)
        for server in (f"{SERVER}/32", f"{SERVER_IPV6}/128"):
            run("ip", "-n", self.network, "addr", "add", server, "dev", "lo", *_unchecked(server))
        self.config = self.configure(decide, rule)
        self.machine.command(self.config, "setup")
        self.controller = self.machine.control(self.config)
        for what in ("serve-tcp", "serve-udp"):
            for server in (SERVER, SERVER_IPV6):
                words = (what, server, str(PORT))
                lab.start(self.network, sys.executable, _TRAFFIC, *words, log="serve.log")
        wait(lambda: self._listening().count(f":{PORT}") == 4, "a server did not start")

    def _uplink(self, number: int) -> None:
        name, space = f"u{number}", self.machine.namespace
        peer = ["peer", "name", name, "netns", self.network]
        run("ip", "-n", space, "link", "add", name, "type", "veth", *peer)
        for end in (space, self.network):
            run("ip", "-n", end, "link", "set", name, "up")
            run("ip", "netns", "exec", end, "ethtool", "-K", name, "tx", "off")
        for address in (f"10.{number + 1}.0.1/24", f"fd0{number + 1}::1/64"):
            checked = _unchecked(address)
            run("ip", "-n", self.network, "addr", "add", address, "dev", name, *checked)

    def configure(self, decide: str, rule: str = "", rate: str = "") -> Config:
        """The configuration with a way to decide."""
        uplinks = "".join(
            f'[[uplink]]\nname = "u{number}"\n'
            f'address = ["10.{number + 1}.0.2/24", "fd0{number + 1}::2/64"]\n'
            f'gateway = ["10.{number + 1}.0.1", "fd0{number + 1}::1"]\nweight = {weight}\n{rate}'
            for number, weight in enumerate(WEIGHTS)
        )
        return self.machine.configure(
            'mode = "balance"\n[bridge]\nname = "balancebr"\ndatabase = "DATABASE"\n'
            f'[application]\nnamespace = "{self.host}"\naddress = ["{HOST}/24", "fd98::2/64"]\n'
            f'gateway = ["10.98.0.1", "fd98::1"]\n{uplinks}[balance]\ndecide = "{decide}"\n'
            + (f'rule = "{rule}"\n' if rule else "")
        )

    def restart(self, decide: str, rule: str = "", rate: str = "") -> None:
        """The controller anew, with another way to decide."""
        stop(self.controller)
        self.config = self.configure(decide, rule, rate)
        self.controller = self.machine.control(self.config)

    def traffic(self, *arguments: str, seconds: float = 60) -> dict[str, Any]:
        """Runs a load at the host; what it reports."""
        command = ["ip", "netns", "exec", self.host, sys.executable, _TRAFFIC, *arguments]
        return dict(json.loads(run(*command, seconds=seconds)))

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Begins a load at the host; its report comes on its output."""
        command = ["ip", "netns", "exec", self.host, sys.executable, _TRAFFIC, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

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

    def usable(self, name: str) -> bool:
        """Whether the controller uses an uplink, in both address families."""
        rows = [row for row in self.status()["uplinks"] if row["name"] == name]
        return all(row["usable"] for row in rows)

    def given_up(self, name: str) -> bool:
        """Whether the controller uses an uplink in no address family."""
        rows = [row for row in self.status()["uplinks"] if row["name"] == name]
        return not any(row["usable"] for row in rows)

    def established(self) -> int:
        """TCP connections of the host that are there now."""
        return len(run("ip", "netns", "exec", self.host, "ss", "-Htn", "state", "established")
                   .splitlines())  # fmt: skip

    def _listening(self) -> str:
        return run("ip", "netns", "exec", self.network, "ss", "-Hltun")


def measure(bench: Bench) -> dict[str, Any]:
    """Everything once."""
    rows: dict[str, Any] = {}
    for decide in ("controller", "switch"):
        bench.restart(decide)
        first = bench.traffic("connect", SERVER, str(PORT), "200")
        rows[f"{decide}: 200 connections"] = first
        rows[f"{decide}: 1000 connections"] = bench.traffic("connect", SERVER, str(PORT), "1000")
        rows[f"{decide}: 500 new UDP flows a second"] = bench.traffic(
            "flows", SERVER, str(PORT), "5000", "500"
        )
        rows[f"{decide}: controller killed"] = killed(bench)
    bench.restart("controller")
    rows["uplink dies"] = dies(bench)
    return rows


def killed(bench: Bench, seconds: int = 15, tries: int = 3, server: str = SERVER) -> dict[str, Any]:
    """A long connection and new ones while the controller is killed and started again."""
    before = bench.established()
    steady = bench.begin("steady", SERVER, str(PORT), str(seconds))
    wait(lambda: bench.established() > before, "the connection did not come about")
    time.sleep(1)
    bench.controller.kill()
    bench.controller.wait()
    during = bench.traffic("connect", SERVER, str(PORT), str(tries), "0.5")
    bench.controller = bench.machine.control(bench.config)
    after = bench.traffic("connect", SERVER, str(PORT), "20")
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
    new = bench.traffic("connect", SERVER, str(PORT), "20")
    ends = [json.loads(process.communicate(timeout=60)[0]) for process in (*tcp, *udp)]
    bench.gateway(0, alive=True)
    wait(lambda: bench.usable("u0"), "the uplink did not come back", 20)
    return {
        "noticed_s": round(noticed, 2),
        "new": new,
        "tcp": ends[:4],
        "udp": ends[4:],
        "resets": bench.status()["resets"],
        "again": bench.traffic("connect", SERVER, str(PORT), "40")["by"],
    }


def _unchecked(address: str) -> list[str]:
    """An IPv6 address is used at once, without asking whether it is free."""
    return ["nodad"] if ":" in address else []


def main(arguments: list[str] | None = None) -> int:
    """Runs the experiment and writes result.json."""
    parser = argparse.ArgumentParser(
        prog="python -m ropewalk.sdn.experiments.balance_ovs",
        description="Flow balancing on Open vSwitch (as root).",
    )
    parser.add_argument("--out", type=Path, default=Path("out/lab/balance-ovs"), metavar="DIR")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    before = Load.now()
    with Lab(PREFIX) as lab:
        results = measure(Bench(lab))
    value = {
        "experiment": "balance-ovs",
        "source": asdict(source(Path.cwd())),
        "machine": machine(None),
        "conditions": stamp(before, Load.now()),
        "results": results,
    }
    (options.out / "result.json").write_text(json.dumps(value, indent=1) + "\n")
    for name, row in results.items():
        print(f"{name}: {json.dumps(row)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
