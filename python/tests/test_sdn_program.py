"""Programs: differences, and their encoding."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.sdn.openflow import codec
from ropewalk.sdn.openflow.program import (
    Action,
    Bucket,
    CheckLarger,
    DecrementTtl,
    Flow,
    FlowMod,
    Foreign,
    Group,
    GroupMod,
    HashToSlot,
    Move,
    Output,
    Program,
    Resubmit,
    SetField,
    ToGroup,
    Track,
    apply,
    difference,
    match,
)

ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Output, st.integers(1, 60_000)),
    st.builds(lambda mark: SetField("reg0", mark), st.integers(0, 2**32 - 1)),
    st.just(SetField("eth_src", "02:00:00:00:00:01")),
    st.just(SetField("ipv4_dst", "10.0.0.1")),
    st.just(SetField("ipv6_dst", "fd00::1")),
    st.builds(lambda flags: SetField("nd_reserved", flags), st.integers(0, 2**32 - 1)),
    st.builds(lambda kind: SetField("nd_options_type", kind), st.integers(0, 255)),
    st.builds(HashToSlot, st.integers(1, 256)),
    st.just(Move("eth_src", "eth_dst", 48)),
    st.builds(ToGroup, st.integers(1, 1000)),
    st.builds(Resubmit, st.integers(0, 200)),
    st.just(DecrementTtl()),
    st.builds(CheckLarger, st.integers(1, 65_535)),
    st.builds(
        Track,
        st.integers(1, 65_000),
        st.booleans(),
        st.none() | st.integers(0, 200),
        st.none() | st.sampled_from(["", "10.0.0.1", "fd00::1"]),
        st.none() | st.integers(1, 1000),
    ),
)
FLOWS = st.builds(
    Flow,
    st.integers(0, 3),
    st.integers(0, 3),
    st.builds(lambda port: match(in_port=port, eth_type=0x0800), st.integers(1, 4)),
    st.lists(ACTIONS, max_size=4).map(tuple),
)
# ct() in a bucket cannot be written; a test of its own says so.
IN_BUCKETS = ACTIONS.filter(lambda action: not isinstance(action, Track))
GROUPS = st.builds(
    Group,
    st.integers(1, 5),
    st.sampled_from(["all", "select", "ff"]),
    st.lists(
        st.builds(Bucket, st.lists(IN_BUCKETS, max_size=2).map(tuple), st.integers(0, 5)),
        max_size=3,
    ).map(tuple),
)


def _program(flows: list[Flow], groups: list[Group]) -> Program:
    by_key = {flow.key: flow for flow in flows}
    by_number = {group.number: group for group in groups}
    return Program(frozenset(by_key.values()), frozenset(by_number.values()))


PROGRAMS = st.builds(_program, st.lists(FLOWS, max_size=8), st.lists(GROUPS, max_size=4))


@given(PROGRAMS, PROGRAMS)
def test_the_difference_turns_one_program_into_the_other(one: Program, other: Program) -> None:
    assert apply(one, difference(one, other)) == other


@given(PROGRAMS)
def test_what_is_installed_already_yields_no_message(program: Program) -> None:
    assert difference(program, program) == []


@given(PROGRAMS, PROGRAMS)
def test_adding_only_neither_changes_nor_removes(one: Program, other: Program) -> None:
    after = apply(one, difference(one, other, add_only=True))
    assert one.flows <= after.flows
    assert one.groups <= after.groups


def test_groups_come_before_those_that_refer_to_them_and_go_after() -> None:
    outer = Group(1, "all", (Bucket((ToGroup(10),)),))
    inner = Group(10, "ff", ())
    flow = Flow(0, 1, match(in_port=1), (ToGroup(1),))
    program = Program(frozenset({flow}), frozenset({outer, inner}))
    assert difference(Program(), program) == [
        GroupMod("add", inner),
        GroupMod("add", outer),
        FlowMod(flow),
    ]
    assert difference(program, Program()) == [
        FlowMod(flow, remove=True),
        GroupMod("delete", outer),
        GroupMod("delete", inner),
    ]


def _reply(kind: int, body: bytes) -> bytes:
    """A multipart reply."""
    return struct.pack("!BBHIHH4x", 4, 19, 16 + len(body), 7, kind, 0) + body


def _flow_reply(flow: Flow) -> bytes:
    """What a switch says of a flow: its match and instructions are as they were written."""
    rest = codec.encode(FlowMod(flow), 7)[48:]
    head = struct.pack("!HBxIIHHHH4xQQQ", 48 + len(rest), flow.table, 1, 1, flow.priority, 0, 0, 0,
                       1, 2, 3)  # fmt: skip
    return _reply(1, head + rest)


def _group_reply(group: Group) -> bytes:
    data = codec.encode(GroupMod("add", group), 7)
    return _reply(7, struct.pack("!H", len(data) - 8) + data[10:])


@given(FLOWS)
def test_a_flow_is_read_back_as_it_was_written(flow: Flow) -> None:
    (read,) = codec.decode(_flow_reply(flow)).body
    assert codec.flow(read) == flow


@given(GROUPS)
def test_a_group_is_read_back_as_it_was_written(group: Group) -> None:
    (read,) = codec.decode(_group_reply(group)).body
    assert codec.group(read) == group


def _meter_reply(bands: int, missing: int = 0) -> bytes:
    """What a switch says of a meter with so many bands; bytes of the last one may be missing."""
    size = 40 + 16 * bands - missing
    return _reply(9, struct.pack("!IH6xIQQII", 10_007, size, 1, 43, 5000, 9, 0) + bytes(size - 40))


@pytest.mark.parametrize("bands", [0, 1, 2])
def test_a_meters_counts_are_read(bands: int) -> None:
    (row,) = codec.decode(_meter_reply(bands)).body
    assert (row.meter_id, row.packet_in_count, row.byte_in_count) == (10_007, 43, 5000)


def test_a_meter_with_half_a_band_is_refused() -> None:
    with pytest.raises(codec.DecodeError):
        codec.decode(_meter_reply(1, missing=8))


def test_connection_tracking_in_a_bucket_is_refused_before_it_is_sent() -> None:
    group = Group(1, "select", (Bucket((Track(1, nat="10.0.0.1"),)),))
    with pytest.raises(ValueError, match="resubmit"):
        codec.encode(GroupMod("add", group), 7)


def test_an_action_of_another_vendor_is_read_as_a_whole() -> None:
    flow = Flow(0, 1, match(in_port=1), (CheckLarger(100), Output(2)))
    data = _flow_reply(flow).replace(bytes.fromhex("000023200031"), bytes.fromhex("000023200010"))
    (read,) = codec.decode(data).body
    foreign, output = codec.flow(read).actions
    assert isinstance(foreign, Foreign)
    assert output == Output(2)


@given(st.binary(max_size=300), st.integers(0, 40))
def test_bytes_that_are_no_message_are_a_decode_error(data: bytes, kind: int) -> None:
    framed = bytes([codec.VERSION, kind]) + (len(data) + 8).to_bytes(2, "big") + b"\0\0\0\1" + data
    for attempt in (data, framed):
        with contextlib.suppress(codec.DecodeError):
            codec.decode(attempt)


@given(FLOWS, GROUPS, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_message_is_a_decode_error_or_another_message_and_ends(
    flow: Flow, group: Group, place: int, value: int
) -> None:
    for data in (_flow_reply(flow), _group_reply(group)):
        damaged = bytearray(data)
        damaged[place % len(data)] = value
        with contextlib.suppress(codec.DecodeError):
            codec.decode(bytes(damaged))
