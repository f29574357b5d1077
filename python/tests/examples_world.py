"""The machines of an example set-up, with the links and the files of its page."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs_world import Machine, World, must, network
from traffic import INTERNET as INTERNET

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples"
TRAFFIC = Path(__file__).with_name("traffic.py")
QUEUE_S = 0.2
"""The time that a full queue of a link takes to drain, as docs/examples.md says."""
PATIENCE_S = 30.0

ROW = re.compile(
    r"^\| `(?P<machine>\w+)` \| (?P<what>[^|]+) \| `(?P<interface>\w+)` \| (?P<down>[\d.]+)"
    r" \| (?P<up>[\d.]+) \| (?P<delay>[\d.]+) \| (?P<loss>[\d.]+) \|$",
    re.MULTILINE,
)
FILE = re.compile(r"^\[`(?P<name>[^`]+)`\]\((?P<path>[^)]+)\)[^\n]*:\n\n```\w+\n(?P<text>.*?)^```$",
                  re.MULTILINE | re.DOTALL)  # fmt: skip


@dataclass(frozen=True)
class Link:
    """A row of a page's table of links."""

    machine: str
    what: str
    interface: str
    down_mbit: float
    """To the machine."""
    up_mbit: float
    delay_ms: float
    """One way."""
    loss_percent: float
    """Each way."""


def page_of(name: str) -> str:
    """The text of an example's page."""
    return (EXAMPLES / f"{name}.md").read_text()


def links_of(name: str) -> list[Link]:
    """The links that a page lists."""
    return [
        Link(
            row["machine"], row["what"].strip(), row["interface"], float(row["down"]),
            float(row["up"]), float(row["delay"]), float(row["loss"]),
        )
        for row in ROW.finditer(page_of(name))
    ]  # fmt: skip


def quoted(name: str) -> dict[str, str]:
    """The files that a page quotes, by their paths beside the page."""
    return {found["path"]: found["text"] for found in FILE.finditer(page_of(name))}


class Wire:
    """A link that runs."""

    def __init__(
        self, world: World, link: Link, third: int, metric: int, programs: Path, files: Path
    ) -> None:
        machine, prefix = world.machines[link.machine], network(third)
        self.control = files / f"{link.machine}-{link.interface}.sock"

        def queue(mbit: float) -> str:
            return str(max(16_384, round(mbit * 1e6 / 8 * QUEUE_S)))

        command = [
            str(programs / "ropewalk-linkem"),
            # "Up" is from A to B.
            *("--a", f"pid:{world.net.shell.pid}:{link.machine[:7]}-{link.interface}"),
            *("--b", f"pid:{machine.pid}:{link.interface}"),
            *("--address-a", f"{prefix}.1/24", "--address-b", f"{prefix}.2/24"),
            *("--rate-up", f"{link.down_mbit}Mbit", "--rate-down", f"{link.up_mbit}Mbit"),
            *("--queue-up", queue(link.down_mbit), "--queue-down", queue(link.up_mbit)),
            *("--delay", f"{link.delay_ms}ms", "--loss", f"{link.loss_percent}%"),
            *("--seed", str(third), "--control", str(self.control), "--exit-with-parent"),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert b"ready" in self.process.stdout.readline(), "no link"
        must(
            machine,
            f"ip route add default via {prefix}.1 dev {link.interface} metric {metric}",
        )

    def say(self, command: str) -> dict[str, Any]:
        """The answer to a command of the control socket."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self.control))
            control.sendall(f"{command}\n".encode())
            answer: dict[str, Any] = json.loads(control.makefile().readline())
        return answer

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self.say("set both blackhole on")

    def mend(self) -> None:
        """It passes again."""
        self.say("set both blackhole off")

    def end(self) -> None:
        """Takes the link away."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Running:
    """Traffic that goes on by itself."""

    def __init__(self, machine: Machine, name: str, arguments: str) -> None:
        self.machine, self.name = machine, name
        status, pid = machine.run(
            f"python3 {TRAFFIC} {arguments} >{name}.json 2>{name}.err & echo $!"
        )
        assert status == 0, pid
        self.pid = int(pid)

    def result(self, seconds: float = 60.0) -> Any:  # noqa: ANN401
        """What it saw, when it has ended."""
        status, _ = self.machine.run(f"wait {self.pid}", seconds)
        _, text = self.machine.run(f"cat {self.name}.json {self.name}.err")
        assert status == 0, f"{self.machine.name}: {self.name}: {text}"
        return json.loads(text)


class Example(World):
    """An example's machines: a hub, those of the table of links, and others with no uplink."""

    def __init__(
        self, name: str, files: Path, programs: Path, others: tuple[str, ...] = ()
    ) -> None:
        self.name, self.wires = name, dict[tuple[str, str], Wire]()
        links = links_of(name)
        machines = dict.fromkeys(["hub", *(link.machine for link in links), *others])
        super().__init__(list(machines), files, str(programs))
        try:
            sockets = files / "links"
            sockets.mkdir()
            for third, link in enumerate(links, 11):
                self.wires[link.machine, link.interface] = Wire(
                    self, link, third, 100 + third, programs, sockets
                )
            for machine in machines:
                must(self.machines[machine], f"cp -r {EXAMPLES / name}/. .")
            must(self.net, f"python3 {TRAFFIC} serve >traffic.log 2>&1 &")
        except BaseException:
            self.end()
            raise

    def lan(self, machine: str, address: str, other: str, other_address: str) -> None:
        """Joins two machines with a cable; the first one is the router of the second."""
        one, two = self.machines[machine], self.machines[other]
        must(
            self.net,
            f"ip link add lan0 netns {one.pid} type veth peer name eth0 netns {two.pid}",
        )
        must(one, f"ip addr add {address}/24 dev lan0 && ip link set lan0 up")
        must(two, f"ip addr add {other_address}/24 dev eth0 && ip link set eth0 up")
        must(two, f"ip route add default via {address}")

    def start(self, machine: str, arguments: str) -> Running:
        """Starts traffic."""
        return Running(self.machines[machine], arguments.split()[0], arguments)

    def status(self, machine: str) -> dict[str, Any]:
        """What `ropewalk status --json` says."""
        code, text = self.machines[machine].run("ropewalk status --json")
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)
        return found

    def paths(self, machine: str) -> dict[str, dict[str, Any]]:
        """The paths of a site, by uplink."""
        return {path["uplink"]: path for path in self.status(machine)["tunnels"][0]["paths"]}

    def until_up(self, machine: str, *uplinks: str) -> None:
        """Waits until these uplinks carry traffic."""
        until = time.monotonic() + PATIENCE_S
        while True:
            states = {name: path["state"] for name, path in self.paths(machine).items()}
            if all(states.get(uplink) == "up" for uplink in uplinks):
                return
            assert time.monotonic() < until, states
            time.sleep(0.2)

    def end(self) -> None:
        """Takes everything away."""
        for wire in self.wires.values():
            wire.end()
        super().end()
