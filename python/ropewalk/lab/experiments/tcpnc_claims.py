"""What `tcpnc` must show, and the words of its paper beside what it shows."""

from __future__ import annotations

from ropewalk.lab.cell import Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.tcpnc_cases import (
    CASES,
    CONGESTIONS,
    DEFAULT,
    END_TO_END,
    KINDS,
    LOSSES,
    OUTER,
    PACKET,
    TCP_NC,
    TUNNELS,
    TWO_PATHS,
    Case,
    erasure_capacity,
    erasure_shares,
    lost,
)

TARGET = 0.90
OVERHEAD_MAX = 0.03
NS3_TOLERANCE = 0.15
BESIDE = (TCP_NC, *TUNNELS, TWO_PATHS)
"""What is measured by the erasure capacity."""


def claims(results: Results) -> list[Claim]:
    """The share of the erasure capacity, the cost of a tunnel without loss, the paper's words."""
    rows = []
    for runner in ("kernel", "sim"):
        for case in CASES:
            rows += _capacity(results, runner, case)
            rows += _costs(results, runner, case)
            rows += _sessions(results, runner, case)
    for case in CASES:
        rows += _against_ns3(results, case)
    return rows


def _losses(results: Results, runner: Runner, case: Case) -> list[tuple[float, str]]:
    """Those that were meant to be run."""
    return [
        (loss, kind)
        for kind in KINDS
        for loss in LOSSES
        if results.where(runner, case.name, lost(loss, kind)).planned()
        and (loss or kind == KINDS[0])
    ]


def _capacity(results: Results, runner: Runner, case: Case) -> list[Claim]:
    return [
        measures.value(
            f"{case.name}, {lost(loss, kind)} per link, {congestion}: {name} ÷ erasure capacity "
            f"({measures.on(runner)})",
            "of capacity",
            found,
            share(found, erasure_capacity(case, loss)),
            TARGET if name == DEFAULT else None,
        )
        for loss, kind in _losses(results, runner, case)
        for name in BESIDE
        for congestion in CONGESTIONS
        if (found := results.where(runner, case.name, lost(loss, kind), name, congestion)).planned()
    ]


def share(results: Results, of_mbit: float) -> dict[int, float]:
    """Goodput of all sessions as a part of so much, by seed."""
    return {seed: mbit / of_mbit for seed, mbit in measures.goodput(results).items()}


def _costs(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Without loss: what protection adds, and what is left of the goodput end to end."""
    rows = []
    on = measures.on(runner)
    bare = results.where(runner, case.name, "0%", END_TO_END, "new-reno")
    for name in TUNNELS:
        found = results.where(runner, case.name, "0%", name, "new-reno")
        if not found.planned():
            continue
        reports = found.reports().items()
        added = {s: report.tunnel.overhead for s, report in reports if report.tunnel is not None}
        rows.append(
            measures.value(
                f"{case.name}, no loss: bytes that protection of {name} adds ({on})",
                "of data",
                found,
                added,
                OVERHEAD_MAX if name == DEFAULT else None,
                relation="<=",
            )
        )
        without = measures.goodput(bare)
        goodput = measures.goodput(found).items()
        lower = {s: 1 - mbit / without[s] for s, mbit in goodput if without.get(s)}
        rows.append(
            measures.value(
                f"{case.name}, no loss: goodput that {name} takes from end to end ({on})",
                "of goodput",
                found if bare.reports() else bare,
                lower,
                OVERHEAD_MAX if name == DEFAULT else None,
                relation="<=",
                note=f"headers alone are {1 - PACKET / OUTER:.1%} of a busy link",
            )
        )
    return rows


def _sessions(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """What the paper says of single sessions, with NewReno."""
    rows = []
    losses = [loss for loss, kind in _losses(results, runner, case) if kind == KINDS[0]]
    for name in TUNNELS:
        by_loss = {
            loss: results.where(runner, case.name, lost(loss, KINDS[0]), name, "new-reno")
            for loss in losses
        }
        by_loss = {loss: found for loss, found in by_loss.items() if found.planned()}
        for loss, found in by_loss.items():
            begin = f"{case.name}, {lost(loss, KINDS[0])} per link, {name}"
            if case.topology == 2:
                rows.append(_third(begin, runner, found))
            elif case != CASES[0]:
                allowed = erasure_shares(case, loss)[0]
                target = TARGET if name == DEFAULT else None
                rows.append(_first_two(begin, runner, found, allowed, target))
        if case.topology == 1 and len(by_loss) > 1:
            rows.append(_decline(f"{case.name}, {name}", runner, case, by_loss))
    return rows


def _third(begin: str, runner: Runner, found: Results) -> Claim:
    each = sessions(found).items()
    return measures.value(
        f"{begin}: session 3 ÷ the better of the others ({measures.on(runner)})",
        "ratio",
        found,
        {seed: mbit[2] / max(mbit[:2]) for seed, mbit in each if max(mbit[:2])},
        None,
        note="the paper: always greater. Here flows share a full link evenly",
    )


def _first_two(
    begin: str, runner: Runner, found: Results, allowed: float, target: float | None
) -> Claim:
    return measures.value(
        f"{begin}: the slower of sessions 1 and 2 ÷ what its link allows ({measures.on(runner)})",
        "of share",
        found,
        {seed: min(mbit[:2]) / allowed for seed, mbit in sessions(found).items()},
        target,
        note="the paper: both stay at 1 Mbit/s",
    )


def _decline(begin: str, runner: Runner, case: Case, by_loss: dict[float, Results]) -> Claim:
    """What the greatest loss leaves: of all sessions in the first case, else of the third."""
    who = slice(None) if case == CASES[0] else slice(2, 3)
    what, said = "session 3", "it decreases gradually"
    if case == CASES[0]:
        what, said = "all sessions", "each session high and stable"
    least, most = min(by_loss), max(by_loss)
    clean, lossy = (sessions(by_loss[loss]) for loss in (least, most))
    allowed = [sum(erasure_shares(case, loss)[who]) for loss in (least, most)]
    return measures.value(
        f"{begin}: {what} at {most:.0%} ÷ at {least:.0%} ({measures.on(runner)})",
        "ratio",
        by_loss[most] if clean else by_loss[least],
        {
            seed: sum(mbit[who]) / sum(clean[seed][who])
            for seed, mbit in lossy.items()
            if sum(clean.get(seed, (0.0,))[who])
        },
        None,
        note=f"the paper: {said}; erasures leave {allowed[1] / allowed[0]:.2f}",
    )


def sessions(results: Results) -> dict[int, tuple[float, ...]]:
    """Goodput of each session in Mbit/s, by seed."""
    return {
        seed: tuple(traffic.goodput_mbit for traffic in report.traffic)
        for seed, report in results.reports().items()
    }


def _against_ns3(results: Results, case: Case) -> list[Claim]:
    rows = []
    for loss in LOSSES:
        key = (case.name, lost(loss, KINDS[0]), END_TO_END, "new-reno")
        ns3 = results.where("ns3", *key)
        if ns3.planned():
            rows.append(
                measures.compare(
                    f"{case.name}, {key[1]} per link, end to end, NewReno: simulator ÷ ns-3",
                    results.where("sim", *key),
                    ns3,
                    1.0,
                    relation="within",
                    tolerance=NS3_TOLERANCE,
                )
            )
    return rows
