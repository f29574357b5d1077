"""A cell (one plan, one seed, one runner) and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from ropewalk.plan import Plan
from ropewalk.report import Report

Runner: TypeAlias = Literal["kernel", "sim", "ns3", "ovs"]
Mode: TypeAlias = Literal["quick", "full"]
Status: TypeAlias = Literal["ok", "failed", "skipped", "missing"]

RUNNERS: tuple[Runner, ...] = ("kernel", "sim", "ns3", "ovs")
"""All; `ns3` runs one TCP connection over one path, or several over paths in a row, and `ovs` what
is carried by Open vSwitch."""


@dataclass(frozen=True)
class Cell:
    """One run.

    `key` says which case of the experiment it is, in order, such as
    `("rtt_70", "auto", "tcp-cubic-5")`. `inputs` is a digest of files that the plan only names.
    """

    experiment: str
    key: tuple[str, ...]
    plan: Plan
    seed: int
    runner: Runner
    inputs: str = ""

    @property
    def label(self) -> str:
        """Names the cell among all cells of all experiments."""
        return "/".join((self.experiment, *self.key, self.runner, str(self.seed)))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell: a report, or the reason why the report is missing."""

    cell: Cell
    status: Status
    report: Report | None = None
    reason: str = ""
    attempts: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert (self.status == "ok") == (self.report is not None), self.status


@dataclass(frozen=True)
class Results:
    """All outcomes of an experiment, with the look-ups that claims need."""

    outcomes: tuple[Outcome, ...]

    def where(self, runner: Runner, *key: str | None) -> Results:
        """Outcomes of this runner whose key begins so; `None` matches everything."""
        candidates: Sequence[Outcome] = self._of_runner.get(runner, ())
        if key and key[0] is not None:
            candidates = self._of_case.get((runner, key[0]), ())
        return Results(
            tuple(
                outcome
                for outcome in candidates
                if len(outcome.cell.key) >= len(key)
                and all(
                    wanted is None or wanted == found
                    for wanted, found in zip(key, outcome.cell.key, strict=False)
                )
            )
        )

    @cached_property
    def _of_runner(self) -> dict[Runner, list[Outcome]]:
        found: dict[Runner, list[Outcome]] = {}
        for outcome in self.outcomes:
            found.setdefault(outcome.cell.runner, []).append(outcome)
        return found

    @cached_property
    def _of_case(self) -> dict[tuple[Runner, str], list[Outcome]]:
        # The grid has tens of thousands of cells: each look-up must not read all of them.
        found: dict[tuple[Runner, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            found.setdefault((outcome.cell.runner, outcome.cell.key[0]), []).append(outcome)
        return found

    def reports(self) -> dict[int, Report]:
        """Reports by seed; the outcomes must differ in nothing else."""
        return {o.cell.seed: o.report for o in self.outcomes if o.report is not None}

    def planned(self) -> bool:
        """Whether any cell was meant to run."""
        return bool(self.outcomes)

    def reasons(self) -> str:
        """Why reports of cells are missing, each reason once."""
        reasons = dict.fromkeys(o.reason for o in self.outcomes if o.report is None)
        return "; ".join(reason for reason in reasons if reason)

    def runners(self) -> tuple[Runner, ...]:
        """Runners with any outcome, the kernel first."""
        present = {outcome.cell.runner for outcome in self.outcomes}
        return tuple(runner for runner in RUNNERS if runner in present)

    def keys(self, position: int) -> tuple[str, ...]:
        """The distinct values at one place of the keys, in order of the cells."""
        return tuple(
            dict.fromkeys(o.cell.key[position] for o in self.outcomes if len(o.cell.key) > position)
        )
