"""Kernel runs: the real programs over emulated links, by `ropewalk-testbed`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ropewalk import report as reports
from ropewalk.lab.cell import Cell
from ropewalk.lab.runner import EXIT_CANNOT_RUN, EXIT_PLAN_UNUSABLE, RunError, UnavailableError
from ropewalk.lab.runner.process import Children, last_lines
from ropewalk.report import Report

_SET_UP_SECONDS = 60


class KernelRunner:
    """Runs one cell at a time in namespaces of its own."""

    def __init__(self, program: Path, children: Children) -> None:
        self._program = program
        self._children = children

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell."""
        return [self._run(cell) for cell in cells]

    def _run(self, cell: Cell) -> Report:
        with tempfile.TemporaryDirectory(prefix="ropewalk-lab-") as directory:
            plan = Path(directory, "plan.toml")
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
