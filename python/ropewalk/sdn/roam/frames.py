"""TCP segments in Ethernet frames as far as replay and zero windows need them.

Invariant: nothing here that takes a frame from a switch raises, whatever the bytes. Sources: RFC
9293 (TCP), RFC 8200 (IPv6), RFC 7323 (timestamps), RFC 1624 (checksum updates), RFC 5227
(gratuitous ARP), IEEE 802.2 (XID).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address

from ropewalk.sdn import packets
from ropewalk.sdn.packets import ACK, FIN, SYN

HALF = 1 << 31
WHOLE = 1 << 32
HEADERS_MAX = 14 + 60 + 60
_TIMESTAMP = 8
_SELECTED = 5
_XID = 0xAF
_POLL = 0x10

Flow = tuple[bytes, bytes]
"""Address and port of the sender and of the receiver, as on the wire."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment. `length` counts SYN and FIN; `stamp` is None without timestamps."""

    flow: Flow
    sequence: int
    acknowledged: int
    flags: int
    length: int
    stamp: int | None
    echo: int
    stamp_at: int
    """Where the timestamp's value begins in the frame."""
    tcp_at: int
    """Where TCP's header begins in the frame."""
    selected: tuple[tuple[int, int], ...] = ()
    """What the sender of the segment has got above a hole: first number, and the one after the last
    (RFC 2018)."""

    @property
    def end(self) -> int:
        """The sequence number after it."""
        return (self.sequence + self.length) % WHOLE


def after(a: int, b: int) -> int:
    """How far sequence number `a` is behind `b`, from -2^31 to 2^31-1."""
    return (a - b + HALF) % WHOLE - HALF


def parse(frame: bytes) -> Segment | None:
    """The segment in a frame, perhaps cut short after TCP's options; None for anything else.

    An IPv6 packet with extension headers is none.
    """
    found = _ipv4(frame) if frame[12:14] == b"\x08\x00" else _ipv6(frame)
    if found is None:
        return None
    at, size, (source, target) = found
    if len(frame) < at + 20:
        return None
    offset = (frame[at + 12] >> 4) * 4
    length = size - offset
    if offset < 20 or length < 0 or len(frame) < at + offset:
        return None
    sequence, acknowledged = struct.unpack_from("!II", frame, at + 4)
    flags = frame[at + 13] & 0x3F
    length += bool(flags & SYN) + bool(flags & FIN)
    stamp_at, selected = _options(frame, at + 20, at + offset)
    stamp, echo = struct.unpack_from("!II", frame, stamp_at) if stamp_at else (None, 0)
    flow = (source + frame[at : at + 2], target + frame[at + 2 : at + 4])
    return Segment(flow, sequence, acknowledged, flags, length, stamp, echo, stamp_at, at, selected)


def _ipv4(frame: bytes) -> tuple[int, int, tuple[bytes, bytes]] | None:
    """Where TCP begins, how long it is, and both addresses."""
    if len(frame) < 34 or frame[14] >> 4 != 4 or frame[23] != 6:
        return None
    header = (frame[14] & 15) * 4
    fragment = int.from_bytes(frame[20:22])
    if header < 20 or fragment & 0x3FFF:
        return None
    size = int.from_bytes(frame[16:18]) - header
    return 14 + header, size, (frame[26:30], frame[30:34])


def _ipv6(frame: bytes) -> tuple[int, int, tuple[bytes, bytes]] | None:
    """As `_ipv4`."""
    if len(frame) < 54 or frame[12:14] != b"\x86\xdd" or frame[14] >> 4 != 6 or frame[20] != 6:
        return None
    return 54, int.from_bytes(frame[18:20]), (frame[22:38], frame[38:54])


def _options(frame: bytes, at: int, end: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Where the timestamp's value begins, 0 without any; and what is selected."""
    stamp_at, selected = 0, b""
    while at + 1 < end and frame[at]:
        kind, length = frame[at], frame[at + 1]
        if kind == 1:
            at += 1
            continue
        if length < 2 or at + length > end:
            break
        if kind == _TIMESTAMP and length == 10:
            stamp_at = stamp_at or at + 2
        elif kind == _SELECTED and length % 8 == 2:
            selected = frame[at + 2 : at + length]
        at += length
    return stamp_at, tuple(struct.iter_unpack("!II", selected)) if selected else ()


def restamped(frame: bytes, segment: Segment, stamp: int) -> bytes:
    """The frame with another timestamp value."""
    if segment.stamp is None or segment.stamp == stamp:
        return frame
    tcp = segment.tcp_at
    checksum = int.from_bytes(frame[tcp + 16 : tcp + 18])
    new = struct.pack("!I", stamp)
    shift = (segment.stamp_at - tcp) % 2
    old_words = _words(frame[segment.stamp_at : segment.stamp_at + 4], shift)
    # RFC 1624, equation 3; an option at an odd place has its bytes in the other halves.
    total = (checksum ^ 0xFFFF) + sum(word ^ 0xFFFF for word in old_words)
    total += sum(_words(new, shift))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    changed = bytearray(frame)
    changed[segment.stamp_at : segment.stamp_at + 4] = new
    changed[tcp + 16 : tcp + 18] = struct.pack("!H", total ^ 0xFFFF)
    return bytes(changed)


def _words(data: bytes, shift: int) -> list[int]:
    padded = b"\0" * shift + data + b"\0" * shift
    return [int.from_bytes(padded[at : at + 2]) for at in range(0, len(padded), 2)]


def zero_window(frame: bytes, segment: Segment) -> bytes:
    """What the receiver of a segment would answer with a full buffer.

    Everything in it is taken from the segment: its sequence number is what the sender has
    acknowledged, its timestamp what the sender last saw (equal passes PAWS, RFC 7323 section 5.3).
    """
    (source, source_port), (target, target_port) = (
        (str(ip_address(end[:-2])), end[-2:]) for end in (segment.flow[1], segment.flow[0])
    )
    options = b""
    if segment.stamp is not None:
        options = struct.pack("!BBBBII", 1, 1, _TIMESTAMP, 10, segment.echo, segment.stamp)
    numbers = struct.pack("!II", segment.acknowledged, segment.end)
    state = struct.pack("!BBHHH", (20 + len(options)) << 2, ACK, 0, 0, 0)
    tcp = source_port + target_port + numbers + state + options
    checksum = packets.sum_of(packets.pseudo((source, target), packets.TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", checksum) + tcp[18:]
    macs = (packets.mac(frame[0:6]), packets.mac(frame[6:12]))
    return packets.framed(macs, (source, target), packets.TCP, tcp)


def ends(frame: bytes) -> tuple[str, str] | None:
    """Source and target MAC address; None when cut short or the source is a group."""
    if len(frame) < 14 or frame[6] & 1 or not any(frame[6:12]):
        return None
    return (packets.mac(frame[6:12]), packets.mac(frame[0:6]))


def announces(frame: bytes) -> bool:
    """Whether it is what shows a station at a new place: gratuitous ARP, or an 802.2 XID frame."""
    if len(frame) >= 42 and frame[12:14] == b"\x08\x06":
        return frame[28:32] == frame[38:42] and any(frame[28:32])
    if len(frame) >= 17 and int.from_bytes(frame[12:14]) < 0x0600:
        return frame[16] & ~_POLL == _XID
    return False


def address(frame: bytes) -> str:
    """The sender's IPv4 address in an ARP or IPv4 packet, or ""."""
    found = b""
    if len(frame) >= 42 and frame[12:14] == b"\x08\x06":
        found = frame[28:32]
    elif len(frame) >= 34 and frame[12:14] == b"\x08\x00":
        found = frame[26:30]
    return str(IPv4Address(found)) if any(found) else ""


def xid(mac: str) -> bytes:
    """The layer 2 update that an access point sends for a station (IEEE 802.11F, section 6)."""
    source = packets.mac_bytes(mac)
    body = bytes((0, 1, _XID, 0x81, 1, 0))
    return b"\xff" * 6 + source + struct.pack("!H", len(body)) + body
