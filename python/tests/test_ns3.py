"""Cells in ns-3, by a program that only prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.lab.cell import Cell
from ropewalk.lab.experiments import tcpnc, tcpnc_cases, validate
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.programs import NS3, NS3_CHAIN, ProgramError, find
from ropewalk.lab.runner import RunError, UnavailableError
from ropewalk.lab.runner.ns3 import Ns3Runner
from ropewalk.lab.runner.process import Children
from ropewalk.plan import Link, Ping, Tcp, Tunnel

RESULT = '{"goodput_mbit": 2.5, "seconds": 12, "bytes": 9, "lost": 3, "dropped": 1}'


CHAIN_RESULT = (
    '{"seconds": 50, "goodput_mbit": [0.5, 0.25, 1.5], '
    '"hops": [{"lost": 3, "dropped": 1}, {"lost": 4, "dropped": 2}]}'
)


def runner(tmp_path: Path, script: str) -> Ns3Runner:
    for name in (NS3, NS3_CHAIN):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return Ns3Runner(tmp_path / NS3, Children())


def chain(carrier: str = tcpnc_cases.END_TO_END) -> Cell:
    found = tcpnc.cells(Options("full", runners=("ns3",)))
    key = ("topology 2, case 3", "20%", carrier)
    return next(cell for cell in found if cell.key[:3] == key and cell.seed == 3)


def cells() -> list[Cell]:
    return validate.cells(Options("full", runners=("ns3",)))


def test_each_cell_gives_the_program_its_link_and_the_report_its_result(tmp_path: Path) -> None:
    cell = next(c for c in cells() if c.key == ("loss 2.0%, 100 ms", "cubic") and c.seed == 3)
    [report] = runner(tmp_path, f"echo \"$@\" > '{tmp_path}/log'; echo '{RESULT}'").run([cell])
    assert (tmp_path / "log").read_text().split() == [
        "--rate=20.0", "--delay=50", "--loss=0.02", "--queue=250000", "--seconds=60.0",
        "--warmup=3.0", "--seed=3", "--congestion=cubic",
    ]  # fmt: skip
    assert (report.goodput_mbit, report.seed, report.runner) == (2.5, 3, "ns3")
    assert (report.paths[0].lost, report.paths[0].dropped) == (3, 1)
    assert report.ceiling_mbit == pytest.approx(20 * 1448 / 1500)
    assert report.notes == ("the other traffic was left out",)


def test_every_cell_of_validate_is_one_that_ns3_can_run(tmp_path: Path) -> None:
    found = cells()
    assert len(found) == 10 * 5 * 3 * 2
    one_each = [cell for cell in found if cell.seed == 1]
    assert len(runner(tmp_path, f"echo '{RESULT}'").run(one_each)) == len(one_each)


def test_paths_in_a_row_and_hosts_are_given_to_a_program_of_their_own(tmp_path: Path) -> None:
    log = f"echo \"$@\" > '{tmp_path}/log'; echo '{CHAIN_RESULT}'"
    for carrier, hosts in ((tcpnc_cases.END_TO_END, "linux"), (tcpnc_cases.PUBLISHED, "published")):
        [report] = runner(tmp_path, log).run([chain(carrier)])
        assert (tmp_path / "log").read_text().split() == [
            "--hops=2.0:10.0:0.2:100,4.0:10.0:0.2:100",
            "--sources=1:1.0:2.5:100,1:1.0:2.5:100,2:1.0:2.5:100",
            "--segment=1000", "--seconds=60.0", "--warmup=10.0", "--seed=3", f"--hosts={hosts}",
        ]  # fmt: skip
    assert (report.goodput_mbit, report.seed, report.runner) == (2.25, 3, "ns3")
    assert [traffic.goodput_mbit for traffic in report.traffic] == [0.5, 0.25, 1.5]
    assert [(path.name, path.lost, path.dropped) for path in report.paths] == [
        ("a", 3, 1),
        ("b", 4, 2),
    ]


def test_a_row_that_ns3_cannot_run_says_why(tmp_path: Path) -> None:
    cell = chain()
    plan, flow = cell.plan, cell.plan.traffic[0]
    assert isinstance(flow, Tcp)
    for changed, reason in (
        (replace(plan, traffic=(replace(flow, congestion="bbr"),)), "NewReno uploads"),
        (replace(plan, traffic=(replace(flow, flows=2),)), "each one flow"),
        (replace(plan, traffic=(flow, replace(flow, segment=500))), "the same `segment`"),
        (replace(plan, traffic=(replace(flow, access=Link()),)), "of every link"),
        (replace(plan, path=(replace(plan.path[0], down=Link(loss=0.1)), *plan.path[1:])), "`up`"),
    ):
        with pytest.raises(UnavailableError, match=reason):
            runner(tmp_path, "exit 1").run([replace(cell, plan=changed)])
    with pytest.raises(RunError, match="no usable result"):
        runner(tmp_path, f"echo '{RESULT}'").run([cell])
    ready = runner(tmp_path, "exit 1")
    (tmp_path / NS3_CHAIN).unlink()
    with pytest.raises(UnavailableError, match="lab/ns3/build"):
        ready.run([cell])


def test_what_ns3_cannot_run_is_unavailable_and_says_why(tmp_path: Path) -> None:
    cell = cells()[0]
    plan = cell.plan
    for changed, reason in (
        (replace(plan, carrier=Tunnel()), "without a tunnel"),
        (replace(plan, traffic=(Tcp(flows=2), Ping())), "one TCP download"),
        (replace(plan, traffic=(Tcp(congestion="bbr"),)), "NewReno and CUBIC"),
        (replace(plan, path=(replace(plan.path[0], up=Link(loss=0.1)),)), "loss of `down`"),
        (replace(plan, path=(replace(plan.path[0], both=Link(20)),)), "needs rate"),
    ):
        with pytest.raises(UnavailableError, match=reason):
            runner(tmp_path, "exit 1").run([replace(cell, plan=changed)])


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="at least one packet"):
        runner(tmp_path, "echo 'queue: at least one packet' >&2; exit 2").run(cells()[:1])
    with pytest.raises(RunError, match="ended with 1: out of memory"):
        runner(tmp_path, "echo out of memory >&2; exit 1").run(cells()[:1])
    with pytest.raises(RunError, match="no usable result"):
        runner(tmp_path, "echo '{}'").run(cells()[:1])


def test_without_the_program_the_reason_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="lab/ns3/build"):
        find(NS3, tmp_path)
