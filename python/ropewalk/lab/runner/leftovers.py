"""Directories of runs, and what a killed laboratory has left: directories, and namespaces.

The maker of a directory holds a lock (flock(2)) on the file `owner` in it. The kernel releases the
lock when the maker ends, however it does. So a directory whose lock is free is left over. The file
names the network namespaces that belong to the directory. Directories without it are not touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MEASURING = Path(os.environ.get("ROPEWALK_TESTBED_LOCK", "/run/ropewalk-testbed.lock"))
"""Runs share it; what measures alone holds it (`crates/testbed/src/serial.rs`)."""
SWITCHES = "ropewalk-ovs-"
"""Prefix of directories and namespaces of networks on Open vSwitch."""
_SCRATCH = "ropewalk-lab-"
_OWNER = "owner"
_TIMEOUT_S = 30


def make(prefix: str) -> tuple[Path, IO[str]]:
    """A new directory, and its file of namespaces, one a line. The directory is in use until the
    file is closed."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    # It gets its name when it is locked: no sweep finds it free before.
    unnamed = directory / f".{_OWNER}"
    file = unnamed.open("a")
    fcntl.flock(file, fcntl.LOCK_EX)
    unnamed.rename(directory / _OWNER)
    return directory, file


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for a run's files, removed at the end."""
    directory, file = make(_SCRATCH)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        file.close()


def own_lock(prefix: str) -> Path:
    """What a network holds while it lives: there is one at a time of each prefix."""
    return MEASURING.with_name(f"{prefix}testbed.lock")


def sweep() -> None:
    """Removes what killed laboratories have left, and nothing of those that live."""
    here = Path(tempfile.gettempdir())
    for directory in (*here.glob(f"{_SCRATCH}*"), *here.glob(f"{SWITCHES}*")):
        # Somebody uses it, it is no such directory, or it may not be removed.
        with contextlib.suppress(OSError):
            _remove_if_left(directory)


def _remove_if_left(directory: Path) -> None:
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    with contextlib.ExitStack() as locks:
        owner = locks.enter_context((directory / _OWNER).open("r+"))
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        prefix = directory.name[: directory.name.rindex("-") + 1]
        if prefix.startswith(SWITCHES):
            # A new network of this prefix has namespaces of the same names.
            another = locks.enter_context(own_lock(prefix).open("a"))
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in owner.read().split():
                if name.startswith(prefix):
                    remove_namespace(name)
        shutil.rmtree(directory)


def remove_namespace(name: str) -> None:
    """Kills what runs in a network namespace, and removes it; nothing if it is not there."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for text in _ip("pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(text), signal.SIGKILL)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _ip("del", name)


def _ip(*arguments: str) -> str:
    command = ["ip", "netns", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout
