"""Kernel runs: the real programs over emulated links, by `ropewalk-testbed`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ropewalk import report as reports
from ropewalk.lab.cell import Cell
from ropewalk.lab.provenance import Load
from ropewalk.lab.runner import (
    EXIT_CANNOT_RUN,
    EXIT_PLAN_UNUSABLE,
    RunError,
    UnavailableError,
    leftovers,
)
from ropewalk.lab.runner.process import Children, last_lines
from ropewalk.report import Report

_SET_UP_SECONDS = 60
STOLEN_MAX = 0.03
"""With a greater share of the processors' time taken by the host, a run measures the host."""


class KernelRunner:
    """Runs one cell at a time in namespaces of its own."""

    def __init__(self, program: Path, children: Children, repeats: int = 0) -> None:
        """`repeats`: how often a run is done again during which the host took time away."""
        self._program = program
        self._children = children
        self._repeats = repeats

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell."""
        return [self._undisturbed(cell) for cell in cells]

    def _undisturbed(self, cell: Cell) -> Report:
        """The report of the run that the host disturbed least; what it measured plays no part."""
        runs: list[tuple[float, Report]] = []
        while len(runs) <= self._repeats:
            before = Load.now()
            report = self._run(cell)
            stolen = Load.now().stolen_since(before)
            runs.append((stolen, report))
            if stolen <= STOLEN_MAX:
                break
        stolen, report = min(runs, key=lambda run: run[0])
        if len(runs) == 1:
            return report
        shares = ", ".join(f"{share:.0%}" for share, _ in runs)
        note = f"run {len(runs)} times: the host took {shares} of the processors, {stolen:.0%} here"
        return replace(report, notes=(*report.notes, note))

    def _run(self, cell: Cell) -> Report:
        with leftovers.scratch() as directory:
            plan = directory / "plan.toml"
            plan.write_text(cell.plan.with_seed(cell.seed).to_toml())
            command = [str(self._program), "run", str(plan), "--seed", str(cell.seed), "--json"]
            done = self._children.run(command, 2 * cell.plan.duration_s + _SET_UP_SECONDS)
        if done.code in (EXIT_PLAN_UNUSABLE, EXIT_CANNOT_RUN):
            raise UnavailableError(last_lines(done.errors) or "the testbed gave no reason")
        if done.code != 0:
            reason = last_lines(done.errors) or "no reason given"
            raise RunError(f"{self._program.name} ended with {done.code}: {reason}")
        try:
            return reports.parse(json.loads(done.output))
        except ValueError as error:
            raise RunError(f"{self._program.name} wrote no usable report: {error}") from error
