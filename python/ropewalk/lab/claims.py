"""Claims: what an experiment must show, beside what it showed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from ropewalk.lab.cell import Results
from ropewalk.lab.statistics import Estimate

Relation: TypeAlias = Literal[">=", "<=", "within", "none"]


@dataclass(frozen=True)
class Claim:
    """One row of the claims table.

    `ok` is `None` when nothing was measured or there is nothing to meet; the note says why.
    """

    name: str
    unit: str
    paper: float | None
    relation: Relation
    target: float | None
    measured: float | None
    interval: tuple[float, float] | None
    seeds: int
    ok: bool | None
    note: str = ""
    tolerance: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The row as `result.json` has it."""
        row = asdict(self)
        row["interval"] = None if self.interval is None else list(self.interval)
        return row

    def wanted(self) -> str:
        """The target as people read it."""
        if self.target is None or self.relation == "none":
            return ""
        if self.relation == "within":
            return f"{number(self.target)} ± {number(self.tolerance)}"
        return f"{'≥' if self.relation == '>=' else '≤'} {number(self.target)}"

    def margin(self) -> float:
        """How far the target is met, relative to it: negative is missed, and least is worst."""
        if self.measured is None:
            return -math.inf
        if self.target is None or self.relation == "none":
            return math.inf
        scale = abs(self.target) or 1.0
        difference = (self.measured - self.target) / scale
        match self.relation:
            case ">=":
                return difference
            case "<=":
                return -difference
            case "within":
                return self.tolerance / scale - abs(difference)


def claim(
    name: str,
    unit: str,
    measured: Estimate | None,
    *,
    relation: Relation = ">=",
    target: float | None = None,
    tolerance: float = 0.0,
    paper: float | None = None,
    note: str = "",
) -> Claim:
    """Judges an estimate by its mean."""
    mean = None if measured is None else measured.mean
    interval = None
    if measured is not None and measured.low is not None and measured.high is not None:
        interval = (measured.low, measured.high)
    row = Claim(
        name=name,
        unit=unit,
        paper=paper,
        relation="none" if target is None else relation,
        target=target,
        measured=mean,
        interval=interval,
        seeds=0 if measured is None else measured.count,
        ok=None,
        note=note,
        tolerance=tolerance,
    )
    if mean is None or target is None:
        return row
    # What counts is the figure that is shown: no verdict hangs on a digit nobody sees.
    met = row.margin() >= -0.0005
    return Claim(**{**asdict(row), "interval": interval, "ok": met})


def missing(results: Results) -> str:
    """A note for a claim that could not be measured."""
    reasons = results.reasons()
    return f"not measured: {reasons}" if reasons else "not measured: these cells were not run"


def worst_first(claims: Iterable[Claim]) -> list[Claim]:
    """Missed, then not measured, then met, then without target; in each the worst first."""

    def order(row: Claim) -> tuple[int, float]:
        if row.ok is False:
            return 0, row.margin()
        if row.measured is None:
            return 1, 0.0
        return (2, row.margin()) if row.ok else (3, 0.0)

    return sorted(claims, key=order)


def number(value: float | None) -> str:
    """Three significant digits, without exponents."""
    if value is None:
        return "–"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"
