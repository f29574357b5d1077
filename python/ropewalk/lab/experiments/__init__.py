"""The experiments, by name. Each is a module of pure functions; `Experiment` says which."""

from __future__ import annotations

from typing import Protocol, cast

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import (
    balance_dynamic,
    balance_ovs,
    balance_quic,
    balance_static,
    balance_video,
    bicast_native,
    bicast_ovs,
    failover,
    first_seconds,
    grid,
    hold,
    htmt,
    jump,
    loss,
    mqvpn,
    openvpn,
    protect_traces,
    radio,
    roam_ovs,
    roam_wifi,
    shared,
    tcpnc,
    traces,
    validate,
)
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.figures import Figure


class Experiment(Protocol):
    """What a module of this package offers. None of it reads a clock, a file or the machine."""

    TITLE: str
    ABOUT: str
    ASSUMPTIONS: tuple[str, ...]
    """What the source of the experiment leaves open, and what is taken here."""

    def cells(self, options: Options) -> list[Cell]:
        """Every run the experiment needs, in the order they are done."""

    def claims(self, results: Results) -> list[Claim]:
        """What it must show, beside what it showed."""

    def figures(self, results: Results) -> list[Figure]:
        """Charts of it."""


EXPERIMENTS: dict[str, Experiment] = {
    "htmt": cast(Experiment, htmt),
    "grid": cast(Experiment, grid),
    "first-seconds": cast(Experiment, first_seconds),
    "traces": cast(Experiment, traces),
    "radio": cast(Experiment, radio),
    "failover": cast(Experiment, failover),
    "hold": cast(Experiment, hold),
    "loss": cast(Experiment, loss),
    "mqvpn": cast(Experiment, mqvpn),
    "openvpn": cast(Experiment, openvpn),
    "bicast-native": cast(Experiment, bicast_native),
    "bicast-ovs": cast(Experiment, bicast_ovs),
    "balance-ovs": cast(Experiment, balance_ovs),
    "roam-ovs": cast(Experiment, roam_ovs),
    "roam-wifi": cast(Experiment, roam_wifi),
    "jump": cast(Experiment, jump),
    "protect-traces": cast(Experiment, protect_traces),
    "balance-static": cast(Experiment, balance_static),
    "balance-dynamic": cast(Experiment, balance_dynamic),
    "balance-quic": cast(Experiment, balance_quic),
    "balance-video": cast(Experiment, balance_video),
    "shared": cast(Experiment, shared),
    "tcpnc": cast(Experiment, tcpnc),
    "validate": cast(Experiment, validate),
}

ON_SWITCHES = frozenset(("bicast-ovs", "balance-ovs", "roam-ovs", "roam-wifi"))
"""Those whose runs are all by this package, on Open vSwitch."""
