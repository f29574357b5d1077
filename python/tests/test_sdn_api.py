"""The API: no client holds up another, none takes the controller down, and no socket is stolen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sdn_parts import balance

from ropewalk.sdn import api, cli
from ropewalk.sdn.balance.policy import Balance
from ropewalk.sdn.host import commands
from ropewalk.sdn.host.commands import CommandError

REPORT = {"mode": "roam", "stations": [], "switches": [], "kept_bytes": 0, "counters": {"left": 2}}
PATIENCE_S = 20.0
"""Far more than anything here takes."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api.sock"


@contextlib.contextmanager
def served(path: Path, report: Callable[[], Any] = lambda: REPORT) -> Iterator[api.Api]:
    one = api.Api(path, report)
    try:
        yield one
    finally:
        one.close()


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_S)
    client.connect(str(path))
    return client


def heard(client: socket.socket) -> bytes:
    """Everything until the other end closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(1 << 16):
            data += more
    return data


def said(path: Path, request: bytes) -> bytes:
    """The answer to a request, after which nothing is said any more."""
    with connected(path) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
        return heard(client)


def wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_who_says_nothing_holds_up_nobody(path: Path) -> None:
    with served(path), contextlib.ExitStack() as silent:
        for _ in range(api.CLIENTS_MAX - 1):
            silent.enter_context(connected(path))
        began = time.monotonic()
        for _ in range(20):
            assert api.ask(path)["mode"] == "roam"
        assert time.monotonic() - began < api.SECONDS_MAX


def test_who_asks_a_byte_at_a_time_loses_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SECONDS_MAX", 0.3)
    with served(path) as one, connected(path) as client:
        end = time.monotonic() + PATIENCE_S
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(b"GET /v1/status HTTP/1.1\r\nX: ")
            while time.monotonic() < end:
                client.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() < end
        wait(lambda: one.broken == 1)


def test_who_reads_a_byte_at_a_time_loses_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SECONDS_MAX", 0.3)
    large = {**REPORT, "text": "x" * (4 << 20)}
    with served(path, lambda: large) as one, connected(path) as client:
        client.sendall(b"GET /v1/status HTTP/1.1\r\n\r\n")
        end = time.monotonic() + PATIENCE_S
        while not one.broken and time.monotonic() < end:
            client.recv(1)
            time.sleep(0.01)
        assert one.broken == 1
        assert len(heard(client)) < 4 << 20


def test_connections_beyond_the_bound_are_refused_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "CLIENTS_MAX", 2)
    with served(path) as one:
        with connected(path), connected(path):
            answer = said(path, b"GET /v1/status HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.0 503 ")
            assert one.refused == 1
        assert api.ask(path)["counters"]["refused_requests"] >= 1
        assert b"\nropewalk_sdn_refused_requests_total " in said(path, b"GET /metrics HTTP/1.0\n\n")


def test_who_asks_comes_again_when_there_is_no_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "CLIENTS_MAX", 1)
    with served(path) as one, ThreadPoolExecutor() as pool:
        with connected(path):
            waits = pool.submit(api.ask, path)
            wait(lambda: one.refused > 0)
        assert waits.result()["mode"] == "roam"


def test_two_hundred_requests_at_once_are_all_answered(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SECONDS_MAX", PATIENCE_S)
    with served(path), ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda _: api.ask(path)["mode"], range(200)))
    assert answers == ["roam"] * 200


@pytest.mark.parametrize(
    ("request_", "status", "broken"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200", 0),
        (b"GET /metrics HTTP/1.0\n\n", b"200", 0),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404", 0),
        (b"POST /v1/status HTTP/1.1\r\nContent-Length: 9\r\n\r\nconfigure", b"501", 0),
        (b"", b"", 0),
        (b"\r\n\r\n", b"", 0),
        (b"GET /metrics\r\n\r\n", b"200", 0),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"505", 1),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), b"400", 1),
        (b"GET /" + b"x" * (1 << 20), b"414", 1),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000, b"431", 1),
    ],
)
def test_whatever_a_client_says_is_answered_quietly(
    path: Path,
    capfd: pytest.CaptureFixture[str],
    request_: bytes,
    status: bytes,
    broken: int,
) -> None:
    with served(path) as one:
        answer = said(path, request_)
        assert answer.split(b" ", 2)[1:2] == ([status] if status else [])
        assert one.broken == broken
        assert api.ask(path)["mode"] == "roam"
    assert capfd.readouterr() == ("", "")


def test_a_client_that_goes_is_told_to_nobody(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    large = {**REPORT, "text": "x" * (4 << 20)}
    with served(path, lambda: large) as one:
        for _ in range(5):
            with connected(path) as client:
                client.sendall(b"GET /v1/status HTTP/1.1\r\n\r\n")
                client.recv(1)
        wait(lambda: one.broken == 5)
        assert api.ask(path)["mode"] == "roam"
    assert capfd.readouterr() == ("", "")


def test_a_report_that_fails_is_an_answer_and_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = True

    def report() -> dict[str, Any]:
        if failing:
            raise RuntimeError("dictionary changed size during iteration")
        return REPORT

    with served(path, report):
        with pytest.raises(api.ApiError, match="500"):
            api.ask(path)
        failing = False
        assert api.ask(path)["mode"] == "roam"
    assert "no report could be made" in caplog.text


def test_the_largest_table_of_stations_is_told(path: Path) -> None:
    name = "a-name-of-a-switch-that-is-as-long-as-a-switch's-name-may-be-64ch"
    station = {
        "mac": "02:00:00:00:00:01",
        "address": "255.255.255.255",
        "switch": name,
        "port": "a-name-of-a-port",
        "moves": True,
        "here": False,
        "since_s": 1234567.891,
        "kept_packets": 123456,
    }
    with served(path, lambda: {**REPORT, "stations": [station] * 4096}):
        assert len(api.ask(path)["stations"]) == 4096


def test_the_socket_is_for_its_owner_alone(path: Path) -> None:
    former = os.umask(0)
    try:
        with served(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(former)


def test_closing_takes_no_longer_for_who_says_nothing(path: Path) -> None:
    with contextlib.ExitStack() as silent:
        with served(path):
            clients = [silent.enter_context(connected(path)) for _ in range(5)]
            assert api.ask(path)["mode"] == "roam"
            began = time.monotonic()
        assert time.monotonic() - began < api.SECONDS_MAX
        assert not path.exists()
        assert [heard(client) for client in clients] == [b""] * 5
    with pytest.raises(api.ApiError, match="no controller answers"):
        api.ask(path)


def test_what_a_killed_controller_left_is_replaced(path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from ropewalk.sdn.api import Api\n"
        "one = Api(Path(sys.argv[1]), dict)\n"
        "print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        process.kill()
    assert path.is_socket()
    with pytest.raises(api.ApiError):
        api.ask(path)
    with served(path):
        assert api.ask(path)["mode"] == "roam"


def test_a_live_controllers_socket_is_not_stolen(path: Path) -> None:
    with served(path):
        with pytest.raises(OSError, match="somebody listens"):
            api.Api(path, dict)
        assert api.ask(path)["mode"] == "roam"


def test_one_that_is_too_busy_to_be_reached_is_alive(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as waiting:
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        with pytest.raises(OSError, match="somebody listens"):
            api.Api(path, dict)
        assert path.is_socket()


def test_of_several_that_start_at_once_one_has_the_socket(path: Path) -> None:
    for _ in range(10):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        gate = threading.Barrier(8)

        def start(gate: threading.Barrier = gate) -> api.Api | None:
            gate.wait()
            with contextlib.suppress(OSError):
                return api.Api(path, lambda: REPORT)
            return None

        with ThreadPoolExecutor(8) as pool:
            started = [pool.submit(start) for _ in range(8)]
            won = [one for future in started if (one := future.result())]
        try:
            assert len(won) == 1
            assert api.ask(path)["mode"] == "roam"
        finally:
            for one in won:
                one.close()


def test_closing_leaves_another_controllers_socket(path: Path) -> None:
    with served(path, dict):
        path.unlink()
        with served(path):
            pass
        assert not path.exists()
        second = api.Api(path, lambda: REPORT)
    try:
        assert api.ask(path)["mode"] == "roam"
    finally:
        second.close()


def test_what_is_no_socket_is_left(tmp_path: Path, path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(OSError, match="no socket"):
        api.Api(path, dict)
    assert path.read_text() == "precious"
    link = tmp_path / "link.sock"
    link.symlink_to(path)
    with pytest.raises(OSError, match="no socket"):
        api.Api(link, dict)
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["x" * 200, "a\0b"])
def test_a_path_that_no_socket_can_have_is_an_error_with_its_name(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(OSError, match=str(tmp_path)):
        api.Api(tmp_path / name, dict)
    with pytest.raises(api.ApiError):
        api.ask(tmp_path / name)


@contextlib.contextmanager
def _answering(path: Path, answer: bytes, *, closes: bool = True) -> Iterator[None]:
    """Somebody else's program, which says the same to everybody."""
    clients: list[socket.socket] = []

    def answers(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                clients.append(client)
                with contextlib.suppress(OSError):
                    client.recv(4096)
                    client.sendall(answer)
                if closes:
                    client.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        thread = threading.Thread(target=answers, args=(listener,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)
            for client in clients:
                client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000,
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (9 << 20),
    ],
)
def test_an_answer_that_is_no_controllers_is_told(path: Path, answer: bytes) -> None:
    with _answering(path, answer), pytest.raises(api.ApiError, match=str(path)):
        api.ask(path)


def test_who_asks_waits_no_longer_than_its_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SECONDS_MAX", 0.3)
    answering = _answering(path, b"HTTP/1.1 200 OK\r\n", closes=False)
    with answering, pytest.raises(api.ApiError, match="timed out"):
        api.ask(path)


def test_labels_of_metrics_are_escaped() -> None:
    uplink = {"name": 'w"\\\n', "family": "ipv4", "usable": True, "rtt_ms": None, "loss": None}
    text = api.metrics({"mode": "balance", "uplinks": [uplink], "counters": {}})
    assert 'ropewalk_sdn_uplink_usable{uplink="w\\"\\\\\\n",family="ipv4"} 1\n' in text


def _program(*arguments: str | Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    python = str(Path(cli.__file__).parents[2])
    return (
        [sys.executable, "-m", "ropewalk.sdn", *map(str, arguments)],
        {**os.environ, "PYTHONPATH": python, **environment},
    )


@pytest.fixture
def configured(tmp_path: Path, path: Path) -> Iterator[Path]:
    """A configuration whose controller answers."""
    config = balance(tmp_path)
    config.path.write_text(f'socket = "{path}"\n{config.path.read_text()}')
    policy = Balance()
    state = policy.begin(config)
    with served(path, lambda: {**policy.report(state, 0.0), "counters": {}}):
        yield config.path


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [("status",), ("status", "--json"), ("check",), ("completions", "bash"), ("--help",),
     ("setup", "--help"), ("--version",)],
)  # fmt: skip
def test_a_reader_who_has_seen_enough_is_no_error(
    configured: Path, arguments: tuple[str, ...], unbuffered: str
) -> None:
    command, environment = _program("--config", configured, *arguments, PYTHONUNBUFFERED=unbuffered)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_output_that_is_full_is_an_error_in_one_line(configured: Path) -> None:
    command, environment = _program("status", "--config", configured)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1


def test_a_file_whose_name_is_no_text_can_be_checked(configured: Path) -> None:
    named = os.fsencode(configured.parent) + b"/\xff.toml"
    Path(os.fsdecode(named)).write_bytes(configured.read_bytes())
    command, environment = _program("check", "--config", Path(os.fsdecode(named)))
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["check", "status", "status --json", "teardown --plan"])
def test_config_stands_before_or_after_the_command(
    configured: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    config = configured.rename(configured.with_name("other.toml"))
    written = []
    for line in (
        ["--config", str(config), *command.split()],
        [*command.split(), "--config", str(config)],
        [*command.split()[:1], "--config", str(config), *command.split()[1:]],
        ["--config", "/nowhere", *command.split(), "--config", str(config)],
    ):
        assert cli.main(line) == 0
        # How long the controller has run differs from one to the next.
        written.append(re.sub(r'"uptime_s": [0-9.]+', "", capsys.readouterr().out))
    assert written == written[:1] * 4


def test_every_command_takes_config_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "setup", "teardown", "run", "status"):
        assert cli.main([command, "--config", "/nowhere/sdn.toml"]) == 2
        assert "/nowhere/sdn.toml" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert "--config FILE" in capsys.readouterr().out
    assert cli.main(["completions", "bash", "--config", "/nowhere/sdn.toml"]) == 0


def test_a_report_of_another_version_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = balance(tmp_path)
    config.path.write_text(f'socket = "{tmp_path}/api.sock"\n{config.path.read_text()}')
    with served(tmp_path / "api.sock", lambda: {"mode": "balance", "connected": 3}):
        assert cli.main(["status", "--config", str(config.path)]) == 1
        assert "restart" in capsys.readouterr().err
        assert cli.main(["status", "--json", "--config", str(config.path)]) == 0


def _running(config: Path) -> subprocess.Popen[bytes]:
    command, environment = _program("run", "--config", config)
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def test_a_controller_is_started_again_after_kill_and_ends_without_a_socket(
    tmp_path: Path, path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = balance(tmp_path)
    config.path.write_text(
        f'socket = "{path}"\n{config.path.read_text()}\n[controller]\nlisten = "127.0.0.1:{port}"\n'
    )

    def answers() -> bool:
        with contextlib.suppress(api.ApiError):
            return bool(api.ask(path))
        return False

    with _running(config.path) as killed:
        try:
            wait(answers)
        finally:
            killed.kill()
    assert path.is_socket()
    with _running(config.path) as process:
        try:
            wait(answers)
            assert said(path, b"junk\r\n\r\n").startswith(b"HTTP/1.0 400 ")
            with connected(path):
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0
            assert process.stderr
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert not path.exists()


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_a_word_that_no_program_can_be_given_is_an_error_that_names_the_command(word: str) -> None:
    with pytest.raises(CommandError, match="`echo ") as caught:
        commands.run(["echo", word])
    assert str(caught.value).isprintable()
    with pytest.raises(CommandError):
        commands.run([word])


def test_output_that_is_no_text_or_no_table_is_replaced_or_an_error(tmp_path: Path) -> None:
    assert commands.run(["printf", r"a\377b"]) == "a\ufffdb"
    for text in ("5", "{}", "null", "[" * 200_000, "x"):
        (tmp_path / "said").write_text(text)
        with pytest.raises(CommandError, match="printed no JSON"):
            commands.rows(["cat", str(tmp_path / "said")])
    assert commands.rows(["printf", "%s", json.dumps([{"a": 1}, {}, 3])]) == [{"a": 1}]


def test_what_a_command_says_at_length_is_cut() -> None:
    with pytest.raises(CommandError) as caught:
        commands.run(["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1"])
    assert len(str(caught.value)) < 2 * commands.SAID_MAX
