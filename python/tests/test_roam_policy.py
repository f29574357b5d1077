"""The policy of roaming against switches that only remember."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roam_parts import HOST_MAC, MAC, Network, configuration, data_frame, over_ipv6, sequences

from ropewalk.sdn import api
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import At
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    IN_PORT,
    AskMeterStatistics,
    Meter,
    Output,
    Program,
    Resubmit,
)
from ropewalk.sdn.reader import ConfigError
from ropewalk.sdn.roam import config, frames, policy, program, topology
from ropewalk.sdn.roam.buffers import REPLAY_FIRST, REPLAY_MAX, Buffers
from ropewalk.sdn.roam.config import Bounds, Link
from ropewalk.sdn.roam.events import Notice, Release
from ropewalk.sdn.roam.state import report


@pytest.fixture
def network(tmp_path: Path) -> Network:
    network = Network(tmp_path)
    network.host()
    network.join("ap1")
    network.sent.clear()
    return network


def test_ways_lead_to_the_access_point_and_turn_round_elsewhere(network: Network) -> None:
    assert network.outputs("s1")[f"eth_dst={MAC}"] == (Output(2),)
    network.leave("ap1")
    for name in ("s1", "ap1", "ap2"):
        assert network.outputs(name)[f"eth_dst={MAC}"][-1] == Output(
            CONTROLLER, program.WHOLE_PACKET
        )
    network.join("ap2")
    assert network.outputs("s1")[f"eth_dst={MAC}"] == (Output(3),)
    assert network.outputs("ap1")[f"eth_dst={MAC}"] == (Output(2),)
    # What is still on its way to the old access point comes back out of its only link.
    assert network.outputs("ap1")[f"eth_dst={MAC},in_port=2"] == (Output(IN_PORT),)
    assert network.outputs("ap2")[f"eth_dst={MAC}"] == (Output(1), Resubmit(program.COPY))


def test_late_leaving_of_the_old_access_point_is_stale(network: Network) -> None:
    network.join("ap2")
    assert network.counter("left_by_joining") == 1
    before = dict(network.programs)
    network.leave("ap1")
    assert network.counter("stale_events") == 1
    assert network.programs == before
    network.leave("ap2")
    assert network.counter("left") == 1


def test_port_that_goes_down_means_leaving(network: Network) -> None:
    port = events.Port(1, "air1", "0a:00:00:00:00:01", False)
    network.tell(At("ap1", events.PortChanged(port)))
    assert network.counter("left") == 1
    network.tell(At("ap1", events.PortChanged(port, gone=True)))
    assert network.counter("left") == 1


def test_announcement_moves_at_once_and_a_late_frame_does_not(network: Network) -> None:
    network.now = 10.0
    network.packet("ap2", program.CLASSIFY, frames.xid(MAC))
    assert network.state.table.by_mac[MAC].place.switch == "ap2"
    network.now = 10.2
    network.packet("ap1", program.CLASSIFY, data_frame(5, 0, reverse=True))
    assert network.state.table.by_mac[MAC].place.switch == "ap2"
    assert network.counter("stale_frames") == 1


def test_host_is_not_taken_over_by_a_station(network: Network) -> None:
    network.packet("ap1", program.CLASSIFY, frames.xid(HOST_MAC))
    assert network.state.table.by_mac[HOST_MAC].place.switch == "s1"


def test_what_died_and_what_was_kept_goes_in_order(network: Network) -> None:
    for sequence in (1000, 1100, 1200):
        network.packet("ap1", program.COPY, data_frame(sequence, 100))
    answer = data_frame(9000, 0, flags=0x10, acknowledged=1100, reverse=True)
    network.packet("ap1", program.ANSWER, answer)
    network.leave("ap1")
    network.packet("s1", program.FORWARD, data_frame(1300, 100))
    network.packet("s1", program.FORWARD, data_frame(1100, 100, stamp=500))
    assert network.sent == []
    packets = network.join("ap2")
    assert [name for name, _ in packets] == ["ap2"] * 3
    assert sequences(packets) == [1100, 1200, 1300]


def test_segments_over_ipv6_are_kept_and_acknowledged_alike(network: Network) -> None:
    for sequence in (1000, 1100):
        network.packet("ap1", program.COPY, over_ipv6(data_frame(sequence, 100)))
    answer = data_frame(9000, 0, flags=0x10, acknowledged=1100, reverse=True)
    network.packet("ap1", program.ANSWER, over_ipv6(answer))
    network.leave("ap1")
    network.packet("s1", program.FORWARD, over_ipv6(data_frame(1200, 100)))
    assert sequences(network.join("ap2")) == [1100, 1200]


@pytest.mark.parametrize(
    ("echoed", "expected"),
    [
        # Nothing is known of the station: older segments are made as new as the repetition.
        (None, [900, 900, 910]),
        # The repetition keeps its own, because its first transmission was lost.
        (250, [900, 900, 910]),
        # The station has gone beyond the repetition.
        (905, [905, 905, 910]),
    ],
)
def test_stamps_never_fall_along_the_sequence(
    network: Network, echoed: int | None, expected: list[int]
) -> None:
    """PAWS would drop the older segments behind a repetition (RFC 7323 section 5.3)."""
    if echoed is not None:
        network.packet("ap1", program.COPY, data_frame(1800, 100, stamp=echoed))
        answer = data_frame(9000, 0, flags=0x10, acknowledged=1900, echo=echoed, reverse=True)
        network.packet("ap1", program.ANSWER, answer)
    network.leave("ap1")
    network.packet("s1", program.FORWARD, data_frame(2000, 100, stamp=300))
    network.packet("s1", program.FORWARD, data_frame(2100, 100, stamp=910))
    network.packet("s1", program.FORWARD, data_frame(1900, 100, stamp=900))
    stamps = [
        segment.stamp for _, packet in network.join("ap2") if (segment := frames.parse(packet.data))
    ]
    assert stamps == expected


def test_segment_is_kept_until_acknowledged_and_replayed_at_the_next_move(
    network: Network,
) -> None:
    network.leave("ap1")
    network.packet("s1", program.FORWARD, data_frame(1000, 100))
    assert sequences(network.join("ap2")) == [1000]
    network.leave("ap2")
    assert sequences(network.join("ap1")) == [1000]
    answer = data_frame(9000, 0, flags=0x10, acknowledged=1100, reverse=True)
    network.packet("ap1", program.ANSWER, answer)
    network.leave("ap1")
    assert sequences(network.join("ap2")) == []


def test_acknowledgement_that_waits_to_be_read_spares_a_repetition(network: Network) -> None:
    network.packet("ap1", program.COPY, data_frame(1000, 100))
    network.packet("ap1", program.COPY, data_frame(1100, 100))
    network.leave("ap1")
    network.state, _ = policy.step(network.state, Notice("ap2", "air2", MAC, True), 1.0)
    assert list(network.state.asked) == [MAC]
    answer = data_frame(9000, 0, flags=0x10, acknowledged=1100, reverse=True)
    network.packet("ap1", program.ANSWER, answer)
    assert list(network.state.asked) == [], "asked once"
    network.tell(Release(MAC))
    assert sequences(network.sent) == [1100]


def test_controller_that_is_behind_does_not_wait(network: Network) -> None:
    network.leave("ap1")
    network.packet("s1", program.FORWARD, data_frame(1000, 100))
    network.state, _ = policy.step(network.state, Notice("ap2", "air2", MAC, True), 1.0)
    network.now = 1.0 + 2 * policy.RELEASE_S
    assert sequences(network.tell(events.Tick())) == [1000]


def test_packet_that_comes_after_the_station_is_sent_on(network: Network) -> None:
    network.leave("ap1")
    network.join("ap2")
    packets = network.packet("s1", program.FORWARD, data_frame(1000, 10))
    assert [(name, packet.actions) for name, packet in packets] == [("ap2", (Output(1),))]


@pytest.mark.parametrize("scheme", ["bare", "zwa", "zwa-adaptive"])
def test_published_schemes_copy_nothing_while_the_station_is_there(
    tmp_path: Path, scheme: str
) -> None:
    network = Network(tmp_path, scheme)
    network.join("ap1")
    given = network.outputs("ap1")[f"eth_dst={MAC}"]
    assert given[-1] == Output(1)
    # The paper's whole scheme counts what the station is given.
    assert len(given) == (2 if scheme == "zwa-adaptive" else 1)
    network.leave("ap1")
    actions = network.outputs("ap1")[f"eth_dst={MAC}"]
    # Without a count from the moment of leaving nobody knows what died.
    assert bool(actions) == (scheme == "zwa")


def test_zero_window_mode_acknowledges_and_sends_once(tmp_path: Path) -> None:
    network = Network(tmp_path, "zwa")
    network.host()
    network.join("ap1")
    network.leave("ap1")
    answers = network.packet("s1", program.FORWARD, data_frame(1000, 100))
    assert [packet.actions for _, packet in answers] == [(Resubmit(program.FORWARD),)]
    parsed = frames.parse(answers[0][1].data)
    assert parsed and parsed.acknowledged == 1100
    assert sequences(network.join("ap2")) == [1000]
    network.leave("ap2")
    assert network.join("ap1") == []


def test_zero_window_mode_acknowledges_nothing_it_has_no_room_for(tmp_path: Path) -> None:
    network = Network(tmp_path, "zwa", "[bounds]\nstation_packets = 1\n")
    network.host()
    network.join("ap1")
    network.leave("ap1")
    assert len(network.packet("s1", program.FORWARD, data_frame(1000, 100))) == 1
    assert network.packet("s1", program.FORWARD, data_frame(1100, 100)) == []
    # A repetition of what is kept, or a probe, is answered again.
    assert len(network.packet("s1", program.FORWARD, data_frame(1000, 100))) == 1
    assert len(network.packet("s1", program.FORWARD, data_frame(1099, 0))) == 1
    assert network.counter("overflowed") == 1


def _asked(network: Network) -> list[tuple[str, int]]:
    """The meters that a tick asks for, by switch."""
    network.now += 0.1
    network.state, out = policy.step(network.state, events.Tick(), network.now)
    return [
        (name, message.number) for name, message in out if isinstance(message, AskMeterStatistics)
    ]


@pytest.mark.parametrize(("counted", "freezes"), [(700, True), (900, False)])
def test_adaptive_mode_freezes_only_when_nothing_died(
    tmp_path: Path, counted: int, freezes: bool
) -> None:
    network = Network(tmp_path, "zwa-adaptive")
    network.host()
    network.join("ap1")
    ((_, meter),) = [(n, a) for n in ("ap1",) for a in network.outputs(n)[f"eth_dst={MAC}"][:1]]
    assert isinstance(meter, Meter)
    network.leave("ap1", given=700)
    assert network.packet("s1", program.FORWARD, data_frame(1000, 100)) == []
    assert _asked(network) == [("ap1", meter.number)]
    assert _asked(network) == [], "asked once"
    told = events.MeterStatistics(meter.number, 0, counted)
    # The counts of switches on the way say nothing of what died at the access point.
    assert network.tell(At("s1", told)) == []
    answers = network.tell(At("ap1", told))
    assert len(answers) == freezes
    assert bool(network.outputs("ap1")[f"eth_dst={MAC}"]) == freezes
    assert sequences(network.join("ap2")) == ([1000] if freezes else [])


def test_counts_that_agree_do_not_show_a_segment_that_was_lost_on_its_way(tmp_path: Path) -> None:
    """Why the published scheme is not safe, however fresh its counters are.

    A queue has dropped bytes 1000 to 1099 before the station leaves, and the next segment comes
    when it has left: the access point was given nothing in between. The zero window for that
    segment acknowledges what nobody has, and its sender will not send that again.
    """
    network = Network(tmp_path, "zwa-adaptive")
    network.host()
    network.join("ap1")
    network.leave("ap1", given=700)
    network.packet("s1", program.FORWARD, data_frame(1100, 100))
    ((name, number),) = _asked(network)
    ((_, answer),) = network.tell(At(name, events.MeterStatistics(number, 0, 700)))
    parsed = frames.parse(answer.data)
    assert parsed and parsed.acknowledged == 1200
    assert sequences(network.join("ap2")) == [1100]


def test_replay_acknowledges_nothing_that_was_lost_on_its_way(network: Network) -> None:
    network.leave("ap1")
    assert network.packet("s1", program.FORWARD, data_frame(1100, 100)) == []
    assert sequences(network.join("ap2")) == [1100]
    # The sender still has what is lacking, and sends it when the station asks for it.
    again = network.packet("s1", program.FORWARD, data_frame(1000, 100))
    assert sequences(again) == [1000]


def test_restarted_controller_knows_stations_by_their_flows(network: Network) -> None:
    before = dict(network.programs)
    network.restart()
    for name in ("s1", "ap2", "ap1"):
        network.connect(name)
        assert f"eth_dst={MAC}" in network.outputs("s1")
    assert network.programs == before
    assert network.state.table.by_mac[HOST_MAC].place.fixed


def test_installed_program_needs_no_mending(network: Network) -> None:
    for name, present in network.programs.items():
        network.tell(At(name, events.Present(present)))
    assert network.counter("mended") == 0
    network.tell(At("s1", events.Present(program_without(network, "s1"))))
    assert network.counter("mended") > 0


def program_without(network: Network, name: str) -> Program:
    flows = network.programs[name].flows
    return Program(frozenset(flow for flow in flows if flow.table != program.FORWARD))


def test_every_way_to_the_controller_has_a_meter(network: Network) -> None:
    network.leave("ap1")
    for present in network.programs.values():
        for flow in present.flows:
            asks = any(
                isinstance(action, Output) and action.port == CONTROLLER for action in flow.actions
            )
            assert not asks or isinstance(flow.actions[0], Meter)


def test_unknown_senders_are_bounded_and_displace_no_station(tmp_path: Path) -> None:
    network = Network(tmp_path, extra="[bounds]\nport_stations = 8\n")
    network.join("ap1")
    for number in range(5000):
        network.now += 0.02
        source = f"06:00:00:00:{number >> 8:02x}:{number & 255:02x}"
        network.packet("ap1", program.CLASSIFY, frames.xid(source))
    assert len(network.state.table.by_mac) <= 9
    assert network.state.table.by_mac[MAC].here
    assert network.counter("stations_refused") > 4000


def test_packets_that_are_not_tcp_are_sent_to_the_last_one() -> None:
    buffers = Buffers(Bounds())
    sent = [bytes([number]) * 60 for number in range(100)]
    assert all(buffers.add("a", frame, None, 0.0, away=True) for frame in sent)
    found, now = buffers.begin("a", 0.0), 0.0
    while len(found) < len(sent) and now < 10:
        now += 0.1
        buffers.passed(now)
        for station in buffers.stalled():
            found += buffers.more(station)
    assert found == sent
    buffers.passed(now + 0.1)
    assert buffers.bytes == 0 and buffers.packets("a") == 0


def test_buffers_keep_within_their_bounds() -> None:
    bounds = Bounds(station_bytes=10_000, station_packets=20, all_bytes=15_000)
    buffers = Buffers(bounds)
    for station in ("a", "b", "c"):
        for sequence in range(0, 50_000, 500):
            frame = data_frame(sequence, 500)
            buffers.add(station, frame, frames.parse(frame), 0.0, away=station == "a")
    assert buffers.bytes <= 15_000
    assert max(buffers.packets(station) for station in "abc") <= 20
    assert buffers.counters["overflowed"] and buffers.counters["overwritten"]
    # While it is away the first are kept, for its receiver needs them first.
    first = frames.parse(buffers.released("a", 0.0)[0])
    assert first and first.sequence == 0
    buffers.passed(1e6)
    assert buffers.bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ap1", "ap2", "s1", "nowhere"]),
            st.integers(0, 4),
            st.one_of(
                st.binary(max_size=80),
                st.builds(data_frame, st.integers(0, 2**32 - 1), st.integers(0, 20)),
                st.booleans(),
            ),
        ),
        max_size=30,
    )
)
def test_no_order_of_events_raises_or_leaves_two_places(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, int, bytes | bool]],
) -> None:
    network = Network(tmp_path_factory.mktemp("roam"))
    for name, table, what in rows:
        network.now += 0.3
        if isinstance(what, bool):
            network.tell(Notice(name, f"air{name[-1]}", MAC, what))
        else:
            network.packet(name, table, what)
        places = [
            switch
            for switch, present in network.programs.items()
            for flow in present.flows
            if (flow.table, flow.priority) == (0, 200) and ("eth_src", MAC) in flow.match
        ]
        assert len(places) <= 1


def test_ways_are_shortest_and_the_tree_has_no_circle() -> None:
    links = [
        Link(("a", "ab"), ("b", "ba"), 1),
        Link(("b", "bc"), ("c", "cb"), 1),
        Link(("a", "ac"), ("c", "ca"), 5),
    ]
    assert topology.ways(links, "c") == {"b": "bc", "a": "ab"}
    assert topology.tree(links) == {("a", "ab"), ("b", "ba"), ("b", "bc"), ("c", "cb")}
    assert topology.ways(links[1:], "c") == {"b": "bc", "a": "ac"}


def test_wrong_configurations_name_place_and_remedy(tmp_path: Path) -> None:
    assert configuration(tmp_path).switch("ap1")
    path = tmp_path / "roam.toml"
    path.write_text(
        'mode = "roam"\n[roam]\nscheme = "replai"\nnotices = "x"\n'
        '[[switch]]\nname = "a"\ndatapath_id = "1"\n'
        'access = ["p", "p"]\n[[link]]\na = "a:q"\nb = "b:r"\n[bounds]\nage_s = 0\nnew_pers = 1\n'
    )
    with pytest.raises(ConfigError) as caught:
        config.read(path)
    for part in (
        "roam.scheme",
        "replay",
        "roam.notices",
        "datapath_id",
        "used twice",
        "link[1].b",
        "age_s",
    ):
        assert part in str(caught.value)
    assert "did you mean new_per_s?" in str(caught.value)


def test_metrics_tell_stations_and_counters(network: Network) -> None:
    network.leave("ap1")
    text = api.metrics(report(network.state, 0.0))
    assert "# TYPE ropewalk_sdn_stations gauge\nropewalk_sdn_stations 2\n" in text
    assert "ropewalk_sdn_stations_away 1\n" in text
    assert "# TYPE ropewalk_sdn_left_total counter\nropewalk_sdn_left_total 1\n" in text


def _acknowledge(network: Network, acknowledged: int, *selected: tuple[int, int]) -> list[int]:
    """The station acknowledges; the sequence numbers that are sent to it for that."""
    answer = data_frame(
        9000, 0, flags=0x10, acknowledged=acknowledged, reverse=True, selected=selected
    )
    return sequences(network.packet("ap2", program.ANSWER, answer))


def test_what_was_kept_is_sent_at_the_pace_of_the_stations_acknowledgements(
    network: Network,
) -> None:
    network.leave("ap1")
    numbers = [1000 + 100 * number for number in range(2000)]
    for sequence in numbers:
        network.packet("s1", program.FORWARD, data_frame(sequence, 100))
    sent = sequences(network.join("ap2"))
    assert len(sent) == REPLAY_FIRST
    taken = 0
    while len(sent) < len(numbers):
        # The station acknowledges every second segment.
        taken += 2
        more = _acknowledge(network, numbers[taken - 1] + 100)
        assert 2 <= len(more) <= 4
        sent += more
        assert len(sent) - taken <= REPLAY_MAX
    assert sent == numbers
    assert len(sent) - taken > REPLAY_MAX // 2, "it never got up to its pace"


def test_segments_that_were_kept_out_of_order_do_not_slow_the_pace(network: Network) -> None:
    """What is under way comes from the switch next to the sender first, then from the others."""
    network.leave("ap1")
    late = [1000 + 100 * number for number in range(40)]
    early = [5000 + 100 * number for number in range(40)]
    for name, numbers in (("s1", early), ("ap1", late)):
        for sequence in numbers:
            network.packet(name, program.FORWARD, data_frame(sequence, 100))
    sent = sequences(network.join("ap2"))
    while len(sent) < 80:
        more = _acknowledge(network, sent[-1] + 100)
        assert more
        sent += more
    assert sent == late + early


def test_station_with_a_hole_sets_the_pace_by_what_it_selects(network: Network) -> None:
    """The first segment was lost on its way, and nobody but its sender has that."""
    for sequence in (900, 1200, 1300, 2500):
        network.packet("ap1", program.COPY, data_frame(sequence, 100))
    _acknowledge(network, 1000, (1200, 1400))
    network.leave("ap1")
    numbers = [1400 + 100 * number for number in range(60)]
    for sequence in numbers:
        network.packet("s1", program.FORWARD, data_frame(sequence, 100))
    # What the station has selected is not sent again.
    sent = sequences(network.join("ap2"))
    assert sent == numbers[:REPLAY_FIRST]
    # One answer for all: a receiver that gathers segments repeats itself once.
    more = _acknowledge(network, 1000, (1200, 2400))
    assert len(more) == 2 * REPLAY_FIRST
    sent += more + _acknowledge(network, 1000, (1200, more[-1] + 100))
    assert sent == numbers


def test_station_without_selection_sets_the_pace_by_repeating_itself(network: Network) -> None:
    network.leave("ap1")
    for number in range(60):
        network.packet("s1", program.FORWARD, data_frame(1100 + 100 * number, 100))
    sent = len(sequences(network.join("ap2")))
    for _ in range(REPLAY_FIRST):
        sent += len(_acknowledge(network, 1000))
    assert sent == 3 * REPLAY_FIRST


def test_connection_that_the_station_gave_up_while_away_holds_up_no_other(
    network: Network,
) -> None:
    network.leave("ap1")
    dead = [1000 + 100 * number for number in range(500)]
    live = [200_000 + 100 * number for number in range(60)]
    for sequence in dead:
        network.packet("s1", program.FORWARD, data_frame(sequence, 100, port=40001))
    for sequence in live:
        network.packet("s1", program.FORWARD, data_frame(sequence, 100))
    sent = sequences(network.join("ap2"))
    half = REPLAY_FIRST // 2
    assert sorted(sent) == dead[:half] + live[:half]
    # Without ACK, as a station answers what it has no connection for.
    reset = data_frame(9000, 0, flags=0x04, acknowledged=0, reverse=True, port=40001)
    for _ in range(half):
        sent += sequences(network.packet("ap2", program.ANSWER, reset))
    while more := _acknowledge(network, sent[-1] + 100):
        sent += more
    assert [sequence for sequence in sent if sequence >= live[0]] == live
    # The segments that were on their way to the dead one when it answered, and not one more.
    assert len(sent) - len(live) == half
    assert network.state.buffers.packets(MAC) == 0


def test_selection_that_makes_no_sense_drops_nothing(network: Network) -> None:
    for number in range(4):
        network.packet("ap1", program.COPY, data_frame(1000 + 100 * number, 100))
    # Backwards, of parts of segments, and far away.
    _acknowledge(network, 1000, (1400, 1000), (1050, 1190), (2**31 + 1000, 2**32 - 1))
    network.leave("ap1")
    assert sequences(network.join("ap2")) == [1000, 1100, 1200, 1300]


def test_replay_goes_on_when_no_acknowledgement_is_seen_and_skips_what_the_station_has(
    network: Network,
) -> None:
    network.leave("ap1")
    for number in range(40):
        network.packet("s1", program.FORWARD, data_frame(1000 + 100 * number, 100))
    assert len(sequences(network.join("ap2"))) == REPLAY_FIRST
    network.tell(events.Tick())
    assert sequences(network.tell(events.Tick())) == [2000 + 100 * n for n in range(REPLAY_FIRST)]
    # It had the first 35 already.
    assert _acknowledge(network, 4500) == [4500, 4600, 4700, 4800, 4900]
    network.leave("ap2")
    assert sequences(network.join("ap1")) == [4500, 4600, 4700, 4800, 4900]
