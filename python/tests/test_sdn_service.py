"""How the service runs a policy: what is told when, what is dropped, and who waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from roam_parts import configuration
from sdn_parts import balance, bicast

from ropewalk.sdn import bridge, modes
from ropewalk.sdn.balance.policy import Balance
from ropewalk.sdn.bicast.policy import Bicast
from ropewalk.sdn.bridge import Bridge
from ropewalk.sdn.config import Controller
from ropewalk.sdn.contract import Out, Told, Urgency
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.openflow.events import At, Connected, Disconnected, PacketIn, Tick
from ropewalk.sdn.roam import program
from ropewalk.sdn.roam.events import Notice, Release
from ropewalk.sdn.roam.policy import Roam
from ropewalk.sdn.service import Inbox, Service

WAIT_S = 10.0
PACKET = At("bridge", PacketIn(1, 0, b"", 0))
CONNECTED = At("bridge", Connected(()))
GONE = At("bridge", Disconnected())


def wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


@dataclass(frozen=True)
class Later:
    """An event of the policy's own."""

    number: int


class Recorder:
    """A policy that remembers what it is told; it waits at the gate first."""

    tick_s = 0.01

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        """How long each step takes."""
        self.gate = threading.Event()
        self.told: list[Told[Later]] = []

    def begin(self) -> tuple[Later, ...]:
        return ()

    def step(
        self, state: tuple[Later, ...], event: Told[Later], now: float
    ) -> tuple[tuple[Later, ...], list[Out]]:
        self.told.append(event)
        assert self.gate.wait(WAIT_S)
        time.sleep(self.pause_s)
        if event == GONE:
            raise ValueError("a fault")
        return ((Later(1), Later(2)) if event == CONNECTED else ()), []

    def asked(self, state: tuple[Later, ...]) -> Sequence[Later]:
        return state

    def urgency(self, event: Told[Later]) -> Urgency:
        match event:
            case At(_, PacketIn()):
                return Urgency(1, 3)
            case Later():
                return Urgency(1, 10)
            case Tick():
                return Urgency(2, 1)
            case _:
                return Urgency(0, 1, waits=True)

    def report(self, state: tuple[Later, ...], now: float) -> dict[str, object]:
        return {"asked": len(state)}


@contextmanager
def running(policy: Recorder) -> Iterator[Service[tuple[Later, ...], Later]]:
    """A service that has been told of a first packet and stands at the gate."""
    service = Service(
        policy, Controller(Endpoint("127.0.0.1", 0), None, (), 1), lambda _: "bridge", 8
    )
    thread = threading.Thread(target=service.run)
    service._said("bridge", PACKET.event)
    thread.start()
    try:
        wait(lambda: bool(policy.told))
        yield service
    finally:
        policy.gate.set()
        service.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def test_packets_beyond_the_bound_are_dropped_and_counted() -> None:
    inbox: Inbox[Told[Later]] = Inbox(Recorder().urgency)
    for _ in range(5):
        inbox.put(PACKET)
    assert inbox.counters == {"packets_in": 5, "packets_dropped": 2, "events_dropped": 2}
    assert [inbox.get(0) for _ in range(4)] == [PACKET] * 3 + [None]


def test_what_must_not_be_lost_waits_for_room_and_goes_first() -> None:
    inbox: Inbox[Told[Later]] = Inbox(Recorder().urgency)
    inbox.put(PACKET)
    inbox.put(CONNECTED)
    with ThreadPoolExecutor() as threads:
        late = threads.submit(inbox.put, GONE)
        with pytest.raises(TimeoutError):
            late.result(0.1)
        assert inbox.get(0) == CONNECTED
        late.result(WAIT_S)
        inbox.put(PACKET)
        assert [inbox.get(0) for _ in range(4)] == [GONE, PACKET, PACKET, None]


def test_a_closed_inbox_lets_everybody_go() -> None:
    inbox: Inbox[Told[Later]] = Inbox(Recorder().urgency)
    inbox.put(CONNECTED)
    with ThreadPoolExecutor() as threads:
        late = threads.submit(inbox.put, GONE)
        inbox.close()
        late.result(WAIT_S)
    assert [inbox.get(0), inbox.get(0)] == [CONNECTED, None]


def test_one_tick_waits_behind_the_packets_that_came_before() -> None:
    policy = Recorder(pause_s=2 * Recorder.tick_s)
    with running(policy) as service:
        for _ in range(3):
            service._said("bridge", PACKET.event)
        policy.gate.set()
        wait(lambda: policy.told.count(Tick()) > 1)
        counters = service.report()["counters"]
    assert policy.told[:5] == [PACKET] * 4 + [Tick()]
    assert counters["events_dropped"] == 0, "there is room for one tick"


def test_what_a_step_asks_for_comes_once_and_behind_the_packets_that_wait() -> None:
    policy = Recorder()
    with running(policy) as service:
        service._said("bridge", CONNECTED.event)
        service._said("bridge", PACKET.event)
        policy.gate.set()
        wait(lambda: Later(2) in policy.told)
        wait(lambda: policy.told[-1] == Tick())
    told = [event for event in policy.told if event != Tick()]
    assert told == [PACKET, CONNECTED, PACKET, Later(1), Later(2)]


def test_after_a_fault_the_state_is_as_it_was_and_the_next_event_is_handled() -> None:
    policy = Recorder()
    with running(policy) as service:
        service._said("bridge", GONE.event)
        policy.gate.set()
        wait(lambda: Tick() in policy.told)
        report = service.report()
    assert (report["asked"], report["counters"]["faults"]) == (0, 1)
    assert report["counters"]["disconnections"] == 1


@pytest.mark.parametrize("mode", ["bicast", "balance"])
def test_a_tick_of_a_bridge_overtakes_no_answer_to_a_probe(mode: str, tmp_path: Path) -> None:
    urgency = (
        Bridge(Bicast(), bicast(tmp_path)).urgency
        if mode == "bicast"
        else Bridge(Balance(), balance(tmp_path)).urgency
    )
    packet, tick, connected = urgency(PACKET), urgency(Tick()), urgency(CONNECTED)
    assert packet.level == tick.level > connected.level
    assert tick.bound > packet.bound, "a flood of packets does not stop time"
    assert connected.waits
    assert not packet.waits
    assert not tick.waits


def test_roaming_puts_places_before_new_senders_and_those_before_copies(tmp_path: Path) -> None:
    urgency = Roam(configuration(tmp_path)).urgency
    new, copy = (
        urgency(At("ap1", PacketIn(1, table, b"", 0))) for table in (program.CLASSIFY, program.COPY)
    )
    moved = urgency(Notice("ap1", "air1", "02:00:00:00:00:64", True))
    assert urgency(Tick()).level < moved.level == urgency(CONNECTED).level < new.level < copy.level
    assert (moved.waits, new.waits, copy.waits) == (True, False, False)
    release = urgency(Release("02:00:00:00:00:64"))
    assert release.level == copy.level
    assert not release.waits, "the thread that asks for it is the one that takes it"


BRIDGE_COUNTERS = (
    *("packets_in", "packets_dropped", "packets_out", "flow_mods", "group_mods"),
    *("connections", "disconnections", "faults", "malformed_messages", "refused_messages"),
)
ROAM_COUNTERS = (
    *("packets_in", "messages_sent", "faults", "events_dropped"),
    *("malformed_messages", "refused_messages", "malformed_notices", "joined", "kept"),
)


@pytest.mark.parametrize("mode", ["bicast", "balance", "roam"])
def test_every_counter_is_told_from_the_beginning(mode: str, tmp_path: Path) -> None:
    free = Endpoint("127.0.0.1", 0)
    config: modes.AnyConfig
    if mode == "roam":
        config = replace(configuration(tmp_path), notices=free)
    else:
        config = (bicast if mode == "bicast" else balance)(tmp_path)
    controller = modes.controller(
        replace(config, controller=replace(config.controller, listen=free))
    )
    try:
        counters = controller.report()["counters"]
    finally:
        controller.stop()
        controller.run()
    wanted = ROAM_COUNTERS if mode == "roam" else BRIDGE_COUNTERS
    assert {name: counters.get(name) for name in wanted} == dict.fromkeys(wanted, 0)


def test_a_bridge_has_one_name_whatever_its_switch(tmp_path: Path) -> None:
    policy = Bridge(Bicast(), bicast(tmp_path))
    state, _ = policy.step(policy.begin(), CONNECTED, 0.0)
    for _ in range(200):
        state, out = policy.step(state, Tick(), 100.0)
        assert {name for name, _ in out} <= {bridge.NAME}
    assert state.common.connected_s == 0.0
