"""Which of several controllers works at a switch: one is its master, the others stand by.

The master sends a beacon through the switch, which hands it to every controller that is not a
slave. Who stands by is what OpenFlow calls equal: it hears beacons and changes nothing. It claims
the switch when no beacon has come for a while but those of controllers behind it in rank. The
switch itself makes the former master a slave, whose next beacon is refused: so two that do not see
each other cannot both change a switch. Source: OpenFlow Switch Specification 1.3.5, section 6.3.5.

Pure: no sockets, no clocks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import Enum

RANKS_MAX = 8
"""Controllers of one switch."""
BEACON_S = 0.3
"""Between a master's beacons."""
SILENT_S = 1.2
"""Without a beacon for so long a switch counts as without a master: three may be lost."""
IN_PORT = 0xFFFF_FFFD
"""OFPP_CONTROLLER: no host can send from there."""
_TYPE = 0x88B5
"""For experiments (IEEE 802)."""
_MAGIC = b"ropewalk"
_FRAME = struct.Struct("!6s6sH8sB")
_LEAST_FRAME = 60


class Ask(Enum):
    """What is asked of the switch."""

    NOTHING = "nothing"
    GENERATION = "generation"
    """Which number the last claim had."""
    MASTER = "master"
    EQUAL = "equal"
    BEACON = "beacon"


@dataclass(frozen=True)
class Role:
    """Where a controller stands at one switch; ranks from 1, the first."""

    rank: int
    heard_s: float
    """When the last beacon of another was heard that keeps it from claiming."""
    master: bool = False
    generation: int | None = None
    """Number of the last claim, when the switch has told; 64 bits that may go round."""
    asked: bool = False
    """Whether it has been claimed with that number, without an answer so far."""


def beacon(rank: int) -> bytes:
    """The frame that says who is master."""
    # To nobody: bridges do not forward it, should it ever leave.
    group, source = bytes.fromhex("0180c200000e"), bytes.fromhex("020000000000")
    return _FRAME.pack(group, source, _TYPE, _MAGIC, rank).ljust(_LEAST_FRAME, b"\0")


def rank_of(frame: bytes) -> int | None:
    """The rank in a beacon; None for any other frame."""
    if len(frame) < _FRAME.size:
        return None
    _, _, kind, magic, rank = _FRAME.unpack_from(frame)
    return rank if (kind, magic) == (_TYPE, _MAGIC) and 0 < rank <= RANKS_MAX else None


def heard(role: Role, rank: int, now: float) -> Role:
    """A beacon has come: the own one, or another's."""
    if role.master or rank > role.rank:
        # It is not waited for; its silence has begun already.
        return role
    return replace(role, heard_s=now)


def patience_s(rank: int) -> float:
    """Silence after which a controller claims a switch: those behind wait until they would have
    heard the one before them."""
    return SILENT_S + (rank - 1) * 2 * BEACON_S


def passed(role: Role, now: float) -> tuple[Role, Ask]:
    """What is due after each `BEACON_S`."""
    if role.master:
        return role, Ask.BEACON
    if now - role.heard_s < patience_s(role.rank):
        return role, Ask.NOTHING
    if role.generation is None or role.asked:
        return replace(role, asked=False), Ask.GENERATION
    return replace(role, asked=True), Ask.MASTER


def answered(role: Role, master: bool, generation: int) -> Role:
    """The switch has told what this controller is, and the number of the last claim."""
    return replace(role, master=master, generation=generation, asked=role.asked and not master)


def demoted(role: Role, now: float) -> tuple[Role, Ask]:
    """The switch has refused something because another is its master now."""
    return replace(role, master=False, heard_s=now, generation=None, asked=False), Ask.EQUAL
