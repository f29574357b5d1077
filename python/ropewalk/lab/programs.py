"""Finds the programs that do the runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TESTBED = "ropewalk-testbed"
SIMULATOR = "ropewalk-sim"
GATEWAY = "ropewalk"
LINK = "ropewalk-linkem"
NS3 = "ropewalk-ns3"
NS3_CHAIN = "ropewalk-ns3-chain"

ENVIRONMENT = "ROPEWALK_PROGRAMS"


class ProgramError(Exception):
    """A program that is not there; the message says what to do."""


def find(name: str, directory: Path | None) -> Path:
    """The program in `directory`, else in $ROPEWALK_PROGRAMS, ./target/release or $PATH.

    Raises:
        ProgramError: when it is in none of them.
    """
    if directory is not None:
        candidates = [directory]
    else:
        named = os.environ.get(ENVIRONMENT)
        candidates = [Path(named)] if named else []
        candidates.append(Path("target/release"))
    for candidate in candidates:
        program = candidate / name
        if program.is_file() and os.access(program, os.X_OK):
            return program.resolve()
    if directory is None and (found := shutil.which(name)):
        return Path(found).resolve()
    how = "`lab/ns3/build`, which needs ns-3" if name == NS3 else "`make build`"
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise ProgramError(
        f"no program {name} in {looked}; build it with {how}, "
        f"or name its directory with --programs or {ENVIRONMENT}"
    )


def find_or_none(name: str, directory: Path | None) -> Path | None:
    """As `find`, without the error."""
    try:
        return find(name, directory)
    except ProgramError:
        return None
