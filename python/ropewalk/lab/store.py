"""Results on disk: one JSON file for each finished cell, so that an interrupted run goes on.

OUT/session.json   what was asked for
OUT/cells/*.json   one outcome each, named by a digest of plan, seed, runner and source
OUT/result.json    the claims
OUT/report.html    everything, for people
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from ropewalk import report as reports
from ropewalk.lab.cell import RUNNERS, Cell, Mode, Outcome, Runner
from ropewalk.lab.experiments.options import SEEDS_MAX

_FORMAT = 1
_STORED = ("ok", "failed", "skipped")
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError)
"""What a file that this program did not write may raise."""


class StoreError(Exception):
    """A directory without usable results; the message says what to do."""


@dataclass(frozen=True)
class Session:
    """What was asked for: enough to know which cells there should be."""

    experiment: str
    mode: Mode
    seeds: int | None
    runners: tuple[Runner, ...]
    only: str | None
    traces: str | None
    source: str
    dirty: bool
    machine: dict[str, Any]
    began: str
    resumed: tuple[str, ...] = ()
    """When the same command ran again with the same source: cells are from all these runs."""


def pattern(text: str) -> str:
    """A regular expression, as `--only` takes it.

    Raises:
        ValueError: when it is none.
    """
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"`{text}` is no regular expression: {error}") from error
    return text


def _check_session(value: dict[str, Any]) -> None:
    """Raises ValueError, TypeError or KeyError when a key of `session.json` is of another kind."""
    kinds: dict[str, type] = {
        **dict.fromkeys(("experiment", "mode", "source", "began"), str),
        **{"runners": list, "dirty": bool, "machine": dict},
    }
    for key, kind in kinds.items():
        if not isinstance(value[key], kind):
            raise TypeError(f"{key}: {value[key]!r}")
    for key in ("only", "traces"):
        if not isinstance(value[key], str | None) or "\0" in (value[key] or ""):
            raise TypeError(f"{key}: {value[key]!r}")
    if value["only"] is not None:
        pattern(value["only"])
    seeds = value["seeds"]
    if seeds is not None and (type(seeds) is not int or not 1 <= seeds <= SEEDS_MAX):
        raise ValueError(f"seeds: {seeds!r}, which is no number from 1 to {SEEDS_MAX}")
    resumed = value.get("resumed", [])
    if not isinstance(resumed, list) or not all(isinstance(began, str) for began in resumed):
        raise TypeError(f"resumed: {resumed!r}")
    if value["mode"] not in get_args(Mode):
        raise ValueError(f"mode {value['mode']}")
    if not all(runner in RUNNERS for runner in value["runners"]):
        raise ValueError(f"runners {value['runners']}")


def digest(cell: Cell, source: str) -> str:
    """Name of a cell's file: the same plan, seed, runner and source give the same name."""
    plan = replace(cell.plan, name=cell.label).with_seed(cell.seed).to_toml()
    text = "\0".join((plan, cell.runner, cell.inputs, source))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _identity(cell: Cell) -> dict[str, Any]:
    """What a cell's file says of the cell that it is of."""
    return {
        "cell": {
            "experiment": cell.experiment,
            "key": list(cell.key),
            "seed": cell.seed,
            "runner": cell.runner,
        },
        "plan": cell.plan.with_seed(cell.seed).to_toml(),
    }


def _outcome(cell: Cell, value: dict[str, Any]) -> Outcome:
    """The outcome in a cell's file.

    Raises:
        ValueError, KeyError, TypeError: when the file holds anything else.
    """
    status, found = value["status"], value["report"]
    if status not in _STORED or (status == "ok") != (found is not None):
        raise ValueError(f"status {status}")
    report = None if found is None else reports.parse(found)
    if report is not None and report.seed != cell.seed:
        raise ValueError(f"seed {report.seed}")
    reason, attempts, provenance = (value[key] for key in ("reason", "attempts", "provenance"))
    if not isinstance(reason, str) or not isinstance(provenance, dict):
        raise TypeError("reason or provenance")
    for number in (attempts, provenance.get("cpu_busy", 0.0)):
        if isinstance(number, bool) or not 0 <= number <= reports.NUMBER_MAX:
            raise ValueError(f"{number} is no number of attempts, or no share of the processors")
    return Outcome(cell, status, report, reason, attempts, provenance)


def _cannot_write(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {path}: {error.strerror}; what is stored stays: make room, or name another "
        "directory with --out, and run the same command again"
    )


class Store:
    """The directory of one experiment's results."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cells = directory / "cells"

    def begin(self, session: Session) -> Session:
        """Makes the directory and notes what was asked for; the session with its first beginning.

        Raises:
            StoreError: when the directory cannot be written to.
        """
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(self.cells, error) from error
        session = self._going_on(session)
        self.write("session.json", json.dumps(asdict(session), indent=1))
        return session

    def _going_on(self, session: Session) -> Session:
        """The session, with the beginning of an earlier one that has the same source."""
        try:
            before = self.session()
        except StoreError:
            return session
        if (before.experiment, before.source) != (session.experiment, session.source):
            return session
        return replace(session, began=before.began, resumed=(*before.resumed, session.began))

    def session(self) -> Session:
        """What was asked for.

        Raises:
            StoreError: when nothing ever ran here, or `session.json` is not what a run has written.
        """
        path = self.directory / "session.json"
        try:
            value = json.loads(path.read_text())
            if not isinstance(value, dict):
                raise TypeError("no object")
            _check_session(value)
            tuples = {name: tuple(value.get(name, ())) for name in ("runners", "resumed")}
            return Session(**{**value, **tuples})
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.directory} has no session.json: name the directory that "
                "`ropewalk-lab run --out` wrote"
            ) from error
        except UNREADABLE as error:
            raise StoreError(
                f"{path} cannot be read ({error}): run the experiment again"
            ) from error

    def load(self, cell: Cell, source: str) -> Outcome | None:
        """The stored outcome of a cell; nothing if no file of it can be read."""
        path = self._path(cell, source)
        try:
            value = json.loads(path.read_text())
            wanted = (_FORMAT, *_identity(cell).values())
            if (value["format"], value["cell"], value["plan"]) != wanted:
                return None
            return _outcome(cell, value)
        except UNREADABLE:
            return None

    def missing(self, cell: Cell, source: str) -> Outcome:
        """The outcome of a cell that `load` does not find."""
        path = self._path(cell, source)
        unusable = f"cells/{path.name} cannot be read, or is of another cell"
        reason = unusable if path.exists() else "it was not run"
        return Outcome(cell, "missing", reason=reason)

    def save(self, outcome: Outcome, source: str) -> None:
        """Writes an outcome; a crash leaves the old file or the new one, never half of one."""
        cell = outcome.cell
        value = {
            "format": _FORMAT,
            **_identity(cell),
            "status": outcome.status,
            "reason": outcome.reason,
            "attempts": outcome.attempts,
            "report": None if outcome.report is None else asdict(outcome.report),
            "provenance": outcome.provenance,
        }
        self.write(str(self._path(cell, source)), json.dumps(value, indent=1))

    def write(self, name: str, text: str) -> Path:
        """Writes a file of this directory in one step.

        Raises:
            StoreError: when it cannot be written; the former file stays.
        """
        path = self.directory / name
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(text)
            beside.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise _cannot_write(path, error) from error
        return path

    def _path(self, cell: Cell, source: str) -> Path:
        return (self.cells / f"{digest(cell, source)}.json").resolve()
