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
from ropewalk._native import (
    Head,
    PathView,
    plan_seed,
    run_json,
    run_recorded,
    run_scheduler,
    version,
)
from ropewalk.plan import Plan, dumps
from ropewalk.report import Distribution, Report

__all__ = ["Head", "PathView", "Results", "Scheduler", "read_events", "run", "version"]

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
        """Delays of a section, ms: seeds × `DELAY_COLUMNS`.

        Round trips of a ping, one-way delays of a call and of the data packets of bulk traffic,
        load times of pages. Rows of seeds in which nothing came back are not numbers.
        """
        delays = [report.traffic[traffic].delay_ms for report in self.reports]
        return np.array([_row(delay) for delay in delays], dtype=np.float64)

    def flows_delay_ms(self, traffic: int = 0) -> Floats:
        """One-way delays of each bulk flow's data packets, ms: seeds × flows × `DELAY_COLUMNS`."""
        rows = [
            [_row(f.delay_ms) for f in report.traffic[traffic].flows] for report in self.reports
        ]
        return np.array(rows, dtype=np.float64)

    def delay_histogram_ms(self, traffic: int = 0) -> Floats:
        """Delays of all data packets of a bulk section in all seeds: bins × 2.

        A bin is its upper end in ms, and how many packets are in it. Empty unless the runs were
        made with `histograms=True`.
        """
        total: dict[float, int] = {}
        for report in self.reports:
            for flow in report.traffic[traffic].flows:
                for end, packets in flow.delay_histogram_ms:
                    total[end] = total.get(end, 0) + packets
        return np.array(sorted(total.items()), dtype=np.float64).reshape(-1, 2)


def _row(delay: Distribution | None) -> list[float]:
    return [np.nan if delay is None else getattr(delay, column) for column in DELAY_COLUMNS]


def run(
    plan: Plan | Mapping[str, Any] | str | Path,
    seeds: int | Iterable[int] = 1,
    threads: int = 0,
    scheduler: Callable[[], Scheduler] | None = None,
    histograms: bool = False,
    events: str | Path | None = None,
    pcap: str | Path | None = None,
) -> Results:
    """Runs a plan once for each seed.

    Args:
        plan: A `Plan`, its keys as a dictionary, its text as TOML, or the file it is in. A text
            of one line is taken for a file name.
        seeds: That many seeds, the plan's and those after it, as `ropewalk-sim run --seeds`; or
            the seeds themselves, each 0 or more.
        threads: Runs at the same time; 0 is one for each core. Has no part in the results.
        scheduler: Makes a scheduler for each run, to be asked instead of the plan's; a class will
            do. Runs then go one after the other. Only the carrier `Tunnel` asks one.
        histograms: Whether `Results.delay_histogram_ms` has something.
        events: File that gets an event for each packet, for `read_events`; one seed only.
        pcap: Directory that gets the packets of each interface, for tcpdump; one seed only.

    Raises:
        ValueError: When the plan cannot be run; the message names the key. Also when the scheduler
            answers a path that is not there.
        TypeError: When the scheduler answers anything but a path, several, or None.
        OSError: When the file cannot be read, or events or packets cannot be written; the message
            names the file.
    """
    text, folder = _read(plan)
    numbers = _seeds(seeds, text)
    if threads < 0:
        raise ValueError(f"threads: {threads} is less than 0, which is one for each core")
    if events is not None or pcap is not None:
        if len(numbers) != 1:
            raise ValueError(f"events, pcap: give one seed, not {len(numbers)}")
        outputs = (None if events is None else str(events), None if pcap is None else str(pcap))
        found = run_recorded(text, numbers[0], scheduler, outputs, folder, histograms)
    elif scheduler is None:
        found = run_json(text, numbers, threads, folder, histograms)
    else:
        found = run_scheduler(text, numbers, scheduler, folder, histograms)
    return Results(tuple(reports.parse(report) for report in json.loads(found)))


SEEDS_MAX = 1_000_000
"""Runs of one call: a report takes some kilobytes of memory."""
EVENTS_SCHEMA = "ropewalk-sim-events"
EVENTS_VERSION = 1


def read_events(file: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a run, in the order of time; the page on the simulator lists their members.

    Raises:
        ValueError: When the file has no events, or those of another version.
    """
    with Path(file).open() as lines:
        header = json.loads(next(lines, "{}"))
        if (header.get("schema"), header.get("version")) != (EVENTS_SCHEMA, EVENTS_VERSION):
            raise ValueError(f"{file}: not events of version {EVENTS_VERSION}; run the plan again")
        for line in lines:
            yield json.loads(line)


def _seeds(seeds: int | Iterable[int], plan: str) -> list[int]:
    """The seeds themselves, in their order."""
    if isinstance(seeds, int):
        if not 0 < seeds <= SEEDS_MAX:
            raise ValueError(f"seeds: give 1 to {SEEDS_MAX}, not {seeds}")
        first = plan_seed(plan)
        numbers = list(range(first, first + seeds))
    else:
        numbers = list(seeds)
    if not numbers:
        raise ValueError("seeds: give at least one")
    for number in numbers:
        if not 0 <= number < 2**64:
            raise ValueError(f"seeds: {number} is no seed: use 0 to 2^64 - 1")
    return numbers


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
