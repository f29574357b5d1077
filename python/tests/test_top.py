"""`ropewalk top` in a pseudo-terminal: what a person sees and presses, with the real program.

The gateway behind most tests is one of a few lines, so that the test decides what it says. The last
test has a real site and hub in namespaces.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import re
import select
import signal
import stat
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from dashboard_parts import FakeGateway, begin_hub, join, path, status, tunnel, until, words
from docs_world import World, must

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("ROPEWALK_PROGRAMS", ROOT / "target/release")).resolve()
ROPEWALK = PROGRAMS / "ropewalk"
PATIENCE_S = 15.0
CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[=>78]|[\r\n\x07\x08]")
# Foreground and background, also bright, of 256 and of all colours.
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


class Screen:
    """What a terminal shows of what a program writes: the sequences that `ropewalk top` uses."""

    def __init__(self, columns: int, lines: int) -> None:
        self.rest = ""
        self.size(columns, lines)

    def size(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.cells = [[" "] * columns for _ in range(lines)]
        self.x = self.y = 0

    def take(self, text: str) -> None:
        text, self.rest, at = self.rest + text, "", 0
        while at < len(text):
            found = CONTROL.match(text, at)
            if found is None and text[at] == "\x1b":
                # The end of the sequence comes later.
                self.rest = text[at:]
                return
            if found is None:
                if self.y < self.lines and self.x < self.columns:
                    self.cells[self.y][self.x] = text[at]
                self.x += 1
                at += 1
                continue
            at = found.end()
            numbers, letter = found.group(1) or "", found.group(2)
            if letter == "H":
                line, column = (numbers or "1;1").split(";")
                self.y, self.x = int(line) - 1, int(column) - 1
            elif letter == "J":
                self.cells = [[" "] * self.columns for _ in range(self.lines)]

    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.cells)


class Top:
    """`ropewalk top` in a pseudo-terminal of its own."""

    def __init__(
        self,
        *arguments: str,
        inside: Sequence[str] = (),
        size: tuple[int, int] = (110, 32),
        environment: dict[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.master, self.slave = os.openpty()
        self.screen = Screen(*size)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        self._resize(*size)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            # The terminal is that of the session: its size and its end come as signals.
            ["setsid", "--ctty", *inside, str(ROPEWALK), *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            cwd=directory,
            env={
                "PATH": os.environ["PATH"],
                "TERM": "xterm-256color",
                "LC_ALL": "C.UTF-8",
                **(environment or {}),
            },
        )

    def _resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self.read(0.0)
        self.screen.size(columns, lines)
        self._resize(columns, lines)

    def read(self, seconds: float) -> None:
        if select.select([self.master], [], [], seconds)[0]:
            try:
                text = self.decoder.decode(os.read(self.master, 65536))
            except OSError:
                return
            self.raw += text
            self.screen.take(text)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, *parts: str, seconds: float = PATIENCE_S) -> str:
        """Waits until the screen has all these parts; what it shows then."""
        return self.wait(
            lambda: all(part in self.screen.text() for part in parts), str(parts), seconds
        )

    def wait(self, true: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> str:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"not within {seconds} s: {what}; {self.screen.text()}"
            self.read(0.1)
        return self.screen.text()

    def ended(self, seconds: float = 5.0) -> int:
        """Its exit code, once it has ended; the terminal is as it was."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"runs on; {self.screen.text()}"
            self.read(0.05)
        self.read(0.1)
        assert termios.tcgetattr(self.slave) == self.before, "modes of the terminal"
        assert self.raw.rindex("\x1b[?1049l") > self.raw.rindex("\x1b[?1049h"), "the usual screen"
        assert self.raw.rindex("\x1b[?25h") > self.raw.rindex("\x1b[?25l"), "the cursor"
        return self.process.returncode

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for descriptor in (self.master, self.slave):
            if descriptor >= 0:
                os.close(descriptor)


GOOD = [words("fine", "good", "works; carries 70 %")]
LOSSY = [words("lossy", "worse", "lost 8 % for 20 s: repaired")]
SITE = status("site", [tunnel("hub", [path("eth0", GOOD), path("wlan0", LOSSY)])])


class Place:
    """A gateway that says what the test wants, and programs that look at it."""

    def __init__(self, directory: Path) -> None:
        self.says = SITE
        self.directory = directory
        self.socket = directory / "api.sock"
        self.tops: list[Top] = []
        self.begin()

    def begin(self) -> None:
        self.gateway = FakeGateway(self.socket, lambda: self.says)

    def top(self, *arguments: str, **options: Any) -> Top:  # noqa: ANN401
        made = Top("--socket", str(self.socket), "top", *arguments, **options)
        self.tops.append(made)
        return made

    def run(
        self, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Without a terminal."""
        return subprocess.run(
            [str(ROPEWALK), "--socket", str(self.socket), "top", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **(environment or {})},
        )

    def end(self) -> None:
        for top in self.tops:
            top.end()
        self.gateway.end()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if not ROPEWALK.exists():
        pytest.skip(f"{ROPEWALK} is missing: make build")
    made = Place(tmp_path)
    yield made
    made.end()


def test_a_site_is_shown_and_follows_the_size_of_the_terminal(place: Place) -> None:
    top = place.top()
    top.until(
        "site: tunnel up, 2 of 2 uplinks work",
        "✓ works; carries 70 %",
        "! lost 8 % for 20 s: repaired",
        "last minute, sent:",
        "? keys   q quit   u use",
    )
    assert COLOUR.search(top.raw)
    for columns, lines in ((40, 10), (1, 1), (200, 60)):
        top.resize(columns, lines)
        if columns > 1:
            top.until("eth0", "✓ works; carries 70 %", "? keys   q quit")
    top.press("?")
    top.until("announce that the uplink will end soon", "Esc: back")
    top.press("\x1b")
    top.until("✓ works; carries 70 %", "q quit")
    top.press("q")
    assert top.ended() == 0


def test_keys_reach_the_gateway_and_what_interrupts_asks_first(place: Place) -> None:
    top = place.top()
    changes = place.gateway.changes
    top.until("wlan0")
    top.press("jm")
    top.until("wlan0 is metered, until the next start")
    assert changes == [("/v1/paths", {"uplink": "wlan0", "metered": True})]
    top.press("u")
    top.until("Take wlan0 out of use?", "[y/n]")
    top.press("n")
    top.until("nothing was changed")
    assert len(changes) == 1
    top.press("uy")
    top.until("wlan0 is out of use")
    assert changes[1:] == [("/v1/paths", {"uplink": "wlan0", "enabled": False})]
    top.press("c")
    top.until("rule of htmt")
    top.press("j\r")
    top.until("scheduler htmt is in use")
    assert changes[2:] == [("/v1/scheduler", {"kind": "htmt", "direction": "both"})]
    place.says = status("site", [tunnel("hub", [path("eth0", [], "disabled")])])
    top.until("0 of 1 uplink works")
    top.press("u")
    top.until("eth0 is used again")
    assert changes[3:] == [("/v1/paths", {"uplink": "eth0", "enabled": True})]


def test_a_gateway_that_ends_is_told_and_one_that_is_back_is_shown(place: Place) -> None:
    top = place.top()
    top.until("tunnel up")
    place.gateway.end()
    place.socket.unlink()
    top.until("site: no answer", "trying again; what is below is", "no gateway answers at", "eth0")
    top.press("m")
    top.until("the gateway does not answer: nothing was changed")
    place.says = status("site", [tunnel("hub", [path("wwan0", GOOD)])])
    place.begin()
    shown = top.until("wwan0", "1 of 1 uplink works")
    assert "no answer" not in shown
    assert "trying again" not in shown
    top.press("q")
    assert top.ended() == 0


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("q", 0),
        ("\x03", 0),
        (signal.SIGINT, 0),
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGHUP, -signal.SIGHUP),
    ],
)
def test_however_it_ends_the_terminal_is_as_it_was(
    place: Place, ends: str | signal.Signals, code: int
) -> None:
    top = place.top()
    top.until("tunnel up")
    assert termios.tcgetattr(top.slave) != top.before
    if isinstance(ends, str):
        top.press(ends)
    else:
        top.process.send_signal(ends)
    assert top.ended() == code


def test_a_terminal_that_takes_nothing_does_not_keep_it_alive(place: Place) -> None:
    top = place.top(size=(200, 60))
    # The first frame is larger than what the terminal holds for nobody.
    end = time.monotonic() + PATIENCE_S
    while termios.tcgetattr(top.slave) == top.before:
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(1)
    top.process.send_signal(signal.SIGTERM)
    assert top.process.wait(10) == -signal.SIGTERM
    assert termios.tcgetattr(top.slave) == top.before


def test_it_stops_at_ctrl_z_and_goes_on(place: Place) -> None:
    top = place.top()
    top.until("tunnel up")

    def state() -> str:
        text = Path(f"/proc/{top.process.pid}/stat").read_text()
        return text.rsplit(")")[-1].split()[0]

    top.press("\x1a")
    # What it wrote before may be read after it has stopped.
    top.wait(lambda: state() == "T" and "\x1b[?1049l" in top.raw, "stopped")
    assert termios.tcgetattr(top.slave) == top.before
    top.process.send_signal(signal.SIGCONT)
    top.wait(lambda: top.raw.count("\x1b[?1049h") == 2, "the other screen again")
    top.until("tunnel up")
    top.press("q")
    assert top.ended() == 0


def test_a_terminal_that_is_closed_ends_it(place: Place) -> None:
    top = place.top()
    top.until("tunnel up")
    os.close(top.slave)
    os.close(top.master)
    top.master = top.slave = -1
    top.process.wait(10)


def test_without_colours_and_without_unicode(place: Place) -> None:
    top = place.top(environment={"NO_COLOR": "1", "LC_ALL": "C"})
    top.until("+ works; carries 70 %", "a eth0", "b wlan0", "aaaa", "bbbb")
    assert not COLOUR.search(top.raw), COLOUR.findall(top.raw)
    assert top.raw.isascii()
    top.press("q")
    assert top.ended() == 0
    plain = place.top(environment={"NO_COLOR": ""})
    plain.until("tunnel up")
    assert COLOUR.search(plain.raw), "an empty variable refuses nothing"


def test_without_a_terminal_it_says_what_else_there_is(place: Place) -> None:
    ran = place.run()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "ropewalk: this needs a terminal; use `ropewalk status --watch` for lines, "
        "`ropewalk status --json` for programs, or `ropewalk top --once` for one frame as text\n"
    )
    dumb = place.top(environment={"TERM": "dumb"})
    dumb.wait(lambda: "this needs a terminal" in dumb.raw, "the error")
    assert dumb.process.wait(5) == 2


def test_one_frame_as_text_has_all_rows(place: Place) -> None:
    names = [f"up{index}" for index in range(60)]
    place.says = status("site", [tunnel("hub", [path(name, GOOD) for name in names])])
    ran = place.run("--once")
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout
    lines = ran.stdout.splitlines()
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)
    for name in names:
        assert any(f" {name} " in line and "carries 70 %" in line for line in lines), ran.stdout
    small = place.run("--once", "--size", "40x10").stdout.splitlines()
    assert len(small) <= 10
    assert max(map(len, small)) <= 40
    place.gateway.end()
    place.socket.unlink()
    assert place.run("--once").returncode == 3
    place.begin()


def test_the_doctor_is_shown_and_a_report_is_written_once(place: Place, tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text("[hub]\n")
    place.gateway.happened = [{"at_s": 1_800_000_000, "what": "wlan0: up"}]
    top = place.top("--config", str(config), directory=tmp_path)
    top.until("tunnel up")
    top.press("d")
    top.until("Doctor", "configuration", "Esc: back")
    top.press("\x1b")
    top.until("wlan0", "q quit")
    top.press("w")
    top.until("write a report to: ropewalk-report-")
    top.press("\x7f" * 40 + "report.txt\r")
    top.until("the report is in report.txt; keys and tokens are left out")
    report = (tmp_path / "report.txt").read_text()
    for heading in ("== Doctor", "== What happened", "wlan0: up", "== Status", '"uplink": "eth0"'):
        assert heading in report
    assert stat.S_IMODE((tmp_path / "report.txt").stat().st_mode) == 0o600
    top.press("w" + "\x7f" * 40 + "report.txt\r")
    top.until("cannot write report.txt: File exists")


def test_a_hub_sorts_finds_and_revokes(place: Place, tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    command = [str(ROPEWALK), "--config", str(config)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    init = [*command, "hub", "--init", "--public", "hub.example.org:4443"]
    subprocess.run(init, check=True, capture_output=True, env=environment)
    text = config.read_text()
    state = f'state_dir = "{tmp_path}/state"\n'
    config.write_text(state + text if "\nstate_dir" not in text else text)
    subprocess.run([*command, "invite", "farm"], check=True, capture_output=True)
    sites = [tunnel(f"site-{index}", [path("eth0", GOOD)]) for index in range(1_000)]
    place.says = status("hub", [*sites, tunnel("farm", [], up=False)])
    frame = place.run("--once", "--config", str(config))
    farm = next(line for line in frame.stdout.splitlines() if line.startswith("farm "))
    assert farm.split()[1:8] == ["✗", "not", "connected", "0", "of", "0", "0"], (
        "a rate of two looks"
    )
    top = place.top("--config", str(config))
    top.until("hub: 1,000 of 1,001 sites are connected", "ordered by name", "farm")
    top.press("o")
    top.until("ordered by state", "✗ not connected")
    top.press("/FAR")
    top.until("find: FAR", '1 of 1,001 match "FAR"')
    top.press("\rx")
    top.until("Revoke farm? It is disconnected at once", "[y/n]")
    top.press("y")
    top.until("site farm is revoked")
    assert ("/v1/sites/reload", {}) in place.gateway.changes
    listed = subprocess.run(
        [*command, "invite", "--list"], check=True, capture_output=True, text=True
    )
    assert "farm" not in listed.stdout
    # A site that is not in the file: the reason comes from the command.
    top.press("/site-77\r")
    top.until("site-777")
    top.press("xy")
    top.until("that did not work:", "site-77")


def test_it_takes_little_of_a_processor_with_a_thousand_sites(place: Place) -> None:
    sites = [tunnel(f"site-{index}", [path("eth0", GOOD)] * 2) for index in range(1_000)]
    place.says = status("hub", sites)
    top = place.top()
    top.until("1,000 of 1,000 sites are connected")

    def spent() -> float:
        fields = Path(f"/proc/{top.process.pid}/stat").read_text().rsplit(")")[-1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    begin = spent()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        top.read(0.5)
    share = (spent() - begin) / 10
    print(f"top with 1,000 sites: {100 * share:.1f} % of a core")
    assert share < 0.3


def test_a_key_takes_an_uplink_of_a_real_site_out(tmp_path: Path) -> None:
    if not ROPEWALK.exists():
        pytest.skip(f"{ROPEWALK} is missing: make build")
    world = World(["hub", "boat"], tmp_path / "world", str(PROGRAMS))
    top = None
    try:
        begin_hub(world.machines["hub"])
        boat = world.machines["boat"]
        join(world, "boat", boat)

        def states() -> dict[str, str]:
            code, text = boat.run("ropewalk status --json")
            assert code == 0, text
            paths = json.loads(text)["tunnels"][0]["paths"]
            return {one["uplink"]: one["state"] for one in paths}

        until(boat, "test $(ropewalk path | grep -c ' up ') = 2")
        assert states() == {"eth0": "up", "wlan0": "up"}
        inside = ("nsenter", f"--target={boat.pid}", "--net", "--mount", "--pid")
        top = Top("top", inside=inside)
        top.until("site: tunnel up, 2 of 2 uplinks work", "eth0", "wlan0")
        top.press("j")
        top.press("u")
        top.until("Take wlan0 out of use?")
        assert states()["wlan0"] == "up", "nothing happens before the answer"
        top.press("y")
        top.until("1 of 2 uplinks work", "out of use: somebody took it out")
        assert states() == {"eth0": "up", "wlan0": "disabled"}
        top.until("wlan0: taken out of use by hand")
        top.press("u")
        top.until("2 of 2 uplinks work")
        assert states() == {"eth0": "up", "wlan0": "up"}
        # The words are those of the command.
        _, text = boat.run("ropewalk status --json")
        said = [w["text"] for p in json.loads(text)["tunnels"][0]["paths"] for w in p["words"]]
        for one in said:
            top.until(one.split(";")[0])
        # A site that starts again is shown again.
        must(boat, "ropewalk down")
        top.until("site: no answer")
        must(boat, "ropewalk up >up.log 2>&1 &")
        top.until("site: tunnel up, 2 of 2 uplinks work", seconds=30)
        code, frame = boat.run("ropewalk top --once")
        assert code == 0
        assert "What happened" in frame
        print(frame)
        top.press("q")
        assert top.ended() == 0
    finally:
        if top:
            top.end()
        world.end()
