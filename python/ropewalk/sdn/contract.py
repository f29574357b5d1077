"""What `service` runs: a policy, which decides and does nothing else.

A policy is told what switches say, that time has passed, and events of its own mode. It gives the
next state and the messages to send. It opens no socket and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from ropewalk.sdn.openflow.events import At, Tick
from ropewalk.sdn.openflow.program import Message

S = TypeVar("S")
"""A policy's state."""
E = TypeVar("E")
"""Events of a policy's own, besides those of switches and of time."""
Told: TypeAlias = At | Tick | E
"""Everything that a policy is told."""
Out: TypeAlias = tuple[str, Message]
"""A switch's name and what to send to it."""


@dataclass(frozen=True)
class Urgency:
    """Where an event waits until the policy is told."""

    level: int
    """The queue, from 0, which comes first, to `LEVELS` - 1."""
    bound: int
    """The most events in the queue."""
    waits: bool = False
    """Whether its sender waits for room; an event for which nobody waits is dropped and counted."""


LEVELS = 4
"""Queues of the service."""


class Policy(Protocol[S, E]):
    """Decides; see the module."""

    @property
    def tick_s(self) -> float:
        """Seconds between ticks."""

    def begin(self) -> S:
        """The state before anything happened."""

    def step(self, state: S, event: Told[E], now: float) -> tuple[S, list[Out]]:
        """The next state, and what to send; `now` in seconds of a clock that never goes back."""

    def asked(self, state: S) -> Sequence[E]:
        """What the last step wants to be told when the events that wait already have been told."""

    def urgency(self, event: Told[E]) -> Urgency:
        """Where an event waits. Nobody waits for room for a tick or for what the policy asks."""

    def report(self, state: S, now: float) -> dict[str, object]:
        """What people are told, ready for JSON."""
