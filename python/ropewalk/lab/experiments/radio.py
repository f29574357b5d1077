"""Radio networks recorded at the same time from a moving car: two, three and four together."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.experiments.protect_traces import in_time
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate, quantile_estimate
from ropewalk.lab.trace import Trace, Window, all_zero
from ropewalk.plan import Call, Carrier, Direct, Link, Path, Plan, Quic, Tcp, Traffic, Tunnel

NAME = "radio"
TITLE = "Two to four radio networks recorded together"
ABOUT = (
    "Every window of recordings in --traces: each network alone, and the tunnel over two, three "
    "and four of them; a CUBIC flow, five, a QUIC connection, a call beside a download."
)
ASSUMPTIONS = (
    "25 ms one way on all networks; the queue is 1 MiB in each direction.",
    "The recordings have one direction only: it is used for both. They say what was carried second "
    "by second; outages within a second do not show.",
    "Of four networks there are six pairs and four threes. Window after window the next one is "
    "taken, so that each comes up.",
    "On the kernel only windows whose networks carry 300 Mbit/s together or less.",
    "Runs begin with the recording and are counted after two seconds.",
)
LENGTH_MAX_SECONDS = 100
QUICK_SECONDS, QUICK_WINDOWS = 20, 2
WARMUP_SECONDS = 2
DELAY_MS = 25.0
QUEUE_BYTES = 1024 * 1024
KERNEL_MBIT = 300.0
"""What two processors carry, with hosts, links and both gateways on them."""
ALONE = "alone"
BULK: dict[str, tuple[Traffic, ...]] = {
    "tcp-1": (Tcp(),),
    "tcp-5": (Tcp(flows=5),),
    "quic": (Quic(),),
}
CALL = "call"
TRAFFIC: dict[str, tuple[Traffic, ...]] = {**BULK, CALL: (Call(), Tcp())}
REACHED = 0.90
STALL_EXTRA_SECONDS = 0.3


def cells(options: Options) -> list[Cell]:
    """Every window; the key holds how long all its networks are at zero, in ms.

    The recordings decide, and nothing is lost by chance: one seed unless more are asked for.
    """
    seeds = 1 if options.seeds is None else options.seeds
    chosen = options.windows[:QUICK_WINDOWS] if options.quick else options.windows
    found = []
    for runner in options.plan_runners:
        for number, window in enumerate(chosen):
            if runner == "kernel" and _mbit(window) > KERNEL_MBIT:
                continue
            length = min(window.seconds, QUICK_SECONDS if options.quick else LENGTH_MAX_SECONDS)
            cases = [
                (
                    (window.name, how, kind, names, f"{_zero_ms(networks, length)}ms"),
                    _plan(window.name, how, kind, networks, length),
                )
                for how, networks in _choices(window, number)
                for kind in TRAFFIC
                for names in ("+".join(name for name, _ in networks),)
            ]
            found += expand(options, NAME, cases, runner, seeds, window.digest)
    return found


Networks = tuple[tuple[str, Trace], ...]


def _choices(window: Window, number: int) -> list[tuple[str, Networks]]:
    """Each network alone; then two, three and so on, another choice for the next window."""
    chosen: list[tuple[str, Networks]] = [(ALONE, (network,)) for network in window.networks]
    for count in range(2, len(window.networks) + 1):
        of = list(combinations(window.networks, count))
        chosen.append((str(count), of[number % len(of)]))
    return chosen


def _zero_ms(networks: Networks, length: float) -> int:
    return round(1000 * all_zero([trace for _, trace in networks], WARMUP_SECONDS, length))


def _mbit(window: Window) -> float:
    """Mean capacity of all networks together."""
    return sum(trace.mean_mbit for _, trace in window.networks)


def _plan(window: str, how: str, kind: str, networks: Networks, seconds: float) -> Plan:
    carrier: Carrier = Direct(networks[0][0]) if how == ALONE else Tunnel()
    names = "+".join(name for name, _ in networks)
    return Plan(
        name=f"{NAME}/{window}/{names}/{kind}",
        duration_s=seconds,
        warmup_s=WARMUP_SECONDS,
        path=tuple(
            Path(
                name,
                Link(delay_ms=DELAY_MS, queue_bytes=QUEUE_BYTES, trace=trace.file),
            )
            for name, trace in networks
        ),
        carrier=carrier,
        traffic=TRAFFIC[kind],
    )


def _of(results: Results, runner: Runner, how: str, kind: str) -> dict[str, Results]:
    """By window."""
    found = {
        window: results.where(runner, window, how, kind) for window in results.where(runner).keys(0)
    }
    return {window: one for window, one in found.items() if one.reports()}


def _best_alone(
    results: Results, runner: Runner, window: str, kind: str, names: str
) -> Results | None:
    """The best of these networks without a tunnel."""
    alone = [results.where(runner, window, ALONE, kind, name) for name in names.split("+")]
    return measures.best(*alone) if all(one.reports() for one in alone) else None


def claims(results: Results) -> list[Claim]:
    """Never below the best network, near to all together, no longer stalls, better calls."""
    rows = []
    for runner in results.runners():
        for how in results.where(runner).keys(1):
            if how != ALONE:
                for kind in BULK:
                    rows += _bulk_claims(results, runner, how, kind)
                rows += _call_claims(results, runner, how)
    return rows


def _bulk_claims(results: Results, runner: Runner, how: str, kind: str) -> list[Claim]:
    where = f"{how} networks, {kind} ({measures.on(runner)})"
    gains, reached, stalls = {}, {}, {}
    for window, found in _of(results, runner, how, kind).items():
        key = found.outcomes[0].cell.key
        goodput = measures.mean(measures.goodput(found))
        reached[window] = goodput / measures.mean(measures.ceiling(found))
        best = _best_alone(results, runner, window, kind, key[3])
        if best is not None:
            gains[window] = goodput / measures.mean(measures.goodput(best))
        zero = float(key[4].removesuffix("ms")) / 1000
        longest = measures.stall(found)
        if longest:
            stalls[window] = max(longest.values()) - zero
    of = results.where(runner, None, how, kind)
    return [
        measures.never(
            f"{where}: windows below the best network alone", of,
            [gain < 1.0 for gain in gains.values()], note=_worst(gains) or missing(of),
        ),
        _median(f"{where}: tunnel ÷ best network alone, median window", "ratio", of, gains, None),
        _median(
            f"{where}: tunnel ÷ ceiling of all, median window", "of ceiling", of, reached,
            REACHED if how in ("2", "4") else None,
        ),
        measures.never(
            f"{where}: stalls {STALL_EXTRA_SECONDS:g} s longer than no network has capacity", of,
            [stall > STALL_EXTRA_SECONDS for stall in stalls.values()],
            note=_worst(stalls, largest=True) or missing(of),
        ),
    ]  # fmt: skip


def _call_claims(results: Results, runner: Runner, how: str) -> list[Claim]:
    where = f"{how} networks, call beside a download ({measures.on(runner)})"
    tunnel, best = {}, {}
    for window, found in _of(results, runner, how, CALL).items():
        tunnel[window] = measures.mean(in_time(found))
        shares = [
            in_time(results.where(runner, window, ALONE, CALL, name)).values()
            for name in found.outcomes[0].cell.key[3].split("+")
        ]
        if all(shares):
            best[window] = max(fmean(one) for one in shares)
    of = results.where(runner, None, how, CALL)
    differences = {window: tunnel[window] - share for window, share in best.items()}
    worse = [difference < 0 for difference in differences.values()]
    return [
        measures.never(
            f"{where}: windows with fewer packets in time than the best network alone", of, worse,
            note=_worst(differences) or missing(of),
        ),
        _median(f"{where}: packets in time, median window", "of them", of, tunnel, None),
        _median(f"{where}: the same of the best network alone", "of them", of, best, None),
    ]  # fmt: skip


def _median(
    name: str, unit: str, of: Results, values: dict[str, float], target: float | None
) -> Claim:
    found = quantile_estimate(list(values.values()), 0.5)
    return claim(name, unit, found, target=target, note=_worst(values) or missing(of))


def _worst(values: dict[str, float], *, largest: bool = False) -> str:
    if not values:
        return ""
    window = (max if largest else min)(values, key=lambda one: values[one])
    return f"worst: {values[window]:.3f} in window {window}"


def figures(results: Results) -> list[Figure]:
    """Every window: the tunnel over all its networks beside the best of them."""
    drawn = []
    for runner in results.runners():
        hows = [how for how in results.where(runner).keys(1) if how != ALONE]
        for kind in BULK:
            series = {}
            for how in hows:
                series[f"{how} networks"] = {
                    window: measures.mean(measures.goodput(found))
                    / measures.mean(measures.ceiling(found))
                    for window, found in _of(results, runner, how, kind).items()
                }
            names = list(dict.fromkeys(window for one in series.values() for window in one))
            drawn.append(
                Figure(
                    f"{kind}: goodput by ceiling of the networks in use ({measures.on(runner)})",
                    f"Windows of the recordings; target {REACHED:g} for two and for four.",
                    bars(
                        names,
                        {
                            how: [
                                measures.bar(estimate([one[name]]) if name in one else None)
                                for name in names
                            ]
                            for how, one in series.items()
                        },
                        "of the ceiling",
                    ),
                )
            )
    return drawn
