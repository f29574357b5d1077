"""One page with everything: claims, figures, every cell, and what they depend on.

The page holds its style and its charts; it loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from ropewalk.lab.cell import Outcome, Results
from ropewalk.lab.claims import Claim, Verdict, number, tally, worst_first
from ropewalk.lab.experiments import Experiment
from ropewalk.lab.figures import Figure
from ropewalk.lab.store import Session
from ropewalk.report import Report

BUSY = 0.95
"""Above this share of busy processors, a kernel run may have measured the machine."""
_CLASSES: dict[Verdict, str] = {
    "not ok": "bad",
    "undecided": "none",
    "no data": "none",
    "ok": "good",
    "no target": "",
}
"""The classes of report.css by verdict."""


def page(
    session: Session,
    experiment: Experiment,
    claims: Sequence[Claim],
    figures: Sequence[Figure],
    results: Results,
) -> str:
    """The page."""
    body = [
        f"<h1>{escape(experiment.TITLE)}</h1>",
        f'<p class="muted">{escape(session.experiment)}, {session.mode}, '
        f"{escape(session.began)}, source {escape(session.source)}</p>",
        f"<p>{escape(experiment.ABOUT)}</p>",
        counts(tally(claims), results.outcomes),
        "<h2>Claims, the worst first</h2>",
        claims_table(worst_first(claims)),
        *([f"<h2>Figures</h2>{figures_of(figures)}"] if figures else []),
        _failures(results.outcomes),
        "<h2>Every cell</h2>",
        _cells(results.outcomes),
        "<h2>Assumptions</h2>",
        "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in experiment.ASSUMPTIONS) + "</ul>",
        "<h2>Where it comes from</h2>",
        _provenance(session),
    ]
    return document(experiment.TITLE, body)


def document(title: str, body: Sequence[str]) -> str:
    """A whole page with the style of all pages of the laboratory."""
    style = files("ropewalk.lab").joinpath("report.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def counts(verdicts: Mapping[Verdict, int], outcomes: Sequence[Outcome] | None = None) -> str:
    """How many claims have each verdict, and how many cells have a result."""
    boxes = [(verdict, _CLASSES[verdict], count) for verdict, count in verdicts.items()]
    items = [
        f'<li><b class="{kind if count else ""}">{count}</b>{escape(name)}</li>'
        for name, kind, count in boxes
    ]
    if outcomes is not None:
        ok = sum(o.status == "ok" for o in outcomes)
        lacking = len(outcomes) - ok
        items.append(f"<li><b>{ok}</b>cells with a result</li>")
        items.append(f'<li><b class="{"none" if lacking else ""}">{lacking}</b>cells without</li>')
    return f'<ul class="counts">{"".join(items)}</ul>'


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims in their order. Without any published figure there is no column for them."""
    published = any(row.paper is not None for row in claims)
    rows = []
    for row in claims:
        interval = ""
        if row.interval is not None:
            interval = f"{number(row.interval[0])} to {number(row.interval[1])}"
        rows.append(
            [
                _verdict(row),
                escape(row.name)
                + (f' <span class="muted">{escape(row.note)}</span>' * bool(row.note)),
                _n(number(row.measured)),
                _n(interval),
                _n(row.wanted()),
                *([_n(number(row.paper) if row.paper is not None else "")] if published else []),
                escape(row.unit),
                _n(str(row.seeds)),
            ]
        )
    head = [
        *("", "claim", "measured", "95 % interval", "target"),
        *(["published"] if published else []),
        *("unit", "seeds"),
    ]
    return _table(head, rows)


def _verdict(row: Claim) -> str:
    verdict = row.verdict
    if verdict == "no target":
        return ""
    mean = ""
    if verdict == "undecided":
        mean = f'<br><span class="muted">mean {"meets" if row.mean_meets else "misses"}</span>'
    return f'<span class="{_CLASSES[verdict]}">{verdict}</span>{mean}'


def figures_of(figures: Sequence[Figure]) -> str:
    """Charts with their titles and captions."""
    return "\n".join(
        f"<figure><h3>{escape(figure.title)}</h3>"
        f'<div class="plot">{figure.svg}</div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        for figure in figures
    )


def _failures(outcomes: Sequence[Outcome]) -> str:
    """Cells without a result, and cells that needed a second attempt, with their reasons."""
    rows = [
        [
            f'<span class="{"none" if o.status in ("ok", "missing") else "bad"}">'
            f"{'second attempt' if o.status == 'ok' else o.status}</span>",
            escape(o.cell.label),
            escape(o.reason),
        ]
        for o in outcomes
        if o.status != "ok" or o.attempts > 1
    ]
    if not rows:
        return ""
    body = _table(("", "cell", "reason"), rows)
    return (
        "<h2>Cells that failed, once or for good</h2>"
        f"<details open><summary>{len(rows)} cells</summary>{body}</details>"
    )


def _cells(outcomes: Sequence[Outcome]) -> str:
    """One row a case; the goodputs of its seeds stand side by side, in their order."""
    cases: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        cases.setdefault(("/".join(cell.key), cell.runner), []).append(outcome)
    rows = []
    for (case, runner), found in cases.items():
        found.sort(key=lambda outcome: outcome.cell.seed)
        reports = [o.report for o in found if o.report is not None]
        ratios = [r.goodput_mbit / r.ceiling_mbit for r in reports if r.ceiling_mbit > 0]
        pings = [p.delay_ms.p95 for r in reports if (p := r.ping()) is not None and p.delay_ms]
        busy = [float(o.provenance.get("cpu_busy", 0.0)) for o in found if o.report is not None]
        notes = dict.fromkeys(
            note for report in reports for note in (*report.notes, *_more(report))
        )
        worst = max(busy, default=0.0)
        rows.append(
            [
                escape(case),
                runner,
                " ".join(_seed(outcome) for outcome in found),
                _n(number(_mean(ratios))),
                _n(number(_mean(pings))),
                _n(f'<span class="{"bad" if worst > BUSY and runner in ("kernel", "ovs") else ""}">'
                   f"{worst:.0%}</span>"),
                escape("; ".join(notes)),
            ]
        )  # fmt: skip
    head = ("case", "runner", "Mbit/s, seed by seed", "of ceiling", "ping p95, ms", "CPU", "notes")
    legend = (
        f'<p class="muted">CPU: the most that was busy during a run; above {BUSY:.0%} in '
        "real time, the machine may have been the limit.</p>"
    )
    return legend + _table(head, rows)


def _more(report: Report) -> list[str]:
    """What only some runners measure."""
    moves = [
        f"gap {row.gap_s:g} s, notice {row.notice_ms:g} ms: ways after {number(row.rerouted_ms)}, "
        f"sender idle {number(row.sender_idle_ms)}, receiver {number(row.receiver_idle_ms)} ms"
        for row in report.handovers
    ]
    return moves + [f"{name}: {number(value)}" for name, value in report.values.items()]


def _seed(outcome: Outcome) -> str:
    if outcome.report is None:
        return f'<span class="bad">{outcome.status}</span>'
    return number(outcome.report.goodput_mbit)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _provenance(session: Session) -> str:
    command = f"ropewalk-lab run {session.experiment} --{session.mode}"
    facts: dict[str, Any] = {
        "command": command
        + (f" --seeds {session.seeds}" if session.seeds is not None else "")
        + (f" --only '{session.only}'" if session.only else "")
        + (f" --{session.runners[0]}" if len(session.runners) == 1 else ""),
        "source": session.source,
        "changes not committed": "yes" if session.dirty else "no",
        **session.machine,
    }
    return "<dl>" + "".join(_fact(name, value) for name, value in facts.items()) + "</dl>"


def _fact(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        text = "<br>".join(f"{escape(str(k))}: {escape(str(v))}" for k, v in value.items())
    else:
        text = escape(str(value))
    return f"<dt>{escape(name)}</dt><dd>{text}</dd>"


class _Number(str):
    """A cell of a table that is set flush right."""


def _n(text: str) -> _Number:
    return _Number(text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return '<p class="muted">None.</p>'
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = (
        "<tr>"
        + "".join(
            f'<td class="n">{cell}</td>' if isinstance(cell, _Number) else f"<td>{cell}</td>"
            for cell in row
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )
