"""TCP/NC: a tunnel over two lossy hops in a row, as in the paper on the TCP/NC tunnel in
heterogeneous environments (Nguyen Viet Ha and Masato Tsuru); three sessions, both its topologies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, curves
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Carrier, Chain, Congestion, Link, Path, Plan, Relay, Tcp, Tunnel

NAME = "tcpnc"
TITLE = "A tunnel over two lossy hops in a row"
ABOUT = (
    "Three TCP sessions over two hops that lose up to 20 % each, alone or in bursts: end to end, "
    "and through a tunnel for each hop."
)
ASSUMPTIONS = (
    "Loss of 0 to 20 % on each link between gateways, towards the sinks only: the paper's 0.2 is a "
    "share. Bursts of four on average are not the paper's.",
    "Segments of 1,000 bytes as in the paper, but with timestamps and window scaling as Linux has "
    "them: 1,052 bytes in a packet.",
    "A sink's link of 1 ms counts with its source's of 1.5 ms; that link has the source's rate and "
    "room for 100 packets, as the links between gateways have.",
    "The paper gives no duration: 60 s, of which the first 10 do not count. All sessions start "
    "together.",
    "Each gateway between takes packets out of one tunnel and sends them into the next.",
)

SEGMENT = 1000
PACKET = SEGMENT + 52
"""IPv4 and TCP with timestamps."""
OUTER = PACKET + 65
"""The same in a tunnel: `crates/plan/src/ceiling.rs`."""
QUEUE_PACKETS = 100
HOP_MS = 10.0
ACCESS_MS = 1.5 + 1.0
TARGET = 0.90
OVERHEAD_MAX = 0.03
NS3_TOLERANCE = 0.15
BURST = 4.0


@dataclass(frozen=True)
class Case:
    """Rates in Mbit/s of the two hops and of the sources, and the gateways that those are at."""

    name: str
    hops: tuple[float, float]
    access: tuple[float, float, float]
    enter: tuple[int, int, int]

    @property
    def topology(self) -> int:
        """As the paper numbers them."""
        return 1 if self.enter == (1, 1, 1) else 2


CASES = (
    *(
        Case(f"topology 1, case {number}", (rate, 5.0), (1.0, 1.0, 3.0), (1, 1, 1))
        for number, rate in enumerate((3.0, 5.0, 7.0), 1)
    ),
    *(
        Case(f"topology 2, case {number}", (2.0, rate), (1.0, 1.0, 1.0), (1, 1, 2))
        for number, rate in enumerate((2.0, 3.0, 4.0), 1)
    ),
)
QUICK_CASES = (CASES[0], CASES[4])
LOSSES = (0.0, 0.02, 0.05, 0.10, 0.15, 0.20)
QUICK_LOSSES = (0.0, 0.10)
CONGESTIONS: tuple[Congestion, ...] = ("new-reno", "cubic", "bbr")
KINDS = ("alone", "bursts")

END_TO_END = "end-to-end"
PUBLISHED = "end-to-end as published"
"""In ns-3 only: hosts with the settings of the paper; otherwise they are like Linux."""
TUNNELS: dict[str, Tunnel] = {
    "tunnel": Tunnel(),
}
"""The tunnels to compare: each is one on every hop, with these settings."""
CARRIERS: dict[str, Carrier] = {
    END_TO_END: Chain(("a", "b")),
    PUBLISHED: Chain(("a", "b"), hosts="published"),
    **{name: Relay((("a",), ("b",)), tunnel) for name, tunnel in TUNNELS.items()},
}
EVERYWHERE = (END_TO_END, *TUNNELS)
"""What simulator and kernel run."""
PAPER_MBIT = {END_TO_END: 2.87, PUBLISHED: 2.87, "tunnel": 2.77}
"""All sessions of topology 1, case 1, without loss."""


Runs: TypeAlias = list[tuple[tuple[str, ...], Plan]]


def cells(options: Options) -> list[Cell]:
    """Every case, loss, carrier and congestion control; end to end with NewReno in ns-3 too."""
    cases = QUICK_CASES if options.quick else CASES
    losses = QUICK_LOSSES if options.quick else LOSSES
    kinds = KINDS[:1] if options.quick else KINDS
    controls = CONGESTIONS[:1] if options.quick else CONGESTIONS
    lossy = [(loss, kind) for kind in kinds for loss in losses if loss or kind == KINDS[0]]

    def runs(carriers: Iterable[str], kind: str | None, controls: Iterable[Congestion]) -> Runs:
        return [
            (
                (case.name, lost(loss, how), carrier, congestion),
                plan(case, loss, how, carrier, congestion, options.quick),
            )
            for case in cases
            for loss, how in lossy
            if kind in (None, how)
            for carrier in carriers
            for congestion in controls
        ]

    everywhere = runs(EVERYWHERE, None, controls)
    return [
        *expand(options, NAME, everywhere, "kernel"),
        *expand(options, NAME, everywhere, "sim"),
        *expand(options, NAME, runs((END_TO_END, PUBLISHED), KINDS[0], ("new-reno",)), "ns3"),
    ]


def lost(loss: float, kind: str) -> str:
    """How a loss is written in keys and names."""
    return f"{loss * 100:g}% in bursts" if kind == "bursts" else f"{loss * 100:g}%"


def plan(
    case: Case, loss: float, kind: str, carrier: str, congestion: Congestion, quick: bool = False
) -> Plan:
    """One case; the sources are on the site's side, so that data goes up."""
    burst = BURST if kind == "bursts" else None
    lossy = Link(loss=loss, loss_burst=burst) if loss else Link()
    return Plan(
        name=f"{NAME}/{case.name}/{lost(loss, kind)}/{carrier}/{congestion}",
        duration_s=20.0 if quick else 60.0,
        warmup_s=5.0 if quick else 10.0,
        path=tuple(
            Path(name, Link(rate, delay_ms=HOP_MS, queue_packets=QUEUE_PACKETS), up=lossy)
            for name, rate in zip("ab", case.hops, strict=True)
        ),
        carrier=CARRIERS[carrier],
        traffic=tuple(
            Tcp(
                congestion=congestion,
                direction="up",
                segment=SEGMENT,
                enter=enter,
                access=Link(rate, delay_ms=ACCESS_MS, queue_packets=QUEUE_PACKETS),
            )
            for rate, enter in zip(case.access, case.enter, strict=True)
        ),
    )


def erasure_shares(case: Case, loss: float) -> tuple[float, ...]:
    """What each session can get at most through tunnels for each hop, Mbit/s of TCP payload.

    A hop of `C` Mbit/s that loses the share `p` delivers `C * (1 - p)` of outer packets, whatever
    is sent: of that, payload is `SEGMENT / OUTER`. A session gets no more than its access link
    carries (`SEGMENT / PACKET` of it), and the sessions of a hop together no more than the hop
    delivers. What is to be shared is shared as evenly as that allows (max-min), which in both
    topologies also gives the greatest sum.
    """
    room = [rate * (1 - loss) * SEGMENT / OUTER for rate in case.hops]
    left = [rate * SEGMENT / PACKET for rate in case.access]
    shares = [0.0 for _ in left]
    growing = set(range(len(left)))
    while growing:
        users = [[s for s in growing if case.enter[s] <= hop] for hop in (1, 2)]
        step = min(
            *(left[session] for session in growing),
            *(space / len(on) for space, on in zip(room, users, strict=True) if on),
        )
        for session in growing:
            shares[session] += step
            left[session] -= step
        room = [space - step * len(on) for space, on in zip(room, users, strict=True)]
        full = {s for s in growing if left[s] < _NOTHING}
        full |= {s for space, on in zip(room, users, strict=True) if space < _NOTHING for s in on}
        growing -= full
    return tuple(shares)


def erasure_capacity(case: Case, loss: float) -> float:
    """What all sessions together can get at most, Mbit/s of TCP payload."""
    return sum(erasure_shares(case, loss))


_NOTHING = 1e-9


def claims(results: Results) -> list[Claim]:
    """The share of the erasure capacity, the cost of a tunnel without loss, the paper's words."""
    rows = []
    for runner in ("kernel", "sim"):
        for case in CASES:
            if results.where(runner, case.name).planned():
                rows += _capacity(results, runner, case)
                rows += _costs(results, runner, case)
                rows += _sessions(results, runner, case)
    for case in CASES:
        rows += _against_ns3(results, case)
    return rows


def _losses(results: Results, runner: Runner, case: Case) -> list[tuple[float, str]]:
    """Those that were meant to be run."""
    return [
        (loss, kind)
        for kind in KINDS
        for loss in LOSSES
        if results.where(runner, case.name, lost(loss, kind)).planned()
        and (loss or kind == KINDS[0])
    ]


def _capacity(results: Results, runner: Runner, case: Case) -> list[Claim]:
    return [
        measures.value(
            f"{case.name}, {lost(loss, kind)} per link, {congestion}: {name} ÷ erasure capacity "
            f"({measures.on(runner)})",
            "of capacity",
            found,
            share(found, erasure_capacity(case, loss)),
            TARGET,
        )
        for loss, kind in _losses(results, runner, case)
        for name in TUNNELS
        for congestion in CONGESTIONS
        if (found := results.where(runner, case.name, lost(loss, kind), name, congestion)).planned()
    ]


def share(results: Results, of_mbit: float) -> dict[int, float]:
    """Goodput of all sessions as a part of so much, by seed."""
    return {seed: mbit / of_mbit for seed, mbit in measures.goodput(results).items()}


def _costs(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """Without loss: what protection adds, and what is left of the goodput end to end."""
    rows = []
    on = measures.on(runner)
    bare = results.where(runner, case.name, "0%", END_TO_END, "new-reno")
    for name in TUNNELS:
        found = results.where(runner, case.name, "0%", name, "new-reno")
        added = {
            seed: report.tunnel.overhead
            for seed, report in found.reports().items()
            if report.tunnel is not None
        }
        rows.append(
            measures.value(
                f"{case.name}, no loss: bytes that protection of {name} adds ({on})",
                "of data",
                found,
                added,
                OVERHEAD_MAX,
                relation="<=",
            )
        )
        without = measures.goodput(bare)
        lower = {
            seed: 1 - mbit / without[seed]
            for seed, mbit in measures.goodput(found).items()
            if without.get(seed)
        }
        first = case == CASES[0]
        rows.append(
            measures.value(
                f"{case.name}, no loss: goodput that {name} takes from end to end ({on})",
                "of goodput",
                found if bare.reports() else bare,
                lower,
                OVERHEAD_MAX,
                relation="<=",
                paper=1 - PAPER_MBIT["tunnel"] / PAPER_MBIT[END_TO_END] if first else None,
                note=f"headers alone are {1 - PACKET / OUTER:.1%} of a busy link",
            )
        )
        if first:
            rows += [
                measures.value(
                    f"{case.name}, no loss: {carrier}, all sessions ({on})",
                    "Mbit/s",
                    group,
                    measures.goodput(group),
                    None,
                    paper=PAPER_MBIT.get(carrier),
                )
                for carrier, group in ((END_TO_END, bare), (name, found))
            ]
    return rows


def _sessions(results: Results, runner: Runner, case: Case) -> list[Claim]:
    """What the paper says of single sessions, with NewReno."""
    rows = []
    on = measures.on(runner)
    losses = [loss for loss, kind in _losses(results, runner, case) if kind == KINDS[0]]
    for name in TUNNELS:
        for loss in losses:
            found = results.where(runner, case.name, lost(loss, KINDS[0]), name, "new-reno")
            each = sessions(found)
            begin = f"{case.name}, {lost(loss, KINDS[0])} per link, {name}"
            if case.topology == 2:
                ratio = {s: mbit[2] / max(mbit[:2]) for s, mbit in each.items() if max(mbit[:2])}
                rows.append(
                    measures.value(
                        f"{begin}: session 3 ÷ the better of the others ({on})",
                        "ratio",
                        found,
                        ratio,
                        None,
                        note="the paper: always greater. Here flows share a full link evenly",
                    )
                )
            elif case != CASES[0]:
                allowed = erasure_shares(case, loss)[0]
                slower = {s: min(mbit[:2]) / allowed for s, mbit in each.items()}
                rows.append(
                    measures.value(
                        f"{begin}: the slower of sessions 1 and 2 ÷ what its link allows ({on})",
                        "of share",
                        found,
                        slower,
                        TARGET,
                        note="the paper: both stay at 1 Mbit/s",
                    )
                )
        if not losses or case.topology == 2:
            continue
        ends = [
            results.where(runner, case.name, lost(loss, KINDS[0]), name, "new-reno")
            for loss in (losses[0], losses[-1])
        ]
        at_most = [sum(erasure_shares(case, loss)) for loss in (losses[0], losses[-1])]
        if case != CASES[0]:
            at_most = [erasure_shares(case, loss)[2] for loss in (losses[0], losses[-1])]
        clean, lossy = ({s: _what(case, mbit) for s, mbit in sessions(e).items()} for e in ends)
        kept = {s: mbit / clean[s] for s, mbit in lossy.items() if clean.get(s)}
        what = "all sessions" if case == CASES[0] else "session 3"
        which = f"{what} at {lost(losses[-1], KINDS[0])} ÷ without loss"
        said = "flat with loss" if case == CASES[0] else "session 3 declines"
        rows.append(
            measures.value(
                f"{case.name}, {name}: {which} ({on})",
                "ratio",
                ends[1] if ends[0].reports() else ends[0],
                kept,
                None,
                note=f"the paper: {said}; erasures leave {at_most[1] / at_most[0]:.2f}",
            )
        )
    return rows


def _what(case: Case, mbit: Sequence[float]) -> float:
    return sum(mbit) if case == CASES[0] else mbit[2]


def sessions(results: Results) -> dict[int, tuple[float, ...]]:
    """Goodput of each session in Mbit/s, by seed."""
    return {
        seed: tuple(traffic.goodput_mbit for traffic in report.traffic)
        for seed, report in results.reports().items()
    }


def _against_ns3(results: Results, case: Case) -> list[Claim]:
    rows = []
    for loss in LOSSES:
        key = (case.name, lost(loss, KINDS[0]), END_TO_END, "new-reno")
        ns3 = results.where("ns3", *key)
        if ns3.planned():
            rows.append(
                measures.compare(
                    f"{case.name}, {key[1]} per link, end to end, NewReno: simulator ÷ ns-3",
                    results.where("sim", *key),
                    ns3,
                    1.0,
                    relation="within",
                    tolerance=NS3_TOLERANCE,
                )
            )
    published = results.where("ns3", CASES[0].name, "0%", PUBLISHED)
    if case == CASES[0] and published.planned():
        rows.append(
            measures.value(
                f"{case.name}, no loss: {PUBLISHED}, all sessions (ns-3)",
                "Mbit/s",
                published,
                measures.goodput(published),
                None,
                paper=PAPER_MBIT[PUBLISHED],
            )
        )
    return rows


def figures(results: Results) -> list[Figure]:
    """Goodput of all sessions by loss: one figure for each case, congestion control and kind."""
    drawn = []
    for runner in ("kernel", "sim"):
        for case in CASES:
            for kind in KINDS:
                for congestion in CONGESTIONS:
                    drawn += _figure(results, runner, case, kind, congestion)
    return drawn


def _figure(
    results: Results, runner: Runner, case: Case, kind: str, congestion: str
) -> list[Figure]:
    def curve(by: Runner, carrier: str) -> list[tuple[float, float]]:
        points = []
        for loss in LOSSES:
            key = lost(loss, kind if loss else KINDS[0])
            found = results.where(by, case.name, key, carrier, congestion)
            mean = estimate(list(measures.goodput(found).values()))
            if mean is not None:
                points.append((loss * 100, mean.mean))
        return points

    series = {name: curve(runner, name) for name in EVERYWHERE}
    if runner == "sim" and kind == KINDS[0]:
        for name in (END_TO_END, PUBLISHED):
            series[f"{name} (ns-3)"] = curve("ns3", name)
    if not any(any(loss for loss, _ in points) for points in series.values()):
        return []
    bound = [(loss * 100, erasure_capacity(case, loss)) for loss in LOSSES]
    how = "each packet by itself" if kind == KINDS[0] else f"in bursts of {BURST:g}"
    return [
        Figure(
            f"{case.name}, {congestion}, lost {how} ({measures.on(runner)})",
            "Goodput of the three sessions together. Dashed: erasure capacity through tunnels.",
            curves(series, "loss of each link, %", "Mbit/s", bound),
        )
    ]
