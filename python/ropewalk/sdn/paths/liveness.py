"""Whether a path is alive and what it loses, by probes that the far end reflects.

Pure. A path counts as alive until nothing has come back for `down_after_s`, and again after
`UP_ANSWERS` answers. Silence counts from the first probe on, and only when `SILENT_PROBES` have
left: a controller that was held up itself condemns nobody. Loss is of both directions together,
over the last `WINDOW` probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

WINDOW = 100
"""Probes over which loss is measured."""
LATE_S = 2.0
"""Age at which an unanswered probe counts as lost; a later answer is still a sign of life."""
LATE_PROBES_MAX = 256
"""How many probes back an answer is believed: full queues delay them by seconds."""
OPEN_MAX = 64
"""Probes under way that are remembered."""
SILENT_PROBES = 5
"""Probes without any answer since, before a path counts as down."""
UP_ANSWERS = 3
"""Answers after which a path that was down is used again."""


@dataclass(frozen=True)
class Path:
    """One path's probes."""

    down_after_s: float
    began_s: float | None = None
    sequence: int = 0
    sent_s: float = float("-inf")
    open: Mapping[int, float] = field(default_factory=dict)
    outcomes: tuple[bool, ...] = ()
    answered_s: float | None = None
    answers: int = 0
    unanswered: int = 0
    rtt_s: float | None = None
    alive: bool = True

    @property
    def known(self) -> bool:
        """Whether it has answered, or had its time to."""
        return self.answered_s is not None or not self.alive

    @property
    def loss(self) -> float | None:
        """Share of probes that were lost, 0 to 1; None before a tenth of the window."""
        if len(self.outcomes) < WINDOW // 10:
            return None
        return 1 - sum(self.outcomes) / len(self.outcomes)


def probed(path: Path, now: float) -> tuple[Path, int]:
    """Another probe leaves; returns its number."""
    number = (path.sequence + 1) & 0xFFFF_FFFF
    under_way = dict(path.open)
    while len(under_way) >= OPEN_MAX:
        under_way.pop(next(iter(under_way)))
    under_way[number] = now
    after = replace(
        path,
        began_s=now if path.began_s is None else path.began_s,
        sequence=number,
        sent_s=now,
        open=under_way,
        unanswered=path.unanswered + 1,
    )
    return after, number


def answered(path: Path, number: int, now: float) -> Path:
    """A probe came back; one that never left is ignored, a late one is a sign of life only."""
    sent = path.open.get(number)
    if sent is None:
        age = (path.sequence - number) & 0xFFFF_FFFF
        if path.began_s is None or age >= LATE_PROBES_MAX:
            return path
        return replace(path, answered_s=now, unanswered=0)
    answers = path.answers + 1
    return replace(
        path,
        open={key: value for key, value in path.open.items() if key != number},
        outcomes=(*path.outcomes, True)[-WINDOW:],
        answered_s=now,
        answers=answers,
        unanswered=0,
        rtt_s=now - sent,
        alive=path.alive or answers >= UP_ANSWERS,
    )


def heard(path: Path, now: float) -> Path:
    """Something else came back: a path that is alive is not silent."""
    return replace(path, answered_s=now, unanswered=0) if path.alive and path.answers else path


def passed(path: Path, now: float) -> Path:
    """Time has passed: what is late is lost, and silence is an end."""
    late = [number for number, sent in path.open.items() if now - sent >= LATE_S]
    if late:
        path = replace(
            path,
            open={key: value for key, value in path.open.items() if key not in late},
            outcomes=(*path.outcomes, *(False for _ in late))[-WINDOW:],
        )
    last = path.answered_s if path.answered_s is not None else path.began_s
    silent = last is not None and now - last >= path.down_after_s
    if silent and path.unanswered >= SILENT_PROBES and (path.alive or path.answers):
        return replace(path, alive=False, answers=0)
    return path
