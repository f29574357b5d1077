"""Shared: how a tunnel shares a link with bare connections, by queue."""

from __future__ import annotations

from itertools import product

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.statistics import estimate, paired_ratio, ratio_of_means
from ropewalk.plan import Aqm, Carrier, Direct, Link, Path, Plan, Tcp, Tunnel

NAME = "shared"
TITLE = "A tunnel beside bare connections on one link"
ABOUT = (
    "One CUBIC connection in a tunnel over one link, beside connections of other hosts on that "
    "link; the same connection without the tunnel in its place. By queue and its management."
)
ASSUMPTIONS = (
    "The share is the goodput of the connection in the tunnel, or of the bare one in its place, by "
    "the goodput of all connections. An equal share is that of one connection of all. The tunnel's "
    "headers alone cost it a twentieth.",
    "All connections begin together and send towards the site. 45 s count after 15 s.",
    "No sharing is asked for: shares have no target. Simulator and kernel agree where the ratio of "
    "their mean shares is within 0.8 to 1.25, written as 1.025 ± 0.225.",
    "The link's delay jitters by 0.2 ms, without reordering. Without any chance the drops of a "
    "queue fall into a pattern, and every seed gives the same run in the simulator.",
)

RATE_MBIT = 20.0
DELAY_MS = 20.0
JITTER_MS = 0.2
PRODUCT_BYTES = RATE_MBIT * 1e6 * 2 * DELAY_MS / 1e3 / 8
"""One bandwidth-delay product."""
QUEUES = {"0.5 BDP": 0.5, "1 BDP": 1.0, "4 BDP": 4.0}
"""The length of the queue in bandwidth-delay products."""
MANAGEMENT: dict[str, Aqm | None] = {"drop-tail": None, "fq-codel": "fq-codel"}
BESIDE = {
    "1 CUBIC": Tcp(flows=1, congestion="cubic", beside="a"),
    "4 CUBIC": Tcp(flows=4, congestion="cubic", beside="a"),
    "1 BBR": Tcp(flows=1, congestion="bbr", beside="a"),
}
ARMS: dict[str, Carrier] = {"auto": Tunnel(scheduler="auto", paths=("a",)), "bare": Direct("a")}
QUICK_QUEUES = ("1 BDP", "4 BDP")
AGREE = (0.8, 1.25)
"""The ratio of the share in the simulator to that on the kernel: from and to."""


def cells(options: Options) -> list[Cell]:
    """Every queue, with and without management, by what is beside; quick takes four cases."""
    quick = options.quick
    keys = product(
        list(MANAGEMENT)[: 1 if quick else None],
        QUICK_QUEUES if quick else QUEUES,
        list(BESIDE)[: 1 if quick else None],
        ARMS,
    )
    cases = [(key, plan(*key, quick=quick)) for key in keys]
    return [
        cell for runner in options.plan_runners for cell in expand(options, NAME, cases, runner)
    ]


def plan(management: str, queue: str, beside: str, arm: str, *, quick: bool = False) -> Plan:
    """One case."""
    link = Link(
        rate_mbit=RATE_MBIT,
        delay_ms=DELAY_MS,
        jitter_ms=JITTER_MS,
        queue_bytes=round(QUEUES[queue] * PRODUCT_BYTES),
        aqm=MANAGEMENT[management],
    )
    return Plan(
        name="/".join((NAME, management, queue, beside, arm)),
        duration_s=20.0 if quick else 60.0,
        warmup_s=5.0 if quick else 15.0,
        path=(Path("a", link),),
        carrier=ARMS[arm],
        traffic=(Tcp(flows=1, congestion="cubic"), BESIDE[beside]),
    )


def share(results: Results) -> dict[int, float]:
    """Goodput of the first section by the goodput of all, 0 to 1, by seed."""
    reports = results.reports()
    return {
        seed: report.traffic[0].goodput_mbit / report.goodput_mbit
        for seed, report in reports.items()
        if report.goodput_mbit > 0
    }


def equal_share(beside: str) -> float:
    """One connection of all."""
    return 1 / (1 + BESIDE[beside].flows)


def claims(results: Results) -> list[Claim]:
    """Shares with and without the tunnel, and whether simulator and kernel agree on them."""
    rows = []
    for management, queue, beside in product(MANAGEMENT, QUEUES, BESIDE):
        case = (management, queue, beside)
        for runner in results.runners():
            if results.where(runner, *case).planned():
                rows += _shares(results, runner, case)
        rows += [
            _agreement(results, (*case, arm))
            for arm in ARMS
            if all(results.where(runner, *case, arm).planned() for runner in ("kernel", "sim"))
        ]
    return rows


def _shares(results: Results, runner: Runner, case: tuple[str, str, str]) -> list[Claim]:
    where = f"{_named(case)} ({measures.on(runner)})"
    tunnel, bare = (results.where(runner, *case, arm) for arm in ARMS)
    ratio = paired_ratio(share(tunnel), share(bare))
    equal = f"an equal share is {equal_share(case[2]):g}"
    return [
        measures.value(
            f"{where}: share of the tunnel", "", tunnel, share(tunnel), None, note=equal
        ),
        measures.value(f"{where}: share without it", "", bare, share(bare), None, note=equal),
        claim(
            f"{where}: share of the tunnel ÷ share without it",
            "ratio",
            ratio,
            note="" if ratio else missing(tunnel if not share(tunnel) else bare),
        ),
    ]


def _agreement(results: Results, key: tuple[str, str, str, str]) -> Claim:
    """The ratio of the mean shares; seeds are not paired, since both draw different jitter."""
    sim, kernel = (results.where(runner, *key) for runner in ("sim", "kernel"))
    ratio = ratio_of_means(list(share(sim).values()), list(share(kernel).values()))
    least, most = AGREE
    return claim(
        f"{_named(key[:3])}: {key[3]}, share in the simulator ÷ share on the kernel",
        "ratio",
        ratio,
        relation="within",
        target=(least + most) / 2,
        tolerance=(most - least) / 2,
        note="" if ratio else missing(sim if not share(sim) else kernel),
    )


def _named(case: tuple[str, str, str]) -> str:
    management, queue, beside = case
    return f"{management}, queue of {queue}, beside {beside}"


def figures(results: Results) -> list[Figure]:
    """Share of the link by queue, one figure for each runner and what is beside."""
    drawn = []
    queues = list(product(MANAGEMENT, QUEUES))
    for runner in results.runners():
        for beside in BESIDE:
            series: dict[str, list[Bar | None]] = {
                arm: [
                    measures.bar(
                        estimate(list(share(results.where(runner, *q, beside, arm)).values()))
                    )
                    for q in queues
                ]
                for arm in ARMS
            }
            if any(bar is not None for found in series.values() for bar in found):
                drawn.append(
                    Figure(
                        f"Share of the link beside {beside} ({measures.on(runner)})",
                        "A CUBIC connection in the tunnel (auto) and in its place (bare). Black: "
                        "an equal share for each connection.",
                        bars(
                            [", ".join(queue) for queue in queues],
                            series,
                            "of the goodput of all",
                            [equal_share(beside)] * len(queues),
                            "equal share",
                        ),
                    )
                )
    return drawn
