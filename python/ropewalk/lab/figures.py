"""Charts as inline SVG that takes its colours from the page, which may be light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_INK, _MUTED, _LINE = "#000001", "#000002", "#000003"
_SERIES = tuple(f"#0000f{index}" for index in range(1, 9))
_VARIABLES = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _LINE: "var(--line)",
    **{colour: f"var(--c{index})" for index, colour in enumerate(_SERIES, 1)},
}
_WIDTH_INCHES = 7.2
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ropewalk",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "grid.color": _LINE,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Figure:
    """A chart with what it says; `svg` is ready to stand in a page."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Bar:
    """Height of a bar, and its confidence interval if it has one."""

    value: float
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> tuple[float, float]:
        """How far the interval reaches below and above the height."""
        if self.interval is None:
            return 0.0, 0.0
        low, high = self.interval
        return max(0.0, self.value - low), max(0.0, high - self.value)


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[Bar | None]],
    unit: str,
    marks: Sequence[float | None] = (),
    marks_label: str = "paper",
) -> str:
    """Groups of horizontal bars, one colour a series; `marks` stand at one value of each group.

    A bar that is `None` was not measured and stays away, and so does a group or a series without
    any bar.
    """
    shown = [
        row for row in range(len(groups)) if any(_has(found, row) for found in series.values())
    ]
    groups = [groups[row] for row in shown]
    marks = [marks[row] for row in shown] if marks else ()
    series = {
        name: [found[row] for row in shown]
        for name, found in series.items()
        if any(_has(found, row) for row in shown)
    }
    height = 0.9 + sum(0.16 * len(series) + 0.16 for _ in groups)
    canvas, axes = _canvas(height)
    step = 0.84 / max(1, len(series))
    for index, (name, values) in enumerate(series.items()):
        rows = [row for row, value in enumerate(values) if value is not None]
        found = [value for value in values if value is not None]
        if not found:
            continue
        axes.barh(
            [row - 0.42 + step * (index + 0.5) for row in rows],
            [bar.value for bar in found],
            height=step * 0.9,
            xerr=_errors(found),
            error_kw={"ecolor": _INK, "elinewidth": 0.8},
            color=_SERIES[index % len(_SERIES)],
            label=name,
        )
    known = [(mark, row) for row, mark in enumerate(marks) if mark is not None]
    if known:
        axes.vlines(
            [mark for mark, _ in known],
            [row - 0.46 for _, row in known],
            [row + 0.46 for _, row in known],
            colors=_INK,
            linewidth=2,
            label=marks_label,
        )
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel(unit)
    axes.grid(axis="x")
    return _svg(canvas, axes)


def _has(values: Sequence[object], row: int) -> bool:
    return row < len(values) and values[row] is not None


def _errors(found: Sequence[Bar]) -> list[list[float]] | None:
    """As matplotlib wants them: all below, all above."""
    if all(bar.interval is None for bar in found):
        return None
    return [[bar.error[0] for bar in found], [bar.error[1] for bar in found]]


def dots(
    rows: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    line: float | None = None,
) -> str:
    """One row a case, one mark a series; `line` is the target. Rows without a mark stay away."""
    shown = [row for row in range(len(rows)) if any(_has(found, row) for found in series.values())]
    rows = [rows[row] for row in shown]
    series = {name: [found[row] for row in shown] for name, found in series.items()}
    canvas, axes = _canvas(0.9 + 0.24 * len(rows))
    for index, (name, values) in enumerate(series.items()):
        points = [(value, row) for row, value in enumerate(values) if value is not None]
        if not points:
            continue
        axes.scatter(
            [value for value, _ in points],
            [row for _, row in points],
            s=26,
            marker="os^Dvph*"[index % 8],
            color=_SERIES[index % len(_SERIES)],
            label=name,
        )
    if line is not None:
        axes.axvline(line, color=_INK, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(unit)
    axes.grid()
    return _svg(canvas, axes)


def lines(
    series: Mapping[str, Sequence[float]],
    unit: str,
    spans: Sequence[tuple[float, float, str]] = (),
    level: float | None = None,
) -> str:
    """Values second by second; `spans` are marked times, `level` a horizontal line."""
    canvas, axes = _canvas(3.0)
    for index, (name, values) in enumerate(series.items()):
        times = [second + 0.5 for second in range(len(values))]
        axes.plot(times, values, color=_SERIES[index % len(_SERIES)], linewidth=1.4, label=name)
    for begin, end, name in spans:
        axes.axvspan(begin, end, color=_LINE, alpha=0.6, label=name, linewidth=0)
    if level is not None:
        axes.axhline(level, color=_INK, linewidth=1, linestyle="--")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel(unit)
    axes.grid()
    return _svg(canvas, axes)


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    across: str,
    unit: str,
    bound: Sequence[tuple[float, float]] = (),
) -> str:
    """Points joined by lines; `bound` is a dashed line. Series without points stay away."""
    canvas, axes = _canvas(3.0)
    for index, (name, points) in enumerate(series.items()):
        if not points:
            continue
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=_SERIES[index % len(_SERIES)],
            marker="os^Dvph*"[index % 8],
            markersize=4,
            linewidth=1.4,
            label=name,
        )
    if bound:
        axes.plot(
            [x for x, _ in bound], [y for _, y in bound], color=_INK, linewidth=1, linestyle="--"
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.grid()
    return _svg(canvas, axes)


def distributions(series: Mapping[str, Sequence[float]], across: str) -> str:
    """The cumulative distribution of each series. Those without values stay away."""
    canvas, axes = _canvas(3.0)
    for index, (name, values) in enumerate(series.items()):
        if not values:
            continue
        shares = [rank / len(values) for rank in range(len(values) + 1)]
        ordered = sorted(values)
        axes.step(
            [ordered[0], *ordered],
            shares,
            where="post",
            color=_SERIES[index % len(_SERIES)],
            linewidth=1.4,
            label=name,
        )
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.set_xlabel(across)
    axes.set_ylabel("share")
    axes.grid()
    return _svg(canvas, axes)


def _canvas(height_inches: float) -> tuple[Canvas, Axes]:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(_SETTINGS):
        canvas = Canvas(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.add_subplot()
    return canvas, axes


def _svg(canvas: Canvas, axes: Axes) -> str:
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        _, labels = axes.get_legend_handles_labels()
        if len(labels) > 1:
            canvas.legend(loc="outside upper center", ncols=4, fontsize=8)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue())


def _inline(svg: str) -> str:
    """An SVG file as part of a page: no prologue, no metadata, no addresses, the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    return svg
