"""Both modes on real Open vSwitch, each switch in a namespace of its own; needs root."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator

import pytest

from ropewalk.sdn.api import ask
from ropewalk.sdn.config import Config
from ropewalk.sdn.host import ovs
from ropewalk.sdn.testbed import balance, bicast
from ropewalk.sdn.testbed.links import veth
from ropewalk.sdn.testbed.machine import Machine, Sandbox, SandboxError, run, stop, wait

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root")

ENDS = {"a": (1, 2), "b": (2, 1)}


class Pair:
    """Two machines with a switch each, joined by three paths, an application behind each."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.machines = {end: sandbox.machine(end) for end in ENDS}
        self.hosts = {end: sandbox.namespace(f"{end}-app") for end in ENDS}
        for number in range(3):
            veth(f"{self.space('a')}:w{number}", f"{self.space('b')}:w{number}")
        # What the machine had before must be there again afterwards.
        run("ip", "-n", self.space("a"), "addr", "add", "10.0.0.1/24", "dev", "w0")
        run("ip", "-n", self.space("a"), "route", "add", "198.51.100.0/24", "via", "10.0.0.2")
        self.before = self.settings()
        self.configs: dict[str, Config] = {}
        self.controllers = {}
        for end in ENDS:
            self.configs[end] = self.configure(end, "copies = 2")
            self.machines[end].command(self.configs[end], "setup")
            self.controllers[end] = self.machines[end].control(self.configs[end])

    def space(self, end: str) -> str:
        return self.machines[end].namespace

    def configure(self, end: str, more: str) -> Config:
        text = bicast.configuration(end, ENDS[end], self.hosts[end], range(3))
        return self.machines[end].configure(f"{text}[bicast]\n{more}\n")

    def restart(self, end: str, more: str) -> None:
        stop(self.controllers[end])
        self.configs[end] = self.configure(end, more)
        self.controllers[end] = self.machines[end].control(self.configs[end])

    def ping(self, *options: str, count: int = 5) -> tuple[int, int]:
        """Answers and copies of answers."""
        words = ["ping", "-c", str(count), "-i", "0.1", "-W", "1", *options, "10.99.0.2"]
        text = run("ip", "netns", "exec", self.hosts["a"], *words)
        received = re.search(r"(\d+) received", text)
        copies = re.search(r"\+(\d+) duplicates", text)
        return int(received[1]) if received else 0, int(copies[1]) if copies else 0

    def settings(self) -> str:
        """Addresses, routes and offloads of end a."""
        machine = self.machines["a"]
        gro = "".join(
            line
            for number in range(3)
            for line in machine.run("ethtool", "-k", f"w{number}").splitlines()
            if "generic-receive" in line
        )
        route = machine.run("ip", "route")
        return machine.run("ip", "-4", "-br", "addr") + route + gro

    def counters(self, end: str) -> dict[str, int]:
        return dict(ask(self.configs[end].socket)["counters"])


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


def test_each_packet_goes_over_two_of_three_paths_both_ways(pair: Pair) -> None:
    # The last answer ends ping before its copies come: each of the others comes four times.
    assert pair.ping(count=5) == (5, 4 * 3)


def test_copies_are_removed_in_front_of_the_application(pair: Pair) -> None:
    try:
        for end in ENDS:
            bicast.remove_copies(pair.hosts[end], pair.machines[end].directory, True)
        assert pair.ping(count=10) == (10, 0)
    finally:
        for end in ENDS:
            bicast.remove_copies(pair.hosts[end], pair.machines[end].directory, False)


def test_traffic_goes_on_without_a_controller_and_a_new_one_changes_nothing(pair: Pair) -> None:
    pair.controllers["a"].kill()
    pair.controllers["a"].wait()
    assert pair.ping()[0] == 5
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
        for end in ENDS:
            pair.restart(end, "copies = 2\npacket_bytes_max = 300")
        assert pair.ping("-s", "100") == (5, 4 * 3)
        assert pair.ping("-s", "1000") == (5, 0)
        for end in ENDS:
            pair.restart(end, 'copies = 2\n[[bicast.flow]]\nprotocol = "tcp"\nport = 1194')
        assert pair.ping("-s", "100") == (5, 0)
        assert pair.counters("a")["refused_messages"] == 0
    finally:
        for end in ENDS:
            pair.restart(end, "copies = 2")


def test_somebody_elses_flows_and_groups_are_left_alone(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    machine.flows(config, "add-flow", "table=9,priority=3,actions=drop")
    machine.flows(config, "add-group", "group_id=500,type=all,bucket=drop")
    pair.restart("a", "copies = 1")
    pair.restart("a", "copies = 2")
    assert "table=9" in machine.flows(config)
    assert "group_id=500" in machine.flows(config, "dump-groups")


def test_metrics_and_status_tell_the_same(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    status = json.loads(machine.command(config, "status", "--json"))
    assert [row["usable"] for row in status["uplinks"]] == [True] * 3
    assert "w0" in machine.command(config, "status")
    metrics = machine.run(
        "curl", "-s", "--unix-socket", str(config.socket), "http://localhost/metrics"
    )
    assert "ropewalk_sdn_connected 1" in metrics
    assert 'ropewalk_sdn_uplink_usable{uplink="w0"} 1' in metrics


def test_the_connection_can_be_by_tls_with_keys_of_both_ends(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    stop(pair.controllers["a"])
    keys = machine.directory
    for name in ("controller", "switch"):
        bicast.certificate(keys, name)
    tls = (
        f'[controller.tls]\nkey = "{keys}/controller.key"\ncertificate = "{keys}/controller.crt"\n'
        f'authority = "{keys}/all.crt"\nswitch_key = "{keys}/switch.key"\n'
        f'switch_certificate = "{keys}/switch.crt"\n'
    )
    both = (keys / "controller.crt").read_text() + (keys / "switch.crt").read_text()
    (keys / "all.crt").write_text(both)
    try:
        machine.command(config, "teardown")
        pair.configs["a"] = pair.configure("a", "copies = 2\n" + tls)
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
        path = pair.configure("b", "copies = 2").path
        path.write_text(
            path.read_text()
            .replace('"bbr"', '"other"')
            .replace("[application]\n", '[application]\nport = "w1"\n')
            .replace("state_dir =", "state_dir = '/nowhere' #")
        )
        with pytest.raises(SandboxError, match=r"choose another application\.port"):
            machine.run(sys.executable, "-m", "ropewalk.sdn", "--config", str(path), "setup",
                        "--plan")  # fmt: skip
        assert "w1" in machine.run("ip", "link", "show", "dev", "w1")
    finally:
        pair.configs["b"] = pair.configure("b", "copies = 2")
    with pytest.raises(SandboxError, match="exists and is not of this setup"):
        machine.command(pair.configs["b"], "setup", "--plan")


def test_setup_twice_is_no_error_and_teardown_restores_everything(pair: Pair) -> None:
    machine, config = pair.machines["a"], pair.configs["a"]
    assert "already" in machine.command(config, "setup")
    assert "10.0.0.1" not in machine.run("ip", "-4", "-br", "addr", "show", "dev", "w0")
    machine.command(config, "teardown")
    assert pair.settings() == pair.before
    assert config.bridge.name not in _bridges(machine)
    machine.command(config, "setup")
    wait(lambda: _answered(pair), "nothing passes after a new setup")
    assert pair.ping()[0] == 5


def test_new_flows_are_spread_by_weight_and_answered(bench: balance.Bench) -> None:
    tcp = bench.load("connect", balance.SERVER, str(balance.PORT), "200")
    assert tcp["by"] == {"10.1.0.2": 150, "10.2.0.2": 50}
    udp = bench.load("flows", balance.SERVER, str(balance.PORT), "400", "200")
    assert udp["lost"] == 0
    assert udp["by"]["10.1.0.2"] == pytest.approx(300, abs=12)
    run("ip", "netns", "exec", bench.host, "ping", "-c2", "-W2", balance.SERVER)


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
    row = balance.killed(bench, seconds=8, tries=1)
    assert row["steady"]["ended"] == "complete"
    assert row["steady"]["longest_s"] < 0.5
    assert row["new_while_away"] == 0
    assert row["new_after"] == 20
    assert row["flow_mods_after"] == 0


def test_a_dead_uplink_resets_tcp_moves_udp_and_gets_nothing_new(
    bench: balance.Bench,
) -> None:
    row = balance.dies(bench, seconds=6)
    assert row["new"]["by"] == {"10.2.0.2": 20}
    for connection in row["tcp"]:
        ended = "reset" if connection["address"] == "10.1.0.2" else "complete"
        assert connection["ended"] == ended
    assert any(connection["ended"] == "reset" for connection in row["tcp"])
    moved = [flow for flow in row["udp"] if len(flow["by"]) == 2]
    assert moved
    assert all(flow["ended"] == "complete" for flow in row["udp"])
    assert row["again"] == {"10.1.0.2": 30, "10.2.0.2": 10}


def test_the_switch_decides_alone_also_without_a_controller(bench: balance.Bench) -> None:
    bench.restart("switch")
    stop(bench.controller)
    row = bench.load("connect", balance.SERVER, str(balance.PORT), "100")
    assert row["connected"] == 100
    assert len(row["by"]) == 2


def _used(pair: Pair, name: str) -> list[bool]:
    """Whether each end uses a path."""
    return [
        bool(row["usable"])
        for end in ENDS
        for row in ask(pair.configs[end].socket)["uplinks"]
        if row["name"] == name
    ]


def _answered(pair: Pair) -> bool:
    return pair.ping(count=1)[0] == 1


def _bridges(machine: Machine) -> str:
    return run("ovs-vsctl", f"--db={machine.database}", "list-br")
