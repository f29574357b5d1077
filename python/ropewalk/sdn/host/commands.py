"""Runs system commands, bounded in time, with errors that name the command."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

SECONDS_MAX = 30
SAID_MAX = 2000
"""Characters of what a command that failed said."""


class CommandError(Exception):
    """A command that could not be run or failed; the message says which and why."""


def run(command: Sequence[str]) -> str:
    """Runs a command and returns what it printed.

    Raises:
        CommandError: when it is missing, fails, takes longer than `SECONDS_MAX`, or is none.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(
            f"no program {command[0]}: install it "
            "(Debian: openvswitch-switch, iproute2, ethtool, clang)"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{_shown(command)}: no end within {SECONDS_MAX} s") from error
    # Words with NUL bytes, and others that cannot be a program's arguments, are the ValueError.
    except (OSError, ValueError) as error:
        raise CommandError(f"{_shown(command)}: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:SAID_MAX] or f"exit status {done.returncode}"
        if "Alarm clock" in said:
            said += "; is ovs-vswitchd running? Its log says more"
        raise CommandError(f"{_shown(command)}: {said}")
    return done.stdout


def rows(command: Sequence[str]) -> list[dict[str, Any]]:
    """Runs a command that prints a JSON array of objects.

    Raises:
        CommandError: as `run`, and when it printed something else.
    """
    text = run(command)
    try:
        value = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{_shown(command)} printed no JSON: {error}") from error
    if not isinstance(value, list):
        raise CommandError(f"{_shown(command)} printed no JSON array")
    return [row for row in value if isinstance(row, dict) and row]


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command in a network namespace; "" is this one."""
    return ["ip", "netns", "exec", namespace, *command] if namespace else list(command)


def ip(namespace: str, *arguments: str) -> list[str]:
    """An `ip` command in a network namespace."""
    return ["ip", *(["-n", namespace] if namespace else []), *arguments]


def _shown(command: Sequence[str]) -> str:
    """The command as one would type it, without what a terminal would take for orders."""
    text = shlex.join(command)
    return "`" + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + "`"
