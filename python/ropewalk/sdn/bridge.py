"""The policies of one bridge (`bicast`, `balance`) as `service` runs them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Generic, Never, Protocol, TypeVar

from ropewalk.sdn import policy
from ropewalk.sdn.config import Config
from ropewalk.sdn.contract import Out, Told, Urgency
from ropewalk.sdn.openflow.events import At, PacketIn, Tick

NAME = "bridge"
"""The name of the one switch, whatever its datapath number."""
CONNECTIONS_MAX = 8
"""At a time; all but one are strangers', or have been replaced and end."""
CONTROL_MAX = 4096
PACKETS_MAX = 4096

_CONTROL = Urgency(0, CONTROL_MAX, waits=True)
_PACKETS = Urgency(1, PACKETS_MAX)
# Behind the packets: answers to probes wait among them, and a tick that overtook these answers
# would conclude that a path is silent.
_TICK = Urgency(1, PACKETS_MAX + 1)

_log = logging.getLogger(__name__)


class Bridged(Protocol):
    """The state of such a policy."""

    @property
    def common(self) -> policy.Common:
        """What is known of the bridge."""


B = TypeVar("B", bound=Bridged)


class Bridge(Generic[B]):
    """One bridge's policy, for a service that knows switches by name."""

    tick_s = policy.TICK_S

    def __init__(self, decides: policy.Policy[B], config: Config) -> None:
        self._decides = decides
        self._config = config

    def begin(self) -> B:
        """Nothing is known yet."""
        return self._decides.begin(self._config)

    def step(self, state: B, event: Told[Never], now: float) -> tuple[B, list[Out]]:
        """The next state, and what to send to the bridge."""
        told = event.event if isinstance(event, At) else event
        after, messages = self._decides.step(state, told, now)
        _tell_uplinks(state.common, after.common)
        return after, [(NAME, message) for message in messages]

    def asked(self, state: B) -> Sequence[Never]:
        """Nothing."""
        return ()

    def urgency(self, event: Told[Never]) -> Urgency:
        """What the switch says of itself goes before packets, and before time."""
        match event:
            case Tick():
                return _TICK
            case At(_, PacketIn()):
                return _PACKETS
            case _:
                return _CONTROL

    def report(self, state: B, now: float) -> dict[str, object]:
        """What people are told."""
        return self._decides.report(state, now)


def _tell_uplinks(before: policy.Common, after: policy.Common) -> None:
    for name, version in sorted(before.carrying ^ after.carrying):
        used = (name, version) in after.carrying
        what = "is used" if used else "is not used any more"
        _log.info("uplink %s %s with IPv%s", name, what, version)
