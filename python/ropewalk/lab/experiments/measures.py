"""What claims are made of: measurements by seed, and ratios of them."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.lab.cell import Results, Runner
from ropewalk.lab.claims import Claim, Relation, claim, missing
from ropewalk.lab.figures import Bar
from ropewalk.lab.statistics import Estimate, estimate, paired_ratio, share

SCHEDULERS = (
    "auto",
    "htmt",
    "htmt-paper",
    "htmt-prototype",
    "low-rtt",
    "ecf",
    "blest",
    "otias",
    "afmt",
    "round-robin",
    "weighted-round-robin",
    "redundant",
    "active-backup",
    "cost-aware",
)
"""The schedulers that experiments compare, by the names of `crates/types/src/registry.rs`."""


def goodput(results: Results) -> dict[int, float]:
    """Mbit/s of all bulk traffic, by seed."""
    return {seed: report.goodput_mbit for seed, report in results.reports().items()}


def ceiling(results: Results) -> dict[int, float]:
    """What the paths in use allow, Mbit/s, by seed."""
    return {seed: report.ceiling_mbit for seed, report in results.reports().items()}


def ping_p95(results: Results) -> dict[int, float]:
    """95th percentile of the round-trip time, ms, by seed."""
    pings = {seed: report.ping() for seed, report in results.reports().items()}
    return {seed: p.delay_ms.p95 for seed, p in pings.items() if p is not None and p.delay_ms}


def stall(results: Results) -> dict[int, float]:
    """Longest time without any delivery, seconds, by seed."""
    bulks = {seed: report.bulk() for seed, report in results.reports().items()}
    return {
        seed: bulk.longest_stall_seconds
        for seed, bulk in bulks.items()
        if bulk is not None and bulk.longest_stall_seconds is not None
    }


def mean(values: dict[int, float]) -> float:
    """Arithmetic mean; zero of nothing."""
    return sum(values.values()) / len(values) if values else 0.0


def best(*candidates: Results) -> Results:
    """The candidate with the most goodput on average.

    The path is chosen once for all seeds: the better one of each seed would gain from chance.
    """
    return max(candidates, key=lambda results: mean(goodput(results)))


def efficiency(results: Results) -> Estimate | None:
    """Goodput by ceiling."""
    return paired_ratio(goodput(results), ceiling(results))


def compare(
    name: str,
    above: Results,
    below: Results,
    target: float | None,
    *,
    relation: Relation = ">=",
    paper: float | None = None,
    tolerance: float = 0.0,
    note: str = "",
) -> Claim:
    """A claim on the ratio of two goodputs, seed by seed."""
    ratio = paired_ratio(goodput(above), goodput(below))
    if ratio is None:
        note = missing(above if not above.reports() else below)
    return claim(
        name, "ratio", ratio, relation=relation, target=target, paper=paper, note=note,
        tolerance=tolerance,
    )  # fmt: skip


def value(
    name: str,
    unit: str,
    results: Results,
    values: dict[int, float],
    target: float | None,
    *,
    relation: Relation = ">=",
    paper: float | None = None,
    tolerance: float = 0.0,
    note: str = "",
) -> Claim:
    """A claim on a measured value."""
    measured = estimate(list(values.values()))
    if measured is None:
        note = missing(results)
    return claim(
        name, unit, measured, relation=relation, target=target, paper=paper, note=note,
        tolerance=tolerance,
    )  # fmt: skip


NEVER_SHARE_MAX = 0.05
"""What must not happen is `ok` only after so many runs without it that it happens less often than
this, with 95 % certainty: 59 of them."""


def never(
    name: str,
    results: Results,
    events: Sequence[bool],
    *,
    judged: bool = True,
    paper: float | None = None,
    note: str = "",
) -> Claim:
    """A claim that none of the runs, which are independent, has an event."""
    found = share(events)
    if found is None:
        note = missing(results)
    return claim(
        name, "of runs", found, relation="never", target=NEVER_SHARE_MAX if judged else None,
        paper=paper, note=note,
    )  # fmt: skip


def reach(name: str, results: Results, target: float, note: str = "") -> Claim:
    """A claim on goodput by ceiling."""
    ratio = efficiency(results)
    note = missing(results) if ratio is None else note
    return claim(name, "of ceiling", ratio, target=target, note=note)


def efficiency_of_both(
    results: Results, runner: Runner, case: str, carrier: str
) -> Estimate | None:
    """Goodput of a carrier by the ceiling of the tunnel over all paths, in the same case."""
    both = ceiling(results.where(runner, case, "auto"))
    return paired_ratio(goodput(results.where(runner, case, carrier)), both)


def bar(measured: Estimate | None, scale: float = 1.0) -> Bar | None:
    """An estimate as a bar."""
    if measured is None:
        return None
    interval = None
    if measured.low is not None and measured.high is not None:
        interval = (measured.low * scale, measured.high * scale)
    return Bar(measured.mean * scale, interval)


def on(runner: Runner) -> str:
    """Ends the name of a claim."""
    return "kernel" if runner == "kernel" else "simulator"
