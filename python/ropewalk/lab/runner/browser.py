"""Runs of pages on the kernel: a real browser and web servers over emulated links."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from ropewalk import report as reports
from ropewalk.lab.browser import chromium, site, switched
from ropewalk.lab.browser.chromium import Chromium
from ropewalk.lab.browser.ground import Ground
from ropewalk.lab.browser.pages import KEPT, LOOK_S, Page, draw
from ropewalk.lab.browser.server import Certificate, Server, programs
from ropewalk.lab.browser.switched import Switch
from ropewalk.lab.browser.video import Film
from ropewalk.lab.cell import Cell
from ropewalk.lab.provenance import Load
from ropewalk.lab.runner import RunError, UnavailableError, leftovers
from ropewalk.plan import Mptcp, Pages, Plan
from ropewalk.report import PageLoad, Report
from ropewalk.sdn.api import ApiError

BUSY_MAX = 0.90
"""With a greater share of busy processors while pages load, a run measures the machine."""
_OVERRUN = 6
"""A run that takes so many times as long as planned is given up."""
_FILM_LEAD_S = 6.0
"""For the player to find its rate before the first page."""


@dataclass
class _Busy:
    """How busy the processors were while pages were loading."""

    busy: int = 0
    ticks: int = 0
    _before: Load | None = field(default=None)

    def __enter__(self) -> None:
        self._before = Load.now()

    def __exit__(self, *error: object) -> None:
        assert self._before is not None
        now = Load.now()
        self.busy += now.busy_ticks - self._before.busy_ticks
        self.ticks += now.ticks - self._before.ticks

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.busy / self.ticks if self.ticks else 0.0


class BrowserRunner:
    """Runs one cell at a time. With `strict`, one that the processors held up is void."""

    def __init__(self, testbed: Path, strict: bool) -> None:
        self._testbed = testbed
        self._strict = strict
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Gives up."""
        self._stopped.set()

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell."""
        try:
            return [self._run(cell.plan.with_seed(cell.seed)) for cell in cells]
        except (ApiError, OSError, subprocess.TimeoutExpired) as error:
            raise RunError(str(error)) from error

    def _run(self, plan: Plan) -> Report:
        traffic = wanted(plan)
        mptcp = isinstance(plan.carrier, Mptcp)
        if mptcp and traffic.protocol == "h3":
            raise UnavailableError("MPTCP carries no HTTP/3")
        programs(traffic.protocol, mptcp)
        began = time.monotonic()
        pages = draw(traffic.count, plan.seed, traffic.scale) if traffic.count else []
        with ExitStack() as stack:
            file = stack.enter_context(leftovers.scratch()) / "plan.toml"
            file.write_text(replace(switched.beneath(plan), traffic=()).to_toml())
            ground = Ground(self._testbed, file)
            stack.callback(ground.end)
            place = ground.place
            here = place.directory / "browser"
            root = here / "root"
            root.mkdir(parents=True)
            site.write(pages, root)
            certificate = Certificate.make(here)
            server = Server(place, traffic.protocol, root, certificate)
            stack.callback(server.stop)
            switch = stack.enter_context(switched.opened(plan, place.site))
            origins = {site.WARM_UP, site.VIDEO}.union(*(page.origins for page in pages))
            browser = Chromium(
                place.site if switch is None else switch.host,
                traffic.protocol,
                place.mptcp,
                certificate.pin,
                origins,
                here,
                self._stopped,
            )
            stack.callback(browser.stop)
            found = self._measure(plan, traffic, pages, ground, browser, switch)
            found["values"] = _kept(pages, server)
        found["wall_seconds"] = time.monotonic() - began
        found["notes"] = [*place.notes, chromium.version(), *found["notes"]]
        return reports.parse(found)

    def _measure(
        self,
        plan: Plan,
        traffic: Pages,
        pages: list[Page],
        ground: Ground,
        browser: Chromium,
        switch: Switch | None,
    ) -> dict[str, Any]:
        # What a browser does only once must not be in the first page.
        warm_up = f"https://{site.host(site.WARM_UP)}/"
        if not browser.load(warm_up, frozenset([warm_up])).complete:
            raise RunError(f"{warm_up} did not load within {chromium.LOAD_SECONDS:g} s")
        ground.begin()
        begin, busy = time.monotonic(), _Busy()
        film = Film(browser, switch) if traffic.video else None
        if film is not None:
            self._wait(begin + _FILM_LEAD_S)
        first, watched = time.monotonic(), film.watched() if film is not None else None
        loads, notes = self._load(plan, traffic, pages, browser, begin, busy)
        if not pages:
            self._wait(begin + plan.duration_s)
        items = [_pages_report(loads)] if loads else []
        if film is not None and watched is not None:
            seconds, last = time.monotonic() - first, film.watched()
            rate = (last.bytes - watched.bytes) * 8e-6 / seconds
            if last.counted is not None and watched.counted is not None:
                notes.append(f"film: {rate:.2f} Mbit/s at its player")
                rate = (last.counted - watched.counted) * 8e-6 / seconds
            stalled = last.stalled_s - watched.stalled_s
            items.append({"kind": "video", "goodput_mbit": rate, "longest_stall_seconds": stalled})
            notes.append(f"film: stalled for {stalled:.1f} s in all, {last.failed} segments failed")
        notes += switch.notes() if switch is not None else []
        notes.append(f"processors {busy.share:.0%} busy while pages were loading")
        if self._strict and busy.share > BUSY_MAX:
            raise RunError(f"void: processors {busy.share:.0%} busy while pages were loading")
        return {
            "plan": plan.name,
            "runner": "kernel",
            "seed": plan.seed,
            "seconds": time.monotonic() - begin,
            "ceiling_mbit": 0.0,
            "traffic": items,
            "paths": ground.paths(),
            "notes": notes,
        }

    def _load(
        self,
        plan: Plan,
        traffic: Pages,
        pages: list[Page],
        browser: Chromium,
        begin: float,
        busy: _Busy,
    ) -> tuple[list[PageLoad], list[str]]:
        loads, given_up = [], 0
        first = time.monotonic()
        for index, page in enumerate(pages):
            due = first + index * traffic.every_s
            self._wait(max(due, time.monotonic() + LOOK_S))
            if time.monotonic() - begin > _OVERRUN * plan.duration_s:
                raise RunError(
                    f"{index} of {len(pages)} pages in {_OVERRUN} times the planned time"
                )
            at = time.monotonic() - begin
            with busy:
                found = browser.load(site.url(page), site.urls(page))
            given_up += not found.complete
            loads.append(
                PageLoad(
                    page.number,
                    at,
                    found.seconds,
                    found.flows,
                    found.objects,
                    found.bytes,
                    found.reloads,
                )
            )
        notes = []
        if given_up:
            notes.append(f"{given_up} pages given up after {chromium.LOAD_SECONDS:g} s")
        if again := sum(load.reloads > 0 for load in loads):
            notes.append(f"{again} pages loaded again because objects were missing")
        return loads, notes

    def _wait(self, until: float) -> None:
        if self._stopped.wait(max(0.0, until - time.monotonic())):
            raise RunError("stopped")


def wanted(plan: Plan) -> Pages:
    """The pages of a plan that has nothing else."""
    (traffic,) = plan.traffic
    assert isinstance(traffic, Pages), traffic
    return traffic


def _kept(pages: list[Page], server: Server) -> dict[str, float]:
    """Which part of the sites that were opened saw one address of the client only."""
    clients = server.clients()
    if not pages or clients is None:
        return {}
    seen = [len(clients.get(site.address(page.origin), ())) for page in pages]
    return {KEPT: sum(count == 1 for count in seen) / len(seen)}


def _pages_report(loads: list[PageLoad]) -> dict[str, Any]:
    times = sorted(1e3 * load.seconds for load in loads)
    hundredths = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return {
        "kind": "pages",
        "sent": len(loads),
        "delay_ms": {
            "count": len(times),
            "mean": fmean(times),
            "min": times[0],
            "p50": hundredths[49],
            "p95": hundredths[94],
            "p99": hundredths[98],
            "max": times[-1],
        },
        "pages": [asdict(load) for load in loads],
    }
