"""Flows and groups as data, and the messages that turn one program into another.

Invariant: `difference` touches only what differs, so a program that is installed already yields no
message, and traffic that both programs treat alike is never interrupted.
Source: OpenFlow Switch Specification 1.3.5; ovs-actions(7) for resubmit, ct, move and
check_pkt_larger.
"""

from __future__ import annotations

from dataclasses import dataclass

COOKIE = 0x726F_7065_7761_6C6B
"""Marks this project's flows; all others in the bridge are left alone."""

GROUP_MAX = 99
"""Largest number of this project's groups, which lack a cookie; others are left alone."""

IN_PORT = 0xFFFF_FFF8
CONTROLLER = 0xFFFF_FFFD
ANY = 0xFFFF_FFFF

Scalar = int | str
Value = Scalar | tuple[Scalar, Scalar]
"""A field's value; a pair is value and mask."""

Match = tuple[tuple[str, Value], ...]


def match(**fields: Value) -> Match:
    """A match on fields by their OXM names."""
    return tuple(sorted(fields.items()))


@dataclass(frozen=True)
class Output:
    """Sends the packet out of a port; `bytes_max` counts for the controller only."""

    port: int
    bytes_max: int = 0


@dataclass(frozen=True)
class SetField:
    """Writes a field."""

    field: str
    value: Scalar


@dataclass(frozen=True)
class Move:
    """Copies the lowest `bits` of one field to another."""

    source: str
    target: str
    bits: int


@dataclass(frozen=True)
class ToGroup:
    """Gives the packet to a group."""

    group: int


@dataclass(frozen=True)
class Resubmit:
    """Looks the packet up in another table."""

    table: int


@dataclass(frozen=True)
class DecrementTtl:
    """Takes one from the time to live; drops the packet at zero."""


@dataclass(frozen=True)
class Track:
    """Connection tracking in a zone, as `ct()` of ovs-actions(7).

    `nat` is a source address for new connections, or "" for what the connection has already.
    """

    zone: int
    commit: bool = False
    table: int | None = None
    nat: str | None = None
    mark: int | None = None


@dataclass(frozen=True)
class CheckLarger:
    """Sets bit 0 of register 0 to whether the packet, with Ethernet header, is larger."""

    bytes: int


@dataclass(frozen=True)
class HashToSlot:
    """Sets register 1 to a number below `slots`, by a hash of addresses, protocol and ports.

    The same for both directions; `multipath()` of ovs-actions(7), ports of UDP included.
    """

    slots: int


@dataclass(frozen=True)
class Meter:
    """Drops the packet here when it is beyond a meter's rate; first in a flow's actions."""

    number: int


@dataclass(frozen=True)
class Foreign:
    """What this project does not write: never equal to a wanted action."""

    text: str


Action = (
    Output
    | SetField
    | Move
    | ToGroup
    | Resubmit
    | DecrementTtl
    | Track
    | CheckLarger
    | HashToSlot
    | Meter
    | Foreign
)


@dataclass(frozen=True)
class Flow:
    """An entry of a flow table; no action means drop."""

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...]

    @property
    def key(self) -> tuple[int, int, Match]:
        """What identifies it in the switch."""
        return (self.table, self.priority, self.match)


@dataclass(frozen=True)
class Bucket:
    """One alternative of a group."""

    actions: tuple[Action, ...]
    weight: int = 0
    watch_port: int = ANY


@dataclass(frozen=True)
class Group:
    """A group: `kind` is "all", "select" or "ff" (fast failover)."""

    number: int
    kind: str
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True)
class Program:
    """Everything this project wants, or has, in one bridge."""

    flows: frozenset[Flow] = frozenset()
    groups: frozenset[Group] = frozenset()


@dataclass(frozen=True)
class FlowMod:
    """Writes or removes a flow; `tell` asks for its counters when it is removed later."""

    flow: Flow
    remove: bool = False
    tell: bool = False


@dataclass(frozen=True)
class MeterMod:
    """Makes a meter that drops what is beyond `rate` packets a second after `burst`, or removes it.

    A rate of zero removes; meter 0 means all. Flows that use a removed meter go with it.
    """

    number: int
    rate: int = 0
    burst: int = 0


@dataclass(frozen=True)
class GroupMod:
    """Adds, changes or removes a group: `command` is "add", "modify" or "delete"."""

    command: str
    group: Group


@dataclass(frozen=True)
class PacketOut:
    """Gives a packet to the switch."""

    data: bytes
    actions: tuple[Action, ...]
    in_port: int = CONTROLLER


@dataclass(frozen=True)
class AskPortStatistics:
    """Asks for the counters of all ports."""


@dataclass(frozen=True)
class AskMeterStatistics:
    """Asks for the counters of a meter."""

    number: int


@dataclass(frozen=True)
class Confirm:
    """Asks for a `Confirmed` when all before is done; `number` is from 1 to 2^31-1."""

    number: int


Message = (
    FlowMod | GroupMod | MeterMod | PacketOut | AskPortStatistics | AskMeterStatistics | Confirm
)


def difference(present: Program, wanted: Program, *, add_only: bool = False) -> list[Message]:
    """The messages that turn one program into another, in an order the switch accepts.

    Groups refer only to groups of higher numbers: those are made first and removed last. With
    `add_only` nothing present is changed or removed.
    """
    had = {group.number: group for group in present.groups}
    messages: list[Message] = []
    for group in sorted(wanted.groups, key=lambda group: -group.number):
        former = had.get(group.number)
        if former is None:
            messages.append(GroupMod("add", group))
        elif former != group and not add_only:
            messages.append(GroupMod("modify", group))
    flows = {flow.key: flow for flow in present.flows}
    for flow in sorted(wanted.flows, key=_order):
        former_flow = flows.get(flow.key)
        if former_flow is None or (former_flow != flow and not add_only):
            messages.append(FlowMod(flow))
    if add_only:
        return messages
    keys = {flow.key for flow in wanted.flows}
    messages += [
        FlowMod(flow, remove=True)
        for flow in sorted(present.flows, key=_order)
        if flow.key not in keys
    ]
    numbers = {group.number for group in wanted.groups}
    messages += [
        GroupMod("delete", group)
        for group in sorted(present.groups, key=lambda group: group.number)
        if group.number not in numbers
    ]
    return messages


def apply(present: Program, messages: list[Message]) -> Program:
    """What a switch that has `present` has after the messages."""
    flows = {flow.key: flow for flow in present.flows}
    groups = {group.number: group for group in present.groups}
    for message in messages:
        match message:
            case FlowMod(flow, remove=True):
                flows.pop(flow.key, None)
            case FlowMod(flow):
                flows[flow.key] = flow
            case GroupMod("delete", group):
                groups.pop(group.number, None)
            case GroupMod(_, group):
                groups[group.number] = group
            case PacketOut() | MeterMod() | Confirm():
                pass
            case AskPortStatistics() | AskMeterStatistics():
                pass
    return Program(frozenset(flows.values()), frozenset(groups.values()))


def _order(flow: Flow) -> tuple[int, int, str]:
    # Later tables first: a packet never comes to a table that is still empty.
    return (-flow.table, -flow.priority, str(flow.match))
