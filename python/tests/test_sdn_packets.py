"""Packets: nothing that arrives is an exception."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.sdn import packets
from ropewalk.sdn.packets import Ip

MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
ENDS = {4: ("10.0.0.1", "10.0.0.2"), 6: ("fd00::1", "fd00::2")}
VERSIONS = pytest.mark.parametrize("version", [4, 6])
HEADER_ENDS = {4: 34, 6: 54}


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_nothing(data: bytes) -> None:
    packets.parse(data)


@given(st.binary(max_size=120), st.sampled_from([0x0800, 0x86DD]), st.integers(0, 255))
def test_any_ip_body_parses_or_is_nothing(data: bytes, kind: int, first: int) -> None:
    packets.parse(bytes(12) + struct.pack("!HB", kind, first) + data)


@given(st.sampled_from([0, 6, 17, 43, 44, 58, 60]), st.binary(max_size=120))
def test_any_extension_headers_parse_or_are_nothing(first: int, body: bytes) -> None:
    packets.parse(packets.framed(MACS, ENDS[6], first, body))


@VERSIONS
@given(length=st.integers(0, 119))
def test_a_packet_cut_short_is_no_error(version: int, length: int) -> None:
    packets.parse(packets.udp(MACS, ENDS[version], (1, 2), b"x" * 80)[:length])


@VERSIONS
@given(data=st.binary(max_size=64))
def test_udp_is_read_as_it_was_written_and_its_checksums_hold(version: int, data: bytes) -> None:
    ends = ENDS[version]
    frame = packets.udp(MACS, ends, (4790, 4791), data)
    packet = packets.parse(frame)
    assert isinstance(packet, Ip)
    assert packet.flow == (*ends, packets.UDP, 4790, 4791)
    assert packet.payload == data
    body = frame[HEADER_ENDS[version] :]
    addresses = b"".join(ip_address(end).packed for end in ends)
    assert _sum(addresses + struct.pack("!II", len(body), packets.UDP) + body) == 0xFFFF
    if version == 4:
        assert _sum(frame[14:34]) == 0xFFFF


def test_ports_are_found_behind_extension_headers() -> None:
    inner = packets.udp(MACS, ENDS[6], (1000, 53), b"data")[54:]
    options = bytes((44, 0)) + bytes(6)
    first_fragment = bytes((17, 0)) + struct.pack("!HI", 1, 7)
    frame = packets.framed(MACS, ENDS[6], 0, options + first_fragment + inner)
    packet = packets.parse(frame)
    assert packet is not None
    assert packet.flow == (*ENDS[6], packets.UDP, 1000, 53)
    later = packets.framed(MACS, ENDS[6], 44, bytes((17, 0)) + struct.pack("!HI", 800, 7) + inner)
    packet = packets.parse(later)
    assert packet is not None
    assert packet.flow == (*ENDS[6], packets.UDP, 0, 0)


def test_more_extension_headers_than_are_followed_are_nothing() -> None:
    options = (bytes((60, 0)) + bytes(6)) * (packets.EXTENSIONS_MAX + 1)
    assert packets.parse(packets.framed(MACS, ENDS[6], 60, options)) is None


@VERSIONS
def test_a_reset_takes_the_sequence_number_the_sender_waits_for(version: int) -> None:
    ends = ENDS[version]
    header = struct.pack("!HHIIBBHHH", 5000, 80, 1000, 2000, 5 << 4, packets.ACK, 100, 0, 0)
    packet = packets.parse(packets.framed(MACS, ends, packets.TCP, header + b"y" * 10))
    assert isinstance(packet, Ip)
    assert packet.tcp is not None
    assert packet.tcp.length == 10
    reset = packets.parse(packets.reset_for(packet, packet.tcp))
    assert isinstance(reset, Ip)
    assert reset.flow == (ends[1], ends[0], 6, 80, 5000)
    assert reset.tcp is not None
    assert reset.tcp.sequence == 2000
    assert reset.tcp.acknowledged == 1010
    assert reset.tcp.flags == packets.RST | packets.ACK


def _sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total)
