"""Claims: what an experiment must show, beside what it showed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from ropewalk.lab.cell import Results
from ropewalk.lab.statistics import SEEDS_MIN, Estimate
from ropewalk.report import NUMBER_MAX

Relation: TypeAlias = Literal[">=", "<=", "within", "never", "none"]
"""With `never`, the measured figure is the share of runs with an event that none may have; the
interval must exclude the target, which is a share, too."""
Verdict: TypeAlias = Literal["ok", "not ok", "undecided", "no data", "no target"]

VERDICTS: tuple[Verdict, ...] = ("not ok", "undecided", "no data", "ok", "no target")
"""All, in the order in which reports show them: what needs a look comes first."""
UNPLANNED = "not measured: these cells were not asked for"
"""The note of a claim on cells that are not part of a session: such claims are left out."""
_SLACK = 0.0005
"""Of the target. What counts is the figure that is shown: no verdict hangs on a digit that nobody
sees."""


@dataclass(frozen=True)
class Claim:
    """One row of the claims table. The note says why a claim has no data or too few."""

    name: str
    unit: str
    paper: float | None
    relation: Relation
    target: float | None
    measured: float | None
    interval: tuple[float, float] | None
    seeds: int
    note: str = ""
    tolerance: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Whether the whole 95 % interval meets the target, all of it misses, or neither.

        Without an interval the answer is `undecided`, whatever the mean says.
        """
        if self.measured is None:
            return "no data"
        if self.target is None or self.relation == "none":
            return "no target"
        if self.relation == "never" and self.measured > 0:
            return "not ok"
        if self.interval is None:
            return "undecided"
        least, most = self._range()
        low, high = self.interval
        if least <= low and high <= most:
            return "ok"
        return "not ok" if high < least or low > most else "undecided"

    @property
    def mean_meets(self) -> bool | None:
        """Whether the mean meets the target, whatever its interval; `None` without either."""
        if self.measured is None or self.target is None or self.relation == "none":
            return None
        if self.relation == "never":
            return self.measured == 0
        least, most = self._range()
        return least <= self.measured <= most

    def to_json(self) -> dict[str, Any]:
        """The row as `result.json` has it."""
        row = asdict(self)
        row["interval"] = None if self.interval is None else list(self.interval)
        return {**row, "verdict": self.verdict, "mean_meets": self.mean_meets}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Claim:
        """The claim that `to_json` has written.

        Raises:
            TypeError, ValueError, KeyError: when the row is something else.
        """
        interval = row["interval"]
        if interval is not None:
            low, high = map(_figure, interval)
            interval = (low, high)
        for key in ("paper", "target", "measured"):
            if row[key] is not None:
                _figure(row[key])
        _figure(row["tolerance"])
        if not all(isinstance(row[key], str) for key in ("name", "unit", "note")):
            raise TypeError("a name, unit or note is no text")
        if row["relation"] not in get_args(Relation) or type(row["seeds"]) is not int:
            raise ValueError(f"relation {row['relation']}, seeds {row['seeds']}")
        kept = {field.name: row[field.name] for field in fields(cls)}
        return cls(**{**kept, "interval": interval})

    def wanted(self) -> str:
        """The target as people read it."""
        if self.target is None or self.relation == "none":
            return ""
        if self.relation == "within":
            return f"{number(self.target)} ± {number(self.tolerance)}"
        if self.relation == "never":
            return f"none, and less than {number(self.target)} for sure"
        return f"{'≥' if self.relation == '>=' else '≤'} {number(self.target)}"

    def found(self) -> str:
        """The mean with its interval as people read them."""
        if self.interval is None:
            return number(self.measured)
        return f"{number(self.measured)} ({number(self.interval[0])} to {number(self.interval[1])})"

    def margin(self) -> float:
        """How far the mean meets the target, relative to it: negative is missed, least is worst."""
        if self.measured is None:
            return -math.inf
        if self.target is None or self.relation == "none":
            return math.inf
        scale = abs(self.target) or 1.0
        difference = (self.measured - self.target) / scale
        match self.relation:
            case ">=":
                return difference
            case "<=" | "never":
                return -difference
            case "within":
                return self.tolerance / scale - abs(difference)

    def _range(self) -> tuple[float, float]:
        """Least and greatest value that meet the target."""
        assert self.target is not None, self.name
        slack = _SLACK * (abs(self.target) or 1.0)
        match self.relation:
            case ">=":
                return self.target - slack, math.inf
            case "<=" | "never":
                return -math.inf, self.target + slack
            case "within":
                allowed = self.tolerance + slack
                return self.target - allowed, self.target + allowed
            case "none":
                return -math.inf, math.inf


def _figure(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    # What is not a number is in no order with any.
    if not abs(value) <= NUMBER_MAX:
        raise ValueError(f"{value} is not finite, or too large")
    return float(value)


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
    """A claim on an estimate. Its verdict is by the interval, and says so where there is none."""
    interval = None
    if measured is not None and measured.low is not None and measured.high is not None:
        interval = (measured.low, measured.high)
    if measured is not None and target is not None and interval is None:
        few = f"too few seeds for a verdict: {measured.count} of at least {SEEDS_MIN}"
        note = f"{note}; {few}" if note else few
    return Claim(
        name=name,
        unit=unit,
        paper=paper,
        relation="none" if target is None else relation,
        target=target,
        measured=None if measured is None else measured.mean,
        interval=interval,
        seeds=0 if measured is None else measured.count,
        note=note,
        tolerance=tolerance,
    )


def missing(results: Results) -> str:
    """A note for a claim that could not be measured."""
    reasons = results.reasons()
    return f"not measured: {reasons}" if reasons else UNPLANNED


def rank(row: Claim) -> tuple[int, float]:
    """Orders claims by verdict as in `VERDICTS`, and in each the worst mean first."""
    return VERDICTS.index(row.verdict), row.margin()


def worst_first(claims: Iterable[Claim]) -> list[Claim]:
    """The claims in the order of `rank`."""
    return sorted(claims, key=rank)


def tally(claims: Iterable[Claim]) -> dict[Verdict, int]:
    """How many claims have each verdict, in the order of `VERDICTS`."""
    found = [row.verdict for row in claims]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def number(value: float | None) -> str:
    """Three significant digits, without exponents."""
    if value is None:
        return "–"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"
