"""The agent with a real hostapd: its driver for wired ports needs no radio, and says of a station
that authenticates with 802.1X what the others say of one that associates."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_roam_notices import listening, wait

from ropewalk.sdn.roam.agent import Agent
from ropewalk.sdn.roam.events import Notice

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root"),
]

STATION = "02:00:00:00:00:01"

HOSTAPD = """\
interface=ap0
driver=wired
ctrl_interface={directory}/control
ieee8021x=1
eap_server=1
eap_user_file={directory}/users
use_pae_group_addr=1
"""
SUPPLICANT = """\
ap_scan=0
network={
    key_mgmt=IEEE8021X
    eap=MD5
    identity="station"
    password="secret"
    eapol_flags=0
}
"""


class Port:
    """A port with 802.1X, and a station at its other end; each in a namespace."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names = [f"roam-{side}-{os.getpid()}" for side in ("ap", "station")]
        self._programs: list[subprocess.Popen[bytes]] = []
        (directory / "hostapd.conf").write_text(HOSTAPD.format(directory=directory))
        (directory / "users").write_text('"station" MD5 "secret"\n')
        (directory / "supplicant.conf").write_text(SUPPLICANT)

    def __enter__(self) -> Port:
        ap, station = self.names
        for name in self.names:
            _ip("netns", "add", name)
        peer = ("peer", "name", "station0", "netns", station, "address", STATION)
        _ip("link", "add", "ap0", "netns", ap, "type", "veth", *peer)
        _ip("-n", ap, "link", "set", "ap0", "up")
        _ip("-n", station, "link", "set", "station0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
            program.wait(10)
        for name in self.names:
            _ip("netns", "delete", name)

    def start(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Starts a program in a namespace."""
        words = ["ip", "netns", "exec", name, *map(str, command)]
        with (self.directory / "log").open("ab") as log:
            program = subprocess.Popen(words, stdout=log, stderr=log)
        self._programs.append(program)
        return program

    @contextlib.contextmanager
    def hostapd(self) -> Iterator[None]:
        """hostapd runs meanwhile."""
        program = self.start(self.names[0], "hostapd", self.directory / "hostapd.conf")
        wait(lambda: (self.directory / "control" / "ap0").exists())
        yield
        _end(program)

    @contextlib.contextmanager
    def station(self) -> Iterator[None]:
        """The station is there meanwhile."""
        command = ("wpa_supplicant", "-D", "wired", "-i", "station0", "-c")
        program = self.start(self.names[1], *command, self.directory / "supplicant.conf")
        yield
        _end(program)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _end(program: subprocess.Popen[bytes]) -> None:
    program.terminate()
    program.wait(10)


def test_station_is_told_by_a_real_hostapd_also_after_its_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    heard: list[Notice] = []
    come = Notice("ap1", "wlan0", STATION, True)
    with Port(tmp_path) as port, listening(heard) as server:
        place = ("ap1", "wlan0")
        ours = Agent(tmp_path / "control" / "ap0", ("127.0.0.1", server.port), place)
        runner = threading.Thread(target=ours.run, daemon=True)
        with port.hostapd():
            runner.start()
            wait(lambda: "attached" in caplog.text)
            with port.station():
                wait(lambda: come in heard)
        # It takes leave of its stations when it ends.
        wait(lambda: Notice("ap1", "wlan0", STATION, False) in heard)
        heard.clear()
        with port.hostapd():
            wait(lambda: caplog.text.count("attached") == 2)
            with port.station():
                wait(lambda: come in heard)
                ours.stop()
        runner.join(15)
        assert not runner.is_alive()
