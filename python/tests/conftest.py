"""Programs for tests: the fake runner under the names of the real ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from ropewalk.lab.cli import main

# For `ovs_testbed`. Last: `ropewalk` is the installed one, which has the native module.
sys.path.append(str(Path(__file__).parent.parent))

Lab = Callable[..., int]

# The same cases on every machine, however busy it is.
settings.register_profile("ropewalk", deadline=None, derandomize=True, database=None)
settings.load_profile("ropewalk")


@pytest.fixture
def fake_programs(tmp_path: Path) -> Path:
    directory = tmp_path / "programs"
    directory.mkdir()
    script = Path(__file__).with_name("fake_runner.py")
    for name in ("ropewalk-testbed", "ropewalk-sim"):
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        program.chmod(0o755)
    return directory


@pytest.fixture
def lab(fake_programs: Path, tmp_path: Path) -> Lab:
    """Runs `ropewalk-lab run` with the fake programs; results go to `tmp_path / "out"`."""

    def run(*arguments: str, jobs: int = 2) -> int:
        common: Sequence[str] = (
            "--programs", str(fake_programs), "--out", str(tmp_path / "out"), "--jobs", str(jobs),
        )  # fmt: skip
        return main(["run", *arguments, *common])

    return run
