"""A certificate speaks for the datapaths, access ports and stations that it names, and no other."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropewalk.sdn import tls
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.host import certificates
from ropewalk.sdn.host.certificates import Holder
from ropewalk.sdn.limited import LINES_MAX, WINDOW_S, Limited
from ropewalk.sdn.openflow import codec
from ropewalk.sdn.openflow.events import Connected, Disconnected, Event
from ropewalk.sdn.openflow.switches import Switches
from ropewalk.sdn.roam import notices
from ropewalk.sdn.roam.events import Notice
from ropewalk.sdn.roam.notices import Client, NoticeError, Notices

MAC = "02:00:00:00:00:01"
LOCAL = Endpoint("127.0.0.1", 0)
NAMES = {1: "a", 2: "b"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of one authority, and `elsewhere/` of another."""
    here = tmp_path_factory.mktemp("tls")
    made = [
        Holder("controller", ("IP:127.0.0.1",), is_server=True),
        certificates.switch("a", [1]),
        certificates.switch("b", [2]),
        certificates.switch("also-a", [1]),
        Holder("nameless", ()),
        Holder("wrong", ("URI:ropewalk:datapath:1", "URI:ropewalk:agent:", "DNS:ap1")),
        certificates.agent("agent-a", ["ap1"]),
        certificates.agent("one", ["ap1:wlan0"]),
        certificates.agent("its-station", ["ap1"], [MAC]),
    ]
    certificates.made(here, made)
    certificates.made(here, [certificates.switch("expired-a", [1])], days=-1)
    certificates.made(here, [certificates.agent("expired-agent", ["ap1"])], days=-1)
    other = [certificates.switch("a", [1]), certificates.agent("agent-a", ["ap1"])]
    certificates.made(here / "elsewhere", other)
    return here


def protection(files: Path, name: str, purpose: ssl.Purpose) -> ssl.SSLContext:
    return tls.context(purpose, files / f"{name}.key", files / f"{name}.crt", authority(files))


def authority(files: Path) -> Path:
    return files / "authority.crt"


class Told:
    """The controller's side, and what it was told."""

    def __init__(self, files: Path) -> None:
        self.events: list[tuple[str, Event]] = []
        server = protection(files, "controller", ssl.Purpose.CLIENT_AUTH)
        self.switches = Switches(LOCAL, NAMES.get, self._tell, server, 16)
        self.files = files

    def _tell(self, name: str, event: Event) -> None:
        self.events.append((name, event))

    def count(self, name: str, kind: type) -> int:
        return sum(who == name and isinstance(event, kind) for who, event in self.events)

    @contextlib.contextmanager
    def switch(self, name: str) -> Iterator[socket.socket]:
        """A switch with a certificate, that has said nothing so far."""
        plain = socket.create_connection(("127.0.0.1", self.switches.port), timeout=5)
        context = ssl.create_default_context(cafile=str(authority(self.files)))
        context.load_cert_chain(self.files / f"{name}.crt", self.files / f"{name}.key")
        with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            yield client


@pytest.fixture
def told(files: Path) -> Iterator[Told]:
    made = Told(files)
    try:
        yield made
    finally:
        made.switches.close()


def greet(client: socket.socket, datapath: int) -> None:
    """Says what a switch without ports and flows says; a refusal may come meanwhile."""
    said = codec.serialize(codec.hello(), 1) + features(datapath)
    said += b"".join(struct.pack("!BBHIHH4x", 4, 19, 16, 3, kind, 0) for kind in (13, 1, 7))
    with contextlib.suppress(OSError):
        client.sendall(said)


def features(datapath: int) -> bytes:
    return struct.pack("!BBHIQIBBHII", 4, 6, 32, 2, datapath, 256, 254, 0, 0, 0, 0)


def wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not ready():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


def ended(client: socket.socket) -> bool:
    """Whether the other end closes the connection."""
    client.settimeout(5)
    try:
        while client.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize(
    ("certificate", "datapath", "said"),
    [
        ("b", 1, "datapath 0000000000000001 is not in the certificate of CN=b"),
        ("a", 2, "datapath 0000000000000002 is not in the certificate of CN=a"),
        ("nameless", 1, "is not in the certificate of CN=nameless (no names)"),
        ("wrong", 1, "is not in the certificate of CN=wrong"),
        ("agent-a", 1, "is not in the certificate of CN=agent-a"),
        ("expired-a", 1, "certificate has expired"),
        ("elsewhere/a", 1, "no TLS with a certificate of the authority"),
        ("controller", 1, "no TLS with a certificate of the authority"),
        ("a", 3, "datapath 0000000000000003 is not configured"),
    ],
)
def test_a_switch_with_a_wrong_certificate_is_refused_logged_and_counted(
    told: Told, caplog: pytest.LogCaptureFixture, certificate: str, datapath: int, said: str
) -> None:
    with contextlib.suppress(OSError), told.switch(certificate) as client:
        greet(client, datapath)
        assert ended(client)
    wait(lambda: told.switches.refused == 1)
    wait(lambda: said in caplog.text)
    assert told.events == []
    with told.switch("a") as client:
        greet(client, 1)
        wait(lambda: told.count("a", Connected) == 1)


def test_a_switch_that_claims_nothing_is_refused(told: Told) -> None:
    with told.switch("a") as client:
        client.sendall(codec.serialize(codec.hello(), 1))
        for kind in (13, 1, 7):
            client.sendall(struct.pack("!BBHIHH4x", 4, 19, 16, 3, kind, 0))
        assert ended(client)
    wait(lambda: told.switches.refused == 1)
    assert told.events == []


def test_a_connected_switch_cannot_become_another_one(told: Told, files: Path) -> None:
    certificates.made(files, [certificates.switch("both", [1, 2])])
    with told.switch("both") as client:
        greet(client, 1)
        wait(lambda: told.count("a", Connected) == 1)
        client.sendall(features(2))
        assert ended(client)
    wait(lambda: told.switches.refused == 1)
    assert told.count("b", Connected) == 0


def test_another_identity_does_not_displace_a_connected_switch(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    with told.switch("a") as first:
        greet(first, 1)
        wait(lambda: told.count("a", Connected) == 1)
        for name in ("b", "also-a"):
            with told.switch(name) as second:
                greet(second, 1)
                assert ended(second)
        wait(lambda: told.switches.refused == 2)
        assert "datapath 0000000000000001 is connected as CN=a" in caplog.text
        # The first one is still the switch, and its connection lives.
        assert told.count("a", Disconnected) == 0
        first.sendall(struct.pack("!BBHI", 4, 2, 8, 77))
        data = b""
        while struct.pack("!BBHI", 4, 3, 8, 77) not in data:
            data += first.recv(4096)
        # The same identity takes its place, as after a restart that nobody noticed.
        with told.switch("a") as again:
            greet(again, 1)
            wait(lambda: told.count("a", Connected) == 2)
            assert ended(first)
    wait(lambda: told.count("a", Disconnected) == 1)
    # When it has gone, the other certificate for the number is as good.
    with told.switch("also-a") as other:
        greet(other, 1)
        wait(lambda: told.count("a", Connected) == 3)


def test_one_identity_leaves_room_for_the_others(told: Told) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(30):
            client = held.enter_context(told.switch("b"))
            time.sleep(0.01)
        wait(lambda: told.switches.refused >= 28)
        assert ended(client)
        client = held.enter_context(told.switch("a"))
        greet(client, 1)
        wait(lambda: told.count("a", Connected) == 1)


@contextlib.contextmanager
def listening(files: Path) -> Iterator[tuple[Notices, list[Notice]]]:
    heard: list[Notice] = []

    def tell(notice: Notice) -> str:
        heard.append(notice)
        return ""

    server = protection(files, "controller", ssl.Purpose.CLIENT_AUTH)
    made = Notices(LOCAL, tell, server)
    try:
        yield made, heard
    finally:
        made.close()


def agent(files: Path, server: Notices, name: str) -> Client:
    context = ssl.create_default_context(cafile=str(authority(files)))
    context.load_cert_chain(files / f"{name}.crt", files / f"{name}.key")
    return Client(("127.0.0.1", server.port), context)


@pytest.mark.parametrize(
    ("certificate", "switch", "port", "mac"),
    [
        ("agent-a", "ap2", "wlan0", MAC),
        ("one", "ap1", "wlan1", MAC),
        ("one", "ap1:wlan0", "", MAC),
        ("its-station", "ap1", "wlan0", "02:00:00:00:00:02"),
        ("nameless", "ap1", "wlan0", MAC),
        ("wrong", "ap1", "wlan0", MAC),
        ("a", "ap1", "wlan0", MAC),
    ],
)
def test_an_agent_cannot_report_what_its_certificate_does_not_name(
    files: Path,
    caplog: pytest.LogCaptureFixture,
    certificate: str,
    switch: str,
    port: str,
    mac: str,
) -> None:
    with listening(files) as (server, heard):
        client = agent(files, server, certificate)
        known = port and ":" not in switch
        with pytest.raises(NoticeError, match="not in the certificate" if known else "no name"):
            client.tell(Notice(switch, port, mac, True))
        client.close()
        assert heard == []
        assert (server.refused, server.malformed) == ((1, 0) if known else (0, 1))
        assert not known or f"not in the certificate of CN={certificate}" in caplog.text
        for name in ("agent-a", "one", "its-station"):
            client = agent(files, server, name)
            client.tell(Notice("ap1", "wlan0", MAC, True))
            client.close()
        assert len(heard) == 3


@pytest.mark.parametrize("certificate", ["expired-agent", "elsewhere/agent-a", "controller"])
def test_an_agent_without_a_certificate_of_the_authority_is_refused_and_counted(
    files: Path, caplog: pytest.LogCaptureFixture, certificate: str
) -> None:
    with listening(files) as (server, heard):
        with pytest.raises(OSError):
            agent(files, server, certificate).tell(Notice("ap1", "wlan0", MAC, True))
        wait(lambda: server.refused_agents == 1)
        assert heard == []
        wait(lambda: "no TLS with a certificate of the authority" in caplog.text)


def test_one_agent_leaves_room_for_the_others(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "IDENTITY_AGENTS_MAX", 2)
    with listening(files) as (server, heard):
        held = [agent(files, server, "agent-a") for _ in range(2)]
        for client in held:
            client.tell(None)
        with pytest.raises(OSError):
            agent(files, server, "agent-a").tell(None)
        assert server.refused_agents == 1
        other = agent(files, server, "one")
        other.tell(Notice("ap1", "wlan0", MAC, True))
        held.pop().close()

        def has_room() -> bool:
            with contextlib.suppress(OSError):
                held.append(agent(files, server, "agent-a"))
                held[-1].tell(None)
                return True
            return False

        wait(has_room)
        for client in (*held, other):
            client.close()
        assert len(heard) == 1


def test_a_flood_writes_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = Limited(logging.getLogger("flood"), lambda: now)
    for number in range(10_000):
        log.warning("refused %s", number)
    assert len(caplog.records) == LINES_MAX
    now = WINDOW_S
    log.warning("refused at last")
    assert len(caplog.records) == LINES_MAX + 2
    assert f"{10_000 - LINES_MAX} lines" in caplog.text


def test_certificates_that_are_there_stay_and_keys_are_their_owners_alone(tmp_path: Path) -> None:
    holders = [certificates.switch("a", [1])]
    assert certificates.made(tmp_path, holders) == ["authority", "a"]
    before = (tmp_path / "a.crt").read_bytes()
    more = [*holders, certificates.switch("b", [2])]
    assert certificates.made(tmp_path, more) == ["b"]
    assert (tmp_path / "a.crt").read_bytes() == before
    for key in tmp_path.glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0


def test_what_is_no_name_of_a_host_is_in_no_certificate() -> None:
    with pytest.raises(ValueError, match="no name of a host"):
        certificates._kind("a,URI:ropewalk:datapath:0000000000000001")
    assert [certificates._kind(host) for host in ("sdn.example", "2001:db8::1")] == ["DNS", "IP"]
