"""Loss: unmodified TCP over two lossy paths, beside what other tunnels make of them."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import (
    TUNNEL_OVERHEAD,
    Carrier,
    Congestion,
    Direct,
    Link,
    Mptcp,
    Path,
    Peer,
    Ping,
    Plan,
    Tcp,
    Tunnel,
)

NAME = "loss"
TITLE = "Unmodified TCP over two lossy paths"
ABOUT = "Two paths of 10 Mbit/s that lose up to 10 %, one flow; MPTCP and other tunnels beside it."
ASSUMPTIONS = (
    "Every packet is lost by itself, with the same chance in both directions of both paths.",
    "OpenVPN and wireguard-go use one path: they have no others. They run on the kernel only.",
    "The target is a share of the ceiling, which has only what is not lost: 0.96 without loss, "
    "0.90 with it.",
)

RATE_MBIT = 10.0
DELAY_MS = 5.0
QUEUE_BYTES = 64 * 1024
LOSSES = (0.0, 0.01, 0.02, 0.05, 0.10)
QUICK_LOSSES = (0.0, 0.05)
CONGESTIONS: tuple[Congestion, ...] = ("cubic", "new-reno", "bbr")
CARRIERS: dict[str, Carrier] = {
    "auto": Tunnel(),
    "direct-a": Direct("a"),
    "mptcp": Mptcp(),
    "openvpn-tcp": Peer("openvpn-tcp"),
    "wireguard-go": Peer("wireguard-go"),
}
SIMULATED = ("auto", "direct-a")
QUICK = ("auto", "direct-a")


def cells(options: Options) -> list[Cell]:
    """Every loss, congestion control and carrier."""
    losses = QUICK_LOSSES if options.quick else LOSSES
    congestions = CONGESTIONS[:1] if options.quick else CONGESTIONS
    duration = 8.0 if options.quick else 30.0
    cases = [
        ((percent(loss), name, congestion), plan(loss, name, congestion, duration))
        for loss in losses
        for congestion in congestions
        for name in (QUICK if options.quick else CARRIERS)
    ]
    simulated = [case for case in cases if case[0][1] in SIMULATED]
    return expand(options, NAME, cases, "kernel") + expand(options, NAME, simulated, "sim")


def percent(loss: float) -> str:
    """How a loss is written in keys and names."""
    return f"{loss * 100:g}%"


def plan(loss: float, carrier: str, congestion: Congestion, duration_s: float) -> Plan:
    """One case."""
    link = Link(rate_mbit=RATE_MBIT, delay_ms=DELAY_MS, queue_bytes=QUEUE_BYTES, loss=loss or None)
    return Plan(
        name=f"{NAME}/{percent(loss)}/{carrier}/{congestion}",
        duration_s=duration_s,
        path=(Path("a", link), Path("b", link)),
        carrier=CARRIERS[carrier],
        traffic=(Tcp(flows=1, congestion=congestion), Ping()),
    )


def target(loss: float) -> float:
    """What part of the ceiling is asked for; the ceiling has only what is not lost."""
    return 0.90 if loss else 0.96


def claims(results: Results) -> list[Claim]:
    """The share of the ceiling that `auto` reaches at every loss, and what protection costs."""
    rows = []
    for runner in results.runners():
        for loss in LOSSES:
            for congestion in CONGESTIONS:
                auto = results.where(runner, percent(loss), "auto", congestion)
                if auto.planned():
                    name = f"{percent(loss)} loss, {congestion} ({measures.on(runner)})"
                    rows.append(measures.reach(f"{name}: auto ÷ ceiling", auto, target(loss)))
                    rows += _beside(results, runner, loss, congestion, name)
    return rows


def _beside(
    results: Results, runner: Runner, loss: float, congestion: str, name: str
) -> list[Claim]:
    """How `auto` stands against the others of the same run."""
    auto = results.where(runner, percent(loss), "auto", congestion)
    others = [name for name in CARRIERS if name not in ("auto", "direct-a")]
    return [
        measures.compare(
            f"{name}: auto ÷ {other}",
            auto,
            results.where(runner, percent(loss), other, congestion),
            None,
        )
        for other in others
        if results.where(runner, percent(loss), other, congestion).planned()
    ]


def figures(results: Results) -> list[Figure]:
    """Goodput by loss, one figure for each congestion control."""
    drawn = []
    for runner in results.runners():
        for congestion in CONGESTIONS:
            series = {
                name: [
                    measures.bar(estimate(list(measures.goodput(cell).values())))
                    for cell in (
                        results.where(runner, percent(loss), name, congestion) for loss in LOSSES
                    )
                ]
                for name in CARRIERS
                if results.where(runner, None, name, congestion).planned()
            }
            if not series:
                continue
            drawn.append(
                Figure(
                    f"One {congestion} flow over two lossy paths ({measures.on(runner)})",
                    "Delivered of 20 Mbit/s. Black: the target of `auto`.",
                    bars(
                        [percent(loss) for loss in LOSSES],
                        series,
                        "Mbit/s",
                        [
                            target(loss) * (1 - loss) * 2 * RATE_MBIT * TUNNEL_OVERHEAD
                            for loss in LOSSES
                        ],
                        "target",
                    ),
                )
            )
    return drawn
