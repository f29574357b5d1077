"""Validate: the simulator beside the kernel, and beside ns-3, on the same plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import get_args

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import formulas, grid, measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, dots
from ropewalk.lab.statistics import Estimate, estimate, ratio_of_means
from ropewalk.plan import Congestion, Direct, Link, Mptcp, Ping, Plan, Tcp, Tunnel

NAME = "validate"
TITLE = "The simulator against the kernel and ns-3"
ABOUT = (
    "Schedulers and MPTCP in ten profiles of the grid, and congestion control by loss and delay, "
    "on both; NewReno and CUBIC in ns-3 and by formula as well."
)
ASSUMPTIONS = (
    "A cell agrees when the simulator's goodput is within 10 % of the kernel's, without a tunnel "
    "within 15 %. MPTCP is without a tunnel. The simulator, the kernel and ns-3 draw different "
    "losses from one seed. So a ratio is that of the means, and seeds are not paired.",
    "Where the means of the kernel and of ns-3 are within 15 % of each other, the simulator has to "
    "be within 15 % of both. Elsewhere the kernel decides, and the ratio to ns-3 has no target.",
    "Without a tunnel, loss is in the direction of the data only. What ns-3 lacks of Linux's TCP "
    "is in docs/measurements.md.",
    "Formulas get the round trip of the link with one packet's time on it, and are cut off at the "
    "link's rate.",
)
TOLERANCE = 0.10
TOLERANCE_DIRECT = 0.15
PROFILES = (
    "baseline", "rtt_40", "rtt_120", "rtt_320", "jit_5", "loss_05", "loss_2", "bw_4to1",
    "dual_lte", "lte_geo",
)  # fmt: skip
SCHEDULERS = ("auto", "htmt", "low-rtt")
MPTCP = {"mptcp-1": 1, "mptcp-5": 5}
"""MPTCP with so many CUBIC connections."""
CONTROLS: tuple[Congestion, ...] = get_args(Congestion)
LOSSES = (0.0, 0.005, 0.01, 0.02, 0.05)
DELAYS_MS = (5, 20, 50)
IN_NS3: tuple[Congestion, ...] = ("new-reno", "cubic")
DIRECT_MBIT = 20.0
COUNTED_S = {5: 12.0, 20: 27.0, 50: 57.0}
"""Seconds that count without a tunnel, by one-way delay: over long round trips losses are few, and
one run of 12 s strays by a fifth."""
WARMUP_S = 3.0
SEGMENT_BYTES, PACKET_BYTES = 1448, 1500
_NAMES: dict[Runner, str] = {"sim": "simulator", "kernel": "kernel", "ns3": "ns-3"}


def cells(options: Options) -> list[Cell]:
    """Equal cases on both; quick takes three profiles and the middle loss."""
    quick = options.quick
    cases = [
        ((profile.name, scheduler), _tunnel(profile, scheduler, quick))
        for profile in grid.PROFILES
        if profile.name in (PROFILES[:1] + PROFILES[5:6] + PROFILES[7:8] if quick else PROFILES)
        for scheduler in (*SCHEDULERS, *MPTCP)
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
        carrier=Mptcp() if scheduler in MPTCP else Tunnel(scheduler=scheduler),
        traffic=(Tcp(flows=MPTCP.get(scheduler, 5)), Ping()),
    )


def _direct(loss: float, delay_ms: float, control: Congestion, quick: bool) -> Plan:
    path = grid.Side(delay_ms, DIRECT_MBIT).path("a")
    return Plan(
        name=f"{NAME}/{_case(loss, delay_ms)}/{control}",
        duration_s=WARMUP_S + (COUNTED_S[5] if quick else COUNTED_S[int(delay_ms)]),
        warmup_s=WARMUP_S,
        path=(replace(path, down=Link(loss=loss or None)),),
        carrier=Direct("a"),
        traffic=(Tcp(flows=1, congestion=control), Ping()),
    )


def claims(results: Results) -> list[Claim]:
    """Ratios of every case, and in how many cases of NewReno and CUBIC all agree."""
    rows = []
    agree: list[bool] = []
    for case, variant in _cases(results):
        if variant not in IN_NS3:
            allowed = TOLERANCE if variant in SCHEDULERS else TOLERANCE_DIRECT
            rows.append(_beside(results, case, variant, "sim", "kernel", allowed))
            continue
        found = _three(results, case, variant)
        rows += found
        if all(row.measured is not None for row in found):
            agree.append(all(row.mean_meets is not False for row in found))
    if agree:
        name = (
            "NewReno and CUBIC: cases within 15 % of the kernel, and of ns-3 where those two agree"
        )
        note = f"of {len(agree)} cases, by their means"
        rows.append(claim(name, "cases", estimate([float(sum(agree))]), note=note))
    return rows


def _three(results: Results, case: str, variant: str) -> list[Claim]:
    """Simulator, kernel and ns-3 beside each other, and the simulator beside a formula."""
    others = _beside(results, case, variant, "kernel", "ns3", None)
    agree = others.measured is not None and abs(others.measured - 1) <= TOLERANCE_DIRECT
    rows = [
        _beside(results, case, variant, "sim", "kernel", TOLERANCE_DIRECT),
        _beside(results, case, variant, "sim", "ns3", TOLERANCE_DIRECT if agree else None),
        others,
    ]
    sim = results.where("sim", case, variant)
    mbit = list(measures.goodput(sim).values())
    for name, formula in expected_mbit(case, variant).items():
        ratio = estimate([value / formula for value in mbit])
        note = f"{formula:.3g} Mbit/s" if ratio else missing(sim)
        rows.append(claim(f"{case}: {variant}, simulator ÷ {name}", "ratio", ratio, note=note))
    return rows


def _beside(
    results: Results, case: str, variant: str, above: Runner, below: Runner, allowed: float | None
) -> Claim:
    """The ratio of two runners; within `allowed` of one, unless that is `None`."""
    over, under = (results.where(runner, case, variant) for runner in (above, below))
    ratio = _ratio(over, under)
    return claim(
        f"{case}: {variant}, {_NAMES[above]} ÷ {_NAMES[below]}",
        "ratio",
        ratio,
        relation="within",
        target=None if allowed is None else 1.0,
        tolerance=allowed or 0.0,
        note="" if ratio else missing(over if not over.reports() else under),
    )


def _ratio(above: Results, below: Results) -> Estimate | None:
    over, under = (list(measures.goodput(found).values()) for found in (above, below))
    return ratio_of_means(over, under)


def expected_mbit(case: str, variant: str) -> dict[str, float]:
    """What formulas say of a case without a tunnel, Mbit/s, by name; nothing without loss."""
    loss, delay_ms = next(key for key in product(LOSSES, DELAYS_MS) if _case(*key) == case)
    if loss == 0:
        return {}
    rtt_s = 2 * delay_ms / 1e3 + PACKET_BYTES * 8 / (DIRECT_MBIT * 1e6)
    chosen: dict[str, Callable[[float, float, float], float]] = (
        {"CUBIC's formula": formulas.cubic}
        if variant == "cubic"
        else {"Mathis": formulas.mathis, "Padhye": formulas.padhye}
    )
    limit = DIRECT_MBIT * SEGMENT_BYTES / PACKET_BYTES
    return {
        name: min(limit, formula(SEGMENT_BYTES, rtt_s, loss)) for name, formula in chosen.items()
    }


def figures(results: Results) -> list[Figure]:
    """The ratio to the kernel in every case; to ns-3 where that ran."""
    drawn = []
    for runner in ("kernel", "ns3"):
        found = [(case, v) for case, v in _cases(results) if runner == "kernel" or v in IN_NS3]
        cases = list(dict.fromkeys(case for case, _ in found))
        variants = list(dict.fromkeys(variant for _, variant in found))
        series = {v: [_mean(results, case, v, runner) for case in cases] for v in variants}
        name = _NAMES[runner]
        drawn.append(
            Figure(
                f"Goodput in the simulator by goodput {'on the ' if runner == 'kernel' else 'in '}"
                f"{name}",
                "Dashed: the same.",
                dots(cases, series, f"simulator ÷ {name}", 1.0),
            )
        )
    return drawn


def _cases(results: Results) -> list[tuple[str, str]]:
    return list(dict.fromkeys((o.cell.key[0], o.cell.key[1]) for o in results.outcomes))


def _mean(results: Results, case: str, variant: str, runner: Runner) -> float | None:
    ratio = _ratio(results.where("sim", case, variant), results.where(runner, case, variant))
    return None if ratio is None else ratio.mean
