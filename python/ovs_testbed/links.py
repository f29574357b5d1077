"""Links between namespaces: emulated ones (docs/linkem.md) and plain veth pairs."""

from __future__ import annotations

import socket
from pathlib import Path

from ovs_testbed.machine import Sandbox, SandboxError, inside, run, wait

_ANSWER_S = 5.0


class EmulatedLink:
    """A link by `ropewalk-linkem` between `namespace:interface` and another, until the end."""

    def __init__(
        self, sandbox: Sandbox, program: Path, name: str, ends: tuple[str, str], *settings: str
    ) -> None:
        """Raises SandboxError when it does not start."""
        self.name = name
        self._control = sandbox.directory / f"{name}.ctl"
        command = [str(program), "--a", ends[0], "--b", ends[1], "--control", str(self._control)]
        command += ["--seed", str(sandbox.next_seed())]
        namespace = ends[0].partition(":")[0]
        sandbox.start(namespace, *command, *settings, "--exit-with-parent", log="links.log")
        wait(self._control.exists, f"the link {name} did not start")
        # The socket is there before the interfaces have their addresses.
        given = dict(zip(settings[::2], settings[1::2], strict=True))
        addresses = [given.get(option, "") for option in ("--address-a", "--address-b")]
        wait(
            lambda: all(map(_is_up, ends, addresses)),
            f"the link {name} has no addresses or is down",
        )

    def set(self, direction: str, settings: str) -> None:
        """Changes `both`, `up` (from the first end) or `down`, such as "loss 5%".

        Raises:
            SandboxError: when the link refuses.
        """
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(_ANSWER_S)
            control.connect(str(self._control))
            control.sendall(f"set {direction} {settings}\n".encode())
            answer = control.makefile().readline()
        if '"error"' in answer:
            raise SandboxError(f"link {self.name}: {direction} {settings}: {answer}")


def _is_up(end: str, address: str) -> bool:
    """Whether `namespace:interface` is up, with an address if one is given."""
    space, _, name = end.partition(":")
    text = run("ip", "-n", space, "address", "show", "dev", name, "up")
    return bool(text) and address in text


def veth(a: str, b: str) -> None:
    """Joins `namespace:interface` and another by a veth pair that Open vSwitch can use, both up.

    Checksums are complete: the switch would pass on what a sender left to its card.
    """
    ends = [(space, name) for space, _, name in (end.partition(":") for end in (a, b))]
    (a_space, a_name), (b_space, b_name) = ends
    peer = ["peer", "name", b_name, "netns", b_space]
    run("ip", "-n", a_space, "link", "add", a_name, "type", "veth", *peer)
    for space, name in ends:
        inside(space, "ethtool", "-K", name, "tx", "off")
        run("ip", "-n", space, "link", "set", name, "up")


def limited(end: str, rate_mbit: float) -> None:
    """Gives what leaves a veth pair at `namespace:interface` a rate; waits 100 ms at most."""
    space, _, name = end.partition(":")
    shaper = ["tbf", "rate", f"{rate_mbit:g}mbit", "burst", "16kb", "latency", "100ms"]
    run("tc", "-n", space, "qdisc", "replace", "dev", name, "root", *shaper)
