"""HTMT: the schedulers of the paper "HTMT: High-Throughput Multipath Tunnelling for Asymmetric
Paths" (Sailer and Hähner), in the paper's tunnel and in ours, and what makes the difference.
"""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.htmt_cases import (
    NAME,
    OUR_CARRIERS,
    OURS,
    PAIRS,
    PAPER,
    PAPER_SCHEDULERS,
    PAPER_SECONDS,
    RULES,
    SIMULATED_SWITCHES,
    SWITCHED,
    SWITCHES,
    SWITCHES_BY_NAME,
    TRIPLES,
    PathSet,
    paper_plan,
    plan,
)
from ropewalk.lab.experiments.htmt_claims import claims, latency, megabytes
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Plan

__all__ = ["ABOUT", "ASSUMPTIONS", "PAIRS", "TITLE", "cells", "claims", "figures", "plan"]

TITLE = "Throughput of schedulers over equal and unequal paths"
ABOUT = (
    "5 CUBIC flows over three pairs of paths: six schedulers in a tunnel as the HTMT paper has it, "
    "and 14 schedulers, single paths and MPTCP as users get them. `--full` adds a third path, and "
    "the paper's tunnel with one setting changed at a time."
)
ASSUMPTIONS = (
    "The paper does not say whether its delays are one way or round trips. Round trips, as in the "
    "authors' scripts: each direction gets half.",
    "The paper does not give the queue. Its tunnel gets netem's default, 1,000 packets, as in the "
    "authors' scripts; ours gets 128 KiB in each direction.",
    "The paper's tunnel has send buffers of 5 packets (tx_qlen) and an MTU of 1,419 bytes, as in "
    "the authors' scripts, which may be later than the figure.",
    "The paper does not name the congestion control of DCCP. CCID 2, as in the authors' scripts: "
    "NewReno of QUIC stands for it, which paces, and finds losses by time.",
    "The paper's figure has two paths. The paper speaks of three sub-channels, too, and shows no "
    "figure with them, so its figures for two stand beside ours for three.",
    "The paper's flows begin and end at the gateways of the tunnel; here hosts are behind them.",
    "Megabytes are scaled to the paper's 70 s where a run is shorter.",
    "The paper gives no interval and no number of runs: its ratios may differ by 0.1.",
    "Latency is that of pings beside the flows; the paper's is that of the flows.",
)
QUICK_SECONDS, QUICK_WARMUP_SECONDS = 15.0, 3.0


def cells(options: Options) -> list[Cell]:
    """Our arm, the paper's, and the switches; MPTCP on the kernel only."""
    seconds = QUICK_SECONDS if options.quick else float(PAPER_SECONDS)
    warmup = QUICK_WARMUP_SECONDS if options.quick else 0.0
    ours = [
        ((OURS, pair.name, name), plan(pair, name, seconds, warmup))
        for pair in PAIRS
        for name in OUR_CARRIERS
    ]
    paper = [
        ((PAPER, paths.name, name), paper_plan(paths, name, seconds))
        for paths in (PAIRS if options.quick else (*PAIRS, *TRIPLES))
        for name in PAPER_SCHEDULERS
    ]
    switched = [] if options.quick else _switched(seconds)
    simulated = [case for case in ours if case[0][-1] != "mptcp"]
    real = [case for case in switched if case[0][-1] not in SIMULATED_SWITCHES]
    return expand(options, NAME, [*ours, *paper, *real], "kernel") + expand(
        options, NAME, [*simulated, *paper, *switched], "sim"
    )


def _switched(seconds: float) -> list[tuple[tuple[str, ...], Plan]]:
    return [
        ((SWITCHES, pair.name, scheduler, name), switch(paper_plan(pair, scheduler, seconds)))
        for pair in PAIRS
        for name, switch in SWITCHES_BY_NAME.items()
        for scheduler in SWITCHED
    ]


def figures(results: Results) -> list[Figure]:
    """Megabytes in 70 s and round trips in the paper's tunnel, and megabytes in ours."""
    drawn = []
    for paths in (*PAIRS, *TRIPLES):
        if any(results.where(r, PAPER, paths.name).planned() for r in results.runners()):
            drawn += _paper_figures(results, paths)
    drawn += [_our_figure(results, pair) for pair in PAIRS]
    for runner in results.runners():
        drawn += [
            _switches_figure(results, runner, pair)
            for pair in PAIRS
            if results.where(runner, SWITCHES, pair.name).planned()
        ]
    return drawn


def _switches_figure(results: Results, runner: Runner, pair: PathSet) -> Figure:
    series = {}
    for scheduler in SWITCHED:
        found = [
            megabytes(results.where(runner, SWITCHES, pair.name, scheduler, name))
            for name in SWITCHES_BY_NAME
        ]
        series[scheduler] = [measures.bar(estimate(list(values.values()))) for values in found]
    return Figure(
        f"One change at a time, {pair.name} ({measures.on(runner)})",
        "Delivered in 70 s in the paper's tunnel, with the one change named beside the bars.",
        bars(list(SWITCHES_BY_NAME), series, "MB"),
    )


def _paper_figures(results: Results, paths: PathSet) -> list[Figure]:
    said = {**paths.paper, **dict.fromkeys(RULES, paths.paper["htmt"])}
    megabyte_bars, delay_bars = (
        {
            measures.on(runner): [
                measures.bar(
                    estimate(list(of(results.where(runner, PAPER, paths.name, name)).values()))
                )
                for name in PAPER_SCHEDULERS
            ]
            for runner in results.runners()
        }
        for of in (megabytes, latency)
    )
    return [
        Figure(
            f"The paper's tunnel, {paths.name}: {paths.described}",
            "Delivered in 70 s by five CUBIC flows. Black: as the paper says, where it does.",
            bars(
                PAPER_SCHEDULERS, megabyte_bars, "MB", [said.get(name) for name in PAPER_SCHEDULERS]
            ),
        ),
        Figure(
            f"The paper's tunnel, {paths.name}: round trips",
            "Mean round-trip time of pings beside the flows. The paper gives no numbers.",
            bars(PAPER_SCHEDULERS, delay_bars, "ms"),
        ),
    ]


def _our_figure(results: Results, pair: PathSet) -> Figure:
    series = {
        measures.on(runner): [
            measures.bar(
                estimate(list(megabytes(results.where(runner, OURS, pair.name, name)).values()))
            )
            for name in OUR_CARRIERS
        ]
        for runner in results.runners()
    }
    said = {**pair.paper, **dict.fromkeys(RULES, pair.paper["htmt"])}
    return Figure(
        f"Our tunnel, {pair.name}: {pair.described}",
        "Delivered in 70 s by five CUBIC flows. Black: as the paper says of its tunnel.",
        bars(list(OUR_CARRIERS), series, "MB", [said.get(name) for name in OUR_CARRIERS]),
    )
