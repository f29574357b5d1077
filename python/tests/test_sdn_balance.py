"""The policy `balance` on a fake switch, and its rules."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sdn_parts import FakeSwitch, balance, gateway_mac, write

from ropewalk._native import PAUSE_S, PLACES, Capacity, places, shares
from ropewalk.sdn import packets
from ropewalk.sdn.balance.affinity import PAIRS_MAX
from ropewalk.sdn.balance.capacity import Meter, answered, sampled
from ropewalk.sdn.balance.policy import GENERATION_MAX, Balance
from ropewalk.sdn.balance.program import SLOTS, slots
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import Counters
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    HashToSlot,
    Output,
    PacketOut,
    Resubmit,
    SetField,
    ToGroup,
    Track,
)

HOST_MAC, GATEWAY_MAC = "0a:00:00:00:00:01", "02:72:6f:70:65:01"


MACS = (HOST_MAC, GATEWAY_MAC)
ENDS = {4: ("10.98.0.2", "192.0.2.1"), 6: ("fd98::2", "2001:db8::1")}
VERSIONS = pytest.mark.parametrize("version", [4, 6])


def _tcp(port: int, flags: int = packets.SYN, version: int = 4) -> bytes:
    header = struct.pack("!HHIIBBHHH", port, 443, 7, 9, 5 << 4, flags, 100, 0, 0)
    return packets.framed(MACS, ENDS[version], packets.TCP, header)


def _udp(port: int, to: int = 53, version: int = 4) -> bytes:
    return packets.udp(MACS, ENDS[version], (port, to), b"x")


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
    switch = FakeSwitch(Balance(), balance(tmp_path, versions=(4, 6)))
    switch.run(1)
    return switch


@VERSIONS
def test_shares_are_the_weights(switch: FakeSwitch, version: int) -> None:
    frames = (_tcp(1000 + number, version=version) for number in range(1000))
    counts = Counter(_offer(switch, frame) for frame in frames)
    assert counts == {1: 750, 2: 250}


def test_a_repeated_first_packet_gets_the_same_uplink(switch: FakeSwitch) -> None:
    chosen = {port: _offer(switch, _tcp(port)) for port in range(2000, 2200)}
    assert {port: _offer(switch, _tcp(port)) for port in chosen} == chosen
    assert switch.policy.report(switch.state, switch.now)["new_flows"] == {"w0": 150, "w1": 50}


def _to(target: str, port: int, to: int = 443) -> bytes:
    """The first packet of a connection to a server."""
    header = struct.pack("!HHIIBBHHH", port, to, 7, 9, 5 << 4, packets.SYN, 100, 0, 0)
    return packets.framed(MACS, (ENDS[4][0], target), packets.TCP, header)


@pytest.fixture
def keeping(tmp_path: Path) -> FakeSwitch:
    config = balance(tmp_path, "affinity_minutes = 10", weights=(1, 1))
    switch = FakeSwitch(Balance(), config)
    switch.run(1)
    return switch


def test_a_site_that_is_opened_is_kept_and_what_its_page_fetches_elsewhere_is_spread(
    keeping: FakeSwitch,
) -> None:
    opened = _offer(keeping, _to("198.51.100.1", 1))
    others = [_offer(keeping, _to(f"203.0.{net}.1", 100 + net)) for net in range(20)]
    assert Counter(others) == {1: 10, 2: 10}
    # The same network of 24 bits, at once and minutes later.
    assert {_offer(keeping, _to("198.51.100.7", 2 + n)) for n in range(6)} == {opened}
    keeping.run(300)
    assert {_offer(keeping, _to("198.51.100.9", 20 + n)) for n in range(6)} == {opened}
    again = [_offer(keeping, _to("203.0.7.1", 200 + n)) for n in range(20)]
    assert Counter(again) == {1: 10, 2: 10}


def test_a_second_site_after_a_pause_is_kept_and_other_ports_always(keeping: FakeSwitch) -> None:
    for net in range(2):
        first = _offer(keeping, _to(f"198.51.{net}.1", net))
        keeping.run(PAUSE_S)
        assert {_offer(keeping, _to(f"198.51.{net}.1", 10 + n)) for n in range(7)} == {first}
        mail = _offer(keeping, _to(f"198.52.{net}.1", 100, 993))
        assert {_offer(keeping, _to(f"198.52.{net}.1", 110 + n, 993)) for n in range(7)} == {mail}
        keeping.run(PAUSE_S)


def test_affinity_ends_with_its_time_and_with_its_uplink(keeping: FakeSwitch) -> None:
    def offered(base: int) -> set[int | None]:
        return {_offer(keeping, _to("198.51.100.1", base + n)) for n in range(8)}

    (first,) = offered(0)
    keeping.silent.add(1 + (first or 0))
    keeping.run(3)
    (second,) = offered(100)
    assert second != first
    keeping.silent.clear()
    keeping.run(10)
    assert offered(200) == {second}
    keeping.run(601)
    begun = {_offer(keeping, _to(f"198.51.{net}.1", 300 + net)) for net in range(2)}
    assert begun == {1, 2}


def test_what_is_remembered_of_sites_is_bounded(keeping: FakeSwitch) -> None:
    for net in range(PAIRS_MAX + 50):
        _offer(keeping, _to(f"10.{net // 256}.{net % 256}.1", net, 25))
    assert len(keeping.state.affinity.uplinks) == PAIRS_MAX


@VERSIONS
def test_tcp_quic_udp_and_icmp_are_all_spread(switch: FakeSwitch, version: int) -> None:
    frames = {
        "tcp": _tcp(1, version=version),
        "quic": _udp(2, 443, version),
        "udp": _udp(3, version=version),
        "icmp": packets.echo_request(MACS, ENDS[version], 4, b"ping"),
    }
    assert [_offer(switch, frame) for frame in frames.values()].count(None) == 0
    base = {"ct_state": (0x21, 0x21), "eth_type": {4: 0x0800, 6: 0x86DD}[version]}
    icmp = {4: packets.ICMP, 6: packets.ICMPV6}[version]
    for fields in ({"ip_proto": 6}, {"ip_proto": 17, "udp_dst": 443}, {"ip_proto": icmp}):
        (flow,) = [
            flow
            for flow in switch.flows(1, **base, **fields)
            if ("udp_dst" in fields) == any(name == "udp_dst" for name, _ in flow.match)
        ]
        assert flow.actions == (Output(CONTROLLER, 0xFFFF),)


@VERSIONS
def test_what_no_router_forwards_goes_over_no_uplink(switch: FakeSwitch, version: int) -> None:
    group = {4: ("224.0.0.0", "240.0.0.0"), 6: ("ff00::", "ff00::")}[version]
    (dropped,) = switch.flows(0, in_port=1, **{f"ipv{version}_dst": group})
    (tracked,) = [flow for flow in switch.flows(0, in_port=1) if flow.priority == 500
                  and (f"ipv{version}_src", ENDS[version][0]) in flow.match]  # fmt: skip
    assert dropped.actions == ()
    assert dropped.priority > tracked.priority


def test_what_is_not_to_be_spread_leaves_by_the_first_uplink(tmp_path: Path) -> None:
    switch = FakeSwitch(Balance(), balance(tmp_path, 'spread = ["tcp"]'))
    switch.run(1)
    (quic,) = switch.flows(1, udp_dst=443, ct_state=(0x21, 0x21))
    assert quic.actions == (SetField("reg0", 1), Resubmit(3))


@VERSIONS
def test_a_flow_is_translated_in_the_zone_of_its_uplink(switch: FakeSwitch, version: int) -> None:
    (take,) = switch.flows(3, reg0=2, eth_type={4: 0x0800, 6: 0x86DD}[version])
    assert take.actions[:2] == (
        Track(4700, commit=True, mark=2),
        Track(4702, commit=True, nat={4: "10.1.0.1", 6: "fd01::1"}[version]),
    )
    assert SetField("eth_dst", gateway_mac(1)) in take.actions


@VERSIONS
def test_a_dead_uplinks_connections_are_reset_and_all_else_moves(
    switch: FakeSwitch, version: int
) -> None:
    switch.silent = {2}
    switch.run(2)
    kind = {4: 0x0800, 6: 0x86DD}[version]
    dead = {tuple(flow.match): flow.actions for flow in switch.flows(1, ct_mark=1, eth_type=kind)}
    to_controller = [
        match for match, actions in dead.items() if actions[0] == Output(CONTROLLER, 0xFFFF)
    ]
    assert to_controller
    assert {_offer(switch, _tcp(port, version=version)) for port in range(20)} == {2}
    assert {_offer(switch, _udp(port, version=version)) for port in range(20)} == {2}
    late = _tcp(5, packets.ACK, version)
    answer = switch.tell(events.PacketIn(1, 1, late, len(late)))
    (message,) = [message for message in answer if isinstance(message, PacketOut)]
    assert message.actions == (Output(1),)
    reset = packets.parse(message.data)
    assert isinstance(reset, packets.Ip)
    assert reset.tcp is not None
    assert reset.tcp.flags & packets.RST
    assert reset.tcp.sequence == 9


def test_an_uplink_can_be_dead_in_one_family_alone(switch: FakeSwitch) -> None:
    switch.silent_versions = {(2, 6)}
    switch.run(2)
    assert {_offer(switch, _tcp(port, version=6)) for port in range(8)} == {2}
    assert {_offer(switch, _tcp(port, version=4)) for port in range(8)} == {1, 2}


def test_a_reset_is_not_answered_by_a_reset(switch: FakeSwitch) -> None:
    assert switch.tell(events.PacketIn(1, 1, _tcp(5, packets.RST), 54)) == []


def test_without_any_uplink_nothing_is_decided(switch: FakeSwitch) -> None:
    switch.silent = {2, 3}
    switch.run(3)
    assert _offer(switch, _tcp(1)) is None


@VERSIONS
def test_the_switch_can_decide_by_itself(tmp_path: Path, version: int) -> None:
    config = balance(tmp_path, 'decide = "switch"', versions=(version,))
    switch = FakeSwitch(Balance(), config)
    switch.run(1)
    (flow,) = switch.flows(1, ct_state=(0x21, 0x21), ip_proto=6)
    assert flow.actions == (HashToSlot(SLOTS), Resubmit(5))
    groups = {group.number: group for group in switch.program.groups}
    first = {4: 1, 6: 51}[version]
    owners = Counter[int]()
    for slot in range(SLOTS):
        (chosen,) = switch.flows(5, reg1=slot)
        (action,) = chosen.actions
        assert isinstance(action, ToGroup)
        owners[action.group] += 1
    assert owners == {first: 48, first + 1: 16}
    for number in range(2):
        group = groups[first + number]
        assert group.kind == "ff"
        assert [bucket.watch_port for bucket in group.buckets] == [2 + number, 3 - number]
        assert group.buckets[0].actions == (SetField("reg0", 1 + number), Resubmit(3))


@given(st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.floats(0.001, 1000), min_size=1))
def test_slots_follow_the_weights_and_leave_nobody_out(weights: dict[str, float]) -> None:
    shares = slots(weights)
    assert sum(shares.values()) == SLOTS
    assert min(shares.values()) >= 1
    total = sum(weights.values())
    if min(weights.values()) / total * SLOTS >= 1:
        for name, weight in weights.items():
            assert abs(shares[name] - SLOTS * weight / total) < 1.001


def test_a_restarted_controller_changes_nothing(tmp_path: Path) -> None:
    for more in ("", 'decide = "switch"'):
        config = balance(tmp_path, more, versions=(4, 6))
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


def test_the_rules_are_those_of_the_compiled_module() -> None:
    assert shares("weighted", [(30e6, 0), (10e6, 0)], 1, 0) == [30_000_000, 10_000_000]
    table = places([3, 1], PLACES)
    assert len(table) == PLACES
    assert Counter(table) == {0: 3 * PLACES // 4, 1: PLACES // 4}
    assert table[:4].count(1) == 1, "evenly mixed"
    assert places([0, 0], PLACES) == []
    with pytest.raises(ValueError, match="no mode"):
        shares("fastest", [(1, 0)], 1, 0)


def _finishing(tmp_path: Path, loads_mbit: dict[int, float]) -> Counter[int | None]:
    """Where 400 flows go over uplinks of 30 and 10 Mbit/s that carry so much, by port."""
    path = balance(tmp_path, 'rule = "least-expected-finish"\nflow_bytes = 50000').path
    text = path.read_text().replace("weight = 3\n", "rate_mbit = 30\n")
    config = write(tmp_path, text.replace("weight = 1\n", "rate_mbit = 10\n"))
    switch = FakeSwitch(Balance(), config)
    switch.run(1)
    for second in range(2):
        carried = {port: int(mbit * 1e6 / 8 * second) for port, mbit in loads_mbit.items()}
        counters = {port: Counters(count, 0, 10.0 + second) for port, count in carried.items()}
        switch.tell(events.PortStatistics(counters))
    return Counter(_offer(switch, _tcp(1000 + number)) for number in range(400))


def test_least_expected_finish_fills_links_in_proportion_to_their_rates(tmp_path: Path) -> None:
    counts = _finishing(tmp_path, {2: 0, 3: 0})
    assert counts[1] == pytest.approx(300, abs=2)
    assert counts.total() == 400


def test_least_expected_finish_avoids_a_link_that_others_fill(tmp_path: Path) -> None:
    # 30 Mbit/s in the last second are as much again: 75 flows' bytes.
    assert _finishing(tmp_path, {2: 30, 3: 0})[1] == pytest.approx(300 - 75 / 4, abs=3)


def test_backlogs_drain_at_the_rate(tmp_path: Path) -> None:
    path = balance(tmp_path, 'rule = "least-expected-finish"\nflow_bytes = 1000000').path
    text = path.read_text().replace("weight = 3\n", "rate_mbit = 8\n")
    switch = FakeSwitch(Balance(), write(tmp_path, text.replace("weight = 1\n", "rate_mbit = 8\n")))
    switch.run(1)
    assert [_offer(switch, _tcp(port)) for port in range(3)] == [1, 2, 1]
    switch.run(0.5)
    _offer(switch, _tcp(3))
    assert switch.state.backlog == pytest.approx({"w0": 1.5e6, "w1": 1.5e6}, rel=0.05)
    switch.run(60)
    _offer(switch, _tcp(4))
    assert sorted(switch.state.backlog.values()) == pytest.approx([0, 1e6])


def _sampled(*samples: tuple[int, int, float]) -> Capacity:
    meter = Meter()
    for now, (received, sent, seconds) in enumerate(samples):
        meter = sampled(meter, Counters(received, sent, seconds), float(now))
    return meter.capacity


def test_what_was_carried_is_the_highest_rate_and_survives_counters_that_begin_anew() -> None:
    assert _sampled((0, 0, 10)).carried_bps == 0
    samples = [(0, 0, 10.0), (1_000_000, 10, 11.0), (1_100_000, 2_000_010, 12.0)]
    assert _sampled(*samples).carried_bps == 16e6
    assert _sampled(*samples, (0, 0, 13)).carried_bps == 16e6


def test_samples_that_follow_each_other_at_once_measure_no_burst() -> None:
    samples = [(0, 0, 10.0), (1_000_000, 0, 10.001)]
    assert _sampled(*samples).carried_bps == 0
    assert _sampled(*samples, (2_000_000, 0, 11)).carried_bps == 16e6


def test_an_uplink_is_full_when_its_probes_wait() -> None:
    meter = Meter()
    for second in range(4):
        meter = answered(answered(meter, 0.02 if second < 2 else 0.1), 0.02 + second / 20)
        meter = sampled(meter, Counters(second * 1_000_000, 0, 10.0 + second), float(second))
    assert meter.capacity.is_full
    assert meter.capacity.carried_bps == 8e6
    assert meter.round_trips_s == ()


STEP_S, PROBE_S, BASE_S, QUEUE_S_MAX = 0.01, 0.1, 0.02, 0.5


def _followed(
    seconds: float, capacity_mbit: Callable[[float], float], wanted_mbit: Callable[[float], float]
) -> list[tuple[float, float]]:
    """Time and estimate in Mbit/s after each sample of a link with a queue, in virtual time.

    Flows send what they want; what the link does not carry waits, up to `QUEUE_S_MAX`.
    """
    meter, carried, queued = Meter(), 0.0, 0.0
    found = []
    for step in range(1, round(seconds / STEP_S) + 1):
        now = step * STEP_S
        rate = capacity_mbit(now) * 1e6 / 8
        queued = min(queued + wanted_mbit(now) * 1e6 / 8 * STEP_S, QUEUE_S_MAX * rate + 1e4)
        sent = min(queued, rate * STEP_S)
        queued, carried = queued - sent, carried + sent
        if step % round(PROBE_S / STEP_S) == 0:
            meter = answered(meter, BASE_S + queued / rate)
        if step % round(1 / STEP_S) == 0:
            meter = sampled(meter, Counters(round(carried), 0, now), now)
            found.append((now, meter.capacity.carried_bps / 1e6))
    return found


@pytest.mark.parametrize("phase_s", [0.01, 0.25, 0.5, 0.75, 0.99])
def test_weights_follow_a_fall_to_a_quarter_within_three_seconds(phase_s: float) -> None:
    fall_s, rise_s = 5 + phase_s, 15 + phase_s
    found = _followed(
        25, lambda now: 5.0 if fall_s <= now < rise_s else 20.0, lambda now: 100.0 if now > 1 else 0
    )
    fallen = [mbit for now, mbit in found if fall_s + 3 <= now < rise_s]
    assert all(mbit == pytest.approx(5, rel=0.15) for mbit in fallen)
    risen = [mbit for now, mbit in found if now >= rise_s + 6]
    assert all(mbit == pytest.approx(20, rel=0.15) for mbit in risen)


@pytest.mark.parametrize("phase_s", [0.01, 0.25, 0.5, 0.75, 0.99])
def test_traffic_that_ends_or_comes_in_bursts_is_no_fall(phase_s: float) -> None:
    def ended(now: float) -> float:
        return 100 if 1 < now < 6 + phase_s else 0.2 + 0.3 * (now % 2 < 1)

    def in_bursts(now: float) -> float:
        # Each fills the link for half a second.
        return 100 if 1 < now < 6 or (now + phase_s) % 1 < 0.1 else 0.1

    for wanted_mbit in (ended, in_bursts):
        found = _followed(16, lambda _: 20, wanted_mbit)
        assert all(mbit == pytest.approx(20, rel=0.1) for now, mbit in found if now > 4)
