"""What an uplink carries, from the counters of its port and the round trips of its probes.

Pure. The packets of probing the capacity count for nothing: the port takes a train at once, however
slow the link behind it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ropewalk._native import Capacity
from ropewalk.sdn.openflow.events import Counters

INTERVAL_S_MIN = 0.1
"""Between samples: shorter ones would measure bursts."""
ROUND_TRIPS_MAX = 32
"""Of probes between two samples that are kept."""
NOTHING = Counters(0, 0, 0.0)


@dataclass(frozen=True)
class Meter:
    """One uplink's counters, and what they say."""

    capacity: Capacity = field(default_factory=Capacity)
    last: Counters | None = None
    own: Counters = NOTHING
    """Bytes of probing since the last sample."""
    round_trips_s: tuple[float, ...] = ()
    """Since the last sample."""
    is_idle: bool = False
    """Whether probing would disturb nobody, and could find something new."""


def probed(meter: Meter, received: int, sent: int) -> Meter:
    """So many bytes of a probe passed the port."""
    own = meter.own
    own = replace(own, received=own.received + received, sent=own.sent + sent)
    return replace(meter, own=own)


def answered(meter: Meter, rtt_s: float) -> Meter:
    """A probe of liveness was answered after so long."""
    kept = (*meter.round_trips_s, rtt_s)[-ROUND_TRIPS_MAX:]
    return replace(meter, round_trips_s=kept)


def estimated(meter: Meter, bps: float | None) -> Meter:
    """Probing has found a rate, or nothing."""
    return replace(meter, capacity=meter.capacity.estimated(bps))


def sampled(meter: Meter, counters: Counters, now: float) -> Meter:
    """Takes the port's counters; those that went back begin anew.

    Time is the switch's own: answers that waited in a queue would come at once.
    """
    former = meter.last
    anew = replace(meter, last=counters, own=NOTHING)
    if former is None:
        return anew
    received, sent = counters.received - former.received, counters.sent - former.sent
    seconds = counters.seconds - former.seconds
    if min(received, sent) < 0 or seconds < 0:
        return anew
    if seconds < INTERVAL_S_MIN:
        return meter
    carried = max(0, received - meter.own.received, sent - meter.own.sent)
    known = meter.capacity.sampled(now, carried, seconds, meter.round_trips_s)
    return replace(anew, capacity=known, round_trips_s=(), is_idle=known.is_worth_probing)
