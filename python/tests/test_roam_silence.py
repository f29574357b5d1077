"""Who is forgotten because it is silent, and who has to make room."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roam_parts import HOST_MAC, MAC, PORTS, Network

from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import At
from ropewalk.sdn.openflow.program import FlowMod, Program, match
from ropewalk.sdn.roam import frames, policy, program, silence
from ropewalk.sdn.roam.events import Notice
from ropewalk.sdn.roam.silence import COUNT_S, QUIET_S, SILENT_S
from ropewalk.sdn.roam.state import Heard

FEW = "[bounds]\nport_stations = 4\n"
FULL = "[bounds]\nstations = 6\n"


def made_up(number: int) -> bytes:
    """A frame of a sender that nobody knows."""
    return frames.xid(f"06:00:00:00:{number >> 8:02x}:{number & 255:02x}")


def station(number: int) -> str:
    return f"02:00:00:00:01:{number:02x}"


def known(network: Network) -> set[str]:
    return set(network.state.table.by_mac)


def speaking(network: Network, seconds: float, *stations: tuple[str, str]) -> None:
    """Time passes; the stations say something every few seconds at their switches."""
    for _ in range(int(seconds / 10)):
        for name, mac in stations:
            network.says(name, frames.xid(mac))
        network.pass_time(10)


def test_station_that_only_frames_have_shown_is_forgotten_when_it_is_silent(
    tmp_path: Path,
) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    network.says("ap1", frames.xid(station(1)))
    network.says("ap2", frames.xid(station(1)))
    speaking(network, SILENT_S - COUNT_S, ("ap2", station(1)))
    assert known(network) == {MAC, station(1)}
    speaking(network, 3 * COUNT_S, ("ap2", station(1)))
    assert known(network) == {station(1)}
    assert network.counter("stations_forgotten") == 1
    for present in network.programs.values():
        assert MAC not in program.by_station(present.flows)
    # It comes back as anybody who is new.
    network.says("ap1", frames.xid(MAC))
    assert network.state.table.by_mac[MAC].here


def test_who_speaks_is_never_forgotten_and_counting_leaves_its_flows_alone(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    before = {name: network.outputs(name) for name in PORTS}
    speaking(network, 10 * SILENT_S, ("ap1", MAC))
    assert known(network) == {MAC}
    assert {name: network.outputs(name) for name in PORTS} == before
    assert network.counter("joined") == 1
    for name, present in network.programs.items():
        network.tell(At(name, events.Present(present)))
    assert network.counter("mended") == 0


def test_flow_that_counts_is_replaced_without_a_gap(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    for _ in range(3):
        network.now += COUNT_S
        network.state, out = policy.step(network.state, events.Tick(), network.now)
        added, removed = [message for _, message in out]
        assert isinstance(added, FlowMod) and isinstance(removed, FlowMod)
        assert (added.remove, removed.remove) == (False, True)
        assert added.tell, "the next time it would say nothing"
        assert added.flow.match == removed.flow.match
        assert added.flow.actions == removed.flow.actions
        assert {name for name, _ in out} == {"ap1"}


def test_frame_that_showed_a_station_does_not_count_as_heard_again(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    # The same again while the switch has no flow yet.
    network.packet("ap1", program.CLASSIFY, frames.xid(MAC))
    network.pass_time(COUNT_S + 1)
    assert not network.state.heard[MAC].again
    network.says("ap1", frames.xid(MAC))
    network.pass_time(COUNT_S + 1)
    assert network.state.heard[MAC].again


@pytest.mark.parametrize("scheme", ["replay", "zwa-adaptive"])
def test_told_stations_and_hosts_stay_however_silent(tmp_path: Path, scheme: str) -> None:
    network = Network(tmp_path, scheme)
    network.host()
    network.join("ap1")
    # Told after its frames had shown it.
    network.says("ap2", frames.xid(station(1)))
    network.tell(Notice("ap2", "air2", station(1), True))
    network.pass_time(10 * SILENT_S, 5)
    assert known(network) == {HOST_MAC, MAC, station(1)}
    # Its frames alone show it elsewhere: from now on it is as any other.
    network.says("ap1", frames.xid(station(1)))
    network.pass_time(SILENT_S + 2 * COUNT_S, 5)
    assert known(network) == {HOST_MAC, MAC}


def test_host_whose_address_a_station_had_used_before_stays(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(HOST_MAC))
    network.pass_time(5)
    network.host()
    assert network.state.table.by_mac[HOST_MAC].place.fixed
    network.pass_time(SILENT_S + 3 * COUNT_S, 5)
    assert known(network) == {HOST_MAC}


def test_station_that_is_away_is_kept_longer(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    network.tell(At("ap1", events.PortChanged(events.Port(1, "air1", "", False))))
    network.pass_time(policy.FORGET_S - 1, 5)
    assert known(network) == {MAC}
    network.pass_time(2)
    assert known(network) == set()


def test_nobody_is_forgotten_while_its_switch_cannot_tell(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    network.tell(At("ap1", events.Disconnected()))
    network.pass_time(10 * SILENT_S, 5)
    assert known(network) == {MAC}
    # It has spoken meanwhile, and its switch has counted that.
    network.says("ap1", frames.xid(MAC))
    network.connect("ap1")
    network.pass_time(SILENT_S - COUNT_S, 5)
    assert known(network) == {MAC}
    network.pass_time(3 * COUNT_S, 5)
    assert known(network) == set()


def test_count_of_a_place_where_it_was_says_nothing(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    network.now = 10.0
    network.says("ap2", frames.xid(MAC))
    removed = events.FlowRemoved(program.CLASSIFY, match(in_port=1, eth_src=MAC), 9, 0)
    network.now = 20.0
    network.tell(At("ap1", removed))
    elsewhere = events.FlowRemoved(program.CLASSIFY, match(in_port=2, eth_src=MAC), 9, 0)
    network.tell(At("ap2", elsewhere))
    assert network.state.heard[MAC].at_s == 10.0
    network.tell(At("ap2", removed))
    assert network.state.heard[MAC].at_s == 20.0


@pytest.mark.parametrize("extra", ["", "frames = false"])
def test_restarted_controller_forgets_by_frames_only_whom_frames_can_bring_back(
    tmp_path: Path, extra: str
) -> None:
    network = Network(tmp_path, extra=extra)
    network.host()
    network.join("ap1")
    network.restart()
    for name in PORTS:
        network.connect(name)
    network.pass_time(SILENT_S + 3 * COUNT_S, 5)
    assert known(network) == ({HOST_MAC, MAC} if extra else {HOST_MAC})


def test_restart_while_flows_are_replaced_changes_nothing_else(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    network.pass_time(COUNT_S + 1)
    before = dict(network.programs)
    network.restart()
    for name in PORTS:
        network.connect(name)
    assert network.programs == before
    # The one before was killed between the new flow and the end of the old one.
    present = network.programs["ap1"].flows
    both = present | program.turned(present, 0) | program.turned(present, 1)
    network.programs["ap1"] = Program(both)
    network.restart()
    for name in PORTS:
        network.connect(name)
    assert sum(program.counts(flow) for flow in network.programs["ap1"].flows) == 1


def test_silent_senders_do_not_keep_newcomers_out_for_ever(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FEW)
    for number in range(4):
        network.says("ap1", made_up(number))
    network.pass_time(QUIET_S - 1)
    network.says("ap1", frames.xid(MAC))
    assert MAC not in known(network)
    assert network.counter("stations_refused") == 1
    network.pass_time(2)
    # The first frame has the longest unheard asked about, the next finds room.
    network.says("ap1", frames.xid(MAC))
    assert made_up(0)[6:12].hex(":") not in known(network)
    network.says("ap1", frames.xid(MAC))
    assert network.state.table.by_mac[MAC].here
    assert len(known(network)) == 4


def test_newcomers_do_not_evict_each_other(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FEW)
    for number in range(3):
        network.says("ap1", made_up(number))
    for number in range(10):
        network.says("ap1", frames.xid(station(number)))
        network.pass_time(1)
    assert station(0) in known(network)
    assert not known(network) & {station(number) for number in range(1, 10)}


def test_who_has_been_unheard_the_longest_makes_room(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FEW)
    for number in range(4):
        network.says("ap1", frames.xid(station(number)))
    speaking(network, COUNT_S + 10, *[("ap1", station(number)) for number in range(4)])
    # From the last to the first they fall silent.
    for count in (3, 2, 1):
        speaking(network, COUNT_S + 10, *[("ap1", station(number)) for number in range(count)])
    speaking(network, QUIET_S, ("ap1", station(0)))
    network.says("ap1", frames.xid(MAC))
    assert known(network) == {station(number) for number in range(3)}
    network.says("ap1", frames.xid(MAC))
    assert known(network) == {MAC, *(station(number) for number in range(3))}


def test_who_has_spoken_a_moment_ago_stays_although_nobody_knew(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FEW)
    for number in range(4):
        network.says("ap1", frames.xid(station(number)))
    speaking(network, COUNT_S + 10, *[("ap1", station(number)) for number in range(4)])
    network.pass_time(QUIET_S + COUNT_S)
    network.says("ap1", frames.xid(station(0)))
    network.says("ap1", frames.xid(MAC))
    network.says("ap1", frames.xid(MAC))
    assert station(0) in known(network)
    assert station(1) not in known(network)


def test_each_newcomer_has_another_one_asked_about_and_none_that_is_no_flood(
    tmp_path: Path,
) -> None:
    network = Network(tmp_path, extra=FEW)
    for number in (1, 2):
        network.says("ap1", frames.xid(station(number)))
    speaking(network, COUNT_S + 10, ("ap1", station(1)), ("ap1", station(2)))
    for number in (3, 4):
        network.says("ap1", frames.xid(station(number)))
    network.pass_time(QUIET_S + COUNT_S)
    asked = set()
    for number in range(4):
        newcomer = events.PacketIn(1, program.CLASSIFY, made_up(number), 60)
        # The switch has not answered yet.
        network.state, out = policy.step(network.state, At("ap1", newcomer), network.now)
        asked |= {
            dict(message.flow.match)["eth_src"]
            for _, message in out
            if isinstance(message, FlowMod)
        }
    assert asked == {station(3), station(4)}


def test_flow_that_was_lost_counts_again(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.says("ap1", frames.xid(MAC))
    _, out = policy.step(network.state, At("ap1", events.Present(Program())), network.now)
    counting = [
        message
        for _, message in out
        if isinstance(message, FlowMod) and program.counts(message.flow)
    ]
    assert [message.tell for message in counting] == [True]


def test_who_was_there_before_a_flood_stays_although_it_says_little(tmp_path: Path) -> None:
    """Made-up senders make room for made-up senders."""
    network = Network(tmp_path, extra=FEW)
    for number in (1, 2):
        network.says("ap1", frames.xid(station(number)))
    network.pass_time(5)
    for number in (1, 2):
        network.says("ap1", frames.xid(station(number)))
    network.pass_time(COUNT_S)
    for number in range(2000):
        network.says("ap1", made_up(number))
        network.pass_time(0.1, 0.1)
    assert {station(1), station(2)} <= known(network)
    assert len(known(network)) == 4
    assert network.counter("stations_forgotten") > 3


def test_steady_flood_leaves_newcomers_a_share(tmp_path: Path) -> None:
    """Five made-up senders a second, of whom two may come in."""
    network = Network(tmp_path, extra="[bounds]\nport_stations = 1000\n")
    for number in range(500):
        network.says("ap1", made_up(number))
        network.pass_time(0.2, 0.2)
    for number in range(500, 600):
        network.says("ap1", made_up(number))
        network.pass_time(0.13, 0.13)
        network.says("ap1", frames.xid(MAC))
        network.pass_time(0.07, 0.07)
    assert MAC in known(network)


def test_full_table_takes_whom_an_access_point_tells_at_once(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FULL)
    network.host()
    for number in (1, 2):
        network.says("ap1", frames.xid(station(number)))
    speaking(network, 2 * COUNT_S, ("ap1", station(1)), ("ap1", station(2)))
    for number in range(3):
        network.now += 0.1
        network.says("ap2", made_up(number))
    for number in range(3):
        network.tell(Notice("ap1", "air1", station(10 + number), True))
        assert station(10 + number) in known(network)
    assert known(network) == {HOST_MAC, *map(station, (1, 2, 10, 11, 12))}
    for number in range(3):
        network.tell(Notice("ap1", "air1", station(20 + number), True))
    # Beyond those that frames have shown nobody goes.
    assert {HOST_MAC, *map(station, (10, 11, 12, 20, 21))} == known(network)
    assert network.counter("stations_refused") == 1


def test_full_table_takes_a_host_when_somebody_is_silent(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FULL)
    for number in range(6):
        network.says("ap1", made_up(number))
    network.host()
    assert HOST_MAC not in known(network)
    network.pass_time(QUIET_S + 1)
    network.host()
    network.host()
    assert network.state.table.by_mac[HOST_MAC].place.fixed
    assert len(known(network)) == 6


def test_made_up_hosts_leave_room_for_stations(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FULL)
    network.says("ap1", frames.xid(MAC))
    network.says("ap1", frames.xid(MAC))
    for number in range(40):
        network.packet("s1", program.CLASSIFY, made_up(number))
        network.pass_time(1)
    hosts = [one for one in network.state.table.by_mac.values() if one.place.fixed]
    assert len(hosts) == 3
    assert MAC in known(network)
    network.tell(Notice("ap2", "air2", station(1), True))
    network.says("ap2", frames.xid(station(2)))
    assert {MAC, station(1), station(2)} <= known(network)


def test_told_stations_do_not_count_as_known_by_their_frames(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FEW)
    for number in range(10):
        network.tell(Notice("ap1", "air1", station(number), True))
    network.says("ap1", frames.xid(MAC))
    assert MAC in known(network)


def test_who_is_away_makes_room_without_being_asked_about(tmp_path: Path) -> None:
    network = Network(tmp_path, extra=FULL)
    for number in range(6):
        network.says("ap1", made_up(number))
    network.pass_time(QUIET_S / 2)
    network.tell(At("ap1", events.PortChanged(events.Port(1, "air1", "", False))))
    network.pass_time(QUIET_S - 1)
    network.says("ap2", frames.xid(MAC))
    assert MAC not in known(network)
    network.pass_time(2)
    network.says("ap2", frames.xid(MAC))
    assert MAC in known(network)


def test_counts_of_many_stations_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    network = Network(tmp_path, extra="[bounds]\nport_stations = 1000\n")
    count = 150
    for number in range(count):
        network.now += 0.51
        network.says("ap1", made_up(number))
    assert len(known(network)) == count
    network.state.round_s = network.now
    network.now += COUNT_S
    asked, ticks = 0, 0
    while not ticks or network.state.rota:
        network.state, out = policy.step(network.state, events.Tick(), network.now)
        # No more in one go than what delays a handover by some milliseconds.
        assert len(out) <= 2 * silence.COUNT_MAX
        asked += len(out) // 2
        ticks += 1
    assert (asked, ticks) == (count, -(-count // silence.COUNT_MAX))


def test_ten_thousand_stations_are_kept_up_with(tmp_path: Path) -> None:
    """A hundred times faster than needed here, so that a slow machine does not fail."""
    network = Network(tmp_path)
    count = 10_000
    for number in range(count):
        mac = made_up(number)[6:12].hex(":")
        network.state.heard[mac] = Heard(0.0, again=True)
    removed = events.FlowRemoved(
        program.CLASSIFY, (("eth_src", made_up(7)[6:12].hex(":")), ("in_port", 1)), 1, 0
    )
    began = time.process_time()
    for _ in range(count):
        network.state, _ = policy.step(network.state, At("ap1", removed), 1.0)
    assert time.process_time() - began < COUNT_S / 4


class Crowd:
    """A station that says something every ten seconds, made-up senders that each say one thing,
    and stations that an access point tells of."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.told: set[str] = set()
        self.at = "ap1"
        self._made_up = 0
        network.host()
        self.passes(5)

    def floods(self, count: int) -> None:
        for _ in range(count):
            self._made_up += 1
            self.network.says(f"ap{1 + self._made_up % 2}", made_up(self._made_up))

    def passes(self, count: int) -> None:
        for _ in range(count):
            self.network.says(self.at, frames.xid(MAC))
            self.network.pass_time(10, 5)

    def tells(self, which: int) -> None:
        self.told.add(station(which))
        self.network.tell(Notice("ap2", "air2", station(which), True))

    def moves(self, where: int) -> None:
        self.at = f"ap{where}"
        self.network.says(self.at, frames.xid(MAC))

    def restarts(self, _: int) -> None:
        self.network.restart()
        for name in PORTS:
            self.network.connect(name)
        # It takes them for stations that frames have shown until they are told of again.
        for mac in sorted(self.told):
            self.network.tell(Notice("ap2", "air2", mac, True))
        self.passes(5)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(Crowd.floods), st.integers(1, 30)),
        st.tuples(st.just(Crowd.passes), st.integers(1, 4)),
        st.tuples(st.just(Crowd.tells), st.integers(0, 3)),
        st.tuples(st.just(Crowd.moves), st.integers(1, 2)),
        st.tuples(st.just(Crowd.restarts), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_flood_displaces_who_speaks_who_was_told_or_a_host(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Callable[[Crowd, int], None], int]]
) -> None:
    network = Network(tmp_path_factory.mktemp("roam"), extra=f"{FEW}stations = 10\n")
    crowd = Crowd(network)
    for does, count in steps:
        does(crowd, count)
        rows = network.state.table.by_mac
        assert rows[MAC].here and rows[MAC].place.switch == crowd.at
        assert {HOST_MAC, *crowd.told} <= set(rows)
        assert len(rows) <= 10
        guessed = {mac for mac, row in rows.items() if not row.told and not row.place.fixed}
        assert guessed == set(network.state.heard)
        for name, present in network.programs.items():
            # Who moves in is not refused.
            there = (guessed - {MAC}) & {mac for mac in rows if rows[mac].place.switch == name}
            assert len(there) <= 4 or name == "s1"
            # One each, whatever takes the place of what.
            counting = sum(program.counts(flow) for flow in present.flows)
            assert counting == sum(row.place.switch == name for row in rows.values())
    # However it went, newcomers get in when the flood is over.
    network.pass_time(QUIET_S + COUNT_S, 5)
    for _ in range(8):
        network.says("ap1", frames.xid(station(9)))
        network.pass_time(1)
    assert station(9) in known(network)
