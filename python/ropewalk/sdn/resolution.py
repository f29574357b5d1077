"""Questions for link-layer addresses and their answers: ARP, and neighbour discovery of IPv6.

Invariant: `parse` never raises, and what it returns may be believed as far as the formats go:
whoever answers is next to the bridge, and its address is a single station's. Sources: RFC 826
(ARP), RFC 4861 §4.3, §4.4, §7.1 (neighbour solicitation and advertisement, and their validation).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from ropewalk.sdn import packets

ARP_REQUEST, ARP_REPLY = 1, 2
SOLICITATION, ADVERTISEMENT = 135, 136
BROADCAST = "ff:ff:ff:ff:ff:ff"
ROUTER, SOLICITED, OVERRIDE = 0x8000_0000, 0x4000_0000, 0x2000_0000
"""Flags of an advertisement."""
SOURCE_OPTION, TARGET_OPTION = 1, 2
OPTIONS_MAX = 16
"""Options of a message that are read; what has more is not believed."""
_ARP = 0x0806
_ZERO_MAC = "00:00:00:00:00:00"
_NEIGHBOUR_HOPS = 255
_ALL_NODES, _ALL_NODES_MAC = "ff02::1", "33:33:00:00:00:01"
_UNSPECIFIED = "::"


@dataclass(frozen=True)
class Question:
    """Somebody asks who has `target`."""

    mac: str
    source: str
    target: str


@dataclass(frozen=True)
class Answer:
    """`mac` says it has `address`."""

    mac: str
    address: str


def parse(frame: bytes) -> Question | Answer | None:
    """A question or answer in its Ethernet frame; None for all other bytes."""
    if len(frame) < 14:
        return None
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind == _ARP:
        return _arp(frame[14:])
    if kind == packets.IPV6_ETHERNET:
        return _neighbour(frame)
    return None


def question(own_mac: str, own: str, target: str) -> bytes:
    """The question of the address `own` for `target`, to all who may have it."""
    if ip_address(own).version == 4:
        return arp(ARP_REQUEST, own_mac, own, target, BROADCAST)
    low = IPv6Address(target).packed[-3:]
    group = str(IPv6Address(IPv6Address("ff02::1:ff00:0").packed[:-3] + low))
    group_mac = packets.mac(b"\x33\x33\xff" + low)
    body = struct.pack("!BBHI", SOLICITATION, 0, 0, 0) + IPv6Address(target).packed
    body += _option(SOURCE_OPTION, own_mac)
    return packets.icmpv6((own_mac, group_mac), (own, group), body, _NEIGHBOUR_HOPS)


def answer(own_mac: str, own: str, asked: Question, *, router: bool = False) -> bytes:
    """The answer of `own` to a question."""
    if ip_address(own).version == 4:
        return arp(ARP_REPLY, own_mac, own, asked.source, asked.mac)
    flags = OVERRIDE | (ROUTER if router else 0)
    to, to_mac = asked.source, asked.mac
    if to == _UNSPECIFIED:
        # A host that asks whether an address is free is still without one (RFC 4861 §7.2.4).
        to, to_mac = _ALL_NODES, _ALL_NODES_MAC
    else:
        flags |= SOLICITED
    body = struct.pack("!BBHI", ADVERTISEMENT, 0, 0, flags) + IPv6Address(own).packed
    body += _option(TARGET_OPTION, own_mac)
    return packets.icmpv6((own_mac, to_mac), (own, to), body, _NEIGHBOUR_HOPS)


def arp(operation: int, sender_mac: str, sender: str, target: str, target_mac: str) -> bytes:
    """An ARP request (to everybody) or reply (to `target_mac`) in its frame."""
    asked = _ZERO_MAC if operation == ARP_REQUEST else target_mac
    return (
        packets.ethernet(sender_mac, target_mac, _ARP)
        + struct.pack("!HHBBH", 1, packets.IPV4_ETHERNET, 6, 4, operation)
        + packets.mac_bytes(sender_mac)
        + IPv4Address(sender).packed
        + packets.mac_bytes(asked)
        + IPv4Address(target).packed
    )


def _arp(data: bytes) -> Question | Answer | None:
    if len(data) < 28:
        return None
    hardware, protocol, hardware_bytes, protocol_bytes, operation = struct.unpack_from(
        "!HHBBH", data
    )
    if (hardware, protocol, hardware_bytes, protocol_bytes) != (1, packets.IPV4_ETHERNET, 6, 4):
        return None
    sender_mac, sender = _station(data[8:14]), str(IPv4Address(data[14:18]))
    if sender_mac is None:
        return None
    if operation == ARP_REPLY:
        return Answer(sender_mac, sender)
    return Question(sender_mac, sender, str(IPv4Address(data[24:28])))


def _neighbour(frame: bytes) -> Question | Answer | None:
    packet = packets.parse(frame)
    # Nobody beyond a router can send 255 hops: RFC 4861 §7.1.
    if packet is None or packet.protocol != packets.ICMPV6 or frame[20] != packets.ICMPV6:
        return None
    (length,) = struct.unpack_from("!H", frame, 18)
    body = frame[54 : 54 + length]
    if frame[21] != _NEIGHBOUR_HOPS or length < 24 or len(body) < length or body[1]:
        return None
    if packets.sum_of(
        packets.pseudo((packet.source, packet.target), packets.ICMPV6, length) + body
    ):
        return None
    options = _options(body[24:])
    target = IPv6Address(body[8:24])
    sender = _station(packets.mac_bytes(packet.source_mac))
    if options is None or target.is_multicast or sender is None:
        return None
    if body[0] == SOLICITATION:
        return Question(sender, packet.source, str(target))
    if body[0] == ADVERTISEMENT:
        # The answer to a unicast question may leave the option away.
        told = options.get(TARGET_OPTION)
        known = _station(told) if told else sender
        return Answer(known, str(target)) if known else None
    return None


def _options(data: bytes) -> dict[int, bytes] | None:
    """Link-layer addresses by their options; None where lengths do not fit."""
    found: dict[int, bytes] = {}
    position = 0
    for _ in range(OPTIONS_MAX):
        if position == len(data):
            return found
        if position + 2 > len(data):
            return None
        kind, length = data[position], 8 * data[position + 1]
        if not length or position + length > len(data):
            return None
        if length == 8:
            found[kind] = data[position + 2 : position + 8]
        position += length
    return None


def _option(kind: int, mac: str) -> bytes:
    return bytes((kind, 1)) + packets.mac_bytes(mac)


def _station(mac: bytes) -> str | None:
    """A link-layer address of one station; None for groups and nobody."""
    return packets.mac(mac) if not mac[0] & 1 and any(mac) else None
