"""What an uplink carries, from the counters of its port: a lower bound, without any probe.

Pure. The estimate is the highest rate of the last `WINDOW` samples in either direction, or what
probing found (`balance.probing`) where that is more. The packets of probing itself count for
nothing: the port takes a train at once, however slow the link behind it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropewalk.sdn.openflow.events import Counters

WINDOW = 300
"""Samples, about one a second."""
INTERVAL_S_MIN = 0.1
"""Between samples: shorter ones would measure bursts."""
FLOOR_BPS = 1e6
"""What a link is taken for that has not carried anything, and was not probed."""
BUSY_SHARE = 0.05
"""Of the estimate, or of `FLOOR_BPS` where that is more; what carries more is not idle."""
QUIET_SAMPLES = 2
"""Samples that must be idle before an uplink is probed."""
NOTHING = Counters(0, 0, 0.0)


@dataclass(frozen=True)
class Capacity:
    """One uplink's samples."""

    last: Counters | None = None
    rates_bps: tuple[float, ...] = ()
    probed_bps: float | None = None
    """What probing found."""
    own: Counters = NOTHING
    """Bytes of probing since the last sample."""

    @property
    def bps(self) -> float:
        """The estimate, bits a second."""
        floor = FLOOR_BPS if self.probed_bps is None else self.probed_bps
        return max(floor, self.carried_bps)

    @property
    def carried_bps(self) -> float:
        """The highest rate of the samples."""
        return max(self.rates_bps, default=0.0)

    @property
    def is_probed(self) -> bool:
        """Whether the estimate is what probing found."""
        return self.probed_bps is not None and self.probed_bps > self.carried_bps

    @property
    def is_idle(self) -> bool:
        """Whether there was next to nothing lately."""
        last = self.rates_bps[-QUIET_SAMPLES:]
        return len(last) == QUIET_SAMPLES and max(last) < BUSY_SHARE * max(FLOOR_BPS, self.bps)

    @property
    def present_bps(self) -> float:
        """The rate of the last sample."""
        return self.rates_bps[-1] if self.rates_bps else 0.0


def probed(capacity: Capacity, received: int, sent: int) -> Capacity:
    """So many bytes of a probe passed the port."""
    own = capacity.own
    own = replace(own, received=own.received + received, sent=own.sent + sent)
    return replace(capacity, own=own)


def sampled(capacity: Capacity, counters: Counters) -> Capacity:
    """Takes the port's counters; those that went back begin anew.

    Time is the switch's own: answers that waited in a queue would come at once.
    """
    former = capacity.last
    anew = replace(capacity, last=counters, own=NOTHING)
    if former is None:
        return anew
    received, sent = counters.received - former.received, counters.sent - former.sent
    seconds = counters.seconds - former.seconds
    if min(received, sent) < 0 or seconds < 0:
        return anew
    if seconds < INTERVAL_S_MIN:
        return capacity
    carried = max(0, received - capacity.own.received, sent - capacity.own.sent)
    return replace(anew, rates_bps=(*capacity.rates_bps, 8 * carried / seconds)[-WINDOW:])
