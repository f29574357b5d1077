"""Bicasting with the native tunnel: the lossy links of the paper on bicasting beneath OpenVPN."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import TUNNEL_OVERHEAD, Carrier, Link, Path, Peer, Ping, Plan, Tcp, Tunnel

NAME = "bicast-native"
TITLE = "Copies over two lossy links"
ABOUT = (
    "One download and pings over two links that lose up to 5 % up and 10 % down; OpenVPN beside."
)
ASSUMPTIONS = (
    "The paper's 10 ms are one way, on both links; 10 Mbit/s each way, though its links were 100 "
    "in places; every packet is lost by itself.",
    "The queue of the paper is not known; 128 KiB in each direction.",
    "`unicast` and the way down of `one-way` are not protected at all: no repairs, either.",
    "OpenVPN runs over TCP and one link, as in the paper, with nothing beneath it to help, and "
    "with the congestion control that the machine prefers: the notes name it.",
    "`adaptive` uses the sum of both links where the others use each for the same packets.",
)

RATE_MBIT = 10.0
DELAY_MS = 10.0
QUEUE_BYTES = 128 * 1024
UP = (0.0, 0.05)
DOWN = (0.0, 0.05, 0.10)
HARD = ((0.05, 0.05), (0.05, 0.10))
"""Loss up and down in which the targets hold."""
PING_EXTRA_MS = 50
SHARE = 0.90

CARRIERS: dict[str, Carrier] = {
    "unicast": Tunnel(paths=("a",), protect_up="none", protect_down="none"),
    "one-way": Tunnel(protect_up="duplicate", protect_down="none"),
    "both-ways": Tunnel(protect_up="duplicate", protect_down="duplicate"),
    "adaptive": Tunnel(),
    "openvpn-tcp": Peer("openvpn-tcp"),
}
SIMULATED = ("unicast", "one-way", "both-ways", "adaptive")
TARGETED = ("both-ways", "adaptive")


def cells(options: Options) -> list[Cell]:
    """Every pair of losses and carrier; quick takes the pairs with targets."""
    losses = HARD if options.quick else tuple((up, down) for up in UP for down in DOWN)
    names = TARGETED if options.quick else tuple(CARRIERS)
    duration = 8.0 if options.quick else 30.0
    cases = [
        ((where(up, down), name), plan(up, down, name, duration))
        for up, down in losses
        for name in names
    ]
    simulated = [case for case in cases if case[0][1] in SIMULATED]
    return expand(options, NAME, cases, "kernel") + expand(options, NAME, simulated, "sim")


def where(up: float, down: float) -> str:
    """How losses are written in keys and names."""
    return f"{up * 100:g}% up, {down * 100:g}% down"


def plan(up: float, down: float, carrier: str, duration_s: float) -> Plan:
    """One case."""
    both = Link(rate_mbit=RATE_MBIT, delay_ms=DELAY_MS, queue_bytes=QUEUE_BYTES)
    lossy = (Link(loss=up or None), Link(loss=down or None))
    return Plan(
        name=f"{NAME}/{where(up, down)}/{carrier}",
        duration_s=duration_s,
        warmup_s=2.0,
        path=tuple(Path(name, both, up=lossy[0], down=lossy[1]) for name in ("a", "b")),
        carrier=CARRIERS[carrier],
        traffic=(Tcp(flows=1), Ping(interval_s=0.1)),
    )


def claims(results: Results) -> list[Claim]:
    """Delay and throughput where both directions lose, and what each way of copying gains."""
    rows = []
    for runner in results.runners():
        for up, down in HARD:
            for name in TARGETED:
                case = results.where(runner, where(up, down), name)
                if case.planned():
                    rows += _targets(case, f"{where(up, down)}: {name} ({measures.on(runner)})")
        rows += _gains(results, runner)
    return rows


def _targets(case: Results, name: str) -> list[Claim]:
    limit = 2 * DELAY_MS + PING_EXTRA_MS
    least = SHARE * RATE_MBIT * TUNNEL_OVERHEAD
    return [
        measures.value(f"{name}: mean ping", "ms", case, ping_mean(case), limit, relation="<="),
        measures.value(f"{name}: goodput", "Mbit/s", case, measures.goodput(case), least),
    ]


def _gains(results: Results, runner: Runner) -> list[Claim]:
    """What one-way copies and both-way copies give against a single link, as they are."""
    rows = []
    for up in UP:
        for down in DOWN:
            single = results.where(runner, where(up, down), "unicast")
            for name in ("one-way", "both-ways", "adaptive"):
                case = results.where(runner, where(up, down), name)
                if single.planned() and case.planned():
                    label = f"{where(up, down)}: {name} ÷ unicast ({measures.on(runner)})"
                    rows.append(measures.compare(label, case, single, None))
    return rows


def ping_mean(results: Results) -> dict[int, float]:
    """Mean round-trip time under load, ms, by seed."""
    pings = {seed: report.ping() for seed, report in results.reports().items()}
    return {seed: p.delay_ms.mean for seed, p in pings.items() if p is not None and p.delay_ms}


def figures(results: Results) -> list[Figure]:
    """Goodput and ping by losses."""
    drawn = []
    labels = [where(up, down) for up in UP for down in DOWN]
    for runner in results.runners():
        for title, unit, measure in (
            ("Goodput", "Mbit/s", measures.goodput),
            ("Mean ping under load", "ms", ping_mean),
        ):
            series = {
                name: [
                    measures.bar(
                        estimate(list(measure(results.where(runner, label, name)).values()))
                    )
                    for label in labels
                ]
                for name in CARRIERS
                if any(results.where(runner, label, name).planned() for label in labels)
            }
            if series:
                drawn.append(
                    Figure(
                        f"{title} over two lossy links ({measures.on(runner)})",
                        "Losses up and down, each link; one flow and a ping every 0.1 s.",
                        bars(labels, series, unit, [None for _ in labels]),
                    )
                )
    return drawn
