"""Probing of idle uplinks for what they carry: estimators, rounds, the policy on fake links."""

from __future__ import annotations

import heapq
import math
import struct
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sdn_parts import FakeSwitch, balance, bicast, uplink_mac, write

from ropewalk._native import (
    ROUNDS,
    assumed,
    several_sizes,
    several_sizes_rate,
    train_rate,
    train_sizes,
)
from ropewalk.sdn import api, packets, status
from ropewalk.sdn.balance import probing
from ropewalk.sdn.balance.capacity import Meter, estimated, probed, sampled
from ropewalk.sdn.balance.policy import Balance
from ropewalk.sdn.balance.probing import METHODS, Packet, Probing
from ropewalk.sdn.config import Config
from ropewalk.sdn.openflow import codec, events
from ropewalk.sdn.openflow.events import Counters
from ropewalk.sdn.openflow.program import AskPortStatistics, Message, Output, PacketOut
from ropewalk.sdn.reader import ConfigError

MBIT = 1e6
PACKET_BYTES = train_sizes(None)[0]
KEY = ("w0", 4)


def _arrivals(bps: float, count: int) -> list[float]:
    return [7.0 + number * 8 * PACKET_BYTES / bps for number in range(count)]


def test_trains_and_sizes_tell_the_rate_by_the_compiled_rules() -> None:
    assert train_rate(_arrivals(MBIT, 17)[::-1], 20) == pytest.approx(MBIT)
    assert train_rate(_arrivals(MBIT, 16), 20) is None
    assert train_rate([], 20) is None
    assert train_rate([math.nan] * 20, 20) is None
    assert [len(train_sizes(bps)) for bps in (None, MBIT, 50 * MBIT, math.inf)] == [20, 20, 53, 100]
    round_trips = [(size, 0.02 + 2 * 8 * size / MBIT) for size in several_sizes()]
    assert several_sizes_rate(round_trips) == pytest.approx(MBIT, rel=0.001)
    assert several_sizes_rate([(size, 0.02) for size, _ in round_trips]) is None


def _begun(method: str = "train", now: float = 50.0) -> tuple[Probing, list[Packet]]:
    return probing.passed(Probing(METHODS[method], 300.0), [KEY], now)


def test_answers_that_are_forged_repeated_or_short_are_ignored() -> None:
    begun, sent = _begun()
    assert [packet.number for packet in sent] == list(range(20))
    token, size = sent[0].token, PACKET_BYTES
    payload = sent[3].payload(28)
    assert len(payload) + 28 == size
    for key, data, length in (
        (("w1", 4), payload, size),
        (("w0", 6), payload, size),
        (KEY, b"", size),
        (KEY, probing.HEADER.pack(bytes(8), 3), size),
        (KEY, probing.HEADER.pack(token, 20), size),
        (KEY, probing.HEADER.pack(token, 65_535), size),
        (KEY, payload, size - 1),
    ):
        assert probing.answered(begun, key, data, length, 50.1) == (begun, False)
    assert probing.answered(begun, KEY, payload, size, 49.9) == (begun, False), "before it left"
    after, known = probing.answered(begun, KEY, payload, size, 50.1)
    assert known
    assert probing.answered(after, KEY, payload, size, 50.2) == (after, False)
    again, _ = _begun(now=51.0)
    assert again.round is not None
    assert again.round.token != token


@given(st.lists(st.binary(max_size=30)), st.floats(allow_nan=False))
def test_whatever_comes_is_no_answer(payloads: list[bytes], arrived_s: float) -> None:
    begun, _ = _begun()
    for payload in payloads:
        assert probing.answered(begun, KEY, payload, 1_500, arrived_s) == (begun, False)


@pytest.mark.parametrize("bps", [5e3, 2e11])
def test_what_no_link_can_have_is_no_rate(bps: float) -> None:
    state, sent = _begun()
    for packet, at in zip(sent, _arrivals(bps, 20), strict=True):
        state, _ = probing.answered(state, KEY, packet.payload(28), packet.size, 50 + at)
    after, _ = probing.passed(state, [KEY], 100.0)
    assert after.round is None
    assert after.records["w0"].rounds.rates_bps == []


def test_a_round_ends_with_its_port() -> None:
    state, _ = _begun()
    assert probing.changed(state, "w1").round == state.round
    assert probing.changed(state, "w0").round is None


def test_a_round_of_an_uplink_that_became_busy_says_nothing() -> None:
    state, sent = _begun()
    for packet, at in zip(sent, _arrivals(MBIT, 20), strict=True):
        state, _ = probing.answered(state, KEY, packet.payload(28), packet.size, 50 + at)
    idle, _ = probing.passed(state, [KEY], 60.0)
    assert idle.records["w0"].rounds.rates_bps == pytest.approx([MBIT])
    busy, _ = probing.passed(state, [], 60.0)
    assert busy.round is None
    assert busy.records["w0"].rounds.rates_bps == []


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["train", "vps"]),
    st.floats(10, 400),
    st.lists(st.booleans(), min_size=1, max_size=7),
    st.floats(1, 1000),
)
def test_probing_is_bounded_whatever_is_answered(
    method: str, interval_s: float, answered: list[bool], mbit: float
) -> None:
    state = Probing(METHODS[method], interval_s)
    sent: list[tuple[float, int]] = []
    keys = [("w0", 4), ("w1", 6)]
    count = 0
    for tick in range(4_000):
        now = 50 + tick * 0.05
        if tick % 400 == 399:
            state = probing.changed(state, "w0")
        state, leaving = probing.passed(state, keys, now)
        for number, packet in enumerate(leaving):
            sent.append((now, packet.size))
            count += 1
            if answered[count % len(answered)]:
                at = now + (number + 1) * 8 * packet.size / (mbit * MBIT)
                payload = packet.payload(28)
                state, _ = probing.answered(state, packet.key, payload, packet.size, at)
    assert sent
    begins = [at for at, _ in sent]
    for begin in begins[:: max(1, len(begins) // 50)]:
        in_a_minute = sum(size for at, size in sent if begin <= at < begin + 59)
        # Two uplinks; what is left of a round that began before counts for its own minute.
        assert in_a_minute <= 2 * (probing.BYTES_PER_MINUTE + 70_000)
    assert all(len(record.rounds.rates_bps) <= ROUNDS for record in state.records.values())


class Links(FakeSwitch):
    """Uplinks that carry `bps` each way, and what else they carry in the switch's counters."""

    def __init__(self, config: Config, bps: dict[int, float], delay_s: float = 0.01) -> None:
        self.bps = bps
        self.delay_s = delay_s
        self.others_bps: dict[int, float] = {}
        self.losing: set[int] = set()
        self.asked: list[tuple[float, int, int]] = []
        self._free: dict[tuple[int, str], float] = {}
        self._carried: dict[int, list[float]] = {}
        self._coming: list[tuple[float, int, int, bytes]] = []
        super().__init__(Balance(), config)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        tick = self.now + 0.05
        while tick < end:
            while self._coming and self._coming[0][0] < tick:
                arrived, _, port, frame = heapq.heappop(self._coming)
                # Handled later than it arrived, as by a controller that has other things to do.
                self.now = min(max(self.now, math.ceil(arrived * 100) / 100), tick)
                self._count(port)[0] += len(frame)
                event = events.PacketIn(port, 0, frame[:128], len(frame), arrived)
                self.tell(event)
            self.now = tick
            self.tell(events.Tick())
            tick += 0.05
        self.now = end

    def tell(self, event: object) -> list[Message]:
        messages = super().tell(event)
        if any(isinstance(message, AskPortStatistics) for message in messages):
            counters = {}
            for port in self.ports:
                received, sent = self._count(port.number)
                more = self.others_bps.get(port.number, 0.0) * (self.now - 100) / 8
                counters[port.number] = Counters(int(received + more), int(sent), self.now)
            super().tell(events.PortStatistics(counters))
        return messages

    def _count(self, port: int) -> list[float]:
        return self._carried.setdefault(port, [0, 0])

    def _packet_out(self, message: PacketOut) -> None:
        (action,) = message.actions
        if isinstance(action, Output):
            self._count(action.port)[1] += len(message.data)
        super()._packet_out(message)

    def _reflect(self, port: int, packet: packets.Ip) -> None:
        size = len(packet.payload) + {4: 28, 6: 48}[6 if ":" in packet.source else 4]
        if packet.target_port == 0x7278:
            self.asked.append((self.now, port, size))
            if port in self.losing:
                return
        at = self.now
        for way in ("out", "back"):
            begin = max(at, self._free.get((port, way), 0.0))
            self._free[port, way] = begin + 8 * size / self.bps[port]
            at = self._free[port, way] + self.delay_s
        macs, ends = (packet.target_mac, packet.source_mac), (packet.target, packet.source)
        frame = packets.echo_request(macs, ends, packet.target_port, packet.payload)
        heapq.heappush(self._coming, (at, len(self._coming), port, frame))

    def report(self) -> dict[str, dict[str, object]]:
        return dict(self.policy.report(self.state, self.now))


def _config(
    directory: Path, probe: str, uplink: str = "", versions: tuple[int, ...] = (4,)
) -> Config:
    """Two uplinks without weights; `uplink` is for the second."""
    path = balance(directory, versions=versions).path
    text = path.read_text().replace("weight = 3\n", "").replace("weight = 1\n", f"{uplink}\n")
    return write(directory, f"{text}[probe]\n{probe}\n")


@pytest.mark.parametrize("method", ["train", "vps"])
@pytest.mark.parametrize("versions", [(4,), (6,), (4, 6)])
def test_idle_uplinks_are_estimated_and_share_by_it(
    tmp_path: Path, method: str, versions: tuple[int, ...]
) -> None:
    config = _config(tmp_path, f'capacity = "{method}"', versions=versions)
    links = Links(config, {2: 40 * MBIT, 3: 10 * MBIT})
    links.run(60)
    report = links.report()
    assert report["capacity_mbit"] == pytest.approx({"w0": 40, "w1": 10}, rel=0.02)
    assert report["capacity_source"] == {"w0": method, "w1": method}
    assert report["weights"] == pytest.approx({"w0": 40, "w1": 10}, rel=0.02)
    assert {size for _, _, size in links.asked} <= {PACKET_BYTES, *several_sizes()}
    # Never two at a time: they would disturb each other in the switch.
    began = [(at, port) for at, port, _ in links.asked]
    assert all(a == b or later - at > 0.01 for (at, a), (later, b) in pairwise(began))


def test_the_slower_direction_of_one_uplink_does_not_take_it_for_dead(tmp_path: Path) -> None:
    """A train of 24 kB holds up what liveness asks by more than `down_after_ms`."""
    links = Links(_config(tmp_path, 'capacity = "train"'), {2: 0.12 * MBIT, 3: 10 * MBIT})
    ups = []
    for _ in range(60):
        links.run(0.5)
        ups.append([row["usable"] for row in links.policy.report(links.state, 0)["uplinks"]])
    assert links.report()["capacity_mbit"]["w0"] == pytest.approx(0.12, rel=0.06)
    assert all(used for row in ups[2:] for used in row)


def test_nothing_is_sent_unless_asked_for_or_where_the_capacity_is_given(tmp_path: Path) -> None:
    rates = {2: 10 * MBIT, 3: 10 * MBIT}
    for probe in ("", 'capacity = "none"'):
        links = Links(_config(tmp_path, probe), rates)
        links.run(20)
        assert links.asked == []
        assert links.report()["capacity_source"] == {"w0": "assumed", "w1": "assumed"}
    for given_one in ("weight = 2", "rate_mbit = 5"):
        links = Links(_config(tmp_path, 'capacity = "train"', given_one), rates)
        links.run(20)
        assert {port for _, port, _ in links.asked} == {2}


def test_an_uplink_is_not_probed_while_it_is_busy_and_carried_more_counts(tmp_path: Path) -> None:
    links = Links(_config(tmp_path, 'capacity = "train"'), {2: 10 * MBIT, 3: 10 * MBIT})
    links.others_bps = {2: 3 * MBIT, 3: 0.02 * MBIT}
    links.run(20)
    assert {port for _, port, _ in links.asked} == {3}
    # What has carried 3 Mbit/s may carry more: who was never seen full counts as the fastest.
    assert links.report()["capacity_source"] == {"w0": "assumed", "w1": "train"}
    links.others_bps[3] = 15 * MBIT
    links.run(3)
    assert links.report()["capacity_source"]["w1"] == "carried"
    mbit = links.report()["capacity_mbit"]
    assert mbit["w0"] == mbit["w1"]
    assert all(isinstance(value, float) and value > 14 for value in mbit.values())


def test_what_is_lost_makes_no_estimate_and_is_not_asked_for_ever(tmp_path: Path) -> None:
    links = Links(_config(tmp_path, 'capacity = "train"'), {2: 10 * MBIT, 3: 10 * MBIT})
    links.losing = {2}
    links.run(120)
    assert links.report()["capacity_source"] == {"w0": "assumed", "w1": "train"}
    rounds = {at for at, port, _ in links.asked if port == 2}
    assert len(rounds) == 3 * ROUNDS


def test_probing_goes_on_at_its_interval_and_begins_anew_with_a_new_link(tmp_path: Path) -> None:
    config = _config(tmp_path, 'capacity = "train"\ncapacity_interval_s = 30', "weight = 1")
    links = Links(config, {2: 10 * MBIT, 3: MBIT})
    links.run(20)
    first = {at for at, _, _ in links.asked}
    assert len(first) == ROUNDS
    links.bps[2] = 20 * MBIT
    links.run(100)
    assert len({at for at, _, _ in links.asked} - first) == 3
    assert links.report()["capacity_mbit"]["w0"] == pytest.approx(20, rel=0.02)
    port = events.Port(2, "w0", uplink_mac(0), True)
    links.tell(events.PortChanged(port))
    assert links.report()["capacity_source"]["w0"] == "train", "nothing has changed"
    for live in (False, True):
        links.tell(events.PortChanged(replace(port, live=live)))
    assert links.report()["capacity_source"]["w0"] != "train"
    links.bps[2] = 5 * MBIT
    links.run(20)
    assert links.report()["capacity_mbit"]["w0"] == pytest.approx(5, rel=0.02)


def test_a_switch_that_goes_ends_the_round(tmp_path: Path) -> None:
    links = Links(_config(tmp_path, 'capacity = "vps"'), {2: 10 * MBIT, 3: 10 * MBIT})
    links.run(6)
    assert links.state.probing.round is not None
    links.tell(events.Disconnected())
    assert links.state.probing.round is None
    asked = len(links.asked)
    links.run(5)
    assert len(links.asked) == asked


def test_probes_of_the_capacity_are_nothing_that_was_carried() -> None:
    meter = sampled(Meter(), Counters(0, 0, 10), 0)
    meter = probed(meter, 20_000, 24_000)
    meter = sampled(meter, Counters(20_500, 24_100, 11), 1)
    assert meter.capacity.present_bps == 4_000
    meter = sampled(meter, Counters(30_500, 24_100, 12), 2)
    assert meter.capacity.present_bps == meter.capacity.carried_bps == 80_000
    assert meter.is_idle
    # A slow link may be slower than what is assumed of one that nobody probed.
    assert assumed([estimated(meter, 3e5).capacity]) == [3e5]


def test_a_packet_says_when_it_was_read() -> None:
    oxm = struct.pack("!HHII4x", 1, 12, 0x8000_0004, 3)
    body = struct.pack("!IHBBQ", 0xFFFF_FFFF, 4, 0, 0, 5) + oxm + bytes(2) + b"data"
    before = time.monotonic()
    event = codec.packet_in(struct.pack("!BBHI", 4, 10, 8 + len(body), 1) + body)
    assert event.arrived_s is not None
    assert before <= event.arrived_s <= time.monotonic()


def test_the_keys_are_for_balance_and_checked(tmp_path: Path) -> None:
    for key in ('capacity = "train"', "capacity_interval_s = 60"):
        with pytest.raises(ConfigError, match=r"probe\.capacity.*: is for mode"):
            bicast(tmp_path, probe=key)
    with pytest.raises(ConfigError, match=r'probe\.capacity: .*did you mean "train"'):
        _config(tmp_path, 'capacity = "trains"')
    with pytest.raises(ConfigError, match=r"probe\.capacity_interval_s: 1 is out of range"):
        _config(tmp_path, "capacity_interval_s = 1")
    assert _config(tmp_path, "").probe.capacity == "none"
    for name in METHODS:
        assert _config(tmp_path, f'capacity = "{name}"').probe.capacity == name


def test_status_and_metrics_tell_the_estimate_and_its_source(tmp_path: Path) -> None:
    links = Links(_config(tmp_path, 'capacity = "train"', "", (4, 6)), {2: 4 * MBIT, 3: MBIT})
    links.run(30)
    report = {**links.report(), "counters": {}}
    assert links.report()["capacity_probed_mbit"]["w0"] == pytest.approx([4.0] * 5, rel=0.02)
    _, *rows = status.lines(report)
    assert [row.endswith("Mbit/s (train)") for row in rows] == [True, False, True, False]
    found = report["capacity_mbit"]["w0"]
    line = f'ropewalk_sdn_uplink_capacity_mbit{{uplink="w0",source="train"}} {found:g}\n'
    assert line in api.metrics(report)
