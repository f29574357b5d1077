"""Hold: the only path vanishes for a while and comes back; what a TCP stream waits afterwards."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Carrier, Change, Congestion, Direct, Link, Path, Plan, Tcp, Tunnel
from ropewalk.report import Report

NAME = "hold"
TITLE = "Every path down for a while"
ABOUT = (
    "One TCP stream over one path that swallows everything for 0.2 to 30 s, several times: "
    "bare, in a tunnel, and in tunnels that freeze the sender."
)
ASSUMPTIONS = (
    "20 Mbit/s both ways; the queue is one bandwidth-delay product, at least 64 KiB.",
    "The idle time after a return is what passes until the receiving application reads the first "
    "new byte; it counts from the time in the plan, so what starting takes is in it.",
    "All gaps follow each other in one run, with time to recover in between.",
    "A window of 40 kB is the receiver's largest; Singh et al. limit the sender's window to so "
    "much for their figure 7. 4 MB is more than the path needs.",
    "`planned` is told of every gap three round trips and 100 ms ahead; `custody` is not told.",
    "Every byte of the stream is compared with what was sent: one that is lost, repeated or moved "
    "makes the connection count as broken.",
)

GAPS = (0.2, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0)
"""Seconds for which the path is away."""
QUICK_GAPS = (0.5, 2.0)
RTTS_MS = (2, 40, 160)
WINDOWS = (40_000, 4_000_000)
CONGESTIONS: tuple[Congestion, ...] = ("new-reno", "cubic", "bbr")
CARRIERS: dict[str, Carrier] = {
    "bare": Direct(),
    "replay": Tunnel(),
    "planned": Tunnel(freeze="planned"),
    "custody": Tunnel(freeze="custody"),
}
AHEAD_S = 0.1
"""An announced gap is announced so long before, and three round trips."""
AHEAD_RTTS = 3
RATE_MBIT = 20.0
QUEUE_BYTES_MIN = 64 * 1024
LEAD_S = 4.0
"""Until the first gap, and after each for as long as the tunnel needs to get going again."""
MARGIN_S = 0.050
"""What the return may cost besides one round trip."""


def cells(options: Options) -> list[Cell]:
    """Every congestion control, round trip and window, bare and in every tunnel."""
    if "kernel" not in options.plan_runners:
        return []
    rtts = (40,) if options.quick else RTTS_MS
    windows = (4_000_000,) if options.quick else WINDOWS
    congestions: tuple[Congestion, ...] = ("cubic",) if options.quick else CONGESTIONS
    plans = [
        (
            (name, congestion, f"rtt_{rtt}", f"window_{window}"),
            _plan(options, name, congestion, rtt, window),
        )
        for name in CARRIERS
        for congestion in congestions
        for rtt in rtts
        for window in windows
    ]
    # The simulated receiver is without a window, and its connections without real timers.
    return expand(options, NAME, plans, "kernel")


def gaps(options: Options) -> tuple[float, ...]:
    """Seconds of the gaps of a run."""
    return QUICK_GAPS if options.quick else GAPS


def outages(lengths: tuple[float, ...], bare: bool) -> list[tuple[float, float]]:
    """When the path vanishes and is back, seconds after the start.

    A bare sender may wait as long again as the gap, its timer doubling: it gets that much more.
    """
    found, at = [], LEAD_S
    for length in lengths:
        found.append((at, at + length))
        at += length + LEAD_S + (length if bare else 0.0)
    return found


def _plan(options: Options, carrier: str, congestion: Congestion, rtt: int, window: int) -> Plan:
    bare = carrier == "bare"
    times = outages(gaps(options), bare)
    queue = max(QUEUE_BYTES_MIN, round(RATE_MBIT * 1e6 / 8 * rtt / 1e3))
    link = Link(rate_mbit=RATE_MBIT, delay_ms=rtt / 2, queue_bytes=queue)
    change: list[Change] = []
    for down, up in times:
        change.append(Change(down, Link(blackhole=True)))
        change.append(Change(up, Link(blackhole=False)))
    ahead = AHEAD_S + AHEAD_RTTS * rtt / 1e3
    leaving = tuple(down - ahead for down, _ in times) if carrier == "planned" else ()
    end = times[-1][1] + LEAD_S + ((times[-1][1] - times[-1][0]) if bare else 0.0)
    return Plan(
        name=f"{NAME}/{carrier}/{congestion}/{rtt}/{window}",
        duration_s=end,
        warmup_s=1.0,
        path=(Path("a", link, change=tuple(change), leaving_s=leaving),),
        carrier=CARRIERS[carrier],
        traffic=(Tcp(congestion=congestion, window=window),),
    )


def outages_of(plan: Plan) -> list[tuple[float, float]]:
    """When the path of a plan vanishes and is back."""
    changes = plan.path[0].change
    return [(down.at_s, up.at_s) for down, up in zip(changes[::2], changes[1::2], strict=True)]


def idle_after(report: Report, down: float, up: float, end: float) -> float:
    """Seconds from the return until new data came; all that is left if none did."""
    flows = [flow for traffic in report.traffic for flow in traffic.flows]
    pauses = [pause for flow in flows for pause in flow.pauses]
    across = [pause.end for pause in pauses if pause.begin < up and pause.end > down]
    return max(0.0, max(across) - up) if across else end - up


def _idle(results: Results, gap: float) -> dict[int, float]:
    """By seed, after the outage of this length."""
    found = {}
    for outcome in results.outcomes:
        plan, report = outcome.cell.plan, outcome.report
        for down, up in outages_of(plan):
            if report is not None and abs(up - down - gap) < 1e-6:
                found[outcome.cell.seed] = idle_after(report, down, up, plan.duration_s)
    return found


def _retransmits(report: Report) -> float:
    return float(sum(flow.retransmits or 0 for t in report.traffic for flow in t.flows))


def claims(results: Results) -> list[Claim]:
    """At most a round trip and 50 ms in every cell that replays, and no connection that breaks.

    What freezing does instead is measured beside it: idle time, retransmissions, goodput.
    """
    rows = []
    for key in sorted({outcome.cell.key for outcome in results.outcomes}):
        carrier, congestion, rtt_text, window = key
        found = results.where("kernel", *key)
        rtt_s = int(rtt_text.removeprefix("rtt_")) / 1e3
        where = f"{carrier}, {congestion}, {rtt_text.replace('_', ' ')} ms, {window}"
        replay = carrier == "replay"
        for gap in GAPS:
            idle = _idle(found, gap)
            if not idle:
                continue
            rows.append(
                measures.value(
                    f"idle after {gap:g} s ({where})",
                    "s",
                    found,
                    idle,
                    rtt_s + MARGIN_S if replay else None,
                    relation="<=" if replay else "none",
                )
            )
        sent_again = {seed: _retransmits(report) for seed, report in found.reports().items()}
        rows.append(measures.value(f"retransmissions ({where})", "", found, sent_again, None))
        goodput = measures.goodput(found)
        rows.append(measures.value(f"goodput ({where})", "Mbit/s", found, goodput, None))
        if carrier != "bare":
            broken = {seed: float(r.broken) for seed, r in found.reports().items()}
            rows.append(
                measures.value(
                    f"connections that broke or lost a byte ({where})",
                    "",
                    found,
                    broken,
                    0.0,
                    relation="<=",
                )
            )
    return rows


def figures(results: Results) -> list[Figure]:
    """Idle time by gap, bare and in the tunnel, for every round trip and window."""
    drawn = []
    for rtt in RTTS_MS:
        for window in WINDOWS:
            series = {}
            for congestion in CONGESTIONS:
                for carrier in CARRIERS:
                    key = (carrier, congestion, f"rtt_{rtt}", f"window_{window}")
                    found = results.where("kernel", *key)
                    if found.planned():
                        series[f"{carrier} {congestion}"] = [
                            measures.bar(estimate(list(_idle(found, gap).values()))) for gap in GAPS
                        ]
            if series:
                drawn.append(
                    Figure(
                        f"Idle after the return, RTT {rtt} ms, window {window // 1000} kB",
                        "Seconds from the return of the path to the first new byte.",
                        bars([f"{gap:g} s" for gap in GAPS], series, "s"),
                    )
                )
    return drawn
