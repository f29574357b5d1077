"""The network of `roam` with radios of 802.11: hostapd, wpa_supplicant and an agent for each
access point, on the radios that Linux emulates (mac80211_hwsim).

The access points have the channels 1, 6 and 11 and one SSID without encryption. The radios share
one medium that loses nothing. What the controller knows of stations comes from the agents, and
from the station's own frames.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ovs_testbed import roam
from ovs_testbed.machine import Sandbox, SandboxError, run, stop, wait
from ropewalk.lab.runner import UnavailableError
from ropewalk.plan import Move

NEEDS: tuple[str, ...] = ("hostapd", "wpa_supplicant", "iw", "modprobe")
"""Programs besides those of every network."""
GUEST = "lab/guest/run"
CHANNELS = {1: 2412, 2: 2437, 3: 2462}
"""Frequency in MHz by access point: channels 1, 6 and 11, as in the paper."""
RADIOS = 4
_LOADED = Path("/sys/module/mac80211_hwsim")
"""Exists while the radios do."""
ANSWER_S = 20.0
"""For an answer of wpa_supplicant. An association scans first; an emulated processor is slow."""
HOSTAPD = """\
interface={name}
driver=nl80211
ssid=ropewalk
hw_mode=g
channel={channel}
ctrl_interface={control}
ap_isolate=1
"""
SUPPLICANT = "ctrl_interface={control}\nap_scan=1\n"
NETWORK = """\
network={{
    ssid="ropewalk"
    key_mgmt=NONE
    scan_freq={frequency}
    freq_list={frequency}
    disabled=1
}}
"""


class Bench(roam.Bench):
    """The network; three access points and one station with a radio each."""

    def __init__(self, sandbox: Sandbox, links: Path | None) -> None:
        self._agents: list[subprocess.Popen[Any]] = []
        self._supplicant: Supplicant | None = None
        # First: without radios nothing else is of use.
        self._phys = _radios()
        try:
            super().__init__(sandbox, links)
        # The next try loads them anew.
        except BaseException:
            _unload()
            raise

    def _wire_air(self) -> None:
        places = [(self.net.namespace, f"ap{number}-air") for number in CHANNELS]
        places.append((self.station, "sta0"))
        for (phy, interface), (namespace, name) in zip(self._phys, places, strict=True):
            run("iw", "phy", phy, "set", "netns", "name", namespace)
            run("ip", "-n", namespace, "link", "set", interface, "name", name)
        for number, frequency in CHANNELS.items():
            self._access_point(number, (frequency - 2407) // 5)

    def _access_point(self, number: int, channel: int) -> None:
        here, name = self.net.directory, f"ap{number}-air"
        file = here / f"{name}.conf"
        file.write_text(HOSTAPD.format(name=name, channel=channel, control=here / "hostapd"))
        self.sandbox.start(self.net.namespace, "hostapd", str(file), log="hostapd.log")
        wait((here / "hostapd" / name).exists, f"hostapd of {name} did not start")

    def _start_radio(self) -> subprocess.Popen[str]:
        """wpa_supplicant; the station is at no access point."""
        here = self.sandbox.directory
        networks = [NETWORK.format(frequency=frequency) for frequency in CHANNELS.values()]
        file = here / "station.conf"
        control = here / "supplicant"
        file.write_text(SUPPLICANT.format(control=control) + "".join(networks))
        program = ["wpa_supplicant", "-D", "nl80211", "-i", "sta0", "-c", str(file)]
        process = self.sandbox.start(self.station, *program, log="station.log")
        wait((control / "sta0").exists, "wpa_supplicant did not start")
        self._supplicant = Supplicant(control / "sta0", here / "station.sock")
        return process

    def control(self, scheme: str) -> None:
        """Restarts the controller with a way to treat moves, and the agents, which it hears."""
        for agent in self._agents:
            stop(agent)
        super().control(scheme)
        python = [sys.executable, "-m", "ropewalk.sdn", "ap-agent"]
        self._agents = [
            self.sandbox.start(
                self.net.namespace,
                *(*python, "--hostapd", str(self.net.directory / "hostapd" / f"ap{number}-air")),
                *("--controller", f"127.0.0.1:{roam.NOTICES_PORT}"),
                *("--switch", f"ap{number}", "--port", f"ap{number}-air"),
                *("--counters", f"unix:{self.net.directory}/ap{number}.mgmt"),
                log="agents.log",
            )
            for number in CHANNELS
        ]
        log = self.sandbox.directory / "agents.log"
        wait(lambda: log.read_text().count("attached to") >= RADIOS - 1, "the agents did not start")
        log.write_text("")

    def air(self, command: str, number: int) -> float:
        """Moves the station; when it began to leave, or was associated."""
        assert self._supplicant, "started before"
        if command == "leave":
            return self._supplicant.leave()
        return self._supplicant.join(number)

    def _leave(self, move: Move) -> float:
        if move.gap_s:
            return super()._leave(move)
        # It goes without a word to the former access point.
        return time.monotonic()

    def close(self) -> None:
        """Ends the helpers; the sandbox ends the rest."""
        for agent in self._agents:
            stop(agent)
        if self._supplicant:
            self._supplicant.close()
        super().close()
        _unload()


class Supplicant:
    """wpa_supplicant's control socket."""

    def __init__(self, path: Path, own: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        own.unlink(missing_ok=True)
        self._socket.bind(str(own))
        self._socket.connect(str(path))
        self._ask("ATTACH")

    def leave(self) -> float:
        """Leaves with a frame that says so; when that was asked for."""
        at_s = time.monotonic()
        self._ask("DISCONNECT", until="CTRL-EVENT-DISCONNECTED")
        return at_s

    def join(self, number: int) -> float:
        """Associates with an access point; when it had done so."""
        return self._ask(f"SELECT_NETWORK {number - 1}", until="CTRL-EVENT-CONNECTED")

    def close(self) -> None:
        """Says no more."""
        with contextlib.suppress(OSError):
            self._socket.send(b"DETACH")
        self._socket.close()

    def _ask(self, question: str, until: str = "") -> float:
        """Waits for the answer and for an event, in any order; when the later one came.

        Raises:
            SandboxError: when one does not come.
        """
        self._forget()
        self._socket.send(question.encode())
        wanted = {"OK", until} - {""}
        try:
            while wanted:
                text = self._socket.recv(4096).decode("ascii", errors="replace").strip()
                if text == "FAIL":
                    raise SandboxError(f"wpa_supplicant refused {question}")
                wanted = {word for word in wanted if text != word and f"{word} " not in text}
        except TimeoutError as error:
            lacking = " and ".join(sorted(wanted))
            raise SandboxError(f"wpa_supplicant: no {lacking} after {question}") from error
        return time.monotonic()

    def _forget(self) -> None:
        """Reads what was said before."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(4096)
        self._socket.settimeout(ANSWER_S)


def _radios() -> list[tuple[str, str]]:
    """New emulated radios: the names of their phys and interfaces.

    Raises:
        UnavailableError: when this kernel has none.
        SandboxError: when somebody else uses some.
    """
    if _LOADED.exists():
        raise SandboxError(
            "mac80211_hwsim is loaded already: unload it, modprobe -r mac80211_hwsim"
        )
    try:
        run("modprobe", "mac80211_hwsim", f"radios={RADIOS}")
    except SandboxError as error:
        raise UnavailableError(
            f"this kernel ({os.uname().release}) has no emulated radios, mac80211_hwsim; "
            f"a guest has: {GUEST} ropewalk-lab run roam-wifi"
        ) from error
    wait(lambda: len(_listed()) == RADIOS, "the emulated radios did not come")
    return _listed()


def _unload() -> None:
    with contextlib.suppress(SandboxError):
        run("modprobe", "-r", "mac80211_hwsim")


def _listed() -> list[tuple[str, str]]:
    """All phys with an interface, by number; fresh radios have one each."""
    found = re.findall(r"phy#(\d+)\n\s+Interface (\S+)", run("iw", "dev"))
    return sorted((f"phy{number}", name) for number, name in found)
