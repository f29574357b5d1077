"""What `roam-ovs` runs: one download for each case, while its station moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

from ropewalk.lab.ovs import roam
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

NAME = "roam-ovs"
SCHEMES: tuple[OvsScheme, ...] = ("bare", "zwa", "zwa-adaptive", "replay")
PUBLISHED: tuple[OvsScheme, ...] = ("zwa", "zwa-adaptive")
"""The paper's algorithm 2 alone, and with its comparison of counters."""
CONGESTIONS: tuple[Congestion, ...] = ("new-reno", "cubic", "bbr")
HOPS: tuple[OvsHops, ...] = (2, 3, 5, 7)
DELAYS_MS = (1, 20, 80)
USUAL_DELAY_MS = 20
GAPS_S = (1.5, 2.0, 3.5, 6.0)
FEW_GAPS_S = (1.5, 3.5)
PAPER_GAPS_S = (1.0, 1.5, 2.0, 3.0, 4.5, 6.0)
"""Within the ranges of the paper's figures 6 (1 to 2 s) and 7 (1.5 to 6 s); its text gives no
single gaps."""
LATE_MS = 100.0
PROMPT_MS = 1.0
"""Of `zwa-adaptive`, which knows what was counted at the moment of leaving from a notice only."""
RATE_MBIT = 20.0
QUEUE_PACKETS = 1000
PAPER_WINDOW = 40_000
NOTICES_MS = (0.0, 15.0, 50.0, 100.0, 200.0, 1000.0)
"""How late hostapd says that the station has gone; besides, never. The paper expects 10 to 15 ms of
hardware (section 2.2), and had about 100 ms in its emulation (section 3)."""
LOSS = 0.02
LOSSY_MOVES = 6
"""Of each link, where segments are lost on their way; and how often the station leaves then."""
WINDOWS = {"window_40k": PAPER_WINDOW, "window_4M": 4_000_000}
"""Receivers' largest windows, bytes, by the name of their case."""

_BOTH = [Move(1.5), Move(2.0, LATE_MS)]
"""Told at once, and late."""

Case: TypeAlias = tuple[tuple[str, ...], Plan]
"""Part of the experiment, scheme, congestion control, hops, delay, and what else the part varies;
and how it is run."""


def full() -> list[Case]:
    """`replay` everywhere; the others everywhere with one delay, and where the paper has them."""
    return [*_replay(), *_windows(), *_others(), *_published(), *_agents(), *_lossy(), *_six()]


def quick() -> list[Case]:
    """Every claim once."""
    reno: list[tuple[OvsHops, int]] = [(2, 20), (7, 20), (3, 1), (3, 80)]
    return [
        *(_case("grid", "replay", "new-reno", hops, delay, _BOTH) for hops, delay in reno),
        *(_case("grid", "replay", control, 3, 20, _BOTH) for control in CONGESTIONS[1:]),
        _case("ipv6", "replay", "cubic", 3, 20, _BOTH),
        *(_paper(scheme, 2.0) for scheme in ("bare", "zwa-adaptive")),
        _case("late", "zwa", "new-reno", 2, 80, [Move(2.0, LATE_MS)]),
        *(_agent(scheme, Move(2.0, 200.0)) for scheme in ("replay", "zwa-adaptive")),
    ]


def _replay() -> Iterator[Case]:
    gaps = [Move(gap, LATE_MS * (number % 2)) for number, gap in enumerate(GAPS_S)]
    for congestion, hops, delay in product(CONGESTIONS, HOPS, DELAYS_MS):
        yield _case("grid", "replay", congestion, hops, delay, gaps)


def _windows() -> Iterator[Case]:
    """Windows that are not those of the grid, which Reno has small and the others large.

    Reno has no large one: without SACK it repairs one loss in a round trip, and does not recover
    from what such a window loses in a deep queue, whether the station moves or not.
    """
    moves = [Move(GAPS_S[0]), Move(GAPS_S[-1], LATE_MS)]
    for congestion, hops, window in product(CONGESTIONS, HOPS[1:], WINDOWS):
        if congestion == "new-reno" and WINDOWS[window] > PAPER_WINDOW:
            continue
        yield _case(
            "window", "replay", congestion, hops, USUAL_DELAY_MS, moves, window, WINDOWS[window]
        )


def _others() -> Iterator[Case]:
    for scheme, congestion, hops in product(SCHEMES[:3], CONGESTIONS, HOPS):
        gaps = GAPS_S if congestion == "new-reno" else FEW_GAPS_S
        moves = [Move(gap, _notice_ms(scheme)) for gap in gaps]
        yield _case("grid", scheme, congestion, hops, USUAL_DELAY_MS, moves)


def _published() -> Iterator[Case]:
    for scheme in SCHEMES:
        yield from (_paper(scheme, gap) for gap in PAPER_GAPS_S)
        yield _case("late", scheme, "new-reno", 2, 80, [Move(2.0, LATE_MS)])


def _agents() -> Iterator[Case]:
    """Agents at the access points tell; late, and not at all."""
    moves = [*(Move(2.0, notice) for notice in NOTICES_MS), Move(2.0, lost=True)]
    yield from (_agent(scheme, move) for scheme, move in product(SCHEMES, moves))


def _agent(scheme: OvsScheme, move: Move) -> Case:
    told = "lost" if move.lost else f"notice_{move.notice_ms:g}"
    return _case("agent", scheme, "new-reno", 2, 80, [move], told)


def _lossy() -> Iterator[Case]:
    """Something is lost on its way at any time, and nothing between leaving and its notice."""
    for scheme in SCHEMES:
        moves = [Move(1.0, _notice_ms(scheme))] * LOSSY_MOVES
        yield _case("lossy", scheme, "new-reno", 2, 80, moves)


def _six() -> Iterator[Case]:
    """Over IPv6."""
    for congestion in CONGESTIONS:
        yield _case("ipv6", "replay", congestion, 3, USUAL_DELAY_MS, _BOTH)


def _paper(scheme: OvsScheme, gap_s: float) -> Case:
    """The hops, delays and window of the paper's figures 6 and 7, told within a millisecond: a
    download for each time away. `late` has the 100 ms of the paper's emulation."""
    moves = [Move(gap_s, _notice_ms(scheme))]
    return _case("paper", scheme, "new-reno", 2, 80, moves, f"gap_{gap_s:g}")


def _notice_ms(scheme: str) -> float:
    return PROMPT_MS if scheme == "zwa-adaptive" else 0.0


def _case(
    part: str,
    scheme: OvsScheme,
    congestion: Congestion,
    hops: OvsHops,
    delay_ms: int,
    moves: Sequence[Move],
    more: str = "",
    window: int | None = None,
) -> Case:
    old = congestion == "new-reno"
    key = (part, scheme, congestion, f"hops_{hops}", f"delay_{delay_ms}", *filter(None, [more]))
    loss = LOSS if part == "lossy" else None
    link = Link(rate_mbit=RATE_MBIT, delay_ms=delay_ms, queue_packets=QUEUE_PACKETS, loss=loss)
    carrier = OvsRoam(
        scheme,
        hops,
        tuple(moves),
        sack=not old,
        initial_window=1 if old else None,
        compared=part in ("paper", "agent", "lossy"),
        agents=part == "agent",
        ipv6=part == "ipv6",
    )
    plan = Plan(
        name="/".join((NAME, *key)),
        duration_s=roam.duration_s(link, carrier),
        path=(Path("link", link),),
        carrier=carrier,
        traffic=(Tcp(congestion=congestion, window=window or (PAPER_WINDOW if old else None)),),
    )
    return key, plan
