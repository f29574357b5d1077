"""Child processes that end with the laboratory, however it ends."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.lab.runner import RunError

_GRACE_SECONDS = 15
"""For a child to take its namespaces down after it was asked to stop."""


@dataclass(frozen=True)
class Finished:
    """A child that ended by itself."""

    code: int
    output: str
    errors: str


class Children:
    """Running children; all are stopped together when the laboratory stops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], timeout_seconds: float) -> Finished:
        """Runs a command to its end.

        Raises:
            RunError: when it cannot be started, takes too long, or everything is being stopped.
        """
        with self._lock:
            if self._stopped:
                raise RunError("stopped before it began")
            try:
                child = subprocess.Popen(
                    [*tie("TERM"), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    # Ctrl-C is for the laboratory, which asks its children to end, once. A second
                    # one would end the programs with which a child removes its namespaces.
                    process_group=0,
                )
            except OSError as error:
                raise RunError(f"{command[0]} could not be started: {error}") from error
            self._running.add(child)
        try:
            output, errors = child.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            _stop(child)
            raise RunError(f"took longer than {timeout_seconds:.0f} s and was stopped") from None
        finally:
            with self._lock:
                self._running.discard(child)
        return Finished(child.returncode, output, errors)

    def stop(self) -> None:
        """Stops what runs and lets nothing new begin."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for child in running:
            child.terminate()


def tie(sent: str) -> tuple[str, ...]:
    """What goes before a command so that it gets a signal when the laboratory is killed.

    The kernel's signal (prctl(2), PR_SET_PDEATHSIG) follows the end of the thread that started the
    child. That thread waits for the child, or lasts as long as the cells that need the child.
    """
    return ("setpriv", "--pdeathsig", sent) if shutil.which("setpriv") else ()


def _stop(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.communicate(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()


def last_lines(text: str, count: int = 3) -> str:
    """The end of what a program said, on one line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-count:])
