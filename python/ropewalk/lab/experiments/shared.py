"""Shared: how a tunnel shares a link with bare connections, by queue."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim, Relation, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.statistics import estimate, jain, paired_ratio, ratio_of_means
from ropewalk.plan import Aqm, Carrier, Direct, Link, Path, Plan, Tcp, Tunnel

NAME = "shared"
TITLE = "A tunnel beside others on one link"
ABOUT = (
    "One CUBIC connection or four in a tunnel over one link, beside connections of other hosts on "
    "that link; the same connections without the tunnel in its place. By rate, round trip, queue "
    "and its management. And two tunnels beside each other."
)
ASSUMPTIONS = (
    "The share is the goodput of the connections in the tunnel, or of the bare ones in its place, "
    "by the goodput of all connections. An equal share is that of equal connections. The tunnel's "
    "headers alone cost it a twentieth.",
    "Two shares are fair: what bare connections get in the tunnel's place, and an equal share. "
    "CUBIC beside BBR is far from an equal share. The tunnel is asked for at least 0.6 times the "
    "smaller and at most 1.6 times the larger of the two.",
    "All connections begin together and send towards the site. 45 s count after 15 s.",
    "Two tunnels share evenly from a Jain's index of 0.95 on: one has up to 1.6 times as much as "
    "the other.",
    "Simulator and kernel agree where the ratio of their mean shares is within 0.8 to 1.25, "
    "written as 1.025 ± 0.225.",
    "The link's delay jitters by 0.2 ms, without reordering. Without any chance the drops of a "
    "queue fall into a pattern, and every seed gives the same run in the simulator.",
)

JITTER_MS = 0.2
LINKS = {
    "20 Mbit/s, 40 ms": (20.0, 40.0),
    "10 Mbit/s, 20 ms": (10.0, 20.0),
    "10 Mbit/s, 80 ms": (10.0, 80.0),
    "50 Mbit/s, 20 ms": (50.0, 20.0),
    "50 Mbit/s, 80 ms": (50.0, 80.0),
}
"""Rate in Mbit/s and round trip in ms. The first one also has other management of its queue."""
QUEUES = {"0.5 BDP": 0.5, "1 BDP": 1.0, "4 BDP": 4.0}
"""The length of the queue in bandwidth-delay products."""
MANAGEMENT: dict[str, Aqm | None] = {"drop-tail": None, "fq-codel": "fq-codel"}
BESIDE = {
    "1 CUBIC": Tcp(flows=1, congestion="cubic", beside="a"),
    "4 CUBIC": Tcp(flows=4, congestion="cubic", beside="a"),
    "1 BBR": Tcp(flows=1, congestion="bbr", beside="a"),
}
INSIDE = {"1 flow": 1, "4 flows": 4}
"""CUBIC connections in the tunnel."""
SECOND = "1 tunnel"
"""What is beside a tunnel that meets another one, with as many connections in each."""
JAIN = 0.95
"""Jain's index of the goodput of two tunnels: 1 if both have the same, 0.5 if one has all."""
ARMS: dict[str, Carrier] = {
    "auto": Tunnel(scheduler="auto", paths=("a",)),
    "bare": Direct("a"),
}
QUICK_QUEUES = ("1 BDP", "4 BDP")
AGREE = (0.8, 1.25)
"""The ratio of the share in the simulator to that on the kernel: from and to."""
FAIR = (0.6, 1.6)
"""The share of a tunnel by a fair one: from and to."""

Case = tuple[str, str, str, str, str]
"""Link, management, queue, what is beside, what is inside."""


def cases(*, quick: bool) -> list[Case]:
    """Four short ones; or all queues of all links, and other management of one link."""
    if quick:
        link = next(iter(LINKS))
        return [(link, "drop-tail", queue, "1 CUBIC", "1 flow") for queue in QUICK_QUEUES]
    first = next(iter(LINKS))
    return [
        (link, management, queue, beside, inside)
        for link, management, queue, beside, inside in product(
            LINKS, MANAGEMENT, QUEUES, BESIDE, INSIDE
        )
        if management == "drop-tail" or (link == first and inside == "1 flow")
    ]


def pairs(*, quick: bool) -> list[Case]:
    """Two tunnels: a short case, or all queues of all links without management."""
    links = list(LINKS)[:1] if quick else LINKS
    queues = QUICK_QUEUES[:1] if quick else QUEUES
    inside = list(INSIDE)[:1] if quick else INSIDE
    return [
        (link, "drop-tail", queue, SECOND, flows)
        for link, queue, flows in product(links, queues, inside)
    ]


def cells(options: Options) -> list[Cell]:
    """Every case with every arm."""
    quick = options.quick
    keys = [*product(cases(quick=quick), ARMS), *product(pairs(quick=quick), ["auto"])]
    named = [((*case, arm), plan(case, arm, quick=quick)) for case, arm in keys]
    return [
        cell for runner in options.plan_runners for cell in expand(options, NAME, named, runner)
    ]


def plan(case: Case, arm: str, *, quick: bool = False) -> Plan:
    """One case."""
    link, management, queue, beside, inside = case
    rate_mbit, rtt_ms = LINKS[link]
    product_bytes = rate_mbit * 1e6 * rtt_ms / 1e3 / 8
    shared = Link(
        rate_mbit=rate_mbit,
        delay_ms=rtt_ms / 2,
        jitter_ms=JITTER_MS,
        queue_bytes=round(QUEUES[queue] * product_bytes),
        aqm=MANAGEMENT[management],
    )
    return Plan(
        name="/".join((NAME, *case, arm)),
        duration_s=20.0 if quick else 60.0,
        warmup_s=5.0 if quick else 15.0,
        path=(Path("a", shared),),
        carrier=ARMS[arm],
        traffic=(Tcp(flows=INSIDE[inside], congestion="cubic"), _beside(beside, inside)),
    )


def _beside(beside: str, inside: str) -> Tcp:
    if beside == SECOND:
        return Tcp(flows=INSIDE[inside], congestion="cubic", beside="a", tunnel=True)
    return BESIDE[beside]


def share(results: Results) -> dict[int, float]:
    """Goodput of the first section by the goodput of all, 0 to 1, by seed."""
    reports = results.reports()
    return {
        seed: report.traffic[0].goodput_mbit / report.goodput_mbit
        for seed, report in reports.items()
        if report.goodput_mbit > 0
    }


def evenness(results: Results) -> dict[int, float]:
    """Jain's index of the goodput of both sections, 0.5 to 1, by seed."""
    found = {
        seed: jain([section.goodput_mbit for section in report.traffic])
        for seed, report in results.reports().items()
    }
    return {seed: index for seed, index in found.items() if index is not None}


def equal_share(beside: str, inside: str) -> float:
    """What each flow of the tunnel has if all flows of the link have the same, by all of them."""
    return INSIDE[inside] / (INSIDE[inside] + BESIDE[beside].flows)


def claims(results: Results) -> list[Claim]:
    """Shares with and without the tunnel, and whether simulator and kernel agree on them."""
    rows = []
    for case in cases(quick=False):
        for runner in results.runners():
            if results.where(runner, *case).planned():
                rows += _shares(results, runner, case)
        rows += [
            _agreement(results, case, arm)
            for arm in ARMS
            if all(results.where(runner, *case, arm).planned() for runner in ("kernel", "sim"))
        ]
    for case, runner in product(pairs(quick=False), results.runners()):
        found = results.where(runner, *case, "auto")
        if found.planned():
            name = f"{_named(case)} ({measures.on(runner)}): Jain's index"
            rows.append(measures.value(name, "", found, evenness(found), JAIN))
    return rows


def _shares(results: Results, runner: Runner, case: Case) -> list[Claim]:
    where = f"{_named(case)} ({measures.on(runner)})"
    equal = equal_share(*case[3:])
    note = f"an equal share is {equal:g}"
    bare = results.where(runner, *case, "bare")
    without = share(bare)
    rows = [measures.value(f"{where}: share without a tunnel", "", bare, without, None, note=note)]
    for arm in ARMS:
        tunnel = results.where(runner, *case, arm)
        if arm == "bare" or not tunnel.planned():
            continue
        shares = share(tunnel)
        rows.append(measures.value(f"{where}: share of {arm}", "", tunnel, shares, None, note=note))
        no_data = missing(tunnel if not shares else bare)
        bounds: tuple[tuple[str, Callable[[float, float], float], float, Relation], ...] = (
            ("smallest", min, FAIR[0], ">="),
            ("largest", max, FAIR[1], "<="),
        )
        for name, bound, target, relation in bounds:
            fair = {seed: bound(each, equal) for seed, each in without.items()}
            ratio = paired_ratio(shares, fair)
            rows.append(
                claim(
                    f"{where}: share of {arm} ÷ {name} fair share",
                    "ratio",
                    ratio,
                    relation=relation,
                    target=target,
                    note="" if ratio else no_data,
                )
            )
    return rows


def _agreement(results: Results, case: Case, arm: str) -> Claim:
    """The ratio of the mean shares; seeds are not paired, since both draw different jitter."""
    sim, kernel = (results.where(runner, *case, arm) for runner in ("sim", "kernel"))
    ratio = ratio_of_means(list(share(sim).values()), list(share(kernel).values()))
    least, most = AGREE
    return claim(
        f"{_named(case)}: {arm}, share in the simulator ÷ share on the kernel",
        "ratio",
        ratio,
        relation="within",
        target=(least + most) / 2,
        tolerance=(most - least) / 2,
        note="" if ratio else missing(sim if not share(sim) else kernel),
    )


def _named(case: Case) -> str:
    link, management, queue, beside, inside = case
    return f"{link}, {management}, queue of {queue}, {inside} beside {beside}"


def figures(results: Results) -> list[Figure]:
    """Share of the link by queue, one figure for each runner, link, and what competes."""
    drawn = []
    for runner, link, beside, inside in product(results.runners(), LINKS, BESIDE, INSIDE):
        found = [
            case for case in cases(quick=False) if (case[0], *case[3:]) == (link, beside, inside)
        ]
        series: dict[str, list[Bar | None]] = {
            arm: [
                measures.bar(estimate(list(share(results.where(runner, *case, arm)).values())))
                for case in found
            ]
            for arm in ARMS
        }
        if any(bar is not None for bars_ in series.values() for bar in bars_):
            drawn.append(
                Figure(
                    f"Share of {link}: {inside} beside {beside} ({measures.on(runner)})",
                    "CUBIC connections in the tunnel, and in its place (bare). Black: an equal "
                    "share for each connection.",
                    bars(
                        [f"{management}, {queue}" for _, management, queue, *_ in found],
                        series,
                        "of the goodput of all",
                        [equal_share(beside, inside)] * len(found),
                        "equal share",
                    ),
                )
            )
    return drawn
