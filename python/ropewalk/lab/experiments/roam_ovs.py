"""A station moves between access points of eight switches: what a TCP stream waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from ropewalk.lab.cell import Cell, Outcome, Results
from ropewalk.lab.claims import Claim, claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars, curves, dots
from ropewalk.lab.ovs import roam
from ropewalk.lab.statistics import estimate, paired_ratio
from ropewalk.plan import (
    Congestion,
    Link,
    Move,
    OvsHops,
    OvsRoam,
    OvsScheme,
    Path,
    Plan,
    Tcp,
)
from ropewalk.report import HandoverReport

NAME = "roam-ovs"
TITLE = "A station that moves, on Open vSwitch"
ABOUT = (
    "One download over eight switches and three access points while its station moves on several "
    "times, away for 1 to 6 s each: ways only (bare), the published zero window (zwa) and its "
    "variant that asks counters first (zwa-adaptive), and keeping what was sent (replay)."
)
ASSUMPTIONS = (
    "Singh et al., section 3. How its figure 5 is wired is not said in words: S1 to S3 carry the "
    "access points and join at S4, from where S5 to S8 follow one another; the sender hangs at S1, "
    "S4, S6 or S8. The rates of its links are not known: 20 Mbit/s here, queues of 1,000 packets.",
    "Moves of a download follow one another, from each access point to the next, with time to "
    "recover in between; a connection that never goes on ends with its first late notice.",
    "Idle is the longer of two times from the association on: to the sender's first segment and to "
    "the receiver's first new byte. A round trip is that of the empty links, of the shorter of the "
    "ways before and after.",
    "A notice of 100 ms, as the paper's emulation took: what is sent to the station until then "
    "dies at the access point it has left.",
    "Reno as published: no SACK, an initial window of 1, a receiver's window of 40,000 bytes. "
    "CUBIC and BBR are as Linux has them.",
)

SCHEMES: tuple[OvsScheme, ...] = ("bare", "zwa", "zwa-adaptive", "replay")
CONGESTIONS: tuple[Congestion, ...] = ("new-reno", "cubic", "bbr")
HOPS: tuple[OvsHops, ...] = (2, 3, 5, 7)
DELAYS_MS = (1, 20, 80)
USUAL_DELAY_MS = 20
GAPS_S = (1.0, 2.0, 3.5, 6.0)
FEW_GAPS_S = (1.0, 3.5)
PAPER_GAPS_S = (1.0, 1.5, 2.0, 3.0, 6.0)
"""Gaps of the paper's figures 6 and 7."""
LATE_MS = 100.0
PROMPT_MS = 1.0
"""Of `zwa-adaptive`, which knows what was counted at the moment of leaving from a notice only."""
RATE_MBIT = 20.0
QUEUE_PACKETS = 1000
PAPER_WINDOW = 40_000

IDLE_MS_MAX = 100.0
"""Beyond a round trip, with replay."""
REROUTED_MS_MAX = 50.0
_Case = tuple[tuple[str, str, str, str, str], Plan]
"""Part of the experiment, scheme, congestion control, hops, delay; and how it is run."""
BARE_PAPER_S = 4.0
"""The paper saw interruptions of 3 to 5 s with gaps of 1 to 2 s."""


def cells(options: Options) -> list[Cell]:
    """`replay` everywhere; the others everywhere with one delay, and where the paper has them."""
    cases = _quick() if options.quick else [*_replay(), *_others(), *_published()]
    # Another scheme means another controller: settings change inside a scheme.
    cases.sort(key=lambda case: SCHEMES.index(case[0][1]))
    return expand(options, NAME, cases, "ovs")


def _replay() -> Iterator[_Case]:
    gaps = [Move(gap, LATE_MS * (number % 2)) for number, gap in enumerate(GAPS_S)]
    for congestion, hops, delay in product(CONGESTIONS, HOPS, DELAYS_MS):
        yield _case("grid", "replay", congestion, hops, delay, gaps)


def _others() -> Iterator[_Case]:
    for scheme, congestion, hops in product(SCHEMES[:3], CONGESTIONS, HOPS):
        gaps = GAPS_S if congestion == "new-reno" else FEW_GAPS_S
        moves = [Move(gap, _notice_ms(scheme)) for gap in gaps]
        yield _case("grid", scheme, congestion, hops, USUAL_DELAY_MS, moves)


def _published() -> Iterator[_Case]:
    for scheme in SCHEMES:
        moves = [Move(gap, _notice_ms(scheme)) for gap in PAPER_GAPS_S]
        yield _case("paper", scheme, "new-reno", 2, 80, moves)
        yield _case("late", scheme, "new-reno", 2, 80, [Move(2.0, LATE_MS)])


def _quick() -> list[_Case]:
    both = [Move(1.0), Move(2.0, LATE_MS)]
    reno: list[tuple[OvsHops, int]] = [(2, 20), (7, 20), (3, 1), (3, 80)]
    return [
        *(_case("grid", "replay", "new-reno", hops, delay, both) for hops, delay in reno),
        *(_case("grid", "replay", control, 3, 20, both) for control in CONGESTIONS[1:]),
        *(_case("paper", scheme, "new-reno", 2, 80, [Move(2.0)]) for scheme in SCHEMES[:2]),
        _case("late", "zwa", "new-reno", 2, 80, [Move(2.0, LATE_MS)]),
    ]


def _notice_ms(scheme: str) -> float:
    return PROMPT_MS if scheme == "zwa-adaptive" else 0.0


def _case(
    part: str,
    scheme: OvsScheme,
    congestion: Congestion,
    hops: OvsHops,
    delay_ms: int,
    moves: Sequence[Move],
) -> _Case:
    old = congestion == "new-reno"
    key = (part, scheme, congestion, f"hops_{hops}", f"delay_{delay_ms}")
    link = Link(rate_mbit=RATE_MBIT, delay_ms=delay_ms, queue_packets=QUEUE_PACKETS)
    carrier = OvsRoam(scheme, hops, tuple(moves), sack=not old, initial_window=1 if old else None)
    plan = Plan(
        name="/".join((NAME, *key)),
        duration_s=roam.duration_s(link, carrier),
        path=(Path("link", link),),
        carrier=carrier,
        traffic=(Tcp(congestion=congestion, window=PAPER_WINDOW if old else None),),
    )
    return key, plan


def claims(results: Results) -> list[Claim]:
    """Replay's bounds in every cell; the published variants beside plain TCP and the paper."""
    rows = []
    for scheme in SCHEMES:
        rows += _ends(results.where("ovs", None, scheme), scheme)
    for key in dict.fromkeys(outcome.cell.key for outcome in results.outcomes):
        found = results.where("ovs", *key)
        rows += _bounds(found, key) if key[1] == "replay" else _idles(found, key)
    rows += _against_bare(results)
    return rows


def _ends(found: Results, scheme: str) -> list[Claim]:
    """How connections ended; with replay, each must have ended well with every byte."""
    if not found.planned():
        return []
    late = "" if scheme in ("bare", "replay") else "; a late notice breaks it for good"
    reports = dict(enumerate(o.report for o in found.outcomes if o.report is not None))
    broken = {run: float(report.broken) for run, report in reports.items()}
    lost = {run: report.values.get(roam.LOST, 0.0) for run, report in reports.items()}
    target = 0.0 if scheme == "replay" else None
    note = f"mean over {len(reports)} downloads"
    return [
        measures.value(
            f"{scheme}: connections that broke or hung",
            "",
            found,
            broken,
            target,
            relation="<=",
            note=note + late,
        ),
        measures.value(
            f"{scheme}: bytes lost or changed",
            "bytes",
            found,
            lost,
            target,
            relation="<=",
            note=note,
        ),
    ]


def _bounds(found: Results, key: tuple[str, ...]) -> list[Claim]:
    """The worst move of a download with replay."""
    label = ", ".join(key).replace("_", " ")
    idle, rerouted = {}, {}
    for outcome in found.outcomes:
        if outcome.report is not None:
            rows = outcome.report.handovers
            beyond = [_idle_ms(outcome, row) - row.rtt_ms for row in rows]
            idle[outcome.cell.seed] = max(beyond)
            rerouted[outcome.cell.seed] = max(_rerouted_ms(outcome, row) for row in rows)
    return [
        measures.value(
            f"{label}: idle beyond a round trip, worst move",
            "ms",
            found,
            idle,
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
    """Each move of another scheme, beside what the paper says of it."""
    rows = []
    for gap in _gaps(found):
        idle = _by_gap(found, gap)
        label = f"{', '.join(key).replace('_', ' ')}: idle after {gap:g} s"
        paper, note = None, ""
        if key[0] == "paper" and gap <= 2:
            paper = {"bare": 1e3 * (BARE_PAPER_S - gap), "zwa": 0.0}.get(key[1])
            note = (
                "" if paper is None else "published: interrupted for 3 to 5 s, by ZWA for the gap"
            )
        rows.append(measures.value(label, "ms", found, idle, None, paper=paper, note=note))
    return rows


def _against_bare(results: Results) -> list[Claim]:
    """The paper's figures 7 and 8: ZWA is idle for less, carries more, sends less again."""
    rows = []
    for hops, gap in product(HOPS, GAPS_S):
        where = ("new-reno", f"hops_{hops}", f"delay_{USUAL_DELAY_MS}")
        zwa, bare = (results.where("ovs", "grid", scheme, *where) for scheme in ("zwa", "bare"))
        ratio = paired_ratio(_by_gap(zwa, gap), _by_gap(bare, gap))
        if ratio is not None:
            name = f"zwa's idle by bare's, {hops} hops, {gap:g} s"
            rows.append(claim(name, "ratio", ratio, relation="<=", target=1.0, paper=1.0))
    zwa, bare = (results.where("ovs", "paper", scheme, "new-reno") for scheme in ("zwa", "bare"))
    if zwa.reports() and bare.reports():
        rows.append(measures.compare("zwa's throughput by bare's", zwa, bare, 1.0, paper=1.0))
        ratio = paired_ratio(_retransmits(zwa), _retransmits(bare))
        if ratio is not None:
            name = "zwa's retransmissions by bare's"
            rows.append(claim(name, "ratio", ratio, relation="<=", target=1.0, paper=1.0))
    return rows


def _retransmits(found: Results) -> dict[int, float]:
    return {
        seed: float(sum(row.retransmits for row in report.handovers))
        for seed, report in found.reports().items()
    }


def _gaps(found: Results) -> list[float]:
    return list(dict.fromkeys(row.gap_s for r in found.reports().values() for row in r.handovers))


def _by_gap(found: Results, gap_s: float) -> dict[int, float]:
    """Idle time after a gap, ms, by seed."""
    return {
        outcome.cell.seed: _idle_ms(outcome, row)
        for outcome in found.outcomes
        if outcome.report is not None
        for row in outcome.report.handovers
        if row.gap_s == gap_s
    }


def _idle_ms(outcome: Outcome, row: HandoverReport) -> float:
    """The longer of both times; when nothing came at all, the time that it had."""
    times = [row.sender_idle_ms, row.receiver_idle_ms]
    return max(_had_ms(outcome, row) if idle is None else idle for idle in times)


def _rerouted_ms(outcome: Outcome, row: HandoverReport) -> float:
    return _had_ms(outcome, row) if row.rerouted_ms is None else row.rerouted_ms


def _had_ms(outcome: Outcome, row: HandoverReport) -> float:
    plan = outcome.cell.plan
    assert isinstance(plan.carrier, OvsRoam), plan.carrier
    move = Move(row.gap_s, row.notice_ms)
    return 1e3 * roam.settle_s(plan.path[0].both, plan.carrier, move)


def figures(results: Results) -> list[Figure]:
    """Replay's worst moves by setting. Idle time by gap, as figure 8. Throughput, as figure 7."""
    drawn = _worst(results)
    for hops in HOPS:
        where = ("new-reno", f"hops_{hops}", f"delay_{USUAL_DELAY_MS}")
        series: dict[str, list[tuple[float, float]]] = {}
        for scheme in SCHEMES:
            found = results.where("ovs", "grid", scheme, *where)
            points = ((gap, estimate(list(_by_gap(found, gap).values()))) for gap in _gaps(found))
            series[scheme] = [(gap, idle.mean) for gap, idle in points if idle is not None]
        if any(series[scheme] for scheme in SCHEMES[:3]):
            drawn.append(
                Figure(
                    f"Idle after re-association, Reno, {hops} hops of {USUAL_DELAY_MS} ms",
                    "As figure 8 of the paper, whose values are not in its text: ZWA below plain "
                    "TCP at all gaps.",
                    curves(series, "gap, s", "ms"),
                )
            )
    return [*drawn, *_figure_7(results)]


def _worst(results: Results) -> list[Figure]:
    """The worst move of every download with replay."""
    replay = results.where("ovs", "grid", "replay")
    settings = list(dict.fromkeys(outcome.cell.key[3:] for outcome in replay.outcomes))
    drawn = []
    for title, unit, line, number in (
        ("Idle beyond a round trip, replay, worst move", "ms", IDLE_MS_MAX, 0),
        ("New ways confirmed after the association, replay, worst move", "ms", REROUTED_MS_MAX, 1),
    ):
        series: dict[str, list[float | None]] = {
            control: [
                _bounds(found, found.outcomes[0].cell.key)[number].measured
                if (found := results.where("ovs", "grid", "replay", control, *setting)).planned()
                else None
                for setting in settings
            ]
            for control in CONGESTIONS
        }
        if settings:
            rows = [", ".join(setting).replace("_", " ") for setting in settings]
            drawn.append(Figure(title, "Dashed: the target.", dots(rows, series, unit, line)))
    return drawn


def _figure_7(results: Results) -> list[Figure]:
    found = {scheme: results.where("ovs", "paper", scheme) for scheme in SCHEMES}
    there = [scheme for scheme in SCHEMES if found[scheme].reports()]
    if not there:
        return []
    mbit = [measures.bar(estimate(list(measures.goodput(found[s]).values()))) for s in there]
    again = [measures.bar(estimate(list(_retransmits(found[s]).values()))) for s in there]
    caption = "Reno, 2 hops of 80 ms, as figure 7 of the paper: ZWA carries more, sends less again."
    return [
        Figure("Throughput over all moves", caption, bars(there, {"measured": mbit}, "Mbit/s")),
        Figure("Segments sent again", caption, bars(there, {"measured": again}, "segments")),
    ]
