"""The paper on the TCP/NC tunnel, claim by claim: its system and end to end, hosts as published.

Figure 6 shows how full the buffers of the gateways are, figure 7 the goodput of each session,
figure 8 that of all. The paper gives two numbers; all else it says in words.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

from ropewalk.lab.cell import Results, Runner
from ropewalk.lab.claims import Claim, Relation
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.tcpnc_cases import (
    CASES,
    LITERAL_LOSSES,
    LOSSES,
    PACKET_PUBLISHED,
    PLAIN,
    PUBLISHED,
    SEGMENT,
    TCP_NC_PUBLISHED,
    Case,
    lost,
)
from ropewalk.lab.figures import Figure, curves, lines
from ropewalk.lab.statistics import estimate

PAPER_MBIT = {PUBLISHED: 2.87, TCP_NC_PUBLISHED: 2.77}
"""All sessions of topology 1, case 1, without loss (section 3.2)."""
PAPER_TOLERANCE = 0.03
"""Of the paper's number: it has two digits after the point, and no durations."""
KEPT = 0.90
"""Of 1 Mbit/s less headers: what still counts as keeping it."""
STANDING_PACKETS = 10.0
"""Mean packets in a link's queue that count as congestion: on a link without a queue packets of
three sessions meet, so that one to three wait."""
COUNTED_FROM = 20
"""Looks at buffers before the end of the warm-up: two each second."""
CONGESTED: dict[str, dict[str, tuple[bool, bool]]] = {
    PUBLISHED: {
        "topology 1, case 1": (True, False),
        "topology 1, case 2": (False, False),
        "topology 1, case 3": (False, False),
        "topology 2, case 1": (False, True),
        "topology 2, case 2": (False, False),
        "topology 2, case 3": (False, False),
    },
    TCP_NC_PUBLISHED: {
        "topology 1, case 1": (True, False),
        "topology 1, case 2": (True, False),
        "topology 1, case 3": (False, True),
        "topology 2, case 1": (False, True),
        "topology 2, case 2": (False, True),
        "topology 2, case 3": (False, False),
    },
}
"""Whether the paper names congestion at the first and the second gateway (§3.2, §3.3). Where it is
silent of a gateway, we read that as no congestion."""


def claims(results: Results) -> list[Claim]:
    """Every sentence of the paper's evaluation that can be measured."""
    rows: list[Claim] = []
    for runner in results.runners():
        for name in (PUBLISHED, TCP_NC_PUBLISHED):
            rows += _totals(results, runner, name)
        for case in CASES:
            rows += _order(results, runner, case)
            rows += _with_loss(results, runner, case)
            rows += _congestion(results, runner, case)
            rows += _better(results, runner, case)
    return rows


def _on(runner: Runner) -> str:
    return "ns-3" if runner == "ns3" else measures.on(runner)


def _totals(results: Results, runner: Runner, name: str) -> list[Claim]:
    found = results.where(runner, CASES[0].name, "0%", name, "new-reno")
    if not found.planned():
        return []
    mbit = PAPER_MBIT[name]
    return [
        measures.value(
            f"{CASES[0].name}, no loss: {name}, all sessions ({_on(runner)})",
            "Mbit/s",
            found,
            measures.goodput(found),
            mbit,
            relation="within",
            tolerance=PAPER_TOLERANCE * mbit,
            paper=mbit,
        )
    ]


AHEAD_MIN = 1.01
"""A session that has as much as another one is not ahead."""


def _by_session(
    results: Results, of: Callable[[tuple[float, ...]], float | None]
) -> dict[int, float]:
    """A number of the three sessions' goodputs, by seed."""
    found = {}
    for seed, report in results.reports().items():
        value = of(tuple(traffic.goodput_mbit for traffic in report.traffic))
        if value is not None:
            found[seed] = value
    return found


def _order(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Topology 2: session 3 is ahead. Topology 1, case 1, no loss: who gains by the tunnel."""
    if case.topology == 2:
        return [
            _claim(
                f"{case.name}, {lost(loss, 'alone')} per link, {name}: session 3 ÷ the better of "
                f"the others ({_on(runner)})",
                found,
                lambda mbit: mbit[2] / max(mbit[:2]) if max(mbit[:2]) else None,
                AHEAD_MIN,
                note="the paper: session 3 is ahead in every case",
            )
            for name in (PUBLISHED, TCP_NC_PUBLISHED)
            for loss in LOSSES
            if (
                found := results.where(runner, case.name, lost(loss, "alone"), name, "new-reno")
            ).planned()
        ]
    if case != CASES[0]:
        return []
    bare, coded = (
        results.where(runner, case.name, "0%", name, "new-reno")
        for name in (PUBLISHED, TCP_NC_PUBLISHED)
    )
    if not bare.planned() or not coded.planned():
        return []
    return [
        _gain(runner, "session 3", slice(2, 3), bare, coded, "<=", "end to end wins"),
        _gain(runner, "sessions 1 and 2", slice(0, 2), bare, coded, ">=", "the tunnel wins"),
    ]


def _gain(
    runner: Runner,
    who: str,
    part: slice,
    bare: Results,
    coded: Results,
    relation: Relation,
    said: str,
) -> Claim:
    without = _by_session(bare, lambda mbit: sum(mbit[part]))
    with_nc = _by_session(coded, lambda mbit: sum(mbit[part]))
    return measures.value(
        f"{CASES[0].name}, no loss: {who}, tcp-nc ÷ end to end ({_on(runner)})",
        "ratio",
        coded,
        {seed: mbit / without[seed] for seed, mbit in with_nc.items() if without.get(seed)},
        1.0,
        relation=relation,
        note=f"the paper: {said}",
    )


def _claim(
    name: str,
    found: Results,
    of: Callable[[tuple[float, ...]], float | None],
    target: float | None,
    unit: str = "ratio",
    relation: Relation = ">=",
    note: str = "",
) -> Claim:
    values = _by_session(found, of)
    return measures.value(name, unit, found, values, target, relation=relation, note=note)


def _with_loss(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Topology 1: what the tunnel keeps as the loss grows."""
    by_loss = {
        loss: results.where(runner, case.name, lost(loss, "alone"), TCP_NC_PUBLISHED, "new-reno")
        for loss in (*LITERAL_LOSSES, *LOSSES)
    }
    by_loss = {loss: found for loss, found in by_loss.items() if found.planned()}
    if case.topology != 1 or len(by_loss) < 2 or 0.0 not in by_loss:
        return []
    begin = f"{case.name}, {TCP_NC_PUBLISHED}"
    clean = by_loss.pop(0.0)
    rows = []
    if case == CASES[0]:
        base = measures.goodput(clean)
        for loss, found in by_loss.items():
            kept = {s: mbit / base[s] for s, mbit in measures.goodput(found).items() if base.get(s)}
            share = lost(loss, "alone")
            rows.append(
                measures.value(
                    f"{begin}: all sessions at {share} ÷ without loss ({_on(runner)})",
                    "ratio",
                    found,
                    kept,
                    KEPT,
                    note=f"the paper: high and stable; erasures leave {1 - loss:.2f} of the link",
                )
            )
        return rows
    edge = case.access[0] * SEGMENT / PACKET_PUBLISHED
    rows += [
        _claim(
            f"{begin}, {lost(loss, 'alone')} per link: the slower of sessions 1 and 2 ÷ its link "
            f"({_on(runner)})",
            found,
            lambda mbit: min(mbit[:2]) / edge,
            KEPT,
            note="the paper: both keep 1 Mbit/s",
        )
        for loss, found in by_loss.items()
    ]
    base = _by_session(clean, lambda mbit: mbit[2])
    # The greatest loss of either way to read the paper's "0.2".
    for loss in (LITERAL_LOSSES[-1], LOSSES[-1]):
        if loss not in by_loss:
            continue
        third = _by_session(by_loss[loss], lambda mbit: mbit[2])
        rows.append(
            measures.value(
                f"{begin}: session 3 at {lost(loss, 'alone')} ÷ without loss ({_on(runner)})",
                "ratio",
                by_loss[loss],
                {seed: mbit / base[seed] for seed, mbit in third.items() if base.get(seed)},
                KEPT,
                relation="<=",
                note="the paper: it decreases gradually",
            )
        )
    return rows


def _congestion(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Where packets pile up without loss; known in the simulator."""
    rows = []
    for name, said in CONGESTED.items():
        found = results.where(runner, case.name, "0%", name, "new-reno")
        if runner != "sim" or not found.planned():
            continue
        for at, path in enumerate("ab"):
            congested = said[case.name][at]
            rows.append(
                measures.value(
                    f"{case.name}, no loss, {name}: packets in the link buffer of gateway {at + 1} "
                    f"({_on(runner)})",
                    "packets, mean",
                    found,
                    _mean_packets(found, f"link {path}"),
                    STANDING_PACKETS,
                    relation=">=" if congested else "<=",
                    note=f"the paper names {'' if congested else 'no '}congestion there",
                )
            )
    return rows


def _mean_packets(results: Results, name: str) -> dict[int, float]:
    """Mean of a buffer over the counted time, by seed."""
    found = {}
    for seed, report in results.reports().items():
        for buffer in report.buffers:
            counted = buffer.packets[COUNTED_FROM:]
            if buffer.name == name and counted:
                found[seed] = sum(counted) / len(counted)
    return found


def _better(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """The paper's conclusion, and ours beside it: who carries more where links lose."""
    rows = []
    for loss in LOSSES:
        key = (case.name, lost(loss, "alone"))
        bare, coded, ours = (results.where(runner, *key, name, "new-reno") for name in PLAIN)
        if not coded.planned():
            continue
        if loss:
            rows.append(
                measures.compare(
                    f"{', '.join(key)} per link: tcp-nc ÷ end to end, hosts as published "
                    f"({_on(runner)})",
                    coded,
                    bare,
                    1.0,
                    note="the paper: far ahead wherever links lose",
                )
            )
        if ours.planned():
            rows.append(
                measures.compare(
                    f"{', '.join(key)} per link: our tunnel ÷ tcp-nc, hosts as published "
                    f"({_on(runner)})",
                    ours,
                    coded,
                    1.0,
                )
            )
    return rows


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
                f"Figure 6. {case.name}, no loss, {name}: buffers ({_on(runner)})",
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
        mean = estimate(list(_by_session(found, of).values()))
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
            f"Figure 7. {case.name}: goodput of each session ({_on(runner)})",
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
            f"Figure 8. Topology {topology}: goodput of all sessions ({_on(runner)})",
            "NewReno, hosts as published.",
            curves(series, "loss of each link, %", "Mbit/s"),
        )
    ]
