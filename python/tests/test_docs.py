"""The quick starts of the documentation do what they show.

Commands run as they stand, each on the machine that its prompt names. The shown output is compared
by words, names and columns: a figure, a key or an address may be another one. `...` stands for
anything. The programs of `make build` are in target/release; the tests run as root.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from docs_world import LOOKS, Machine, World

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("ROPEWALK_PROGRAMS", ROOT / "target/release")).resolve()
OPERATIONS = "docs/operations.md"
# What is done before the tests run: doing it again would only take time.
DONE = (
    "make build",
    "make build && sudo install target/release/ropewalk /usr/local/bin/",
    "python3 -m venv .venv",
    ".venv/bin/pip install '.[lab]'",
    ". .venv/bin/activate",
)
OPEN_VSWITCH = """
mkdir -p /run/openvswitch /var/lib/openvswitch /var/log/openvswitch
/usr/share/openvswitch/scripts/ovs-ctl start --system-id=random --no-mlockall >/dev/null 2>&1
"""
# How long a command that looks may show something else, seconds.
PATIENCE_S = 15.0

PROMPT = re.compile(r"^(?:root@(?P<machine>\w+)#|\$) (?P<command>.*)$")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^## Quick start$", re.MULTILINE)
INVITATION = re.compile(r"^(ropewalk2\.\S+)$", re.MULTILINE)
# A command that asks for the token, and what it shows at a terminal.
ASKS = re.compile(r"^ropewalk (?:join|relay --join)(?: --|$)")
PROMPT_FOR_TOKEN = "token (not shown):"
GATEWAY = re.compile(r"^ropewalk (hub|up|relay|balance) &$")


@dataclass(frozen=True)
class Page:
    """What a quick start needs."""

    machines: list[str]
    # The machines of which the page says that they follow the quick start of operations.md first.
    before: tuple[str, ...] = ()
    # The site of operations.md joined its hub, and does not run.
    stopped: bool = False
    # The commands run in the repository.
    repository: bool = False
    # Open vSwitch runs on the machine.
    switch: bool = False


PAGES = {
    "README.md": Page(["box", "hub", "boat"], repository=True),
    OPERATIONS: Page(["hub", "boat"]),
    "docs/configuration.md": Page(["hub"]),
    "docs/schema.md": Page(["boat"]),
    "docs/hold.md": Page(["hub", "boat"], before=("hub", "boat")),
    "docs/kill-switch.md": Page(["hub", "boat"], before=("hub", "boat")),
    "docs/via.md": Page(["hub", "boat"], before=("hub", "boat"), stopped=True),
    "docs/relays.md": Page(["hub", "harbour", "boat"], before=("hub",)),
    "docs/balance.md": Page(["boat"]),
    "docs/simulator.md": Page(["box"], repository=True),
    "docs/lab.md": Page(["box"], repository=True),
    "docs/linkem.md": Page(["box"]),
    "docs/swarm.md": Page(["hub"]),
    "docs/sdn.md": Page(["box"], switch=True),
    "docs/sdn-roam.md": Page(["box"], switch=True),
}


@dataclass
class Step:
    machine: str
    command: str
    shown: list[str] = field(default_factory=list)


def quick_start(page: str) -> str:
    """The text below the heading, up to the next heading of its level."""
    text = (ROOT / page).read_text()
    heading = HEADING.search(text)
    assert heading, f"{page} has no quick start"
    return re.split(r"^## ", text[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def steps(page: str) -> list[Step]:
    return steps_in(quick_start(page))


def steps_in(text: str) -> list[Step]:
    """The commands of a text, and what it shows of their output."""
    found: list[Step] = []
    for block in BLOCK.findall(text):
        for line in block.splitlines():
            prompt = PROMPT.match(line)
            if prompt:
                found.append(Step(prompt["machine"] or "box", prompt["command"]))
            elif line.startswith(">") and not found[-1].shown:
                found[-1].command += "\n" + line.removeprefix(">").removeprefix(" ")
            else:
                found[-1].shown.append(line)
    return found


def word(shown: str) -> str:
    """A pattern of what may stand in the place of a word."""
    if re.fullmatch(r"[kMG]?B", shown):
        return "[kMG]?B"
    if shown == "days":
        # Until a month ends, it may be less.
        return "(?:days|h|min|s)"
    if re.fullmatch(r"(eth|wlan|wwan|ropewalk|ropehub|IPv)\d", shown):
        return re.escape(shown)
    # A figure that is not known yet is a dash.
    return r"\S+" if re.search(r"\d", shown) else re.escape(shown)


def pattern(shown: list[str]) -> str:
    """A pattern of the whole output."""
    lines = []
    for line in shown:
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        cut = line.endswith("...")
        # A list may also end here.
        line = re.sub(r",? *\.\.\.$", "", line)
        words = r"[ \t]+".join(map(word, line.split()))
        rest = r".*" if cut else r"[ \t]*"
        lines.append(rf"[ \t]*{words}{rest}\n")
    return "".join(lines)


def play(world: World, todo: list[Step], token: str = "") -> None:
    """Runs commands and compares what they show."""
    for step in todo:
        if step.command in DONE:
            continue
        machine = world.machines[step.machine]
        # The world has one address that answers like one on the internet.
        command = re.sub(r"\bADDRESS\b", "192.0.2.1", step.command)
        expected_lines = step.shown
        if ASKS.match(command):
            assert expected_lines[0] == PROMPT_FOR_TOKEN
            command, expected_lines = f"echo '{token}' | {command}", expected_lines[1:]
        until = time.monotonic() + PATIENCE_S
        while True:
            status, output = machine.run(command)
            right = status == 0 and re.fullmatch(pattern(expected_lines), output)
            if right or not LOOKS.match(command) or time.monotonic() > until:
                break
            time.sleep(0.3)
        assert status == 0, f"{step.machine}: {command}: exit code {status}: {output}"
        expected = "\n".join(step.shown)
        if step.shown:
            assert right, f"{step.machine}: {command}\nshown:\n{expected}\n\nin fact:\n{output}"
        invitations = INVITATION.findall(output)
        token = invitations[-1] if invitations else token
        if GATEWAY.match(command):
            answers(machine)


def prepare(world: World, command: str) -> None:
    status, output = world.machines["box"].run(command)
    assert status == 0, output


def answers(machine: Machine) -> None:
    """Waits until the gateway that was started last can be asked, as a reader would."""
    until = time.monotonic() + PATIENCE_S
    while machine.run("ropewalk status")[0] != 0:
        assert time.monotonic() < until, (machine.files / "background.log").read_text()
        time.sleep(0.1)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(PAGES[request.param].machines, tmp_path, str(PROGRAMS))
    try:
        yield made
    finally:
        made.end()


def test_every_quick_start_of_the_documentation_is_tested() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    written = {str(page.relative_to(ROOT)) for page in pages if HEADING.search(page.read_text())}
    assert written == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_quick_start_shows_commands_and_what_to_expect(page: str) -> None:
    todo = steps(page)
    assert {step.machine for step in todo} <= set(PAGES[page].machines)
    assert any(step.shown for step in todo)
    # Blocks without prompts are alternatives that need systemd: nothing else may hide there.
    for block in SHELL_BLOCK.findall(quick_start(page)):
        assert all(line.startswith("systemctl ") for line in block.splitlines()), block


def test_the_comparison_tells_other_words_names_and_columns_from_other_figures() -> None:
    shown = pattern(["  eth0  up  2.8  9.8 kB", "..."])
    assert re.fullmatch(shown, "  eth0  up   -   12 B\n")
    assert re.fullmatch(shown, "  eth0  up  12.1  1.0 MB\nmore\n")
    assert re.fullmatch(pattern(["3.0 s together, 3 packets, ..."]), "2.9 s together, 7 packets\n")
    for other in ("wlan0 up 2.8 9.8 kB\n", "eth0 down 2.8 9.8 kB\n", "eth0 up 2.8 kB\n", ""):
        assert not re.fullmatch(shown, other)


@pytest.mark.real
@pytest.mark.parametrize(("world", "page"), [(page, page) for page in PAGES], indirect=["world"])
def test_a_quick_start_runs_as_it_stands(world: World, page: str) -> None:
    needs = PAGES[page]
    if needs.repository:
        # With results of its own: those of earlier runs would be taken instead of running anew.
        prepare(world, f"cd '{ROOT}' && mkdir -p out && mount -t tmpfs tmpfs out")
    if needs.switch:
        prepare(world, OPEN_VSWITCH)
    if needs.before:
        play(world, [step for step in steps(OPERATIONS) if step.machine in needs.before])
    if needs.stopped:
        world.machines["boat"].run("kill %1; wait %1")
    play(world, steps(page))
