"""What an uplink carries, from the counters of its port: a lower bound, without any probe.

Pure. The estimate is the highest rate of the last `WINDOW` samples in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW = 300
"""Samples, about one a second."""
FLOOR_BPS = 1e6
"""What a link is taken for that has not carried anything."""


@dataclass(frozen=True)
class Capacity:
    """One uplink's samples."""

    counters: tuple[int, int] | None = None
    at_s: float = 0.0
    rates_bps: tuple[float, ...] = ()

    @property
    def bps(self) -> float:
        """The estimate, bits a second."""
        return max(FLOOR_BPS, *self.rates_bps) if self.rates_bps else FLOOR_BPS

    @property
    def present_bps(self) -> float:
        """The rate of the last sample."""
        return self.rates_bps[-1] if self.rates_bps else 0.0


def sampled(capacity: Capacity, counters: tuple[int, int], now: float) -> Capacity:
    """Takes the port's bytes received and sent; counters that went back begin anew."""
    former = capacity.counters
    after = replace(capacity, counters=counters, at_s=now)
    seconds = now - capacity.at_s
    if former is None or seconds <= 0 or any(a < b for a, b in zip(counters, former, strict=True)):
        return after
    most = max(a - b for a, b in zip(counters, former, strict=True))
    return replace(after, rates_bps=(*capacity.rates_bps, 8 * most / seconds)[-WINDOW:])
