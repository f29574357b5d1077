"""What came of a plan: the report of `crates/plan`, parsed from JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NUMBER_MAX = 2.0**64
"""No figure of a report is greater. Sums and squares of such figures are finite."""


class ReportError(ValueError):
    """A report that cannot be read; the message names the key."""


@dataclass(frozen=True)
class Distribution:
    """A distribution, in the unit of the field that holds it."""

    count: int
    mean: float
    min: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution | None:
        """The distribution of some values; None of none. Quantiles are values that occur."""
        if not values:
            return None
        ordered = sorted(values)
        count = len(ordered)
        p50, p95, p99 = (ordered[min(count - 1, int(share * count))] for share in (0.5, 0.95, 0.99))
        return cls(count, math.fsum(ordered) / count, ordered[0], p50, p95, p99, ordered[-1])


@dataclass(frozen=True)
class Pause:
    """A time without new data, seconds after the start of the plan."""

    begin: float
    end: float


@dataclass(frozen=True)
class FlowReport:
    """One bulk connection."""

    goodput_mbit: float
    retransmits: int
    broken: bool
    pauses: tuple[Pause, ...] = ()
    delay_ms: Distribution | None = None
    """One-way delays of its data packets; only the simulator knows them."""
    delay_histogram_ms: tuple[tuple[float, int], ...] = ()
    """Upper ends of bins in ms and numbers of packets, where asked for."""


@dataclass(frozen=True)
class PageLoad:
    """One page in a browser, until its last object was there.

    `begin` is in seconds after the start of the plan; `reloads` is how often it was loaded again
    because objects were missing, which is in `seconds`.
    """

    page: int
    begin: float
    seconds: float
    flows: int
    objects: int
    bytes: int
    reloads: int


@dataclass(frozen=True)
class TrafficReport:
    """One `[[traffic]]` section of the plan."""

    kind: str
    goodput_mbit: float
    series_mbit: tuple[float, ...]
    longest_stall_seconds: float | None
    flows: tuple[FlowReport, ...]
    delay_ms: Distribution | None
    sent: int | None
    lost: int | None
    in_time: float | None
    pages: tuple[PageLoad, ...] = ()
    ceiling_mbit: float | None = None
    """Of bulk traffic: the part of the report's ceiling that is in its direction."""


@dataclass(frozen=True)
class PathReport:
    """One path or shared link, in the direction of the first bulk traffic."""

    name: str
    bytes: int
    dropped: int
    lost: int
    capacity_mbit: float
    delivered_bytes: int = 0
    """What left the link; `bytes` were offered to it."""
    dropped_aqm: int = 0
    """Packets that the queue's management dropped; `dropped` has those of the full queue."""
    marked: int = 0
    """Packets that the queue marked "congestion experienced"."""


@dataclass(frozen=True)
class BufferReport:
    """Packets in a buffer every half second: `link` and a path, or `send` and the path it feeds."""

    name: str
    packets: tuple[int, ...]


@dataclass(frozen=True)
class TunnelReport:
    """The receiving gateway."""

    delivered: int
    reordered: int
    held: int
    hold_timeouts: int
    late: int
    duplicates: int
    entry_drops: int
    buffer_drops: int
    recovered: int
    repairs: int
    combinations: int
    overhead: float
    reason: str


@dataclass(frozen=True)
class HandoverReport:
    """One move of a station. Times are from its arrival, None for what never came.

    `rtt_ms` is the round trip of the empty links, over the shorter of the ways before and after.
    Windows are the sender's, in segments: when the station left, and a round trip after the first
    new acknowledgement. `waited_ms`: how long switch and controller, ready to run, had no processor
    in the second after the arrival, all threads together. `had_ms` is how long there was to come
    back: until the next leaving, or until the sender gave up when it never came back at all.
    """

    gap_s: float
    notice_ms: float
    rtt_ms: float
    rerouted_ms: float | None
    sender_idle_ms: float | None
    receiver_idle_ms: float | None
    window_before: int
    window_after: int
    retransmits: int
    waited_ms: float
    had_ms: float = 0.0


@dataclass(frozen=True)
class Report:
    """Result of one run of one plan with one seed."""

    plan: str
    runner: str
    seed: int
    seconds: float
    ceiling_mbit: float
    traffic: tuple[TrafficReport, ...]
    paths: tuple[PathReport, ...]
    tunnel: TunnelReport | None
    trace_hash: str | None
    packets: int | None
    wall_seconds: float
    notes: tuple[str, ...]
    handovers: tuple[HandoverReport, ...] = ()
    buffers: tuple[BufferReport, ...] = ()
    """Simulator, gateways in a row only."""
    values: Mapping[str, float] = field(default_factory=dict)
    """What only this kind of run measures, by names that end in the unit."""
    links: tuple[PathReport, ...] = ()
    """One for each `[[link]]` of the plan."""

    def bulk(self) -> TrafficReport | None:
        """The first bulk traffic."""
        return next((t for t in self.traffic if t.kind in ("tcp", "quic")), None)

    def ping(self) -> TrafficReport | None:
        """The first ping traffic."""
        return next((t for t in self.traffic if t.kind == "ping"), None)

    def pages(self) -> tuple[PageLoad, ...]:
        """All pages that a browser loaded."""
        return tuple(page for traffic in self.traffic for page in traffic.pages)

    @property
    def goodput_mbit(self) -> float:
        """Goodput of all bulk traffic, Mbit/s."""
        return sum(t.goodput_mbit for t in self.traffic if t.kind in ("tcp", "quic"))

    @property
    def broken(self) -> int:
        """Connections that broke."""
        return sum(flow.broken for t in self.traffic for flow in t.flows)


class _Reader:
    """Typed access to a JSON object that names the key in every error."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise ReportError(f"{where}: not an object")
        self._value: Mapping[str, Any] = value
        self._where = where

    def number(self, key: str, default: float | None = None) -> float:
        found = self.optional(key)
        if found is None and default is not None:
            return default
        if found is None:
            raise ReportError(f"{self._where}.{key}: not a number")
        return found

    def optional(self, key: str) -> float | None:
        value = self._value.get(key)
        return None if value is None else _figure(value, f"{self._where}.{key}")

    def amount(self, key: str, default: float | None = None) -> float:
        return _amount(self.number(key, default), f"{self._where}.{key}")

    def figures(self, key: str) -> list[float]:
        return [_figure(item, f"{self._where}.{key}") for item in self.items(key)]

    def integer(self, key: str, default: int | None = 0) -> int:
        return int(self.number(key, default))

    def optional_integer(self, key: str) -> int | None:
        value = self.optional(key)
        return None if value is None else int(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise ReportError(f"{self._where}.{key}: not a text")
        return value

    def items(self, key: str) -> Sequence[Any]:
        value = self._value.get(key) or ()
        if not isinstance(value, list | tuple):
            raise ReportError(f"{self._where}.{key}: not a list")
        return value

    def readers(self, key: str) -> list[_Reader]:
        return [
            _Reader(item, f"{self._where}.{key}[{index}]")
            for index, item in enumerate(self.items(key))
        ]

    def reader(self, key: str) -> _Reader | None:
        value = self._value.get(key)
        return None if value is None else _Reader(value, f"{self._where}.{key}")

    def numbers(self, key: str) -> dict[str, float]:
        reader = self.reader(key)
        return {} if reader is None else {name: reader.number(name) for name in reader._value}

    def truth(self, key: str) -> bool:
        return self._value.get(key, False) is True


def _figure(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReportError(f"{where}: not a number")
    # Not a number is in no order with any.
    if not abs(value) <= NUMBER_MAX:
        raise ReportError(f"{where}: not finite, or too large")
    return value


def _amount(value: float, where: str) -> float:
    if value < 0:
        raise ReportError(f"{where}: less than nothing")
    return value


def parse(value: object) -> Report:
    """Reads one report.

    Raises:
        ReportError: when a key is missing or of the wrong kind.
    """
    reader = _Reader(value, "report")
    tunnel = reader.reader("tunnel")
    return Report(
        plan=reader.text("plan"),
        runner=reader.text("runner"),
        seed=reader.integer("seed", None),
        seconds=reader.amount("seconds"),
        ceiling_mbit=reader.amount("ceiling_mbit"),
        traffic=tuple(_traffic(item) for item in reader.readers("traffic")),
        paths=tuple(_path(item) for item in reader.readers("paths")),
        tunnel=None if tunnel is None else _tunnel(tunnel),
        trace_hash=reader.text("trace_hash", "") or None,
        packets=reader.optional_integer("packets"),
        wall_seconds=reader.number("wall_seconds", 0.0),
        notes=tuple(str(note) for note in reader.items("notes")),
        handovers=tuple(_handover(item) for item in reader.readers("handovers")),
        buffers=tuple(_buffer(item) for item in reader.readers("buffers")),
        values=reader.numbers("values"),
        links=tuple(_path(item) for item in reader.readers("links")),
    )


def _buffer(reader: _Reader) -> BufferReport:
    return BufferReport(
        name=reader.text("name"),
        packets=tuple(int(count) for count in reader.figures("packets")),
    )


def _handover(reader: _Reader) -> HandoverReport:
    return HandoverReport(
        gap_s=reader.number("gap_s"),
        notice_ms=reader.number("notice_ms"),
        rtt_ms=reader.number("rtt_ms"),
        rerouted_ms=reader.optional("rerouted_ms"),
        sender_idle_ms=reader.optional("sender_idle_ms"),
        receiver_idle_ms=reader.optional("receiver_idle_ms"),
        window_before=reader.integer("window_before"),
        window_after=reader.integer("window_after"),
        retransmits=reader.integer("retransmits"),
        waited_ms=reader.number("waited_ms", 0.0),
        had_ms=reader.number("had_ms", 0.0),
    )


def _traffic(reader: _Reader) -> TrafficReport:
    return TrafficReport(
        kind=reader.text("kind"),
        goodput_mbit=reader.amount("goodput_mbit", 0.0),
        series_mbit=tuple(float(value) for value in reader.figures("series_mbit")),
        longest_stall_seconds=reader.optional("longest_stall_seconds"),
        flows=tuple(
            FlowReport(
                flow.amount("goodput_mbit"),
                flow.integer("retransmits"),
                flow.truth("broken"),
                tuple(
                    Pause(pause.number("begin"), pause.number("end"))
                    for pause in flow.readers("pauses")
                ),
                _optional_distribution(flow),
                _histogram(flow),
            )
            for flow in reader.readers("flows")
        ),
        delay_ms=_optional_distribution(reader),
        sent=reader.optional_integer("sent"),
        lost=reader.optional_integer("lost"),
        in_time=reader.optional("in_time"),
        pages=tuple(
            PageLoad(
                page.integer("page"),
                page.number("begin"),
                page.number("seconds"),
                page.integer("flows"),
                page.integer("objects"),
                page.integer("bytes"),
                page.integer("reloads"),
            )
            for page in reader.readers("pages")
        ),
        ceiling_mbit=reader.optional("ceiling_mbit"),
    )


def _histogram(reader: _Reader) -> tuple[tuple[float, int], ...]:
    where = "delay_histogram_ms"
    bins = reader.items(where)
    if not all(isinstance(row, list | tuple) and len(row) == 2 for row in bins):
        raise ReportError(f"{where}: not pairs of a bin's end and a number of packets")
    return tuple((_figure(end, where), int(_figure(count, where))) for end, count in bins)


def _optional_distribution(reader: _Reader) -> Distribution | None:
    delay = reader.reader("delay_ms")
    return None if delay is None else _distribution(delay)


def _distribution(reader: _Reader) -> Distribution:
    return Distribution(
        reader.integer("count"),
        *(reader.number(key) for key in ("mean", "min", "p50", "p95", "p99", "max")),
    )


def _path(reader: _Reader) -> PathReport:
    return PathReport(
        name=reader.text("name"),
        bytes=reader.integer("bytes"),
        dropped=reader.integer("dropped"),
        lost=reader.integer("lost"),
        capacity_mbit=reader.number("capacity_mbit", 0.0),
        delivered_bytes=reader.integer("delivered_bytes", 0),
        dropped_aqm=reader.integer("dropped_aqm", 0),
        marked=reader.integer("marked", 0),
    )


def _tunnel(reader: _Reader) -> TunnelReport:
    return TunnelReport(
        delivered=reader.integer("delivered"),
        reordered=reader.integer("reordered"),
        held=reader.integer("held"),
        hold_timeouts=reader.integer("hold_timeouts"),
        late=reader.integer("late"),
        duplicates=reader.integer("duplicates"),
        entry_drops=reader.integer("entry_drops"),
        buffer_drops=reader.integer("buffer_drops", 0),
        recovered=reader.integer("recovered", 0),
        repairs=reader.integer("repairs", 0),
        combinations=reader.integer("combinations", 0),
        overhead=reader.number("overhead", 0.0),
        reason=reader.text("reason", ""),
    )
