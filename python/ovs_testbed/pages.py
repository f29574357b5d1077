"""Open vSwitch at the site of a plan that `ropewalk-testbed set-up` made: for pages in a browser.

The uplinks and the server are those of the plan. The switch takes the uplinks over, and the
browser is in a namespace of its own behind the switch, as on the paper's host with its veth pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ovs_testbed.machine import Machine, Sandbox, SandboxError, run, wait
from ropewalk.plan import OvsBalance
from ropewalk.sdn.api import ask
from ropewalk.sdn.balance.program import TO_HOST
from ropewalk.sdn.config import Config

_PREFIX = "ropewalk-ovs-pages-"
_BRIDGE = "pagesbr"
_HOST, _GATEWAY = "10.98.0.2/24", "10.98.0.1"
_COUNTED = "0xc0"
"""Cookie of the flows that only count: the controller leaves flows of other cookies alone."""


class Switched:
    """A switch with its controller, and the browser's namespace behind it."""

    def __init__(self, sandbox: Sandbox, site: str, carrier: OvsBalance) -> None:
        """Takes the uplinks of the namespace `site` over.

        Raises:
            SandboxError: when something does not come about.
        """
        self.host = sandbox.namespace("host")
        self._machine = Machine(sandbox, site)
        self._config = self._configure(site, carrier)
        self._machine.command(self._config, "setup")
        self._machine.control(self._config)
        wait(partial(_are_usable, self._config), "an uplink is not used")

    def _configure(self, site: str, carrier: OvsBalance) -> Config:
        uplinks = "".join(
            f'[[uplink]]\nname = "{name}"\naddress = "{address}"\ngateway = "{gateway}"\n'
            for name, address, gateway in _uplinks(site)
        )
        return self._machine.configure(
            f'mode = "balance"\n[bridge]\nname = "{_BRIDGE}"\ndatabase = "DATABASE"\n'
            f'[application]\nnamespace = "{self.host}"\naddress = "{_HOST}"\n'
            f'gateway = "{_GATEWAY}"\n{uplinks}'
            f'[balance]\ndecide = "{carrier.decide}"\n'
            f"affinity_minutes = {carrier.affinity_minutes}\n"
            f'[probe]\ncapacity = "{carrier.probe}"\n'
        )

    def count(self, address: str) -> None:
        """From now on the switch counts what comes from a server's address for the browser.

        Raises:
            SandboxError: when the switch does not say what it does with such packets.
        """
        found = re.search(r"priority=0,ip actions=(\S+)", self._flows(f"table={TO_HOST}"))
        if found is None:
            raise SandboxError("the switch gives nothing to the host")
        flow = f"cookie={_COUNTED},table={TO_HOST},priority=1,ip,nw_src={address}"
        self._machine.flows(self._config, "add-flow", f"{flow},actions={found[1]}")

    def counted(self, address: str) -> int:
        """Bytes of such frames, by the flow statistics of the switch (OpenFlow 1.3, A.3.5.2)."""
        found = re.search(r"n_bytes=(\d+)", self._flows(f"table={TO_HOST},ip,nw_src={address}"))
        if found is None:
            raise SandboxError(f"the switch does not count what comes from {address}")
        return int(found[1])

    def notes(self) -> list[str]:
        """What the controller decided."""
        status = ask(self._config.socket)
        given = ", ".join(f"{name} {count}" for name, count in status["new_flows"].items())
        rates = ", ".join(
            f"{name} {rate:g} ({status['capacity_source'][name]})"
            for name, rate in status["capacity_mbit"].items()
        )
        return [f"new flows by uplink: {given}", f"capacities in the end, Mbit/s: {rates}"]

    def _flows(self, which: str) -> str:
        return self._machine.flows(self._config, "dump-flows", which)


@contextmanager
def opened(site: str, carrier: OvsBalance) -> Iterator[Switched]:
    """The switch, until the end.

    Raises:
        SandboxError: when something does not come about.
    """
    with Sandbox(_PREFIX, tied=True) as sandbox:
        yield Switched(sandbox, site, carrier)


def _uplinks(site: str) -> list[tuple[str, str, str]]:
    """Name, address with its prefix, and next hop of each uplink, by its default route."""
    routes = json.loads(run("ip", "-n", site, "-4", "-j", "route", "show", "default"))
    return [(row["dev"], _address(site, row["dev"]), row["gateway"]) for row in routes]


def _address(site: str, interface: str) -> str:
    (row,) = json.loads(run("ip", "-n", site, "-4", "-j", "address", "show", "dev", interface))
    return "{local}/{prefixlen}".format(**row["addr_info"][0])


def _are_usable(config: Config) -> bool:
    return all(row["usable"] for row in ask(config.socket)["uplinks"])
