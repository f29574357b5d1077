"""The list of changes: everything made is undone, whatever ended the making."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.sdn.host import changes
from ropewalk.sdn.host.changes import ChangesError, Step
from ropewalk.sdn.host.commands import CommandError


def _touch(path: Path, *, outlives_boot: bool = False) -> Step:
    return Step(("touch", str(path)), (("rm", str(path)),), outlives_boot)


def test_everything_is_undone_in_reverse_order(tmp_path: Path) -> None:
    inner = tmp_path / "directory"
    steps = [Step(("mkdir", str(inner)), (("rmdir", str(inner)),)), _touch(inner / "file")]
    state = tmp_path / "state.json"
    changes.make(state, "same", steps)
    record = changes.read(state)
    assert record is not None
    assert record.complete
    assert (inner / "file").exists()
    assert changes.undone(state) == 2
    assert not inner.exists()
    assert not state.exists()


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with pytest.raises(CommandError, match="false"):
        changes.make(state, "same", [_touch(tmp_path / "file"), Step(("false",))])
    assert not (tmp_path / "file").exists()
    assert not state.exists()


def test_a_killed_setup_is_undone_by_the_next(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    text = (
        "from pathlib import Path\n"
        "from ropewalk.sdn.host import changes\n"
        f"file = {str(tmp_path / 'file')!r}\n"
        "steps = [changes.Step(('touch', file), (('rm', file),)),\n"
        "         changes.Step(('sh', '-c', 'kill -9 $PPID; sleep 5'))]\n"
        f"changes.make(Path({str(state)!r}), 'same', steps)\n"
    )
    killed = subprocess.run([sys.executable, "-c", text], check=False, timeout=30)
    assert killed.returncode == -9
    assert (tmp_path / "file").exists()
    record = changes.read(state)
    assert record is not None
    assert not record.complete
    assert changes.undone(state) == 1
    assert not (tmp_path / "file").exists()


def test_of_an_earlier_boot_only_what_outlives_it_is_undone(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    here, there = tmp_path / "here", tmp_path / "there"
    changes.make(state, "same", [_touch(here), _touch(there, outlives_boot=True)])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state.write_text(state.read_text().replace(boot, "another"))
    changes.undone(state)
    assert here.exists()
    assert not there.exists()


def test_what_cannot_be_undone_stays_listed_with_a_remedy(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    changes.make(state, "same", [Step(("true",), (("false",),))])
    with pytest.raises(ChangesError, match="by hand"):
        changes.undone(state)
    record = changes.read(state)
    assert record is not None
    assert [change.command for change in record.undo] == [("false",)]


def test_a_switch_whose_database_is_away_stays_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "database connection failed (No such file or directory)"
    program = tmp_path / "ovs-vsctl"
    program.write_text(f"#!/bin/sh\necho 'ovs-vsctl: unix:db.sock: {said}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    state = tmp_path / "state.json"
    undo = ("ovs-vsctl", "--if-exists", "del-br", "br0")
    changes.make(state, "same", [Step(("true",), (undo,), outlives_boot=True)])
    with pytest.raises(ChangesError, match="database connection failed"):
        changes.undone(state)
    record = changes.read(state)
    assert record is not None
    assert [row.command for row in record.undo] == [undo]


LISTED = """{
    "complete": true, "boot": "", "fingerprint": "",
    "undo": [{"command": %s, "outlives_boot": true}]
}"""


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        LISTED % "[]",
        LISTED % r'["a\u0000"]',
    ],
)
def test_a_damaged_list_is_told(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with pytest.raises(ChangesError, match="damaged"):
        changes.read(state)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with (
        changes.locked(state),
        pytest.raises(ChangesError, match="another"),
        changes.locked(state),
    ):
        os.abort()
