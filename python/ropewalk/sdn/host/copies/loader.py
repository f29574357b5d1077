"""Builds the program that removes copies, and hangs it in front of an interface.

clang builds it on the machine where it runs; `tc` loads it. Source of its rule: `copies.c`.
"""

from __future__ import annotations

from pathlib import Path

from ropewalk.sdn.host.changes import Step
from ropewalk.sdn.host.commands import inside

SOURCE = Path(__file__).with_name("copies.c")
_INCLUDES = Path("/usr/include")


def steps(namespace: str, interface: str, directory: Path) -> list[Step]:
    """What removes copies from what `interface` receives; it ends with the interface."""
    program = directory / "copies.o"
    # Debian keeps <asm/> in a directory of the machine's own.
    includes = sorted(_INCLUDES.glob("*-linux-gnu*/asm"))
    build = ["clang", "-O2", "-g", "-Wall", "-target", "bpf"]
    build += [f"-I{asm.parent}" for asm in includes]
    build += ["-c", str(SOURCE), "-o", str(program)]
    hang = ["tc", "filter", "add", "dev", interface, "ingress", "bpf", "direct-action"]
    hang += ["object-file", str(program), "section", "classifier"]
    return [
        Step(tuple(build), (("rm", "-f", str(program)),)),
        Step(tuple(inside(namespace, ["tc", "qdisc", "add", "dev", interface, "clsact"]))),
        Step(tuple(inside(namespace, hang))),
    ]
