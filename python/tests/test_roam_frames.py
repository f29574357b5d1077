"""Frames and lines from outside: nothing malformed raises, and what is written is right."""

import socket
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as of
from os_ken.ofproto import ofproto_v1_3_parser as ofp
from roam_parts import MAC, data_frame, over_ipv6, tcp_checksum_right

from ropewalk.sdn.openflow import codec, events
from ropewalk.sdn.openflow.program import Output, PacketOut
from ropewalk.sdn.roam import agent, frames, notices

FRAMES = st.one_of(
    st.binary(max_size=128),
    st.builds(
        lambda frame, at, value, keep: bytes(
            (frame[:at] + bytes([value]) + frame[at + 1 :])[:keep]
        ),
        st.one_of(
            st.builds(data_frame, st.integers(0, 2**32 - 1), st.integers(0, 64)),
            st.builds(data_frame, st.integers(0, 2**32 - 1), st.integers(0, 64)).map(over_ipv6),
        ),
        st.integers(0, 80),
        st.integers(0, 255),
        st.integers(0, 200),
    ),
)


@given(FRAMES)
def test_no_frame_raises(frame: bytes) -> None:
    frames.announces(frame)
    frames.ends(frame)
    frames.address(frame)
    segment = frames.parse(frame)
    if segment:
        frames.zero_window(frame, segment)
        frames.restamped(frame, segment, 7)


FAMILIES = pytest.mark.parametrize("family", [bytes, over_ipv6], ids=["ipv4", "ipv6"])


@FAMILIES
@given(st.integers(0, 2**32 - 1), st.integers(0, 100), st.integers(0, 2**32 - 1), st.booleans())
def test_restamped_frame_keeps_a_right_checksum(
    family: Callable[[bytes], bytes], sequence: int, length: int, stamp: int, odd: bool
) -> None:
    frame = family(data_frame(sequence, length, odd=odd))
    segment = frames.parse(frame)
    assert segment and tcp_checksum_right(frame)
    changed = frames.restamped(frame, segment, stamp)
    again = frames.parse(changed)
    assert again and again.stamp == stamp
    assert tcp_checksum_right(changed)


@FAMILIES
def test_zero_window_answers_as_the_receiver_would(family: Callable[[bytes], bytes]) -> None:
    frame = family(data_frame(1000, 50, stamp=77, echo=55))
    segment = frames.parse(frame)
    assert segment
    answer = frames.zero_window(frame, segment)
    parsed = frames.parse(answer)
    assert parsed and tcp_checksum_right(answer)
    assert frames.ends(answer) == (MAC, "02:00:00:00:00:02")
    assert (parsed.sequence, parsed.acknowledged, parsed.length) == (segment.acknowledged, 1050, 0)
    assert (parsed.stamp, parsed.echo) == (55, 77)
    assert answer[parsed.tcp_at + 14 : parsed.tcp_at + 16] == b"\0\0", "a window of zero"


def test_ipv6_segments_are_read_as_those_of_ipv4_and_extension_headers_are_not() -> None:
    four = data_frame(1000, 50, stamp=77)
    six = over_ipv6(four)
    read = [frames.parse(frame) for frame in (four, six)]
    assert read[0] and read[1]
    assert [(s.sequence, s.length, s.stamp, s.flow[0][-2:]) for s in read if s] == [
        (1000, 50, 77, read[0].flow[0][-2:])
    ] * 2
    assert frames.parse(six[:20] + bytes([60]) + six[21:]) is None


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(5, 3, 2), (3, 5, -2), (1, 2**32 - 1, 2), (2**32 - 1, 1, -2)]
)
def test_sequence_numbers_wrap(a: int, b: int, expected: int) -> None:
    assert frames.after(a, b) == expected


def test_announcements_are_told_from_other_frames() -> None:
    own = socket.inet_aton("10.0.0.9")
    head = b"\xff" * 6 + b"\x02" * 6 + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
    assert frames.announces(head + b"\x02" * 6 + own + b"\0" * 6 + own)
    assert not frames.announces(head + b"\x02" * 6 + own + b"\0" * 6 + socket.inet_aton("10.0.0.8"))
    assert frames.announces(frames.xid(MAC))
    assert not frames.announces(data_frame(1, 10))


@given(st.binary(max_size=200))
def test_no_packet_in_raises_anything_but_decode_errors(data: bytes) -> None:
    message = struct.pack("!BBHI", 4, 10, len(data) + 8, 1) + data
    try:
        found = codec.packet_in(message)
    except codec.DecodeError:
        return
    assert isinstance(found, events.PacketIn)


@given(st.integers(1, 2**32 - 1), st.integers(0, 254), st.binary(max_size=100))
def test_packet_in_is_read_as_os_ken_reads_it(port: int, table: int, data: bytes) -> None:
    oxm = struct.pack("!II", 0x8000_0004, port)
    match = struct.pack("!HH", 1, 12) + oxm + bytes(4)
    body = struct.pack("!IHBBQ", 0xFFFF_FFFF, len(data), 0, table, 5) + match + bytes(2) + data
    message = struct.pack("!BBHI", 4, 10, 8 + len(body), 1) + body
    reference = codec.decode(message)
    found = codec.packet_in(message)
    assert found == events.PacketIn(
        reference.match["in_port"],
        reference.table_id,
        bytes(reference.data),
        reference.total_len,
    )


@given(st.binary(max_size=100), st.integers(1, 2**32 - 1), st.integers(0, 2**31))
def test_packet_out_is_written_as_os_ken_writes_it(data: bytes, port: int, number: int) -> None:
    actions = [ofp.OFPActionOutput(port, 0)]
    reference = ofp.OFPPacketOut(
        codec._DESCRIPTION, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, actions, data
    )
    written = codec.encode(PacketOut(data, (Output(port),)), number)
    assert written == codec.serialize(reference, number)


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=1100), st.text(max_size=200).map(str.encode)))
def test_no_notice_raises_anything_but_notice_errors(line: bytes) -> None:
    try:
        notices.read(line)
    except notices.NoticeError as error:
        assert str(error)


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"switch": "a", "port": "b", "mac": "01:00:00:00:00:01", "joined": true}',
        b'{"switch": "a b", "port": "b", "mac": "02:00:00:00:00:01", "joined": true}',
        b'{"switch": "a", "port": "b", "mac": "02:00:00:00:00:01", "joined": 1}',
        b'{"switch": "a", "port": "b", "mac": "02:00:00:00:00:01", "joined": true, "packets": -2}',
        b'{"switch": ' * 500,
    ],
)
def test_wrong_notices_are_refused(line: bytes) -> None:
    with pytest.raises(notices.NoticeError):
        notices.read(line)


@given(st.binary(max_size=200))
def test_no_datagram_of_hostapd_raises(datagram: bytes) -> None:
    agent.read(datagram)


def test_hostapd_events_are_read() -> None:
    assert agent.read(b"<3>AP-STA-CONNECTED 02:AB:00:00:00:01 keyid=x") == (
        "02:ab:00:00:00:01",
        True,
    )
    assert agent.read(b"<3>AP-STA-DISCONNECTED 02:ab:00:00:00:01") == ("02:ab:00:00:00:01", False)
    assert agent.read(b"<3>AP-STA-CONNECTED nonsense") is None
    assert agent.read(b"<3>AP-STA-POLL-OK 02:ab:00:00:00:01") is None
