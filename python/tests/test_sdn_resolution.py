"""Address resolution: what is asked and answered, and what is not believed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.sdn import packets, resolution
from ropewalk.sdn.resolution import Answer, Question

OURS, THEIRS = "02:00:00:00:00:01", "02:00:00:00:00:02"
PAIRS = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fe80::2:1234")]


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_a_question_is_read_as_it_was_written(own: str, other: str) -> None:
    frame = resolution.question(OURS, own, other)
    assert resolution.parse(frame) == Question(OURS, own, other)


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_an_answer_is_read_as_it_was_written(own: str, other: str) -> None:
    asked = Question(THEIRS, other, own)
    frame = resolution.answer(OURS, own, asked)
    assert frame[:6] == packets.mac_bytes(THEIRS)
    assert resolution.parse(frame) == Answer(OURS, own)


def test_a_solicitation_goes_to_the_group_of_the_address() -> None:
    frame = resolution.question(OURS, "fd00::1", "fe80::2:1234")
    packet = packets.parse(frame)
    assert packet is not None
    assert packet.target == "ff02::1:ff02:1234"
    assert packet.target_mac == "33:33:ff:02:12:34"


def test_who_asks_without_an_address_is_answered_to_all() -> None:
    frame = resolution.answer(OURS, "fd00::1", Question(THEIRS, "::", "fd00::1"))
    packet = packets.parse(frame)
    assert packet is not None
    assert (packet.target, packet.target_mac) == ("ff02::1", "33:33:00:00:00:01")
    (flags,) = struct.unpack_from("!I", frame, 58)
    assert not flags & resolution.SOLICITED


@given(st.binary(max_size=120), st.sampled_from([0x0806, 0x86DD]))
def test_any_bytes_parse_or_are_nothing(data: bytes, kind: int) -> None:
    resolution.parse(data)
    resolution.parse(bytes(12) + struct.pack("!H", kind) + data)


@given(st.integers(0, 85), st.integers(1, 255))
def test_a_damaged_solicitation_is_not_believed_to_be_another(place: int, flip: int) -> None:
    frame = bytearray(resolution.question(OURS, "fd00::1", "fd00::2"))
    frame[place] ^= flip
    read = resolution.parse(bytes(frame))
    # The checksum does not cover the frame's own header, traffic class and flow label.
    if place >= 14 and place not in range(15, 18):
        assert read in (None, resolution.parse(resolution.question(OURS, "fd00::1", "fd00::2")))
        assert place in range(14, 18) or read is None


@given(st.integers(0, 85))
def test_a_message_cut_short_is_nothing(length: int) -> None:
    assert resolution.parse(resolution.question(OURS, "fd00::1", "fd00::2")[:length]) is None


def test_what_came_through_a_router_is_not_believed() -> None:
    frame = bytearray(resolution.answer(OURS, "fd00::1", Question(THEIRS, "fd00::2", "fd00::1")))
    frame[21] = 254
    assert resolution.parse(bytes(frame)) is None


@pytest.mark.parametrize("mac", ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00"])
@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_the_address_of_a_group_or_nobody_is_not_learned(mac: str, own: str, other: str) -> None:
    assert resolution.parse(resolution.answer(mac, own, Question(THEIRS, other, own))) is None


def test_an_answer_without_an_option_tells_its_sender() -> None:
    body = struct.pack("!BBHI", resolution.ADVERTISEMENT, 0, 0, resolution.SOLICITED)
    body += bytes.fromhex("fd00" + "00" * 13 + "02")
    frame = packets.icmpv6((THEIRS, OURS), ("fd00::2", "fd00::1"), body, 255)
    assert resolution.parse(frame) == Answer(THEIRS, "fd00::2")


@pytest.mark.parametrize("option", [b"\x02\x00", b"\x02", b"\x02\x02" + bytes(6), b"\x0e\x01" * 80])
def test_options_whose_lengths_do_not_fit_are_nothing(option: bytes) -> None:
    body = struct.pack("!BBHI", resolution.ADVERTISEMENT, 0, 0, 0) + bytes.fromhex(
        "fd00" + "00" * 14
    )
    frame = packets.icmpv6((THEIRS, OURS), ("fd00::2", "fd00::1"), body + option, 255)
    assert resolution.parse(frame) is None
