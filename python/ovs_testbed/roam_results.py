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
_SILENT_S = 0.5
"""A broken connection that had nothing to show for this and two round trips, up to the end of the
time it had, did not come back from this move: its first bytes afterwards were its last."""


@dataclass(frozen=True)
class Moved:
    """One move that was made; `rtt_s` is that of the shorter way, `rtt_s_max` of the longer.

    After `until_s` comes the next move, or the end of what the sender has to send.
    """

    move: Move
    rtt_s: float
    rtt_s_max: float
    left_s: float
    joined_s: float
    waited_s: float
    until_s: float


def handovers(
    moves: Sequence[Moved],
    confirmed_s: Sequence[float | None],
    sent: dict[str, Any],
    received: dict[str, Any],
) -> tuple[HandoverReport, ...]:
    """A row for each move; `confirmed_s` is when all switches had confirmed the new ways."""
    last_s = max(sent["ended_s"], moves[-1].until_s) if moves else 0.0
    ends = [move.left_s for move in moves[1:]] + [last_s]
    return tuple(
        _handover(move, confirmed, end, sent, received)
        for move, confirmed, end in zip(moves, confirmed_s, ends, strict=True)
    )


def _handover(
    moved: Moved,
    confirmed_s: float | None,
    end_s: float,
    sent: dict[str, Any],
    received: dict[str, Any],
) -> HandoverReport:
    left_s, joined_s = moved.left_s, moved.joined_s
    samples: list[list[float]] = sent["samples"]
    arrivals: list[list[float]] = received["arrivals"]
    before = [sample for sample in samples if sample[0] < left_s]
    former = [sample for sample in samples if sample[0] < joined_s][-1]
    later = [sample for sample in samples if joined_s <= sample[0] < end_s] or [former]
    began = next((sample[0] for sample in later if sample[1] > former[1]), None)
    had = max((total for at_s, total in arrivals if at_s < joined_s), default=0)
    came = next(
        (at_s for at_s, total in arrivals if joined_s <= at_s < end_s and total > had), None
    )
    last_s = arrivals[-1][0] if arrivals else 0.0
    silent_s = end_s - last_s - 2 * moved.rtt_s_max
    dead = _broken(sent, received) and silent_s > _SILENT_S
    read_s = joined_s + _CONFIRMED_RTTS * moved.rtt_s_max
    left = before[-1] if before else former
    return HandoverReport(
        gap_s=moved.move.gap_s,
        notice_ms=moved.move.notice_ms,
        rtt_ms=round(1e3 * moved.rtt_s, 1),
        rerouted_ms=_ms(confirmed_s, joined_s),
        sender_idle_ms=_ms(began, joined_s),
        receiver_idle_ms=None if dead else _ms(came, joined_s),
        window_before=int(left[3]),
        window_after=int(next((s[3] for s in later if s[0] >= read_s), later[-1][3])),
        retransmits=int(later[-1][4] - left[4]),
        waited_ms=round(1e3 * moved.waited_s, 1),
        had_ms=round(1e3 * ((max(sent["ended_s"], end_s) if dead else end_s) - joined_s), 1),
    )


def download(sent: dict[str, Any], received: dict[str, Any]) -> TrafficReport:
    """The connection: broken when it did not end by itself, or not with what was sent.

    The goodput of a broken one is over all the time that its sender tried.
    """
    arrivals, broken = received["arrivals"], _broken(sent, received)
    began_s = arrivals[0][0] if arrivals else 0.0
    span_s = (sent["ended_s"] if broken else arrivals[-1][0]) - began_s if arrivals else 0.0
    goodput = 8e-6 * received["bytes"] / span_s if span_s > 0 else 0.0
    return reports.download(goodput, int(sent["samples"][-1][4]), broken)


def values(sent: dict[str, Any], received: dict[str, Any]) -> dict[str, float]:
    """How many bytes were lost, and how the connection ended when it did not do so by itself."""
    found = {LOST: float(abs(sent["bytes"] - received["bytes"]))}
    if sent["sha256"] != received["sha256"] and not found[LOST]:
        found[LOST] = float(sent["bytes"])
    endings = [end["ended"] for end in (sent, received) if end["ended"] != "complete"]
    return {**found, f"{endings[0]} (connections)": 1.0} if endings else found


def _broken(sent: dict[str, Any], received: dict[str, Any]) -> bool:
    same = (sent["bytes"], sent["sha256"]) == (received["bytes"], received["sha256"])
    return sent["ended"] != "complete" or not same


def _ms(at_s: float | None, since_s: float) -> float | None:
    return None if at_s is None else round(1e3 * (at_s - since_s), 1)
