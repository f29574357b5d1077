"""Checks the lengths inside a message before os-ken parses it.

os-ken's parsers walk lists by the length that each element states; one of zero would keep them busy
for ever. Invariant: what passes here has elements that end where the next begins, and no vendor's
action but those this project writes: all others are renamed to a vendor nobody knows, so that they
are read as a whole. Source: OpenFlow Switch Specification 1.3.5, sections 7.2.3 to 7.3.5.
"""

from __future__ import annotations

import struct

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
FEATURES_REPLY, PACKET_IN, FLOW_REMOVED, PORT_STATUS = 6, 10, 11, 12
MULTIPART_REPLY, BARRIER_REPLY, ROLE_REPLY = 19, 21, 25
READ = {
    ERROR: 12,
    ECHO_REQUEST: 8,
    ECHO_REPLY: 8,
    FEATURES_REPLY: 32,
    PACKET_IN: 32,
    FLOW_REMOVED: 56,
    PORT_STATUS: 80,
    MULTIPART_REPLY: 16,
    BARRIER_REPLY: 8,
    ROLE_REPLY: 24,
}
"""The messages that are read at all, with their least lengths in bytes; greetings apart."""

_FLOWS, _PORT_STATISTICS, _GROUPS, _METERS, _PORTS = 1, 4, 7, 9, 13
_PORT_STATISTICS_BYTES, _METER_BYTES, _METER_BAND_BYTES, _PORT_BYTES = 112, 40, 16, 64
_FLOW_BYTES, _GROUP_BYTES, _BUCKET_BYTES = 56, 8, 16
_EXPERIMENTER = 0xFFFF
_NICIRA = 0x2320
_NOBODY = 0x0000_0001
_MOVE, _MULTIPATH, _RESUBMIT_TABLE, _CT, _NAT, _CHECK_LARGER = 6, 10, 14, 35, 36, 49
_LEAST = {
    _MOVE: 24,
    _MULTIPATH: 32,
    _RESUBMIT_TABLE: 16,
    _CT: 24,
    _NAT: 16,
    _CHECK_LARGER: 24,
}
_DEPTH_MAX = 2
_WRITE_ACTIONS, _APPLY_ACTIONS = 3, 4


class FramingError(Exception):
    """Lengths that do not fit together."""


def checked(data: bytes) -> bytearray:
    """The message, safe to parse.

    Raises:
        FramingError: when its lengths do not fit together, or it is none of those that are read.
    """
    message = bytearray(data)
    if len(message) < 8 or len(message) < READ.get(message[1], 1 << 16):
        raise FramingError("too short, or of no type that is read")
    if message[1] == MULTIPART_REPLY:
        _multipart(message)
    return message


def _multipart(message: bytearray) -> None:
    (kind,) = struct.unpack_from("!H", message, 8)
    position = 16
    while position < len(message):
        match kind:
            case 1 | 7:
                least = _FLOW_BYTES if kind == _FLOWS else _GROUP_BYTES
                length = _length(message, position, len(message), least, 0)
                inside = _flow if kind == _FLOWS else _group
                inside(message, position, position + length)
            case 4:
                length = _PORT_STATISTICS_BYTES
            case 9:
                length = _length(message, position, len(message), _METER_BYTES, 4)
                if (length - _METER_BYTES) % _METER_BAND_BYTES:
                    raise FramingError("a meter's band cut short")
            case 13:
                length = _PORT_BYTES
            case _:
                raise FramingError(f"statistics of type {kind}")
        position += length
    if position != len(message):
        raise FramingError("an element beyond the end")


def _flow(message: bytearray, start: int, end: int) -> None:
    fields = start + 48
    (length,) = struct.unpack_from("!H", message, fields + 2)
    position = fields + (length + 7) // 8 * 8
    if length < 4 or position > end:
        raise FramingError("a match beyond its flow")
    while position < end:
        length = _length(message, position, end, 8, 2)
        (kind,) = struct.unpack_from("!H", message, position)
        if kind in (_WRITE_ACTIONS, _APPLY_ACTIONS):
            _actions(message, position + 8, position + length, 0)
        position += length


def _group(message: bytearray, start: int, end: int) -> None:
    position = start + 8
    while position < end:
        length = _length(message, position, end, _BUCKET_BYTES, 0)
        _actions(message, position + 16, position + length, 0)
        position += length


def _actions(message: bytearray, start: int, end: int, depth: int) -> None:
    position = start
    while position < end:
        length = _length(message, position, end, 8, 2)
        (kind,) = struct.unpack_from("!H", message, position)
        if length % 8:
            raise FramingError("an action that is not aligned")
        if kind == _EXPERIMENTER:
            _vendor(message, position, length, depth)
        position += length


def _vendor(message: bytearray, position: int, length: int, depth: int) -> None:
    vendor, subtype = struct.unpack_from("!IH", message, position + 4) if length > 8 else (0, 0)
    known = vendor == _NICIRA and length >= _LEAST.get(subtype, 1 << 16)
    if known and subtype == _CT:
        if depth >= _DEPTH_MAX:
            raise FramingError("actions within actions within actions")
        _actions(message, position + 24, position + length, depth + 1)
    if not known:
        struct.pack_into("!I", message, position + 4, _NOBODY)


def _length(message: bytearray, position: int, end: int, least: int, place: int) -> int:
    """The length that an element states at `place`."""
    if end - position < least:
        raise FramingError("an element cut short")
    (length,) = struct.unpack_from("!H", message, position + place)
    if length < least or position + length > end:
        raise FramingError(f"an element of {length} bytes")
    return int(length)
