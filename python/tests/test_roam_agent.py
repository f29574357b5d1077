"""How `ropewalk-sdn ap-agent` ends, as a process of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from roam_parts import MAC
from test_roam_notices import listening, wait

from ovs_testbed.hostapd import Hostapd
from ropewalk.sdn.roam.events import Notice

END_S = 30
"""On a machine that does other things too."""
MAIN = "import sys\nfrom ropewalk.sdn.cli import main\nsys.exit(main(sys.argv[1:]))\n"
FAULT = """\
from ropewalk.sdn.roam import agent

def client(*_):
    raise LookupError("a fault of the agent's own")

agent.Client = client
agent.PING_S = 0.2
"""


@contextlib.contextmanager
def agent(directory: Path, port: int, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """Runs one; `before` is done in it first."""
    temporary = directory / "temporary"
    temporary.mkdir()
    # A test may itself run where Ctrl-C is ignored.
    command = ["env", "--default-signal=INT", f"TMPDIR={temporary}", sys.executable, "-c"]
    words = ["ap-agent", "--hostapd", str(directory / "hostapd"), "--switch", "ap1"]
    words += ["--port", "wlan0", "--controller", f"127.0.0.1:{port}"]
    process = subprocess.Popen([*command, before + MAIN, *words], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status, and what it logged."""
    _, log = process.communicate(timeout=END_S)
    return process.returncode, log


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_agent_that_is_stopped_takes_its_leave(tmp_path: Path, how: signal.Signals) -> None:
    hostapd = Hostapd(tmp_path / "hostapd")
    heard: list[Notice] = []
    with listening(heard) as server, agent(tmp_path, server.port) as process:
        wait(lambda: hostapd.attached, END_S)
        hostapd.say(f"<3>AP-STA-CONNECTED {MAC}")
        wait(lambda: heard, END_S)
        process.send_signal(how)
        status, log = ended(process)
        wait(lambda: hostapd.asked[-1] == b"DETACH")
    hostapd.close()
    assert (status, heard) == (0, [Notice("ap1", "wlan0", MAC, True)])
    assert "Traceback" not in log
    assert not any((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("there", [True, False])
def test_agent_that_nobody_answers_can_be_stopped(
    tmp_path: Path, how: signal.Signals, there: bool
) -> None:
    """Neither hostapd, if it is there at all, nor a controller."""
    hostapd = Hostapd(tmp_path / "hostapd", deaf=True) if there else None
    with agent(tmp_path, 9) as process:
        if hostapd:
            wait(lambda: hostapd.asked, END_S)
        else:
            assert process.stderr
            assert "is hostapd running" in process.stderr.readline()
        process.send_signal(how)
        status, log = ended(process)
    if hostapd:
        hostapd.close()
    assert status == 0
    assert "Traceback" not in log
    assert not any((tmp_path / "temporary").iterdir())


def test_agent_that_can_tell_nobody_any_more_ends(tmp_path: Path) -> None:
    hostapd = Hostapd(tmp_path / "hostapd")
    with agent(tmp_path, 9, before=FAULT) as process:
        status, log = ended(process)
    wait(lambda: hostapd.asked[-1] == b"DETACH")
    hostapd.close()
    assert status == 1
    assert "ERROR the controller is told nothing any more" in log
    assert "LookupError: a fault of the agent's own" in log
