"""What `htmt` must show, and the words of its paper beside what it shows."""

from __future__ import annotations

from itertools import product

from ropewalk.lab.cell import Results, Runner
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.htmt_cases import (
    ASYMMETRIC,
    OTHERS,
    OURS,
    PAIRS,
    PAPER,
    PAPER_SECONDS,
    PUBLISHED,
    READINGS,
    RULES,
    SWITCHED,
    SWITCHES,
    SWITCHES_BY_NAME,
    TRIPLES,
    UNPUBLISHED,
    PathSet,
    Reading,
)
from ropewalk.lab.statistics import jain, paired_ratio

RATIO_TOLERANCE = 0.1
"""The paper says "roughly" or "about" with five of its eight megabytes, all rounded to five."""
NOTICEABLE = 1.05
"""Ratio from which HTMT is "noticeably better" than OTIAS and AFMT on unequal pairs, as we read
that."""
MEBI = 1.048576
"""Megabytes of iperf, which the paper used, have 2²⁰ bytes."""
FAIRNESS_TOLERANCE = 0.1
"""Of Jain's index. The paper only says "comparably fair"."""


def claims(results: Results) -> list[Claim]:
    """Ratios, latency and fairness of the paper; the ceiling of ours; the switches."""
    rows = []
    for runner in results.runners():
        for reading, paths in product(READINGS, (*PAIRS, *TRIPLES)):
            rows += _ratios(results, runner, reading, paths)
            rows += _latency(results, runner, reading, paths)
            rows += _fairness(results, runner, reading, paths)
        for pair in PAIRS:
            rows += _ours(results, runner, pair)
            rows += _switches(results, runner, pair)
    return rows


def megabytes(results: Results) -> dict[int, float]:
    """Megabytes of 2²⁰ bytes in the paper's 70 s, by seed."""
    times = PAPER_SECONDS / 8 / MEBI
    return {seed: rate * times for seed, rate in measures.goodput(results).items()}


def latency(results: Results) -> dict[int, float]:
    """Mean round-trip time of pings beside the flows, ms, by seed."""
    pings = {seed: report.ping() for seed, report in results.reports().items()}
    return {seed: p.delay_ms.mean for seed, p in pings.items() if p is not None and p.delay_ms}


def evenness(results: Results) -> dict[int, float]:
    """Jain's index of the flows' goodputs, by seed."""
    bulks = {seed: report.bulk() for seed, report in results.reports().items()}
    found = {
        seed: jain([flow.goodput_mbit for flow in bulk.flows])
        for seed, bulk in bulks.items()
        if bulk is not None
    }
    return {seed: index for seed, index in found.items() if index is not None}


def _ratios(results: Results, runner: Runner, reading: Reading, paths: PathSet) -> list[Claim]:
    """The paper's megabytes and ratios. Without a figure of the paper there is no target.

    The figure is of two sub-tunnels, so three have its ratio beside them, and no target.
    """
    rows = []
    for rule in RULES:
        above = results.where(runner, reading.arm, paths.name, rule)
        if not above.planned():
            continue
        rows.append(
            measures.value(
                f"{reading.words}, {paths.name}: {rule}, MiB in 70 s ({measures.on(runner)})",
                "MiB",
                above,
                megabytes(above),
                None,
                paper=paths.paper["htmt"],
                note=reading.source,
            )
        )
        for other in OTHERS:
            below = results.where(runner, reading.arm_of(other), paths.name, other)
            said = paths.paper.get(other)
            ratio = None if said is None else paths.paper["htmt"] / said
            # Of unequal pairs the paper says of OTIAS and AFMT that HTMT is noticeably better.
            better = said is None and other in PUBLISHED and paths in PAIRS
            rows.append(
                measures.compare(
                    f"{reading.words}, {paths.name}: {rule} ÷ {other} ({measures.on(runner)})",
                    above,
                    below,
                    NOTICEABLE if better else ratio if paths in PAIRS else None,
                    relation=">=" if better else "within",
                    paper=ratio,
                    tolerance=0.0 if better else RATIO_TOLERANCE,
                    note=_about(reading, paths, other),
                )
            )
    return rows


def _about(reading: Reading, paths: PathSet, other: str) -> str:
    if other not in paths.paper and other in PUBLISHED:
        return f"the paper: noticeably better, without a figure; {reading.source}"
    if other not in paths.paper:
        return f"not in the paper; {reading.source}"
    if paths not in PAIRS:
        return f"the paper's figure is of two sub-tunnels; {reading.source}"
    return reading.source


def _latency(results: Results, runner: Runner, reading: Reading, paths: PathSet) -> list[Claim]:
    """HTMT's flows have a "lower" latency on average, which we read as the lowest, and AFMT's the
    highest; the paper gives no numbers."""
    rows = []
    for rule in RULES:
        for other in PUBLISHED:
            name = f"{reading.words}, {paths.name}: round trips, {rule} ÷ {other}"
            one = results.where(runner, reading.arm, paths.name, rule)
            two = results.where(runner, reading.arm_of(other), paths.name, other)
            rows += _delays(name, runner, one, two, "<=", "the paper: HTMT's are lower")
    for other in reading.schedulers:
        # HTMT beside AFMT stands above.
        if other in ("afmt", *RULES, *UNPUBLISHED):
            continue
        name = f"{reading.words}, {paths.name}: round trips, afmt ÷ {other}"
        one = results.where(runner, reading.arm_of("afmt"), paths.name, "afmt")
        two = results.where(runner, reading.arm, paths.name, other)
        rows += _delays(name, runner, one, two, ">=", "the paper: AFMT's are the highest")
    return rows


def _delays(
    name: str, runner: Runner, one: Results, two: Results, relation: str, note: str
) -> list[Claim]:
    if not one.planned() or not two.planned():
        return []
    ratio = paired_ratio(latency(one), latency(two))
    if ratio is None:
        note = missing(one if not one.reports() else two)
    return [
        claim(
            f"{name} ({measures.on(runner)})",
            "ratio",
            ratio,
            relation="<=" if relation == "<=" else ">=",
            target=1.0,
            note=note,
        )
    ]


def _fairness(results: Results, runner: Runner, reading: Reading, paths: PathSet) -> list[Claim]:
    """All schedulers share the paths among the five flows about equally."""
    rows = []
    for scheduler in reading.schedulers:
        if scheduler in UNPUBLISHED:
            continue
        found = results.where(runner, reading.arm, paths.name, scheduler)
        if not found.planned():
            continue
        rows.append(
            measures.value(
                f"{reading.words}, {paths.name}: {scheduler}, Jain's index of five flows "
                f"({measures.on(runner)})",
                "index",
                found,
                evenness(found),
                1.0 - FAIRNESS_TOLERANCE,
                note="the paper: comparably fair",
            )
        )
    return rows


def _ours(results: Results, runner: Runner, pair: PathSet) -> list[Claim]:
    """Our tunnel reaches the ceiling, and carries what the paper's carries at least."""
    rows = []
    target = 0.96 if pair.name in ASYMMETRIC else 0.95
    for name in ("auto", "htmt"):
        found = results.where(runner, OURS, pair.name, name)
        if not found.planned():
            continue
        rows.append(
            measures.reach(
                f"our tunnel, {pair.name}: {name} ÷ ceiling ({measures.on(runner)})", found, target
            )
        )
        for rule in RULES:
            other = results.where(runner, PAPER, pair.name, rule)
            if other.planned():
                rows.append(
                    measures.compare(
                        f"{pair.name}: {name} in our tunnel ÷ {rule} in the paper's "
                        f"({measures.on(runner)})",
                        found,
                        other,
                        1.0,
                    )
                )
    return rows


def _switches(results: Results, runner: Runner, pair: PathSet) -> list[Claim]:
    """The ratio of HTMT to the others after each change alone; without target, but the paper's."""
    rows = []
    for switch in SWITCHES_BY_NAME:
        for rule in RULES:
            above = results.where(runner, SWITCHES, pair.name, rule, switch)
            for other in (name for name in SWITCHED if name not in RULES):
                below = results.where(runner, SWITCHES, pair.name, other, switch)
                if not above.planned() or not below.planned():
                    continue
                said = pair.paper.get(other)
                rows.append(
                    measures.compare(
                        f"{switch}, {pair.name}: {rule} ÷ {other} ({measures.on(runner)})",
                        above,
                        below,
                        None,
                        paper=None if said is None else pair.paper["htmt"] / said,
                    )
                )
    return rows
