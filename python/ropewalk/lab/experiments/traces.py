"""Traces: Wi-Fi and cellular recorded at the same time and place, and LTE recordings."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Outcome, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars, lines
from ropewalk.lab.trace import Trace, TracePair
from ropewalk.plan import Carrier, Direct, Link, Mptcp, Path, Ping, Plan, Tcp, Tunnel

NAME = "traces"
TITLE = "Recorded Wi-Fi and cellular capacity"
ABOUT = "Every pair of recordings in --traces; 5 CUBIC flows over single paths, the tunnel, MPTCP."
ASSUMPTIONS = (
    "20 ms one way on both paths; the queue is 256 KiB in each direction.",
    "The CSV recordings have one direction only: it is used for both.",
    "Runs begin with the recording and are counted after two seconds.",
)
LENGTH_MAX_SECONDS = 120
QUICK_SECONDS = 20
WARMUP_SECONDS = 2
STALL_EXTRA_SECONDS = 0.3

CARRIERS: dict[str, Carrier] = {
    "direct-a": Direct("a"),
    "direct-b": Direct("b"),
    "auto": Tunnel(),
    "mptcp": Mptcp(),
}


def cells(options: Options) -> list[Cell]:
    """Every carrier over every pair; the key holds how long both are at zero, in ms."""
    found = []
    for runner in options.plan_runners:
        for pair in options.traces:
            duration = min(pair.seconds, QUICK_SECONDS if options.quick else LENGTH_MAX_SECONDS)
            zero = round(1000 * pair.both_zero(WARMUP_SECONDS, duration))
            cases = [
                ((pair.name, carrier, f"{zero}ms"), plan(pair, carrier, duration))
                for carrier in CARRIERS
                if carrier != "mptcp" or runner == "kernel"
            ]
            found += expand(options, NAME, cases, runner, inputs=pair.digest)
    return found


def plan(pair: TracePair, carrier: str, duration_s: float) -> Plan:
    """One case."""
    return Plan(
        name=f"{NAME}/{pair.name}/{carrier}",
        duration_s=duration_s,
        warmup_s=WARMUP_SECONDS,
        path=(_path("a", pair.a_up, pair.a_down), _path("b", pair.b_up, pair.b_down)),
        carrier=CARRIERS[carrier],
        traffic=(Tcp(flows=5), Ping()),
    )


def _path(name: str, up: Trace, down: Trace) -> Path:
    both = Link(delay_ms=20, queue_bytes=256 * 1024)
    return Path(name, both, up=Link(trace=up.file), down=Link(trace=down.file))


def claims(results: Results) -> list[Claim]:
    """Bytes against the ceiling and the better path, breaks, stalls."""
    rows = []
    for runner in results.runners():
        for pair in results.keys(0):
            auto = results.where(runner, pair, "auto")
            if not auto.planned():
                continue
            single = measures.best(
                results.where(runner, pair, "direct-a"), results.where(runner, pair, "direct-b")
            )
            where = f"{pair} ({measures.on(runner)})"
            zero = float(auto.outcomes[0].cell.key[2].removesuffix("ms")) / 1000
            broken = {seed: float(r.broken) for seed, r in auto.reports().items()}
            rows += [
                measures.reach(f"{where}: auto ÷ ceiling of both", auto, 0.90),
                measures.compare(f"{where}: auto ÷ better single path", auto, single, 1.0),
                measures.value(
                    f"{where}: connections that broke", "", auto, broken, 0.0, relation="<="
                ),
                measures.value(
                    f"{where}: longest stall",
                    "s",
                    auto,
                    measures.stall(auto),
                    zero + STALL_EXTRA_SECONDS,
                    relation="<=",
                    note=f"both recordings at zero for {zero:.1f} s at most",
                ),
            ]
    return rows


def figures(results: Results) -> list[Figure]:
    """All pairs in one chart, and the first seed of each second by second."""
    drawn = []
    pairs = results.keys(0)
    for runner in results.runners():
        series = {
            carrier: [
                measures.bar(measures.efficiency_of_both(results, runner, pair, carrier))
                for pair in pairs
            ]
            for carrier in CARRIERS
            if results.where(runner, None, carrier).planned()
        }
        drawn.append(
            Figure(
                f"Goodput by ceiling of both recordings ({measures.on(runner)})",
                "The ceiling is what both paths together allow inside a tunnel; target 0.90.",
                bars(pairs, series, "of the ceiling of both"),
            )
        )
        for pair in pairs:
            first = [o for o in results.where(runner, pair).outcomes if o.report is not None]
            seconds = {o.cell.key[1]: _series(o) for o in first if o.cell.seed == 1}
            if seconds:
                drawn.append(
                    Figure(
                        f"{pair}, second by second ({measures.on(runner)})",
                        "Five CUBIC flows, first seed.",
                        lines(seconds, "Mbit/s"),
                    )
                )
    return drawn


def _series(outcome: Outcome) -> tuple[float, ...]:
    bulk = outcome.report.bulk() if outcome.report is not None else None
    return bulk.series_mbit if bulk is not None else ()
