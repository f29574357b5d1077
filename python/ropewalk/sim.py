"""The simulator: plans in, arrays out, and schedulers written in Python.

    from ropewalk import sim

    results = sim.run("plan.toml", seeds=20)
    print(results.goodput_mbit.mean())

The same plan and seed give the same result on every machine. A run holds no lock on the
interpreter, except while it asks a scheduler in Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as error:
    raise ImportError(f"{error}; install the package with its extra: '.[lab]'") from error

from ropewalk import report as reports
from ropewalk._native import Head, PathView, run_json, run_scheduler, version
from ropewalk.plan import Plan, dumps
from ropewalk.report import Report

__all__ = ["Head", "PathView", "Results", "Scheduler", "run", "version"]

Floats: TypeAlias = NDArray[np.float64]

DELAY_COLUMNS = ("mean", "min", "p50", "p95", "p99", "max")


class Scheduler(Protocol):
    """Chooses paths in a run, for the gateway that sends the first bulk traffic."""

    def pick(self, now: float, head: Head, paths: Sequence[PathView]) -> int | Iterable[int] | None:
        """Where the packet `head` goes: a path's `id`, several to send copies, `None` to wait.

        `now` is in seconds. A path without room for the packet makes its flow wait until it has
        some; a flow that waits is asked about again when any path gains room.
        """


@dataclass(frozen=True)
class Results:
    """Reports of one plan, one for each seed, and what they say as arrays."""

    reports: tuple[Report, ...]

    def __len__(self) -> int:
        return len(self.reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __getitem__(self, index: int) -> Report:
        return self.reports[index]

    @property
    def seeds(self) -> NDArray[np.int64]:
        """The seeds, in the order of everything else."""
        return np.array([report.seed for report in self.reports], dtype=np.int64)

    @property
    def goodput_mbit(self) -> Floats:
        """Goodput of all bulk traffic, Mbit/s, by seed."""
        return np.array([report.goodput_mbit for report in self.reports], dtype=np.float64)

    @property
    def ceiling_mbit(self) -> Floats:
        """What the paths in use allow, Mbit/s, by seed."""
        return np.array([report.ceiling_mbit for report in self.reports], dtype=np.float64)

    def flows_mbit(self, traffic: int = 0) -> Floats:
        """Goodput of each connection of a `[[traffic]]` section, Mbit/s: seeds × flows."""
        rows = [[f.goodput_mbit for f in report.traffic[traffic].flows] for report in self.reports]
        return np.array(rows, dtype=np.float64)

    def series_mbit(self, traffic: int = 0) -> Floats:
        """Goodput of a section in each second, Mbit/s, the warm-up included: seeds × seconds."""
        rows = [report.traffic[traffic].series_mbit for report in self.reports]
        return np.array(rows, dtype=np.float64)

    def delay_ms(self, traffic: int) -> Floats:
        """Delays of a ping, call or web section, ms: seeds × `DELAY_COLUMNS`.

        Rows of seeds in which nothing came back are not numbers.
        """
        delays = [report.traffic[traffic].delay_ms for report in self.reports]
        rows = [
            [np.nan if delay is None else getattr(delay, column) for column in DELAY_COLUMNS]
            for delay in delays
        ]
        return np.array(rows, dtype=np.float64)


def run(
    plan: Plan | Mapping[str, Any] | str | Path,
    seeds: int | Iterable[int] = 1,
    threads: int = 0,
    scheduler: Callable[[], Scheduler] | None = None,
) -> Results:
    """Runs a plan once for each seed.

    Args:
        plan: A `Plan`, its keys as a dictionary, its text as TOML, or the file it is in. A text
            of one line is taken for a file name.
        seeds: That many seeds from 1 on, or the seeds themselves, each 0 or more.
        threads: Runs at the same time; 0 is one for each core. Has no part in the results.
        scheduler: Makes a scheduler for each run, to be asked instead of the plan's; a class will
            do. Runs then go one after the other.

    Raises:
        ValueError: When the plan cannot be run; the message names the key.
        OSError: When the file cannot be read.
    """
    text, folder = _read(plan)
    numbers = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise ValueError("seeds: give at least one")
    if scheduler is None:
        found = run_json(text, numbers, threads, folder)
    else:
        found = run_scheduler(text, numbers, scheduler, folder)
    return Results(tuple(reports.parse(report) for report in json.loads(found)))


def _read(plan: Plan | Mapping[str, Any] | str | Path) -> tuple[str, str | None]:
    """The text of a plan, and the folder that its traces start from."""
    if isinstance(plan, Plan):
        return plan.to_toml(), None
    if isinstance(plan, Mapping):
        return dumps(plan), None
    if isinstance(plan, str) and "\n" in plan:
        return plan, None
    file = Path(plan)
    return file.read_text(), str(file.parent)
