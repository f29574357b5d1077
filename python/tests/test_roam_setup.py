"""`setup` of roaming: which commands, for which switches, and what it remembers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropewalk.sdn.cli import main

VSCTL = """#!/bin/sh
echo "$*" >> {log}
case "$*" in *"list SSL"*) cat {keys} ;; esac
"""
IP = """#!/bin/sh
echo '[{"ifname": "p1", "flags": ["UP"]}, {"ifname": "p2", "flags": ["UP"]}]'
"""


class Machine:
    """Two switches with a link, and a program in the place of `ovs-vsctl` that writes what it was
    told to do."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.path = directory / "sdn.toml"
        self.log = directory / "log"
        self.keys = directory / "keys"
        self.keys.touch()
        programs = directory / "programs"
        programs.mkdir()
        for name, text in (
            ("ovs-vsctl", VSCTL.format(log=self.log, keys=self.keys)),
            ("ip", IP),
            ("ethtool", "#!/bin/sh\n"),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        self.configure("")

    def configure(self, more: str) -> None:
        rows = "".join(
            f'[[switch]]\nname = "ap{n}"\ndatapath_id = "000000000000000{n}"\n' for n in (1, 2)
        )
        rows += '[[link]]\na = "ap1:p1"\nb = "ap2:p2"\n'
        self.path.write_text(f'mode = "roam"\nstate_dir = "{self.directory}"\n{rows}{more}')

    def command(self, *words: str) -> int:
        return main(["--config", str(self.path), *words])

    def done(self) -> list[str]:
        """What was told since the last call, without questions."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return [line for line in lines if " list" not in line and " wait-until" not in line]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_machine_has_the_switches_that_were_named_and_no_others(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.command("setup", "--only", "ap1") == 0
    (made,) = machine.done()
    assert " add-br ap1 " in made
    assert "other_config:datapath-id=0000000000000001" in made
    assert machine.command("setup", "--only", "ap1") == 0
    assert "set up already" in capsys.readouterr().out
    for words in (["--only", "ap2"], ["--only", "ap1", "--only", "ap2"], []):
        assert machine.command("setup", *words) == 1
        assert "run `ropewalk-sdn teardown` first" in capsys.readouterr().err
    assert not machine.done()
    assert machine.command("teardown") == 0
    assert [line.split()[-2:] for line in machine.done()] == [["del-br", "ap1"]]
    # In whichever order they are named.
    assert machine.command("setup", "--only", "ap2", "--only", "ap1") == 0
    assert machine.command("setup", "--only", "ap1", "--only", "ap2") == 0
    assert len(machine.done()) == 2


def test_after_a_reboot_everything_is_made_anew(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.command("setup") == 0
    machine.done()
    state = machine.directory / "sdn-roam.json"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state.write_text(state.read_text().replace(boot, "another"))
    assert machine.command("setup") == 0
    assert "undid 2 changes of a setup before the last start" in capsys.readouterr().err
    told = ["del" if "del-br" in line else "add" for line in machine.done()]
    assert told == ["del", "del", "add", "add"]
    assert machine.command("setup") == 0
    assert not machine.done()


def test_the_switch_is_given_its_key_and_keeps_one_it_has(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    here = machine.directory
    machine.configure(
        f'[controller.tls]\nkey = "{here}/key"\ncertificate = "{here}/crt"\n'
        f'authority = "{here}/ca"\nswitch_key = "{here}/switch.key"\n'
        f'switch_certificate = "{here}/switch.crt"\n'
    )
    assert machine.command("setup", "--only", "ap1") == 1
    assert f"{here}/switch.key: no such file" in capsys.readouterr().err
    # The controller's own key is on another machine.
    for name in ("switch.key", "switch.crt", "ca"):
        (here / name).touch()
    assert machine.command("setup", "--only", "ap1") == 0
    key, bridge = machine.done()
    assert key.endswith(f"set-ssl {here}/switch.key {here}/switch.crt {here}/ca")
    assert 'target="ssl:127.0.0.1:6653"' in bridge
    assert machine.command("teardown") == 0
    assert machine.done()[-1].endswith("del-ssl")
    machine.keys.write_text("/somebody/else.key\n")
    assert machine.command("setup", "--only", "ap1") == 1
    assert "has a key for TLS already" in capsys.readouterr().err
    assert not machine.done()
