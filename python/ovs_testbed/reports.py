"""What a run on Open vSwitch gave, as the report that every runner gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ropewalk.plan import DIRECT_OVERHEAD, Plan
from ropewalk.report import (
    Distribution,
    FlowReport,
    HandoverReport,
    Report,
    TrafficReport,
)


def report(
    plan: Plan,
    traffic: tuple[TrafficReport, ...] = (),
    handovers: tuple[HandoverReport, ...] = (),
    values: Mapping[str, float] | None = None,
) -> Report:
    """A report; its ceiling is what the first path allows."""
    return Report(
        plan=plan.name,
        runner="ovs",
        seed=plan.seed,
        seconds=plan.duration_s,
        ceiling_mbit=(plan.path[0].down_mbit() or 0.0) * DIRECT_OVERHEAD,
        traffic=traffic,
        paths=(),
        tunnel=None,
        trace_hash=None,
        packets=None,
        wall_seconds=0.0,
        notes=(),
        handovers=handovers,
        values=values or {},
    )


def download(goodput_mbit: float, retransmits: int, broken: bool = False) -> TrafficReport:
    """Of one TCP connection."""
    flows = (FlowReport(goodput_mbit, retransmits, broken),)
    return TrafficReport("tcp", goodput_mbit, (), None, flows, None, None, None, None)


def pings(sent: int, times_ms: Sequence[float]) -> TrafficReport:
    """Of echo requests and the round trips of those that were answered."""
    delay = Distribution.of(times_ms)
    return TrafficReport("ping", 0.0, (), None, (), delay, sent, sent - len(times_ms), None)
