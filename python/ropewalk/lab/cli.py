"""The command `ropewalk-lab`."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ropewalk import __version__
from ropewalk.lab import overview, provenance
from ropewalk.lab import session as sessions
from ropewalk.lab.cell import RUNNERS, Cell, Runner
from ropewalk.lab.claims import Claim, number, tally, worst_first
from ropewalk.lab.experiments import EXPERIMENTS
from ropewalk.lab.experiments.options import SEEDS, SEEDS_MAX, Options
from ropewalk.lab.programs import ENVIRONMENT, ProgramError
from ropewalk.lab.store import Session, Store, StoreError, pattern
from ropewalk.lab.trace import Recordings, TraceError, find
from ropewalk.report import HandoverReport, Report

TRACES_ENVIRONMENT = "ROPEWALK_TRACES"
JOBS = 3
_JOBS_MAX = 64
_SHOWN_MAX = 20
_LABELS_SHOWN = 3
_NOBODY_READS = 141
"""As a shell shows a program that SIGPIPE ended."""
_SET_UP_SECONDS = 3

_EPILOG = """\
a first look, about four minutes:
  ropewalk-lab run grid --quick
  then open out/lab/grid-quick/report.html

where programs are looked for:
  --programs DIR, else $ROPEWALK_PROGRAMS, ./target/release, $PATH.
  Runs on the kernel and on Open vSwitch need root: they make network namespaces. Without the right
  to do so their cells are listed as skipped, with the reason.

interrupted?
  Run the same command again: finished cells are kept, as long as the source is the same.

exit status:
  0  every cell has a result     1  some have none, or with --strict a target is not `ok`
  2  wrong usage                 130  interrupted
"""


class UsageError(Exception):
    """What was asked for makes no sense; the message says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = make_parser().parse_args(arguments)
    if options.command != "list" and importlib.util.find_spec("matplotlib") is None:
        print(
            "ropewalk-lab: the report's charts need matplotlib: install the package with its "
            "extra: '.[lab]'",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        match options.command:
            case "list":
                return _list(options)
            case "run":
                return _run(options)
            case _:
                return _report(options)
    except KeyboardInterrupt:
        print("\ninterrupted: run the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except (UsageError, StoreError, TraceError, ProgramError, OSError) as error:
        print(f"ropewalk-lab: {error}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="ropewalk-lab",
        description="Repeats the experiments behind Ropewalk's claims, on the Linux kernel and in "
        "the simulator, and writes a report.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ropewalk-lab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser(
        "list", help="which experiments there are, and how long they take"
    )
    _add_traces(listing)

    run = commands.add_parser(
        "run", help="run an experiment, or go on with it, and write the report"
    )
    run.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        choices=sorted(EXPERIMENTS),
        help=f"one of: {', '.join(EXPERIMENTS)}",
    )
    length = run.add_mutually_exclusive_group()
    length.add_argument(
        "--quick",
        dest="mode",
        action="store_const",
        const="quick",
        default="quick",
        help="minutes: short runs, few seeds (the default)",
    )
    length.add_argument(
        "--full",
        dest="mode",
        action="store_const",
        const="full",
        help="hours: the figures to quote",
    )
    where = run.add_mutually_exclusive_group()
    where.add_argument(
        "--kernel",
        dest="runner",
        action="store_const",
        const="kernel",
        help="real programs in network namespaces only (as root)",
    )
    where.add_argument(
        "--sim", dest="runner", action="store_const", const="sim", help="the simulator only"
    )
    where.add_argument(
        "--ns3",
        dest="runner",
        action="store_const",
        const="ns3",
        help="ns-3 only (for `validate` and `tcpnc`)",
    )
    where.add_argument(
        "--ovs",
        dest="runner",
        action="store_const",
        const="ovs",
        help="Open vSwitch only (for `bicast-ovs`, `balance-ovs` and `roam-ovs`; as root)",
    )
    run.add_argument(
        "--seeds", type=_Whole(1, SEEDS_MAX), metavar="N", help="seeds for each case; " + _seeds()
    )
    run.add_argument(
        "--only",
        type=_pattern,
        metavar="REGEX",
        help="only cells whose label matches, such as 'rtt_70/auto'",
    )
    run.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where results go (out/lab/EXPERIMENT-quick or -full)",
    )
    run.add_argument(
        "--jobs",
        type=_Whole(1, _JOBS_MAX),
        default=JOBS,
        metavar="N",
        help=f"runs in real time at once ({JOBS}); fewer disturb each other less",
    )
    run.add_argument(
        "--programs", type=Path, metavar="DIR", help=f"directory of the programs (${ENVIRONMENT})"
    )
    run.add_argument(
        "--strict", action="store_true", help="exit with 1 unless all targets are `ok`"
    )
    _add_traces(run)

    report = commands.add_parser("report", help="write the report again from stored results")
    report.add_argument("directory", type=Path, metavar="DIR", help="what `run --out` wrote")
    report.add_argument(
        "--all",
        action="store_true",
        help="one page for the five papers, from the results of all experiments below DIR",
    )
    return parser


def _add_traces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--traces",
        type=Path,
        metavar="DIR",
        help="recordings for the experiments `traces`, `protect-traces` and "
        f"`balance-dynamic` (${TRACES_ENVIRONMENT}): P_T_wifi.csv with P_T_cellular.csv, or "
        "Mahimahi's NAME.down with NAME.up; for `radio` WINDOW_NETWORK.csv of two or more networks",
    )


def _list(options: argparse.Namespace) -> int:
    directory = _traces(options.traces)
    recordings = find(directory) if directory is not None else Recordings()
    for name, experiment in EXPERIMENTS.items():
        print(f"{name}: {experiment.TITLE}")
        print(f"    {experiment.ABOUT}")
        if (name == "traces" and not recordings.pairs) or (
            name == "radio" and not recordings.windows
        ):
            print("    needs --traces DIR")
            continue
        for mode in ("quick", "full"):
            cells = experiment.cells(
                Options(mode, traces=recordings.pairs, windows=recordings.windows)
            )
            real = [cell for cell in cells if cell.runner in ("kernel", "ovs")]
            minutes = sum(_wall_seconds(cell) for cell in real) / 60
            print(
                f"    --{mode}: {len(real)} real runs{_about(minutes)}; "
                f"{len(cells) - len(real)} simulated"
            )
    sys.stdout.flush()
    return 0


def _about(minutes: float) -> str:
    """Nothing for no time: what is simulated does not count here."""
    if minutes == 0:
        return ""
    return f", about {minutes:.0f} min" if minutes >= 1 else ", under a minute"


def _wall_seconds(cell: Cell) -> float:
    """What a run on the kernel or on switches takes of the time of all."""
    seconds = cell.plan.duration_s + _SET_UP_SECONDS
    alone = cell.runner == "ovs" or sessions.runs_alone(cell)
    return seconds if alone else seconds / JOBS


def _run(options: argparse.Namespace) -> int:
    runners: tuple[Runner, ...] = RUNNERS if options.runner is None else (options.runner,)
    request = sessions.Request(
        experiment=options.experiment,
        mode=options.mode,
        seeds=options.seeds,
        runners=runners,
        only=options.only,
        traces=_traces(options.traces),
        programs=options.programs,
        jobs=options.jobs,
        out=options.out or Path("out/lab", f"{options.experiment}-{options.mode}"),
    )
    if request.experiment in ("traces", "radio") and request.traces is None:
        raise UsageError(f"{request.experiment} needs --traces DIR or {TRACES_ENVIRONMENT}")
    if provenance.is_real_time():
        print(
            "ropewalk-lab: real-time priority makes programs wait for turns of 100 ms of others: "
            "do not trust runs on the kernel; `nice -n -15` lets them go first without that",
            file=sys.stderr,
        )
    session = sessions.begin(request)
    if not sessions.plan_cells(session):
        raise UsageError(_no_cell(session))
    printer = Printer()
    claims = sessions.run(request, session, printer.tell)
    printer.end()
    _summary(claims, request.out)
    unproven = any(row.verdict not in ("ok", "no target") for row in claims)
    return 1 if printer.without_result or (options.strict and unproven) else 0


def _no_cell(session: Session) -> str:
    """Why nothing is to be run, and what could be asked for instead."""
    here = sessions.plan_cells(replace(session, only=None))
    if here:
        labels = (cell.label.rpartition("/")[0] for cell in here)
        shown = ", ".join(islice(dict.fromkeys(labels), _LABELS_SHOWN))
        return f"no cell matches --only '{session.only}'; there are {len(here)}, such as {shown}"
    everywhere = sessions.plan_cells(replace(session, only=None, runners=RUNNERS))
    runners = " and ".join(f"--{name}" for name in dict.fromkeys(c.runner for c in everywhere))
    asked = "".join(f"--{name}" for name in session.runners)
    length = f"{session.experiment} --{session.mode}"
    return f"{length} has no cell with {asked}, only with {runners}"


def _report(options: argparse.Namespace) -> int:
    if options.all:
        return _overview(options.directory)
    store = Store(options.directory)
    session = store.session()
    if session.experiment not in EXPERIMENTS:
        raise StoreError(
            f"{options.directory} holds `{session.experiment}`, which is no experiment of this "
            "version: use the version that ran it"
        )
    claims = sessions.report_again(store, session)
    _summary(claims, options.directory)
    return 0


def _overview(directory: Path) -> int:
    for found in overview.write(directory):
        published = [row for row, _ in found.published()]
        others = [row for row, _ in found.others()]
        missing = f"; missing: {', '.join(found.missing)}" if found.missing else ""
        print(f"{found.paper.key}: published figures: {_counts(published)}{missing}")
        print(f"{found.paper.key}: other claims: {_counts(others)}")
    print(f"report: {directory / overview.PAGE}")
    return 0


def _summary(claims: Sequence[Claim], directory: Path) -> None:
    wanting = [row for row in worst_first(claims) if row.verdict == "not ok" or _leans_down(row)]
    for row in wanting[:_SHOWN_MAX]:
        print(f"{row.verdict}: {row.name}: {row.found()}, wanted {row.wanted()}")
    if len(wanting) > _SHOWN_MAX:
        print(f"… and {len(wanting) - _SHOWN_MAX} more")
    print(f"targets: {_counts(claims)}")
    print(f"report: {directory / 'report.html'}")


def _counts(claims: Sequence[Claim]) -> str:
    found = tally(claims)
    undecided = f"{found['undecided']} undecided"
    if found["undecided"]:
        leaning = sum(row.verdict == "undecided" and row.mean_meets is True for row in claims)
        undecided += f" (the mean meets {leaning})"
    return (
        f"{found['not ok']} not ok, {undecided}, {found['no data']} without data, {found['ok']} ok"
    )


def _leans_down(row: Claim) -> bool:
    return row.verdict == "undecided" and row.mean_meets is False


class Printer:
    """Tells on a terminal in one line what goes on; elsewhere a line for each cell."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._began = time.monotonic()
        self._first: int | None = None
        self.without_result = 0

    def tell(self, progress: sessions.Progress) -> None:
        """One more cell is done."""
        outcome = progress.outcome
        if self._first is None:
            self._first = progress.done - 1
            if self._first:
                self._line(f"{self._first} cells have a result already")
        if outcome.report is None:
            self.without_result += 1
            self._line(f"{outcome.status}: {outcome.cell.label}: {outcome.reason}")
        elif not self._terminal:
            done = f"{progress.done}/{progress.total} {outcome.cell.label}"
            self._line(f"{done}: {_brief(outcome.report)}")
        if self._terminal:
            left = self._left(progress)
            text = f"{progress.done}/{progress.total}{left}  {outcome.cell.label}"
            width = os.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", flush=True)

    def end(self) -> None:
        """Leaves the line of progress."""
        if self._terminal:
            print("\r\x1b[K", end="")

    def _line(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self._terminal else text, flush=True)

    def _left(self, progress: sessions.Progress) -> str:
        done = progress.done - (self._first or 0)
        seconds = (time.monotonic() - self._began) / done * (progress.total - progress.done)
        return f", {seconds / 60:.0f} min left" if seconds >= 60 else f", {seconds:.0f} s left"


def _brief(report: Report) -> str:
    """What a cell gave, in a few words."""
    in_time = next((t.in_time for t in report.traffic if t.in_time is not None), None)
    if in_time is not None:
        return f"{100 * in_time:.2f} % in time"
    delay = next((t.delay_ms for t in report.traffic if t.kind in ("web", "pages")), None)
    if delay is not None:
        return f"pages in {number(delay.p50)} ms"
    if report.handovers:
        worst = max(_idle(row) for row in report.handovers)
        idle = f"idle at most {number(worst)} ms" if math.isfinite(worst) else "not each went on"
        return f"{len(report.handovers)} moves, {idle}"
    if report.values and not report.traffic:
        return ", ".join(f"{name}: {number(value)}" for name, value in report.values.items())
    return f"{number(report.goodput_mbit)} Mbit/s"


def _idle(row: HandoverReport) -> float:
    """The longer of both; endless when one never went on."""
    both = (row.sender_idle_ms, row.receiver_idle_ms)
    return max(math.inf if idle is None else idle for idle in both)


def _traces(given: Path | None) -> Path | None:
    named = os.environ.get(TRACES_ENVIRONMENT)
    directory = given or (Path(named) if named else None)
    if directory is not None and not directory.is_dir():
        raise UsageError(f"--traces: {directory} is not a directory")
    return directory


_RUNNER_WORDS = {
    "kernel": "on the kernel",
    "sim": "simulated",
    "ns3": "in ns-3",
    "ovs": "on switches",
}


def _seeds() -> str:
    return "without it " + ", ".join(
        f"{count} {mode} {_RUNNER_WORDS[runner]}" for (mode, runner), count in SEEDS.items()
    )


class _Whole:
    """A whole number in a range, for argparse."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = self._least - 1
        if not self._least <= value <= self._most:
            raise argparse.ArgumentTypeError(
                f"`{text}`: use a whole number from {self._least} to {self._most}"
            )
        return value


def _pattern(text: str) -> str:
    try:
        return pattern(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
