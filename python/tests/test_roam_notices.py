"""Agents' notices: who may give them, and what an agent does when others are away."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from roam_parts import configuration

from ovs_testbed.hostapd import Hostapd
from ropewalk.sdn.config import Tls
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.roam import agent
from ropewalk.sdn.roam.agent import Agent
from ropewalk.sdn.roam.controller import Controller
from ropewalk.sdn.roam.events import Notice
from ropewalk.sdn.roam.notices import Client, NoticeError, Notices, written
from ropewalk.sdn.service import context

NOTICE = Notice("ap1", "wlan0", "02:00:00:00:00:01", True)


@contextlib.contextmanager
def listening(
    heard: list[Notice], tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[Notices]:
    def tell(notice: Notice) -> str:
        heard.append(notice)
        return ""

    server = Notices(Endpoint("127.0.0.1", port), tell, tls)
    try:
        yield server
    finally:
        server.close()


def wait(ready: object, seconds: float = 10) -> None:
    assert callable(ready)
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


def test_notice_arrives_and_a_wrong_one_is_refused_by_reason() -> None:
    heard: list[Notice] = []
    with listening(heard) as server:
        client = Client(("127.0.0.1", server.port))
        client.tell(NOTICE)
        client.tell(None)
        with pytest.raises(NoticeError, match="mac"):
            client.tell(Notice("ap1", "wlan0", "ff:ff:ff:ff:ff:ff", True))
        client.close()
        assert heard == [NOTICE]
        assert server.malformed == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mac": "00:00:00:00:00:00"}, "mac: no station's address"),
        ({"mac": "01:00:5e:00:00:01"}, "mac: no station's address"),
        ({"mac": "zz:00:00:00:00:01"}, "mac: no station's address"),
        ({"jioned": True}, "jioned: no key of a notice"),
    ],
)
def test_a_line_that_is_no_notice_is_refused(changed: dict[str, object], said: str) -> None:
    heard: list[Notice] = []
    with listening(heard) as server:
        line = json.dumps({**json.loads(written(NOTICE)), **changed}).encode()
        assert server.line(line) == {"error": said}
        assert server.line(written(NOTICE)) == {"taken": True}
        assert server.line(b"\n") == {"taken": False}
        assert server.malformed == 1
    assert heard == [NOTICE]


def test_a_notice_of_a_place_that_is_not_configured_is_not_taken_and_is_counted(
    tmp_path: Path,
) -> None:
    here = Endpoint("127.0.0.1", 0)
    config = configuration(tmp_path)
    listen = replace(config.controller, listen=here)
    controller = Controller(replace(config, notices=here, controller=listen))
    runner = threading.Thread(target=controller.run, daemon=True)
    runner.start()
    assert controller.notices is not None
    client = Client(("127.0.0.1", controller.notices.port))
    for switch, port in (("ap9", "air1"), ("ap1", "up")):
        with pytest.raises(NoticeError, match=f"{switch} {port}: no access port"):
            client.tell(Notice(switch, port, NOTICE.mac, True))
    client.tell(Notice("ap1", "air1", NOTICE.mac, True))
    wait(lambda: controller.report()["counters"]["notices_elsewhere"] == 2)
    client.close()
    controller.stop()
    runner.join(10)
    assert not runner.is_alive()


@pytest.mark.parametrize("answer", ["5", "[]", "[" * 10_000, "no JSON"])
def test_what_is_no_controllers_answer_is_a_value_error(answer: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Client(("127.0.0.1", server.getsockname()[1]))
        peer, _ = server.accept()
        with peer:
            peer.sendall(f"{answer}\n".encode())
            with pytest.raises(ValueError):
                client.tell(NOTICE)
        client.close()


def test_line_without_end_closes_the_connection() -> None:
    with listening([]) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(5)
        with contextlib.suppress(OSError):
            client.sendall(b"x" * 100_000)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_only_agents_with_a_certificate_are_heard(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    request += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=controller"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1,URI:ropewalk:agent:ap1"]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    heard: list[Notice] = []
    with listening(heard, context(Tls(key, certificate, certificate, None, None))) as server:
        address = ("127.0.0.1", server.port)
        without = ssl.create_default_context(cafile=str(certificate))
        for tls in (None, without):
            with pytest.raises(OSError):
                Client(address, tls, seconds=5).tell(NOTICE)
        assert heard == []
        proper = ssl.create_default_context(cafile=str(certificate))
        proper.load_cert_chain(certificate, key)
        client = Client(address, proper)
        client.tell(NOTICE)
        client.close()
        assert heard == [NOTICE]


def test_agent_keeps_what_it_heard_until_the_controller_is_there(tmp_path: Path) -> None:
    control = tmp_path / "hostapd"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hostapd, socket.socket() as free:
        hostapd.bind(str(control))
        hostapd.settimeout(10)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ours = Agent(control, ("127.0.0.1", port), ("ap1", "wlan0"), count=lambda _: (7, 900))
        runner = threading.Thread(target=ours.run, daemon=True)
        runner.start()
        question, peer = hostapd.recvfrom(100)
        assert question == b"ATTACH"
        # An event may come before the answer.
        hostapd.sendto(b"<3>AP-STA-CONNECTED 02:00:00:00:00:01", peer)
        hostapd.sendto(b"OK\n", peer)
        hostapd.sendto(b"<3>AP-STA-DISCONNECTED 02:00:00:00:00:01", peer)
        time.sleep(0.2)
        heard: list[Notice] = []
        with listening(heard, port=port):
            wait(lambda: len(heard) == 2)
            assert heard == [NOTICE, Notice("ap1", "wlan0", NOTICE.mac, False, 7, 900)]
            ours.stop()
            hostapd.sendto(b"<3>x", peer)
            runner.join(10)
            assert not runner.is_alive()


def test_agent_tells_a_controller_that_started_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "RETRY_S", 30)
    control, peers = tmp_path / "hostapd", []
    hostapd = Hostapd(control)
    with socket.create_server(("127.0.0.1", 0)) as controller:
        controller.settimeout(10)
        ours = Agent(control, controller.getsockname(), ("ap1", "wlan0"))
        runner = threading.Thread(target=ours.run, daemon=True)
        runner.start()
        wait(lambda: hostapd.attached)
        for event in ("CONNECTED", "DISCONNECTED"):
            # The controller answers once, and is gone before the next event.
            hostapd.say(f"<3>AP-STA-{event} {NOTICE.mac}")
            peer, _ = controller.accept()
            with peer, peer.makefile("rwb") as lines:
                peers.append(json.loads(lines.readline()))
                lines.write(b'{"taken": true}\n')
        assert [peer["joined"] for peer in peers] == [True, False]
        ours.stop()
        hostapd.say("<3>x")
        runner.join(10)
        assert not runner.is_alive()
    hostapd.close()


def test_counter_of_a_flow_is_read() -> None:
    text = (
        "NXST_FLOW reply\n cookie=0x1, table=1, n_packets=9, priority=350,in_port=1\n"
        " cookie=0x1, table=1, n_packets=42, n_bytes=1, priority=300,dl_dst=x actions=output:1\n"
    )
    assert agent.counted(text) == (None, (42, 1))
    assert agent.counted(text.replace("=output", "=meter:10007,output")) == (10007, (42, 1))
    assert agent.counted("") == (None, (-1, -1))


def test_counter_of_a_meter_is_read() -> None:
    text = (
        "OFPST_METER reply (OF1.3) (xid=0x2):\nmeter:10007 flow_count:1 packet_in_count:43 "
        "byte_in_count:5000 duration:0.5s bands:\n0: packet_count:0 byte_count:0\n"
    )
    assert agent.metered(text) == (43, 5000)
    assert agent.metered("") == (-1, -1)
