"""Nothing that a switch or a network sends takes the controller down."""

from __future__ import annotations

import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sdn_parts import FakeSwitch, balance, bicast

from ropewalk.sdn import packets, resolution
from ropewalk.sdn.balance.policy import Balance
from ropewalk.sdn.bicast.policy import Bicast
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.openflow import codec, events
from ropewalk.sdn.openflow import switch as connection
from ropewalk.sdn.openflow.program import Flow, FlowMod, Output, match
from ropewalk.sdn.openflow.switches import Switches

MACS = ("0a:00:00:00:09:01", "0a:00:00:00:09:02")
PORTS = st.builds(
    events.Port,
    st.integers(1, 5),
    st.sampled_from(["w0", "w1", "ropesw0", "x"]),
    st.sampled_from(["0a:00:00:00:09:09", "0a:00:00:00:00:ff"]),
    st.booleans(),
)
ETHERNET = st.builds(
    lambda kind, body: bytes(12) + struct.pack("!H", kind) + body,
    st.sampled_from([0x0800, 0x0806, 0x86DD]),
    st.binary(max_size=80),
)
IP = st.builds(
    lambda protocol, ends, body: (
        bytes(12)
        + b"\x08\x00"
        + struct.pack("!BBHHHBBH8s", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0, ends)
        + body
    ),
    st.sampled_from([1, 6, 17, 47, 58]),
    st.binary(min_size=8, max_size=8),
    st.binary(max_size=60),
)
IPV6 = st.builds(
    lambda protocol, body: packets.framed(MACS, ("fd98::2", "2001:db8::1"), protocol, body, 255),
    st.sampled_from([0, 6, 17, 44, 58, 60]),
    st.binary(max_size=60),
)
RESOLUTION = st.builds(
    lambda ends, mac: resolution.answer(mac, ends[0], resolution.Question(mac, ends[1], ends[0])),
    st.sampled_from([("10.0.0.2", "10.0.0.1"), ("fe80::", "fd00::1"), ("fd99::1", "fd99::2")]),
    st.sampled_from([*MACS, "ff:ff:ff:ff:ff:ff"]),
)
EVENTS = st.one_of(
    st.just(events.Tick()),
    st.just(events.Disconnected()),
    st.builds(events.Connected, st.lists(PORTS, max_size=4).map(tuple)),
    st.builds(
        events.PacketIn,
        st.integers(0, 6),
        st.integers(0, 4),
        ETHERNET | IP | IPV6 | RESOLUTION,
        st.just(0),
    ),
    st.builds(events.PortChanged, PORTS, st.booleans()),
    st.builds(
        events.PortStatistics,
        st.dictionaries(
            st.integers(0, 5),
            st.builds(
                events.Counters,
                st.integers(0, 10**9),
                st.integers(0, 10**9),
                st.floats(0, 1e9),
            ),
            max_size=3,
        ),
    ),
)


@pytest.mark.parametrize(
    ("policy", "configured", "more"),
    [
        (Bicast(), bicast, 'when = "loss"'),
        (Balance(), balance, ""),
        (Balance(), balance, 'decide = "switch"'),
        (Balance(), balance, 'rule = "least-expected-finish"'),
    ],
)
@settings(max_examples=40)
@given(several=st.lists(EVENTS, max_size=30))
def test_no_event_is_an_exception(
    policy: Any,  # noqa: ANN401 - either policy
    configured: Any,  # noqa: ANN401
    more: str,
    several: list[object],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = configured(Path(directory), more, versions=(4, 6))
    switch = FakeSwitch(policy, config)
    switch.run(0.5)
    for event in several:
        switch.now += 0.4
        switch.tell(event)
        switch.policy.report(switch.state, switch.now)


def _greet(client: socket.socket) -> None:
    """Says what a switch without ports and flows says."""
    client.sendall(codec.serialize(codec.hello(), 1))
    features = struct.pack("!BBHIQIBBHII", 4, 6, 32, 2, 1, 256, 254, 0, 0, 0, 0)
    client.sendall(features)
    for kind in (13, 1, 7):
        client.sendall(struct.pack("!BBHIHH4x", 4, 19, 16, 3, kind, 0))


def _connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(5)
    return client


def _switches(tell: Callable[[events.Event], None]) -> Switches:
    """One switch, whatever its number."""
    return Switches(
        Endpoint("127.0.0.1", 0), lambda _: "bridge", lambda _, event: tell(event), None, 8
    )


def _wait(ready: Any) -> bool:  # noqa: ANN401
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if ready():
            return True
        time.sleep(0.01)
    return False


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=120)), max_size=12))
def test_malformed_messages_are_counted_and_the_connection_goes_on(
    bodies: list[tuple[int, bytes]],
) -> None:
    told: list[object] = []
    switch = _switches(told.append)
    try:
        with _connected(switch.port) as client:
            _greet(client)
            for kind, body in bodies:
                # A greeting in the middle would only begin the conversation anew.
                if kind in (0, 6, 13, 19):
                    continue
                client.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), 9) + body)
            assert _wait(lambda: any(isinstance(event, events.Connected) for event in told))
            flow = Flow(0, 1, match(in_port=1), (Output(2),))
            assert switch.send("bridge", [FlowMod(flow)])
        assert _wait(lambda: any(isinstance(event, events.Disconnected) for event in told))
    finally:
        switch.close()


@settings(max_examples=25)
@given(st.binary(max_size=300))
def test_a_stranger_at_the_port_ends_with_its_own_connection(data: bytes) -> None:
    told: list[object] = []
    switch = _switches(told.append)
    try:
        with _connected(switch.port) as stranger:
            stranger.sendall(data)
        with _connected(switch.port) as client:
            _greet(client)
            assert _wait(lambda: any(isinstance(event, events.Connected) for event in told))
    finally:
        switch.close()


def test_the_end_of_a_connection_is_told_within_a_second() -> None:
    told: list[object] = []
    switch = _switches(told.append)
    try:
        client = _connected(switch.port)
        _greet(client)
        assert _wait(lambda: switch.connected("bridge"))
        began = time.monotonic()
        client.close()
        assert _wait(lambda: any(isinstance(event, events.Disconnected) for event in told))
        assert time.monotonic() - began < 1
    finally:
        switch.close()


def test_who_dribbles_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "GREETING_SECONDS_MAX", 0.2)
    switch = _switches(lambda _: None)
    try:
        with _connected(switch.port) as stranger:
            hello = codec.serialize(codec.hello(), 1)
            stranger.sendall(hello[:4])
            time.sleep(0.4)
            stranger.sendall(hello[4:])
            stranger.settimeout(5)
            while stranger.recv(4096):
                pass
    finally:
        switch.close()


@pytest.mark.parametrize("kind", [13, 7])
def test_a_switch_without_end_is_left(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PORTS_MAX", 10)
    monkeypatch.setattr(connection, "GROUPS_MAX", 10)
    rows = {13: bytes(64), 7: struct.pack("!HBxI", 8, 0, 1)}[kind] * 11
    told: list[object] = []
    switch = _switches(told.append)
    try:
        with _connected(switch.port) as client:
            client.sendall(codec.serialize(codec.hello(), 1))
            client.sendall(struct.pack("!BBHIHH4x", 4, 19, 16 + len(rows), 3, kind, 1) + rows)
            while client.recv(4096):
                pass
        assert told == []
    finally:
        switch.close()


def test_an_answer_that_changes_have_overtaken_is_not_believed() -> None:
    told: list[object] = []
    switch = _switches(told.append)
    flow = Flow(0, 1, match(in_port=1), (Output(2),))
    programs = b"".join(struct.pack("!BBHIHH4x", 4, 19, 16, 3, kind, 0) for kind in (1, 7))

    def looks() -> int:
        return sum(isinstance(event, events.Present) for event in told)

    try:
        with _connected(switch.port) as client:
            _greet(client)
            assert _wait(lambda: switch.connected("bridge"))
            switch.audit()
            assert switch.send("bridge", [FlowMod(flow)])
            client.sendall(programs)
            barrier = struct.pack("!BBHI", 4, 21, 8, 9)
            client.sendall(barrier)
            assert _wait(lambda: any(isinstance(event, events.Confirmed) for event in told))
            assert looks() == 0
            switch.audit()
            client.sendall(programs)
            assert _wait(lambda: looks() == 1)
    finally:
        switch.close()


def test_an_answer_that_is_malformed_does_not_end_looking() -> None:
    switch = _switches(lambda _: None)
    malformed = struct.pack("!BBHIHH4x", 4, 19, 16 + 4, 3, 7, 0) + b"\xff" * 4
    try:
        with _connected(switch.port) as client:
            _greet(client)
            assert _wait(lambda: switch.connected("bridge"))
            switch.audit()
            client.sendall(malformed)
            assert _wait(lambda: switch.malformed == 1)
            switch.audit()
            # In the greeting, and by each look.
            _read_questions_for_groups(client, 3)
    finally:
        switch.close()


def _read_questions_for_groups(client: socket.socket, count: int) -> None:
    data = b""
    while count:
        more = client.recv(4096)
        assert more, "the connection has ended"
        data += more
        while len(data) >= 8:
            _, kind, length, _ = struct.unpack_from("!BBHI", data)
            if len(data) < length:
                break
            count -= kind == 18 and data[8:10] == struct.pack("!H", 7)
            data = data[length:]


def test_an_old_connections_end_is_never_told_after_a_new_ones_beginning() -> None:
    told: list[object] = []

    def tell(event: object) -> None:
        if isinstance(event, events.Disconnected):
            # A busy consumer: room for the old one's end comes late.
            time.sleep(0.3)
        told.append(event)

    switch = _switches(tell)
    try:
        first, second = _connected(switch.port), _connected(switch.port)
        _greet(first)
        assert _wait(lambda: switch.connected("bridge"))
        first.close()
        assert _wait(lambda: not switch.connected("bridge"))
        _greet(second)
        assert _wait(lambda: len(told) == 3)
        assert [type(event).__name__ for event in told] == [
            "Connected", "Disconnected", "Connected",
        ]  # fmt: skip
        second.close()
    finally:
        switch.close()
