"""What textbooks say a TCP connection carries where random losses alone limit it.

All give Mbit/s of payload, from the bytes of a segment, the round-trip time in seconds, and the
probability that a segment is lost. None knows of a link's rate or of a receiver's window.
"""

from __future__ import annotations

from math import sqrt

RTO_MIN_S = 0.2
"""Least time that Linux's timeout stays above the round trip (`TCP_RTO_MIN`)."""
CUBIC_C = 0.4
CUBIC_BETA = 0.7
"""RFC 9438, sections 4.1 and 4.6."""


def mathis(segment_bytes: float, rtt_s: float, loss: float) -> float:
    """NewReno without timeouts: a window of sqrt(3 / 2p) segments on average.

    Mathis et al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm", 1997,
    with one acknowledged segment counting as one, as in Linux, however acknowledgements are
    delayed.
    """
    return _rate(segment_bytes, rtt_s, sqrt(1.5 / loss))


def padhye(segment_bytes: float, rtt_s: float, loss: float) -> float:
    """NewReno with timeouts.

    Padhye et al., "Modeling TCP Throughput", 1998, as in RFC 5348, section 3.1, with b = 1 for the
    reason given at `mathis`. In the model every segment after a loss in the same round trip is
    lost, and there are neither selective acknowledgements nor probes. So the model is below Linux.
    """
    timeout_s = rtt_s + RTO_MIN_S
    repeated = min(1.0, 3 * sqrt(3 * loss / 8)) * loss * (1 + 32 * loss**2)
    seconds = rtt_s * sqrt(2 * loss / 3) + timeout_s * repeated
    return _rate(segment_bytes, 1.0, 1 / seconds)


def cubic(segment_bytes: float, rtt_s: float, loss: float) -> float:
    """CUBIC: the average window of RFC 9438, section 5.1, or NewReno's where that is larger."""
    factor = (CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25
    window = factor * (rtt_s / loss) ** 0.75
    return max(_rate(segment_bytes, rtt_s, window), mathis(segment_bytes, rtt_s, loss))


def _rate(segment_bytes: float, seconds: float, segments: float) -> float:
    return segments * segment_bytes * 8 / seconds / 1e6
