"""The networks by what carries their traffic, for the laboratory's runner `ovs`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ovs_testbed import balance, bicast, roam, roam_wifi
from ovs_testbed.machine import Sandbox
from ropewalk.lab.runner.ovs import Bench
from ropewalk.plan import OvsBalance, OvsBicast, OvsRoam, OvsRoamWifi


@dataclass(frozen=True)
class Network:
    """A kind of network."""

    prefix: str
    """The prefix of namespaces; two networks of one prefix and number wait for each other."""
    needs: tuple[str, ...]
    """Programs besides those of every network."""
    make: Callable[[Sandbox, Path], Bench]

    @contextlib.contextmanager
    def opened(self, links: Path, number: int) -> Iterator[Bench]:
        """One of several networks of its kind; `links` is the program that emulates links.

        Raises:
            SandboxError: when something does not come about.
        """
        with (
            Sandbox(self.prefix, number=number, tied=True) as sandbox,
            contextlib.closing(self.make(sandbox, links)) as bench,
        ):
            yield bench


NETWORKS: dict[type, Network] = {
    OvsBicast: Network("ropewalk-ovs-bicast-", bicast.NEEDS, bicast.Bench),
    OvsBalance: Network(
        "ropewalk-ovs-balance-",
        balance.NEEDS,
        lambda sandbox, links: balance.Bench(sandbox, links=links),
    ),
    OvsRoam: Network("ropewalk-ovs-roam-", roam.NEEDS, roam.Bench),
    OvsRoamWifi: Network("ropewalk-ovs-wifi-", roam_wifi.NEEDS, roam_wifi.Bench),
}
