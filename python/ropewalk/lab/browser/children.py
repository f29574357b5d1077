"""Programs in a namespace that do not outlive this one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from ropewalk.lab.runner import RunError, UnavailableError

_STOP_SECONDS = 5.0


def need(package: str, *programs: str) -> str:
    """The first of these programs that is there.

    Raises:
        UnavailableError: when none is; names the package that has it.
    """
    for program in programs:
        if (found := shutil.which(program, path=_PATH)) is not None:
            return found
    raise UnavailableError(
        f"no program {' or '.join(programs)}; install it, on Debian with: apt-get install {package}"
    )


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(*command: str, text: str = "") -> str:
    """Runs a command to its end; what it prints.

    Raises:
        RunError: when it fails; with what it said.
    """
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        raise RunError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def start(
    namespace: str,
    command: tuple[str, ...],
    log: Path,
    environment: Mapping[str, str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """A program in a namespace, killed by the kernel when the thread that started it ends.

    What it says goes to `log`; what it prints too, unless `stdout` says otherwise.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            # The kernel's signal outlives the change of program, not one of the user.
            ["ip", "netns", "exec", namespace, "setpriv", "--pdeathsig", "KILL", *command],
            stdin=stdin,
            stdout=file if stdout is None else stdout,
            stderr=file,
            env={"PATH": _PATH, **environment},
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks a program to end, then makes it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
