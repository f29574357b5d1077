"""What packages are made of: trees, reproducible archives, and the files for OpenWrt."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from ropewalk.lab.programs import ENVIRONMENT

ROOT = Path(__file__).parents[2]
OPENWRT = ROOT / "packaging/openwrt/files"
PROGRAMS = Path(os.environ.get(ENVIRONMENT, ROOT / "target/release"))
PACKED = ("ropewalk", "ropewalk-linkem", "ropewalk-sim")

needs_busybox = pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is missing")
needs_programs = pytest.mark.skipif(
    any(not (PROGRAMS / name).exists() for name in PACKED),
    reason=f"not all programs are in {PROGRAMS}: cargo build --release --bins",
)

# As `uci export` writes what has quotes in it.
NAME = r"""it'\''s "a" \boat"""
EXPORT = r"""package ropewalk

config gateway 'main'
	option enabled '1'
	option role 'site'
	option name 'it'\''s "a" \boat'

config hub
	option key 'M/xwKMrMzYDOzDQErY2eCKNGmcN4hDpZxFygAVEVhTA='
	list endpoints 'hub.example.org:4443'
	list endpoints '203.0.113.2:4443'
	option tcp_port '0443'

config network
	option kill_switch '0'
	list routes '10.0.0.0/8'

config uplink
	option match 'wwan*'
	option metered 'on'
	option quota_gb '50'

config uplink
	option match '1'
	option quota_gb '0.5'

config class
	option name 'queries'
	list ports '53'
	option protect 'duplicate'
"""
CONVERTED = {
    "name": """it's "a" \\boat""",
    "hub": {
        "key": "M/xwKMrMzYDOzDQErY2eCKNGmcN4hDpZxFygAVEVhTA=",
        "endpoints": ["hub.example.org:4443", "203.0.113.2:4443"],
        "tcp_port": 443,
    },
    "network": {"kill_switch": False, "routes": ["10.0.0.0/8"]},
    "uplink": [
        {"match": "wwan*", "metered": True, "quota_gb": 50},
        {"match": "1", "quota_gb": 0.5},
    ],
    "class": [{"name": "queries", "ports": ["53"], "protect": "duplicate"}],
}


def convert(export: str, *awk: str) -> subprocess.CompletedProcess[str]:
    command = [*awk, "-f", str(OPENWRT / "uci-to-toml.awk")]
    return subprocess.run(
        command, input=export, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("awk", [pytest.param(("busybox", "awk"), marks=needs_busybox), ("awk",)])
def test_a_configuration_of_openwrt_becomes_toml(awk: tuple[str, ...]) -> None:
    done = convert(EXPORT, *awk)
    assert (done.returncode, done.stderr) == (0, "")
    assert tomllib.loads(done.stdout) == CONVERTED


@pytest.mark.parametrize(
    ("export", "said"),
    [
        ("config network\n\toption forward 'perhaps'\n", "network.forward"),
        ("config network\n\nconfig network\n", 'two sections "network"'),
        ("config net-work\n", '"net-work" is no table'),
        ("config hub\n\toption key 'two\nlines'\n", "several lines"),
        ("\toption key 'x'\n", "before the first section"),
    ],
)
def test_what_openwrt_cannot_mean_is_refused(export: str, said: str) -> None:
    done = convert(export, "awk")
    assert done.returncode == 1
    assert said in done.stderr


@needs_programs
def test_ropewalk_takes_what_was_converted(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    # `doctor` asks the hub: on this machine nobody answers.
    export = EXPORT.replace(NAME, "boat").replace("hub.example.org", "127.0.0.1")
    export = export.replace("203.0.113.2", "127.0.0.2")
    config.write_text(convert(export, "awk").stdout)
    doctor = [str(PROGRAMS / "ropewalk"), "doctor", "--config", str(config)]
    done = subprocess.run(doctor, capture_output=True, text=True, timeout=60, check=False)
    assert f"ok    configuration: {config} is sound" in done.stdout + done.stderr


# What rc.common of OpenWrt and `uci` do, as far as the init script asks.
STUB = """
uci() {
	case "$*" in
	"-q show ropewalk") echo "ropewalk.main=gateway"; echo "ropewalk.@hub[0]=hub" ;;
	"-q get ropewalk.main.enabled") echo "$ENABLED" ;;
	"-q get ropewalk.main.role") echo site ;;
	"-q get ropewalk.main.config_file") [ -n "$FILE" ] && echo "$FILE" ;;
	"export ropewalk") cat "$EXPORT" ;;
	*) return 1 ;;
	esac
}
logger() { echo "logger $*"; }
for word in open_instance set_param close_instance add_reload_trigger; do
	eval "procd_$word() { echo $word \\"\\$@\\"; }"
done
. "$INIT"
start_service
"""


@needs_busybox
@pytest.mark.parametrize(
    ("enabled", "file", "started"), [("0", "", None), ("1", "", "generated"), ("1", "own", "own")]
)
def test_the_init_script_starts_what_is_configured(
    tmp_path: Path, enabled: str, file: str, started: str | None
) -> None:
    own = tmp_path / "own.toml"
    own.write_text("")
    generated = tmp_path / "generated"
    (tmp_path / "export").write_text(EXPORT)
    environment = {
        "PATH": os.environ["PATH"],
        "ENABLED": enabled,
        "FILE": str(own) if file else "",
        "EXPORT": str(tmp_path / "export"),
        "INIT": str(OPENWRT / "ropewalk.init"),
        "ROPEWALK_CONVERTER": str(OPENWRT / "uci-to-toml.awk"),
        "ROPEWALK_GENERATED": str(generated),
    }
    done = subprocess.run(
        ["busybox", "ash", "-u", "-c", STUB],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    if started is None:
        assert done.stdout == ""
        return
    config = own if started == "own" else generated / "site.toml"
    assert f"set_param command /usr/bin/ropewalk up --config {config}\n" in done.stdout
    if started == "generated":
        key_file = {"key_file": "/etc/ropewalk/keys/site.key"}
        assert tomllib.loads(config.read_text()) == CONVERTED | key_file


def test_the_package_of_openwrt_has_the_version_of_the_workspace() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    makefile = (ROOT / "packaging/openwrt/Makefile").read_text()
    assert f"PKG_VERSION:={version}\n" in makefile


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is missing")
def test_scripts_of_packages_are_sound() -> None:
    scripts = [ROOT / "scripts/release", *sorted((ROOT / "packaging").glob("*.sh"))]
    subprocess.run(["shellcheck", *scripts], check=True, timeout=60)
    init = ["shellcheck", "-s", "dash", "-e", "SC3043", str(OPENWRT / "ropewalk.init")]
    subprocess.run(init, check=True, timeout=60)


@needs_programs
@pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="dpkg-dev is missing")
def test_equal_programs_give_an_equal_package(tmp_path: Path) -> None:
    small = tmp_path / "programs"
    small.mkdir()
    for name in PACKED:
        shutil.copy("/bin/true", small / name)
    packages = []
    for directory in (tmp_path / "one", tmp_path / "another-place"):
        environment = os.environ | {
            "PREBUILT": str(small),
            "RUNNABLE": str(PROGRAMS),
            "SOURCE_DATE_EPOCH": "1700000000",
            "TMPDIR": str(directory),
        }
        directory.mkdir()
        subprocess.run(
            [ROOT / "packaging/deb.sh", directory],
            env=environment,
            check=True,
            capture_output=True,
            timeout=60,
        )
        packages.append(next(directory.glob("*.deb")).read_bytes())
        # Without a fixed time the next one would have another.
        time.sleep(1.1)
    assert packages[0] == packages[1]
