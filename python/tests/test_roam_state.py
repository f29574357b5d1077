"""A step of roaming gives the next state and leaves the former one as it is."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roam_parts import HOST_MAC, MAC, PORTS, Network, configuration, data_frame

from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import At
from ropewalk.sdn.openflow.program import FlowMod, Program, apply
from ropewalk.sdn.roam import policy, program, silence
from ropewalk.sdn.roam.events import Event, Notice, Release
from ropewalk.sdn.roam.state import State, report

MACS = [MAC, HOST_MAC, *(f"02:00:00:00:01:{number:02x}" for number in range(4))]
NAMES = st.sampled_from(sorted(PORTS))
PLACES = st.sampled_from([("ap1", "air1"), ("ap2", "air2"), ("s1", "host"), ("ap1", "up1")])


def _from(mac: str, frame: bytes) -> bytes:
    return frame[:6] + bytes.fromhex(mac.replace(":", "")) + frame[12:]


def _to(mac: str, frame: bytes) -> bytes:
    return bytes.fromhex(mac.replace(":", "")) + frame[6:]


def _data(mac: str, sequence: int) -> bytes:
    return _to(mac, data_frame(sequence, 100))


def _answer(mac: str, acknowledged: int) -> bytes:
    frame = data_frame(9000, 0, flags=0x10, acknowledged=acknowledged, reverse=True)
    return _from(mac, frame)


FRAMES = st.one_of(
    st.builds(_data, st.sampled_from(MACS), st.integers(0, 500)),
    st.builds(_answer, st.sampled_from(MACS), st.integers(0, 900)),
    st.binary(max_size=20),
)
TABLES = st.sampled_from([program.CLASSIFY, program.FORWARD, program.COPY, program.ANSWER])


def _ports(name: str, live: bool) -> tuple[events.Port, ...]:
    return tuple(
        events.Port(number, port, f"0a:00:00:00:00:{number:02x}", live)
        for port, number in PORTS[name].items()
    )


PACKETS = st.builds(
    lambda name, port, table, data: At(name, events.PacketIn(port, table, data, len(data))),
    *(NAMES, st.integers(1, 3), TABLES, FRAMES),
)
NOTICES = st.builds(
    lambda place, mac, joined, packets: Notice(place[0], place[1], mac, joined, packets),
    *(PLACES, st.sampled_from(MACS), st.booleans(), st.integers(-1, 1)),
)
CONTROL = st.one_of(
    st.builds(
        lambda name, live: At(name, events.Connected(_ports(name, live))), NAMES, st.booleans()
    ),
    st.builds(lambda name: At(name, events.Disconnected()), NAMES),
    st.builds(lambda name: At(name, events.Present(Program())), NAMES),
    st.builds(
        lambda name, number, live, gone: At(
            name, events.PortChanged(_ports(name, live)[number % len(PORTS[name])], gone)
        ),
        *(NAMES, st.integers(0, 2), st.booleans(), st.booleans()),
    ),
    st.builds(lambda name, number: At(name, events.Confirmed(number)), NAMES, st.integers(1, 8)),
)
OTHERS = st.one_of(st.builds(Release, st.sampled_from(MACS)), st.just(events.Tick()))
ONE_VALUE = ("config", "buffers")
FEW = "[bounds]\nstations = 4\nport_stations = 2"
"""So few that there is often no room."""
REMOVED = "removed"
"""Stands for what a switch tells of a flow that the policy has removed."""
SEQUENCES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.02, 0.5, 2.0, 45.0, 400.0]),
        PACKETS | NOTICES | CONTROL | OTHERS | st.just(REMOVED),
    ),
    max_size=40,
)


def _tables(state: State) -> dict[str, object]:
    """All but the configuration and the buffers, which are one value for all states."""
    return {name: value for name, value in vars(state).items() if name not in ONE_VALUE}


class Witness:
    """Steps, and looks whether a step has changed the state that it was given."""

    def __init__(self, network: Network) -> None:
        self.state = network.state
        self.now = network.now
        self._removed: list[At] = []
        self._programs = dict.fromkeys(PORTS, Program())

    def tell(self, event: Event) -> None:
        former = self.state
        # As `copy.deepcopy`, ten times as fast.
        before = pickle.loads(pickle.dumps(_tables(former)))
        self.state, out = policy.step(former, event, self.now)
        assert _tables(former) == before
        assert former.buffers is self.state.buffers
        for name, message in out:
            if isinstance(message, FlowMod) and message.remove:
                flow = message.flow
                gone = events.FlowRemoved(flow.table, flow.match, len(self._removed) % 2, 0)
                self._removed.append(At(name, gone))
            self._programs[name] = apply(self._programs[name], [message])
        for mac in self.state.asked:
            self.tell(Release(mac))

    def tell_removed(self) -> None:
        if self._removed:
            self.tell(self._removed.pop())


@pytest.mark.parametrize("scheme", ["replay", "zwa", "zwa-adaptive"])
@pytest.mark.parametrize("extra", ["", FEW])
@settings(max_examples=40)
@given(told=SEQUENCES)
def test_no_event_changes_the_former_state(
    scheme: str, extra: str, told: list[tuple[float, Event | str]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        witness = Witness(Network(Path(directory), scheme, extra))
    for seconds, event in told:
        witness.now += seconds
        if isinstance(event, str):
            witness.tell_removed()
        else:
            witness.tell(event)


def _stepped(state: State, event: Event, now: float) -> State:
    after, _ = policy.step(state, event, now)
    return after


def test_a_whole_visit_changes_no_former_state(tmp_path: Path) -> None:
    """What random sequences seldom reach: silence that makes room, and confirmations by all."""
    witness = Witness(Network(tmp_path, "zwa-adaptive", FEW))
    witness.tell(Notice("ap1", "air1", MAC, True))
    for name in PORTS:
        witness.tell(At(name, events.Confirmed(witness.state.number)))
    assert witness.state.handovers[-1][1].confirmed_s == witness.now
    witness.tell(Notice("ap1", "air1", MAC, False, 7, 900))
    assert witness.state.freezes[MAC].allowed is None
    witness.now += 1
    witness.tell(events.Tick())
    number = program.COUNT_METERS + witness.state.table.by_mac[MAC].slot
    witness.tell(At("ap1", events.MeterStatistics(number, 7, 900)))
    assert witness.state.freezes[MAC].allowed is True
    for number in range(2):
        witness.tell(_new(number))
    witness.now += silence.QUIET_S + 1
    witness.tell(_new(2))
    assert any(heard.doubted for heard in witness.state.heard.values())


def test_time_changes_no_former_state(tmp_path: Path) -> None:
    """What is due when nobody has asked in time, and the round in which switches tell."""
    witness = Witness(Network(tmp_path))
    for number in range(3):
        witness.tell(_new(number))
    witness.state.rota.extend(witness.state.heard)
    witness.tell(events.Tick())
    assert not witness.state.rota
    witness.tell(Notice("ap1", "air1", MAC, True))
    witness.tell(Notice("ap1", "air1", MAC, False))
    # The events that it asks for are not told here: the controller is behind.
    witness.state, _ = policy.step(witness.state, Notice("ap2", "air2", MAC, True), witness.now)
    assert MAC in witness.state.due
    witness.now += 2 * policy.RELEASE_S
    witness.tell(events.Tick())
    assert not witness.state.due


def _new(number: int) -> Event:
    frame = _from(f"02:00:00:00:02:{number:02x}", data_frame(1, 0, reverse=True))
    return At("ap1", events.PacketIn(1, program.CLASSIFY, frame, len(frame)))


def test_packets_of_a_flood_copy_no_table(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.join("ap1")
    for number in range(40):
        network.packet("ap1", program.CLASSIFY, _from(f"02:00:00:00:03:{number:02x}", FLOOD))
    former = network.state
    assert former.counters["stations_refused"] > 0
    data = data_frame(1000, 100)
    assert _stepped(former, At("ap1", events.PacketIn(1, program.COPY, data, 0)), 0.0) is former
    refused = _stepped(former, _new(1), network.now)
    assert refused.counters["stations_refused"] == former.counters["stations_refused"] + 1
    for name in ("views", "table", "heard", "rota", "freezes", "due", "handovers"):
        assert getattr(refused, name) is getattr(former, name), name


FLOOD = data_frame(1, 0, reverse=True)


def test_a_report_of_a_former_state_is_the_same_later(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.join("ap1")
    former, before = network.state, report(network.state, network.now)
    network.leave("ap1")
    network.join("ap2")
    assert report(former, 0.0) == before
    assert configuration(tmp_path) == former.config
