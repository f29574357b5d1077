"""The configuration: every error names file, key and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sdn_parts import balance, bicast, write

from ropewalk.sdn import modes, status
from ropewalk.sdn.cli import main
from ropewalk.sdn.config import read
from ropewalk.sdn.host import ovs
from ropewalk.sdn.host.commands import CommandError
from ropewalk.sdn.reader import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "sdn.md"


@pytest.mark.parametrize(
    ("more", "key", "remedy"),
    [
        ("copys = 2", "bicast.copys", "did you mean copies?"),
        ("copies = 0", "bicast.copies", "1 to 16"),
        ("copies = 3", "bicast.copies", "there are 2 uplinks"),
        ('copies = "two"', "bicast.copies", "whole number"),
        ('when = "losss"', "bicast.when", 'did you mean "loss"?'),
        ("loss_off_percent = 9", "bicast.loss_off_percent", "make it smaller"),
        ("remove_copies = 1", "bicast.remove_copies", "true or false"),
        ('[[bicast.flow]]\nprotocol = "icmp"\nport = 1', "bicast.flow[1].port", "remove it"),
        ("[balance]\n", "balance", 'write mode = "balance"'),
        ("[[uplink]]\nname = 1", "uplink[3].name", 'write it like "…"'),
        ('[[uplink]]\nname = "w9"\naddress = "1.2.3.4"', "uplink[3].address", "192.0.2.1/24"),
        ('[[uplink]]\nname = "w9"\naddress = "1.2.3.400/8"', "uplink[3].address", "192.0.2.1/24"),
        ('[controller]\nlisten = "here"', "controller.listen", "127.0.0.1:6653"),
        ('[controller]\nlisten = "0.0.0.0:6653"', "controller.listen", "switches connect to"),
        ('[controller]\nlisten = "::1:6653"', "controller.listen", "[2001:db8::1]:6653"),
        ("[controller.tls]\n", "controller.tls.key", "name the file"),
        ('[controller.tls]\nswitch_key = "/a"', "controller.tls.switch_certificate", "or neither"),
        ('[controller]\nlisten = "unix:/a"\n[controller.tls]', "controller.listen",
         "127.0.0.1:6653"),
        ('[controller]\nothers = ["here"]', "controller.others", "192.0.2.1:6653"),
        ('[controller]\nlisten = "192.0.2.1:1"\nothers = ["192.0.2.1:1"]', "controller.others",
         "its own address"),
        ('[controller]\nrank = 9', "controller.rank", "1 to 8"),
        ('[[uplink]]\nname = "lo"', "uplink[3].name", "interface of an uplink"),
        ('[[uplink]]\nname = "ropesw0"', "uplink[3].name", "interface of an uplink"),
        ('[[uplink]]\nname = "a/b"', "uplink[3].name", "use letters"),
        ('[[uplink]]\nname = "-j"', "uplink[3].name", "use letters"),
        ('[bridge]\nname = "lo"', "bridge.name", "choose another"),
        ('[bridge]\nname = "ropesw0"', "application.port", "choose another"),
        ('[bridge]\nname = "a-name-that-is-long"', "bridge.name", "at most 15"),
    ],
)  # fmt: skip
def test_an_error_names_file_key_and_remedy(
    tmp_path: Path, more: str, key: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        bicast(tmp_path, more)
    lines = [line for line in caught.value.lines if f" {key}:" in line]
    assert lines, caught.value.lines
    assert lines[0].startswith(f"{tmp_path}/sdn.toml: ")
    assert remedy in lines[0]


def test_all_errors_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write(tmp_path, 'mode = "x"\nsocket = "relative"\n[probe]\nport = 0\n')
    keys = {re.split(r": ", line)[1] for line in caught.value.lines}
    assert {"mode", "socket", "probe.port", "uplink", "application.address"} <= keys


def test_a_key_that_need_not_be_there_is_proposed_for_one_like_it(tmp_path: Path) -> None:
    text = '[[uplink]]\nname = "w9"\nwieght = 2\n'
    with pytest.raises(ConfigError, match=r"uplink\[1\]\.wieght: unknown key; did you mean weight"):
        write(tmp_path, f'mode = "balance"\n{text}')


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('mode = "balence"\n[balance]\nzone = 0\n', {"mode", "balance.zone", "uplink"}),
        ('mode = "x"\n[balance]\nzone = 0\n', {"mode", "balance.zone", "uplink"}),
        ('mode = 5\n[roam]\nscheme = "x"\n', {"mode", "roam.scheme", "switch"}),
        ('mode = "balance"\n[probe]\nport = 0\n', {"probe.port", "uplink"}),
    ],
)
def test_a_wrong_mode_or_a_missing_table_hides_no_other_error(
    tmp_path: Path, text: str, keys: set[str]
) -> None:
    path = tmp_path / "sdn.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        modes.configuration(path)
    found = [re.split(r": ", line)[1] for line in caught.value.lines]
    assert keys <= set(found)
    assert found.count("mode") == ("mode" in keys)


@pytest.mark.parametrize("before", [True, False])
def test_the_file_is_named_by_the_short_option_too(
    tmp_path: Path, before: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["-c", str(bicast(tmp_path).path)]
    assert main([*named, "check"] if before else ["check", *named]) == 0
    assert "in order" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("systemd", "command"), [(True, "systemctl start"), (False, "ovs-ctl start")]
)
def test_how_open_vswitch_is_started_depends_on_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: bool, command: str
) -> None:
    monkeypatch.setattr(ovs, "SYSTEMD", tmp_path if systemd else tmp_path / "none")

    def refused(_command: list[str]) -> str:
        raise CommandError("database connection failed")

    monkeypatch.setattr(ovs, "run", refused)
    with pytest.raises(CommandError, match=f"is Open vSwitch running .*{command}"):
        ovs.bridges("")


def test_a_file_that_is_not_there_or_no_toml_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="not TOML"):
        write(tmp_path, "mode = [")


def test_a_wrong_value_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        bicast(tmp_path, "when = 5")
    assert [line for line in caught.value.lines if "bicast.when" in line] == [
        f'{tmp_path}/sdn.toml: bicast.when: not a text; write it like "…"'
    ]


def test_loss_is_not_measured_without_probes(tmp_path: Path) -> None:
    bicast(tmp_path, 'when = "loss"')
    bicast(tmp_path, probe="interval_ms = 0")
    with pytest.raises(ConfigError, match=r"probe\.interval_ms: 0; .*raise it"):
        bicast(tmp_path, 'when = "loss"', probe="interval_ms = 0")


def test_files_for_tls_that_are_not_there_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("key", "certificate", "authority", "switch_key", "switch_certificate")
    rows = "".join(f'{name} = "{tmp_path}/{name}"\n' for name in names)
    number = '[bridge]\ndatapath_id = "00000000000000a1"\n'
    path = bicast(tmp_path, f"{number}[controller.tls]\n{rows}").path
    for name in names:
        (tmp_path / name).touch()
    assert main(["--config", str(path), "check"]) == 0
    (tmp_path / "authority").unlink()
    (tmp_path / "switch_key").unlink()
    assert main(["--config", str(path), "check"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert f"{path}: controller.tls.authority: {tmp_path}/authority is no file" in said[0]
    assert "controller.tls.switch_key" in said[1]


def test_what_listens_by_default_is_for_the_switch_alone(tmp_path: Path) -> None:
    path = tmp_path / "sdn.toml"
    bicast(tmp_path)
    bridge = '[bridge]\nname = "br9"\ndatabase = "unix:/run/ovs/db.sock"\n'
    there = write(tmp_path, path.read_text() + bridge).controller.listen.path
    assert there == Path("/run/ovs/ropewalk-br9.sock")
    tls = '[controller.tls]\nkey = "/a"\ncertificate = "/b"\nauthority = "/c"\n'
    number = '[bridge]\ndatapath_id = "00000000000000a1"\n'
    assert bicast(tmp_path, number + tls).controller.targets == ("ssl:127.0.0.1:6653",)
    assert bicast(tmp_path, number + tls).bridge.datapath_id == 0xA1
    with pytest.raises(ConfigError, match=r"bridge\.datapath_id: missing; with TLS"):
        bicast(tmp_path, tls)
    listen = '[controller]\nlisten = "[::1]:1234"\n'
    assert bicast(tmp_path, listen).controller.targets == ("tcp:[::1]:1234",)


def test_the_command_says_so_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sdn.toml"
    path.write_text("mode = 3")
    assert main(["--config", str(path), "check"]) == 2
    assert "sdn.toml: mode:" in capsys.readouterr().err


def test_defaults_are_complete(tmp_path: Path) -> None:
    config = balance(tmp_path)
    assert config.mode == "balance"
    assert config.controller.targets == ("unix:ropewalk-ropebr0.sock",)
    assert str(config.controller.listen) == "unix:/run/openvswitch/ropewalk-ropebr0.sock"
    assert [way.peer for way in config.ways] == ["10.0.0.2", "10.1.0.2"]


def test_both_address_families_go_under_the_same_keys(tmp_path: Path) -> None:
    config = balance(tmp_path, versions=(6, 4))
    assert [host.ip for host in config.application.hosts] == ["10.98.0.2", "fd98::2"]
    ways = [(way.uplink, way.family.version, way.gateway) for way in config.ways]
    assert ways == [
        ("w0", 4, "10.0.0.2"),
        ("w0", 6, "fe80::"),
        ("w1", 4, "10.1.0.2"),
        ("w1", 6, "fe80::1"),
    ]


@pytest.mark.parametrize(
    ("rows", "key", "problem"),
    [
        ('address = "10.9.0.1/24"\npeer = "fd09::2"', "uplink[1].peer", "no IPv4 address"),
        ('address = ["10.9.0.1/24", "10.8.0.1/24"]\npeer = "10.9.0.2"', "uplink[1].address",
         "two of IPv4"),
        ('address = "fd09::1/64"\npeer = "fd09::2"', "uplink", "none has an IPv4"),
        ('address = ["10.9.0.1/24", "fd09::1/64"]\npeer = ["10.9.0.2", "fd09::2"]',
         "application.address", "no IPv6"),
        ('address = "10.9.0.1/24"\npeer = "224.0.0.1"', "uplink[1].peer", "no host's"),
        ('address = "fe80::1%eth0/64"\npeer = "fd09::2"', "uplink[1].address", "names an"),
        ('address = "10.9.0.1/24"\npeer = "10.9.0.2"\ngateway = "fd09::1"', "uplink[1].address",
         "no IPv6"),
        ("address = []\npeer = 3", "uplink[1].address", "neither a text nor"),
    ],
)  # fmt: skip
def test_address_families_that_do_not_fit_together_are_errors(
    tmp_path: Path, rows: str, key: str, problem: str
) -> None:
    text = '[application]\naddress = "10.99.0.1/24"\npeer = "10.99.0.2"\n'
    with pytest.raises(ConfigError) as caught:
        write(tmp_path, f'{text}[[uplink]]\nname = "w0"\n{rows}\n')
    assert [line for line in caught.value.lines if f" {key}: " in line and problem in line]


def test_status_has_a_row_for_each_family_and_new_flows_once() -> None:
    row = {"name": "wan0", "family": "ipv4", "usable": True, "rtt_ms": 12.5, "loss": None}
    report = {
        **{"bridge": "br", "mode": "balance", "connected": True, "flows": 9, "groups": 1},
        "new_flows": {"wan0": 7},
        "uplinks": [row, {**row, "family": "ipv6", "usable": False}],
    }
    _, ipv4, ipv6 = status.lines(report)
    assert ipv4.split() == ["wan0", "ipv4", "up", "rtt", "12.5", "ms", "loss", "-",
                            "new", "flows", "7"]  # fmt: skip
    assert ipv6.split()[:3] == ["wan0", "ipv6", "down"]
    assert "new flows" not in ipv6


def test_status_without_a_controller_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bicast(tmp_path)
    path = tmp_path / "sdn.toml"
    path.write_text(f'socket = "{tmp_path}/none.sock"\n' + path.read_text())
    assert main(["--config", str(path), "status"]) == 1
    assert "ropewalk-sdn run" in capsys.readouterr().err


def test_the_examples_of_the_documentation_are_valid(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    whole = [example for example in examples if example.startswith("mode")]
    assert len(whole) >= 2
    for example in examples:
        write(tmp_path, example if example in whole else whole[0] + example)


def test_roam_is_a_mode_of_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sdn.toml"
    path.write_text(
        'mode = "roam"\n[roam]\nscheme = "zwa"\n[[switch]]\nname = "ap1"\n'
        'datapath_id = "0000000000000001"\naccess = ["wlan0"]\n'
    )
    assert main(["--config", str(path), "check"]) == 0
    assert "mode roam, zwa, 1 switches" in capsys.readouterr().out
    assert main(["--config", str(path), "setup", "--plan", "--only", "ap9"]) == 2
    assert "--only ap9: no switch ap9 there" in capsys.readouterr().err
    path.write_text("mode = 5\n")
    assert main(["--config", str(path), "check"]) == 2
    assert capsys.readouterr().err.strip() == f'{path}: mode: not a text; write it like "…"'
    path.write_text('mode = "rome"\n')
    assert main(["--config", str(path), "check"]) == 2
    assert 'use one of "bicast", "balance", "roam"' in capsys.readouterr().err
