"""What an uplink carries, from the counters of its port: a lower bound, without any probe.

Pure. The estimate is the highest rate of the last `WINDOW` samples in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropewalk.sdn.events import Counters

WINDOW = 300
"""Samples, about one a second."""
INTERVAL_S_MIN = 0.1
"""Between samples: shorter ones would measure bursts."""
FLOOR_BPS = 1e6
"""What a link is taken for that has not carried anything."""


@dataclass(frozen=True)
class Capacity:
    """One uplink's samples."""

    last: Counters | None = None
    rates_bps: tuple[float, ...] = ()

    @property
    def bps(self) -> float:
        """The estimate, bits a second."""
        return max(FLOOR_BPS, *self.rates_bps) if self.rates_bps else FLOOR_BPS

    @property
    def present_bps(self) -> float:
        """The rate of the last sample."""
        return self.rates_bps[-1] if self.rates_bps else 0.0


def sampled(capacity: Capacity, counters: Counters) -> Capacity:
    """Takes the port's counters; those that went back begin anew.

    Time is the switch's own: answers that waited in a queue would come at once.
    """
    former = capacity.last
    if former is None:
        return replace(capacity, last=counters)
    received, sent = counters.received - former.received, counters.sent - former.sent
    seconds = counters.seconds - former.seconds
    if min(received, sent) < 0 or seconds < 0:
        return replace(capacity, last=counters)
    if seconds < INTERVAL_S_MIN:
        return capacity
    rate = 8 * max(received, sent) / seconds
    return Capacity(counters, (*capacity.rates_bps, rate)[-WINDOW:])
