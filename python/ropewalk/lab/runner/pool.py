"""Runs many cells, a few at a time; every cell ends as an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import groupby

from ropewalk.lab.cell import Cell, Outcome
from ropewalk.lab.provenance import Load, stamp
from ropewalk.lab.runner import CellRunner, RunError, UnavailableError

ATTEMPTS = 2
"""A cell that fails is tried once more: namespaces on a busy machine do fail at times."""


def single(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Each cell as a job of its own."""
    return [[cell] for cell in cells]


def by_plan(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells of the same plan with consecutive seeds as one job."""
    jobs: list[list[Cell]] = []
    for _, group in groupby(cells, key=lambda cell: (cell.key, cell.plan)):
        job: list[Cell] = []
        for cell in sorted(group, key=lambda cell: cell.seed):
            if job and cell.seed != job[-1].seed + 1:
                jobs.append(job)
                job = []
            job.append(cell)
        jobs.append(job)
    return jobs


def run(
    jobs: Sequence[Sequence[Cell]],
    runner: CellRunner,
    workers: int,
    stop: Callable[[], None],
) -> Iterator[Outcome]:
    """Outcomes as they come. When the caller gives up, `stop` is called and nothing new begins."""
    with ThreadPoolExecutor(max_workers=workers) as executor:
        futures = [executor.submit(attempt, job, runner) for job in jobs]
        try:
            for future in as_completed(futures):
                yield from future.result()
        finally:
            for future in futures:
                future.cancel()
            if not all(future.done() for future in futures):
                stop()


def attempt(cells: Sequence[Cell], runner: CellRunner) -> list[Outcome]:
    """Runs one job, again if it fails; what fails twice is recorded as failed, with the reason."""
    reasons: list[str] = []
    before = Load.now()
    while len(reasons) < ATTEMPTS:
        try:
            reports = runner.run(cells)
        except UnavailableError as error:
            return [
                Outcome(cell, "skipped", reason=str(error), attempts=len(reasons) + 1)
                for cell in cells
            ]
        except RunError as error:
            reasons.append(str(error))
            continue
        provenance = stamp(before, Load.now())
        retried = f"first attempt: {reasons[0]}" if reasons else ""
        return [
            Outcome(cell, "ok", report, retried, len(reasons) + 1, provenance)
            for cell, report in zip(cells, reports, strict=True)
        ]
    reason = "; ".join(dict.fromkeys(reasons))
    failed = Outcome(cells[0], "failed", None, reason, ATTEMPTS, stamp(before, Load.now()))
    return [replace(failed, cell=cell) for cell in cells]
