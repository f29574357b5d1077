"""Protection: calls and games over lossy paths, by how they are protected."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.lab.trace import Trace, TracePair
from ropewalk.plan import Call, Link, Path, Plan, Traffic, Tunnel, Web

NAME = "protect-traces"
TITLE = "Calls, games and pages over lossy paths"
ABOUT = "Calls, games and pages over bursty and recorded lossy paths, by protection: in time, cost."
ASSUMPTIONS = (
    "A call sends 160 bytes every 20 ms each way, a game 80 bytes every 33 ms; in time is what "
    "arrives within 50 ms of the delay of the faster path.",
    "Losses of bursts follow a Gilbert model that advances with every packet; over recordings "
    "packets are lost by themselves, 1 to 5 % in each direction.",
    "Extra bytes are those of copies, combinations and repairs by those of the packets themselves, "
    "at the sender of the direction towards the site.",
)

DEADLINE_MS = 50
PROTECTIONS = ("none", "duplicate", "code", "adaptive")
LOSS, BURST = 0.05, 4.0
DELAYS = {"10 ms": (10.0, 10.0), "20 ms": (20.0, 20.0), "10 and 30 ms": (10.0, 30.0)}
TRACE_LOSSES = (0.01, 0.05)
TRACE_DELAY_MS = 20.0
IN_TIME = 0.999
EXTRA_MAX = 0.60


def cells(options: Options) -> list[Cell]:
    """Bursts by delay and recordings by loss, with every protection."""
    duration = 20.0 if options.quick else 60.0
    protections = ("duplicate", "adaptive") if options.quick else PROTECTIONS
    delays = list(DELAYS)[:1] if options.quick else list(DELAYS)
    bursts = [
        (("bursts", delay, "call", name), _bursts(delay, name, duration))
        for delay in delays
        for name in protections
    ]
    found = [
        cell for runner in options.plan_runners for cell in expand(options, NAME, bursts, runner)
    ]
    for pair in options.traces[:1] if options.quick else options.traces:
        cases = [
            (
                (pair.name, f"{loss * 100:g}%", kind, name),
                _recorded(pair, loss, kind, name, duration),
            )
            for loss in TRACE_LOSSES
            for kind in ("call", "game", "web")
            for name in protections
        ]
        for runner in options.plan_runners:
            found += expand(options, NAME, cases, runner, inputs=pair.digest)
    return found


def _traffic(kind: str, delay_ms: float) -> Traffic:
    deadline_s = (delay_ms + DEADLINE_MS) / 1e3
    if kind == "call":
        return Call(deadline_s=deadline_s)
    if kind == "game":
        return Call(interval_s=0.033, bytes=80, deadline_s=deadline_s)
    return Web()


def _bursts(delay: str, protection: str, duration_s: float) -> Plan:
    def link(delay_ms: float) -> Link:
        return Link(
            rate_mbit=10.0,
            delay_ms=delay_ms,
            loss=LOSS,
            loss_burst=BURST,
            queue_bytes=64 * 1024,
        )

    a, b = DELAYS[delay]
    return Plan(
        name=f"{NAME}/bursts/{delay}/{protection}",
        duration_s=duration_s,
        warmup_s=3.0,
        path=(Path("a", link(a)), Path("b", link(b))),
        carrier=Tunnel(protect_up=protection, protect_down=protection),
        traffic=(_traffic("call", a),),
    )


def _recorded(pair: TracePair, loss: float, kind: str, protection: str, duration_s: float) -> Plan:
    def path(name: str, up: Trace, down: Trace) -> Path:
        both = Link(delay_ms=TRACE_DELAY_MS, queue_bytes=256 * 1024, loss=loss)
        return Path(name, both, up=Link(trace=up.file), down=Link(trace=down.file))

    return Plan(
        name=f"{NAME}/{pair.name}/{loss * 100:g}%/{kind}/{protection}",
        duration_s=min(pair.seconds, duration_s),
        warmup_s=3.0,
        path=(path("a", pair.a_up, pair.a_down), path("b", pair.b_up, pair.b_down)),
        carrier=Tunnel(protect_up=protection, protect_down=protection),
        traffic=(_traffic(kind, TRACE_DELAY_MS),),
    )


def in_time(results: Results) -> dict[int, float]:
    """Share of packets that arrived before their deadline, by seed."""
    traffic = {seed: report.traffic[0] for seed, report in results.reports().items()}
    return {seed: t.in_time for seed, t in traffic.items() if t.in_time is not None}


def late(results: Results) -> dict[int, float]:
    """99th percentile of the delay, or of the time a page takes, ms, by seed."""
    traffic = {seed: report.traffic[0] for seed, report in results.reports().items()}
    return {seed: t.delay_ms.p99 for seed, t in traffic.items() if t.delay_ms is not None}


def extra(results: Results) -> dict[int, float]:
    """Bytes that protection added, as share of those it protects, by seed."""
    reports = results.reports()
    return {seed: r.tunnel.overhead for seed, r in reports.items() if r.tunnel is not None}


def claims(results: Results) -> list[Claim]:
    """Targets for calls over bursts; delays and cost for all as they are."""
    rows = []
    for runner in results.runners():
        for first in results.keys(0):
            for second in results.where(runner, first).keys(1):
                for kind in results.where(runner, first, second).keys(2):
                    case = results.where(runner, first, second, kind)
                    for name in case.keys(3):
                        rows += _claims(runner, (first, second, kind, name), results)
    return rows


def _claims(runner: Runner, key: tuple[str, str, str, str], results: Results) -> list[Claim]:
    first, second, kind, name = key
    case = results.where(runner, *key)
    where = f"{first}, {second}: {kind}, {name} ({measures.on(runner)})"
    aimed = first == "bursts" and name == "adaptive"
    rows = [
        measures.value(f"{where}: 99th percentile", "ms", case, late(case), None),
        measures.value(
            f"{where}: extra bytes",
            "",
            case,
            extra(case),
            EXTRA_MAX if aimed else None,
            relation="<=",
        ),
    ]
    if kind != "web":
        target = IN_TIME if aimed else None
        rows.insert(0, measures.value(f"{where}: in time", "", case, in_time(case), target))
    return rows


def figures(results: Results) -> list[Figure]:
    """What came in time over bursts, and what it cost."""
    drawn = []
    for runner in results.runners():
        for title, unit, measure in (
            ("Packets too late or lost", "of 1,000", _per_mille_late),
            ("Extra bytes", "share", extra),
        ):
            series = {
                name: [
                    measures.bar(
                        estimate(
                            list(
                                measure(
                                    results.where(runner, "bursts", delay, "call", name)
                                ).values()
                            )
                        )
                    )
                    for delay in DELAYS
                ]
                for name in PROTECTIONS
                if results.where(runner, "bursts", None, "call", name).planned()
            }
            if series:
                drawn.append(
                    Figure(
                        f"{title}: calls over bursts of loss ({measures.on(runner)})",
                        "Two paths, each loses 5 % in bursts of four; by one-way delay.",
                        bars(list(DELAYS), series, unit, [None for _ in DELAYS]),
                    )
                )
    return drawn


def _per_mille_late(results: Results) -> dict[int, float]:
    return {seed: 1_000 * (1 - share) for seed, share in in_time(results).items()}
