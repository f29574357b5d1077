"""Jump: a path that loses nothing suddenly loses a fifth, and later nothing again."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Call, Change, Link, Path, Plan, Tcp, Traffic, Tunnel

NAME = "jump"
TITLE = "From no loss to 20 % in an instant, and back"
ABOUT = "One path jumps to 20 % loss and back, alone or beside another; a call, and bulk TCP."
ASSUMPTIONS = (
    "Residual loss is what a call lacks at the end, in the direction towards the site; counted "
    "from one second after the jump until the end, 14 s later.",
    "Extra bytes are those of copies, combinations and repairs by those of the packets themselves; "
    "counted from 15 s after the loss has gone.",
    "Every packet is lost by itself, in both directions.",
)

RATE_MBIT = 10.0
DELAY_MS = 20.0
QUEUE_BYTES = 64 * 1024
LOSS = 0.20
JUMP_S = 10.0
"""When the loss comes. Nothing is known of the path before."""
RESIDUAL_MAX = 0.001
EXTRA_MAX = 0.03
REACTION_S = 1.0
RELAXED_S = 15.0
COUNTED_S = 14.0

PATHS: dict[str, tuple[str, ...]] = {"alone": ("a",), "beside another": ("a", "b")}
TRAFFIC: dict[str, tuple[Traffic, ...]] = {
    "call": (Call(deadline_s=0.15),),
    "call and bulk": (Call(deadline_s=0.15), Tcp(flows=1)),
}
PHASES = ("during", "after")


def cells(options: Options) -> list[Cell]:
    """Alone and beside another path, with and without bulk, while it loses and after."""
    traffic = list(TRAFFIC)[1:] if options.quick else list(TRAFFIC)
    cases = [
        ((paths, kind, phase), plan(paths, kind, phase))
        for paths in PATHS
        for kind in traffic
        for phase in PHASES
    ]
    return [
        cell for runner in options.plan_runners for cell in expand(options, NAME, cases, runner)
    ]


def plan(paths: str, kind: str, phase: str) -> Plan:
    """One case: what is counted begins a second after the jump, or 15 s after its end."""
    link = Link(rate_mbit=RATE_MBIT, delay_ms=DELAY_MS, queue_bytes=QUEUE_BYTES)
    back = JUMP_S + REACTION_S + COUNTED_S
    change = [Change(at_s=JUMP_S, both=Link(loss=LOSS))]
    warmup = JUMP_S + REACTION_S
    if phase == "after":
        change.append(Change(at_s=back, both=Link(loss=0.0)))
        warmup = back + RELAXED_S
    return Plan(
        name=f"{NAME}/{paths}/{kind}/{phase}",
        duration_s=warmup + COUNTED_S,
        warmup_s=warmup,
        path=(Path("a", link, change=tuple(change)), Path("b", link)),
        carrier=Tunnel(paths=PATHS[paths]),
        traffic=TRAFFIC[kind],
    )


def residual(results: Results) -> dict[int, float]:
    """Share of the call's packets that never arrived, by seed."""
    calls = {seed: report.traffic[0] for seed, report in results.reports().items()}
    return {seed: c.lost / c.sent for seed, c in calls.items() if c.lost is not None and c.sent}


def extra(results: Results) -> dict[int, float]:
    """Bytes that protection added, as share of those it protects, by seed."""
    reports = results.reports()
    return {seed: r.tunnel.overhead for seed, r in reports.items() if r.tunnel is not None}


def claims(results: Results) -> list[Claim]:
    """Residual loss a second after the jump, extra bytes long after it."""
    rows = []
    for runner in results.runners():
        for paths in PATHS:
            for kind in TRAFFIC:
                rows += _claims(results, runner, paths, kind)
    return rows


def _claims(results: Results, runner: Runner, paths: str, kind: str) -> list[Claim]:
    def case(phase: str) -> Results:
        return results.where(runner, paths, kind, phase)

    if not case("during").planned():
        return []
    where = f"{paths}, {kind} ({measures.on(runner)})"
    during, after = case("during"), case("after")
    return [
        measures.value(
            f"{where}: residual loss from 1 s after the jump",
            "",
            during,
            residual(during),
            RESIDUAL_MAX,
            relation="<=",
        ),
        measures.value(f"{where}: extra bytes meanwhile", "", during, extra(during), None),
        measures.value(
            f"{where}: extra bytes from 15 s after the loss",
            "",
            after,
            extra(after),
            EXTRA_MAX,
            relation="<=",
        ),
    ]


def figures(results: Results) -> list[Figure]:
    """Residual loss of the call, by case."""
    drawn = []
    for runner in results.runners():
        series: dict[str, list[Bar | None]] = {}
        for kind in TRAFFIC:
            cases = [results.where(runner, paths, kind, "during") for paths in PATHS]
            if cases[0].planned():
                series[kind] = [
                    measures.bar(estimate([1_000 * share for share in residual(case).values()]))
                    for case in cases
                ]
        if series:
            drawn.append(
                Figure(
                    f"What a call lacks while a path loses a fifth ({measures.on(runner)})",
                    "From one second after the jump; at most 1 of 1,000 is asked for.",
                    bars(list(PATHS), series, "of 1,000", [None for _ in PATHS]),
                )
            )
    return drawn
