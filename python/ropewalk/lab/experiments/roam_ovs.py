"""A station moves between access points of eight switches: what a TCP stream waits."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.experiments.roam_cases import (
    CONGESTIONS,
    GAPS_S,
    HOPS,
    NAME,
    PAPER_GAPS_S,
    SCHEMES,
    USUAL_DELAY_MS,
    full,
    quick,
)
from ropewalk.lab.experiments.roam_claims import (
    IDLE_MS_MAX,
    REROUTED_MS_MAX,
    bounds,
    by_gap,
    claims,
    paper,
    retransmits,
)
from ropewalk.lab.figures import Figure, curves, dots
from ropewalk.lab.statistics import estimate

__all__ = ["ABOUT", "ASSUMPTIONS", "TITLE", "cells", "claims", "figures"]

TITLE = "A station that moves, on Open vSwitch"
ABOUT = (
    "One download over eight switches and three access points while its station moves on several "
    "times, away for 1 to 6 s each: ways only (bare), the published zero window (zwa), the paper's "
    "whole scheme, which asks counters first (zwa-adaptive), and keeping what was sent (replay)."
)
ASSUMPTIONS = (
    "Singh et al., section 3. How its figure 5 is wired is not said in words: S1 to S3 carry the "
    "access points and join at S4, from where S5 to S8 follow one another; the sender hangs at S1, "
    "S4, S6 or S8. The rates of its links are not known: 20 Mbit/s here, queues of 1,000 packets.",
    "Moves of a download follow one another, from each access point to the next, with time to "
    "recover in between. What is compared with the paper's figures 6 and 7 has one move.",
    "A connection that does not come back is idle for all the time that it had, until its sender "
    "gave up (after 16 s without room), and counts as broken, with every scheme.",
    "Idle is the longer of two times from the association on: to the sender's first segment and to "
    "the receiver's first new byte. A round trip is that of the empty links, of the shorter of the "
    "ways before and after.",
    "A notice took about 100 ms in the paper's emulation. Such notices are in the part `late`, in "
    "a case of the part `agent`, and in every second move of replay in the grid. What compares "
    "with figures 6 and 7 is told within 1 ms. What is sent to the station before its notice dies "
    "at the access point that it has left.",
    "zwa-adaptive compares the bytes of a meter. The paper compares those of the flow, which Open "
    "vSwitch counts late.",
    "Reno without SACK and with an initial window of 1, as published. The paper limits the "
    "sender's window to 40,000 bytes in figure 7; here the receiver's window does that, and with "
    "Reno in all cells. CUBIC and BBR are as Linux has them.",
    "The text gives neither the link delay of figure 8 nor its times away: 20 ms here, and 1.5 to "
    "6 s as in figure 7. Figure 8 has 3, 5 and 7 hops; 2 hops are ours. It shows the sender's idle "
    "time; ours is the longer of both, and its downloads have several moves.",
)


def cells(options: Options) -> list[Cell]:
    """Consecutive cells have the same scheme: another one means another controller."""
    cases = quick() if options.quick else full()
    # The agents' cells have a controller of their own, too.
    order: dict[str, int] = {scheme: number for number, scheme in enumerate(SCHEMES)}
    cases.sort(key=lambda case: (order[case[0][1]], case[0][0] == "agent"))
    return expand(options, NAME, cases, "ovs")


def figures(results: Results) -> list[Figure]:
    """Replay's worst moves by setting. Idle time by gap, as figure 8. Throughput, as figure 7."""
    drawn = _worst(results)
    for hops in HOPS:
        where = ("new-reno", f"hops_{hops}", f"delay_{USUAL_DELAY_MS}")
        series: dict[str, list[tuple[float, float]]] = {}
        for scheme in SCHEMES:
            found = results.where("ovs", "grid", scheme, *where)
            series[scheme] = _means({gap: by_gap(found, gap) for gap in GAPS_S})
        if any(series[scheme] for scheme in SCHEMES[:3]):
            drawn.append(
                Figure(
                    f"Idle after re-association, Reno, {hops} hops of {USUAL_DELAY_MS} ms",
                    "As figure 8 of the paper, which has 3, 5 and 7 hops, and whose values are not "
                    "in its text: ZWA is better at all hop counts, most after long gaps.",
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
                bounds(found, found.outcomes[0].cell.key)[number].measured
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
    """Throughput and repetitions by time away; a broken connection's repetitions are left out."""
    mbit: dict[str, list[tuple[float, float]]] = {}
    again: dict[str, list[tuple[float, float]]] = {}
    for scheme in SCHEMES:
        found = {gap: paper(results, scheme, gap) for gap in PAPER_GAPS_S}
        mbit[scheme] = _means({gap: measures.goodput(found[gap]) for gap in found})
        again[scheme] = _means({gap: retransmits(found[gap]) for gap in found})
    if not any(mbit.values()):
        return []
    caption = (
        "Reno, 2 hops of 80 ms, one download for each time away, as figure 7 of the paper, whose "
        "values are not in its text: ZWA carries more and sends less again."
    )
    return [
        Figure("Throughput by time away", caption, curves(mbit, "gap, s", "Mbit/s")),
        Figure("Segments sent again by time away", caption, curves(again, "gap, s", "segments")),
    ]


def _means(by_gap: dict[float, dict[int, float]]) -> list[tuple[float, float]]:
    found = ((gap, estimate(list(values.values()))) for gap, values in by_gap.items())
    return [(gap, measured.mean) for gap, measured in found if measured is not None]
