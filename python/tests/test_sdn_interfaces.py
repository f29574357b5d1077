"""What a bridge takes from an interface comes back as it was; in a namespace, so it needs root."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ovs_testbed.links import veth
from ovs_testbed.machine import Sandbox, SandboxError, inside, run, wait
from ropewalk.sdn.host import interfaces
from ropewalk.sdn.host.commands import CommandError

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root"),
]

TAKE = """\
import sys
from pathlib import Path
from ropewalk.sdn.host import changes, interfaces
names = ["w0", "w1"]
plan = interfaces.without_addresses(names) + interfaces.without_ipv6(names)
plan += [step for name in names for step in interfaces.prepared(name)]
changes.make(Path(sys.argv[1]), "", plan)
"""
GIVE = """\
import sys
from pathlib import Path
from ropewalk.sdn.host import changes
changes.undone(Path(sys.argv[1]))
"""
ADDRESSES = """\
10.0.0.9/24 brd 10.0.0.127 label w0:first
10.0.0.1/24
10.0.0.5/24 valid_lft 36000 preferred_lft 18000
10.7.0.1 peer 10.7.0.2/32
10.9.0.1/24 scope link
fd12::5/64 nodad
fd12::1/64 nodad
fd02::1/64 preferred_lft 0 nodad
fd03::1/64 home nodad
fd01::1/64 valid_lft 36000 preferred_lft 18000 nodad
fe80::1/64 nodad
"""
ROUTES = """\
default via 10.0.0.2
198.51.110.0/24 via 10.0.0.3
198.51.110.0/24 via 10.0.0.4
198.51.111.0/24 via 10.0.0.2 rto_min 5ms mtu lock 1400
198.51.112.0/24 nhid 11
198.51.113.0/24 via 10.0.0.2 dev w0 table 100 onlink metric 7
198.51.114.0/24 nexthop via 10.0.0.2 dev w0 nexthop via 10.8.0.2 dev w1 weight 2
local 10.70.0.0/24 dev w0 table local
throw 198.51.115.0/24
2001:db8:1::/48 via fe80::2 src fd12::1 dev w0
2001:db8:2::/48 via fd12::2 expires 6000
2001:db8:3::/48 nhid 12
2001:db8:4::/48 nexthop via fd12::2 dev w0 nexthop via fd12::3 dev w0
"""


@pytest.fixture
def space() -> Iterator[str]:
    with Sandbox("ropewalk-ovs-test-interfaces-") as sandbox:
        here, there = sandbox.namespace("here"), sandbox.namespace("there")
        inside(here, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
        for number in range(3):
            veth(f"{here}:w{number}", f"{there}:w{number}")
        ip = ("ip", "-n", here)
        for line in ADDRESSES.splitlines():
            run(*ip, "addr", "add", *line.split(), "dev", "w0")
        run(*ip, "addr", "add", "10.8.0.1/24", "dev", "w1")
        run(*ip, "addr", "add", "10.3.0.1/24", "dev", "w2")
        # Of an interface that no bridge wants.
        run(*ip, "route", "append", "default", "via", "10.3.0.2", "dev", "w2")
        run(*ip, "nexthop", "add", "id", "11", "via", "10.0.0.2", "dev", "w0")
        run(*ip, "nexthop", "add", "id", "12", "via", "fd12::2", "dev", "w0")
        for line in ROUTES.splitlines():
            words = line.split()
            version = "-6" if "2001:" in line else "-4"
            run(*ip, version, "route", "append", *words)
        own = ("ip", "-6", "-o", "addr", "show", "scope", "link")
        wait(lambda: inside(here, *own).count("fe80::") == 4, "no link-local addresses")
        yield here


def _python(space: str, text: str, state: Path) -> str:
    return inside(space, sys.executable, "-c", text, str(state))


def _settings(space: str) -> list[str]:
    """Addresses in their order, and routes; what passes with time is left away."""
    lines = []
    for words in (
        "-4 addr show",
        "-6 addr show",
        "-4 route show table all",
        "-6 route show table all",
    ):
        for line in inside(space, "ip", "-o", *words.split()).splitlines():
            text = re.sub(r"(valid_lft|preferred_lft) [0-9]*sec", r"\1 some", line)
            text = re.sub(r"expires [0-9]+sec", "expires some", text)
            # The kernel's own.
            if "table local proto kernel" not in text and not text.startswith("fe80::/64"):
                lines.append(re.sub(r" nodad| linkdown| dead", "", text))
    return lines


def test_addresses_and_routes_come_back_as_they_were(space: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    before = _settings(space)
    assert sum("w0" in line for line in before) > 20
    _python(space, TAKE, state)
    taken = _settings(space)
    assert not [line for line in taken if re.match(r"[0-9]+: w[01] ", line)]
    assert [line for line in taken if "default via 10.3.0.2 dev w2" in line]
    _python(space, GIVE, state)
    assert _settings(space) == before
    assert not state.exists()


def test_what_cannot_come_back_holds_up_nothing_else(space: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    before = _settings(space)
    _python(space, TAKE, state)
    text = state.read_text()
    state.write_text(text.replace('"198.51.113.0/24"', '"198.51.113.999/24"'))
    with pytest.raises(SandboxError, match=r"1 of .* could not be undone"):
        _python(space, GIVE, state)
    lacking = set(before) - set(_settings(space))
    assert len(lacking) == 1 and "198.51.113.0/24" in lacking.pop()
    state.write_text(state.read_text().replace('"198.51.113.999/24"', '"198.51.113.0/24"'))
    _python(space, GIVE, state)
    assert set(before) == set(_settings(space))


@pytest.mark.parametrize(
    ("shown", "taken"),
    [
        ("default via 10.0.0.1 dev dead dead linkdown", "default via 10.0.0.1 dev dead"),
        ("10.0.0.0/8 dev w0 error -113", "10.0.0.0/8 dev w0"),
        ("10.0.0.0/8 dev w0 proto ra", ""),
        ("10.0.0.0/8 dev w0 proto kernel scope link", ""),
        ("local 10.0.0.1 dev w0 table local proto kernel", ""),
        ("10.0.0.0/8 nhid 7 via 10.0.0.1 dev w0 table 9 metric 5 scope link",
         "10.0.0.0/8 nhid 7 table 9 metric 5"),
    ],
)  # fmt: skip
def test_a_route_is_written_as_it_was_shown(shown: str, taken: str) -> None:
    assert interfaces._route(shown.split(), kernels_too=False) == taken.split()


def test_a_route_that_could_not_come_back_is_refused_beforehand() -> None:
    with pytest.raises(CommandError, match="remove it first"):
        interfaces._route(["10.0.0.0/8", "encap", "ip", "id", "3"], kernels_too=False)
