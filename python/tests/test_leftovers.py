"""What a killed laboratory leaves goes with the next session; what is in use stays.

Directories and locks are the test's own, so that other runs on this machine are not looked at.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Lab

from ovs_testbed import networks
from ropewalk.lab.runner import leftovers

PYTHON = Path(__file__).parent.parent
PREFIX = f"ropewalk-ovs-test-left-{os.getpid()}-"
NETWORK = f"""
import time
from ovs_testbed.machine import Sandbox
with Sandbox("{PREFIX}", tied=True) as sandbox:
    name = sandbox.namespace("a")
    # The second one is as a program that another program has started.
    sandbox.start(name, "sleep", "61")
    sandbox.start(name, "sh", "-c", "sleep 62; true")
    print(sandbox.directory, flush=True)
    time.sleep(60)
"""
SCRATCH = """
import time
from ropewalk.lab.runner import leftovers
with leftovers.scratch() as directory:
    (directory / "plan.toml").write_text("")
    print(directory, flush=True)
    time.sleep(60)
"""
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and the program ip"
)


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(leftovers, "MEASURING", tmp_path / "lock")


def owner(code: str, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A program that owns something, and its directory."""
    found = {"TMPDIR": str(tmp_path / "tmp"), "ROPEWALK_TESTBED_LOCK": str(tmp_path / "lock")}
    path = os.pathsep.join((*filter(None, [os.environ.get("PYTHONPATH")]), str(PYTHON)))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **found, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def programs() -> list[str]:
    """The commands in the test's namespace."""
    command = ["ip", "netns", "pids", f"{PREFIX}a"]
    pids = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    texts = (Path("/proc", pid, "cmdline") for pid in pids)
    return [text.read_text().replace("\0", " ").strip() for text in texts if text.exists()]


def wait_for(*wanted: str) -> None:
    """Until these programs run, and no others."""
    end = time.monotonic() + 30
    while sorted(programs()) != sorted(wanted):
        assert time.monotonic() < end, f"{programs()} instead of {wanted}"
        time.sleep(0.1)


def has_namespace() -> bool:
    return Path("/run/netns", f"{PREFIX}a").exists()


def test_a_killed_runs_directory_goes_with_the_next_session_and_a_living_ones_stays(
    lab: Lab, tmp_path: Path
) -> None:
    process, directory = owner(SCRATCH, tmp_path)
    foreign = tmp_path / "tmp/ropewalk-lab-without-owner"
    foreign.mkdir()
    try:
        leftovers.sweep()
        assert (directory / "plan.toml").exists()
    finally:
        kill(process)
    assert directory.exists()
    assert lab("loss", "--sim", "--only", "0%/auto") == 0
    assert list((tmp_path / "tmp").iterdir()) == [foreign]


@needs_root
def test_a_killed_networks_programs_end_and_the_rest_goes_with_the_next_sweep(
    tmp_path: Path,
) -> None:
    process, directory = owner(NETWORK, tmp_path)
    try:
        wait_for("sleep 61", "sh -c sleep 62; true", "sleep 62")
        leftovers.sweep()
        wait_for("sleep 61", "sh -c sleep 62; true", "sleep 62")
        assert directory.exists()
        kill(process)
        wait_for("sleep 62")
        leftovers.sweep()
        assert not directory.exists()
        assert not has_namespace()
    finally:
        kill(process)
        leftovers.remove_namespace(f"{PREFIX}a")


def test_every_network_of_the_laboratory_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def sandbox(_: str, *, number: int, tied: bool) -> contextlib.nullcontext[int]:
        asked.append(tied)
        return contextlib.nullcontext(number)

    monkeypatch.setattr(networks, "Sandbox", sandbox)
    for network in networks.NETWORKS.values():
        empty = replace(network, make=lambda *_: io.BytesIO())  # type: ignore[arg-type]
        with empty.opened(tmp_path, 0):
            pass
    assert asked == [True] * len(networks.NETWORKS)


@needs_root
def test_a_namespace_that_a_new_network_of_the_same_name_has_made_stays(tmp_path: Path) -> None:
    process, directory = owner(NETWORK, tmp_path)
    try:
        kill(process)
        left = directory.with_name(f"{PREFIX}left")
        directory.rename(tmp_path / "aside")
        process, new = owner(NETWORK, tmp_path)
        (tmp_path / "aside").rename(left)
        leftovers.sweep()
        assert has_namespace()
        wait_for("sleep 61", "sh -c sleep 62; true", "sleep 62")
        assert {left, new} == set((tmp_path / "tmp").iterdir())
    finally:
        kill(process)
        leftovers.sweep()
    assert not has_namespace()
    assert not list((tmp_path / "tmp").iterdir())
