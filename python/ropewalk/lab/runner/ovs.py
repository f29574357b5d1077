"""Runs on Open vSwitch: bridges, controllers and links in namespaces (`ovs_testbed`)."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ropewalk.lab import programs
from ropewalk.lab.cell import Cell
from ropewalk.lab.ovs import checkout
from ropewalk.lab.runner import STOPPED, RunError, UnavailableError
from ropewalk.plan import Plan
from ropewalk.report import Report
from ropewalk.sdn.api import ApiError

NEEDS = ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ovs-ofctl", "ip", "tc", "ethtool", "ss")
"""Programs of every network."""


class Bench(Protocol):
    """A network that has been made."""

    def run(self, plan: Plan) -> Report:
        """One run; raises RunError when something does not come about."""

    def close(self) -> None:
        """Ends what its network's end does not end."""


class Network(Protocol):
    """A kind of network of `ovs_testbed`."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Programs besides those of every network."""

    def opened(self, links: Path, number: int) -> AbstractContextManager[Bench]:
        """One of several networks of its kind; raises RunError when it does not come about."""


_FAILURES = (
    *(RunError, ApiError, OSError, subprocess.SubprocessError),
    # A program's report lacks something, or is not a report at all.
    *(ValueError, LookupError),
)


def networks() -> Mapping[type, Network]:
    """The kinds of networks by what carries their traffic.

    Raises:
        UnavailableError: when they are not there.
    """
    found: Mapping[type, Network] = checkout.load("networks").NETWORKS
    return found


class OvsRunners:
    """Runs as many cells at once as there are threads, each on a network of its own.

    `close` takes down what was set up; `contextlib.closing` does that also on Ctrl-C.
    """

    def __init__(self, directory: Path | None, jobs: int) -> None:
        """`directory`: where the programs are, as for `programs.find`. `jobs`: threads, at most."""
        self._all = [OvsRunner(directory, number) for number in range(jobs)]
        # The one that ran last has its network already.
        self._idle: queue.LifoQueue[OvsRunner] = queue.LifoQueue()
        for runner in reversed(self._all):
            self._idle.put(runner)

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell."""
        if STOPPED.is_set():
            raise UnavailableError("stopped")
        runner = self._idle.get()
        try:
            return runner.run(cells)
        finally:
            self._idle.put(runner)

    def stop(self) -> None:
        """Gives up: runs fail, since their networks go, and no new one begins until `close`."""
        STOPPED.set()
        self._take_down()

    def close(self) -> None:
        """Takes all networks down; no thread may run any more."""
        self._take_down()
        STOPPED.clear()

    def _take_down(self) -> None:
        # Each lasts seconds.
        with ThreadPoolExecutor(len(self._all)) as executor:
            list(executor.map(OvsRunner.close, self._all))


class OvsRunner:
    """Runs one cell at a time; consecutive ones of a kind share a network."""

    def __init__(self, directory: Path | None, number: int) -> None:
        """`directory`: where the programs are. `number`: of its networks, among others at once."""
        self._directory = directory
        self._number = number
        self._open = contextlib.ExitStack()
        self._kind: type | None = None
        self._bench: Bench | None = None

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell."""
        return [self._run(cell) for cell in cells]

    def _run(self, cell: Cell) -> Report:
        plan = cell.plan.with_seed(cell.seed)
        try:
            return self._prepared(type(plan.carrier)).run(plan)
        except _FAILURES as error:
            # Remains of this run would disturb the next.
            self.close()
            raise RunError(f"{type(error).__name__}: {error}") from error

    def _prepared(self, kind: type) -> Bench:
        if self._bench is not None and kind is self._kind:
            return self._bench
        self.close()
        if os.geteuid() != 0:
            raise UnavailableError("not root: network namespaces cannot be made")
        network = networks().get(kind)
        if network is None:
            raise UnavailableError(f"Open vSwitch does not carry {kind.__name__}")
        opening = network.opened(self._links(network), self._number)
        bench = self._open.enter_context(opening)
        self._kind, self._bench = kind, bench
        if STOPPED.is_set():
            # Who stopped this closed what was there, and did not see this network.
            raise RunError("stopped")
        return bench

    def _links(self, network: Network) -> Path:
        """The program that emulates links, when everything else is there, too."""
        absent = [name for name in (*NEEDS, *network.needs) if shutil.which(name) is None]
        if absent:
            raise UnavailableError(
                f"not installed: {', '.join(absent)} (Debian: openvswitch-switch, ethtool, "
                "nftables, openvpn, openssl, iperf3, clang, iputils-ping)"
            )
        if importlib.util.find_spec("os_ken") is None:
            raise UnavailableError("os-ken is not installed: pip install '.[sdn]'")
        try:
            return programs.find(programs.LINK, self._directory)
        except programs.ProgramError as error:
            raise UnavailableError(str(error)) from error

    def close(self) -> None:
        """Takes the network down; the next run sets one up again."""
        self._kind = self._bench = None
        self._open.close()
