"""One new download over the pairs of paths of the grid, from its first packet on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.grid import PROFILES, Profile
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, dots
from ropewalk.lab.statistics import quantile_estimate
from ropewalk.plan import Carrier, Direct, Mptcp, Plan, Tcp, Tunnel

NAME = "first-seconds"
TITLE = "The first seconds of one download"
ABOUT = (
    "One CUBIC flow over the 16 pairs of paths of `grid`, counted from its first packet for 2, 6, "
    "12 and 60 s; the tunnel and MPTCP against the better path without a tunnel. On the kernel "
    "also a tunnel that accelerates."
)
ASSUMPTIONS = (
    "The paths are those of `grid`.",
    "The tunnel is up before the flow begins, and has carried nothing.",
    "The better path is chosen for each length by its mean over all seeds. Each seed of the tunnel "
    "is divided by that mean.",
)
LENGTHS = (2, 6, 12, 60)
QUICK_LENGTHS = (2, 6)
CARRIERS: dict[str, Carrier] = {
    "direct-a": Direct("a"),
    "direct-b": Direct("b"),
    "auto": Tunnel(),
    "accelerate": Tunnel(accelerate=True),
    "mptcp": Mptcp(),
}
KERNEL_ONLY = ("accelerate",)
"""Carriers that are not simulated."""
MEDIAN, LOW = 0.98, 0.90
"""Of the better path: the median over seeds, and the 5th percentile."""
LOW_PART = 0.05


def cells(options: Options) -> list[Cell]:
    """Every carrier over every pair; a run of the greatest length has the shorter ones in it."""
    seconds = max(QUICK_LENGTHS if options.quick else LENGTHS)
    return [
        cell
        for runner in options.plan_runners
        for cell in expand(options, NAME, _cases(runner, float(seconds)), runner)
    ]


def _cases(runner: Runner, seconds: float) -> list[tuple[tuple[str, str], Plan]]:
    return [
        ((profile.name, carrier), plan(profile, carrier, seconds))
        for profile in PROFILES
        for carrier in CARRIERS
        if runner == "kernel" or carrier not in KERNEL_ONLY
    ]


def plan(profile: Profile, carrier: str, seconds: float) -> Plan:
    """One case."""
    return Plan(
        name=f"{NAME}/{profile.name}/{carrier}",
        duration_s=seconds,
        warmup_s=0.0,
        path=(profile.a.path("a"), profile.b.path("b")),
        carrier=CARRIERS[carrier],
        traffic=(Tcp(),),
    )


def carried(results: Results, seconds: int) -> list[float]:
    """Mean goodput over the first seconds, Mbit/s; a value for each seed."""
    series = [report.traffic[0].series_mbit for report in results.reports().values()]
    return [fmean(one[:seconds]) for one in series if len(one) >= seconds]


def _better(results: Results, runner: Runner, profile: str, seconds: int) -> float | None:
    """Mean goodput of the better path alone, Mbit/s."""
    alone = [
        carried(results.where(runner, profile, carrier), seconds)
        for carrier in ("direct-a", "direct-b")
    ]
    return max(fmean(values) for values in alone) if all(alone) else None


def ratios(
    results: Results, runner: Runner, profile: str, carrier: str, seconds: int
) -> list[float]:
    """Goodput by that of the better path alone; a value for each seed."""
    better = _better(results, runner, profile, seconds)
    values = carried(results.where(runner, profile, carrier), seconds)
    return [value / better for value in values] if better else []


def claims(results: Results) -> list[Claim]:
    """Median and 5th percentile of each pair and length."""
    rows = []
    for runner in results.runners():
        for profile in results.where(runner).keys(0):
            longest = max(o.cell.plan.duration_s for o in results.where(runner, profile).outcomes)
            for seconds in (length for length in LENGTHS if length <= longest):
                where = f"{profile}, {seconds} s ({measures.on(runner)})"
                rows += _claims(results, runner, profile, seconds, where)
    return rows


def _claims(
    results: Results, runner: Runner, profile: str, seconds: int, where: str
) -> list[Claim]:
    rows = []
    for name, carrier, part, said, target in (
        ("tunnel", "auto", 0.5, "median", MEDIAN),
        ("tunnel", "auto", LOW_PART, "5th percentile", LOW),
        ("accelerated tunnel", "accelerate", 0.5, "median", None),
        ("accelerated tunnel", "accelerate", LOW_PART, "5th percentile", None),
        ("MPTCP", "mptcp", 0.5, "median", None),
    ):
        if runner != "kernel" and carrier in KERNEL_ONLY:
            continue
        values = ratios(results, runner, profile, carrier, seconds)
        of = results.where(runner, profile, carrier)
        if of.reports():
            # Then a path alone is missing.
            of = results.where(runner, profile, "direct-a")
        note = "" if values else missing(of)
        found = quantile_estimate(values, part)
        rows.append(
            claim(
                f"{where}: {name} ÷ better path, {said}", "ratio", found, target=target, note=note
            )
        )
    return rows


def figures(results: Results) -> list[Figure]:
    """The median of every pair, by length, for the tunnels and for MPTCP."""
    drawn = []
    for runner in results.runners():
        rows = list(results.where(runner).keys(0))
        for carrier in ("auto", "accelerate", "mptcp"):
            series: dict[str, Sequence[float | None]] = {}
            for seconds in LENGTHS:
                found = [ratios(results, runner, row, carrier, seconds) for row in rows]
                medians = [quantile_estimate(values, 0.5) for values in found]
                if any(medians):
                    series[f"{seconds} s"] = [one.mean if one else None for one in medians]
            if series:
                drawn.append(
                    Figure(
                        f"{carrier} by the better path alone ({measures.on(runner)})",
                        "One CUBIC flow from its first packet on. Dashed: the better path.",
                        dots(rows, series, "goodput ÷ better path alone", 1.0),
                    )
                )
    return drawn
