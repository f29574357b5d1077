"""Runs in ns-3 (`lab/ns3`).

`ropewalk-ns3` has one TCP connection down one path. `ropewalk-ns3-chain` beside it has several
connections over paths in a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ropewalk.lab.cell import Cell
from ropewalk.lab.programs import NS3_CHAIN
from ropewalk.lab.runner import EXIT_PLAN_UNUSABLE, RunError, UnavailableError, ns3_chain
from ropewalk.lab.runner.process import Children, last_lines
from ropewalk.plan import DIRECT_OVERHEAD, Chain, Direct, Link, Plan, Tcp, paths_used
from ropewalk.plan import Path as PlanPath
from ropewalk.report import FlowReport, PathReport, Report, TrafficReport

_SECONDS_PER_SIMULATED = 10
_START_SECONDS = 60


class Ns3Runner:
    """Runs one cell at a time. Traffic beside the connection is left out, with a note."""

    def __init__(self, program: Path, children: Children) -> None:
        self._program = program
        self._children = children

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell."""
        return [self._run(cell) for cell in cells]

    def _run(self, cell: Cell) -> Report:
        if isinstance(cell.plan.carrier, Chain):
            program = self._program.with_name(NS3_CHAIN)
            if not program.is_file():
                raise UnavailableError(f"no program {program}; build it with `lab/ns3/build`")
            found = self._found(program, ns3_chain.arguments(cell), cell)
            return _read(program, lambda: ns3_chain.report(cell, found()))
        path, flow = wanted(cell.plan)
        found = self._found(self._program, _arguments(cell, path, flow), cell)
        return _read(self._program, lambda: _report(cell, path, found()))

    def _found(
        self, program: Path, arguments: list[str], cell: Cell
    ) -> Callable[[], dict[str, Any]]:
        """Runs the program; reads what it wrote when asked."""
        command = [str(program), *arguments]
        limit = _START_SECONDS + _SECONDS_PER_SIMULATED * cell.plan.duration_s
        done = self._children.run(command, limit)
        reason = last_lines(done.errors) or "no reason given"
        if done.code == EXIT_PLAN_UNUSABLE:
            raise UnavailableError(reason)
        if done.code != 0:
            raise RunError(f"{program.name} ended with {done.code}: {reason}")
        return lambda: json.loads(done.output)


def _read(program: Path, report: Callable[[], Report]) -> Report:
    try:
        return report()
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{program.name} wrote no usable result: {error}") from error


def wanted(plan: Plan) -> tuple[PlanPath, Tcp]:
    """The path and the connection that a plan asks for.

    Raises:
        UnavailableError: when the plan has anything else.
    """
    flows = [traffic for traffic in plan.traffic if isinstance(traffic, Tcp)]
    one = len(flows) == 1 and flows[0] == Tcp(congestion=flows[0].congestion)
    if not isinstance(plan.carrier, Direct) or not one:
        raise UnavailableError(
            "ns-3 runs one TCP download from the start over one path without a tunnel, with the "
            "usual segments and window"
        )
    if flows[0].congestion == "bbr":
        raise UnavailableError("ns-3 is compared for NewReno and CUBIC only")
    path = paths_used(plan)[0]
    usual = Link(
        path.both.rate_mbit, delay_ms=path.both.delay_ms, queue_bytes=path.both.queue_bytes
    )
    if path.both != usual or path.down != Link(loss=path.down.loss) or path.up != Link():
        raise UnavailableError("ns-3 knows `both` with rate, delay and queue, and loss of `down`")
    if (
        path.change
        or path.leaving_s
        or None in (usual.rate_mbit, usual.delay_ms, usual.queue_bytes)
    ):
        raise UnavailableError("ns-3 needs rate, delay and queue in bytes")
    return path, flows[0]


def _arguments(cell: Cell, path: PlanPath, flow: Tcp) -> list[str]:
    values = {
        "rate": path.both.rate_mbit,
        "delay": path.both.delay_ms,
        "loss": path.down.loss or 0.0,
        "queue": path.both.queue_bytes,
        "seconds": cell.plan.duration_s,
        "warmup": cell.plan.warmup_s,
        "seed": cell.seed,
        "congestion": flow.congestion,
    }
    return [f"--{name}={value}" for name, value in values.items()]


def _report(cell: Cell, path: PlanPath, found: dict[str, Any]) -> Report:
    goodput = float(found["goodput_mbit"])
    rate = path.both.rate_mbit or 0.0
    flow = FlowReport(goodput, 0, broken=False)
    others = len(cell.plan.traffic) > 1
    return Report(
        plan=cell.plan.name,
        runner="ns3",
        seed=cell.seed,
        seconds=float(found["seconds"]),
        ceiling_mbit=rate * DIRECT_OVERHEAD,
        traffic=(TrafficReport("tcp", goodput, (), None, (flow,), None, None, None, None),),
        paths=(
            PathReport(
                path.name, int(found["bytes"]), int(found["dropped"]), int(found["lost"]), rate
            ),
        ),
        tunnel=None,
        trace_hash=None,
        packets=None,
        wall_seconds=0.0,
        notes=("the other traffic was left out",) if others else (),
    )
