"""What an idle uplink carries, from how much longer large packets take than small ones: variable
packet size probing.

Pure. Times in seconds, sizes in bytes with the IP header, rates in bits a second. Of each size the
lower quartile of the round trips counts, of which an idle way makes few wait; the published minimum
is one lucky turn of the switch's loop and the controller's, and scattered more. Every link on the
way stores a packet before it sends it on, so a byte costs the sum of what it costs on all of them,
there and back. The estimate takes two equal links, one for each direction. Limits: it is too low
by every further link, between the two rates where they differ, and says nothing where packets are
sent in aggregates, as in Wi-Fi. A round trip here goes through controller and switch twice, whose
work is uneven by tenths of a millisecond: at 100 Mbit/s the largest size takes 0.18 ms longer than
the smallest.

Source: Al-Najjar, Pakzad, Layeghy, Portmann, "Link capacity estimation in SDN-based end-hosts",
ICSPCS 2016; the sum over links as in Prasad et al. 2003.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, quantiles

SIZES = (100, 375, 650, 925, 1_200)
"""That are sent; the largest is within the smallest MTU of IPv6."""
REPEATS = 20
"""Times that each size is sent."""
SIZES_MIN = 3
"""Sizes that must have been answered."""
ANSWERS_MIN = REPEATS // 2
"""Answers of each of them: with fewer there was likely none without waiting."""


def rate(round_trips: Sequence[tuple[int, float]]) -> float | None:
    """The rate from sizes and round trips.

    None when too few came back, or large packets were not slower.
    """
    times: dict[int, list[float]] = {}
    for size, seconds in round_trips:
        times.setdefault(size, []).append(seconds)
    short = {
        size: quantiles(all_s, n=4)[0] for size, all_s in times.items() if len(all_s) >= ANSWERS_MIN
    }
    if len(short) < SIZES_MIN:
        return None
    line = linear_regression(list(short), list(short.values()))
    return 2 * 8 / line.slope if line.slope > 0 else None
