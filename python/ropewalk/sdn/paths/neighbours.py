"""Link-layer addresses of the hosts next to the bridge, by ARP and neighbour discovery.

Pure: every function takes the time and returns the next state. Bounds: one entry for each address
family of a port. Formats: `resolution.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ropewalk.sdn import resolution
from ropewalk.sdn.openflow.program import Message, Output, PacketOut
from ropewalk.sdn.resolution import Answer

RETRY_S = 0.5
"""Between questions while no answer came."""
REFRESH_S = 20.0
"""Age of an answer at which it is asked for again."""

Key = tuple[str, int]
"""A port's name and a version of IP."""


@dataclass(frozen=True)
class Neighbour:
    """Who is asked for, from where, and what is known."""

    port: int
    own_mac: str
    own: str
    target: str
    router: bool = False
    """Whether the bridge is a router to it."""
    mac: str | None = None
    asked_s: float = float("-inf")
    learned_s: float = float("-inf")


@dataclass(frozen=True)
class Neighbours:
    """One neighbour for each port and address family."""

    by_key: Mapping[Key, Neighbour] = field(default_factory=dict)

    def mac(self, key: Key) -> str | None:
        """The address of the neighbour at a port, once it is known."""
        neighbour = self.by_key.get(key)
        return neighbour.mac if neighbour else None


def wanted(state: Neighbours, key: Key, neighbour: Neighbour) -> Neighbours:
    """Begins to ask for a neighbour, or again when its port has changed."""
    former = state.by_key.get(key)
    if former and (former.port, former.own_mac) == (neighbour.port, neighbour.own_mac):
        return state
    if former:
        neighbour = replace(neighbour, mac=former.mac)
    return Neighbours({**state.by_key, key: neighbour})


def doubted(state: Neighbours, *names: str) -> Neighbours:
    """Asks at the named ports again soon, because somebody else may be there now; what is known
    holds until then."""
    after = {
        key: replace(neighbour, asked_s=float("-inf"), learned_s=float("-inf"))
        if key[0] in names
        else neighbour
        for key, neighbour in state.by_key.items()
    }
    return Neighbours(after)


def learned(state: Neighbours, port: int, answer: Answer, now: float) -> Neighbours:
    """Takes an answer from a port; one of somebody else changes nothing."""
    for key, neighbour in state.by_key.items():
        if neighbour.port == port and neighbour.target == answer.address:
            known = replace(neighbour, mac=answer.mac, learned_s=now)
            return Neighbours({**state.by_key, key: known})
    return state


def asked(state: Neighbours, now: float) -> tuple[Neighbours, list[Message]]:
    """The questions that are due."""
    messages: list[Message] = []
    after = dict(state.by_key)
    for key, neighbour in state.by_key.items():
        fresh = now - neighbour.learned_s < REFRESH_S
        if fresh or now - neighbour.asked_s < RETRY_S:
            continue
        after[key] = replace(neighbour, asked_s=now)
        frame = resolution.question(neighbour.own_mac, neighbour.own, neighbour.target)
        messages.append(PacketOut(frame, (Output(neighbour.port),)))
    return (Neighbours(after) if messages else state), messages
