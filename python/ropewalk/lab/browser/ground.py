"""The namespaces, links and carrier of a plan, made and kept by `ropewalk-testbed set-up`."""

from __future__ import annotations

import json
import select
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.lab.runner import EXIT_CANNOT_RUN, EXIT_PLAN_UNUSABLE, RunError, UnavailableError
from ropewalk.lab.runner.process import last_lines

_READY_SECONDS = 120.0
"""Others that measure on this machine are waited for."""
_ANSWER_SECONDS = 20.0
_END_SECONDS = 30.0


@dataclass(frozen=True)
class Place:
    """What is there: namespaces, the server's address and network, a directory, what to do."""

    site: str
    server: str
    address: str
    network: str
    directory: Path
    mptcp: bool
    notes: tuple[str, ...]


class Ground:
    """A plan that is set up. It is taken down when this process ends, however it does."""

    def __init__(self, testbed: Path, plan: Path) -> None:
        """Sets up a plan without traffic and waits until its carrier works.

        Raises:
            UnavailableError: when this machine cannot run it.
            RunError: when it fails otherwise.
        """
        self._process = subprocess.Popen(
            [str(testbed), "set-up", str(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            ready = self._answer(_READY_SECONDS)
            self.place = Place(
                ready["site"],
                ready["server"],
                ready["address"],
                ready["network"],
                Path(ready["directory"]),
                ready["mptcp"],
                tuple(ready["notes"]),
            )
        except BaseException:
            self.end()
            raise

    def begin(self) -> None:
        """Begins all links anew: this is time zero of the plan."""
        self._ask("begin")

    def paths(self) -> list[dict[str, Any]]:
        """What each path in use carried towards the site since then."""
        found: list[dict[str, Any]] = self._ask("counters")
        return found

    def end(self) -> None:
        """Takes everything down."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()

    def _ask(self, command: str) -> Any:  # noqa: ANN401  (JSON)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()
        return self._answer(_ANSWER_SECONDS)

    def _answer(self, seconds: float) -> Any:  # noqa: ANN401  (JSON)
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise RunError("ropewalk-testbed set-up does not answer")
        line = self._process.stdout.readline()
        if not line:
            self._fail()
        return json.loads(line)

    def _fail(self) -> None:
        _, errors = self._process.communicate(timeout=_END_SECONDS)
        reason = last_lines(errors) or "the testbed gave no reason"
        if self._process.returncode in (EXIT_PLAN_UNUSABLE, EXIT_CANNOT_RUN):
            raise UnavailableError(reason)
        raise RunError(f"ropewalk-testbed ended with {self._process.returncode}: {reason}")
