"""Runs an experiment from its cells to its report."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from ropewalk.lab import html, programs, provenance
from ropewalk.lab.cell import Cell, Mode, Outcome, Results, Runner
from ropewalk.lab.claims import UNPLANNED, Claim, worst_first
from ropewalk.lab.experiments import EXPERIMENTS, ON_SWITCHES
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.runner import CellRunner, leftovers, pool, sim
from ropewalk.lab.runner.browser import BrowserRunner
from ropewalk.lab.runner.kernel import KernelRunner
from ropewalk.lab.runner.ns3 import Ns3Runner
from ropewalk.lab.runner.ovs import OvsRunners
from ropewalk.lab.runner.process import Children
from ropewalk.lab.store import UNREADABLE, Session, Store, StoreError
from ropewalk.lab.trace import Recordings, find
from ropewalk.plan import OvsBalance, OvsRoamWifi, Pages, capacity_mbit

REPORT, RESULT = "report.html", "result.json"
RESULT_FORMAT = 2
TOGETHER_MBIT_MAX = 120
"""Runs in real time over paths of more than this together go alone: traffic, links and gateways of
a few hundred Mbit/s take a whole processor or two."""
ALONE = (OvsBalance, OvsRoamWifi)
"""What else runs alone: times of a controller under load, and emulated radios, of which a machine
has one set."""


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    experiment: str
    mode: Mode
    seeds: int | None
    runners: tuple[Runner, ...]
    only: str | None
    traces: Path | None
    programs: Path | None
    jobs: int
    out: Path


@dataclass(frozen=True)
class Progress:
    """One more cell is done."""

    outcome: Outcome
    done: int
    total: int


def plan_cells(session: Session) -> list[Cell]:
    """The cells of a session; the same session gives the same cells.

    Raises:
        TraceError: when the recordings cannot be read.
    """
    recordings = Recordings()
    if session.traces is not None:
        directory = Path(session.traces)
        recordings = find(directory, session.experiment)
        recordings.need(session.experiment, directory)
    options = Options(
        session.mode, session.seeds, session.runners, recordings.pairs, recordings.windows
    )
    cells = EXPERIMENTS[session.experiment].cells(options)
    if session.only is None:
        return cells
    return [cell for cell in cells if re.search(session.only, cell.label)]


def begin(request: Request) -> Session:
    """What a request means here and now."""
    testbed = programs.find_or_none(programs.TESTBED, request.programs)
    simulator = programs.find_or_none(programs.SIMULATOR, request.programs)
    program = testbed or simulator
    if request.experiment in ON_SWITCHES:
        # There this package does the runs.
        program = Path(__file__)
    source = provenance.source(program.parent if program is not None else Path.cwd())
    identity = source.identity
    if "sim" in request.runners and simulator is None and sim.native_available():
        identity += f"-native-{provenance.native()}"
    return Session(
        experiment=request.experiment,
        mode=request.mode,
        seeds=request.seeds,
        runners=request.runners,
        only=request.only,
        traces=None if request.traces is None else str(request.traces.resolve()),
        source=identity,
        dirty=source.dirty,
        machine=provenance.machine(request.programs, request.jobs),
        began=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def run(request: Request, session: Session, tell: Callable[[Progress], None]) -> list[Claim]:
    """Runs the cells that are still without a result, and writes the report.

    Raises:
        ProgramError: when no cell can run because programs are missing. What is stored stays.
    """
    cells = plan_cells(session)
    _need_a_program(cells, request)
    leftovers.sweep()
    store = Store(request.out)
    session = store.begin(session)
    stored = [store.load(cell, session.source) for cell in cells]
    kept = [outcome for outcome in stored if outcome is not None and outcome.status == "ok"]
    have = {outcome.cell.label for outcome in kept}
    done = len(kept)
    children = Children()
    todo = [cell for cell in cells if cell.label not in have]
    kernel = [cell for cell in todo if cell.runner == "kernel"]
    pages = [cell for cell in kernel if _has_pages(cell)]
    together, alone = _apart(cell for cell in kernel if not _has_pages(cell))
    switched_together, switched_alone = _apart(cell for cell in todo if cell.runner == "ovs")
    # The simulator takes every core: it must not disturb the clock of kernel runs.
    for outcome in chain(
        _on_kernel(together, request.jobs, request, children),
        _on_kernel(alone, 1, request, children),
        _on_switches(switched_together, request.jobs, request),
        _on_switches(switched_alone, 1, request),
        _in_browser(pages, request),
        _simulated([cell for cell in todo if cell.runner == "sim"], request, children),
        _in_ns3([cell for cell in todo if cell.runner == "ns3"], request, children),
    ):
        store.save(outcome, session.source)
        done += 1
        tell(Progress(outcome, done, len(cells)))
    return _write(store, session, stored_results(store, session))


def _need_a_program(cells: list[Cell], request: Request) -> None:
    """Raises if every cell lacks its program: a good report is not replaced by an empty one."""
    problems = [_lacks(runner, request) for runner in dict.fromkeys(c.runner for c in cells)]
    for problem in problems if all(problems) else ():
        assert problem is not None
        raise problem


def _lacks(runner: Runner, request: Request) -> programs.ProgramError | None:
    try:
        match runner:
            case "kernel":
                programs.find(programs.TESTBED, request.programs)
            case "ns3":
                programs.find(programs.NS3, request.programs)
            case "sim" if not sim.native_available():
                programs.find(programs.SIMULATOR, request.programs)
            case "sim" | "ovs":
                pass
    except programs.ProgramError as error:
        return error
    return None


def runs_alone(cell: Cell) -> bool:
    """Whether a run in real time needs the processors, or the radios, for itself."""
    return isinstance(cell.plan.carrier, ALONE) or capacity_mbit(cell.plan) > TOGETHER_MBIT_MAX


def _apart(cells: Iterable[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Those that run together with others, and those that run alone."""
    both: tuple[list[Cell], list[Cell]] = ([], [])
    for cell in cells:
        both[runs_alone(cell)].append(cell)
    return both


def _has_pages(cell: Cell) -> bool:
    return any(isinstance(traffic, Pages) for traffic in cell.plan.traffic)


def _with_program(
    name: str, cells: list[Cell], request: Request, go: Callable[[Path], Iterator[Outcome]]
) -> Iterator[Outcome]:
    """Runs cells with a program; where it is missing they are skipped, and say so."""
    if not cells:
        return
    try:
        program = programs.find(name, request.programs)
    except programs.ProgramError as error:
        yield from _skipped(cells, error)
    else:
        yield from go(program)


def _skipped(cells: list[Cell], error: Exception) -> Iterator[Outcome]:
    return (Outcome(cell, "skipped", reason=str(error)) for cell in cells)


def _on_kernel(
    cells: list[Cell], jobs: int, request: Request, children: Children
) -> Iterator[Outcome]:
    def go(program: Path) -> Iterator[Outcome]:
        runner = KernelRunner(program, children, repeats=0 if request.mode == "quick" else 2)
        return pool.run(pool.single(cells), runner, jobs, children.stop)

    return _with_program(programs.TESTBED, cells, request, go)


def _on_switches(cells: list[Cell], jobs: int, request: Request) -> Iterator[Outcome]:
    if not cells:
        return
    with closing(OvsRunners(request.programs, jobs)) as runner:
        yield from pool.run(pool.single(cells), runner, jobs, runner.stop)


def _in_browser(cells: list[Cell], request: Request) -> Iterator[Outcome]:
    def go(program: Path) -> Iterator[Outcome]:
        runner = BrowserRunner(program, strict=request.mode == "full")
        return pool.run(pool.single(cells), runner, request.jobs, runner.stop)

    return _with_program(programs.TESTBED, cells, request, go)


def _in_ns3(cells: list[Cell], request: Request, children: Children) -> Iterator[Outcome]:
    def go(program: Path) -> Iterator[Outcome]:
        runner = Ns3Runner(program, children)
        return pool.run(pool.single(cells), runner, os.cpu_count() or 1, children.stop)

    return _with_program(programs.NS3, cells, request, go)


def _simulated(cells: list[Cell], request: Request, children: Children) -> Iterator[Outcome]:
    if not cells:
        return
    try:
        simulator = _simulator(request, children)
    except programs.ProgramError as error:
        yield from _skipped(cells, error)
        return
    jobs = pool.by_plan(cells)
    # A job has a thread for each of its seeds.
    workers = max(1, (os.cpu_count() or 1) // max(len(job) for job in jobs))
    yield from pool.run(jobs, simulator, workers, children.stop)


def _simulator(request: Request, children: Children) -> CellRunner:
    """The program if it is there, since it is of the same build as the rest; else this module."""
    try:
        return sim.ProgramRunner(programs.find(programs.SIMULATOR, request.programs), children)
    except programs.ProgramError:
        if sim.native_available():
            return sim.NativeRunner()
        raise


def stored_results(store: Store, session: Session) -> Results:
    """Every cell of a session with its outcome; what never ran is `missing`.

    Raises:
        TraceError: when the recordings cannot be read.
    """
    return Results(
        tuple(
            store.load(cell, session.source) or store.missing(cell, session.source)
            for cell in plan_cells(session)
        )
    )


def judge(session: Session, results: Results) -> list[Claim]:
    """The claims of a session, the worst first, without those whose cells were not asked for."""
    claims = EXPERIMENTS[session.experiment].claims(results)
    return worst_first(row for row in claims if row.note != UNPLANNED)


def written_claims(store: Store, session: Session) -> tuple[tuple[Claim, ...], dict[str, int]]:
    """What `result.json` says of a session: its claims, and how many cells had which status.

    Raises:
        StoreError: when there is no such file, or the file is of other results.
    """
    path = store.directory / RESULT
    try:
        value = json.loads(path.read_text())
        written = tuple(value[key] for key in ("format", "experiment", "source", "began"))
        if written != (RESULT_FORMAT, session.experiment, session.source, session.began):
            raise ValueError(f"{path.name} is of another run than session.json")
        cells = {"ok": 0, **value["cells"]}
        if not all(type(count) is int and count >= 0 for count in cells.values()):
            raise ValueError(f"cells: {cells}")
        return tuple(map(Claim.from_json, value["claims"])), cells
    except FileNotFoundError as error:
        raise StoreError("no cell of it has a result: run it again") from error
    except UNREADABLE as error:
        raise StoreError(f"{path} cannot be read ({error}): run the experiment again") from error


def report_again(store: Store, session: Session) -> list[Claim]:
    """Judges what is stored, and writes result.json and report.html anew.

    Raises:
        StoreError: when no cell has a result. Then nothing is written: the claims that are there
            may be all that was kept.
    """
    results = stored_results(store, session)
    if not any(outcome.status == "ok" for outcome in results.outcomes):
        raise StoreError(
            f"none of the {len(results.outcomes)} cells of {store.directory} has a result, so "
            f"nothing is written. `ropewalk-lab report --all {store.directory}` shows the claims "
            f"that were kept in {RESULT}; `ropewalk-lab run {session.experiment}` makes new cells"
        )
    return _write(store, session, results)


def _write(store: Store, session: Session, results: Results) -> list[Claim]:
    experiment = EXPERIMENTS[session.experiment]
    claims = judge(session, results)
    value = {
        "format": RESULT_FORMAT,
        "experiment": session.experiment,
        "mode": session.mode,
        "source": session.source,
        "dirty": session.dirty,
        "began": session.began,
        "cells": {
            status: sum(outcome.status == status for outcome in results.outcomes)
            for status in ("ok", "failed", "skipped", "missing")
        },
        # Only the second attempt counts: what failed first is not hidden.
        "retried": {
            outcome.cell.label: outcome.reason
            for outcome in results.outcomes
            if outcome.attempts > 1
        },
        "claims": [row.to_json() for row in claims],
    }
    store.write(RESULT, json.dumps(value, indent=1, allow_nan=False))
    figures = experiment.figures(results)
    store.write(REPORT, html.page(session, experiment, claims, figures, results))
    return claims
