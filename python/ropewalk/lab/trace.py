"""Recorded capacities: finds those recorded together, and when all are at zero."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OPPORTUNITY_BYTES = 1504
_GAP_MIN_SECONDS = 0.1
"""Opportunities further apart than this make a time without capacity."""

_MOST = {1: (1e9,), 2: (1e6, 1e11)}
"""The greatest milliseconds; the greatest second and bytes per second, as in `crates/netem`."""

_PAIRS_WANTED = (
    "put P_T_wifi.csv beside P_T_cellular.csv, or NAME.down beside NAME.up for two recordings"
)
_WINDOWS_WANTED = (
    "put WINDOW_NETWORK.csv of two or more networks with the same WINDOW in one directory"
)

Interval = tuple[float, float]


class TraceError(ValueError):
    """A trace that cannot be used; the message names file and line."""


class NoCapacityError(TraceError):
    """A trace without capacity at any time."""


@dataclass(frozen=True)
class Trace:
    """One recorded capacity: its file, its length, the times without any, and its mean."""

    file: str
    seconds: float
    zeros: tuple[Interval, ...]
    mean_mbit: float


@dataclass(frozen=True)
class TracePair:
    """Two paths recorded together. Up and down differ for Mahimahi, not for the CSV files."""

    name: str
    a_down: Trace
    a_up: Trace
    b_down: Trace
    b_up: Trace
    digest: str

    @property
    def seconds(self) -> float:
        """How long both are recorded."""
        return min(self.a_down.seconds, self.b_down.seconds)

    def both_zero(self, begin: float, end: float) -> float:
        """The longest time between `begin` and `end` in which neither path has capacity down."""
        return all_zero((self.a_down, self.b_down), begin, end)


@dataclass(frozen=True)
class Window:
    """What several networks carried at the same time and place, in one direction.

    `networks` are in order of their names; those without capacity at any time are left out.
    """

    name: str
    networks: tuple[tuple[str, Trace], ...]
    digest: str

    @property
    def seconds(self) -> float:
        """How long all are recorded."""
        return min(trace.seconds for _, trace in self.networks)


def all_zero(traces: Sequence[Trace], begin: float, end: float) -> float:
    """The longest time between `begin` and `end` in which none of the traces has capacity."""
    common: list[Interval] = [(begin, end)]
    for trace in traces:
        overlaps = (
            (max(zero[0], other[0]), min(zero[1], other[1]))
            for zero in trace.zeros
            for other in common
        )
        common = [(first, last) for first, last in overlaps if first < last]
    return max((last - first for first, last in common), default=0.0)


@dataclass(frozen=True)
class Recordings:
    """What a directory has."""

    pairs: tuple[TracePair, ...] = ()
    windows: tuple[Window, ...] = ()

    def need(self, experiment: str, directory: Path) -> None:
        """Raises TraceError when there is not what the experiment is about."""
        radio = experiment == "radio"
        if not (self.windows if radio else self.pairs):
            how = _WINDOWS_WANTED if radio else _PAIRS_WANTED
            raise TraceError(f"{directory} has no recordings for it: {how}")


def find(directory: Path, experiment: str | None = None) -> Recordings:
    """The recordings for an experiment, or all, in a directory and in the directories in it.

    Only `radio` reads files of any names, so only `radio` trips over files of something else.

    Raises:
        TraceError: when one cannot be read.
    """
    pairs = () if experiment == "radio" else tuple(discover(directory))
    return Recordings(pairs, tuple(windows(directory)) if experiment in (None, "radio") else ())


def windows(directory: Path) -> list[Window]:
    """Every group of recordings `WINDOW_NETWORK.csv` of one directory with equal `WINDOW`.

    Groups with fewer than two networks that have capacity are left out.

    Raises:
        TraceError: when a recording cannot be read.
    """
    groups: dict[Path, list[Path]] = {}
    for file in sorted(directory.rglob("*_*.csv"), key=_natural):
        groups.setdefault(file.with_name(file.stem.rpartition("_")[0]), []).append(file)
    found = []
    for group, files in groups.items():
        networks = []
        for file in files if len(files) > 1 else ():
            with suppress(NoCapacityError):
                networks.append((file.stem.rpartition("_")[2], read(file)))
        if len(networks) > 1:
            found.append(Window(group.name, tuple(networks), _digest(files)))
    return found


def discover(directory: Path) -> list[TracePair]:
    """Every pair in a directory and in the directories in it.

    Pairs are `P_T_wifi.csv` with `P_T_cellular.csv`, and each two neighbours, by name, of the
    Mahimahi recordings `NAME.down` with `NAME.up`.

    Raises:
        TraceError: when one cannot be read.
    """
    pairs = []
    for wifi in sorted(directory.rglob("*_wifi.csv"), key=_natural):
        cellular = wifi.with_name(wifi.name.replace("_wifi", "_cellular"))
        if cellular.is_file():
            name = wifi.name.removesuffix("_wifi.csv")
            pairs.append(_pair(name, (wifi, wifi, cellular, cellular)))
    recordings = [p for p in sorted(directory.rglob("*.down")) if p.with_suffix(".up").is_file()]
    for first, second in zip(recordings[::2], recordings[1::2], strict=False):
        files = (first, first.with_suffix(".up"), second, second.with_suffix(".up"))
        pairs.append(_pair(f"{first.stem}+{second.stem}", files))
    return pairs


def read(file: Path) -> Trace:
    """Reads `second,bytes per second` or Mahimahi's milliseconds, as the simulator does.

    Raises:
        TraceError: when a line is neither, times go backwards, or there is no capacity.
    """
    rows: list[list[float]] = []
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{file}: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            rows.append(_row(line, rows))
        except ValueError as error:
            raise TraceError(f"{file}, line {number}: {error}") from error
    if not rows or rows[-1] == [0] or not any(row[-1] for row in rows):
        raise NoCapacityError(f"{file}: it has no capacity at any time")
    if len(rows[0]) == 2:
        return _rates(str(file.resolve()), rows)
    return _opportunities(str(file.resolve()), [row[0] / 1000 for row in rows])


def _row(line: str, before: list[list[float]]) -> list[float]:
    """The figures in a line; raises ValueError when they do not fit those before."""
    row = [float(cell) for cell in line.split(",")]
    if len(row) not in (1, 2) or (before and len(row) != len(before[0])):
        raise ValueError("one number a line, or `second,bytes per second` on every line")
    # What is not a number is in no range.
    if not all(0 <= value <= most for value, most in zip(row, _MOST[len(row)], strict=True)):
        raise ValueError(f"`{line.strip()}` is out of range")
    if len(row) == 1 and not row[0].is_integer():
        raise ValueError(f"`{line.strip()}` is not a time in whole milliseconds")
    # Several opportunities may be at the same time.
    if before and (row[0] < before[-1][0] or (row[0] == before[-1][0] and len(row) == 2)):
        raise ValueError(f"{row[0]:g} follows {before[-1][0]:g}; sort the lines by time")
    return row


def _rates(file: str, rows: list[list[float]]) -> Trace:
    first = rows[0][0]
    # The last line lasts as long as the one before it; a lone line lasts a second.
    last = rows[-1][0] - rows[-2][0] if len(rows) > 1 else 1.0
    times = [row[0] - first for row in rows] + [rows[-1][0] - first + last]
    zeros: list[Interval] = []
    carried = 0.0
    for (_, rate), begin, end in zip(rows, times, times[1:], strict=False):
        carried += rate * (end - begin)
        # Less than one full packet a second is nothing to a tunnel.
        if rate >= OPPORTUNITY_BYTES:
            continue
        joins = zeros and zeros[-1][1] == begin
        zeros.append((zeros.pop()[0] if joins else begin, end))
    return Trace(file, times[-1], tuple(zeros), carried * 8e-6 / times[-1])


def _opportunities(file: str, times: list[float]) -> Trace:
    gaps = zip([0.0, *times], times, strict=False)
    zeros = tuple(gap for gap in gaps if gap[1] - gap[0] > _GAP_MIN_SECONDS)
    return Trace(file, times[-1], zeros, len(times) * OPPORTUNITY_BYTES * 8e-6 / times[-1])


def _pair(name: str, files: tuple[Path, Path, Path, Path]) -> TracePair:
    a_down, a_up, b_down, b_up = (read(file) for file in files)
    return TracePair(name, a_down, a_up, b_down, b_up, _digest(files))


def _digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _natural(path: Path) -> list[int | str]:
    """Orders `7_1` before `11_1`."""
    parts = re.split(r"(\d+)", path.name)
    return [int(part) if part.isdigit() else part for part in parts]
