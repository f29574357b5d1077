"""Packets: nothing that arrives is an exception."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.sdn import packets
from ropewalk.sdn.packets import Arp, Ipv4

MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
ENDS = ("10.0.0.1", "10.0.0.2")


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_nothing(data: bytes) -> None:
    packets.parse(data)


@given(st.binary(max_size=120), st.sampled_from([0x0800, 0x0806]), st.integers(0, 255))
def test_any_ip_or_arp_body_parses_or_is_nothing(data: bytes, kind: int, first: int) -> None:
    packets.parse(bytes(12) + struct.pack("!HB", kind, first) + data)


@given(st.integers(0, 119))
def test_a_packet_cut_short_is_no_error(length: int) -> None:
    packets.parse(packets.udp(MACS, ENDS, (1, 2), b"x" * 80)[:length])


def test_arp_is_read_as_it_was_written() -> None:
    frame = packets.arp(packets.ARP_REQUEST, MACS[0], *ENDS, packets.BROADCAST)
    assert packets.parse(frame) == Arp(packets.ARP_REQUEST, MACS[0], *ENDS)


@given(st.binary(max_size=64))
def test_udp_is_read_as_it_was_written_and_its_checksums_hold(data: bytes) -> None:
    frame = packets.udp(MACS, ENDS, (4790, 4791), data)
    packet = packets.parse(frame)
    assert isinstance(packet, Ipv4)
    assert packet.flow == (*ENDS, packets.UDP, 4790, 4791)
    assert packet.payload == data
    assert _sum(frame[14:34]) == 0xFFFF
    length = struct.pack("!BBH", 0, packets.UDP, len(frame) - 34)
    assert _sum(frame[26:34] + length + frame[34:]) == 0xFFFF


def test_a_reset_takes_the_sequence_number_the_sender_waits_for() -> None:
    header = struct.pack("!HHIIBBHHH", 5000, 80, 1000, 2000, 5 << 4, packets.ACK, 100, 0, 0)
    segment = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 50, 0, 0, 64, 6, 0, *map(_packed, ENDS))
    frame = bytes.fromhex("020000000002020000000001") + b"\x08\x00" + segment + header + b"y" * 10
    packet = packets.parse(frame)
    assert isinstance(packet, Ipv4)
    assert packet.tcp is not None
    assert packet.tcp.length == 10
    reset = packets.parse(packets.reset_for(packet, packet.tcp))
    assert isinstance(reset, Ipv4)
    assert reset.flow == (ENDS[1], ENDS[0], 6, 80, 5000)
    assert reset.tcp is not None
    assert reset.tcp.sequence == 2000
    assert reset.tcp.acknowledged == 1010
    assert reset.tcp.flags == packets.RST | packets.ACK


def _packed(address: str) -> bytes:
    return bytes(int(part) for part in address.split("."))


def _sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total)
