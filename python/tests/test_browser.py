"""Pages for a browser: what they are, what experiments make of them, and two real ones."""

from __future__ import annotations

import os
import tomllib
import zlib
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from ropewalk.lab import programs
from ropewalk.lab.browser import chromium, server, site, switched
from ropewalk.lab.browser.pages import FLOWS_MAX, FLOWS_MEAN, SITES, SIZE_MAX, Page, draw
from ropewalk.lab.cell import Cell, Outcome, Results
from ropewalk.lab.experiments import balance_dynamic, balance_static, balance_video
from ropewalk.lab.experiments import balance_pages as common
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.runner import UnavailableError
from ropewalk.lab.runner.browser import BrowserRunner
from ropewalk.plan import Balance, OvsBalance, Pages, Plan, Protocol
from ropewalk.report import PageLoad, Report, TrafficReport


@pytest.mark.parametrize("count", [60, 100])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pages_have_the_published_connections_and_sizes(count: int, seed: int) -> None:
    pages = draw(count, seed)
    flows = [page.flows for page in pages]
    assert fmean(flows) == pytest.approx(FLOWS_MEAN, abs=1.5)
    assert 250 <= max(flows) <= FLOWS_MAX
    # "A significant number" has more than thirty.
    assert sum(flow > 30 for flow in flows) > count / 3
    sizes = [thing.size for page in pages for thing in page.objects]
    assert fmean(sizes) == pytest.approx(31_000, rel=0.15)
    assert max(sizes) <= SIZE_MAX
    assert any(size > 1_000_000 for size in sizes)
    assert 8 <= fmean(len(page.origins) for page in pages) <= 14
    for page in pages:
        assert page.origin == SITES + page.number
        assert len(page.objects) >= page.flows


def test_the_same_seed_gives_the_same_pages() -> None:
    assert draw(7, 5) == draw(7, 5)
    assert draw(7, 5) != draw(7, 6)


@pytest.fixture
def largest(tmp_path: Path) -> tuple[Page, Path]:
    pages = draw(5, 3)
    site.write(pages, tmp_path)
    return max(pages, key=lambda page: page.flows), tmp_path


def test_every_object_is_a_file_of_its_size_and_named_once(largest: tuple[Page, Path]) -> None:
    page, root = largest
    folder = root / str(page.number)
    document = (folder / "index.html").read_text()
    assert len(document) == pytest.approx(page.document, abs=10)
    scripts = "".join(file.read_text() for file in folder.glob("*.js"))
    for name in site.urls(page) - {site.url(page)}:
        number, _, _ = name.rpartition("/")[2].partition(".")
        thing = page.objects[int(number)]
        file = folder / name.rpartition("/")[2]
        assert file.stat().st_size >= thing.size
        if thing.kind == "image":
            assert file.stat().st_size == max(thing.size, 67)
        assert document.count(name) == (not thing.late)
        assert scripts.count(name) == thing.late
    assert any(thing.late for thing in page.objects)


def test_pictures_are_whole_only_at_their_end(largest: tuple[Page, Path]) -> None:
    page, root = largest
    picture = next(
        (root / str(page.number) / f"{i}.png").read_bytes()
        for i, thing in enumerate(page.objects)
        if thing.kind == "image" and thing.size > 1_000
    )
    at, names = 8, []
    while at < len(picture):
        length = int.from_bytes(picture[at : at + 4], "big")
        body = picture[at + 4 : at + 8 + length]
        assert int.from_bytes(picture[at + 8 + length : at + 12 + length], "big") == zlib.crc32(
            body
        )
        names.append(body[:4])
        at += length + 12
    assert names == [b"IHDR", b"paDd", b"IDAT", b"IEND"]


def test_every_origin_has_a_network_of_its_own() -> None:
    networks = {site.address(origin).rpartition(".")[0] for origin in range(site.VIDEO + 1)}
    assert len(networks) == site.VIDEO + 1
    assert all(network.startswith(("198.18.", "198.19.")) for network in networks)


def loaded(cell: Cell, seconds: float, film: float | None = None) -> Outcome:
    pages = tuple(
        PageLoad(number, 0.0, seconds * (1 + number % 2), 5, 9, 1000, int(number == 1))
        for number in range(4)
    )
    traffic = [TrafficReport("pages", 0.0, (), None, (), None, 4, None, None, pages)]
    if film is not None:
        traffic.append(TrafficReport("video", film, (), 0.0, (), None, None, None, None))
    report = Report(
        cell.plan.name, "kernel", cell.seed, 1.0, 0.0, tuple(traffic), (), None, None, None, 0.0, ()
    )
    return Outcome(cell, "ok", report, attempts=1)


def test_static_asks_for_nearly_half() -> None:
    times = {"a": 10.0, "balance": 5.4, "balance-no-affinity": 5.6}
    cells = balance_static.cells(Options("quick"))
    results = Results(tuple(loaded(c, times.get(c.key[1], 7.0)) for c in cells))
    claims = {row.name: row for row in balance_static.claims(results)}
    row = claims["http/1.1, balance against one uplink: reduction of the mean page load time"]
    assert row.measured == pytest.approx(0.46)
    assert (row.target, row.mean_meets) == (0.42, True)
    assert row.paper == 0.37
    row = claims[
        "http/1.1, balance-no-affinity against one uplink: reduction of the mean page load time"
    ]
    assert row.measured == pytest.approx(0.44)
    assert row.mean_meets is False
    assert claims["http/1.1, a: mean page load time"].measured == pytest.approx(15)
    titles = [figure.title for figure in balance_static.figures(results)]
    assert titles[0] == "Two equal uplinks, http/1.1: distribution of page load times"


def test_dynamic_is_held_against_each_uplink_and_counts_pages_loaded_again() -> None:
    times = {"wifi": 10.0, "lte": 8.0, "balance": 6.6}
    cells = balance_dynamic.cells(Options("quick"))
    results = Results(tuple(loaded(cell, times.get(cell.key[1], 7.0)) for cell in cells))
    claims = {row.name: row for row in balance_dynamic.claims(results)}
    end = "reduction of the mean page load time"
    assert claims[f"walk, balance against wifi alone: {end}"].mean_meets is False
    assert claims[f"walk, balance against lte alone: {end}"].measured == pytest.approx(0.175)
    assert claims["walk, balance: pages loaded again"].measured == 1


def test_the_film_must_not_be_worse() -> None:
    rates = {"a": 1.0, "balance": 0.9, "balance-no-affinity": 1.1}
    cells = balance_video.cells(Options("quick"))
    results = Results(tuple(loaded(cell, 5.0, rates.get(cell.key[1], 2.0)) for cell in cells))
    claims = {row.name: row for row in balance_video.claims(results)}
    assert claims["balance ÷ one uplink: film"].mean_meets is False
    assert claims["balance-no-affinity ÷ one uplink: film"].mean_meets is True
    assert claims["film-alone: film"].measured == 2.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_walk_is_as_described(seed: int) -> None:
    wifi, lte = balance_dynamic.walk(balance_dynamic.WALK_S, seed)
    inside = round(balance_dynamic.INDOORS * balance_dynamic.WALK_S)
    scale = balance_dynamic.SCALE
    assert max(wifi[:inside]) <= 160 * scale
    assert fmean(wifi[:inside]) > 5 * fmean(lte[:inside])
    assert max(lte[:inside]) < 10 * scale
    assert fmean(lte[inside:]) == pytest.approx(30 * scale, rel=0.05)
    assert 0 < fmean(wifi[inside:]) < fmean(lte[inside:])
    assert wifi[inside:].count(0.0) >= 4
    (first, _) = balance_dynamic.walking_paths(balance_dynamic.WALK_S, seed)
    plan = tomllib.loads(Plan("x", 9, (first,)).to_toml())
    assert len(plan["path"][0]["change"]) == balance_dynamic.WALKS * balance_dynamic.WALK_S


def obstacle(carrier: Balance | OvsBalance) -> str:
    """Why a browser cannot run here; nothing if it can."""
    if os.geteuid() != 0:
        return "not root"
    try:
        if isinstance(carrier, OvsBalance):
            switched.programs()
        chromium.program()
        for protocol in ("http/1.1", "h3"):
            server.programs(protocol, mptcp=False)
        programs.find(programs.TESTBED, None)
    except (UnavailableError, programs.ProgramError) as error:
        return str(error)
    return ""


@pytest.mark.real
@pytest.mark.parametrize(
    ("protocol", "carrier"),
    [
        ("http/1.1", Balance(affinity_minutes=0)),
        ("h3", Balance(affinity_minutes=0)),
        ("h3", OvsBalance("pages", probe="train")),
    ],
)
def test_a_real_browser_loads_pages_over_both_uplinks(
    protocol: Protocol, carrier: Balance | OvsBalance
) -> None:
    if why := obstacle(carrier):
        pytest.skip(why)
    link = replace(common.static_paths()[0].both, rate_mbit=20.0)
    plan = Plan(
        name="pages",
        duration_s=30.0,
        path=tuple(replace(path, both=link) for path in common.static_paths()),
        carrier=carrier,
        traffic=(Pages(protocol, 2, video=protocol == "h3"),),
        seed=4,
    )
    runner = BrowserRunner(programs.find(programs.TESTBED, None), strict=False)
    (report,) = runner.run([Cell("test", ("pages",), plan, 4, "kernel")])
    pages = {page.number: page for page in draw(2, 4)}
    loads = report.pages()
    assert [load.page for load in loads] == [0, 1]
    for load in loads:
        page = pages[load.page]
        assert load.objects == len(page.objects) + 1
        assert load.bytes > page.bytes
        # No faster than both uplinks, and not without end.
        assert page.bytes * 8 / 40e6 < load.seconds < chromium.LOAD_SECONDS / 2
        assert len(page.origins) <= load.flows
    assert all(path.bytes > 50_000 for path in report.paths), report.paths
    if protocol == "h3":
        film = next(traffic for traffic in report.traffic if traffic.kind == "video")
        assert film.goodput_mbit > 0.1
