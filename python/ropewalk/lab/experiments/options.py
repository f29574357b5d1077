"""What the user asks of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.lab.cell import RUNNERS, Cell, Mode, Runner
from ropewalk.lab.trace import TracePair, Window
from ropewalk.plan import Plan

SEEDS: dict[tuple[Mode, Runner], int] = {
    ("quick", "kernel"): 1,
    ("quick", "sim"): 1,
    ("quick", "ns3"): 1,
    ("quick", "ovs"): 1,
    ("full", "kernel"): 5,
    ("full", "sim"): 20,
    ("full", "ns3"): 10,
    ("full", "ovs"): 5,
}
"""Seeds unless the user says another number."""
SEEDS_MAX = 1000
"""That a user may ask for. `grid --full` then has two million cells, which take about 1 GB."""


@dataclass(frozen=True)
class Options:
    """`seeds` is for all runners; `None` takes what `SEEDS` says."""

    mode: Mode
    seeds: int | None = None
    runners: tuple[Runner, ...] = RUNNERS
    traces: tuple[TracePair, ...] = ()
    windows: tuple[Window, ...] = ()

    @property
    def quick(self) -> bool:
        """Whether a short look is enough."""
        return self.mode == "quick"

    @property
    def plan_runners(self) -> tuple[Runner, ...]:
        """The runners that take more than one connection over one path."""
        return tuple(runner for runner in self.runners if runner in ("kernel", "sim"))

    def count(self, runner: Runner) -> int:
        """Seeds for each case."""
        return SEEDS[self.mode, runner] if self.seeds is None else self.seeds


def expand(
    options: Options,
    experiment: str,
    cases: Sequence[tuple[tuple[str, ...], Plan]],
    runner: Runner,
    seeds: int | None = None,
    inputs: str = "",
) -> list[Cell]:
    """A cell for each case and seed, if this runner was asked for.

    Plans take their name from the case. Seeds are the outer loop in real time, so that an
    interrupted run has every case, and the inner one in simulators, which are fast.
    """
    if runner not in options.runners:
        return []
    count = options.count(runner) if seeds is None else seeds
    numbers = range(1, count + 1)
    if runner in ("kernel", "ovs"):
        pairs = [(case, seed) for seed in numbers for case in cases]
    else:
        pairs = [(case, seed) for case in cases for seed in numbers]
    return [Cell(experiment, key, plan, seed, runner, inputs) for (key, plan), seed in pairs]
