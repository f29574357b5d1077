"""HTMT: the schedulers of the paper "HTMT: High-Throughput Multipath Tunnelling for Asymmetric
Paths" (Sailer and Hähner), in the paper's tunnel and in ours, and what makes the difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.htmt_cases import (
    JUDGED,
    NAME,
    OUR_CARRIERS,
    OURS,
    PAIRS,
    PAPER,
    PAPER_SECONDS,
    PER_FLOW,
    READINGS,
    RULES,
    SIMULATED_SWITCHES,
    SWITCHED,
    SWITCHES,
    SWITCHES_BY_NAME,
    TRIPLES,
    PathSet,
    Reading,
    paper_plan,
    per_flow_plan,
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
    "5 CUBIC flows over three pairs of paths: six schedulers in one reading of the HTMT paper's "
    "tunnel, three of them in a second, and 14 schedulers, single paths and MPTCP as users get "
    "them. `--full` adds a third path in the simulator, and the paper's tunnel with one setting "
    "changed at a time."
)
ASSUMPTIONS = (
    "The paper does not say whether its delays are one way or round trips. Round trips, as in the "
    "authors' scripts: each direction gets half.",
    "The paper does not give the length of the queue. Its tunnel gets netem's default, 1,000 "
    "packets, as in the authors' scripts; ours gets 128 KiB in each direction.",
    "The paper's tunnel has send buffers of 5 packets (tx_qlen) and an MTU of 1,419 bytes, as in "
    "the authors' scripts, which may be later than the figure.",
    "The paper does not say in what packets wait for a free slot. In the authors' program they "
    "wait in one queue, and the paper's interfaces have pfifo_fast: arm `paper`. The arm "
    "`paper-per-flow` is a reading of ours: a queue per flow.",
    "The paper does not name the congestion control of DCCP. CCID 2, as in the authors' scripts: "
    "NewReno of QUIC stands for it, which paces, and finds losses by time.",
    "The paper's figure has two paths. The paper speaks of three sub-channels, too, and shows no "
    "figure with them, so its figures for two stand beside ours for three, and are no targets.",
    "On the kernel a case without target has one seed, and three sub-tunnels do not run.",
    "The paper's flows begin and end at the gateways of the tunnel; here hosts are behind them.",
    "Megabytes are scaled to the paper's 70 s where a run is shorter.",
    "The paper's text gives no interval and no number of runs: its ratios may differ by 0.1.",
    "Latency is that of pings beside the flows; the paper's is that of the flows.",
)
QUICK_SECONDS, QUICK_WARMUP_SECONDS = 15.0, 3.0


Runs: TypeAlias = list[tuple[tuple[str, ...], Plan]]


def cells(options: Options) -> list[Cell]:
    """Both readings of the paper's tunnel, our tunnel and the switches; MPTCP on the kernel only.

    On the kernel a case without target has one seed, and three sub-tunnels do not run.
    """
    seconds = QUICK_SECONDS if options.quick else float(PAPER_SECONDS)
    warmup = QUICK_WARMUP_SECONDS if options.quick else 0.0
    judged = _ours(JUDGED, seconds, warmup)
    others = [name for name in OUR_CARRIERS if name not in JUDGED]
    pairs, triples = _published(PAIRS, seconds), _published(TRIPLES, seconds)
    switched = [] if options.quick else _switched(seconds)
    real = [case for case in switched if case[0][-1] not in SIMULATED_SWITCHES]
    simulated = [name for name in others if name != "mptcp"]
    few = 1 if options.seeds is None else options.seeds
    return [
        *expand(options, NAME, [*judged, *pairs], "kernel"),
        *expand(options, NAME, [*_ours(others, seconds, warmup), *real], "kernel", few),
        *expand(options, NAME, [*judged, *_ours(simulated, seconds, warmup), *pairs], "sim"),
        *expand(options, NAME, [*([] if options.quick else triples), *switched], "sim"),
    ]


def _ours(names: Iterable[str], seconds: float, warmup: float) -> Runs:
    return [
        ((OURS, pair.name, name), plan(pair, name, seconds, warmup))
        for pair in PAIRS
        for name in names
    ]


def _published(sets: Iterable[PathSet], seconds: float) -> Runs:
    make = {PAPER: paper_plan, PER_FLOW: per_flow_plan}
    return [
        ((reading.arm, paths.name, name), make[reading.arm](paths, name, seconds))
        for reading in READINGS
        for paths in sets
        for name in reading.schedulers
    ]


def _switched(seconds: float) -> Runs:
    return [
        ((SWITCHES, pair.name, scheduler, name), switch(paper_plan(pair, scheduler, seconds)))
        for pair in PAIRS
        for name, switch in SWITCHES_BY_NAME.items()
        for scheduler in SWITCHED
    ]


def figures(results: Results) -> list[Figure]:
    """MiB in 70 s and round trips in the paper's tunnel, and MiB in ours."""
    drawn = []
    for reading in READINGS:
        for paths in (*PAIRS, *TRIPLES):
            if any(results.where(r, reading.arm, paths.name).planned() for r in results.runners()):
                drawn += _paper_figures(results, reading, paths)
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
            results.where(runner, reading.arm_of(scheduler), pair.name, scheduler)
            for reading in READINGS
        ] + [
            results.where(runner, SWITCHES, pair.name, scheduler, name) for name in SWITCHES_BY_NAME
        ]
        series[scheduler] = [measures.bar(estimate(list(megabytes(r).values()))) for r in found]
    return Figure(
        f"One change at a time, {pair.name} ({measures.on(runner)})",
        "Delivered in 70 s in the paper's tunnel, with the one change named beside the bars.",
        bars([*(r.words for r in READINGS), *SWITCHES_BY_NAME], series, "MiB"),
    )


def _paper_figures(results: Results, reading: Reading, paths: PathSet) -> list[Figure]:
    said = {**paths.paper, **dict.fromkeys(RULES, paths.paper["htmt"])}
    megabyte_bars, delay_bars = (
        {
            measures.on(runner): [
                measures.bar(
                    estimate(
                        list(of(results.where(runner, reading.arm, paths.name, name)).values())
                    )
                )
                for name in reading.schedulers
            ]
            for runner in results.runners()
        }
        for of in (megabytes, latency)
    )
    return [
        Figure(
            f"The {reading.words}, {paths.name}: {paths.described}",
            "Delivered in 70 s by five CUBIC flows. Black: as the paper says, where it does. "
            f"Here {reading.source}.",
            bars(
                reading.schedulers,
                megabyte_bars,
                "MiB",
                [said.get(name) for name in reading.schedulers],
            ),
        ),
        Figure(
            f"The {reading.words}, {paths.name}: round trips",
            "Mean round-trip time of pings beside the flows. The paper gives no numbers.",
            bars(reading.schedulers, delay_bars, "ms"),
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
        bars(list(OUR_CARRIERS), series, "MiB", [said.get(name) for name in OUR_CARRIERS]),
    )
