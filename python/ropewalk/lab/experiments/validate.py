"""Validate: the simulator beside the kernel, and beside ns-3, on the same plans."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import grid, measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, dots
from ropewalk.lab.statistics import paired_ratio
from ropewalk.plan import Congestion, Direct, Link, Ping, Plan, Tcp, Tunnel

NAME = "validate"
TITLE = "The simulator against the kernel and ns-3"
ABOUT = (
    "Schedulers in ten profiles of the grid, and congestion control by loss and delay, on both; "
    "NewReno and CUBIC in ns-3 as well."
)
ASSUMPTIONS = (
    "A cell agrees when the simulator's goodput is within 10 % of the kernel's, without a tunnel "
    "within 15 %. Ratios pair the same seeds, though the two draw different losses from one seed.",
    "Seeds of ns-3 are paired in the same way. Without a tunnel, loss is in the direction of the "
    "data only. What ns-3 lacks of Linux's TCP is in docs/simulator.md; its ratios have no target.",
    "The kernel's CUBIC and BBR have extensions that the simulator's lack (HyStart++, pacing "
    "details); where that shows, the table says by how much.",
)
TOLERANCE = 0.10
TOLERANCE_DIRECT = 0.15
PROFILES = (
    "baseline", "rtt_40", "rtt_120", "rtt_320", "jit_5", "loss_05", "loss_2", "bw_4to1",
    "dual_lte", "lte_geo",
)  # fmt: skip
SCHEDULERS = ("auto", "htmt", "low-rtt")
CONTROLS: tuple[Congestion, ...] = get_args(Congestion)
LOSSES = (0.0, 0.005, 0.01, 0.02, 0.05)
DELAYS_MS = (5, 20, 50)
IN_NS3: tuple[Congestion, ...] = ("new-reno", "cubic")
DIRECT_MBIT = 20.0


def cells(options: Options) -> list[Cell]:
    """Equal cases on both; quick takes three profiles and the middle loss."""
    quick = options.quick
    cases = [
        ((profile.name, scheduler), _tunnel(profile, scheduler, quick))
        for profile in grid.PROFILES
        if profile.name in (PROFILES[:1] + PROFILES[5:6] + PROFILES[7:8] if quick else PROFILES)
        for scheduler in SCHEDULERS
    ]
    direct: list[tuple[tuple[str, str], Plan]] = [
        ((_case(loss, delay), control), _direct(loss, delay, control, quick))
        for loss in (LOSSES[1:2] if quick else LOSSES)
        for delay in (DELAYS_MS[1:2] if quick else DELAYS_MS)
        for control in CONTROLS
    ]
    in_ns3 = [case for case in direct if case[0][1] in IN_NS3]
    return [
        *expand(options, NAME, cases + direct, "kernel"),
        *expand(options, NAME, cases + direct, "sim"),
        *expand(options, NAME, in_ns3, "ns3"),
    ]


def _case(loss: float, delay_ms: float) -> str:
    return f"loss {loss:.1%}, {2 * delay_ms:g} ms"


def _tunnel(profile: grid.Profile, scheduler: str, quick: bool) -> Plan:
    return Plan(
        name=f"{NAME}/{profile.name}/{scheduler}",
        duration_s=8.0 if quick else 15.0,
        warmup_s=3.0,
        path=(profile.a.path("a"), profile.b.path("b")),
        carrier=Tunnel(scheduler=scheduler),
        traffic=(Tcp(flows=5), Ping()),
    )


def _direct(loss: float, delay_ms: float, control: Congestion, quick: bool) -> Plan:
    path = grid.Side(delay_ms, DIRECT_MBIT).path("a")
    return Plan(
        name=f"{NAME}/{_case(loss, delay_ms)}/{control}",
        duration_s=15.0,
        warmup_s=3.0,
        path=(replace(path, down=Link(loss=loss or None)),),
        carrier=Direct("a"),
        traffic=(Tcp(flows=1, congestion=control), Ping()),
    )


def claims(results: Results) -> list[Claim]:
    """One ratio a case, simulator by kernel. NewReno and CUBIC also have simulator by ns-3."""
    rows = []
    for case, variant in _cases(results):
        kernel = results.where("kernel", case, variant)
        sim = results.where("sim", case, variant)
        rows.append(
            measures.compare(
                f"{case}: {variant}, simulator ÷ kernel",
                sim,
                kernel,
                1.0,
                relation="within",
                tolerance=TOLERANCE if variant in SCHEDULERS else TOLERANCE_DIRECT,
            )
        )
        in_ns3 = results.where("ns3", case, variant)
        if in_ns3.planned():
            name = f"{case}: {variant}, simulator ÷ ns-3"
            rows.append(measures.compare(name, sim, in_ns3, None, relation="none"))
    return rows


def figures(results: Results) -> list[Figure]:
    """The ratio of every case."""
    cases = list(dict.fromkeys(case for case, _ in _cases(results)))
    variants = list(dict.fromkeys(variant for _, variant in _cases(results)))
    series = {variant: [_ratio(results, case, variant) for case in cases] for variant in variants}
    return [
        Figure(
            "Goodput in the simulator by goodput on the kernel",
            "Dashed: the same.",
            dots(cases, series, "simulator ÷ kernel", 1.0),
        )
    ]


def _cases(results: Results) -> list[tuple[str, str]]:
    return list(dict.fromkeys((o.cell.key[0], o.cell.key[1]) for o in results.outcomes))


def _ratio(results: Results, case: str, variant: str) -> float | None:
    ratio = paired_ratio(
        measures.goodput(results.where("sim", case, variant)),
        measures.goodput(results.where("kernel", case, variant)),
    )
    return None if ratio is None else ratio.mean
