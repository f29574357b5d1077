"""Roaming on real Open vSwitch: eleven bridges in a namespace; needs root."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ovs_testbed.hostapd import Hostapd
from ovs_testbed.machine import Sandbox, inside, run, stop, wait
from ovs_testbed.roam import LOAD, MAC, NOTICES_PORT, Bench
from ropewalk.lab.ovs import roam
from ropewalk.plan import Link, Move, OvsRoam, Plan, Tcp
from ropewalk.plan import Path as PlanPath
from ropewalk.sdn.roam.events import Notice

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root"),
]

FLOOD_PER_S, FLOOD_S = 20_000, 5
HANDOVER_S_MAX = 1.0
MEMORY_KIB_MAX = 64 << 10
COUNT_S, QUIET_S, SILENT_S = 0.6, 2.0, 4.5
"""Of a controller that is in more of a hurry than people are."""
HURRIED = f"""\
import sys
from ropewalk.sdn.cli import main
from ropewalk.sdn.roam import silence
silence.COUNT_S, silence.QUIET_S, silence.SILENT_S = {COUNT_S}, {QUIET_S}, {SILENT_S}
sys.exit(main(sys.argv[1:]))
"""
SAYS = """\
import socket, sys
from ropewalk.sdn.roam import frames
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
    raw.bind((sys.argv[1], 0))
    for mac in sys.argv[2:]:
        raw.send(frames.xid(mac))
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Sandbox("ropewalk-ovs-test-roam-") as sandbox:
        bench = Bench(sandbox, None)
        try:
            yield bench
        finally:
            bench.close()


def test_download_survives_a_move_with_segments_that_died(bench: Bench) -> None:
    carrier = OvsRoam("replay", 3, (Move(1.0, notice_ms=60),))
    link = Link(rate_mbit=20, delay_ms=0)
    plan = Plan(
        "roam", roam.duration_s(link, carrier), (PlanPath("link", link),), carrier, (Tcp(),)
    )
    report = bench.run(plan)
    (move,) = report.handovers
    assert (report.broken, report.values[roam.LOST]) == (0, 0)
    assert report.values["released (counter)"] > 0
    assert move.rerouted_ms is not None and move.receiver_idle_ms is not None
    assert move.receiver_idle_ms < 500, "plain TCP waits for its next timeout"
    assert "faults (counter)" not in report.values
    assert "refused_messages (counter)" not in report.values


def test_a_station_keeps_address_and_router_at_an_access_point_of_another_subnet(
    bench: Bench,
) -> None:
    near, other, far = (bench.hosts[hops] for hops in (3, 5, 7))
    pair = ["type", "veth", "peer", "name", "between", "netns", far]
    run("ip", "-n", near, "link", "add", "between", *pair)
    try:
        for namespace, words in (
            (near, "addr add 172.16.0.1/30 dev between"),
            (near, "link set between up"),
            (near, "route add 10.9.0.0/24 via 172.16.0.2"),
            (far, "addr add 172.16.0.2/30 dev between"),
            (far, "link set between up"),
            # Not a neighbour of the station: what is for it goes through its own router.
            (far, "addr replace 10.9.0.7/24 dev eth0"),
            (far, "addr del 10.0.0.7/24 dev eth0"),
            (far, "route add 10.0.0.0/24 via 172.16.0.1"),
            (other, "addr add 10.9.0.5/24 dev eth0"),
            (other, "route add 10.0.0.100/32 via 10.9.0.7 src 10.9.0.5"),
            (bench.station, "route add default via 10.0.0.3"),
        ):
            run("ip", "-n", namespace, *words.split())
        for namespace in (near, far):
            inside(namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        link = Link(rate_mbit=20, delay_ms=0)
        carrier = OvsRoam("replay", 5, (Move(1.0, notice_ms=60),))
        seconds = roam.duration_s(link, carrier)
        plan = Plan("roam", seconds, (PlanPath("link", link),), carrier, (Tcp(),))
        before = _through(near)
        report = bench.run(plan)
        (move,) = report.handovers
        assert (report.broken, report.values[roam.LOST]) == (0, 0)
        assert bench.where() == "ap2"
        assert report.values["released (counter)"] > 0
        assert move.receiver_idle_ms is not None and move.receiver_idle_ms < 500
        assert _through(near) - before > 1_000_000, "it went another way"
    finally:
        run("ip", "-n", near, "link", "del", "between")
        run("ip", "-n", far, "addr", "replace", "10.0.0.7/24", "dev", "eth0")
        run("ip", "-n", far, "addr", "del", "10.9.0.7/24", "dev", "eth0")
        run("ip", "-n", other, "route", "flush", "10.0.0.100/32")
        run("ip", "-n", other, "addr", "flush", "to", "10.9.0.0/24")
        run("ip", "-n", bench.station, "route", "flush", "default")


def _through(router: str) -> int:
    """Bytes that a router has had from the other one."""
    shown = json.loads(run("ip", "-n", router, "-j", "-s", "link", "show", "dev", "between"))
    return int(shown[0]["stats64"]["rx"]["bytes"])


def test_switches_go_on_without_a_controller_and_a_new_one_knows_the_stations(
    bench: Bench,
) -> None:
    bench.control("replay")
    bench.place(1)
    host = ["ip", "netns", "exec", bench.hosts[3], "ping", "-c", "1", "-W", "2", "10.0.0.100"]
    run(*host)
    assert bench.controller
    bench.controller.send_signal(signal.SIGKILL)
    bench.controller.wait()
    run(*host)
    at, bench.at = bench.at, 0
    bench.control("replay")
    bench.at = at
    assert bench.where() == "ap1"
    run(*host)
    assert bench.report()["counters"].get("faults", 0) == 0


def test_what_hostapd_says_moves_the_station(bench: Bench) -> None:
    bench.control("replay")
    hostapds, agents = {}, []
    for number in (1, 2):
        path = bench.sandbox.directory / f"hostapd{number}"
        hostapds[number] = Hostapd(path)
        agents.append(
            bench.sandbox.start(
                *(bench.net.namespace, sys.executable, "-m", "ropewalk.sdn", "ap-agent"),
                *("--hostapd", str(path), "--controller", f"127.0.0.1:{NOTICES_PORT}"),
                *("--switch", f"ap{number}", "--port", f"ap{number}-air"),
                log="agents.log",
            )
        )
    try:
        wait(lambda: all(h.attached for h in hostapds.values()), "the agents did not attach")
        hostapds[1].say(f"<3>AP-STA-CONNECTED {MAC}")
        bench.seen(1)
        hostapds[2].say(f"<3>AP-STA-CONNECTED {MAC}")
        bench.seen(2)
        before = bench.report()["counters"]
        assert before["left_by_joining"] >= 1
        hostapds[1].say(f"<3>AP-STA-DISCONNECTED {MAC}")
        stale = before.get("stale_events", 0)
        wait(
            lambda: bench.report()["counters"].get("stale_events", 0) == stale + 1,
            "the late event was not dropped",
        )
        assert bench.where() == "ap2"
        hostapds[2].say(f"<3>AP-STA-DISCONNECTED {MAC}")
        wait(lambda: bench.where() is None, "the station did not leave")
    finally:
        for agent in agents:
            stop(agent)
        for hostapd in hostapds.values():
            hostapd.close()


def test_flood_of_unknown_senders_delays_no_handover_and_fills_no_memory(bench: Bench) -> None:
    bench.control("replay")
    bench.place(1)
    assert bench.controller
    before = _memory_kib(bench.controller.pid)
    run("ip", "-n", bench.station, "link", "set", "wl3", "up")
    flood = subprocess.Popen(
        [
            *("ip", "netns", "exec", bench.station, sys.executable),
            *(LOAD, "flood", "wl3"),
            *(str(FLOOD_PER_S), str(FLOOD_S)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(FLOOD_S / 3)
        bench.air("leave", 1)
        times = [bench.air("join", 2)]
        bench.at = 2
        wait(lambda: _confirmed_s(bench, times[0]) is not None, "not confirmed at ap2")
        # Where the flood comes in, a single frame may be lost before the switch has read it; the
        # access point's own notice is not.
        times.append(time.monotonic())
        bench.notice(Notice("ap3", "ap3-air", MAC, True))
        wait(lambda: _confirmed_s(bench, times[1]) is not None, "not confirmed at ap3")
        confirmed = [_confirmed_s(bench, joined_s) for joined_s in times]
        sent = json.loads(flood.communicate(timeout=30)[0])
    finally:
        stop(flood)
    assert sent["per_s"] > FLOOD_PER_S / 4, "the flood was none"
    for joined_s, confirmed_s in zip(times, confirmed, strict=True):
        assert confirmed_s is not None and confirmed_s - joined_s < HANDOVER_S_MAX
    assert _memory_kib(bench.controller.pid) - before < MEMORY_KIB_MAX
    counters = bench.report()["counters"]
    assert counters["packets_in"] < sent["sent"] / 4, "the meter let it through"


def _confirmed_s(bench: Bench, since_s: float) -> float | None:
    """When the ways of the station's first arrival since then were there."""
    for row in bench.report()["handovers"]:
        if row["mac"] == MAC and row["joined_s"] > since_s - 0.001:
            return None if row["confirmed_s"] is None else float(row["confirmed_s"])
    return None


def _memory_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


def test_switch_tells_who_is_silent_and_drops_nothing_for_that(bench: Bench) -> None:
    bench.control("replay")
    assert bench.controller
    stop(bench.controller)
    bench.config.write_text(bench.config.read_text() + "[bounds]\nport_stations = 4\n")
    arguments = ["--config", str(bench.config), "run"]
    bench.controller = bench.sandbox.start(
        bench.net.namespace, sys.executable, "-c", HURRIED, *arguments, log="controller.log"
    )
    wait(lambda: all(s["connected"] for s in bench.report()["switches"]), "no switches")
    bench.place(1)
    made_up = [f"06:00:00:00:01:0{number}" for number in (1, 2, 3)]
    newcomer = "06:00:00:00:02:01"
    ping = bench.sandbox.start(
        bench.hosts[3], "ping", "-i", "0.02", "-w", "600", "10.0.0.100", quiet=False
    )
    try:
        time.sleep(3 * COUNT_S)
        _say(bench, *made_up)
        wait(lambda: set(made_up) <= _known(bench), "the made-up senders were not learnt")
        # The frame that showed a sender does not count as one it said later.
        assert {_said(bench, mac) for mac in made_up} == {0}
        _say(bench, newcomer)
        wait(lambda: bench.report()["counters"].get("stations_refused", 0), "nobody was refused")

        def in_now() -> bool:
            _say(bench, newcomer)
            return newcomer in _known(bench)

        wait(in_now, "silent senders keep a newcomer out")
        assert MAC in _known(bench)
        wait(lambda: not _known(bench) & {*made_up, newcomer}, "the silent were not forgotten")
        wait(lambda: max(_said(bench, mac) for mac in made_up) < 0, "their flows have stayed")
        assert MAC in _known(bench)
    finally:
        ping.send_signal(signal.SIGINT)
        text, _ = ping.communicate(timeout=10)
    found = re.search(rb"(\d+) packets transmitted, (\d+) received", text or b"")
    assert found and int(found[1]) > 200
    # The last one may still be under way.
    assert int(found[1]) - int(found[2]) <= 1
    counters = bench.report()["counters"]
    assert (counters["faults"], counters["refused_messages"]) == (0, 0)


def _say(bench: Bench, *stations: str) -> None:
    """Senders at the first access point say one thing."""
    run("ip", "netns", "exec", bench.station, sys.executable, "-c", SAYS, "wl1", *stations)


def _known(bench: Bench) -> set[str]:
    return {station["mac"] for station in bench.report()["stations"]}


def _said(bench: Bench, mac: str) -> int:
    """What a sender's flow at the first access point has counted; -1 without one."""
    bridge = f"unix:{bench.net.directory}/ap1.mgmt"
    flows = f"table=0,in_port=ap1-air,dl_src={mac}"
    words = ["ovs-ofctl", "-O", "OpenFlow13", "--names", "dump-flows", bridge, flows]
    found = re.search(r"n_packets=(\d+)", bench.net.run(*words))
    return int(found[1]) if found else -1


def test_teardown_leaves_nothing(bench: Bench) -> None:
    if bench.controller:
        stop(bench.controller)
        bench.controller = None
    bench.command("teardown")
    bench.net.run("ethtool", "-K", "s1-s4", "gro", "on")
    bench.command("setup")
    assert "generic-receive-offload: off" in bench.net.run("ethtool", "-k", "s1-s4")
    bench.command("teardown")
    assert run("ovs-vsctl", f"--db={bench.net.database}", "list-br").split() == []
    assert "generic-receive-offload: on" in bench.net.run("ethtool", "-k", "s1-s4")
    assert bench.command("teardown").strip() == "nothing is set up"
