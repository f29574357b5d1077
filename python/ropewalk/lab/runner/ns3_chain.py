"""What `ropewalk-ns3-chain` is given and gives: TCP connections over paths in a row."""

from __future__ import annotations

from typing import Any

from ropewalk.lab.cell import Cell
from ropewalk.lab.runner import UnavailableError
from ropewalk.plan import DIRECT_OVERHEAD, Chain, Link, Path, Plan, Tcp
from ropewalk.report import FlowReport, PathReport, Report, TrafficReport


def arguments(cell: Cell) -> list[str]:
    """Of the program.

    Raises:
        UnavailableError: when ns-3 cannot run the plan; says what it can.
    """
    plan = cell.plan
    hops = [_hop(path) for path in _hops(plan)]
    flows = [_flow(traffic) for traffic in plan.traffic]
    segments = {flow.segment for flow in flows}
    if len(segments) != 1:
        raise UnavailableError("ns-3 needs the same `segment` for all traffic of a chain")
    values = {
        "hops": ",".join(hops),
        "sources": ",".join(_source(flow) for flow in flows),
        "segment": segments.pop(),
        "seconds": plan.duration_s,
        "warmup": plan.warmup_s,
        "seed": cell.seed,
        "hosts": "published" if any(flow.plain for flow in flows) else "linux",
    }
    return [f"--{name}={value}" for name, value in values.items()]


def _hops(plan: Plan) -> list[Path]:
    assert isinstance(plan.carrier, Chain), plan.carrier
    paths = {path.name: path for path in plan.path}
    return [paths[name] for name in plan.carrier.hops]


def _hop(path: Path) -> str:
    both = path.both
    usual = Link(both.rate_mbit, delay_ms=both.delay_ms, queue_packets=both.queue_packets)
    known = Path(path.name, usual, up=Link(loss=path.up.loss))
    if path != known:
        raise UnavailableError(
            "ns-3 knows `both` with rate, delay, queue_packets, and loss of `up`"
        )
    return ":".join(map(str, (*_measures(both), path.up.loss or 0.0, both.queue_packets)))


def _measures(link: Link) -> tuple[float, float]:
    if link.rate_mbit is None or link.delay_ms is None or link.queue_packets is None:
        raise UnavailableError("ns-3 needs rate, delay and queue_packets of every link")
    return link.rate_mbit, link.delay_ms


def _flow(traffic: object) -> Tcp:
    usual = isinstance(traffic, Tcp) and traffic == Tcp(
        congestion="new-reno",
        direction="up",
        segment=traffic.segment,
        plain=traffic.plain,
        enter=traffic.enter,
        access=traffic.access,
    )
    if not isinstance(traffic, Tcp) or not usual or traffic.segment is None:
        raise UnavailableError(
            "ns-3 runs NewReno uploads over a chain, each one flow from the start with a `segment`"
        )
    return traffic


def _source(flow: Tcp) -> str:
    return ":".join(map(str, (flow.enter or 1, *_measures(flow.access), flow.access.queue_packets)))


def report(cell: Cell, found: dict[str, Any]) -> Report:
    """What the program found."""
    rates = [path.both.rate_mbit or 0.0 for path in _hops(cell.plan)]
    each = [float(mbit) for mbit in found["goodput_mbit"]]
    if len(each) != len(cell.plan.traffic) or len(found["hops"]) != len(rates):
        raise ValueError("a number for each connection and each hop is wanted")
    return Report(
        plan=cell.plan.name,
        runner="ns3",
        seed=cell.seed,
        seconds=float(found["seconds"]),
        ceiling_mbit=min(rates) * DIRECT_OVERHEAD,
        traffic=tuple(
            TrafficReport(
                "tcp", mbit, (), None, (FlowReport(mbit, 0, broken=False),), None, None, None, None
            )
            for mbit in each
        ),
        paths=tuple(
            PathReport(path.name, 0, int(hop["dropped"]), int(hop["lost"]), rate)
            for path, hop, rate in zip(_hops(cell.plan), found["hops"], rates, strict=True)
        ),
        tunnel=None,
        trace_hash=None,
        packets=None,
        wall_seconds=0.0,
        notes=(),
    )
