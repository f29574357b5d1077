"""What `roam-ovs` must show: replay's bounds in every cell, and the paper's claims as published.

A connection that does not come back counts as idle for all the time that it had, with every scheme
alike, and as broken. What a broken connection carried is over all that time, and what it sent again
is not compared: who sends nothing more repeats nothing.
"""

from __future__ import annotations

from itertools import product

from ropewalk.lab.cell import Results
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.roam_cases import (
    GAPS_S,
    HOPS,
    PAPER_GAPS_S,
    PUBLISHED,
    SCHEMES,
    USUAL_DELAY_MS,
)
from ropewalk.lab.ovs import roam
from ropewalk.lab.statistics import paired_ratio
from ropewalk.report import HandoverReport

IDLE_MS_MAX = 50.0
"""Beyond a round trip."""
REROUTED_MS_MAX = 50.0
INTERRUPTED_S, INTERRUPTED_S_AROUND = 4.0, 1.0
"""Published of plain TCP with gaps of 1 to 2 s (section 3.1): interruptions of 3 to 5 s."""
INTERRUPTED_GAP_S_MAX = 2.0


def claims(results: Results) -> list[Claim]:
    """Replay's bounds in every cell; the published variants beside plain TCP and the paper."""
    rows = []
    for scheme in SCHEMES:
        rows += _ends(results.where("ovs", None, scheme), scheme)
    for part in results.keys(0):
        rows += _late_moves(results.where("ovs", part, "replay"), part)
    for key in dict.fromkeys(outcome.cell.key for outcome in results.outcomes):
        found = results.where("ovs", *key)
        if key[1] == "replay":
            rows += bounds(found, key)
        elif key[0] == "paper":
            rows += _interrupted(found, key)
        else:
            rows += _idles(found, key)
    for scheme in PUBLISHED:
        rows += _figure_7(results, scheme)
        rows += _figure_8(results, scheme)
    return rows


def _ends(found: Results, scheme: str) -> list[Claim]:
    """How connections ended. With replay, each must have ended well with every byte; so must each
    of plain TCP, and of the paper's complete scheme, which gives up rather than break one."""
    if not found.planned():
        return []
    reports = [o.report for o in found.outcomes if o.report is not None]
    broken = [report.broken > 0 for report in reports]
    lost = [report.values.get(roam.LOST, 0.0) > 0 for report in reports]
    downloads = f"{len(reports)} downloads"
    note, paper = downloads, None
    if scheme == "zwa":
        note += "; published: a few runs do not come back"
    if scheme == "zwa-adaptive":
        note, paper = f"{note}; published: never reset", 0.0
    judged = scheme != "zwa"
    return [
        measures.never(
            f"{scheme}: connections that broke or hung",
            found, broken, judged=judged, paper=paper, note=note,
        ),
        measures.never(
            f"{scheme}: downloads with bytes lost or changed",
            found, lost, judged=judged, note=downloads,
        ),
    ]  # fmt: skip


def _late_moves(found: Results, part: str) -> list[Claim]:
    """Over all downloads of a part with replay: moves of one download are not independent."""
    if not found.planned():
        return []
    downloads = [o.report.handovers for o in found.outcomes if o.report is not None]
    late = [sum(idle_ms(row) - row.rtt_ms > IDLE_MS_MAX for row in rows) for rows in downloads]
    moves = sum(map(len, downloads))
    return [
        measures.never(
            f"{part}, replay: downloads with a move idle beyond a round trip and "
            f"{IDLE_MS_MAX:g} ms",
            found,
            [count > 0 for count in late],
            note=f"{sum(late)} of {moves} moves in {len(late)} downloads",
        )
    ]


def bounds(found: Results, key: tuple[str, ...]) -> list[Claim]:
    """The worst move of a download with replay."""
    label = _label(key)
    beyond, rerouted = {}, {}
    for seed, report in found.reports().items():
        beyond[seed] = max(idle_ms(row) - row.rtt_ms for row in report.handovers)
        rerouted[seed] = max(_or_had(row, row.rerouted_ms) for row in report.handovers)
    return [
        measures.value(
            f"{label}: idle beyond a round trip, worst move",
            "ms",
            found,
            beyond,
            IDLE_MS_MAX,
            relation="<=",
        ),
        measures.value(
            f"{label}: new ways confirmed after, worst move",
            "ms",
            found,
            rerouted,
            REROUTED_MS_MAX,
            relation="<=",
        ),
    ]


def _idles(found: Results, key: tuple[str, ...]) -> list[Claim]:
    """Each move of another scheme."""
    gaps = dict.fromkeys(row.gap_s for r in found.reports().values() for row in r.handovers)
    return [
        measures.value(
            f"{_label(key)}: idle after {gap:g} s", "ms", found, by_gap(found, gap), None
        )
        for gap in gaps
    ]


def _interrupted(found: Results, key: tuple[str, ...]) -> list[Claim]:
    """The paper's figure 6: for how long the transfer stands still."""
    gap, plain = float(key[-1].removeprefix("gap_")), key[1] == "bare"
    idle = by_gap(found, gap)
    published = gap <= INTERRUPTED_GAP_S_MAX
    if plain:
        return [
            measures.value(
                f"{_label(key)}: interrupted for",
                "s",
                found,
                {seed: gap + 1e-3 * value for seed, value in idle.items()},
                INTERRUPTED_S if published else None,
                relation="within",
                tolerance=INTERRUPTED_S_AROUND,
                paper=INTERRUPTED_S if published else None,
                note="published: 3 to 5 s, 4 is the middle" if published else "",
            )
        ]
    trips = {seed: report.handovers[0].rtt_ms for seed, report in found.reports().items()}
    return [
        measures.value(
            f"{_label(key)}: idle beyond a round trip",
            "ms",
            found,
            {seed: value - trips[seed] for seed, value in idle.items()},
            IDLE_MS_MAX,
            relation="<=",
            note="published: interrupted for the gap only" if published else "",
        )
    ]


def _figure_7(results: Results, scheme: str) -> list[Claim]:
    """More throughput and fewer repetitions than plain TCP, for each time away."""
    rows = []
    for gap in PAPER_GAPS_S:
        new, bare = (paper(results, name, gap) for name in (scheme, "bare"))
        if not new.planned() or not bare.planned():
            continue
        rows.append(
            measures.compare(f"{scheme}'s throughput by bare's, away for {gap:g} s", new, bare, 1.0)
        )
        left_out = sum(r.broken for found in (new, bare) for r in found.reports().values())
        ratio = paired_ratio(retransmits(new), retransmits(bare))
        note = missing(new if not new.reports() else bare) if ratio is None else ""
        rows.append(
            claim(
                f"{scheme}'s retransmissions by bare's, away for {gap:g} s",
                "ratio",
                ratio,
                relation="<=",
                target=1.0,
                note=f"broken connections left out: {left_out}" if left_out else note,
            )
        )
    return rows


def _figure_8(results: Results, scheme: str) -> list[Claim]:
    """Less idle than plain TCP after each time away, at all hops."""
    rows = []
    for hops, gap in product(HOPS, GAPS_S):
        where = ("new-reno", f"hops_{hops}", f"delay_{USUAL_DELAY_MS}")
        new, bare = (results.where("ovs", "grid", name, *where) for name in (scheme, "bare"))
        ratio = paired_ratio(by_gap(new, gap), by_gap(bare, gap))
        if ratio is not None:
            name = f"{scheme}'s idle by bare's, {hops} hops, {gap:g} s"
            rows.append(claim(name, "ratio", ratio, relation="<=", target=1.0))
    return rows


def paper(results: Results, scheme: str, gap_s: float) -> Results:
    """The downloads of figures 6 and 7 with a time away."""
    return results.where("ovs", "paper", scheme, "new-reno", None, None, f"gap_{gap_s:g}")


def retransmits(found: Results) -> dict[int, float]:
    """Segments that the sender sent again for its moves, by seed, without broken connections."""
    return {
        seed: float(sum(row.retransmits for row in report.handovers))
        for seed, report in found.reports().items()
        if not report.broken
    }


def by_gap(found: Results, gap_s: float) -> dict[int, float]:
    """Idle time after a gap, ms, by seed."""
    return {
        seed: idle_ms(row)
        for seed, report in found.reports().items()
        for row in report.handovers
        if row.gap_s == gap_s
    }


def idle_ms(row: HandoverReport) -> float:
    """The longer of both times; when nothing came back, all the time that it had."""
    return max(_or_had(row, idle) for idle in (row.sender_idle_ms, row.receiver_idle_ms))


def _or_had(row: HandoverReport, found_ms: float | None) -> float:
    return row.had_ms if found_ms is None else found_ms


def _label(key: tuple[str, ...]) -> str:
    return ", ".join(key).replace("_", " ")
