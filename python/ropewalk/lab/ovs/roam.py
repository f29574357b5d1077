"""How long a plan of moves takes, how far the station is, and a value that runs of moves report."""

from __future__ import annotations

from ropewalk.plan import Link, Move, OvsRoam

ACCESS_POINTS = 3
LOST = "bytes lost or changed"
"""Name of the value."""
_WARM_S, _WARM_RTTS = 2.5, 6
"""The download's time before the station first leaves."""
_SETTLE_S, _SETTLE_RTTS = 1.2, 3
"""The download's time after each return."""


def rtt_s(link: Link, hops: int, access_point: int) -> float:
    """Round trip of empty links between correspondent and station; the air counts for none.

    The correspondent of 2 hops is at the first access point's switch, 4 links from the others.
    """
    links = hops if hops > 2 or access_point == 1 else 4
    return 2e-3 * links * (link.delay_ms or 0.0)


def warm_s(link: Link, carrier: OvsRoam) -> float:
    """Seconds before the station first leaves."""
    return _WARM_S + _WARM_RTTS * rtt_s(link, carrier.hops, 1)


def settle_s(link: Link, carrier: OvsRoam, move: Move) -> float:
    """Seconds between a return and what comes next.

    A sender that waits for its timer may wait as long as the gap again. A published scheme has as
    long as `bare`, with which it is compared.
    """
    alone = carrier.scheme != "replay" or carrier.compared
    rtts = _SETTLE_RTTS * rtt_s(link, carrier.hops, 2)
    return _SETTLE_S + rtts + (move.gap_s if alone else 0.0)


def duration_s(link: Link, carrier: OvsRoam) -> float:
    """Seconds that the sender sends."""
    moves = sum(move.gap_s + settle_s(link, carrier, move) for move in carrier.moves)
    return round(warm_s(link, carrier) + moves, 3)
