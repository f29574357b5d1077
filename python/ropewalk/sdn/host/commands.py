"""Runs system commands, bounded in time, with errors that name the command."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

SECONDS_MAX = 30


class CommandError(Exception):
    """A command that could not be run or failed; the message says which and why."""


def run(command: Sequence[str]) -> str:
    """Runs a command and returns what it printed.

    Raises:
        CommandError: when it is missing, fails, or takes longer than `SECONDS_MAX`.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except FileNotFoundError as error:
        raise CommandError(
            f"no program {command[0]}: install it "
            "(Debian: openvswitch-switch, iproute2, ethtool, clang)"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"`{shlex.join(command)}`: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise CommandError(f"`{shlex.join(command)}`: {said}")
    return done.stdout


def rows(command: Sequence[str]) -> list[dict[str, Any]]:
    """Runs a command that prints a JSON array of objects.

    Raises:
        CommandError: as `run`, and when it printed something else.
    """
    text = run(command)
    try:
        value = json.loads(text or "[]")
    except json.JSONDecodeError as error:
        raise CommandError(f"`{shlex.join(command)}` printed no JSON: {error}") from error
    return [row for row in value if isinstance(row, dict) and row]


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command in a network namespace; "" is this one."""
    return ["ip", "netns", "exec", namespace, *command] if namespace else list(command)


def ip(namespace: str, *arguments: str) -> list[str]:
    """An `ip` command in a network namespace."""
    return ["ip", *(["-n", namespace] if namespace else []), *arguments]
