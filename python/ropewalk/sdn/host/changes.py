"""What `setup` changed, on disk, so that `teardown` undoes it, also after `kill -9` in between.

Invariant: how a change is undone is written to the disk before it is made, and struck off after it
is undone. Of an earlier boot only what outlives boots (the switch's database) is undone.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ropewalk.sdn.host.commands import CommandError, run

FILE_BYTES_MAX = 1 << 20
_GONE = (
    *("Cannot find device", "No such", "does not exist", "Cannot assign requested"),
    # A route that is there again.
    "File exists",
)
_GONE_SWITCH = ("no bridge named", "no port named", "no row")
"""Only these of the switch's programs: a database that is away says `No such file`, too."""


class ChangesError(Exception):
    """The list cannot be read or written, or something cannot be undone."""


@dataclass(frozen=True)
class Step:
    """One change: what makes it, what undoes it (nothing when another step's undoing does)."""

    do: tuple[str, ...]
    undo: tuple[tuple[str, ...], ...] = ()
    outlives_boot: bool = False


@dataclass(frozen=True)
class Undo:
    """What undoes one change."""

    command: tuple[str, ...]
    outlives_boot: bool


@dataclass(frozen=True)
class Record:
    """The list as it lies on the disk."""

    complete: bool
    boot: str
    fingerprint: str
    undo: tuple[Undo, ...]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the list for this process.

    Raises:
        ChangesError: when another process holds it, or the directory cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise ChangesError(f"{path}: another setup or teardown is at work; wait for it") from error
    except PermissionError as error:
        raise ChangesError(f"{path}: {error.strerror}; run as root") from error
    except OSError as error:
        raise ChangesError(
            f"{path}: {error.strerror}; name another directory in state_dir"
        ) from error


def read(path: Path) -> Record | None:
    """The list; None when nothing was changed.

    Raises:
        ChangesError: when it is damaged.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ChangesError(f"{path} is too large to be a list of changes; remove it")
        value = json.loads(path.read_text())
        undo = tuple(
            Undo(_words(row["command"]), bool(row["outlives_boot"])) for row in value["undo"]
        )
        return Record(bool(value["complete"]), value["boot"], value["fingerprint"], undo)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ChangesError(f"{path}: {error.strerror}; mend that") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ChangesError(
            f"{path} is damaged; undo what it lists by hand, and remove it"
        ) from error


def _words(command: object) -> tuple[str, ...]:
    if not isinstance(command, list) or not command:
        raise TypeError("no command")
    for word in command:
        if not isinstance(word, str) or "\0" in word:
            raise TypeError("no word of a command")
    return tuple(command)


def is_of_this_boot(record: Record) -> bool:
    """Whether what it lists is there still: a reboot leaves only what the switch's database has."""
    return record.boot == _boot()


def make(path: Path, fingerprint: str, steps: list[Step]) -> None:
    """Makes all changes. When one fails, or on Ctrl-C, the changes made so far are undone.

    Raises:
        CommandError: of the step that failed.
        ChangesError: when the list cannot be written.
    """
    record = Record(False, _boot(), fingerprint, ())
    try:
        for step in steps:
            undo = tuple(Undo(command, step.outlives_boot) for command in reversed(step.undo))
            record = Record(False, record.boot, fingerprint, record.undo + undo)
            _write(path, record)
            run(step.do)
        _write(path, Record(True, record.boot, fingerprint, record.undo))
    except BaseException as error:
        _write(path, record)
        try:
            undone(path)
        except ChangesError as left:
            raise ChangesError(f"{error or 'interrupted'}; and {left}") from error
        raise


def undone(path: Path) -> int:
    """Undoes everything in reverse order; returns how many changes that were.

    Raises:
        ChangesError: when something cannot be undone; it stays listed, and all else is undone.
    """
    record = read(path)
    if record is None:
        return 0
    same_boot = is_of_this_boot(record)
    left = list(record.undo)
    failed: list[Undo] = []
    problems: list[str] = []
    count = len(left)
    while left:
        change = left.pop()
        if same_boot or change.outlives_boot:
            try:
                _undo(change)
            except CommandError as error:
                problems.append(str(error))
                failed.insert(0, change)
        listed = (*left, *failed)
        _write(path, Record(False, record.boot, record.fingerprint, listed))
    if failed:
        raise ChangesError(
            f"{len(failed)} of {count} changes could not be undone: {'; '.join(problems[:3])}. "
            "Mend that and run teardown again; `teardown --plan` shows them. Once undone by hand, "
            f"remove {path}"
        )
    path.unlink(missing_ok=True)
    return count


def _undo(change: Undo) -> None:
    switch = any(Path(word).name.startswith("ovs-") for word in change.command)
    try:
        try:
            run(change.command)
        except CommandError:
            if not switch:
                raise
            # What the database has taken over is done, also while no switch acts on it: then it
            # is there no more the second time.
            run(change.command)
    except CommandError as error:
        if not any(text in str(error) for text in (_GONE_SWITCH if switch else _GONE)):
            raise


def _write(path: Path, record: Record) -> None:
    new = path.with_suffix(".new")
    try:
        with new.open("w") as file:
            json.dump(asdict(record), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise ChangesError(f"{path}: {error.strerror}; is the disk full?") from error


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
