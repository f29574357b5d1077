"""Pages while the capacity of Wi-Fi and LTE changes every second."""

from __future__ import annotations

import random
from statistics import fmean

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import balance_pages as common
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, lines
from ropewalk.lab.trace import TracePair
from ropewalk.plan import Change, Link, Pages, Path, Plan

NAME = "balance-dynamic"
TITLE = "Pages while capacities change"
ABOUT = (
    "Chromium loads pages over HTTP/1.1 while Wi-Fi and LTE change every second: a walk as the "
    "paper describes it, and every pair of recordings in --traces."
)
ASSUMPTIONS = (
    *common.ASSUMPTIONS,
    "The paper's recording is not published: a walk is drawn from its description. 30 % of the "
    "time indoors, Wi-Fi up to 160 Mbit/s and LTE well below 10; then LTE about 30 and Wi-Fi "
    "mostly less, with times without any.",
    "All capacities of the walk are a quarter of that, and it takes 240 s instead of 400: two "
    "processors carry browser, servers and links, and pages must not be limited by them. The pages "
    "have a quarter of their bytes, so that they take as long for these.",
    "A page is begun every 4 s, or when the one before is there, so that all carriers meet the "
    "same walk. The paper loads one page again and again for the whole walk, for each of 100 "
    "sites.",
    "The paper's weights follow its bandwidth data every second. We read that its controller was "
    "given the capacities. Here the balancers find them by themselves.",
    "20 ms round trip; 128 KiB of queue. Where Wi-Fi has no capacity its packets vanish.",
)
CARRIERS = {
    "wifi": "a",
    "lte": "b",
    "balance": "balance",
    "ovs-balance": "ovs-balance",
    "balance-all-sites": "balance-all-sites",
    "balance-no-affinity": "balance-no-affinity",
    "least-finish": "least-finish",
    "round-robin": "round-robin",
    "mptcp": "mptcp",
    "tunnel": "tunnel",
}
"""The names here; Wi-Fi is path `a`, LTE path `b`."""
QUICK_CARRIERS = ("wifi", "lte", "balance", "ovs-balance", "round-robin")
WALK = "walk"
WALK_S, QUICK_WALK_S = 240, 24
WALKS = 3
EVERY_S = 4.0
INDOORS = 0.3
SCALE = 0.25
QUEUE_BYTES = 128 * 1024
AGAINST = {"wifi": (0.35, 0.33), "lte": (0.20, 0.13)}
"""Target and what the paper found, against each uplink alone."""
PUBLISHED: dict[str, tuple[float | None, float | None]] = {
    "wifi": (8.6, 6.3),
    "lte": (6.7, 4.8),
    "balance": (5.8, 3.9),
    "ovs-balance": (5.8, 3.9),
}
"""Mean and median in seconds, figures 17 and 16. The capacities here are not the paper's."""
UNKNOWN = (None, None)
JUDGED = ("balance", "ovs-balance", "balance-no-affinity")
LTE_BELOW_WIFI = 1 - 6.7 / 8.6
"""Figure 17."""


def walk(seconds: int, seed: int) -> tuple[list[float], list[float]]:
    """Mbit/s of Wi-Fi and LTE, second by second, a quarter of what is described."""
    rng = random.Random(seed)
    wifi, lte = [], []
    silent = 0
    for second in range(seconds):
        if second < INDOORS * seconds:
            wifi.append(min(160.0, rng.lognormvariate(4.0, 0.6)))
            lte.append(rng.uniform(2.0, 8.0))
            continue
        if not silent and rng.random() < 0.04:
            silent = rng.randint(4, 16)
        silent = max(0, silent - 1)
        wifi.append(0.0 if silent else min(60.0, rng.lognormvariate(2.3, 0.9)))
        lte.append(min(40.0, max(20.0, rng.gauss(30.0, 3.0))))
    return [SCALE * mbit for mbit in wifi], [SCALE * mbit for mbit in lte]


def _walking(name: str, mbit: list[float]) -> Path:
    base = Link(delay_ms=common.DELAY_MS, queue_bytes=QUEUE_BYTES, rate_mbit=max(0.1, mbit[0]))
    changes = [Change(float(at), _capacity(rate)) for at, rate in enumerate(mbit[1:], 1)]
    # No carrier may be left without capacity for ever.
    changes.append(Change(float(len(mbit)), _capacity(fmean(mbit))))
    return Path(name, base, change=tuple(changes))


def _capacity(mbit: float) -> Link:
    if mbit == 0:
        return Link(blackhole=True)
    return Link(blackhole=False, rate_mbit=round(max(0.1, mbit), 3))


def walking_paths(seconds: int, seed: int) -> tuple[Path, ...]:
    """Wi-Fi and LTE. After its end the walk begins anew, then capacities stay as on average."""
    wifi, lte = walk(seconds, seed)
    return _walking("a", wifi * WALKS), _walking("b", lte * WALKS)


def _recorded(pair: TracePair) -> tuple[Path, ...]:
    both = Link(delay_ms=common.DELAY_MS, queue_bytes=QUEUE_BYTES)
    sides = (("a", pair.a_up, pair.a_down), ("b", pair.b_up, pair.b_down))
    return tuple(
        Path(name, both, up=Link(trace=up.file), down=Link(trace=down.file))
        for name, up, down in sides
    )


def cells(options: Options) -> list[Cell]:
    """Every carrier over the walk and every pair of recordings."""
    names = QUICK_CARRIERS if options.quick else tuple(CARRIERS)
    length = QUICK_WALK_S if options.quick else WALK_S
    found = []
    for seed in range(1, options.count("kernel") + 1):
        cases = [
            ((WALK, name), _plan(WALK, name, walking_paths(length, seed), length, SCALE))
            for name in names
        ]
        found += [
            cell for cell in expand(options, NAME, cases, "kernel", seed) if cell.seed == seed
        ]
    for pair in options.traces:
        length = round(min(pair.seconds, QUICK_WALK_S if options.quick else WALK_S))
        cases = [
            ((pair.name, name), _plan(pair.name, name, _recorded(pair), length)) for name in names
        ]
        found += expand(options, NAME, cases, "kernel", inputs=pair.digest)
    return found


def _plan(case: str, name: str, paths: tuple[Path, ...], seconds: int, scale: float = 1.0) -> Plan:
    return Plan(
        name=f"{NAME}/{case}/{name}",
        duration_s=float(seconds),
        path=paths,
        carrier=common.CARRIERS[CARRIERS[name]],
        traffic=(Pages("http/1.1", round(seconds / EVERY_S), EVERY_S, scale),),
    )


def claims(results: Results) -> list[Claim]:
    """What balancing takes from the load time over Wi-Fi and over LTE alone."""
    rows = []
    for case in results.keys(0):
        if case == WALK:
            lte, wifi = (results.where("kernel", case, name) for name in ("lte", "wifi"))
            rows.append(common.reduction("walk, lte against wifi", lte, wifi, 0.0, LTE_BELOW_WIFI))
        for name in results.keys(1):
            found = results.where("kernel", case, name)
            label = f"{case}, {name}"
            mean, median = PUBLISHED.get(name, UNKNOWN) if case == WALK else UNKNOWN
            rows += common.time_claims(label, found, mean, median)
            rows.append(common.reload_claim(label, found))
            if name in AGAINST:
                continue
            for uplink, (target, paper) in AGAINST.items():
                alone = results.where("kernel", case, uplink)
                judged = name in JUDGED and case == WALK
                rows.append(
                    common.reduction(
                        f"{label} against {uplink} alone",
                        found,
                        alone,
                        target if judged else None,
                        paper if case == WALK and name in common.BALANCED else None,
                    )
                )
    return rows


def figures(results: Results) -> list[Figure]:
    """Distributions and means of every case, and the walk."""
    drawn = []
    for case in results.keys(0):
        found = results.where("kernel", case)
        drawn += common.figures(found, tuple(CARRIERS), f"Changing capacities, {case}")
    wifi, lte = walk(WALK_S, 1)
    caption = "Drawn from the description of the paper's figure 15; the first seed."
    series = {"Wi-Fi": wifi, "LTE": lte}
    return [*drawn, Figure("The walk", caption, lines(series, "Mbit/s"))]
