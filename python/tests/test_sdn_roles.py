"""Several controllers: one is the switch's master, and another takes over when it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovs_testbed import balance
from ovs_testbed.machine import Sandbox, stop, wait
from ropewalk.lab.ovs.balance import WEIGHTS
from ropewalk.sdn.api import ApiError, ask
from ropewalk.sdn.config import Config, read
from ropewalk.sdn.openflow import roles
from ropewalk.sdn.openflow.roles import BEACON_S, Ask, Role

STALE = 1 << 63


class Switch:
    """As OpenFlow says: one master at most, numbers of claims never go back."""

    def __init__(self) -> None:
        self.generation = 0xFFFF_FFFF_FFFF_FFFF
        self.is_defined = False
        self.master: int | None = None
        self.slaves: set[int] = set()

    def claim(self, who: int, generation: int) -> bool:
        behind = (generation - self.generation) % (1 << 64) >= STALE
        if self.is_defined and behind:
            return False
        self.generation, self.is_defined = generation, True
        if self.master not in (None, who):
            self.slaves.add(self.master)
        self.slaves.discard(who)
        self.master = who
        return True


class Net:
    """Controllers with ranks at one switch; time passes in steps of a beacon's interval."""

    def __init__(self, ranks: list[int]) -> None:
        self.switch = Switch()
        self.now = 0.0
        self.ranks = dict(enumerate(ranks))
        self.roles: dict[int, Role] = {who: Role(rank, 0.0) for who, rank in self.ranks.items()}
        self.changed: list[int] = []
        """Who could change the switch, each time that somebody asked to."""

    def step(self) -> None:
        self.now += BEACON_S
        for who in list(self.roles):
            self.roles[who], ask = roles.passed(self.roles[who], self.now)
            self.do(who, ask)

    def do(self, who: int, ask: Ask) -> None:
        role = self.roles[who]
        match ask:
            case Ask.GENERATION:
                master = self.switch.master == who
                self.roles[who] = roles.answered(role, master, self.switch.generation)
            case Ask.MASTER:
                number = ((role.generation or 0) + 1) % (1 << 64)
                if self.switch.claim(who, number):
                    self.roles[who] = roles.answered(role, True, number)
            case Ask.EQUAL:
                self.switch.slaves.discard(who)
                if self.switch.master == who:
                    self.switch.master = None
            case Ask.BEACON if who in self.switch.slaves:
                self.roles[who], again = roles.demoted(role, self.now)
                self.do(who, again)
            case Ask.BEACON:
                for other in self.roles:
                    if other not in self.switch.slaves:
                        heard = roles.heard(self.roles[other], role.rank, self.now)
                        self.roles[other] = heard
            case _:
                pass

    def masters(self) -> list[int]:
        """Who takes itself for the master and is not refused by the switch."""
        return [
            who for who, role in self.roles.items() if role.master and who not in self.switch.slaves
        ]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True), st.data())
def test_the_first_in_rank_of_those_alive_becomes_the_only_master(
    ranks: list[int], data: st.DataObject
) -> None:
    net = Net(ranks)
    for _ in range(data.draw(st.integers(0, 5))):
        who = data.draw(st.sampled_from(sorted(net.ranks)))
        if who in net.roles:
            # Killed: the switch has no master any more if it was that.
            del net.roles[who]
            net.switch.slaves.discard(who)
            net.switch.master = None if net.switch.master == who else net.switch.master
        else:
            net.roles[who] = Role(net.ranks[who], net.now)
        for _ in range(data.draw(st.integers(0, 10))):
            net.step()
            assert len(net.masters()) <= 1
    for _ in range(int(3 * roles.patience_s(roles.RANKS_MAX) / BEACON_S)):
        net.step()
        assert len(net.masters()) <= 1
    alive = sorted(net.roles, key=lambda who: net.ranks[who])
    assert net.masters() == alive[:1]
    assert [who for who, role in net.roles.items() if role.master] == alive[:1]


def test_of_equal_rank_who_is_the_master_stays() -> None:
    net = Net([3, 3])
    del net.roles[1]
    for _ in range(10):
        net.step()
    net.roles[1] = Role(3, net.now)
    for _ in range(20):
        net.step()
        assert net.masters() == [0]


def test_a_switch_is_taken_soon_and_not_before_beacons_have_stopped() -> None:
    role = Role(2, 10.0)
    for step in range(50):
        now = 10.0 + step * BEACON_S
        role, asked = roles.passed(roles.heard(role, 1, now), now)
        assert asked is Ask.NOTHING
    now += roles.patience_s(2)
    assert roles.patience_s(2) < 2
    role, asked = roles.passed(role, now)
    assert asked is Ask.GENERATION
    role, asked = roles.passed(roles.answered(role, False, 6), now)
    assert asked is Ask.MASTER
    # Without an answer the number is asked for again: another may have had the same.
    assert roles.passed(role, now)[1] is Ask.GENERATION


@given(st.binary(max_size=80))
def test_no_frame_but_a_beacon_is_one(data: bytes) -> None:
    assert roles.rank_of(data) is None
    assert roles.rank_of(roles.beacon(3)) == 3
    assert roles.rank_of(roles.beacon(3)[:20] + data[:2]) is None


class Two(balance.Bench):
    """Two controllers at one switch; the second is the spare."""

    def configure(
        self,
        decide: str,
        weights: tuple[float, ...] = WEIGHTS,
        rule: str = "weighted-round-robin",
        rate_mbit: float | None = None,
    ) -> Config:
        config = super().configure(decide, weights, rule, rate_mbit)
        text = config.path.read_text()
        ends = ('"127.0.0.1:6701"', '"127.0.0.1:6702"')
        paths = (config.path, config.path.with_name("spare.toml"))
        for rank, path in enumerate(paths, 1):
            own, other = ends if rank == 1 else reversed(ends)
            rows = f"[controller]\nlisten = {own}\nothers = [{other}]\nrank = {rank}\n"
            path.write_text((text + rows).replace("/api.sock", f"/api{rank}.sock"))
        self.configs = tuple(read(path) for path in paths)
        return self.configs[0]

    def start_spare(self) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "ropewalk.sdn", "--config", str(self.configs[1].path)]
        return self.sandbox.start(self.machine.namespace, *command, "run", log="spare.log")

    def says(self, number: int) -> dict[str, Any]:
        try:
            return ask(self.configs[number].socket)
        except ApiError:
            return {}

    def is_master(self, number: int) -> bool:
        said = self.says(number)
        return bool(said.get("connected")) and bool(said.get("settled"))

    def stands_by(self, number: int) -> bool:
        return self.says(number).get("standing_by") == 1


@pytest.fixture
def two() -> Iterator[Two]:
    with Sandbox("ropewalk-ovs-test-roles-") as sandbox:
        yield Two(sandbox)


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root")
def test_a_spare_takes_over_from_a_killed_controller_and_gives_back(two: Two) -> None:
    server, port = balance.SERVER, str(balance.PORT)
    spare = two.start_spare()
    wait(lambda: two.stands_by(1), "the spare does not stand by")
    assert two.is_master(0)
    shown = subprocess.run(
        [sys.executable, "-m", "ropewalk.sdn", "--config", str(two.configs[1].path), "status"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(balance.__file__).parents[3])},
    )
    assert "another controller is the switch's master" in shown.stdout
    steady = two.begin("steady", server, port, "12")
    time.sleep(1)
    two.controller.send_signal(signal.SIGKILL)
    two.controller.wait()
    wait(lambda: two.is_master(1), "the spare did not take over")
    assert two.load("connect", server, port, "20")["connected"] == 20
    # What the switch had was right: nothing was changed.
    counters = two.says(1)["counters"]
    assert (counters["flow_mods"], counters["refused_messages"]) == (0, 0)
    # The first is back, and first in rank.
    two.controller = two.machine.control(two.configs[0])
    wait(lambda: two.is_master(0), "the first did not get its switch back")
    wait(lambda: two.stands_by(1), "the spare did not stand back")
    assert two.load("connect", server, port, "20")["connected"] == 20
    counters = two.says(0)["counters"]
    assert (counters["flow_mods"], counters["refused_messages"]) == (0, 0)
    # One that stood still is not the master any more when it goes on.
    two.controller.send_signal(signal.SIGSTOP)
    try:
        wait(lambda: two.is_master(1), "the spare waits for one that stands still")
        assert two.load("connect", server, port, "20")["connected"] == 20
    finally:
        two.controller.send_signal(signal.SIGCONT)
    wait(lambda: two.is_master(0) and two.stands_by(1), "not one master in the end")
    assert two.load("connect", server, port, "20")["connected"] == 20
    out, _ = steady.communicate(timeout=60)
    assert json.loads(out)["ended"] == "complete"
    stop(spare)
