"""HTMT: fourteen schedulers over three pairs of paths, as in the paper on High-throughput
Multipath Tunnelling; and what default paths of a tunnel that is told nothing reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Carrier, Direct, Link, Mptcp, Path, Ping, Plan, Tcp, Tunnel

NAME = "htmt"
TITLE = "Throughput of schedulers over equal and unequal paths"
ABOUT = "14 schedulers, single paths and MPTCP; 5 CUBIC flows over three pairs of paths."
ASSUMPTIONS = (
    "The delays of the paper are round-trip times; each direction gets half.",
    "The paper does not give the queue: 128 KiB in each direction.",
    "The paper does not say which sub-tunnels each figure used: two, as its bounds suggest.",
    "Megabytes are scaled to the paper's 70 s where a run is shorter.",
    "No order between schedulers is claimed where the paper gives no figure for one of them.",
)

PAPER_SECONDS = 70
RULES = ("htmt-paper", "htmt-prototype", "htmt")
"""The rule as the paper writes it, as the authors' program codes it, and our redesign."""
ASYMMETRIC = ("unequal", "crossed")


@dataclass(frozen=True)
class Pair:
    """Two paths (Mbit/s, RTT in ms), and the paper's megabytes in 70 s by scheduler."""

    name: str
    a: tuple[float, float]
    b: tuple[float, float]
    paper: dict[str, float]


PAIRS = (
    Pair("equal", (8, 50), (8, 50), {"htmt": 80, "low-rtt": 80, "otias": 65, "afmt": 65}),
    Pair("unequal", (16, 50), (8, 70), {"htmt": 180, "low-rtt": 155}),
    Pair("crossed", (8, 50), (16, 70), {"htmt": 160, "low-rtt": 125}),
)

CARRIERS: dict[str, Carrier] = {
    **{name: Tunnel(scheduler=name) for name in measures.SCHEDULERS},
    "direct-a": Direct("a"),
    "direct-b": Direct("b"),
    "mptcp": Mptcp(),
}


def cells(options: Options) -> list[Cell]:
    """Every carrier over every pair; MPTCP on the kernel only."""
    duration, warmup = (15.0, 3.0) if options.quick else (float(PAPER_SECONDS), 0.0)
    cases = [
        ((pair.name, name), plan(pair, name, duration, warmup))
        for pair in PAIRS
        for name in CARRIERS
    ]
    simulated = [case for case in cases if case[0][1] != "mptcp"]
    return expand(options, NAME, cases, "kernel") + expand(options, NAME, simulated, "sim")


def plan(pair: Pair, carrier: str, duration_s: float, warmup_s: float) -> Plan:
    """One case."""
    return Plan(
        name=f"{NAME}/{pair.name}/{carrier}",
        duration_s=duration_s,
        warmup_s=warmup_s,
        path=tuple(
            Path(name, Link(rate_mbit=rate, delay_ms=rtt / 2, queue_bytes=128 * 1024))
            for name, (rate, rtt) in (("a", pair.a), ("b", pair.b))
        ),
        carrier=CARRIERS[carrier],
        traffic=(Tcp(flows=5), Ping()),
    )


def claims(results: Results) -> list[Claim]:
    """Order and ratios of the paper's figure, and the ceiling."""
    return [
        row
        for runner in results.runners()
        for pair in PAIRS
        for row in (*_paper(results, runner, pair), *_ceilings(results, runner, pair))
    ]


def _paper(results: Results, runner: Runner, pair: Pair) -> list[Claim]:
    """The paper's order: HTMT before the others, with the paper's ratio beside ours.

    The paper gives neither runs nor variance, so that only its order is asked for; where it says
    that two are equal, they may differ by 5 %.
    """
    rows = []
    for ours in RULES:
        above = results.where(runner, pair.name, ours)
        megabytes = {
            seed: rate / 8 * PAPER_SECONDS for seed, rate in measures.goodput(above).items()
        }
        name = f"{pair.name}: {ours}, MB in 70 s ({measures.on(runner)})"
        paper = pair.paper["htmt"]
        rows.append(measures.value(name, "MB", above, megabytes, None, paper=paper))
        for other, said in pair.paper.items():
            if other == "htmt":
                continue
            ratio = pair.paper["htmt"] / said
            rows.append(
                measures.compare(
                    f"{pair.name}: {ours} ÷ {other} ({measures.on(runner)})",
                    above,
                    results.where(runner, pair.name, other),
                    1.0 if ratio > 1.0 else 0.95,
                    paper=ratio,
                    note="the paper's order" if ratio > 1.0 else "equal in the paper",
                )
            )
    return rows


def _ceilings(results: Results, runner: Runner, pair: Pair) -> list[Claim]:
    target = 0.96 if pair.name in ASYMMETRIC else 0.95
    return [
        measures.reach(
            f"{pair.name}: {name} ÷ ceiling ({measures.on(runner)})",
            results.where(runner, pair.name, name),
            target,
        )
        for name in ("auto", "htmt")
    ]


def figures(results: Results) -> list[Figure]:
    """Megabytes in 70 s by carrier, the paper's beside ours."""
    drawn = []
    for pair in PAIRS:
        series = {
            measures.on(runner): [
                measures.bar(
                    estimate(
                        list(measures.goodput(results.where(runner, pair.name, name)).values())
                    ),
                    PAPER_SECONDS / 8,
                )
                for name in CARRIERS
            ]
            for runner in results.runners()
        }
        (a_rate, a_rtt), (b_rate, b_rtt) = pair.a, pair.b
        paper = {**pair.paper, **dict.fromkeys(RULES, pair.paper["htmt"])}
        drawn.append(
            Figure(
                f"{pair.name}: {a_rate:g} Mbit/s, {a_rtt:g} ms and {b_rate:g} Mbit/s, {b_rtt:g} ms",
                "Delivered in 70 s by five CUBIC flows. Black: as the paper says, where it does.",
                bars(list(CARRIERS), series, "MB", [paper.get(name) for name in CARRIERS]),
            )
        )
    return drawn
