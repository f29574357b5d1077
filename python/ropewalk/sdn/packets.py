"""The few packet formats the controller reads and writes.

Invariant: `parse` never raises, whatever the bytes. Sources: RFC 826 (ARP), RFC 791 (IPv4), RFC
9293 (TCP), RFC 768 (UDP), RFC 792 (ICMP), RFC 1071 (checksum).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

ARP_REQUEST = 1
ARP_REPLY = 2
TCP, UDP, ICMP = 6, 17, 1
SYN, RST, ACK, FIN = 0x02, 0x04, 0x10, 0x01
BROADCAST = "ff:ff:ff:ff:ff:ff"
_ZERO_MAC = "00:00:00:00:00:00"
_TTL = 64


@dataclass(frozen=True)
class Arp:
    """An ARP packet for IPv4 over Ethernet."""

    operation: int
    sender_mac: str
    sender: str
    target: str


@dataclass(frozen=True)
class Segment:
    """What matters of a TCP segment's header; `length` is its payload in bytes."""

    sequence: int
    acknowledged: int
    flags: int
    length: int


@dataclass(frozen=True)
class Ipv4:
    """An IPv4 packet. Of ICMP the ports are type and identifier."""

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


def parse(frame: bytes) -> Arp | Ipv4 | None:
    """The packet in an Ethernet frame; None for anything else, cut short or malformed."""
    if len(frame) < 14:
        return None
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind == 0x0806:
        return _arp(frame[14:])
    if kind == 0x0800:
        return _ipv4(frame)
    return None


def _arp(data: bytes) -> Arp | None:
    if len(data) < 28:
        return None
    hardware, protocol, hardware_bytes, protocol_bytes, operation = struct.unpack_from(
        "!HHBBH", data
    )
    if (hardware, protocol, hardware_bytes, protocol_bytes) != (1, 0x0800, 6, 4):
        return None
    return Arp(operation, _mac(data[8:14]), _address(data[14:18]), _address(data[24:28]))


def _ipv4(frame: bytes) -> Ipv4 | None:
    data = frame[14:]
    if len(data) < 20 or data[0] >> 4 != 4:
        return None
    header = (data[0] & 15) * 4
    (total,) = struct.unpack_from("!H", data, 2)
    (fragment,) = struct.unpack_from("!H", data, 6)
    if header < 20 or len(data) < header or total < header:
        return None
    protocol = data[9]
    ends = (_mac(frame[6:12]), _mac(frame[0:6]), _address(data[12:16]), _address(data[16:20]))
    body = data[header:total]
    if fragment & 0x1FFF:
        return Ipv4(*ends, protocol)
    match protocol:
        case 6 if len(body) >= 20:
            source, target, sequence, acknowledged, offset, flags = struct.unpack_from(
                "!HHIIBB", body
            )
            length = max(0, total - header - (offset >> 4) * 4)
            segment = Segment(sequence, acknowledged, flags & 0x3F, length)
            return Ipv4(*ends, protocol, source, target, segment)
        case 17 if len(body) >= 8:
            source, target = struct.unpack_from("!HH", body)
            return Ipv4(*ends, protocol, source, target, payload=body[8:])
        case 1 if len(body) >= 8:
            kind, identifier = struct.unpack_from("!BxxxH", body)
            return Ipv4(*ends, protocol, kind, identifier, payload=body[8:])
        case _:
            return Ipv4(*ends, protocol)


def arp(operation: int, sender_mac: str, sender: str, target: str, target_mac: str) -> bytes:
    """An ARP request (to everybody) or reply (to `target_mac`) in its frame."""
    asked = _ZERO_MAC if operation == ARP_REQUEST else target_mac
    return (
        _ethernet(sender_mac, target_mac, 0x0806)
        + struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        + _mac_bytes(sender_mac)
        + IPv4Address(sender).packed
        + _mac_bytes(asked)
        + IPv4Address(target).packed
    )


def udp(macs: tuple[str, str], ends: tuple[str, str], ports: tuple[int, int], data: bytes) -> bytes:
    """A UDP datagram in its frame; the pairs are source and target."""
    length = 8 + len(data)
    body = struct.pack("!HHHH", *ports, length, 0) + data
    # RFC 768: a checksum of zero means none, so zero is sent as all ones.
    checksum = _checksum(_pseudo(ends, UDP, length) + body) or 0xFFFF
    return _frame(macs, ends, UDP, body[:6] + struct.pack("!H", checksum) + body[8:])


def echo_request(
    macs: tuple[str, str], ends: tuple[str, str], identifier: int, data: bytes
) -> bytes:
    """An ICMP echo request in its frame."""
    body = struct.pack("!BBHHH", 8, 0, 0, identifier, 0) + data
    return _frame(macs, ends, ICMP, body[:2] + struct.pack("!H", _checksum(body)) + body[4:])


def reset_for(packet: Ipv4, segment: Segment) -> bytes:
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
    checksum = _checksum(_pseudo(ends, TCP, len(header)) + header)
    body = header[:16] + struct.pack("!H", checksum) + header[18:]
    return _frame((packet.target_mac, packet.source_mac), ends, TCP, body)


def _frame(macs: tuple[str, str], ends: tuple[str, str], protocol: int, body: bytes) -> bytes:
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(body),
        0,
        0x4000,
        _TTL,
        protocol,
        0,
        IPv4Address(ends[0]).packed,
        IPv4Address(ends[1]).packed,
    )
    head = head[:10] + struct.pack("!H", _checksum(head)) + head[12:]
    return _ethernet(macs[0], macs[1], 0x0800) + head + body


def _pseudo(ends: tuple[str, str], protocol: int, length: int) -> bytes:
    addresses = IPv4Address(ends[0]).packed + IPv4Address(ends[1]).packed
    return addresses + struct.pack("!BBH", 0, protocol, length)


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = int(sum(struct.unpack(f"!{len(data) // 2}H", data)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _ethernet(source: str, target: str, kind: int) -> bytes:
    return _mac_bytes(target) + _mac_bytes(source) + struct.pack("!H", kind)


def _mac(data: bytes) -> str:
    return ":".join(f"{byte:02x}" for byte in data)


def _mac_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _address(data: bytes) -> str:
    return str(IPv4Address(data))
