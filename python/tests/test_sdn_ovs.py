"""Both modes on real Open vSwitch, each switch in a namespace of its own; needs root."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ovs_testbed import balance, bicast
from ovs_testbed.links import veth
from ovs_testbed.machine import (
    Machine,
    Sandbox,
    SandboxError,
    run,
    stop,
    wait,
)
from ropewalk.lab import programs
from ropewalk.lab.ovs.balance import CAPACITY
from ropewalk.sdn import resolution
from ropewalk.sdn.api import ask
from ropewalk.sdn.config import Config
from ropewalk.sdn.host import ovs

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root"),
]

ENDS = {"a": (1, 2), "b": (2, 1)}
FAR = ("10.99.0.2", "fd99::2")
FAMILIES = pytest.mark.parametrize("far", FAR)


WERE_THERE = (
    # The first of a subnet is the one that is used, also afterwards.
    "addr add 10.0.0.9/24 brd 10.0.0.127 dev w0 label w0:first",
    "addr add 10.0.0.1/24 dev w0",
    "addr add 10.7.0.1/32 peer 10.7.0.2/32 dev w0",
    "addr add 10.8.0.1/24 dev w1 noprefixroute",
    "route add 10.8.0.0/24 dev w1 proto kernel src 10.8.0.1 metric 100",
    "route add 198.51.100.0/24 via 10.0.0.2 src 10.0.0.1 mtu 1400",
    "route add default via 10.0.0.2 dev w0 table 100 onlink",
    "route add 198.51.101.0/24 nexthop via 10.0.0.2 dev w0 nexthop via 10.8.0.2 dev w1 weight 2",
    "addr add fd00::1/64 dev w0 nodad",
    "route add 2001:db8:9::/48 via fd00::2 src fd00::1",
    "link set w2 down",
)


class Pair:
    """Two machines with a switch each, joined by three paths, an application behind each."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.machines = {end: sandbox.machine(end) for end in ENDS}
        self.hosts = {end: sandbox.namespace(f"{end}-app") for end in ENDS}
        for number in range(3):
            veth(f"{self.space('a')}:w{number}", f"{self.space('b')}:w{number}")
        # What the machine had before must be there again afterwards.
        for words in WERE_THERE:
            run("ip", "-n", self.space("a"), *words.split())
        self.before = self.settings()
        self.configs: dict[str, Config] = {}
        self.controllers = {}
        for end in ENDS:
            self.configs[end] = self.configure(end, "copies = 2")
            self.machines[end].command(self.configs[end], "setup")
            self.controllers[end] = self.machines[end].control(self.configs[end])

    def space(self, end: str) -> str:
        return self.machines[end].namespace

    def configure(self, end: str, more: str, bridge: str = "") -> Config:
        text = bicast.configuration(end, ENDS[end], self.hosts[end], range(3), ipv6=True)
        text = text.replace("[bridge]\n", f"[bridge]\n{bridge}")
        return self.machines[end].configure(f"{text}[bicast]\n{more}\n")

    def restart(self, more: str, ends: str = "ab") -> None:
        """Controllers anew, at the same time."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._restart, ends, [more] * len(ends)))

    def _restart(self, end: str, more: str) -> None:
        stop(self.controllers[end])
        self.configs[end] = self.configure(end, more)
        self.controllers[end] = self.machines[end].control(self.configs[end])

    def ping(self, *options: str, count: int = 5, to: str = "10.99.0.2") -> tuple[int, int]:
        """Answers and copies of answers."""
        words = ["ping", "-c", str(count), "-i", "0.1", "-W", "1", *options, to]
        text = run("ip", "netns", "exec", self.hosts["a"], *words)
        received = re.search(r"(\d+) received", text)
        copies = re.search(r"\+(\d+) duplicates", text)
        return int(received[1]) if received else 0, int(copies[1]) if copies else 0

    def settings(self) -> str:
        """Addresses, routes, offloads and states of end a."""
        machine = self.machines["a"]
        gro = "".join(
            line
            for number in range(3)
            for line in machine.run("ethtool", "-k", f"w{number}").splitlines()
            if "generic-receive" in line
        )
        route = machine.run("ip", "-6", "route", "show", "proto", "boot")
        for line in machine.run("ip", "-4", "route", "show", "table", "all").splitlines():
            route += f"{line}\n" if "table local" not in line else ""
        addresses = "".join(
            line.partition(" ")[2] + "\n"
            for version in ("-4", "-6")
            for line in machine.run(
                "ip", "-o", version, "addr", "show", "scope", "global"
            ).splitlines()
        )
        return addresses + route + gro + machine.run("ip", "-br", "link", "show", "w2")[:20]

    def counters(self, end: str) -> dict[str, int]:
        return dict(ask(self.configs[end].socket)["counters"])


BALANCED = pytest.mark.parametrize(
    ("server", "ways"),
    [
        (balance.SERVER, ("10.1.0.2", "10.2.0.2")),
        (balance.SERVER_IPV6, ("fd01::2", "fd02::2")),
    ],
    ids=["ipv4", "ipv6"],
)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Sandbox("ropewalk-ovs-test-pair-") as sandbox:
        made = Pair(sandbox)
        wait(
            lambda: all(used for n in range(3) for used in _used(made, f"w{n}")),
            "a path is not used",
        )
        yield made


@pytest.fixture(scope="module")
def bench() -> Iterator[balance.Bench]:
    with Sandbox("ropewalk-ovs-test-balance-") as sandbox:
        yield balance.Bench(sandbox)


@FAMILIES
def test_each_packet_goes_over_two_of_three_paths_both_ways(pair: Pair, far: str) -> None:
    # The last answer ends ping before its copies come: each of the others comes four times.
    assert pair.ping(count=5, to=far) == (5, 4 * 3)


def test_copies_are_removed_in_front_of_the_application(pair: Pair) -> None:
    try:
        for end in ENDS:
            bicast.remove_copies(pair.hosts[end], pair.machines[end].directory, True)
        for far in FAR:
            assert pair.ping(to=far) == (5, 0)
            # What is sent again is no copy, even where nothing tells it from what was before.
            assert _repeated(pair, far) == 5
    finally:
        for end in ENDS:
            bicast.remove_copies(pair.hosts[end], pair.machines[end].directory, False)


def test_traffic_goes_on_without_a_controller_and_a_new_one_changes_nothing(pair: Pair) -> None:
    pair.controllers["a"].kill()
    pair.controllers["a"].wait()
    # The switch itself answers for the bridge's addresses.
    run("ip", "-n", pair.hosts["a"], "neigh", "flush", "dev", "ropeapp0")
    for far in FAR:
        assert pair.ping(to=far)[0] == 5
    shown = run("ip", "-n", pair.hosts["a"], "neigh", "show", "dev", "ropeapp0")
    assert shown.count("02:72:6f:70:65:01") == 2, shown
    pair.controllers["a"] = pair.machines["a"].control(pair.configs["a"])
    time.sleep(0.3)
    counters = pair.counters("a")
    assert counters["flow_mods"] == 0
    assert counters["group_mods"] == 0
    assert counters["refused_messages"] == 0


def test_a_path_that_falls_silent_is_replaced_by_the_spare(pair: Pair) -> None:
    machine = pair.machines["b"]
    machine.run("ip", "link", "set", "w0", "down")
    try:
        assert pair.ping()[0] == 5
        wait(lambda: not any(_used(pair, "w0")), "the dead path is still used")
        assert pair.ping() == (5, 4 * 3)
    finally:
        machine.run("ip", "link", "set", "w0", "up")
    wait(lambda: all(_used(pair, "w0")), "the path is not used again")


def test_only_small_packets_or_chosen_flows_are_copied(pair: Pair) -> None:
    try:
        pair.restart("copies = 2\npacket_bytes_max = 300")
        assert pair.ping("-s", "100") == (5, 4 * 3)
        assert pair.ping("-s", "1000") == (5, 0)
        assert pair.ping("-s", "1000", to=FAR[1]) == (5, 0)
        pair.restart('copies = 2\n[[bicast.flow]]\nprotocol = "tcp"\nport = 1194')
        assert pair.ping("-s", "100") == (5, 0)
        assert pair.counters("a")["refused_messages"] == 0
    finally:
        pair.restart("copies = 2")


def test_copies_begin_with_measured_losses_and_end_without(pair: Pair) -> None:
    machine = pair.machines["b"]
    lossy = "add table netdev lossy; add chain netdev lossy c "
    lossy += "{ type filter hook egress device w0 priority 0; }; "
    lossy += "add rule netdev lossy c numgen random mod 100 < 20 drop"
    by_loss = 'when = "loss"\nloss_on_percent = 8\nloss_off_percent = 7\n'
    try:
        pair.restart(f"copies = 2\n{by_loss}[probe]\ninterval_ms = 50\n", "b")
        # The question comes twice, and each is answered once.
        assert pair.ping() == (5, 4)
        machine.run("nft", lossy)
        wait(lambda: _copying(pair, "b"), "nobody copies although packets are lost", 20)
        _, copies = pair.ping(count=10)
        assert copies > 15
        machine.run("nft", "delete table netdev lossy")
        wait(lambda: not _copying(pair, "b"), "somebody copies although nothing is lost", 20)
        assert pair.ping() == (5, 4)
    finally:
        with contextlib.suppress(SandboxError):
            machine.run("nft", "delete table netdev lossy")
        pair.restart("copies = 2", "b")


def test_a_flood_from_one_neighbour_does_not_take_the_other_paths_away(pair: Pair) -> None:
    wait(lambda: all(_used(pair, "w1")), "the path is not used")
    began = pair.counters("a")["packets_in"]
    # Answers that nobody asked for, to the bridge's own address.
    frame = resolution.arp(
        resolution.ARP_REPLY, "0a:00:00:00:00:66", "10.0.0.2", "10.0.0.1", "0a:00:00:00:00:67"
    )
    flood = ["ip", "netns", "exec", pair.space("b"), sys.executable, "-c", _FLOOD, frame.hex(), "3"]
    sent = int(run(*flood))
    told = pair.counters("a")["packets_in"] - began
    assert sent > 20_000
    # The limit for three seconds and the burst, and as much again for a machine that lags.
    assert told < 13_000
    assert all(_used(pair, "w1"))
    assert all(_used(pair, "w2"))
    wait(lambda: all(_used(pair, "w0")), "the path is not used again")
    wait(lambda: pair.ping() == (5, 4 * 3), "copies do not come again")


def test_somebody_elses_flows_and_groups_are_left_alone(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    machine.flows(config, "add-flow", "table=9,priority=3,actions=drop")
    machine.flows(config, "add-group", "group_id=500,type=all,bucket=drop")
    pair.restart("copies = 1", "a")
    pair.restart("copies = 2", "a")
    assert "table=9" in machine.flows(config)
    assert "group_id=500" in machine.flows(config, "dump-groups")


def test_metrics_and_status_tell_the_same(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    status = json.loads(machine.command(config, "status", "--json"))
    assert [row["usable"] for row in status["uplinks"]] == [True] * 6
    assert "w0" in machine.command(config, "status")
    metrics = machine.run(
        "curl", "-s", "--unix-socket", str(config.socket), "http://localhost/metrics"
    )
    assert "ropewalk_sdn_connected 1" in metrics
    assert 'ropewalk_sdn_uplink_usable{uplink="w0",family="ipv6"} 1' in metrics


def test_the_connection_can_be_by_tls_with_keys_of_both_ends(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    stop(pair.controllers["a"])
    keys = machine.directory / "tls"
    tls = (
        f'[controller.tls]\nkey = "{keys}/controller.key"\ncertificate = "{keys}/controller.crt"\n'
        f'authority = "{keys}/authority.crt"\nswitch_key = "{keys}/switch.key"\n'
        f'switch_certificate = "{keys}/switch.crt"\n'
    )
    try:
        machine.command(config, "teardown")
        number = 'datapath_id = "00000000000000aa"\n'
        pair.configs["a"] = pair.configure("a", "copies = 2\n" + tls, number)
        machine.command(pair.configs["a"], "certificates", str(keys))
        machine.command(pair.configs["a"], "setup")
        pair.controllers["a"] = machine.control(pair.configs["a"])
        wait(lambda: _answered(pair), "nothing passes with TLS")
        assert pair.counters("a")["refused_messages"] == 0
    finally:
        stop(pair.controllers["a"])
        machine.command(pair.configs["a"], "teardown")
        pair.configs["a"] = pair.configure("a", "copies = 2")
        machine.command(pair.configs["a"], "setup")
        pair.controllers["a"] = machine.control(pair.configs["a"])


def test_setup_refuses_what_somebody_else_made_and_leaves_it(pair: Pair) -> None:
    machine = pair.machines["b"]
    try:
        config = pair.configure("b", "copies = 2")
        text = config.path.read_text().replace("state_dir =", "state_dir = '/nowhere' #")
        config.path.write_text(text)
        with pytest.raises(SandboxError, match="exists and is not of this setup"):
            machine.command(config, "setup", "--plan")
        config.path.write_text(text.replace('"bbr"', '"other"'))
        with pytest.raises(SandboxError, match=r"choose another application\.port"):
            machine.command(config, "setup", "--plan")
        assert "ropesw0" in machine.run("ip", "link", "show", "dev", "ropesw0")
    finally:
        pair.configs["b"] = pair.configure("b", "copies = 2")
    assert "set up already" in machine.command(pair.configs["b"], "setup", "--plan")


def test_setup_twice_is_no_error_and_teardown_restores_everything(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    assert "already" in machine.command(config, "setup")
    assert "UP" in machine.run("ip", "-br", "addr", "show", "dev", "w0")
    assert "/" not in machine.run("ip", "-br", "addr", "show", "dev", "w0")
    machine.command(config, "teardown")
    assert pair.settings() == pair.before
    assert config.bridge.name not in _bridges(machine)
    machine.command(config, "setup")
    wait(lambda: _answered(pair), "nothing passes after a new setup")
    assert pair.ping()[0] == 5


@BALANCED
def test_new_flows_are_spread_by_weight_and_answered(
    bench: balance.Bench, server: str, ways: tuple[str, str]
) -> None:
    tcp = bench.load("connect", server, str(balance.PORT), "200")
    assert tcp["by"] == {ways[0]: 150, ways[1]: 50}
    udp = bench.load("flows", server, str(balance.PORT), "400", "200")
    assert udp["lost"] == 0
    assert udp["by"][ways[0]] == pytest.approx(300, abs=12)
    run("ip", "netns", "exec", bench.host, "ping", "-c2", "-W2", server)
    assert bench.status()["counters"]["refused_messages"] == 0


def test_setup_sets_idle_times_and_refuses_zones_of_somebody_else(
    bench: balance.Bench,
) -> None:
    assert ovs.zones_with_timeouts(bench.config) == {4700, 4701, 4702}
    path = bench.config.path
    text = path.read_text()
    other = text.replace('"balancebr"', '"other"').replace('interface = "', '# "')
    other = other.replace("[application]\n", '[application]\nport = "p9"\ninterface = "i9"\n')
    try:
        path.write_text(other)
        with pytest.raises(SandboxError, match=r"choose another balance\.zone"):
            bench.machine.command(bench.config, "setup", "--plan")
    finally:
        path.write_text(text)


def test_a_killed_controller_is_not_noticed_by_a_connection(bench: balance.Bench) -> None:
    before = bench.established()
    ipv6 = bench.begin("steady", balance.SERVER_IPV6, str(balance.PORT), "8")
    wait(lambda: bench.established() > before, "the connection did not come about")
    row = balance.killed(bench, seconds=8, tries=1)
    for steady in (row["steady"], json.loads(ipv6.communicate(timeout=60)[0])):
        assert steady["ended"] == "complete"
        assert steady["longest_s"] < 0.5
    assert row["new_while_away"] == 0
    assert row["new_after"] == 20
    assert row["flow_mods_after"] == 0


def test_a_dead_uplink_resets_tcp_moves_udp_and_gets_nothing_new(
    bench: balance.Bench,
) -> None:
    end = (balance.SERVER_IPV6, str(balance.PORT), "8")
    before = bench.established()
    loads = [bench.begin(what, *end) for what in ("steady", "steady-udp") for _ in range(4)]
    wait(lambda: bench.established() >= before + 4, "the connections did not come about")
    row = balance.dies(bench, seconds=6)
    ipv6 = [json.loads(load.communicate(timeout=60)[0]) for load in loads]
    assert row["new"]["by"] == {"10.2.0.2": 20}
    for connections, dead in ((row["tcp"], "10.1.0.2"), (ipv6[:4], "fd01::2")):
        for connection in connections:
            ended = "reset" if connection["address"] == dead else "complete"
            assert connection["ended"] == ended
        assert any(connection["ended"] == "reset" for connection in connections)
    for flows in (row["udp"], ipv6[4:]):
        assert any(len(flow["by"]) == 2 for flow in flows)
        assert all(flow["ended"] == "complete" for flow in flows)
    assert row["again"] == {"10.1.0.2": 30, "10.2.0.2": 10}


def test_least_expected_finish_leaves_a_link_that_a_download_fills(
    bench: balance.Bench,
) -> None:
    bench.restart(bench.configure("controller", rule="least-expected-finish", rate_mbit=10.0))
    end = (balance.SERVER, str(balance.PORT))
    load = bench.begin("flood", *end, "4")
    wait(lambda: max(bench.status()["load_mbit"].values()) > 5, "no load was seen", 20)
    rates = bench.status()["load_mbit"]
    busy = max(rates, key=lambda name: rates[name])
    row = bench.load("connect", *end, "20")
    load.communicate(timeout=30)
    free = {"u0": "10.2.0.2", "u1": "10.1.0.2"}[busy]
    assert row["by"][free] >= 14, (rates, row)


def test_trains_tell_what_idle_uplinks_carry() -> None:
    """Three attempts, for a machine that does other things too; the median of all is wanted."""
    links = programs.find_or_none(programs.LINK, None)
    if links is None:
        pytest.skip("needs ropewalk-linkem: run `make build`")
    found: list[float] = []
    for _ in range(3):
        with Sandbox("ropewalk-ovs-test-idle-") as sandbox:
            idle = balance.Idle(10.0, "train")
            bench = balance.Bench(sandbox, weights=(), links=links, idle=idle)
            row = balance.probed(bench)
            assert bench.status()["counters"]["faults"] == 0
        found += [row.get(f"{CAPACITY}, {name}", 0.0) for name in ("u0", "u1")]
        if statistics.median(found) == pytest.approx(1.0, abs=0.15):
            break
    assert statistics.median(found) == pytest.approx(1.0, abs=0.15), found


def test_the_switch_decides_alone_also_without_a_controller(bench: balance.Bench) -> None:
    bench.restart(bench.configure("switch"))
    stop(bench.controller)
    for server, first in ((balance.SERVER, "10.1.0.2"), (balance.SERVER_IPV6, "fd01::2")):
        for what, *numbers in (("connect", "200"), ("flows", "200", "200")):
            row = bench.load(what, server, str(balance.PORT), *numbers)
            assert sum(row["by"].values()) == 200, row
            # A hash: the standard deviation of 200 draws is 6.
            assert row["by"][first] == pytest.approx(150, abs=30), row


def _repeated(pair: Pair, far: str) -> int:
    """How many of five equal datagrams arrive."""
    command = ["ip", "netns", "exec"]
    receiver = subprocess.Popen(
        [*command, pair.hosts["b"], sys.executable, "-c", _RECEIVE, far],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait(lambda: ":7777" in run(*command, pair.hosts["b"], "ss", "-Hlun"), "nobody listens")
    run(*command, pair.hosts["a"], sys.executable, "-c", _SEND, far)
    return int(receiver.communicate(timeout=20)[0])


_RECEIVE = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as server:
    server.bind((sys.argv[1], 7777))
    server.settimeout(0.5)
    count = 0
    try:
        while server.recv(100):
            count += 1
    except TimeoutError:
        print(count)
"""
_SEND = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as client:
    for _ in range(5):
        client.sendto(b"the same", (sys.argv[1], 7777))
        time.sleep(0.05)
"""


def _used(pair: Pair, name: str) -> list[bool]:
    """Whether each end uses a path."""
    return [
        bool(row["usable"])
        for end in ENDS
        for row in ask(pair.configs[end].socket)["uplinks"]
        if row["name"] == name
    ]


def _copying(pair: Pair, end: str) -> bool:
    return bool(ask(pair.configs[end].socket)["copying"])


_FLOOD = """
import socket, sys, time
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as port:
    port.bind(("w0", 0))
    frame, end, count = bytes.fromhex(sys.argv[1]), time.monotonic() + float(sys.argv[2]), 0
    while time.monotonic() < end:
        try:
            port.send(frame)
            count += 1
        except OSError:
            time.sleep(0.001)
print(count)
"""


def _answered(pair: Pair) -> bool:
    return pair.ping(count=1)[0] == 1


def _bridges(machine: Machine) -> str:
    return run("ovs-vsctl", f"--db={machine.database}", "list-br")
