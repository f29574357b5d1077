"""The few packet formats the controller reads and writes, but for those of address resolution.

Invariant: `parse` never raises, whatever the bytes. Sources: RFC 791 (IPv4), RFC 8200 (IPv6), RFC
9293 (TCP), RFC 768 (UDP), RFC 792 (ICMP), RFC 4443 (ICMPv6), RFC 1071 (checksum).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
SYN, RST, ACK, FIN = 0x02, 0x04, 0x10, 0x01
EXTENSIONS_MAX = 8
"""Extension headers of an IPv6 packet that are followed; what has more is not read on."""
IPV4_ETHERNET, IPV6_ETHERNET = 0x0800, 0x86DD
_TTL = 64
_OPTIONS = frozenset({0, 43, 60})
"""Hop-by-hop options, routing, destination options: all give their length alike."""
_FRAGMENT = 44


@dataclass(frozen=True)
class Segment:
    """What matters of a TCP segment's header; `length` is its payload in bytes."""

    sequence: int
    acknowledged: int
    flags: int
    length: int


@dataclass(frozen=True)
class Ip:
    """An IP packet of either family. The ports of ICMP are type and identifier.

    A fragment without the transport header has no ports.
    """

    source_mac: str
    target_mac: str
    source: str
    target: str
    protocol: int
    source_port: int = 0
    target_port: int = 0
    tcp: Segment | None = None
    payload: bytes = b""

    @property
    def flow(self) -> tuple[str, str, int, int, int]:
        """Its 5-tuple."""
        return (self.source, self.target, self.protocol, self.source_port, self.target_port)


def parse(frame: bytes) -> Ip | None:
    """The IP packet in an Ethernet frame; None for anything else, cut short or malformed."""
    if len(frame) < 14:
        return None
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind == IPV4_ETHERNET:
        return _ipv4(frame)
    if kind == IPV6_ETHERNET:
        return _ipv6(frame)
    return None


def _ipv4(frame: bytes) -> Ip | None:
    data = frame[14:]
    if len(data) < 20 or data[0] >> 4 != 4:
        return None
    header = (data[0] & 15) * 4
    (total,) = struct.unpack_from("!H", data, 2)
    (fragment,) = struct.unpack_from("!H", data, 6)
    if header < 20 or len(data) < header or total < header:
        return None
    ends = (
        mac(frame[6:12]),
        mac(frame[0:6]),
        str(IPv4Address(data[12:16])),
        str(IPv4Address(data[16:20])),
    )
    if fragment & 0x1FFF:
        return Ip(*ends, data[9])
    return _transport(ends, data[9], data[header:total], total - header)


def _ipv6(frame: bytes) -> Ip | None:
    data = frame[14:]
    if len(data) < 40 or data[0] >> 4 != 6:
        return None
    (length,) = struct.unpack_from("!H", data, 4)
    end = 40 + int(length)
    protocol, position = data[6], 40
    ends = (
        mac(frame[6:12]),
        mac(frame[0:6]),
        str(IPv6Address(data[8:24])),
        str(IPv6Address(data[24:40])),
    )
    for _ in range(EXTENSIONS_MAX):
        if protocol not in _OPTIONS and protocol != _FRAGMENT:
            return _transport(ends, protocol, data[position:end], end - position)
        if position + 8 > min(end, len(data)):
            return None
        if protocol == _FRAGMENT:
            (offset,) = struct.unpack_from("!H", data, position + 2)
            if offset & 0xFFF8:
                return Ip(*ends, data[position])
            protocol, position = data[position], position + 8
        else:
            protocol, position = data[position], position + 8 * (data[position + 1] + 1)
        if position > end:
            return None
    return None


def _transport(ends: tuple[str, str, str, str], protocol: int, body: bytes, length: int) -> Ip:
    """Reads on behind the IP header; `length` is what the packet states, `body` what is there."""
    match protocol:
        case 6 if len(body) >= 20:
            source, target, sequence, acknowledged, offset, flags = struct.unpack_from(
                "!HHIIBB", body
            )
            payload = max(0, length - (offset >> 4) * 4)
            segment = Segment(sequence, acknowledged, flags & 0x3F, payload)
            return Ip(*ends, protocol, source, target, segment)
        case 17 if len(body) >= 8:
            source, target = struct.unpack_from("!HH", body)
            return Ip(*ends, protocol, source, target, payload=body[8:])
        case 1 | 58 if len(body) >= 8:
            kind, identifier = struct.unpack_from("!BxxxH", body)
            return Ip(*ends, protocol, kind, identifier, payload=body[8:])
        case _:
            return Ip(*ends, protocol)


def udp(macs: tuple[str, str], ends: tuple[str, str], ports: tuple[int, int], data: bytes) -> bytes:
    """A UDP datagram in its frame; the pairs are source and target."""
    length = 8 + len(data)
    body = struct.pack("!HHHH", *ports, length, 0) + data
    # RFC 768: a checksum of zero means none, so zero is sent as all ones.
    checksum = sum_of(pseudo(ends, UDP, length) + body) or 0xFFFF
    return framed(macs, ends, UDP, body[:6] + struct.pack("!H", checksum) + body[8:])


def echo_request(
    macs: tuple[str, str], ends: tuple[str, str], identifier: int, data: bytes
) -> bytes:
    """An ICMP echo request of the addresses' family in its frame."""
    if ip_address(ends[0]).version == 6:
        return icmpv6(macs, ends, struct.pack("!BBHHH", 128, 0, 0, identifier, 0) + data)
    body = struct.pack("!BBHHH", 8, 0, 0, identifier, 0) + data
    return framed(macs, ends, ICMP, body[:2] + struct.pack("!H", sum_of(body)) + body[4:])


def icmpv6(macs: tuple[str, str], ends: tuple[str, str], body: bytes, hops: int = _TTL) -> bytes:
    """An ICMPv6 message, its checksum still zero, with it in its frame."""
    checksum = sum_of(pseudo(ends, ICMPV6, len(body)) + body)
    whole = body[:2] + struct.pack("!H", checksum) + body[4:]
    return framed(macs, ends, ICMPV6, whole, hops)


def reset_for(packet: Ip, segment: Segment) -> bytes:
    """The reset that its sender takes for the other end's (RFC 9293 §3.10.7.1)."""
    consumed = segment.length + bool(segment.flags & SYN) + bool(segment.flags & FIN)
    sequence = segment.acknowledged if segment.flags & ACK else 0
    acknowledged = (segment.sequence + consumed) & 0xFFFF_FFFF
    ends = (packet.target, packet.source)
    header = struct.pack(
        "!HHIIBBHHH",
        packet.target_port,
        packet.source_port,
        sequence,
        acknowledged,
        5 << 4,
        RST | ACK,
        0,
        0,
        0,
    )
    checksum = sum_of(pseudo(ends, TCP, len(header)) + header)
    body = header[:16] + struct.pack("!H", checksum) + header[18:]
    return framed((packet.target_mac, packet.source_mac), ends, TCP, body)


def framed(
    macs: tuple[str, str], ends: tuple[str, str], protocol: int, body: bytes, hops: int = _TTL
) -> bytes:
    """An IP packet of the addresses' family in its Ethernet frame."""
    source, target = (ip_address(end) for end in ends)
    if source.version == 6:
        head = struct.pack("!IHBB", 6 << 28, len(body), protocol, hops)
        return ethernet(*macs, IPV6_ETHERNET) + head + source.packed + target.packed + body
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0x4000, hops, protocol, 0)
    head += source.packed + target.packed
    head = head[:10] + struct.pack("!H", sum_of(head)) + head[12:]
    return ethernet(*macs, IPV4_ETHERNET) + head + body


def pseudo(ends: tuple[str, str], protocol: int, length: int) -> bytes:
    """What the checksum of a transport covers of the IP header."""
    source, target = (ip_address(end) for end in ends)
    form = "!II" if source.version == 6 else "!HH"
    order = (length, protocol) if source.version == 6 else (protocol, length)
    return source.packed + target.packed + struct.pack(form, *order)


def sum_of(data: bytes) -> int:
    """The Internet checksum; 0 over data that has the right one in it."""
    data += b"\0" * (len(data) % 2)
    total = int(sum(struct.unpack(f"!{len(data) // 2}H", data)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ethernet(source: str, target: str, kind: int) -> bytes:
    """An Ethernet header."""
    return mac_bytes(target) + mac_bytes(source) + struct.pack("!H", kind)


def mac(data: bytes) -> str:
    """A link-layer address for people."""
    return data.hex(":")


def mac_bytes(text: str) -> bytes:
    """A link-layer address for the wire."""
    return bytes.fromhex(text.replace(":", ""))
