"""The policy `balance` on a fake switch, and its rules."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sdn_parts import FakeSwitch, balance, gateway_mac

from ropewalk.sdn import events, packets
from ropewalk.sdn.balance import selection
from ropewalk.sdn.balance.capacity import FLOOR_BPS, Capacity, sampled
from ropewalk.sdn.balance.policy import GENERATION_MAX, Balance
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    Output,
    PacketOut,
    Resubmit,
    SetField,
    ToGroup,
    Track,
)

HOST_MAC, GATEWAY_MAC = "0a:00:00:00:00:01", "02:72:6f:70:65:01"


def _tcp(port: int, flags: int = packets.SYN) -> bytes:
    header = struct.pack("!HHIIBBHHH", port, 443, 7, 9, 5 << 4, flags, 100, 0, 0)
    ends = (bytes((10, 98, 0, 2)), bytes((192, 0, 2, 1)))
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, *ends)
    macs = bytes.fromhex((GATEWAY_MAC + HOST_MAC).replace(":", ""))
    return macs + b"\x08\x00" + ip + header


def _udp(port: int, to: int = 53) -> bytes:
    return packets.udp((HOST_MAC, GATEWAY_MAC), ("10.98.0.2", "192.0.2.1"), (port, to), b"x")


def _offer(switch: FakeSwitch, frame: bytes) -> int | None:
    """The number of the uplink that the frame was sent to; None when it was not."""
    for message in switch.tell(events.PacketIn(1, 1, frame, len(frame))):
        if isinstance(message, PacketOut) and isinstance(message.actions[0], SetField):
            assert message.data == frame
            assert message.in_port == 1
            assert message.actions[1] == Resubmit(3)
            return int(message.actions[0].value)
    return None


@pytest.fixture
def switch(tmp_path: Path) -> FakeSwitch:
    switch = FakeSwitch(Balance(), balance(tmp_path))
    switch.run(1)
    return switch


def test_shares_are_the_weights(switch: FakeSwitch) -> None:
    counts = Counter(_offer(switch, _tcp(1000 + number)) for number in range(1000))
    assert counts == {1: 750, 2: 250}


def test_a_repeated_first_packet_gets_the_same_uplink(switch: FakeSwitch) -> None:
    chosen = {port: _offer(switch, _tcp(port)) for port in range(2000, 2200)}
    assert {port: _offer(switch, _tcp(port)) for port in chosen} == chosen
    assert switch.policy.report(switch.state, switch.now)["new_flows"] == {"w0": 150, "w1": 50}


def test_tcp_quic_udp_and_icmp_are_all_spread(switch: FakeSwitch) -> None:
    frames = {
        "tcp": _tcp(1),
        "quic": _udp(2, 443),
        "udp": _udp(3),
        "icmp": packets.echo_request(
            (HOST_MAC, GATEWAY_MAC), ("10.98.0.2", "192.0.2.1"), 4, b"ping"
        ),
    }
    assert [_offer(switch, frame) for frame in frames.values()].count(None) == 0
    new = (0x21, 0x21)
    for fields in ({"ip_proto": 6}, {"ip_proto": 17, "udp_dst": 443}, {"ip_proto": 1}):
        (flow,) = [
            flow
            for flow in switch.flows(1, ct_state=new, **fields)
            if ("udp_dst" in fields) == any(name == "udp_dst" for name, _ in flow.match)
        ]
        assert flow.actions == (Output(CONTROLLER, 0xFFFF),)


def test_what_is_not_to_be_spread_leaves_by_the_first_uplink(tmp_path: Path) -> None:
    switch = FakeSwitch(Balance(), balance(tmp_path, 'spread = ["tcp"]'))
    switch.run(1)
    (quic,) = switch.flows(1, udp_dst=443)
    assert quic.actions == (SetField("reg0", 1), Resubmit(3))


def test_a_flow_is_translated_in_the_zone_of_its_uplink(switch: FakeSwitch) -> None:
    (take,) = switch.flows(3, reg0=2)
    assert take.actions[:2] == (
        Track(4700, commit=True, mark=2),
        Track(4702, commit=True, nat="10.1.0.1"),
    )
    assert SetField("eth_dst", gateway_mac(1)) in take.actions


def test_a_dead_uplinks_connections_are_reset_and_all_else_moves(switch: FakeSwitch) -> None:
    switch.silent = {2}
    switch.run(2)
    dead = {tuple(flow.match): flow.actions for flow in switch.flows(1, ct_mark=1)}
    to_controller = [
        match for match, actions in dead.items() if actions[0] == Output(-3 % 2**32, 0xFFFF)
    ]
    assert to_controller
    assert {_offer(switch, _tcp(port)) for port in range(20)} == {2}
    assert {_offer(switch, _udp(port)) for port in range(20)} == {2}
    answer = switch.tell(events.PacketIn(1, 1, _tcp(5, packets.ACK), 54))
    (message,) = [message for message in answer if isinstance(message, PacketOut)]
    assert message.actions == (Output(1),)
    reset = packets.parse(message.data)
    assert isinstance(reset, packets.Ipv4)
    assert reset.tcp is not None
    assert reset.tcp.flags & packets.RST
    assert reset.tcp.sequence == 9


def test_a_reset_is_not_answered_by_a_reset(switch: FakeSwitch) -> None:
    assert switch.tell(events.PacketIn(1, 1, _tcp(5, packets.RST), 54)) == []


def test_without_any_uplink_nothing_is_decided(switch: FakeSwitch) -> None:
    switch.silent = {2, 3}
    switch.run(3)
    assert _offer(switch, _tcp(1)) is None


def test_the_switch_can_decide_by_itself(tmp_path: Path) -> None:
    switch = FakeSwitch(Balance(), balance(tmp_path, 'decide = "switch"'))
    switch.run(1)
    (group,) = switch.program.groups
    assert group.kind == "select"
    assert [bucket.weight for bucket in group.buckets] == [1000, 333]
    (flow,) = switch.flows(1, ct_state=(0x21, 0x21), ip_proto=6)
    assert flow.actions == (ToGroup(1),)


def test_a_restarted_controller_changes_nothing(tmp_path: Path) -> None:
    for more in ("", 'decide = "switch"'):
        config = balance(tmp_path, more)
        first = FakeSwitch(Balance(), config)
        first.run(2)
        again = FakeSwitch(Balance(), config, first.program)
        again.run(5)
        assert again.mods() == []


def test_memory_of_decisions_is_bounded(switch: FakeSwitch) -> None:
    for number in range(3 * GENERATION_MAX):
        _offer(switch, _tcp(number))
    decisions = switch.state.decisions
    assert len(decisions.young) + len(decisions.old) <= 2 * GENERATION_MAX


@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 100), min_size=1),
    st.integers(1, 400),
)
def test_round_robin_is_never_a_flow_away_from_the_weights(
    weights: dict[str, float], count: int
) -> None:
    credit: dict[str, float] = {}
    counts = Counter[str]()
    for _ in range(count):
        credit, chosen = selection.weighted_round_robin(credit, weights)
        counts[chosen] += 1
    total = sum(weights.values())
    for name, weight in weights.items():
        assert abs(counts[name] - count * weight / total) < len(weights)


def test_least_expected_finish_fills_links_in_proportion_to_their_rates() -> None:
    rates = {"slow": 10e6, "fast": 30e6}
    backlog: dict[str, float] = {}
    counts = Counter[str]()
    for _ in range(400):
        backlog, chosen = selection.least_expected_finish(backlog, rates, {}, 50_000)
        counts[chosen] += 1
    assert counts["fast"] == pytest.approx(300, abs=2)


def test_least_expected_finish_avoids_a_link_that_others_fill() -> None:
    _, chosen = selection.least_expected_finish(
        {}, {"a": 20e6, "b": 10e6}, {"a": 0.9, "b": 0.0}, 50_000
    )
    assert chosen == "b"


def test_backlogs_drain_at_the_rate() -> None:
    assert selection.drained({"a": 1_000_000.0}, {"a": 8e6}, 0.25) == {"a": 750_000.0}


def test_capacity_is_the_highest_rate_seen_and_survives_counters_that_begin_anew() -> None:
    capacity = sampled(Capacity(), (0, 0), 0)
    assert capacity.bps == FLOOR_BPS
    capacity = sampled(capacity, (1_000_000, 10), 1)
    capacity = sampled(capacity, (1_100_000, 2_000_010), 2)
    assert capacity.bps == 16e6
    assert sampled(capacity, (0, 0), 3).bps == 16e6
