"""Machines on which the documentation's quick starts run: namespaces, each with files of its own.

`net` stands for the internet. It routes between the others, and answers for every address that
none of them has.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

# What each machine has at `net`: names of interfaces, and the third byte of their networks. The hub
# has one address; boat and harbour have two uplinks. A machine that is missing here has none. Each
# machine has its own files in /etc, /run, /var/lib, /var/log and in the directory where it works.
UPLINKS: dict[str, dict[str, int]] = {
    "box": {},
    "hub": {"eth0": 113},
    "boat": {"eth0": 1, "wlan0": 2},
    "harbour": {"eth0": 3, "wwan0": 4},
}
PRIVATE = """
set -e
mount -t tmpfs tmpfs "{files}"
cp -a /etc "{files}/etc"
mount --bind "{files}/etc" /etc
for directory in /run /var/lib /var/log; do mount -t tmpfs tmpfs $directory; done
printf '127.0.0.1 localhost\\n{hub} hub.example.org\\n{harbour} relay.example.org\\n' >/etc/hosts
# A file of its own, whatever looks after that of this machine.
rm -f /etc/resolv.conf && echo 'nameserver 192.0.2.1' >/etc/resolv.conf
ip link set lo up
mkdir "{files}/home"
cd "{files}/home"
set +e
"""
APART = ("--pid", "--fork", "--mount-proc", "--kill-child")
MARK = "@@done"
# Commands that only look: what they show may take a moment to come true.
LOOKS = re.compile(r"^(ip netns exec \S+ )?(ropewalk(-sdn)? (status|path|doctor)|ping|curl)\b")


def network(third: int) -> str:
    return f"203.0.{third}" if third == 113 else f"100.64.{third}"


class Machine:
    """A shell in namespaces of its own."""

    def __init__(self, name: str, files: Path, programs: str) -> None:
        files.mkdir(parents=True)
        self.name = name
        self.files = files
        self.shell = subprocess.Popen(
            # `net` gives the others their interfaces, by the numbers of their processes.
            ["unshare", "--net", "--mount", *(() if name == "net" else APART), "bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                # The programs of this Python environment, of which the package is installed.
                "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(files / "home"),
                "LC_ALL": "C.UTF-8",
            },
            start_new_session=True,
        )
        hub, harbour = f"{network(113)}.2", f"{network(3)}.2"
        status, output = self.run(PRIVATE.format(files=files, hub=hub, harbour=harbour))
        assert status == 0, output

    @property
    def pid(self) -> int:
        """Of the shell, which `unshare` started."""
        children = Path(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children").read_text()
        return int(children.split()[0])

    def run(self, command: str, seconds: float = 60.0) -> tuple[int, str]:
        """The exit code of a command and what it wrote.

        A background command writes to a file, its own or `background.log`.
        """
        if command.rstrip().endswith("&") and ">" not in command:
            command = f"{command.rstrip().removesuffix('&')} >>'{self.files}/background.log' 2>&1 &"
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(f'{{\n{command}\n}} </dev/null\necho "{MARK} $?"\n'.encode())
        self.shell.stdin.flush()
        output = b""
        until = time.monotonic() + seconds
        while not (end := re.search(rf"{MARK} (\d+)\n$".encode(), output)):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.shell.stdout], [], [], left)[0]:
                raise AssertionError(
                    f"{self.name}: no end of {command!r} within {seconds} s: {output!r}"
                )
            more = os.read(self.shell.stdout.fileno(), 65536)
            assert more, f"{self.name}: the shell ended in {command!r}: {output!r}"
            output += more
        return int(end.group(1)), output[: end.start()].decode()

    def end(self) -> None:
        os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()


class World:
    """The machines named, and `net` between them."""

    def __init__(self, names: list[str], files: Path, programs: str) -> None:
        self.machines: dict[str, Machine] = {}
        try:
            self.net = self.machines["net"] = Machine("net", files / "net", programs)
            for name in names:
                machine = self.machines[name] = Machine(name, files / name, programs)
                for metric, (interface, third) in enumerate(UPLINKS.get(name, {}).items(), 100):
                    self.join(machine, interface, network(third), metric)
            must(self.net, "sysctl -qw net.ipv4.ip_forward=1 && ip route add local default dev lo")
            must(self.net, "echo 'hello from the internet' >index.html")
            must(self.net, "python3 -m http.server 80 &")
        except BaseException:
            self.end()
            raise

    def join(self, machine: Machine, interface: str, prefix: str, metric: int) -> None:
        there = f"{machine.name}-{interface}"
        must(
            self.net,
            f"ip link add {there} type veth peer name {interface} netns {machine.pid} && "
            f"ip addr add {prefix}.1/24 dev {there} && ip link set {there} up",
        )
        must(
            machine,
            f"ip addr add {prefix}.2/24 dev {interface} && ip link set {interface} up && "
            f"ip route add default via {prefix}.1 dev {interface} metric {metric}",
        )

    def end(self) -> None:
        for machine in self.machines.values():
            machine.end()


def must(machine: Machine, command: str) -> None:
    status, output = machine.run(command)
    assert status == 0, f"{machine.name}: {command}: {output}"
