"""The page of `ropewalk-sdn`: who reaches it, what it says, and Chromium over real Open vSwitch."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_parts import Window
from roam_parts import configuration
from sdn_parts import FakeSwitch, balance, bicast

from ovs_testbed import balance as bench
from ovs_testbed.machine import Sandbox, run, stop
from ropewalk.lab.runner import UnavailableError
from ropewalk.sdn import cli, endpoint
from ropewalk.sdn.api import ApiError
from ropewalk.sdn.balance.policy import Balance
from ropewalk.sdn.bicast.policy import Bicast
from ropewalk.sdn.dashboard import server, view
from ropewalk.sdn.dashboard.server import Dashboard
from ropewalk.sdn.happened import LINES_MAX, Happened
from ropewalk.sdn.roam import policy as roam
from ropewalk.sdn.roam.state import report as roam_report

ASSETS = Path(__file__).resolve().parents[2] / "crates/dashboard/assets"
COUNTERS = dict.fromkeys(
    (
        "packets_in",
        "packets_dropped",
        "flow_mods",
        "packets_out",
        "refused_connections",
        "refused_messages",
    ),
    3,
)
POINT: dict[str, Any] = {"step_s": 1, "end_s": 1, "offered": [], "up": [], "uplinks": []}


def told(report: dict[str, object]) -> dict[str, Any]:
    """A report as the API tells it."""
    return {**report, "standing_by": 0, "uptime_s": 61.0, "counters": COUNTERS}


def shown(report: dict[str, object]) -> dict[str, Any]:
    message = view.of(told(report), "1.2.3", 1_800_000_000, POINT)
    return dict(json.loads(json.dumps(message)))


def texts(message: dict[str, Any]) -> list[str]:
    return [words["text"] for card in message["sdn"]["cards"] for words in card["words"]]


def balancing(directory: Path, silent: set[int] | None = None) -> dict[str, object]:
    switch = FakeSwitch(Balance(), balance(directory), silent=silent)
    switch.run(8)
    return dict(switch.policy.report(switch.state, switch.now))


def test_balance_says_the_share_of_each_uplink_and_why_one_is_not_used(tmp_path: Path) -> None:
    both = shown(balancing(tmp_path))
    assert texts(both) == [
        "works; its part of new flows is 75 %",
        "works; its part of new flows is 25 %",
    ]
    assert both["sdn"]["state"].startswith("The switch is connected: 2 of 2 uplinks are used.")
    one = shown(balancing(tmp_path, silent={3}))
    assert texts(one) == [
        "works; its part of new flows is 100 %",
        "its next hop answers neither ARP nor neighbour discovery",
    ]


def test_bicast_says_which_paths_carry_and_which_is_a_spare(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path, "copies = 2", uplinks=3))
    switch.run(8)
    message = shown(switch.policy.report(switch.state, switch.now))
    assert texts(message) == [
        "works; carries every packet",
        "works; carries a copy of each chosen packet",
        "works; a spare",
    ]
    assert ["Copies", "each chosen packet goes over 2 paths"] in message["sdn"]["facts"]


def test_roam_says_which_switch_is_connected_and_where_stations_are(tmp_path: Path) -> None:
    report = roam_report(roam.begin(configuration(tmp_path)), 100.0)
    station = {"mac": "0a:00:00:00:00:07", "address": None, "switch": "s1", "port": "p1"}
    many = [
        {**station, "mac": f"m{n}", "here": True, "since_s": float(n), "kept_packets": 0}
        for n in range(view.STATIONS_MAX + 1)
    ]
    message = shown({**report, "stations": many})
    assert set(texts(message)) == {"not connected"}
    table = message["sdn"]["table"]
    assert table["title"] == f"Stations, the {view.STATIONS_MAX} that changed last"
    assert table["rows"][0] == ["m0", "–", "s1:p1", "here for 0 s", "0"]
    assert message["words"] == [], "each switch says so itself"


def test_a_switch_that_is_gone_is_said_above_all_uplinks(tmp_path: Path) -> None:
    message = shown({**balancing(tmp_path), "connected": False})
    assert message["words"][0]["weight"] == "bad"
    assert "no switch is connected" in message["words"][0]["text"]


def test_the_past_is_bounded_and_keeps_what_the_log_told() -> None:
    past = Happened()
    log = logging.getLogger("ropewalk.sdn.test")
    log.addHandler(past)
    log.setLevel(logging.DEBUG)
    try:
        log.debug("a detail")
        for number in range(LINES_MAX + 5):
            log.info("uplink %s", number)
    finally:
        log.removeHandler(past)
    lines = past.lines()
    assert [line["what"] for line in lines] == [f"uplink {n}" for n in range(5, LINES_MAX + 5)]


class Served:
    """The server over a report of the test, and requests as a browser makes them."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.asked: list[str] = []
        self.report: dict[str, Any] | None = report
        self.server = Dashboard(0, self.ask)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.port = int(self.server.server_address[1])
        self.host = f"127.0.0.1:{self.port}"

    def ask(self, target: str) -> dict[str, Any]:
        self.asked.append(target)
        if self.report is None:
            raise ApiError("no controller answers")
        return self.report if target == "/v1/status" else {"happened": []}

    def send(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        lines = {"Host": self.host, **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.request(method, path, body, lines)
        answer = connection.getresponse()
        text = answer.read(200_000).decode(errors="replace") if path != "/events" else ""
        found = {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        return answer.status, found, text

    def dial(self, head: str) -> socket.socket:
        """A connection on which the head of a request was said, and no body."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        client.sendall(head.replace("\n", "\r\n").encode())
        return client

    def cookie(self) -> str:
        body = json.dumps({"token": self.server.token})
        origin = f"http://{self.host}"
        code, headers, _ = self.send("/session", "POST", body, Origin=origin)
        assert code == 200
        assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
        return headers["set-cookie"].split(";")[0]


def test_a_second_without_a_look_is_no_gap_and_a_long_silence_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = told(balancing(tmp_path))
    looks = server.Looks(lambda _: report)
    for now in (100.9, 102.0, 103.1, 120.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        message = json.loads(looks.message().partition(b"data: ")[2])
    known = [rtt is not None for rtt in message["points"]["uplinks"][0]["rtt_ms"]]
    assert known == [False] * (server.NEWEST - 1) + [True]
    known = [rtt is not None for rtt in looks.history()["uplinks"][0]["rtt_ms"]][-21:]
    assert known == [True] * 4 + [False] * 16 + [True]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(told(balancing(tmp_path)))
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_only_who_followed_the_link_from_its_own_page_sees_anything(served: Served) -> None:
    cookie = served.cookie()
    own = f"http://{served.host}"
    assert served.send("/api/history", Cookie=cookie)[0] == 200
    assert served.send("/api/history")[0] == 401
    assert served.send("/api/history", Cookie=cookie[:-1] + "x")[0] == 401
    for bad in (
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": f"http://127.0.0.1:{served.port + 1}"},
        {"Origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        assert served.send("/api/history", Cookie=cookie, **bad)[0] == 403, bad
        assert served.send("/", **bad)[0] == 403, bad
    # A port that `ssh -L` chose, and other names of the loopback.
    for host in ("localhost:9", "[::1]:9", "127.0.0.2"):
        assert served.send("/api/about", Cookie=cookie, Host=host)[0] == 200, host
    token = json.dumps({"token": served.server.token})
    assert served.send("/session", "POST", token)[0] == 403, "without an origin"
    assert served.send("/session", "POST", '{"token": "é"}', Origin=own)[0] == 401
    assert served.send("/session", "POST", "[]", Origin=own)[0] == 401
    assert served.send("/session", "POST", "x" * 20_000, Origin=own)[0] == 400
    assert served.send("/api/path", "POST", "{}", Origin=own, Cookie=cookie)[0] == 403
    assert served.send("/assets/../server.py")[0] == 404
    assert served.send("/nothing", Cookie=cookie)[0] == 404
    assert served.asked == [], "nothing is asked while no window is open"


def test_no_stranger_has_the_server_wait_for_a_body(served: Served) -> None:
    own = f"Host: {served.host}\nOrigin: http://{served.host}\n"
    foreign = "Host: evil.example\nOrigin: http://evil.example\n"
    for lines, length, code in (
        (own, "000000000999999999999", b" 400 "),
        (own, "0" * 5000 + "1", b" 400 "),
        (own, str(server.BODY_MAX + 1), b" 400 "),
        (foreign, "100", b" 403 "),
    ):
        with served.dial(f"POST /session HTTP/1.1\n{lines}Content-Length: {length}\n\n") as client:
            answer = b""
            while part := client.recv(4096):
                answer += part
        assert code in answer.split(b"\r\n")[0], (length[-9:], answer)


def test_a_client_keeps_its_place_no_longer_for_sending_a_byte_at_a_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SECONDS_MAX", 0.5)
    own = f"Host: {served.host}\nOrigin: http://{served.host}\n"
    for head in ("GET / HTTP/1.1\nX: ", f"POST /session HTTP/1.1\n{own}Content-Length: 9000\n\n"):
        with served.dial(head) as client:
            began_s = time.monotonic()
            # Whoever sends to a connection that has ended hears so at the next byte.
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                while time.monotonic() < began_s + 3:
                    client.sendall(b"x")
                    time.sleep(0.05)


def test_a_window_that_says_something_gets_no_news_earlier(served: Served) -> None:
    head = f"GET /events HTTP/1.1\nHost: {served.host}\nCookie: {served.cookie()}\n\n"
    with served.dial(head) as client:
        began_s, got = time.monotonic(), b""
        client.settimeout(0.05)
        while time.monotonic() < began_s + 2.5:
            client.sendall(b"x")
            try:
                got += client.recv(1 << 20)
            except TimeoutError:
                continue
    assert 2 <= got.count(b"event: view") <= 3


@pytest.mark.parametrize(
    "arguments",
    [["dashboard", "--port", "000080999"], ["certificates", "d", "--days", "000036999"]],
)
def test_a_number_with_many_zeros_is_not_read_in_part(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.make_parser().parse_args(arguments)
    assert ended.value.code == 2
    with pytest.raises(ValueError, match="is no address with a port"):
        endpoint.parse("127.0.0.1:000080999")


def test_the_page_is_that_of_the_gateway_and_may_run_its_own_scripts_only(served: Served) -> None:
    files = {str(path.relative_to(ASSETS)) for path in ASSETS.rglob("*") if path.is_file()}
    assert files == set(served.server.files)
    for name in files:
        assert served.server.files[name] == (ASSETS / name).read_bytes(), name
    _, headers, text = served.send("/")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; script-src 'self' 'sha256-{digest}'; ")
    assert "unsafe" not in policy
    assert headers["cache-control"] == "no-store"
    # The gateway's dashboard has the same policy.
    rust = (ASSETS.parent / "src/access.rs").read_text()
    assert digest in rust


def test_a_controller_that_is_gone_is_said(served: Served) -> None:
    assert served.server.looks.message().startswith(b"event: view\n")
    served.report = None
    served.server.looks = type(served.server.looks)(served.ask)
    assert served.server.looks.message().startswith(b'event: gone\ndata: {"error": "no controller')


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root")
def test_a_real_bridge_is_shown_with_an_uplink_that_fails(tmp_path: Path) -> None:
    with Sandbox("ropewalk-sdn-dashboard-") as sandbox:
        made = bench.Bench(sandbox)
        command = [sys.executable, "-m", "ropewalk.sdn", "-c", str(made.config.path), "dashboard"]
        page = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        window = None
        try:
            assert page.stdout is not None
            link = page.stdout.readline().strip()
            assert link.startswith("http://127.0.0.1:"), link
            try:
                window = Window(tmp_path)
            except UnavailableError as error:
                pytest.skip(str(error))
            window.size(1280, 900, dark=False)
            window.open(link)
            _look(window)
            run("ip", "-n", made.machine.namespace, "link", "set", "u0", "down")
            first = "document.querySelector('.card').innerText"
            window.until(f"{first}.includes('ipv4: its port is down or gone')")
            window.until("document.getElementById('state').textContent.includes('1 of 2 uplinks')")
            happened = "document.querySelector('.events').innerText"
            window.until(f"{happened}.includes('uplink u0 is not used any more with IPv4')")
            assert window.complaints() == []
            # A controller that ends is told, and one that is back is shown.
            stop(made.controller)
            state = "document.getElementById('state').textContent"
            window.until(f"{state}.startsWith('The controller has not answered since ')")
            run("ip", "-n", made.machine.namespace, "link", "set", "u0", "up")
            made.controller = made.control()
            window.until(f"{state}.startsWith('The switch is connected')")
        finally:
            if window:
                window.end()
            page.send_signal(signal.SIGINT)
            assert page.wait(10) == 130


def _look(window: Window) -> None:
    """The page as a person sees it, and as axe-core does."""
    start = "The switch is connected: 2 of 2 uplinks are used."
    window.until(f"document.getElementById('state').textContent.startsWith({start!r})")
    window.until("document.querySelectorAll('.card').length === 2")
    text = window.until(
        "document.querySelectorAll('canvas').length === 3 && document.body.innerText"
    )
    for part in ("ipv4: works; its part of new flows is", "ipv6: works", "Weights", "Mbit/s"):
        assert part in text, part
    window.until("document.querySelector('.events').innerText.includes('uplink u1 is used')")
    assert window.value("location.hash") == ""
    buttons = "[...document.querySelectorAll('button')].filter((b) => b.offsetParent).length"
    assert window.value(buttons) == 0, "nothing can be changed"
    window.value("document.querySelectorAll('details').forEach((d) => { d.open = true; }); 1")
    for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
        window.size(width, 844, dark, mobile=width < 500)
        assert window.accessibility() == []
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert window.value(wide) <= 0
