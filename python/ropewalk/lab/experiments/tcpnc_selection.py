"""Two paths between gateways, and the better gateway by measured loss.

The TCP/NC paper leaves "adaptive gateway selection" and several paths to future work.

A site reaches the last gateway over one of two middle gateways, and both middle gateways only
route. A path is one of them with both its hops: 2 Mbit/s, 20 ms one way, and the loss of two hops.
TCP/NC takes one middle gateway, since a session has one path. Our tunnel has both paths and is told
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.lab.cell import Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.tcpnc_cases import ACCESS_MS, NAME, QUEUE_PACKETS, SEGMENT
from ropewalk.plan import Carrier, Chain, Change, Link, Path, Plan, Relay, Tcp, TcpNc

LOSS_LOW = 0.02
LOSS_HIGH = 0.20
"""Of each hop, on the way over the better and the worse middle gateway."""
RATE_MBIT = 2.0
DELAY_MS = 20.0
"""Of both hops together."""
CHANGE_S = 30.0
SETTLE_S = 5
"""After the losses are exchanged, so many seconds do not count."""
WARMUP_S = 10
DURATION_S = 60

KEY = "two middle gateways"
OURS = "tunnel over both"
CARRIERS: dict[str, Carrier] = {
    "end-to-end over m1": Chain(("m1",)),
    "tcp-nc over m1": TcpNc(("m1",)),
    "tcp-nc over m2": TcpNc(("m2",)),
    OURS: Relay((("m1", "m2"),)),
}
"""The way over m1 is the better one at first."""


@dataclass(frozen=True)
class Case:
    """How many sessions of 1 Mbit/s, and whether the two ways exchange their losses."""

    sessions: int
    exchange: bool

    @property
    def name(self) -> str:
        """As keys have it."""
        load = "1 session" if self.sessions == 1 else f"{self.sessions} sessions"
        return f"{load}, losses exchanged" if self.exchange else load


CASES = tuple(Case(sessions, exchange) for exchange in (False, True) for sessions in (1, 3))


def runs() -> list[tuple[tuple[str, ...], Plan]]:
    """Every case with every carrier."""
    return [
        ((KEY, case.name, carrier), plan(case, carrier)) for case in CASES for carrier in CARRIERS
    ]


def plan(case: Case, carrier: str) -> Plan:
    """One case; data goes up."""
    losses = [Link(loss=1 - (1 - loss) ** 2) for loss in (LOSS_LOW, LOSS_HIGH)]
    both = Link(RATE_MBIT, delay_ms=DELAY_MS, queue_packets=QUEUE_PACKETS)
    return Plan(
        name=f"{NAME}/{KEY}/{case.name}/{carrier}",
        duration_s=DURATION_S,
        warmup_s=WARMUP_S,
        path=tuple(
            Path(
                name,
                both,
                up=losses[at],
                change=(Change(CHANGE_S, up=losses[1 - at]),) if case.exchange else (),
            )
            for at, name in enumerate(("m1", "m2"))
        ),
        carrier=CARRIERS[carrier],
        traffic=tuple(
            Tcp(
                congestion="new-reno",
                direction="up",
                segment=SEGMENT,
                access=Link(1.0, delay_ms=ACCESS_MS, queue_packets=QUEUE_PACKETS),
            )
            for _ in range(case.sessions)
        ),
    )


def claims(results: Results) -> list[Claim]:
    """Goodput beside the better gateway by itself, and what went over the worse one."""
    rows: list[Claim] = []
    for runner in results.runners():
        for case in CASES:
            found = {name: results.where(runner, KEY, case.name, name) for name in CARRIERS}
            ours = found[OURS]
            if not ours.planned():
                continue
            begin, on = f"{KEY}, {case.name}", measures.on(runner)
            single = measures.best(found["tcp-nc over m1"], found["tcp-nc over m2"])
            rows.append(
                measures.compare(
                    f"{begin}: our tunnel over both ÷ the better one of tcp-nc ({on})",
                    ours,
                    single,
                    1.0,
                    note="the paper: future work",
                )
            )
            if case.exchange:
                rows.append(_after(begin, runner, ours))
            elif case.sessions == 1:
                rows.append(_worse(begin, runner, ours))
    return rows


def _after(begin: str, runner: Runner, found: Results) -> Claim:
    values = {}
    for seed, report in found.reports().items():
        series = [sum(each) for each in zip(*(t.series_mbit for t in report.traffic), strict=True)]
        before = series[WARMUP_S : int(CHANGE_S)]
        after = series[int(CHANGE_S) + SETTLE_S :]
        if sum(before) and after:
            values[seed] = sum(after) / len(after) / (sum(before) / len(before))
    return measures.value(
        f"{begin}: our tunnel, goodput after ÷ before ({measures.on(runner)})",
        "ratio",
        found,
        values,
        0.9,
        note=f"from {SETTLE_S} s after the exchange on",
    )


def _worse(begin: str, runner: Runner, found: Results) -> Claim:
    values = {}
    for seed, report in found.reports().items():
        carried = {path.name: path.bytes for path in report.paths}
        if sum(carried.values()):
            values[seed] = carried.get("m2", 0) / sum(carried.values())
    return measures.value(
        f"{begin}: our tunnel, bytes over the worse gateway ({measures.on(runner)})",
        "of bytes",
        found,
        values,
        0.2,
        relation="<=",
        note="one way carries it all",
    )
