"""Simulator runs: by `ropewalk-sim`, or inside this process when the native module is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ropewalk import report as reports
from ropewalk.lab.cell import Cell
from ropewalk.lab.runner import (
    EXIT_CANNOT_RUN,
    EXIT_PLAN_UNUSABLE,
    RunError,
    UnavailableError,
    leftovers,
)
from ropewalk.lab.runner.process import Children, last_lines
from ropewalk.report import Report

_SECONDS_PER_SIMULATED = 20
_START_SECONDS = 60


class ProgramRunner:
    """Runs all seeds of a plan in one call of the program, which uses every core."""

    def __init__(self, program: Path, children: Children) -> None:
        self._program = program
        self._children = children

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell; their seeds are consecutive."""
        plan = cells[0].plan.with_seed(cells[0].seed)
        with leftovers.scratch() as directory:
            file = directory / "plan.toml"
            file.write_text(plan.to_toml())
            command = [str(self._program), "run", str(file), "--seeds", str(len(cells)), "--json"]
            limit = _START_SECONDS + _SECONDS_PER_SIMULATED * plan.duration_s * len(cells)
            done = self._children.run(command, limit)
        if done.code in (EXIT_PLAN_UNUSABLE, EXIT_CANNOT_RUN):
            raise UnavailableError(last_lines(done.errors) or "the simulator gave no reason")
        if done.code != 0:
            reason = last_lines(done.errors) or "no reason given"
            raise RunError(f"{self._program.name} ended with {done.code}: {reason}")
        return match_seeds(done.output, cells)


class NativeRunner:
    """Runs all seeds of a plan in threads of this process."""

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell."""
        from ropewalk import _native

        seeds = [cell.seed for cell in cells]
        try:
            text = _native.run_json(cells[0].plan.to_toml(), seeds, 0, None, False)
        except ValueError as error:
            # This plan would fail in this way again.
            raise UnavailableError(f"not simulated: {error}") from error
        return match_seeds(text, cells)


def native_available() -> bool:
    """Whether this installation has the native module."""
    try:
        from ropewalk import _native
    except ImportError:
        return False
    return hasattr(_native, "run_json")


def match_seeds(text: str, cells: Sequence[Cell]) -> list[Report]:
    """The reports in the order of the cells.

    Raises:
        RunError: when the text is no list of reports, or one is missing.
    """
    try:
        found = {report.seed: report for report in map(reports.parse, _objects(text))}
    except (ValueError, TypeError) as error:
        raise RunError(f"the simulator wrote no usable reports: {error}") from error
    absent = [cell.seed for cell in cells if cell.seed not in found]
    if absent:
        raise RunError(f"the simulator gave no report for the seeds {absent}")
    return [found[cell.seed] for cell in cells]


def _objects(text: str) -> list[object]:
    """The objects of a JSON array, or of lines that each hold one."""
    if text.lstrip().startswith("["):
        found = json.loads(text)
        assert isinstance(found, list)
        return found
    return [json.loads(line) for line in text.splitlines() if line.strip()]
