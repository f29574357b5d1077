"""What each experiment runs and asks for."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.lab.cell import Cell, Mode, Outcome, Results
from ropewalk.lab.cli import JOBS
from ropewalk.lab.experiments import (
    EXPERIMENTS,
    failover,
    formulas,
    grid,
    htmt,
    htmt_cases,
    mqvpn,
    shared,
    tcpnc,
    tcpnc_cases,
    traces,
    validate,
)
from ropewalk.lab.experiments.measures import SCHEDULERS
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.provenance import Load
from ropewalk.lab.runner.kernel import KernelRunner
from ropewalk.lab.runner.process import Children
from ropewalk.lab.session import plan_cells
from ropewalk.lab.store import Session
from ropewalk.lab.trace import (
    Recordings,
    TraceError,
    TracePair,
    all_zero,
    discover,
    find,
    read,
    windows,
)
from ropewalk.plan import TUNNEL_OVERHEAD
from ropewalk.report import Report, ReportError, TrafficReport, parse


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[TracePair, ...]:
    """Both at zero from 4 to 6 s; and two recordings of opportunities with a gap of 1 s."""
    wifi = [9000] * 3 + [0] * 3 + [9000] * 24
    cellular = [9000] * 4 + [100] * 4 + [9000] * 22
    for name, rates in (("wifi", wifi), ("cellular", cellular)):
        lines = (f"{second},{rate}\n" for second, rate in enumerate(rates, 1))
        (tmp_path / f"7_1_{name}.csv").write_text("".join(lines))
    for name in ("x.down", "x.up", "y.down", "y.up"):
        times = [t for t in range(0, 20_000, 10) if not 5000 < t < 6000]
        (tmp_path / name).write_text("".join(f"{t}\n" for t in times))
    return tuple(discover(tmp_path))


@pytest.fixture
def recordings(pairs: tuple[TracePair, ...], tmp_path: Path) -> Recordings:
    """The same, which are also two networks recorded together."""
    found = find(tmp_path)
    assert found.pairs == pairs
    return found


def test_recordings_of_one_window_belong_together_and_a_dead_network_is_left_out(
    tmp_path: Path,
) -> None:
    for name, rates in {
        "9_sat": "9000,9000,9000,0",
        "9_lte": "9000,9000,0,0",
        "9_dead": "0,0,0,0",
        "10_lte": "9000,0,0,9000",
        "10_dsl": "0,0,9000,9000",
        "11_lte": "9000,9000,9000,9000",
    }.items():
        lines = (f"{second},{rate}\n" for second, rate in enumerate(rates.split(","), 1))
        (tmp_path / f"{name}.csv").write_text("".join(lines))
    nine, ten = windows(tmp_path)
    assert [name for name, _ in nine.networks] == ["lte", "sat"]
    assert [name for name, _ in ten.networks] == ["dsl", "lte"]
    assert all_zero([trace for _, trace in nine.networks], 0, 10) == 1
    assert all_zero([trace for _, trace in nine.networks], 3.5, 10) == 0.5
    assert all_zero([trace for _, trace in ten.networks], 0, 10) == 1
    assert nine.networks[1][1].mean_mbit == pytest.approx(3 * 9000 * 8e-6 / 4)
    find(tmp_path).need("radio", tmp_path)
    with pytest.raises(TraceError, match="put P_T_wifi"):
        find(tmp_path).need("traces", tmp_path)


def test_the_last_line_of_a_recording_lasts_as_long_as_the_one_before(tmp_path: Path) -> None:
    for text, seconds, zeros in (
        ("1,9000\n", 1.0, ()),
        ("1,9000\n3,9000\n8,0\n", 12.0, ((7.0, 12.0),)),
        ("0,9000\n0.5,0\n", 1.0, ((0.5, 1.0),)),
    ):
        file = tmp_path / "t.csv"
        file.write_text(text)
        trace = read(file)
        assert (trace.seconds, trace.zeros) == (seconds, zeros)


def reported(cell: Cell, goodput: float, ceiling: float, series: tuple[float, ...] = ()) -> Outcome:
    traffic = TrafficReport("tcp", goodput, series, 0.2, (), None, None, None, None)
    report = Report(
        cell.plan.name, cell.runner, cell.seed, 1.0, ceiling, (traffic,), (), None, None, None,
        0.0, (),
    )  # fmt: skip
    return Outcome(cell, "ok", report, attempts=1)


def test_a_kernel_run_that_the_host_disturbed_is_done_again_whatever_it_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = EXPERIMENTS["failover"].cells(Options("quick", runners=("kernel",)))[0]
    stolen = iter([0, 30, 30, 35, 35, 35])
    total = iter(range(0, 600, 100))
    monkeypatch.setattr(Load, "now", lambda: Load(0.0, 0, next(total), next(stolen)))
    goodput = iter([90.0, 10.0, 50.0])

    class Fake(KernelRunner):
        def _run(self, cell: Cell) -> Report:
            report = reported(cell, next(goodput), 100.0).report
            assert report is not None
            return report

    (report,) = Fake(Path("none"), Children(), repeats=2).run([cell])
    # The first lost 30 % of its time, the second 5, the third nothing.
    assert report.traffic[0].goodput_mbit == 50.0
    assert report.notes == ("run 3 times: the host took 30%, 5%, 0% of the processors, 0% here",)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
@pytest.mark.parametrize("mode", ["quick", "full"])
def test_cells_are_distinct_valid_and_always_the_same(
    name: str, mode: Mode, recordings: Recordings
) -> None:
    options = Options(mode, seeds=2, traces=recordings.pairs, windows=recordings.windows)
    cells = EXPERIMENTS[name].cells(options)
    assert cells == EXPERIMENTS[name].cells(options)
    labels = [cell.label for cell in cells]
    assert labels
    assert len(set(labels)) == len(labels)
    for cell in cells:
        plan = tomllib.loads(cell.plan.to_toml())
        assert cell.plan.warmup_s < cell.plan.duration_s
        assert 1 <= len(plan["path"]) <= 8
        assert not (cell.runner == "sim" and plan["carrier"]["kind"] == "peer")


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_claims_without_any_result_are_unmeasured_and_say_why(
    name: str, recordings: Recordings
) -> None:
    experiment = EXPERIMENTS[name]
    options = Options("quick", traces=recordings.pairs, windows=recordings.windows)
    cells = experiment.cells(options)
    results = Results(tuple(Outcome(cell, "failed", reason="it rained") for cell in cells))
    claims = experiment.claims(results)
    assert claims
    for row in claims:
        assert row.measured is None
        assert row.verdict == "no data"
        assert "it rained" in row.note


def test_every_compared_scheduler_is_in_the_registry() -> None:
    text = (Path(__file__).parents[2] / "crates/types/src/registry.rs").read_text()
    table = text.partition('SchedulerKind, "scheduler":')[2].partition("}")[0]
    known = re.findall(r'= \d+, "([a-z-]+)"', table)
    assert known
    assert set(SCHEDULERS) <= set(known)


def test_htmt_takes_half_of_the_round_trip_each_way() -> None:
    plan = htmt.plan(htmt.PAIRS[1], "auto", 70, 0)
    rates = [(path.both.rate_mbit, path.both.delay_ms) for path in plan.path]
    assert rates == [(16, 25), (8, 35)]
    assert all(path.both.queue_bytes == 128 * 1024 for path in plan.path)


def test_the_papers_tunnel_restores_no_order_and_drops_where_send_buffers_are_full() -> None:
    plan = htmt_cases.paper_plan(htmt_cases.TRIPLES[1], "otias", 70)
    assert [(p.both.rate_mbit, p.both.queue_packets) for p in plan.path] == [
        (16, 1000),
        (8, 1000),
        (8, 1000),
    ]
    carrier = tomllib.loads(plan.to_toml())["carrier"]
    assert carrier == {
        "kind": "tunnel",
        "scheduler": "otias",
        "congestion": "newreno",
        "protect_up": "none",
        "protect_down": "none",
        "order": "off",
        "send_buffer": 5,
    }


def test_each_switch_changes_one_thing_of_the_papers_tunnel() -> None:
    base = htmt_cases.paper_plan(htmt_cases.PAIRS[0], "afmt", 70)
    plans = {name: switch(base) for name, switch in htmt_cases.SWITCHES_BY_NAME.items()}
    assert len(set(map(str, [base, *plans.values()]))) == len(plans) + 1
    assert set(htmt_cases.SIMULATED_SWITCHES) <= plans.keys()


def test_the_two_readings_of_htmts_tunnel_differ_only_in_where_packets_wait() -> None:
    one, per_flow = htmt_cases.READINGS
    # What fills send buffers waits for no slot, so one run stands for both readings.
    assert set(one.schedulers) - set(per_flow.schedulers) == {"otias", "afmt", "round-robin"}
    for name in per_flow.schedulers:
        paper = tomllib.loads(htmt_cases.paper_plan(htmt_cases.PAIRS[1], name, 70).to_toml())
        ours = tomllib.loads(htmt_cases.per_flow_plan(htmt_cases.PAIRS[1], name, 70).to_toml())
        del paper["carrier"]["send_buffer"]
        assert paper == ours


def test_htmts_ratios_are_judged_within_each_reading_and_over_two_paths_only() -> None:
    rates = {"htmt-prototype": 18.0, "low-rtt": 18.0, "otias": 15.0}
    per_flow = {"htmt-prototype": 18.0, "low-rtt": 15.5}
    cells = htmt.cells(Options("full", seeds=3, runners=("sim",)))
    results = Results(
        tuple(
            reported(cell, (rates if arm == "paper" else per_flow)[scheduler], 22.0)
            for cell in cells
            for arm, paths, scheduler, *_ in [cell.key if len(cell.key) == 3 else ("", "", "")]
            if arm.startswith("paper") and paths.startswith("unequal")
            if scheduler in (rates if arm == "paper" else per_flow)
        )
    )
    rows = {row.name: row for row in htmt.claims(results)}
    ratio = "htmt-prototype ÷ low-rtt (simulator)"
    assert rows[f"paper's tunnel, unequal: {ratio}"].verdict == "not ok"
    judged = rows[f"paper's tunnel, a queue per flow, unequal: {ratio}"]
    assert (judged.verdict, judged.paper) == ("ok", 180 / 155)
    assert "a reading of ours" in judged.note
    beside = rows[f"paper's tunnel, a queue per flow, unequal-3: {ratio}"]
    assert (beside.verdict, beside.paper) == ("no target", 180 / 155)
    otias = rows["paper's tunnel, a queue per flow, unequal: htmt-prototype ÷ otias (simulator)"]
    assert otias.measured == pytest.approx(18 / 15)
    # Without a figure the paper's "noticeably better" is judged.
    assert (otias.relation, otias.target, otias.verdict) == (">=", 1.05, "ok")


def test_a_full_run_of_htmt_on_the_kernel_ends_within_three_hours() -> None:
    cells = htmt.cells(Options("full", runners=("kernel",)))
    assert sum(cell.plan.duration_s for cell in cells) / JOBS < 3 * 3600
    seeds = Counter(cell.key for cell in cells)
    assert {seeds["paper", pair.name, "afmt"] for pair in htmt.PAIRS} == {5}
    assert {seeds["ours", "equal", name] for name in ("auto", "mptcp")} == {5, 1}
    assert not [key for key in seeds if key[1].endswith("-3")]


def test_queues_of_the_grid_are_one_product_and_at_least_64_kib() -> None:
    assert grid.Side(8, 300).path("a").both.queue_bytes == 600_000
    assert grid.Side(20, 12).path("a").both.queue_bytes == 64 * 1024


@pytest.mark.parametrize(
    ("profile", "kind", "target"),
    [
        ("baseline", "tcp-cubic-5", 0.95),
        ("rtt_120", "tcp-bbr-1", 0.85),
        ("rtt_320", "tcp-cubic-5", None),
        ("loss_2", "tcp-cubic-5", 0.90),
        ("dual_lte", "tcp-cubic-1", 0.80),
        ("rtt_70", "quic-bbr-1", 0.75),
        ("rtt_120", "quic-bbr-1", None),
    ],
)
def test_the_part_of_the_ceiling_follows_the_class(
    profile: str, kind: str, target: float | None
) -> None:
    found = next(p for p in grid.PROFILES if p.name == profile)
    assert grid.ceiling_target(found, kind) == target


def test_the_grid_holds_auto_against_the_better_single_path() -> None:
    rates = {"direct-a": 40.0, "direct-b": 45.0, "single-a": 38.0, "single-b": 42.0, "auto": 44.0}
    cells = grid.cells(Options("quick", runners=("sim",)))
    results = Results(tuple(reported(cell, rates[cell.key[1]], 90.0) for cell in cells))
    claims = {row.name: row for row in grid.claims(results)}
    inside = claims["baseline, tcp-cubic-1 (simulator): auto ÷ single inside"]
    outside = claims["baseline, tcp-cubic-1 (simulator): auto ÷ single outside"]
    gain = claims["jit_20, quic-bbr-1 (simulator): gain against mqvpn's best manual setting"]
    assert inside.measured == pytest.approx(44 / 42)
    assert outside.measured == pytest.approx(44 / 45)
    assert (inside.mean_meets, outside.mean_meets, gain.mean_meets) == (True, True, False)
    assert gain.target == pytest.approx(37.6 / 17.4)


@pytest.mark.parametrize(
    ("case", "loss", "shares"),
    [
        # One hop is the limit for all; what a link leaves goes to the third session; the third
        # shares the second hop only.
        (tcpnc_cases.CASES[0], 0.2, (2.4 / 3, 2.4 / 3, 2.4 / 3)),
        (tcpnc_cases.CASES[1], 0.0, (None, None, 5.0)),
        (tcpnc_cases.CASES[3], 0.1, (0.6, 0.6, 0.6)),
        (tcpnc_cases.CASES[5], 0.2, (0.8, 0.8, None)),
    ],
)
def test_what_erasures_leave_is_shared_evenly_as_far_as_links_allow(
    case: tcpnc_cases.Case, loss: float, shares: tuple[float | None, ...]
) -> None:
    found = tcpnc_cases.erasure_shares(case, loss)
    outer, inner = tcpnc_cases.SEGMENT / tcpnc_cases.OUTER, tcpnc_cases.SEGMENT / tcpnc_cases.PACKET
    links = [rate * inner for rate in case.access]
    bound = [
        link if share is None else share * outer for share, link in zip(shares, links, strict=True)
    ]
    if case == tcpnc_cases.CASES[1]:
        bound[2] -= bound[0] + bound[1]
    assert found == pytest.approx(bound)
    assert tcpnc_cases.erasure_capacity(case, loss) == pytest.approx(sum(bound))


def test_tcpnc_asks_for_the_erasure_capacity_at_every_loss_and_compares_the_same_in_ns3() -> None:
    cells = tcpnc.cells(Options("quick", runners=("sim", "ns3")))
    outcomes = []
    for cell in cells:
        each = (0.7, 0.7, 0.8) if cell.key[2] in tcpnc_cases.TUNNELS else (0.1, 0.1, 0.2)
        each = (0.08, 0.1, 0.2) if cell.runner == "ns3" else each
        outcome = reported(cell, 0, 3)
        assert outcome.report is not None
        traffic = tuple(replace(outcome.report.traffic[0], goodput_mbit=mbit) for mbit in each)
        outcomes.append(replace(outcome, report=replace(outcome.report, traffic=traffic)))
    results = Results(tuple(outcomes))
    claims = {row.name: row for row in tcpnc.claims(results)}
    lossy = "10% per link, new-reno: tunnel ÷ erasure capacity (simulator)"
    row = claims[f"topology 1, case 1, {lossy}"]
    assert row.measured == pytest.approx(2.2 / (2.7 * tcpnc_cases.SEGMENT / tcpnc_cases.OUTER))
    assert (row.target, row.mean_meets) == (0.9, True)
    row = claims["topology 1, case 1, 10% per link, end to end, NewReno: simulator ÷ ns-3"]
    assert row.measured == pytest.approx(0.4 / 0.38)
    assert row.mean_meets is True
    costs = "no loss: goodput that {} takes from end to end (simulator)"
    assert claims[f"topology 1, case 1, {costs.format('tunnel')}"].paper is None
    row = claims[f"topology 1, case 1, {costs.format('tcp-nc')}"]
    assert (row.paper, row.target) == (0.04, 0.04)
    assert row.measured == pytest.approx(0.0)
    for name, relation in (("sessions 1 and 2", "<="), ("session 3", ">=")):
        kept = f"{name} at 10% ÷ without loss (simulator)"
        row = claims[f"topology 2, case 2, tcp-nc as published: {kept}"]
        assert (row.relation, row.target) == (relation, 0.9)
        assert row.measured == pytest.approx(1.0)
    row = claims[
        "topology 2, case 2, 10% per link, tunnel: session 3 ÷ the better of the others (simulator)"
    ]
    assert row.measured == pytest.approx(0.8 / 0.7)
    row = claims["topology 1, case 1, no loss: tcp-nc as published, all sessions (simulator)"]
    assert (row.paper, row.target, row.mean_meets) == (2.77, 2.77, False)
    even = "10% per link: evenness of the sessions (Jain), {} (simulator)"
    assert claims[f"topology 1, case 1, {even.format('tcp-nc as published')}"].mean_meets is False
    row = claims[f"topology 2, case 2, {even.format('tcp-nc ÷ end to end')}"]
    assert (row.relation, row.mean_meets) == ("within", True)
    assert row.measured == pytest.approx(1.0)
    dropped = "no loss, after the warm-up: packets dropped at link buffers, end to end (simulator)"
    assert claims[f"topology 1, case 1, {dropped}"].mean_meets is False
    assert claims[f"topology 2, case 2, {dropped}"].mean_meets is True
    third = "10% per link, tcp-nc as published: session 3 ÷ the better of the others (simulator)"
    assert claims[f"topology 2, case 2, {third}"].measured == pytest.approx(2.0)
    drawn = tcpnc.figures(results)
    paper = [figure for figure in drawn if figure.title.startswith("Figure")]
    assert [figure.title.split(":")[0] for figure in paper] == [
        "Figure 7. topology 1, case 1",
        "Figure 7. topology 2, case 2",
        "Figure 8. Topology 1",
        "Figure 8. Topology 2",
    ]
    ours = drawn[len(paper) :]
    assert [figure.title.split(",")[:2] for figure in ours] == [
        ["topology 1", " case 1"],
        ["topology 2", " case 2"],
    ]
    assert all("ns-3" in figure.svg for figure in ours)


def test_failover_reads_stall_and_return_from_the_seconds() -> None:
    cell = next(
        cell
        for cell in failover.cells(Options("quick", runners=("sim",)))
        if cell.key[:2] == ("failure", "auto")
    )
    down, up, end = failover.times(Options("quick"))
    series = [300.0] * down + [10.0, 10.0] + [70.0] * (up - down - 2) + [100.0, 280.0]
    series += [300.0] * (end - len(series))
    outcome = reported(cell, 200, 350, tuple(series))
    assert outcome.report is not None
    assert failover.while_down(outcome.report, down, up) == 70
    assert failover.time_to_get_back(outcome.report, down, up) == 1
    claims = {row.name: row for row in failover.claims(Results((outcome,)))}
    share = claims["a path vanishes: goodput while down ÷ the other path's ceiling (simulator)"]
    assert share.measured == pytest.approx(70 / (80 * TUNNEL_OVERHEAD))


@pytest.mark.parametrize("experiment", ["traces", "protect-traces", "radio"])
def test_recordings_given_reach_the_experiments_that_use_them(
    experiment: str, pairs: tuple[TracePair, ...], tmp_path: Path
) -> None:
    def labels(directory: str | None) -> str:
        session = Session(
            experiment, "quick", 1, ("sim",), None, directory, "", False, {}, "2026-01-01"
        )
        return " ".join(cell.label for cell in plan_cells(session))

    assert pairs[0].name in labels(str(tmp_path))
    assert pairs[0].name not in labels(None)


def test_traces_pair_up_and_know_when_both_are_at_zero(pairs: tuple[TracePair, ...]) -> None:
    assert [pair.name for pair in pairs] == ["7_1", "x+y"]
    recorded, opportunities = pairs
    assert recorded.seconds == 30
    assert recorded.both_zero(0, 30) == 2
    assert recorded.both_zero(5, 30) == 1
    assert recorded.both_zero(10, 30) == 0
    assert opportunities.both_zero(0, 20) == pytest.approx(1.0)
    cell = traces.cells(Options("quick", traces=pairs))[0]
    assert cell.plan.duration_s == 20
    assert cell.inputs == recorded.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,100\n2,many\n", "line 2: could not convert"),
        ("# seconds\n1,nan\n", "line 2: `1,nan` is out of range"),
        ("nan,1\n", "line 1: `nan,1` is out of range"),
        ("1,1e300\n", "line 1: `1,1e300` is out of range"),
        ("1,5\n1e400,5\n", "line 2: `1e400,5` is out of range"),
        ("1,-5\n", "line 1: `1,-5` is out of range"),
        ("1,5\n3,5\n2,5\n", "line 3: 2 follows 3; sort"),
        ("1,5\n1,5\n", "line 2: 1 follows 1; sort"),
        ("1,5\n7\n", "line 2: one number a line"),
        ("1,2,3\n", "line 1: one number a line"),
        ("5\n4\n", "line 2: 4 follows 5; sort"),
        ("0.5\n", "line 1: `0.5` is not a time in whole milliseconds"),
        ("inf\n", "line 1: `inf` is out of range"),
        ("", ": it has no capacity"),
        ("0\n", ": it has no capacity"),
        ("1,0\n", ": it has no capacity"),
    ],
)
def test_a_trace_that_cannot_be_read_names_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "1_1_wifi.csv").write_text(text)
    (tmp_path / "1_1_cellular.csv").write_text("1,100\n")
    with pytest.raises(TraceError, match=rf"1_1_wifi\.csv(, )?{re.escape(said)}"):
        discover(tmp_path)
    with pytest.raises(TraceError, match="no recordings for it: put P_T_wifi"):
        find(tmp_path / "nothing").need("balance-dynamic", tmp_path)


def test_opportunities_may_come_together(tmp_path: Path) -> None:
    for name in ("x.down", "x.up", "y.down", "y.up"):
        (tmp_path / name).write_text("0\n5\n5\n1000\n")
    (pair,) = discover(tmp_path)
    assert (pair.seconds, pair.both_zero(0, 1)) == (1, 0.995)


def test_a_report_names_the_key_that_is_wrong() -> None:
    with pytest.raises(ReportError, match=r"report\.seed"):
        parse({"plan": "x", "runner": "sim"})
    bad = {"plan": "x", "runner": "sim", "seed": 1, "seconds": 1, "ceiling_mbit": 1}
    with pytest.raises(ReportError, match=r"report\.traffic\[0\]\.goodput_mbit"):
        parse({**bad, "traffic": [{"kind": "tcp", "goodput_mbit": "fast"}]})


def test_the_simulator_has_to_be_near_ns3_where_the_kernel_is() -> None:
    cells = validate.cells(Options("full"))
    cases = {("loss 1.0%, 40 ms", "new-reno"): 3.1, ("loss 1.0%, 40 ms", "cubic"): 2.0}
    kernel, sim = 3.0, 3.3
    outcomes = tuple(
        reported(cell, {"kernel": kernel, "sim": sim, "ns3": cases[key]}[cell.runner], 20.0)
        for cell in cells
        if (key := (cell.key[0], cell.key[1])) in cases
    )
    rows = {row.name: row for row in validate.claims(Results(outcomes))}
    near = rows["loss 1.0%, 40 ms: new-reno, simulator ÷ ns-3"]
    assert near.measured == pytest.approx(3.3 / 3.1)
    assert near.verdict == "ok"
    far = rows["loss 1.0%, 40 ms: cubic, simulator ÷ ns-3"]
    assert far.measured == pytest.approx(3.3 / 2.0)
    assert far.verdict == "no target"
    assert rows["loss 1.0%, 40 ms: cubic, simulator ÷ kernel"].verdict == "ok"
    count = next(row for name, row in rows.items() if name.startswith("NewReno and CUBIC: cases"))
    assert (count.measured, count.note) == (2, "of 2 cases, by their means")
    assert rows["loss 1.0%, 40 ms: new-reno, simulator ÷ Mathis"].measured == pytest.approx(
        3.3 / 3.496, abs=0.001
    )


def test_bare_connections_share_the_link_of_the_tunnel() -> None:
    cells = shared.cells(Options("full", seeds=1, runners=("sim",)))
    # Five links, three queues, three kinds of company, one flow and four, two arms; nine managed;
    # two tunnels on five links with three queues.
    assert len(cells) == 5 * 3 * 3 * 2 * 2 + 9 * 2 + 5 * 3 * 2
    assert len(shared.cells(Options("quick", runners=("sim",)))) == 5
    keys = {cell.key: tomllib.loads(cell.plan.to_toml()) for cell in cells}
    deep = keys["20 Mbit/s, 40 ms", "fq-codel", "4 BDP", "4 CUBIC", "1 flow", "auto"]
    assert deep["path"][0]["both"]["queue"] == 400_000
    assert deep["path"][0]["both"]["aqm"] == "fq-codel"
    assert [(t["flows"], t.get("beside")) for t in deep["traffic"]] == [(1, None), (4, "a")]
    bare = keys["50 Mbit/s, 80 ms", "drop-tail", "0.5 BDP", "1 BBR", "4 flows", "bare"]
    assert bare["carrier"] == {"kind": "path", "path": "a"}
    assert bare["path"][0]["both"]["queue"] == 250_000
    assert bare["path"][0]["both"]["delay"] == "40ms"
    assert "aqm" not in bare["path"][0]["both"]
    assert [t["flows"] for t in bare["traffic"]] == [4, 1]
    two = keys["10 Mbit/s, 80 ms", "drop-tail", "1 BDP", "1 tunnel", "4 flows", "auto"]
    assert [(t["flows"], t.get("tunnel")) for t in two["traffic"]] == [(4, None), (4, True)]


def test_two_tunnels_share_evenly_by_jains_index() -> None:
    cells = shared.cells(Options("quick", seeds=3, runners=("sim",)))
    outcomes = []
    for cell in (cell for cell in cells if cell.key[3] == "1 tunnel"):
        outcome = reported(cell, 12.0, 20.0)
        assert outcome.report is not None
        second = replace(outcome.report.traffic[0], goodput_mbit=6.0)
        traffic = (outcome.report.traffic[0], second)
        outcomes.append(replace(outcome, report=replace(outcome.report, traffic=traffic)))
    (row,) = [row for row in shared.claims(Results(tuple(outcomes))) if "Jain" in row.name]
    assert row.name == (
        "20 Mbit/s, 40 ms, drop-tail, queue of 1 BDP, 1 flow beside 1 tunnel (simulator): "
        "Jain's index"
    )
    assert row.measured == pytest.approx(18**2 / (2 * (144 + 36)))
    assert (row.verdict, row.target) == ("not ok", 0.95)


@pytest.mark.parametrize(("simulated", "verdict"), [(2.4, "ok"), (2.6, "not ok")])
def test_shares_are_fair_and_the_simulator_has_to_be_near_the_kernel(
    simulated: float, verdict: str
) -> None:
    case = ("20 Mbit/s, 40 ms", "drop-tail", "4 BDP", "1 CUBIC", "1 flow")
    cells = shared.cells(Options("quick", seeds=3, runners=("sim", "kernel")))
    inside = {("sim", "auto"): simulated, ("kernel", "auto"): 2.0}
    outcomes = []
    for cell in (cell for cell in cells if cell.key[:5] == case):
        # Without a tunnel the connection has more than an equal share.
        first = inside.get((cell.runner, cell.key[5]), 12.0)
        outcome = reported(cell, first, 20.0)
        assert outcome.report is not None
        beside = replace(outcome.report.traffic[0], goodput_mbit=20.0 - first)
        traffic = (outcome.report.traffic[0], beside)
        outcomes.append(replace(outcome, report=replace(outcome.report, traffic=traffic)))
    rows = {row.name: row for row in shared.claims(Results(tuple(outcomes)))}
    where = "20 Mbit/s, 40 ms, drop-tail, queue of 4 BDP, 1 flow beside 1 CUBIC"
    tunnel = rows[f"{where} (kernel): share of auto"]
    assert tunnel.measured == pytest.approx(0.1)
    assert tunnel.verdict == "no target"
    assert tunnel.note == "an equal share is 0.5"
    least = rows[f"{where} (kernel): share of auto ÷ smallest fair share"]
    assert least.measured == pytest.approx(0.1 / 0.5)
    assert least.verdict == "not ok"
    most = rows[f"{where} (kernel): share of auto ÷ largest fair share"]
    assert most.measured == pytest.approx(0.1 / 0.6)
    assert most.verdict == "ok"
    agreement = "share in the simulator ÷ share on the kernel"
    assert rows[f"{where}: auto, {agreement}"].measured == pytest.approx(simulated / 2)
    assert rows[f"{where}: auto, {agreement}"].verdict == verdict
    assert rows[f"{where}: bare, {agreement}"].verdict == "ok"


def test_mqvpn_runs_beside_the_default_on_the_kernel_and_its_best_setting_counts() -> None:
    cells = mqvpn.cells(Options("full", seeds=1))
    # Sixteen pairs; QUIC without the TCP lane, one TCP flow and five with it.
    assert len(cells) == 16 * (7 + 8 + 8)
    assert mqvpn.cells(Options("full", runners=("sim",))) == []
    cells = mqvpn.cells(Options("quick", seeds=3))
    assert len(cells) == 3 * 2 * 7
    rates = {"direct-a": 40.0, "direct-b": 41.0, "auto": 80.0, "mqvpn": 90.0, "mqvpn-minrtt": 60.0}
    rates |= {"mqvpn-reorder": 70.0, "mqvpn-minrtt-reorder": 71.0}
    outcomes = tuple(reported(cell, rates[cell.key[1]], 100.0) for cell in cells)
    rows = {row.name: row for row in mqvpn.claims(Results(outcomes))}
    best = rows["baseline, quic-bbr-1: auto ÷ the best of mqvpn"]
    assert best.measured == pytest.approx(80 / 90)
    assert (best.verdict, best.target) == ("not ok", 0.95)
    assert rows["loss_2, quic-bbr-1: mqvpn-minrtt"].measured == pytest.approx(60)
    (figure,) = mqvpn.figures(Results(outcomes))
    assert "quic-bbr-1" in figure.title


def test_formulas_give_the_windows_that_their_sources_list() -> None:
    def window(mbit: float) -> float:
        return mbit * 1e6 * 0.1 / 8 / 1460

    assert window(formulas.mathis(1460, 0.1, 0.01)) == pytest.approx(12.25, abs=0.01)
    assert window(formulas.cubic(1460, 0.1, 0.01)) == pytest.approx(12.25, abs=0.01)
    assert window(formulas.cubic(1460, 0.1, 1e-5)) == pytest.approx(1054, abs=1)
    # sqrt(2p / 3) = 0.1826 round trips, and timeouts of 0.3 s 0.0222 times.
    share = formulas.padhye(1460, 0.1, 0.05) / formulas.mathis(1460, 0.1, 0.05)
    assert share == pytest.approx(0.01826 / (0.01826 + 0.3 * 0.0222), abs=0.001)
