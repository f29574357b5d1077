"""One page for the five papers: their figures beside ours, from all results that are stored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from ropewalk.lab import html
from ropewalk.lab.claims import Claim, rank, tally
from ropewalk.lab.experiments import EXPERIMENTS
from ropewalk.lab.figures import Figure
from ropewalk.lab.papers import PAPERS, Paper
from ropewalk.lab.session import REPORT, judge, stored_results, written_claims
from ropewalk.lab.store import Session, Store, StoreError
from ropewalk.lab.trace import TraceError

PAGE = "papers.html"


@dataclass(frozen=True)
class Stored:
    """One session with its results; `problem` says why there are none."""

    directory: Path
    session: Session
    claims: tuple[Claim, ...] = ()
    figures: tuple[Figure, ...] = ()
    cells: int = 0
    cells_ok: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Found:
    """All that is stored of a paper's experiments, and which experiments have nothing."""

    paper: Paper
    stored: tuple[Stored, ...]
    missing: tuple[str, ...]

    def published(self) -> list[tuple[Claim, Stored]]:
        """The claims beside a figure of the paper, the worst first."""
        rows = [(row, stored) for stored in self.stored for row in stored.claims]
        published = [pair for pair in rows if pair[0].paper is not None]
        return sorted(published, key=lambda pair: rank(pair[0]))

    def others(self) -> list[tuple[Claim, Stored]]:
        """The claims of which the paper has no figure: what it says in words, and our own."""
        rows = [(row, stored) for stored in self.stored for row in stored.claims]
        return sorted(
            (pair for pair in rows if pair[0].paper is None), key=lambda pair: rank(pair[0])
        )


def write(directory: Path) -> list[Found]:
    """Reads every session below `directory` and writes its `papers.html`.

    Raises:
        StoreError: when no experiment is stored there.
    """
    sessions = _sessions(directory)
    if not sessions:
        raise StoreError(
            f"{directory} holds no results: name the directory that has those of the experiments, "
            "such as out/lab"
        )
    found = [_of_paper(paper, sessions) for paper in PAPERS]
    Store(directory).write(PAGE, _page(found, directory))
    return found


def _sessions(directory: Path) -> list[tuple[Path, Session]]:
    """The stored sessions, the newest first. One that cannot be read is left out."""
    sessions = []
    for path in sorted(directory.glob("**/session.json")):
        try:
            sessions.append((path.parent, Store(path.parent).session()))
        except StoreError:
            continue
    return sorted(sessions, key=lambda found: found[1].began, reverse=True)


def _of_paper(paper: Paper, sessions: Sequence[tuple[Path, Session]]) -> Found:
    stored, missing = [], []
    for name in paper.experiments:
        mine = [found for found in sessions if found[1].experiment == name]
        # Short runs stand in only where there are no long ones.
        chosen = _newest([found for found in mine if found[1].mode == "full"]) or mine[:1]
        stored += [_read(*found) for found in chosen]
        if not chosen:
            missing.append(name)
    return Found(paper, tuple(stored), tuple(missing))


def _newest(sessions: Sequence[tuple[Path, Session]]) -> list[tuple[Path, Session]]:
    """The first of those that asked for the same."""
    chosen: dict[tuple[object, ...], tuple[Path, Session]] = {}
    for directory, session in sessions:
        asked = (session.runners, session.only, session.traces)
        chosen.setdefault(asked, (directory, session))
    return list(chosen.values())


def _read(directory: Path, session: Session) -> Stored:
    try:
        results = stored_results(Store(directory), session)
    except TraceError as error:
        return _judged(directory, session, str(error))
    ok = sum(outcome.status == "ok" for outcome in results.outcomes)
    if ok == 0:
        return _judged(directory, session)
    return Stored(
        directory=directory,
        session=session,
        claims=tuple(judge(session, results)),
        figures=tuple(EXPERIMENTS[session.experiment].figures(results)),
        cells=len(results.outcomes),
        cells_ok=ok,
    )


def _judged(directory: Path, session: Session, problem: str = "") -> Stored:
    """A session whose claims alone were kept. Without them `problem` says why it has no cells."""
    try:
        claims, cells = written_claims(Store(directory), session)
    except StoreError as error:
        return Stored(directory, session, problem=problem or str(error))
    return Stored(directory, session, claims, (), sum(cells.values()), cells["ok"], problem)


def _page(found: Sequence[Found], directory: Path) -> str:
    body = [
        "<h1>Five papers and Ropewalk</h1>",
        "<p>Each published figure beside the measured one. A verdict is by the 95 % interval over "
        "seeds. Without a target the figures only stand beside each other.</p>",
        html.counts(tally(row for one in found for row, _ in one.published())),
    ]
    for one in found:
        body += _section(one, directory)
    return html.document("Five papers and Ropewalk", body)


def _section(found: Found, directory: Path) -> list[str]:
    published = found.published()
    parts = [
        f'<h2 id="{found.paper.key}">{escape(found.paper.title)}</h2>',
        f'<p class="muted">{escape(found.paper.source)}</p>',
        html.counts(tally(row for row, _ in published)),
    ]
    for name in found.missing:
        parts.append(
            f'<p><span class="none">missing</span> {escape(name)}: no result is stored; '
            f"<code>ropewalk-lab run {escape(name)} --full</code> makes one.</p>"
        )
    parts += [_source(stored, directory) for stored in found.stored]
    if published:
        parts.append(html.claims_table(_named(published)))
    else:
        parts.append('<p class="muted">No figure of the paper has a measured one beside it.</p>')
    others = found.others()
    if others:
        counts = html.counts(tally(row for row, _ in others))
        table = html.claims_table(_named(others))
        parts += [
            "<p>What the paper says in words only, and what we ask besides:</p>",
            counts,
            f"<details><summary>{len(others)} claims</summary>{table}</details>",
        ]
    for stored in found.stored:
        if stored.figures:
            name = escape(f"{stored.session.experiment}, {', '.join(stored.session.runners)}")
            drawn = html.figures_of(stored.figures)
            parts.append(f"<details><summary>Figures of {name}</summary>{drawn}</details>")
    return parts


def _named(published: Sequence[tuple[Claim, Stored]]) -> list[Claim]:
    """The claims, each named with its experiment where a paper has several."""
    several = len({stored.session.experiment for _, stored in published}) > 1
    return [
        replace(row, name=f"{stored.session.experiment}: {row.name}") if several else row
        for row, stored in published
    ]


def _source(stored: Stored, directory: Path) -> str:
    """Where figures come from, with a link to the page of the experiment."""
    session = stored.session
    name, report = escape(session.experiment), stored.directory / REPORT
    if report.exists():
        name = f'<a href="{escape(os.path.relpath(report, directory))}">{name}</a>'
    text = f"{session.mode}, {', '.join(session.runners)}, {session.began}, source {session.source}"
    if session.only:
        text += f", only “{session.only}”"
    without = stored.cells - stored.cells_ok
    state = stored.problem or f"{stored.cells_ok} cells" + f", {without} without" * bool(without)
    kind = "bad" if stored.problem else "none" if without or session.mode == "quick" else "muted"
    return (
        f'<p class="muted">{name}: {escape(text)}; <span class="{kind}">{escape(state)}</span></p>'
    )
