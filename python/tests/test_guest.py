"""The program that runs commands under another kernel; without QEMU, which is no part of tests."""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / "lab/guest/run"


def _run(*words: str, path: str = "/nowhere") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), *words]
    return subprocess.run(
        command, env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False
    )


def test_what_is_missing_is_named_as_what_to_install() -> None:
    done = _run("true")
    assert done.returncode == 3
    assert "apt-get install qemu-system-x86 busybox-static cpio kmod" in done.stderr


def test_a_command_is_asked_for() -> None:
    done = _run()
    assert done.returncode == 2
    assert "which command?" in done.stderr
