"""The paper on the TCP/NC tunnel, claim by claim: its system and end to end, hosts as published.

Figure 6 shows how full the buffers of the gateways are, figure 7 the goodput of each session,
figure 8 that of all. The paper's text gives two totals, the overhead of "about 4%" and the 1 Mbit/s
that two sessions keep; all else it says in words.
"""

from __future__ import annotations

from collections.abc import Callable

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
from ropewalk.lab.statistics import jain

PAPER_MBIT = {PUBLISHED: 2.87, TCP_NC_PUBLISHED: 2.77}
"""All sessions of topology 1, case 1, without loss (section 3.2)."""
PAPER_TOLERANCE = 0.03
"""Of the paper's number: it has two digits after the point, and no durations."""
PAPER_OVERHEAD, PAPER_OVERHEAD_AROUND = 0.04, 0.01
"""What TCP/NC takes from end to end there: "about 4%"."""
KEPT = 0.90
"""Of 1 Mbit/s less headers: what still counts as keeping it."""
NEGLIGIBLE = 0.03
"""Part of the goodput whose loss still counts as negligible: less than the 4 % that the paper calls
small."""
FAIR_MIN, FAIR_AROUND = 0.95, 0.05
"""Jain's index: what counts as "relatively fair", and how far from that of end to end still counts
as "a fairness like". Both are our readings."""
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
    """The sentences of the paper's evaluation, but for how gradually sessions decline between its
    least and its greatest loss."""
    rows: list[Claim] = []
    for runner in results.runners():
        for name in (PUBLISHED, TCP_NC_PUBLISHED):
            rows += _totals(results, runner, name)
        for case in CASES:
            rows += _cost(results, runner, case)
            rows += _order(results, runner, case)
            rows += _with_loss(results, runner, case)
            rows += _fairness(results, runner, case)
            rows += _congestion(results, runner, case)
            rows += _drops(results, runner, case)
            rows += _better(results, runner, case)
    return rows


def on(runner: Runner) -> str:
    """Ends the name of a claim."""
    return "ns-3" if runner == "ns3" else measures.on(runner)


def _totals(results: Results, runner: Runner, name: str) -> list[Claim]:
    found = results.where(runner, CASES[0].name, "0%", name, "new-reno")
    if not found.planned():
        return []
    mbit = PAPER_MBIT[name]
    return [
        measures.value(
            f"{CASES[0].name}, no loss: {name}, all sessions ({on(runner)})",
            "Mbit/s",
            found,
            measures.goodput(found),
            mbit,
            relation="within",
            tolerance=PAPER_TOLERANCE * mbit,
            paper=mbit,
        )
    ]


def _both(
    results: Results, runner: Runner, case: Case, loss: float = 0.0
) -> tuple[Results, Results]:
    """End to end and TCP/NC, hosts as published."""
    where = (case.name, lost(loss, "alone"))
    bare, coded = (
        results.where(runner, *where, name, "new-reno") for name in (PUBLISHED, TCP_NC_PUBLISHED)
    )
    return bare, coded


def _cost(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Topology 1, no loss: what the tunnel takes from end to end."""
    bare, coded = _both(results, runner, case)
    if case.topology != 1 or not bare.planned() or not coded.planned():
        return []
    without = measures.goodput(bare)
    taken = {
        s: 1 - mbit / without[s] for s, mbit in measures.goodput(coded).items() if without.get(s)
    }
    name = f"{case.name}, no loss: goodput that tcp-nc takes from end to end ({on(runner)})"
    if case == CASES[0]:
        return [
            measures.value(
                name,
                "of goodput",
                coded,
                taken,
                PAPER_OVERHEAD,
                relation="within",
                tolerance=PAPER_OVERHEAD_AROUND,
                paper=PAPER_OVERHEAD,
                note='the paper: "about 4%"',
            )
        ]
    note = "the paper: the difference is negligible"
    return [measures.value(name, "of goodput", coded, taken, NEGLIGIBLE, relation="<=", note=note)]


AHEAD_MIN = 1.01
"""A session that has as much as another one is not ahead."""


def by_session(
    results: Results, of: Callable[[tuple[float, ...]], float | None]
) -> dict[int, float]:
    """A number of the three sessions' goodputs, by seed."""
    found = {}
    for seed, report in results.reports().items():
        value = of(tuple(traffic.goodput_mbit for traffic in report.traffic))
        if value is not None:
            found[seed] = value
    return found


def _sum_of(results: Results, part: slice) -> dict[int, float]:
    """Goodput of some sessions, by seed."""
    return by_session(results, lambda mbit: sum(mbit[part]))


def _order(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Topology 2: session 3 is ahead. Topology 1, case 1, no loss: who gains by the tunnel."""
    if case.topology == 2:
        return [
            _claim(
                f"{case.name}, {lost(loss, 'alone')} per link, {name}: session 3 ÷ the better of "
                f"the others ({on(runner)})",
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
    bare, coded = _both(results, runner, case)
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
    without, with_nc = (_sum_of(found, part) for found in (bare, coded))
    return measures.value(
        f"{CASES[0].name}, no loss: {who}, tcp-nc ÷ end to end ({on(runner)})",
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
    values = by_session(found, of)
    return measures.value(name, unit, found, values, target, relation=relation, note=note)


def _with_loss(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """What the tunnel keeps as the loss grows."""
    by_loss = {
        loss: results.where(runner, case.name, lost(loss, "alone"), TCP_NC_PUBLISHED, "new-reno")
        for loss in (*LITERAL_LOSSES, *LOSSES)
    }
    by_loss = {loss: found for loss, found in by_loss.items() if found.planned()}
    if len(by_loss) < 2 or 0.0 not in by_loss:
        return []
    begin = f"{case.name}, {TCP_NC_PUBLISHED}"
    clean = by_loss.pop(0.0)
    if case.topology == 2:
        return _unequal_ways(begin, runner, case, clean, by_loss)
    rows = []
    if case == CASES[0]:
        base = measures.goodput(clean)
        for loss, found in by_loss.items():
            kept = {s: mbit / base[s] for s, mbit in measures.goodput(found).items() if base.get(s)}
            share = lost(loss, "alone")
            rows.append(
                measures.value(
                    f"{begin}: all sessions at {share} ÷ without loss ({on(runner)})",
                    "ratio",
                    found,
                    kept,
                    KEPT,
                    note="the paper: each session high and stable; erasures leave "
                    f"{1 - loss:.2f} of the link",
                )
            )
        return rows
    edge = case.access[0] * SEGMENT / PACKET_PUBLISHED
    rows += [
        _claim(
            f"{begin}, {lost(loss, 'alone')} per link: the slower of sessions 1 and 2 ÷ its link "
            f"({on(runner)})",
            found,
            lambda mbit: min(mbit[:2]) / edge,
            KEPT,
            note="the paper: both keep 1 Mbit/s",
        )
        for loss, found in by_loss.items()
    ]
    base = by_session(clean, lambda mbit: mbit[2])
    # The greatest loss of either way to read the paper's "0.2".
    for loss in (LITERAL_LOSSES[-1], LOSSES[-1]):
        if loss not in by_loss:
            continue
        third = by_session(by_loss[loss], lambda mbit: mbit[2])
        rows.append(
            measures.value(
                f"{begin}: session 3 at {lost(loss, 'alone')} ÷ without loss ({on(runner)})",
                "ratio",
                by_loss[loss],
                {seed: mbit / base[seed] for seed, mbit in third.items() if base.get(seed)},
                KEPT,
                relation="<=",
                note="the paper: it decreases gradually",
            )
        )
    return rows


def _unequal_ways(
    begin: str, runner: Runner, case: Case, clean: Results, by_loss: dict[float, Results]
) -> list[Claim]:
    """Topology 2, cases 2 and 3: sessions 1 and 2 cross two lossy links, and session 3 one."""
    if case.name.endswith("case 1"):
        return []
    rows = []
    parts: list[tuple[str, slice, Relation, str]] = [
        ("sessions 1 and 2", slice(0, 2), "<=", "they decrease gradually"),
        ("session 3", slice(2, 3), ">=", "it keeps a high goodput"),
    ]
    # The greatest loss of either way to read the paper's "0.2"; a quick run has less.
    for loss in dict.fromkeys((LITERAL_LOSSES[-1], max(by_loss))):
        if loss not in by_loss:
            continue
        for who, part, relation, said in parts:
            base, left = (_sum_of(found, part) for found in (clean, by_loss[loss]))
            rows.append(
                measures.value(
                    f"{begin}: {who} at {lost(loss, 'alone')} ÷ without loss ({on(runner)})",
                    "ratio",
                    by_loss[loss],
                    {seed: mbit / base[seed] for seed, mbit in left.items() if base.get(seed)},
                    KEPT,
                    relation=relation,
                    note=f"the paper: {said}",
                )
            )
    return rows


def _fairness(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Jain's index of the sessions: in topology 1, case 1 with loss, and in topology 2 always,
    there beside that of end to end."""
    if case.topology == 1 and case != CASES[0]:
        return []
    rows = []
    for loss in LOSSES:
        key = (case.name, lost(loss, "alone"))
        bare, coded = _both(results, runner, case, loss)
        if not bare.planned() or not coded.planned() or (case.topology == 1 and not loss):
            continue
        begin = f"{', '.join(key)} per link: evenness of the sessions (Jain)"
        end_to_end, tunnel = by_session(bare, jain), by_session(coded, jain)
        judged = FAIR_MIN if case.topology == 1 else None
        rows += [
            measures.value(
                f"{begin}, {TCP_NC_PUBLISHED} ({on(runner)})",
                "index",
                coded,
                tunnel,
                judged,
                note="the paper: relatively fair" if case.topology == 1 else "",
            ),
            measures.value(f"{begin}, {PUBLISHED} ({on(runner)})", "index", bare, end_to_end, None),
        ]
        if case.topology == 2:
            rows.append(
                measures.value(
                    f"{begin}, tcp-nc ÷ end to end ({on(runner)})",
                    "ratio",
                    coded,
                    {s: index / end_to_end[s] for s, index in tunnel.items() if s in end_to_end},
                    1.0,
                    relation="within",
                    tolerance=FAIR_AROUND,
                    note="the paper: a fairness like end to end",
                )
            )
    return rows


def _drops(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Where packets are dropped without loss: topology 1, case 1, and topology 2, case 2."""
    if runner != "sim" or case.name not in ("topology 1, case 1", "topology 2, case 2"):
        return []
    bare, coded = _both(results, runner, case)
    if not bare.planned() or not coded.planned():
        return []
    begin = f"{case.name}, no loss, after the warm-up: packets dropped"

    def dropped(where: str, found: Results, by_seed: dict[int, float], some: bool) -> Claim:
        return measures.value(
            f"{begin} {where} ({on(runner)})",
            "packets",
            found,
            by_seed,
            1.0 if some else 0.0,
            relation=">=" if some else "<=",
            note=f"the paper: packets are {'' if some else 'not '}dropped there",
        )

    at_send_buffer = {
        seed: float(report.tunnel.entry_drops)
        for seed, report in coded.reports().items()
        if report.tunnel is not None
    }
    congested = case.topology == 1
    return [
        dropped("at link buffers, end to end", bare, _link_drops(bare), some=congested),
        dropped("at the send buffer, tcp-nc", coded, at_send_buffer, some=congested),
        dropped("at link buffers, tcp-nc", coded, _link_drops(coded), some=False),
    ]


def _link_drops(results: Results) -> dict[int, float]:
    """Packets that the links' full queues dropped, by seed."""
    return {
        seed: float(sum(path.dropped for path in report.paths))
        for seed, report in results.reports().items()
    }


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
                    f"({on(runner)})",
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
    """Who carries more: the paper's system or end to end, and ours beside it."""
    rows = []
    for loss in LOSSES:
        key = (case.name, lost(loss, "alone"))
        bare, coded, ours = (results.where(runner, *key, name, "new-reno") for name in PLAIN)
        if not coded.planned():
            continue
        if loss or case.topology == 2:
            rows.append(
                measures.compare(
                    f"{', '.join(key)} per link: tcp-nc ÷ end to end, hosts as published "
                    f"({on(runner)})",
                    coded,
                    bare,
                    1.0,
                    note="the paper: end to end is unacceptable"
                    if case.topology == 1
                    else "the paper: more of the bandwidth in any case",
                )
            )
        if ours.planned():
            rows.append(
                measures.compare(
                    f"{', '.join(key)} per link: our tunnel ÷ tcp-nc, hosts as published "
                    f"({on(runner)})",
                    ours,
                    coded,
                    1.0,
                )
            )
    return rows
