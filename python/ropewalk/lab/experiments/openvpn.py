"""OpenVPN over TCP against OpenVPN over UDP by loss: figure 1 of the paper on bicasting."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import bicast_paper as paper
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Carrier, OvsBicast, Peer, Ping, Plan, Tcp

NAME = "openvpn"
TITLE = "OpenVPN over TCP against OpenVPN over UDP"
ABOUT = (
    "A CUBIC download through OpenVPN over one link that loses up to 10 %, over TCP and over UDP: "
    "what the paper on bicasting begins with."
)
ASSUMPTIONS = (
    "Takeuchi et al., figure 1. The text gives neither figures nor the link: the one of its table "
    "III is taken, and the same loss in both directions.",
    "OpenVPN's own connection has CUBIC. On Open vSwitch the download also crosses a link of 100 "
    "Mbit/s, 5 ms each way, where nothing is lost.",
    "The text says that TCP has the advantage under loss, and that its throughput is stable. So "
    "with loss the targets are a ratio of 1 to UDP, and half of the throughput without loss.",
)

LOSSES = (0, 1, 2, 5, 10)
"""Percent, each direction."""
QUICK = (0, 5)
Protocol: TypeAlias = Literal["tcp", "udp"]
PROTOCOLS: tuple[Protocol, ...] = ("tcp", "udp")
STABLE, STABLE_LOSS_MAX = 0.5, 5
"""Throughput over TCP by that without loss, at least, up to so many percent.

Our reading of "stable": less than half would be no tunnel to prefer.
"""


def cells(options: Options) -> list[Cell]:
    """Every loss with both protocols, on both runners."""
    losses = QUICK if options.quick else LOSSES
    runs = [(loss, protocol) for protocol in PROTOCOLS for loss in losses]
    kernel = [_case_of(loss, protocol, Peer(f"openvpn-{protocol}")) for loss, protocol in runs]
    switched = [
        _case_of(loss, protocol, OvsBicast("unicast", "cubic", protocol=protocol))
        for loss, protocol in runs
    ]
    return [*expand(options, NAME, kernel, "kernel"), *expand(options, NAME, switched, "ovs")]


def _case_of(loss: int, protocol: Protocol, carrier: Carrier) -> tuple[tuple[str, ...], Plan]:
    key = (f"{loss}%", f"openvpn-{protocol}")
    plan = Plan(
        name="/".join((NAME, *key)),
        duration_s=paper.DURATION_S,
        path=paper.paths((loss, loss)),
        carrier=carrier,
        traffic=(Tcp(), Ping(interval_s=paper.PING_S)),
    )
    return key, plan


def claims(results: Results) -> list[Claim]:
    """The paper's order at every loss, and how much each protocol keeps."""
    rows = []
    for runner in results.runners():
        for loss in LOSSES:
            tcp, udp = (_case(results, runner, loss, protocol) for protocol in PROTOCOLS)
            if not tcp.planned():
                continue
            name = f"{loss} % lost ({_on(runner)})"
            for protocol, case in zip(PROTOCOLS, (tcp, udp), strict=True):
                goodput = measures.goodput(case)
                rows.append(
                    measures.value(f"{name}: over {protocol}", "Mbit/s", case, goodput, None)
                )
            rows.append(measures.compare(f"{name}: TCP ÷ UDP", tcp, udp, 1.0 if loss else None))
            if loss:
                rows += _kept(results, runner, loss, name)
    return rows


def _kept(results: Results, runner: Runner, loss: int, name: str) -> list[Claim]:
    rows = []
    for protocol in PROTOCOLS:
        target = STABLE if protocol == "tcp" and loss <= STABLE_LOSS_MAX else None
        case, clean = (_case(results, runner, at, protocol) for at in (loss, 0))
        label = f"{name}: over {protocol}, by that without loss"
        rows.append(measures.compare(label, case, clean, target))
    return rows


def _case(results: Results, runner: Runner, loss: int, protocol: str) -> Results:
    return results.where(runner, f"{loss}%", f"openvpn-{protocol}")


def _on(runner: Runner) -> str:
    return "Open vSwitch" if runner == "ovs" else measures.on(runner)


def figures(results: Results) -> list[Figure]:
    """Figure 1, for each runner."""
    drawn = []
    for runner in results.runners():
        series: dict[str, list[Bar | None]] = {
            f"over {protocol}": [
                measures.bar(
                    estimate(
                        list(measures.goodput(_case(results, runner, loss, protocol)).values())
                    )
                )
                for loss in LOSSES
            ]
            for protocol in PROTOCOLS
        }
        drawn.append(
            Figure(
                f"Throughput of OpenVPN by loss ({_on(runner)})",
                "One CUBIC download; the percentage is lost in each direction.",
                bars([f"{loss} %" for loss in LOSSES], series, "Mbit/s"),
            )
        )
    return drawn
