"""Link-layer addresses of the hosts next to the bridge, by ARP (RFC 826).

Pure: every function takes the time and returns the next state. Bounds: one entry a port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ropewalk.sdn import packets
from ropewalk.sdn.openflow.program import Message, Output, PacketOut

RETRY_S = 0.5
"""Between questions while no answer came."""
REFRESH_S = 20.0
"""Age of an answer at which it is asked for again."""


@dataclass(frozen=True)
class Neighbour:
    """Who is asked for, from where, and what is known."""

    port: int
    own_mac: str
    own: str
    target: str
    mac: str | None = None
    asked_s: float = float("-inf")
    learned_s: float = float("-inf")


@dataclass(frozen=True)
class Neighbours:
    """One neighbour for each port by name."""

    by_name: Mapping[str, Neighbour] = field(default_factory=dict)

    def mac(self, name: str) -> str | None:
        """The address of the neighbour at a port, once it is known."""
        neighbour = self.by_name.get(name)
        return neighbour.mac if neighbour else None


def wanted(state: Neighbours, name: str, neighbour: Neighbour) -> Neighbours:
    """Begins to ask for a neighbour, or again when its port has changed."""
    former = state.by_name.get(name)
    if former and (former.port, former.own_mac) == (neighbour.port, neighbour.own_mac):
        return state
    if former:
        neighbour = replace(neighbour, mac=former.mac)
    return Neighbours({**state.by_name, name: neighbour})


def doubted(state: Neighbours, *names: str) -> Neighbours:
    """Asks again soon, because somebody else may be there now; what is known holds until then."""
    after = {
        name: replace(neighbour, asked_s=float("-inf"), learned_s=float("-inf"))
        if name in names
        else neighbour
        for name, neighbour in state.by_name.items()
    }
    return Neighbours(after)


def learned(state: Neighbours, port: int, arp: packets.Arp, now: float) -> Neighbours:
    """Takes an ARP packet from a port; one of somebody else changes nothing."""
    for name, neighbour in state.by_name.items():
        if neighbour.port == port and neighbour.target == arp.sender:
            known = replace(neighbour, mac=arp.sender_mac, learned_s=now)
            return Neighbours({**state.by_name, name: known})
    return state


def asked(state: Neighbours, now: float) -> tuple[Neighbours, list[Message]]:
    """The questions that are due."""
    messages: list[Message] = []
    after = dict(state.by_name)
    for name, neighbour in state.by_name.items():
        fresh = now - neighbour.learned_s < REFRESH_S
        if fresh or now - neighbour.asked_s < RETRY_S:
            continue
        after[name] = replace(neighbour, asked_s=now)
        frame = packets.arp(
            packets.ARP_REQUEST,
            neighbour.own_mac,
            neighbour.own,
            neighbour.target,
            packets.BROADCAST,
        )
        messages.append(PacketOut(frame, (Output(neighbour.port),)))
    return (Neighbours(after) if messages else state), messages
