"""Bicasting with the native tunnel, beside OpenVPN on Open vSwitch: the paper's links for all."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import bicast_paper as paper
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.bicast_claims import mean_rtt
from ropewalk.lab.experiments.bicast_paper import HARD, QUOTED, Loss, written
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import TUNNEL_OVERHEAD, Carrier, Direct, OvsBicast, Peer, Ping, Plan, Tcp, Tunnel

NAME = "bicast-native"
TITLE = "Copies over two lossy links: the native tunnel beside Open vSwitch"
ABOUT = (
    "One download and pings over the links of the paper on bicasting, which lose up to 5 % up and "
    "10 % down: ropewalk's tunnel, and OpenVPN over TCP above Open vSwitch."
)
ASSUMPTIONS = (
    "Links, queues, losses, pings and duration are those of `bicast-ovs`, whose assumptions hold.",
    "The native tunnel ends at the content server, so the link of 5 ms each way to that server is "
    "missing. Pings on Open vSwitch have 10 ms more without load.",
    "`bare` is one link without any tunnel, the fair measure of a gain. `one-link` is the tunnel "
    "over one link with its own protection.",
    "`unicast` and the way down of `one-way` are not protected at all: no repairs, either. Their "
    "egress still holds TCP back for lost packets, so under loss `unicast` is below `bare`.",
    "`openvpn-tcp` is OpenVPN over one link without switches. It has CUBIC there, as on "
    "Open vSwitch.",
    "`adaptive` uses the sum of both links where the others use each for the same packets.",
)

PING_EXTRA_MS = 50
SHARE = 0.90

CARRIERS: dict[str, Carrier] = {
    "bare": Direct("a"),
    "unicast": Tunnel(paths=("a",), protect_up="none", protect_down="none"),
    "one-way": Tunnel(protect_up="duplicate", protect_down="none"),
    "both-ways": Tunnel(protect_up="duplicate", protect_down="duplicate"),
    "one-link": Tunnel(paths=("a",)),
    "adaptive": Tunnel(),
    "openvpn-tcp": Peer("openvpn-tcp"),
}
SWITCHED: dict[str, OvsBicast] = {
    f"openvpn-{policy}": OvsBicast(policy, "cubic")
    for policy in ("unicast", "c-bicast", "bi-bicast")
}
"""On Open vSwitch."""
TWINS = {
    "unicast": "openvpn-unicast",
    "one-way": "openvpn-c-bicast",
    "both-ways": "openvpn-bi-bicast",
}
"""What copies the same packets on Open vSwitch, by native carrier."""
SHOWN: dict[str, tuple[Runner, ...]] = {
    "kernel and Open vSwitch": ("kernel", "ovs"),
    "simulator": ("sim",),
}
"""Charts: what really ran is in one."""
SIMULATED = tuple(name for name in CARRIERS if name != "openvpn-tcp")
TARGETED = ("both-ways", "adaptive")


def cells(options: Options) -> list[Cell]:
    """Every pair of losses and carrier; quick takes the pairs with targets."""
    losses = HARD if options.quick else QUOTED
    names = TARGETED if options.quick else tuple(CARRIERS)
    cases = [((written(loss), name), plan(loss, name)) for loss in losses for name in names]
    simulated = [case for case in cases if case[0][1] in SIMULATED]
    # Another policy means other controllers: losses change inside a policy.
    switched = [
        ((written(loss), name), plan(loss, name))
        for name in (() if options.quick else SWITCHED)
        for loss in losses
    ]
    return [
        *expand(options, NAME, cases, "kernel"),
        *expand(options, NAME, switched, "ovs"),
        *expand(options, NAME, simulated, "sim"),
    ]


def plan(loss: Loss, carrier: str) -> Plan:
    """One case."""
    return Plan(
        name=f"{NAME}/{written(loss)}/{carrier}",
        duration_s=paper.DURATION_S,
        path=paper.paths(loss),
        carrier=(CARRIERS | SWITCHED)[carrier],
        traffic=(Tcp(flows=1), Ping(interval_s=paper.PING_S)),
    )


def claims(results: Results) -> list[Claim]:
    """Delay and throughput where both directions lose, and what each way of copying gains."""
    rows = []
    for runner in results.runners():
        for loss in HARD if runner != "ovs" else ():
            for name in TARGETED:
                case = results.where(runner, written(loss), name)
                if case.planned():
                    label = f"{written(loss)} % lost: {name} ({measures.on(runner)})"
                    rows += _targets(case, label)
        rows += _gains(results, runner)
    return [*rows, *_twins(results)]


def _targets(case: Results, name: str) -> list[Claim]:
    limit = 2 * paper.DELAY_MS + PING_EXTRA_MS
    least = SHARE * paper.RATE_MBIT * TUNNEL_OVERHEAD
    return [
        measures.value(f"{name}: mean ping", "ms", case, mean_rtt(case), limit, relation="<="),
        measures.value(f"{name}: goodput", "Mbit/s", case, measures.goodput(case), least),
    ]


def _gains(results: Results, runner: Runner) -> list[Claim]:
    """What copies give against a single link, as they are."""
    on = "Open vSwitch" if runner == "ovs" else measures.on(runner)
    single, others = (
        ("openvpn-unicast", ("openvpn-c-bicast", "openvpn-bi-bicast"))
        if runner == "ovs"
        else ("bare", ("unicast", "one-link", "one-way", "both-ways", "adaptive"))
    )
    rows = []
    for loss in QUOTED:
        below = results.where(runner, written(loss), single)
        for name in others:
            case = results.where(runner, written(loss), name)
            if below.planned() and case.planned():
                label = f"{written(loss)} % lost: {name} ÷ {single} ({on})"
                rows.append(measures.compare(label, case, below, None))
    return rows


def _twins(results: Results) -> list[Claim]:
    """The native tunnel against OpenVPN above switches that copy the same."""
    rows = []
    for loss in QUOTED:
        for native, switched in TWINS.items():
            above = results.where("kernel", written(loss), native)
            below = results.where("ovs", written(loss), switched)
            if above.planned() and below.planned():
                label = f"{written(loss)} % lost: {native} (kernel) ÷ {switched} (Open vSwitch)"
                rows.append(measures.compare(label, above, below, None))
    return rows


def figures(results: Results) -> list[Figure]:
    """Goodput and ping by losses."""
    drawn = []
    labels = [written(loss) for loss in QUOTED]
    for title, unit, measure in (
        ("Goodput", "Mbit/s", measures.goodput),
        ("Mean ping under load", "ms", mean_rtt),
    ):
        for where, runners in SHOWN.items():
            series: dict[str, list[Bar | None]] = {}
            for runner in runners:
                names = SWITCHED if runner == "ovs" else CARRIERS
                for name in names:
                    cases = [results.where(runner, label, name) for label in labels]
                    if any(case.planned() for case in cases):
                        series[name] = [
                            measures.bar(estimate(list(measure(case).values()))) for case in cases
                        ]
            if series:
                drawn.append(
                    Figure(
                        f"{title} over two lossy links ({where})",
                        "By the percentage lost up and down on each link. OpenVPN in front of a "
                        "policy's name is above Open vSwitch.",
                        bars([f"{label} %" for label in labels], series, unit),
                    )
                )
    return drawn
