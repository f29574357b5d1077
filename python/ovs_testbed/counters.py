"""How late Open vSwitch counts what a flow has forwarded, by the way of asking.

    python -m ovs_testbed.counters [TRIALS]       as root, from the checkout's `python` directory

A flow forwards bursts of packets that its receiver has seen before anybody asks. Each row: how many
of a burst the answer lacks, at most and on average, and how long the answer takes.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from ovs_testbed.links import veth
from ovs_testbed.machine import Machine, Sandbox, SandboxError, inside, run, stop, wait

BURST = 20
TRIALS = 20
_METER = 7
_MACS = ("02:00:00:00:00:0a", "02:00:00:00:00:0b")
_TO = f"table=0,dl_dst={_MACS[1]}"
_SEND = f"""
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    for line in sys.stdin:
        for _ in range({BURST}):
            out.sendto(b"x" * 100, ("10.0.0.2", 9000))
            time.sleep(0.0005)
"""
_RECEIVE = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as come:
    come.bind(("0.0.0.0", 9000))
    print("ready", flush=True)
    while True:
        count = 0
        come.settimeout(None)
        try:
            while count < {BURST}:
                come.recv(2000)
                count += 1
                come.settimeout(0.5)
        except TimeoutError:
            pass
        print(count, flush=True)
"""


class Counted:
    """A bridge between two namespaces whose one flow of interest passes a meter."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.net: Machine = sandbox.machine("net")
        self.directory = self.net.directory
        bridge = "add-br br -- set bridge br datapath_type=netdev fail_mode=secure"
        self._database(*bridge.split(), "protocols=OpenFlow13")
        ends = [sandbox.namespace(name) for name in ("from", "to")]
        for number, (end, mac) in enumerate(zip(ends, _MACS, strict=True), 1):
            veth(f"{self.net.namespace}:p{number}", f"{end}:eth0")
            inside(end, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
            run("ip", "-n", end, "link", "set", "eth0", "address", mac)
            run("ip", "-n", end, "addr", "add", f"10.0.0.{number}/24", "dev", "eth0")
            port = f"add-port br p{number} -- set interface p{number} ofport_request={number}"
            self._database(*port.split())
        neighbour = f"neigh replace 10.0.0.2 lladdr {_MACS[1]} dev eth0"
        run("ip", "-n", ends[0], *neighbour.split())
        band = "type=drop,rate=1000000,burst_size=1000000"
        self.ofctl("add-meter", f"meter={_METER},pktps,burst,stats,bands={band}")
        self.install()
        self._receiver, self._sender = (
            subprocess.Popen(
                ["ip", "netns", "exec", end, sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for end, program in ((ends[1], _RECEIVE), (ends[0], _SEND))
        )
        assert self._receiver.stdout
        self._receiver.stdout.readline()

    def close(self) -> None:
        """Ends both ends."""
        stop(self._sender)
        stop(self._receiver)

    def _database(self, *words: str) -> None:
        run("ovs-vsctl", f"--db={self.net.database}", *words)

    def setting(self, *words: str) -> None:
        """Changes what the whole switch is set to."""
        self._database(words[0], "Open_vSwitch", ".", *words[1:])

    def ofctl(self, word: str, *words: str) -> str:
        """Asks the bridge."""
        target = [f"unix:{self.directory}/br.mgmt", *words]
        return run("ovs-ofctl", "-O", "OpenFlow13", word, *target)

    def appctl(self, *words: str) -> str:
        """Asks the switch."""
        return run("ovs-appctl", "-t", f"{self.directory}/switch.ctl", *words)

    def install(self) -> None:
        """Makes the flow."""
        flow = (
            f"table=0,priority=300,send_flow_rem,dl_dst={_MACS[1]},actions=meter:{_METER},output:2"
        )
        self.ofctl("add-flow", flow)

    def burst(self) -> int:
        """Sends a burst; how many of it the receiver has had."""
        assert self._sender.stdin and self._receiver.stdout
        self._sender.stdin.write("go\n")
        self._sender.stdin.flush()
        return int(self._receiver.stdout.readline())

    def flow(self) -> int:
        """Packets by the flow's statistics."""
        text = self.ofctl("dump-flows", _TO)
        return _number(r"n_packets=(\d+)", text)

    def meter(self) -> int:
        """Packets by the statistics of the meter."""
        text = self.ofctl("meter-stats", f"meter={_METER}")
        return _number(r"packet_in_count:(\d+)", text)

    def datapath(self) -> int:
        """Packets by the flows of the datapath."""
        text = self.appctl("dpctl/dump-flows", "netdev@ovs-netdev")
        rows = [row for row in text.splitlines() if f"dst={_MACS[1]}" in row]
        return sum(_number(r"packets:(\d+)", row) for row in rows)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


@dataclass(frozen=True)
class Way:
    """A way of asking; the revalidator's longest pause, ms."""

    name: str
    ask: Callable[[Counted], int]
    max_revalidator: int = 500


def _touched(net: Counted) -> int:
    net.ofctl("add-flow", "table=9,priority=1,actions=drop")
    return net.flow()


def _touched_waited(net: Counted) -> int:
    net.ofctl("add-flow", "table=9,priority=1,actions=drop")
    net.appctl("revalidator/wait")
    return net.flow()


def _waited(net: Counted) -> int:
    net.appctl("revalidator/wait")
    return net.flow()


def _purged(net: Counted) -> int:
    net.appctl("revalidator/purge")
    return net.flow()


WAYS = (
    Way("flow statistics", Counted.flow),
    Way("flow statistics, max-revalidator 100 ms", Counted.flow, 100),
    Way("after another flow was changed", _touched),
    Way("after that and revalidator/wait", _touched_waited),
    Way("after revalidator/wait", _waited),
    Way("after revalidator/purge", _purged),
    Way("dpctl/dump-flows", Counted.datapath),
    Way("meter statistics", Counted.meter),
)


def measured(net: Counted, way: Way, trials: int) -> str:
    """A row of the table."""
    net.setting("set", f"other_config:max-revalidator={way.max_revalidator}")
    time.sleep(0.6)
    lacks, took = [], []
    for _ in range(trials):
        time.sleep(random.uniform(0.6, 1.1))
        before = way.ask(net)
        time.sleep(random.uniform(0.0, 0.5))
        got = net.burst()
        began = time.monotonic()
        after = way.ask(net)
        took.append(time.monotonic() - began)
        lacks.append(got - (after - before))
    return (
        f"| {way.name} | {statistics.mean(lacks):.1f} | {max(lacks)} | "
        f"{sum(lack != 0 for lack in lacks)} of {trials} | {1e3 * statistics.median(took):.1f} |"
    )


def removed(net: Counted, trials: int) -> str:
    """The count that a flow-removed message gives, and what the flow had forwarded."""
    lacks = []
    program = f"env OVS_RUNDIR={net.directory} ovs-ofctl -O OpenFlow13 monitor"
    target = f"unix:{net.directory}/br.mgmt"
    with subprocess.Popen(
        # A length makes the switch send this connection what happens by itself.
        [*program.split(), target, "65534"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as monitor:
        assert monitor.stdout
        time.sleep(0.3)
        for _ in range(trials):
            net.ofctl("del-flows", _TO)
            _removed(monitor.stdout)
            net.install()
            time.sleep(random.uniform(0.2, 0.8))
            got = net.burst()
            net.ofctl("del-flows", _TO)
            lacks.append(got - _removed(monitor.stdout))
            net.install()
        monitor.terminate()
    late = sum(lack != 0 for lack in lacks)
    mean = f"{statistics.mean(lacks):.1f}"
    return f"| flow-removed message | {mean} | {max(lacks)} | {late} of {trials} | |"


def _removed(lines: IO[str]) -> int:
    """Packets in the next flow-removed message."""
    text = ""
    while "FLOW_REMOVED" not in text:
        text = lines.readline()
        if not text:
            raise SandboxError("ovs-ofctl monitor has ended")
    return _number(r"pkts(\d+)", text)


def main() -> None:
    """Prints the table."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS
    with Sandbox("ropewalk-ovs-counters-") as sandbox:
        net = Counted(sandbox)
        try:
            wait(lambda: net.burst() == BURST, "no packet came through", 20)
            for way in WAYS:
                print(measured(net, way, trials), flush=True)
            print(removed(net, trials))
        finally:
            net.close()


if __name__ == "__main__":
    main()
