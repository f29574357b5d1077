"""Experiments on Open vSwitch: what they run, how they judge it, and the lab around them."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import fields, replace
from pathlib import Path
from typing import ClassVar

import pytest

from ovs_testbed import machine, openvpn, reports, roam_results
from ovs_testbed.machine import SandboxError
from ropewalk.lab.cell import Cell, Outcome, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.cli import main
from ropewalk.lab.experiments import (
    EXPERIMENTS,
    ON_SWITCHES,
    balance_ovs,
    bicast_ovs,
    roam_cases,
    roam_ovs,
)
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.ovs import balance, roam
from ropewalk.lab.ovs.bicast import BYTES, PACKETS, PROCESSOR
from ropewalk.lab.runner import STOPPED, UnavailableError, leftovers, ovs
from ropewalk.lab.session import runs_alone
from ropewalk.plan import Move, OvsBalance, OvsBicast, OvsRoam, Plan
from ropewalk.report import Distribution, HandoverReport, Report

GRID_S_MAX = 60 * 60
QUICK_S_MAX = 3 * 60
SET_UP_S = 2.0
"""Of a run; networks and controllers come on top once for each kind and scheme."""


def test_quick_cells_are_few_and_every_name_is_its_own() -> None:
    for name in ON_SWITCHES:
        full, quick = (EXPERIMENTS[name].cells(Options(mode)) for mode in ("full", "quick"))
        assert len({cell.label for cell in full}) == len(full)
        assert len({cell.label for cell in quick}) == len(quick) < len(full)
        assert {cell.runner for cell in full} == {"ovs"}
        for cell in full:
            kind = f"ovs-{name.removesuffix('-ovs')}"
            assert tomllib.loads(cell.plan.to_toml())["carrier"]["kind"] == kind
        assert EXPERIMENTS[name].cells(Options("full", runners=("kernel",))) == []


def test_the_whole_grid_of_moves_is_done_within_an_hour_and_a_quick_look_in_three() -> None:
    for mode, most in (("full", GRID_S_MAX), ("quick", QUICK_S_MAX)):
        cells = roam_ovs.cells(Options(mode, seeds=1))  # type: ignore[arg-type]
        assert sum(cell.plan.duration_s + SET_UP_S for cell in cells) < most


def test_replay_is_run_in_every_setting_with_prompt_and_late_notices() -> None:
    carriers = [
        (cell.key[2:], cell.plan.carrier)
        for cell in roam_ovs.cells(Options("full", seeds=1))
        if cell.key[:2] == ("grid", "replay")
    ]
    assert len(carriers) == len(dict(carriers)) == 3 * 4 * 3
    for _, carrier in carriers:
        assert isinstance(carrier, OvsRoam)
        assert {move.notice_ms for move in carrier.moves} == {0.0, roam_cases.LATE_MS}
        assert [move.gap_s for move in carrier.moves] == [1.5, 2.0, 3.5, 6.0]


def _outcome(cell: Cell, report: Report) -> Outcome:
    return Outcome(cell, "ok", report, attempts=1)


def _by_name(rows: list[Claim]) -> dict[str, Claim]:
    return {row.name: row for row in rows}


def _bicast(key: tuple[str, ...], seed: int, mbit: float, longest_ms: float) -> Outcome:
    cell = next(
        cell
        for cell in bicast_ovs.cells(Options("full", seeds=3))
        if cell.key == key and cell.seed == seed
    )
    traffic = (reports.download(mbit, 0), reports.pings(3, [longest_ms / 2, longest_ms]))
    values = {PACKETS: 2.0, BYTES: 1.9, PROCESSOR: 0.1}
    return _outcome(cell, reports.report(cell.plan, traffic, values=values))


def test_copies_are_compared_with_unicast_of_the_same_seed() -> None:
    outcomes = (
        _bicast(("sweep", "5/5", "unicast"), 1, 2.0, 2000),
        _bicast(("sweep", "5/5", "unicast"), 2, 1.0, 4000),
        _bicast(("sweep", "5/5", "bi-bicast"), 1, 8.0, 1000),
        _bicast(("sweep", "5/5", "bi-bicast"), 2, 3.0, 1000),
        _bicast(("sweep", "5/5", "bi-bicast"), 3, 99.0, 1),
    )
    rows = _by_name(bicast_ovs.claims(Results(outcomes)))
    label = "5/5 % lost: bi-bicast"
    gain = rows[f"{label}, throughput by unicast's"]
    assert gain.measured == pytest.approx((8 + 3) / (2 + 1))
    # The paper's "about 3" is between 2.5 and 3.5.
    assert (gain.mean_meets, gain.paper, gain.relation) == (False, 3.0, "within")
    longest = rows[f"{label}, longest round trip by unicast's"]
    assert longest.measured == pytest.approx((1000 + 1000) / (2000 + 4000))
    assert longest.mean_meets is False
    assert longest.paper == pytest.approx(0.244, abs=0.001)
    assert rows[f"{label}, {PACKETS}"].measured == 2.0
    own = rows["5/5 % lost: unicast, longest round trip"]
    assert (own.measured, own.paper, own.target) == (3000, 10046, None)


def test_copies_from_the_client_are_judged_where_the_paper_judges_them() -> None:
    outcomes = tuple(
        _bicast(("sweep", loss, policy), 1, mbit, longest_ms)
        for loss in ("5/0", "5/5")
        for policy, mbit, longest_ms in (("unicast", 2.0, 1000), ("c-bicast", 2.1, 700))
    )
    rows = _by_name(bicast_ovs.claims(Results(outcomes)))
    label = "5/0 % lost: c-bicast"
    gain = rows[f"{label}, throughput by unicast's, a gain"]
    assert (gain.paper, gain.target, gain.mean_meets) == (1.08, 1.0, True)
    for what in ("mean", "longest"):
        row = rows[f"{label}, {what} round trip by unicast's"]
        assert row.target == row.paper == pytest.approx(0.781, abs=0.001)
    assert rows["5/5 % lost: c-bicast, longest round trip by unicast's"].target == 0.9
    assert rows["5/5 % lost: c-bicast, throughput by unicast's, a gain"].target is None


def test_absolute_round_trips_have_targets_only_with_the_long_buffer() -> None:
    outcomes = tuple(
        _bicast((arm, "5/10", "unicast"), 1, 1.3, longest_ms)
        for arm, longest_ms in (("sweep", 4000), ("long", 15000))
    )
    rows = _by_name(bicast_ovs.claims(Results(outcomes)))
    ours = rows["5/10 % lost: unicast, longest round trip"]
    assert (ours.paper, ours.target) == (19591, None)
    long = rows["long buffers, 5/10 % lost: unicast, longest round trip"]
    assert (long.target, long.mean_meets) == (19591, True)
    carrier = outcomes[1].cell.plan.carrier
    assert isinstance(carrier, OvsBicast)
    assert (carrier.send_buffer_bytes, carrier.ahead_s) == (4_194_304, 15.0)


def test_one_unknown_of_the_paper_is_switched_at_a_time() -> None:
    def differences(one: bicast_ovs.Setting, other: bicast_ovs.Setting) -> set[str]:
        names = {field.name for field in fields(OvsBicast)}
        found = {
            name for name in names if getattr(one.carrier, name) != getattr(other.carrier, name)
        }
        beside = {field.name for field in fields(one)} - {"carrier"}
        return found | {name for name in beside if getattr(one, name) != getattr(other, name)}

    arms = bicast_ovs.BUFFERS
    for name, setting in arms.items():
        base = arms["long" if name.startswith("long") else "ours"]
        # Thirty pings take longer when they are further apart.
        assert len(differences(setting, base) - {"duration_s"}) == (setting is not base), name


def test_selective_copies_are_judged_by_what_they_cost() -> None:
    outcomes = tuple(
        _bicast(("selective", loss, policy), 1, 2.0, 1000)
        for loss in ("0/0", "5/5")
        for policy in ("unicast", "bi-bicast", "bi-bicast-by-loss")
    )
    rows = _by_name(bicast_ovs.claims(Results(outcomes)))
    cost = {
        loss: rows[f"selective, {loss} % lost: bi-bicast-by-loss, {BYTES}"]
        for loss in ("0/0", "5/5")
    }
    assert (cost["0/0"].measured, cost["0/0"].mean_meets) == (1.9, False)
    assert cost["5/5"].target is None
    label = "selective, 5/5 % lost: bi-bicast-by-loss"
    assert rows[f"{label}, throughput by that of copies of everything"].mean_meets is True


def test_copies_over_unequal_links_are_compared_with_the_better_link_alone() -> None:
    far = "second has 40 ms"
    outcomes = (
        _bicast(("unequal", far, "unicast"), 1, 2.0, 1000),
        _bicast(("unequal", far, "second alone"), 1, 0.5, 1000),
        _bicast(("unequal", far, "bi-bicast"), 1, 5.0, 500),
    )
    first, alone, both = (outcome.cell.plan.path for outcome in outcomes)
    assert first == both
    assert (first[0].both.delay_ms, first[1].both.delay_ms) == (5, 40)
    assert alone[0].both.delay_ms == 40, "unicast takes the first link"
    rows = _by_name(bicast_ovs.claims(Results(outcomes)))
    label = f"unequal links, {far}: bi-bicast, throughput by the better link's"
    assert rows[label].measured == pytest.approx(2.5)


def test_what_waits_in_a_socket_is_read_of_every_connection() -> None:
    listening = "ESTAB 0 0 10.99.0.2:1194 10.99.0.1:40916\n"
    assert openvpn.unsent("") == []
    assert openvpn.unsent(f"{listening}\t cubic cwnd:3 unacked:3 notsent:23154 minrtt:10") == [
        23154
    ]
    assert openvpn.unsent(f"{listening}\t cubic cwnd:3 minrtt:10") == [0]


def test_openvpn_over_udp_and_over_tcp_have_the_same_links() -> None:
    cells = EXPERIMENTS["openvpn"].cells(Options("full", seeds=1))
    assert {cell.runner for cell in cells} == {"kernel", "ovs"}
    paths = {cell.key[0]: cell.plan.path for cell in cells}
    assert all(cell.plan.path == paths[cell.key[0]] for cell in cells)
    outcomes = tuple(
        _outcome(cell, reports.report(cell.plan, (reports.download(mbit, 0),)))
        for cell in cells
        for mbit in (4.0 if cell.key[1] == "openvpn-tcp" else 2.0,)
    )
    rows = _by_name(EXPERIMENTS["openvpn"].claims(Results(outcomes)))
    row = rows["5 % lost (Open vSwitch): TCP ÷ UDP"]
    assert (row.measured, row.target) == (2.0, 1.0)
    assert rows["0 % lost (kernel): TCP ÷ UDP"].target is None


def test_the_native_twin_has_the_links_of_the_runs_on_switches() -> None:
    switched = {
        cell.key[1]: cell.plan
        for cell in bicast_ovs.cells(Options("full", seeds=1))
        if cell.key[::2] == ("sweep", "unicast")
    }
    for cell in EXPERIMENTS["bicast-native"].cells(Options("full", seeds=1)):
        same = switched[cell.key[0]]
        assert (cell.plan.path, cell.plan.duration_s) == (same.path, same.duration_s)
        assert cell.plan.traffic == same.traffic


def _balance(case: str, values: dict[str, float], decide: str = "controller") -> Outcome:
    cell = next(
        cell for cell in balance_ovs.cells(Options("quick")) if cell.key[:2] == (case, decide)
    )
    return _outcome(cell, reports.report(cell.plan, values=values))


def test_the_controllers_choice_has_targets_and_the_switchs_has_none() -> None:
    slow = {balance.ADDED: 6.0, balance.ADDED_99: 12.0, balance.FAILED: 0.0}
    shares = {balance.SHARE: 0.779, balance.FAILED: 0.0}
    rows = _by_name(
        balance_ovs.claims(
            Results(
                (
                    _balance("set-up", slow),
                    _balance("set-up", slow, "switch"),
                    _balance("shares", shares),
                    _balance("capacity", {f"{balance.CAPACITY}, u0": 0.8}),
                    _balance("idle-capacity", {f"{balance.CAPACITY}, u0": 0.9}, "train"),
                    _balance("idle-capacity", {f"{balance.CAPACITY}, u1": 1.2}, "vps"),
                )
            )
        )
    )
    assert rows[f"set-up, controller, {balance.ADDED}"].mean_meets is False
    assert rows[f"set-up, controller, {balance.ADDED_99}"].mean_meets is True
    assert rows[f"set-up, switch, {balance.ADDED}"].verdict == "no target"
    assert rows[f"shares, controller, {balance.SHARE}"].mean_meets is True
    found = f"capacity, controller, 10 Mbit/s, {balance.CAPACITY}"
    assert rows[f"{found}, u0"].mean_meets is False
    assert rows[f"{found}, u1"].measured is None, "what has a target and no value is named"
    idle = f"10 Mbit/s, {balance.CAPACITY}"
    assert rows[f"idle-capacity, train, {idle}, u0"].mean_meets is True
    assert rows[f"idle-capacity, vps, {idle}, u0"].measured is None
    assert rows[f"idle-capacity, vps, {idle}, u1"].mean_meets is False


def test_idle_uplinks_are_probed_in_both_ways_at_all_rates() -> None:
    cells = balance_ovs.cells(Options("full", seeds=1))
    probed = [(cell.key[1:], cell.plan) for cell in cells if cell.key[0] == "idle-capacity"]
    assert len(probed) == 2 * len(balance_ovs.RATES_MBIT)
    for (probe, rate), plan in probed:
        assert isinstance(plan.carrier, OvsBalance)
        assert (plan.carrier.probe, plan.carrier.weights) == (probe, ())
        assert {f"{path.both.rate_mbit:g}_mbit" for path in plan.path} == {rate}


def _moved(gap_s: float, sender_ms: float | None, rerouted_ms: float = 10.0) -> HandoverReport:
    return HandoverReport(gap_s, 0.0, 120.0, rerouted_ms, sender_ms, 5.0, 30, 30, 2, 0.0)


def test_a_move_after_which_nothing_came_counts_with_the_time_it_had() -> None:
    cell = next(
        cell
        for cell in roam_ovs.cells(Options("full", seeds=1))
        if cell.key == ("grid", "replay", "new-reno", "hops_3", "delay_20")
    )
    moves = (_moved(1.5, 130.0), replace(_moved(2.0, None, 60.0), had_ms=4000.0))
    report = reports.report(cell.plan, (reports.download(1.0, 0, broken=True),), moves)
    rows = _by_name(roam_ovs.claims(Results((_outcome(cell, report),))))
    label = "grid, replay, new-reno, hops 3, delay 20"
    idle = rows[f"{label}: idle beyond a round trip, worst move"]
    assert idle.measured == 4000 - 120
    assert idle.mean_meets is False
    assert rows[f"{label}: new ways confirmed after, worst move"].mean_meets is False
    assert rows["replay: connections that broke or hung"].mean_meets is False


def test_moves_are_read_from_what_both_ends_saw() -> None:
    moved = roam_results.Moved(Move(1.0), 0.1, 0.1, 10.0, 11.0, 0.02, 12.0)
    # Time, segments, acknowledged bytes, window, retransmitted segments.
    samples = [
        [9.9, 5, 500, 20, 0],
        [10.5, 6, 500, 1, 1],
        [11.05, 7, 900, 10, 1],
        [11.2, 9, 999, 20, 1],
    ]
    sent = {"samples": samples, "bytes": 999, "sha256": "a", "ended": "complete", "ended_s": 13.0}
    received = {**sent, "arrivals": [[9.9, 500], [11.03, 999]]}
    (row,) = roam_results.handovers([moved], [11.012], sent, received)
    assert (row.rerouted_ms, row.sender_idle_ms, row.receiver_idle_ms) == (12.0, 50.0, 30.0)
    assert (row.window_before, row.window_after, row.retransmits) == (20, 20, 1)
    assert roam_results.values(sent, received) == {roam.LOST: 0.0}
    changed = {**received, "sha256": "b"}
    assert roam_results.values(sent, changed) == {roam.LOST: 999.0}
    assert roam_results.download(sent, changed).flows[0].broken
    assert roam_results.values({**sent, "ended": "hung"}, received)["hung (connections)"] == 1.0


def test_a_connection_that_never_comes_back_has_all_the_time_until_its_sender_gave_up() -> None:
    moves = [
        roam_results.Moved(Move(1.0), 0.1, 0.1, 10.0 + at, 11.0 + at, 0.0, 14.0 + at)
        for at in (0.0, 5.0)
    ]
    samples = [[9.9, 5, 500, 20, 0], [11.05, 7, 900, 10, 1], [16.1, 9, 1200, 10, 1]]
    sent = {"samples": samples, "bytes": 5000, "sha256": "a", "ended": "hung", "ended_s": 36.0}
    # The second move lets a few bytes through, and then nothing more.
    arrivals = [[9.9, 500], [11.03, 900], [14.9, 1100], [16.02, 1200]]
    received = {"arrivals": arrivals, "bytes": 1200, "sha256": "b", "ended": "hung"}
    first, second = roam_results.handovers(moves, [11.01, 16.01], sent, received)
    assert (first.receiver_idle_ms, first.had_ms) == (30.0, 4000.0)
    assert (second.receiver_idle_ms, second.had_ms) == (None, 20_000.0)
    (flow,) = roam_results.download(sent, received).flows
    assert flow.broken
    # Over all the time that the sender tried: not at the rate it had before.
    assert flow.goodput_mbit == pytest.approx(8e-6 * 1200 / (36.0 - 9.9))


@pytest.mark.parametrize("scheme", ["zwa", "zwa-adaptive"])
def test_a_published_scheme_that_hangs_is_never_better_than_plain_tcp(scheme: str) -> None:
    outcomes = []
    for name, idle_ms, had_ms in (("bare", 1500.0, 5000.0), (scheme, None, 22_000.0)):
        for part, gap in (("grid", 3.5), ("paper", 3.0)):
            cell = next(
                cell
                for cell in roam_ovs.cells(Options("full", seeds=1))
                if cell.key[:3] == (part, name, "new-reno")
                and (part == "grid" or cell.key[-1] == "gap_3")
            )
            move = replace(_moved(gap, idle_ms), had_ms=had_ms, retransmits=2)
            broken = idle_ms is None
            download = reports.download(0.2 if broken else 2.0, 2, broken=broken)
            outcomes.append(_outcome(cell, reports.report(cell.plan, (download,), (move,))))
    rows = _by_name(roam_ovs.claims(Results(tuple(outcomes))))
    idle = rows[f"{scheme}'s idle by bare's, 2 hops, 3.5 s"]
    assert (idle.mean_meets, idle.paper) == (False, None)
    assert idle.measured == pytest.approx(22_000 / 1500)
    assert rows[f"{scheme}'s throughput by bare's, away for 3 s"].mean_meets is False
    again = rows[f"{scheme}'s retransmissions by bare's, away for 3 s"]
    assert (again.measured, again.note) == (None, "broken connections left out: 1")
    assert rows[f"{scheme}: connections that broke or hung"].measured == 1.0
    plain = rows["paper, bare, new-reno, hops 2, delay 80, gap 3: interrupted for"]
    assert plain.measured == pytest.approx(4.5)


def test_quantiles_are_values_that_occur() -> None:
    found = Distribution.of([3.0, 1.0, 2.0])
    assert found == Distribution(3, 2.0, 1.0, 2.0, 3.0, 3.0, 3.0)
    assert Distribution.of([]) is None


class FakeBench:
    """Gives every plan the same figures; what is named in `broken` fails."""

    broken = ""
    made: ClassVar[list[FakeBench]] = []
    meanwhile: ClassVar[list[Callable[[], None]]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.closed = False

    def run(self, plan: Plan) -> Report:
        assert not self.closed
        for act in self.meanwhile:
            act()
        if self.broken and self.broken in plan.name:
            raise SandboxError("the link fell over")
        carrier = plan.carrier
        moves = carrier.moves if isinstance(carrier, OvsRoam) else ()
        handovers = tuple(replace(_moved(move.gap_s, 100.0)) for move in moves)
        return reports.report(plan, (reports.download(1.0, 0),), handovers)

    def close(self) -> None:
        self.closed = True


class FakeNetwork:
    """A kind of network that needs nothing."""

    needs = ()

    def opened(self, links: Path, number: int) -> AbstractContextManager[FakeBench]:
        return closing(FakeBench())


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> list[FakeBench]:
    """The runner with fakes in the place of networks."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(ovs.OvsRunner, "_links", lambda *_: Path())
    monkeypatch.setattr(ovs, "networks", lambda: {OvsRoam: FakeNetwork()})
    monkeypatch.setattr(FakeBench, "made", [])
    return FakeBench.made


def test_the_lab_runs_reports_and_resumes_them_on_one_network(
    benches: list[FakeBench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["run", "roam-ovs", "--quick", "--out", str(tmp_path), "--programs", str(tmp_path)]
    run += ["--jobs", "1"]
    monkeypatch.setattr(FakeBench, "broken", "paper/zwa")
    assert main(run) == 1
    # A network on which something failed is not used again: two attempts, then what was left.
    assert len(benches) == 3
    assert all(bench.closed for bench in benches)
    monkeypatch.setattr(FakeBench, "broken", "")
    assert main(run) == 0
    assert len(benches) == 4
    value = json.loads((tmp_path / "result.json").read_text())
    assert value["cells"]["ok"] == len(roam_ovs.cells(Options("quick")))
    page = (tmp_path / "report.html").read_text()
    assert "sender idle 100" in page
    assert "idle beyond a round trip, worst move" in page
    assert main(["report", str(tmp_path)]) == 0


def test_runs_go_together_on_networks_of_their_own(
    benches: list[FakeBench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3)
    first = threading.local()

    def wait() -> None:
        # The first run of each of three threads waits until all three run.
        if not getattr(first, "over", False):
            first.over = True
            together.wait(10)

    monkeypatch.setattr(FakeBench, "meanwhile", [wait])
    run = ["run", "roam-ovs", "--quick", "--out", str(tmp_path), "--programs", str(tmp_path)]
    assert main([*run, "--jobs", "3"]) == 0
    assert len(benches) == 3
    assert all(bench.closed for bench in benches)


def test_who_gives_up_takes_every_network_down(benches: list[FakeBench]) -> None:
    cells = roam_ovs.cells(Options("quick"))
    runners = ovs.OvsRunners(None, 2)
    runners.run(cells[:1])
    runners.stop()
    assert [bench.closed for bench in benches] == [True]
    with pytest.raises(UnavailableError, match="stopped"):
        runners.run(cells[1:2])
    runners.close()
    assert not STOPPED.is_set()


def test_who_gives_up_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "MEASURING", tmp_path / "lock")
    stopped = threading.Event()
    monkeypatch.setattr(machine, "STOPPED", stopped)
    with (tmp_path / "lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.3, stopped.set).start()
        with pytest.raises(SandboxError, match="stopped before"):
            machine.Sandbox("ropewalk-ovs-test-wait-").__enter__()
    with pytest.raises(SandboxError, match="stopped"):
        machine.wait(lambda: False, "it does not come about")


def test_controllers_under_load_and_radios_run_alone() -> None:
    kinds = {
        name: {runs_alone(cell) for cell in EXPERIMENTS[name].cells(Options("full"))}
        for name in ("balance-ovs", "roam-wifi", "roam-ovs", "bicast-ovs")
    }
    assert kinds == {
        "balance-ovs": {True},
        "roam-wifi": {True},
        "roam-ovs": {False},
        "bicast-ovs": {False},
    }


def test_without_the_switch_every_cell_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ovs, "NEEDS", ("ovs-not-there",))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["run", "balance-ovs", "--out", str(tmp_path)]) == 1
    value = json.loads((tmp_path / "result.json").read_text())
    assert value["cells"]["skipped"] == len(balance_ovs.cells(Options("quick")))
    assert "not installed: ovs-not-there" in capsys.readouterr().out


PROJECT = """[project]
name = "{name}"
"""
LOADING = """\
import ropewalk
from ropewalk.lab.ovs import checkout
from ropewalk.lab.runner import UnavailableError
installed = ropewalk.__file__
try:
    print(checkout.load("networks").WHERE)
except UnavailableError as error:
    print(error)
import ropewalk.sdn.api
assert ropewalk.__file__ == installed
assert ropewalk.sdn.api.__file__.startswith(installed.removesuffix("__init__.py"))
"""


def _loaded(here: Path) -> str:
    """What a program that is started at a place finds of the testbed."""
    command = [sys.executable, "-I", "-c", LOADING]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a testbed, and with a package beside it that must not be taken."""
    root = tmp_path / "checkout"
    for name, text in (
        ("ovs_testbed/__init__.py", ""),
        ("ovs_testbed/networks.py", "from ropewalk.sdn import api\nWHERE = __file__\n"),
        ("ropewalk/__init__.py", "raise AssertionError('not the installed package')\n"),
    ):
        file = root / "python" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "pyproject.toml").write_text(PROJECT.format(name="ropewalk"))
    return root


def test_the_testbed_and_nothing_else_is_taken_from_the_checkout_around(checkout: Path) -> None:
    inner = checkout / "docs" / "deep"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("of another kind = [")
    wanted = str(checkout / "python/ovs_testbed/networks.py")
    assert (_loaded(checkout), _loaded(inner)) == (wanted, wanted)


def test_without_a_checkout_the_runner_says_that_one_is_needed(
    checkout: Path, tmp_path: Path
) -> None:
    outside = _loaded(tmp_path)
    assert "need a checkout of the repository" in outside
    assert f"{tmp_path} is in none; run from the checkout's root" in outside
    (checkout / "pyproject.toml").write_text(PROJECT.format(name="another"))
    assert "need a checkout" in _loaded(checkout)


def test_a_checkout_of_another_release_is_refused_with_a_remedy(checkout: Path) -> None:
    file = checkout / "python/ovs_testbed/networks.py"
    file.write_text("from ropewalk.sdn.api import what_is_not_there\n")
    assert "do not fit" in _loaded(checkout)
    assert "pip install '.[lab,sdn]'" in _loaded(checkout)
