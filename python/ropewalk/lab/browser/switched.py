"""Open vSwitch between the browser and the uplinks of a plan (`ovs_testbed.pages`)."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

from ropewalk.lab.browser.children import need
from ropewalk.lab.ovs import checkout
from ropewalk.lab.runner import UnavailableError
from ropewalk.plan import OvsBalance, Plan, RoundRobin


class Switch(Protocol):
    """A switch with its controller."""

    @property
    def host(self) -> str:
        """The namespace for the browser."""

    def count(self, address: str) -> None:
        """Begins to count what comes from a server's address."""

    def counted(self, address: str) -> int:
        """Bytes of the frames counted so far."""

    def notes(self) -> list[str]:
        """What the controller decided."""


def beneath(plan: Plan) -> Plan:
    """The plan as the testbed sets it up: a switch needs every uplink, and nothing over them."""
    if isinstance(plan.carrier, OvsBalance):
        return replace(plan, carrier=RoundRobin())
    return plan


def opened(plan: Plan, site: str) -> AbstractContextManager[Switch | None]:
    """The switch that takes the uplinks of the namespace `site` over, until the end.

    None for a plan whose carrier is no switch.

    Raises:
        UnavailableError: when a program is missing, or there is no checkout here.
        RunError: when something does not come about.
    """
    if not isinstance(plan.carrier, OvsBalance):
        return nullcontext()
    programs()
    switch: AbstractContextManager[Switch] = checkout.load("pages").opened(site, plan.carrier)
    return switch


def programs() -> None:
    """What a switch needs.

    Raises:
        UnavailableError: when it is not installed.
    """
    for program in ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ovs-ofctl"):
        need("openvswitch-switch", program)
    need("ethtool", "ethtool")
    if importlib.util.find_spec("os_ken") is None:
        raise UnavailableError("os-ken is not installed: pip install '.[sdn]'")
