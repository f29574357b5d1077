"""What an idle uplink carries, from packets that leave back to back: the slowest link on the way
spreads them, and their answers arrive as far apart as it takes to send one.

Pure. Times in seconds, sizes in bytes with the IP header, rates in bits a second. Echoes go there
and back, so the slower direction is measured. Limits: what else arrives between the answers makes
the rate look lower, a token bucket's burst makes it look higher, and times are taken in the
controller: the switch shows packets as its loop comes round, some tens of microseconds each, so
that ends of a train are off by tenths of a millisecond. So trains over faster links are longer,
and beyond some 200 Mbit/s the switch's own work is what is measured.

Source: packet dispersion, `C = (N - 1) L / (t_N - t_1)`, the median of several trains.
"""

from __future__ import annotations

from collections.abc import Sequence

PACKETS_MIN, PACKETS_MAX = 20, 100
"""Of a train: enough to even out timers, few enough for shallow queues; more where the link is
fast enough to be done with them as soon."""
SPREAD_S = 0.01
"""Time for which a train is to keep the link busy: far above what the switch's loop takes."""
PACKET_BYTES = 1_200
"""Within the smallest MTU of IPv6."""
ANSWERED_MIN = 0.85
"""Share of a train that makes a rate: what is lost behind the slowest link makes it look as much
slower."""


def packets(known_bps: float | None) -> int:
    """How many packets the next train has, over a link of which so much is known."""
    wanted = 1 + round((known_bps or 0.0) * SPREAD_S / (8 * PACKET_BYTES))
    return min(max(wanted, PACKETS_MIN), PACKETS_MAX)


def rate(arrivals_s: Sequence[float], sent: int) -> float | None:
    """The rate of one train of `sent` packets; None when too few were answered, or all at once.

    Times may be in any order: packets that overtake each other are spread all the same.
    """
    if len(arrivals_s) < max(2, ANSWERED_MIN * sent):
        return None
    seconds = max(arrivals_s) - min(arrivals_s)
    if seconds <= 0:
        return None
    return 8 * (len(arrivals_s) - 1) * PACKET_BYTES / seconds
