"""Failover: many streams over a fast and a slow path, and the fast path vanishing for a while."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars, lines
from ropewalk.lab.statistics import estimate
from ropewalk.plan import (
    TUNNEL_OVERHEAD,
    Carrier,
    Change,
    Direct,
    Link,
    Mptcp,
    Path,
    Ping,
    Plan,
    Tcp,
    Tunnel,
)
from ropewalk.report import Report

NAME = "failover"
TITLE = "Many streams, and a path that vanishes"
ABOUT = "1 to 32 CUBIC streams over 300 + 80 Mbit/s; then the fast path vanishes and comes back."
ASSUMPTIONS = (
    "mqvpn's 10 ms and 30 ms are taken as round-trip times; each direction gets half.",
    "The queue is not published: 512 KiB in each direction.",
    "A path that vanishes swallows every packet while its interface stays up; 8 streams.",
    "What was delivered is known second by second: the two seconds after the failure are not "
    "counted as `while down`, and the time to get back is exact to a second.",
)

MQVPN: dict[int, float] = {1: 264, 4: 277, 8: 306, 16: 319, 32: 310}
"""Mbit/s that mqvpn published for this many streams, of 380."""
FAST_MBIT, SLOW_MBIT = 300.0, 80.0
FAILURE_STREAMS = 8
CARRIERS: dict[str, Carrier] = {"auto": Tunnel(), "direct-a": Direct("a"), "mptcp": Mptcp()}
SETTLE_SECONDS = 2
"""After a failure, until goodput counts as that of the remaining path."""
BACK_SHARE = 0.9
"""Share of the goodput before the failure that counts as being back."""
STALL_TARGET_SECONDS = 1.0
DOWN_TARGET = 0.9
BACK_TARGET_SECONDS = 3.0


def cells(options: Options) -> list[Cell]:
    """Streams without a failure, then the failure."""
    found = []
    for runner in options.plan_runners:
        carriers = [name for name in CARRIERS if name != "mptcp" or runner == "kernel"]
        streams = [
            (("streams", name, str(count)), _plan(options, name, count, None))
            for count in MQVPN
            for name in carriers
        ]
        down, up, end = times(options)
        failure = [
            (
                ("failure", name, f"{down}-{up}-{end}"),
                _plan(options, name, FAILURE_STREAMS, (down, up, end)),
            )
            for name in carriers
            # Alone it would only stand still.
            if name != "direct-a"
        ]
        found += expand(options, NAME, [*streams, *failure], runner)
    return found


def times(options: Options) -> tuple[int, int, int]:
    """Seconds: the path vanishes, is back, and the run ends."""
    return (6, 14, 22) if options.quick else (20, 40, 60)


def _plan(options: Options, carrier: str, count: int, failure: tuple[int, int, int] | None) -> Plan:
    link = Link(queue_bytes=512 * 1024)
    change: tuple[Change, ...] = ()
    duration, warmup = (6.0, 2.0) if options.quick else (12.0, 3.0)
    if failure is not None:
        down, up, end = failure
        change = (Change(down, Link(blackhole=True)), Change(up, Link(blackhole=False)))
        duration = end
    fast = Link(rate_mbit=FAST_MBIT, delay_ms=5, queue_bytes=link.queue_bytes)
    slow = Link(rate_mbit=SLOW_MBIT, delay_ms=15, queue_bytes=link.queue_bytes)
    kind = "streams" if failure is None else "failure"
    return Plan(
        name=f"{NAME}/{kind}/{carrier}/{count}",
        duration_s=duration,
        warmup_s=warmup,
        path=(Path("a", fast, change=change), Path("b", slow)),
        carrier=CARRIERS[carrier],
        traffic=(Tcp(flows=count), Ping()),
    )


def claims(results: Results) -> list[Claim]:
    """At least mqvpn's throughput; a short stall, the remaining path in use, soon back."""
    rows = []
    for runner in results.runners():
        where = measures.on(runner)
        for count, theirs in MQVPN.items():
            auto = results.where(runner, "streams", "auto", str(count))
            rows.append(
                measures.value(
                    f"{count} streams: auto against mqvpn ({where})",
                    "Mbit/s",
                    auto,
                    measures.goodput(auto),
                    theirs,
                    paper=theirs,
                )
            )
        rows += _failure_claims(results.where(runner, "failure", "auto"), where)
    return rows


def _failure_claims(auto: Results, where: str) -> list[Claim]:
    if not auto.planned():
        return []
    down, up, _ = (int(part) for part in auto.outcomes[0].cell.key[2].split("-"))
    reports = auto.reports()
    remaining = SLOW_MBIT * TUNNEL_OVERHEAD
    share = {seed: while_down(r, down, up) / remaining for seed, r in reports.items()}
    back = {seed: time_to_get_back(r, down, up) for seed, r in reports.items()}
    broken = {seed: float(r.broken) for seed, r in reports.items()}
    return [
        measures.value(
            f"a path vanishes: longest stall ({where})",
            "s",
            auto,
            measures.stall(auto),
            STALL_TARGET_SECONDS,
            relation="<=",
        ),
        measures.value(
            f"a path vanishes: goodput while down ÷ the other path's ceiling ({where})",
            "of ceiling",
            auto,
            share,
            DOWN_TARGET,
        ),
        measures.value(
            f"a path comes back: until {BACK_SHARE:.0%} of the goodput before ({where})",
            "s",
            auto,
            back,
            BACK_TARGET_SECONDS,
            relation="<=",
            note="exact to a second",
        ),
        measures.value(
            f"a path vanishes: connections that broke ({where})",
            "",
            auto,
            broken,
            0.0,
            relation="<=",
        ),
    ]


def while_down(report: Report, down: int, up: int) -> float:
    """Mean goodput while the path is away, Mbit/s, without the first two seconds."""
    return _mean(_series(report)[down + SETTLE_SECONDS : up])


def time_to_get_back(report: Report, down: int, up: int) -> float:
    """Seconds from the return until goodput is nearly what it was; all that is left if never."""
    series = _series(report)
    wanted = BACK_SHARE * _mean(series[SETTLE_SECONDS:down])
    after = series[up:]
    return float(next((second for second, v in enumerate(after) if v >= wanted), len(after)))


def _series(report: Report) -> tuple[float, ...]:
    bulk = report.bulk()
    return () if bulk is None else bulk.series_mbit


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else 0.0


def figures(results: Results) -> list[Figure]:
    """Throughput by streams, and the failure second by second."""
    drawn = []
    for runner in results.runners():
        where = measures.on(runner)
        series = {
            name: [
                measures.bar(
                    estimate(
                        list(
                            measures.goodput(
                                results.where(runner, "streams", name, str(count))
                            ).values()
                        )
                    )
                )
                for count in MQVPN
            ]
            for name in CARRIERS
            if results.where(runner, "streams", name).planned()
        }
        drawn.append(
            Figure(
                f"Goodput by number of streams ({where})",
                "Black: mqvpn's best, as published.",
                bars(
                    [f"{count} streams" for count in MQVPN],
                    series,
                    "Mbit/s",
                    list(MQVPN.values()),
                    "mqvpn",
                ),
            )
        )
        failure = results.where(runner, "failure").outcomes
        first = {
            o.cell.key[1]: _series(o.report)
            for o in failure
            if o.report is not None and o.cell.seed == 1
        }
        if first:
            down, up, _ = (int(part) for part in failure[0].cell.key[2].split("-"))
            drawn.append(
                Figure(
                    f"The fast path vanishes ({where})",
                    "First seed. Dashed: what the remaining path allows inside a tunnel.",
                    lines(
                        first, "Mbit/s", [(down, up, "fast path away")], SLOW_MBIT * TUNNEL_OVERHEAD
                    ),
                )
            )
    return drawn
