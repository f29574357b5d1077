"""What sender and receiver saw of moves; pure.

`sent` and `received` are what `roam_load` reports: the sender's samples are (time, segments,
acknowledged bytes, window, retransmitted segments), the receiver's arrivals (time, bytes so far).
All times are of one clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ovs_testbed import reports
from ropewalk.lab.ovs.roam import LOST
from ropewalk.plan import Move
from ropewalk.report import HandoverReport, TrafficReport

_CONFIRMED_RTTS = 1.2
"""A window is read so long after the arrival: an acknowledgement has come round by then."""


@dataclass(frozen=True)
class Moved:
    """One move that was made; `rtt_s` is that of the shorter way, `rtt_s_max` of the longer."""

    move: Move
    rtt_s: float
    rtt_s_max: float
    left_s: float
    joined_s: float
    waited_s: float


def handovers(
    moves: Sequence[Moved],
    confirmed_s: Sequence[float | None],
    sent: dict[str, Any],
    received: dict[str, Any],
) -> tuple[HandoverReport, ...]:
    """A row for each move; `confirmed_s` is when all switches had confirmed the new ways."""
    ends = [move.left_s for move in moves[1:]] + [float("inf")]
    return tuple(
        _handover(move, confirmed, end, sent["samples"], received.get("arrivals", []))
        for move, confirmed, end in zip(moves, confirmed_s, ends, strict=True)
    )


def _handover(
    moved: Moved,
    confirmed_s: float | None,
    end_s: float,
    samples: list[list[float]],
    arrivals: list[list[float]],
) -> HandoverReport:
    left_s, joined_s = moved.left_s, moved.joined_s
    before = [sample for sample in samples if sample[0] < left_s]
    former = [sample for sample in samples if sample[0] < joined_s][-1]
    later = [sample for sample in samples if joined_s <= sample[0] < end_s] or [former]
    began = next((sample[0] for sample in later if sample[1] > former[1]), None)
    had = max((total for at_s, total in arrivals if at_s < joined_s), default=0)
    came = next(
        (at_s for at_s, total in arrivals if joined_s <= at_s < end_s and total > had), None
    )
    read_s = joined_s + _CONFIRMED_RTTS * moved.rtt_s_max
    left = before[-1] if before else former
    return HandoverReport(
        gap_s=moved.move.gap_s,
        notice_ms=moved.move.notice_ms,
        rtt_ms=round(1e3 * moved.rtt_s, 1),
        rerouted_ms=_ms(confirmed_s, joined_s),
        sender_idle_ms=_ms(began, joined_s),
        receiver_idle_ms=_ms(came, joined_s),
        window_before=int(left[3]),
        window_after=int(next((s[3] for s in later if s[0] >= read_s), later[-1][3])),
        retransmits=int(later[-1][4] - left[4]),
        waited_ms=round(1e3 * moved.waited_s, 1),
    )


def download(sent: dict[str, Any], received: dict[str, Any]) -> TrafficReport:
    """The connection: broken when it did not end by itself, or not with what was sent."""
    arrivals = received.get("arrivals", [])
    span_s = arrivals[-1][0] - arrivals[0][0] if len(arrivals) > 1 else 0.0
    goodput = 8e-6 * received["bytes"] / span_s if span_s else 0.0
    same = (sent["bytes"], sent["sha256"]) == (received.get("bytes"), received.get("sha256"))
    broken = sent["ended"] != "complete" or not same
    return reports.download(goodput, int(sent["samples"][-1][4]), broken)


def values(sent: dict[str, Any], received: dict[str, Any]) -> dict[str, float]:
    """How many bytes were lost, and how the connection ended when it did not do so by itself."""
    found = {LOST: float(abs(sent["bytes"] - received.get("bytes", 0)))}
    if received and sent["sha256"] != received["sha256"] and not found[LOST]:
        found[LOST] = float(sent["bytes"])
    ended = sent["ended"] if received else "hung"
    return found if ended == "complete" else {**found, f"{ended} (connections)": 1.0}


def _ms(at_s: float | None, since_s: float) -> float | None:
    return None if at_s is None else round(1e3 * (at_s - since_s), 1)
