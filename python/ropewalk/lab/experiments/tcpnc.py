"""TCP/NC: a tunnel over two lossy hops in a row, as in the paper on the TCP/NC tunnel in
heterogeneous environments (Nguyen Viet Ha and Masato Tsuru); three sessions, both its topologies.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TypeAlias

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures, tcpnc_selection
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.experiments.tcpnc_cases import (
    BURST,
    CASES,
    CONGESTIONS,
    DEFAULT,
    END_TO_END,
    EVERYWHERE,
    KERNEL_CASES,
    KERNEL_LOSSES,
    KINDS,
    LITERAL_LOSSES,
    LOSSES,
    NAME,
    PLAIN,
    PUBLISHED,
    QUICK,
    QUICK_CASES,
    QUICK_LOSSES,
    QUICK_PLAIN,
    TCP_NC,
    TUNNELS,
    TWO_PATHS,
    Case,
    erasure_capacity,
    lost,
    plan,
)
from ropewalk.lab.experiments.tcpnc_claims import claims as bounds
from ropewalk.lab.experiments.tcpnc_figures import figures as papers_figures
from ropewalk.lab.experiments.tcpnc_paper import claims as papers_claims
from ropewalk.lab.figures import Figure, curves
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Congestion, Plan

__all__ = ["ABOUT", "ASSUMPTIONS", "TITLE", "cells", "claims", "figures"]

TITLE = "A tunnel over two lossy hops in a row"
ABOUT = (
    "Three TCP sessions over two hops that lose up to 20 % each, alone or in bursts: end to end, "
    "through TCP/NC as published, and through a tunnel for each hop."
)
ASSUMPTIONS = (
    "Loss of 0 to 20 % on each link between gateways, towards the sinks only. The paper writes 0 "
    "to 0.2 % in section 3.1, and a greatest loss of 0.2 with a redundancy factor of 1.5 in "
    "section 2.2: we read shares. Bursts of four on average are not the paper's.",
    "Segments of 1,000 bytes. Hosts as published have neither timestamps nor window scaling, as in "
    "the paper, and no selective acknowledgements, which is our assumption: 1,040 bytes in a "
    "packet, 63 packets in a window. Other hosts are like Linux.",
    "TCP/NC: a session for each hop; GF(256), n = 20, and k for a chance of 97 % in a Gilbert "
    "model of the last 500 combinations, up to R = 1.5. The first i packets of a coding window "
    "give combination i, and the redundancy follows at its end. Answers are routed beside the "
    "sessions. docs/decisions/tcpnc.md says what the paper says and what is assumed.",
    "A sink's link of 1 ms counts with its source's of 1.5 ms; that link has the source's rate and "
    "room for 100 packets, as the links between gateways have.",
    "The paper gives no duration: 60 s, of which the first 10 do not count. All sessions start "
    "together.",
    "Each gateway between takes packets out of one tunnel and sends them into the next.",
    "Of our own arms only the tunnel that is told nothing has targets. A code chosen by hand is "
    "shown beside it, with one seed. On the kernel our tunnel runs in all cases with hosts as "
    "published, and in two cases with hosts like Linux, at 0, 10 and 20 %.",
    "In the simulator the first window of hosts as published is one segment, and their shortest "
    "timeout a second. On the kernel both are Linux's.",
)


Runs: TypeAlias = list[tuple[tuple[str, ...], Plan]]


def cells(options: Options) -> list[Cell]:
    """The paper's system in the simulator and on the kernel, and end to end in ns-3, too; ours in
    the simulator and in some cases on the kernel.

    Codes chosen by hand have no targets, so they have one seed.
    """
    if options.quick:
        lossy, new_reno = _lossy(QUICK_LOSSES, KINDS[:1]), CONGESTIONS[:1]
        both = _runs(QUICK_CASES, lossy, (*QUICK, *QUICK_PLAIN), new_reno, quick=True)
        ns3 = _runs(QUICK_CASES, lossy, (END_TO_END, PUBLISHED), new_reno, quick=True)
        return [
            *expand(options, NAME, both, "kernel"),
            *expand(options, NAME, both, "sim"),
            *expand(options, NAME, ns3, "ns3"),
        ]
    alone, every = _lossy(LOSSES, KINDS[:1]), _lossy(LOSSES, KINDS)
    papers = _runs(CASES, alone, PLAIN, ("new-reno",))
    literal = _runs(CASES, _lossy(LITERAL_LOSSES, KINDS[:1]), QUICK_PLAIN, ("new-reno",))
    ours = [
        *_runs(CASES, every, (END_TO_END, DEFAULT), CONGESTIONS),
        *_runs(CASES, every, (TCP_NC,), ("new-reno",)),
        *_runs(CASES, alone, (TWO_PATHS,), ("new-reno",)),
    ]
    real = [
        *_runs(KERNEL_CASES, _lossy(KERNEL_LOSSES, KINDS[:1]), (END_TO_END, DEFAULT), CONGESTIONS),
        *_runs(KERNEL_CASES, _lossy(KERNEL_LOSSES, KINDS[:1]), (TWO_PATHS,), ("new-reno",)),
    ]
    by_hand = _runs(CASES, every, tuple(name for name in TUNNELS if name != DEFAULT), CONGESTIONS)
    few = 1 if options.seeds is None else options.seeds
    return [
        *expand(options, NAME, papers + real + tcpnc_selection.runs(), "kernel"),
        *expand(options, NAME, papers + literal + ours + tcpnc_selection.runs(), "sim"),
        *expand(options, NAME, by_hand, "sim", few),
        *expand(options, NAME, _runs(CASES, alone, (END_TO_END, PUBLISHED), ("new-reno",)), "ns3"),
    ]


def _lossy(losses: Iterable[float], kinds: tuple[str, ...]) -> list[tuple[float, str]]:
    """Losses by kind; none at all is of one kind."""
    chosen = tuple(losses)
    return [(loss, kind) for kind in kinds for loss in chosen if loss or kind == KINDS[0]]


def _runs(
    cases: Iterable[Case],
    lossy: Iterable[tuple[float, str]],
    carriers: Iterable[str],
    controls: Iterable[Congestion],
    quick: bool = False,
) -> Runs:
    return [
        (
            (case.name, lost(loss, kind), carrier, congestion),
            plan(case, loss, kind, carrier, congestion, quick),
        )
        for case, (loss, kind), carrier, congestion in product(cases, lossy, carriers, controls)
    ]


def claims(results: Results) -> list[Claim]:
    """What the paper says of its own system and end to end, then what ours is held to."""
    return [*papers_claims(results), *bounds(results), *tcpnc_selection.claims(results)]


def figures(results: Results) -> list[Figure]:
    """The paper's figures, then goodput by loss for each case, congestion control and kind."""
    drawn = papers_figures(results)
    for runner in ("kernel", "sim"):
        for case in CASES:
            for kind in KINDS:
                for congestion in CONGESTIONS:
                    drawn += _figure(results, runner, case, kind, congestion)
    return drawn


def _figure(
    results: Results, runner: Runner, case: Case, kind: str, congestion: str
) -> list[Figure]:
    def curve(by: Runner, carrier: str) -> list[tuple[float, float]]:
        points = []
        for loss in LOSSES:
            key = lost(loss, kind if loss else KINDS[0])
            found = results.where(by, case.name, key, carrier, congestion)
            mean = estimate(list(measures.goodput(found).values()))
            if mean is not None:
                points.append((loss * 100, mean.mean))
        return points

    series = {name: curve(runner, name) for name in (*EVERYWHERE, TCP_NC, TWO_PATHS)}
    if runner == "sim" and kind == KINDS[0]:
        for name in (END_TO_END, PUBLISHED):
            series[f"{name} (ns-3)"] = curve("ns3", name)
    if not any(any(loss for loss, _ in points) for points in series.values()):
        return []
    bound = [(loss * 100, erasure_capacity(case, loss)) for loss in LOSSES]
    how = "each packet by itself" if kind == KINDS[0] else f"in bursts of {BURST:g}"
    return [
        Figure(
            f"{case.name}, {congestion}, lost {how} ({measures.on(runner)})",
            "Goodput of the three sessions together. Dashed: erasure capacity through tunnels.",
            curves(series, "loss of each link, %", "Mbit/s", bound),
        )
    ]
