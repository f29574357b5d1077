"""Figures 6, 7 and 8 of the paper on the TCP/NC tunnel, drawn from our runs."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

from ropewalk.lab.cell import Results, Runner
from ropewalk.lab.experiments.tcpnc_cases import (
    CASES,
    LOSSES,
    PLAIN,
    PUBLISHED,
    TCP_NC_PUBLISHED,
    Case,
    lost,
)
from ropewalk.lab.experiments.tcpnc_paper import by_session, on
from ropewalk.lab.figures import Figure, curves, lines
from ropewalk.lab.statistics import estimate


def figures(results: Results) -> list[Figure]:
    """The paper's figures 6, 7 and 8."""
    drawn: list[Figure] = []
    for runner in ("sim", "kernel"):
        for case in CASES:
            drawn += _buffers(results, runner, case)
        for case in CASES:
            drawn += _sessions(results, runner, case)
        for topology in (1, 2):
            drawn += _all_sessions(results, runner, topology)
    return drawn


def _buffers(results: Results, runner: Runner, case: Case) -> list[Figure]:
    drawn = []
    for name in PLAIN:
        reports = results.where(runner, case.name, "0%", name, "new-reno").reports()
        first = reports[min(reports)] if reports else None
        if first is None or not first.buffers:
            continue
        series = {
            buffer.name: [
                (a + b) / 2 for a, b in zip(buffer.packets[::2], buffer.packets[1::2], strict=False)
            ]
            for buffer in first.buffers
        }
        drawn.append(
            Figure(
                ("Figure 6. " if name == TCP_NC_PUBLISHED else "As figure 6. ")
                + f"{case.name}, no loss, {name}: buffers ({on(runner)})",
                "Packets in the link's queue and in TCP's send buffer at the gateways before hops "
                "a and b, first seed.",
                lines(series, "packets"),
            )
        )
    return drawn


def _points(
    results: Results,
    runner: Runner,
    case: Case,
    name: str,
    of: Callable[[tuple[float, ...]], float | None],
) -> list[tuple[float, float]]:
    points = []
    for loss in LOSSES:
        found = results.where(runner, case.name, lost(loss, "alone"), name, "new-reno")
        mean = estimate(list(by_session(found, of).values()))
        if mean is not None:
            points.append((loss * 100, mean.mean))
    return points


def _sessions(results: Results, runner: Runner, case: Case) -> list[Figure]:
    series = {
        f"{name}, session {number + 1}": _points(results, runner, case, name, itemgetter(number))
        for name in PLAIN
        for number in range(3)
    }
    if not any(series.values()):
        return []
    return [
        Figure(
            f"Figure 7. {case.name}: goodput of each session ({on(runner)})",
            "NewReno, hosts as published.",
            curves(series, "loss of each link, %", "Mbit/s"),
        )
    ]


def _all_sessions(results: Results, runner: Runner, topology: int) -> list[Figure]:
    series = {
        f"{name}, {case.name.split(', ')[1]}": _points(results, runner, case, name, sum)
        for name in (PUBLISHED, TCP_NC_PUBLISHED)
        for case in CASES
        if case.topology == topology
    }
    if not any(series.values()):
        return []
    return [
        Figure(
            f"Figure 8. Topology {topology}: goodput of all sessions ({on(runner)})",
            "NewReno, hosts as published.",
            curves(series, "loss of each link, %", "Mbit/s"),
        )
    ]
