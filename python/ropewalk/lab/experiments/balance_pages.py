"""What the experiments of pages over balanced uplinks share: links, carriers, claims, figures."""

from __future__ import annotations

from statistics import fmean, median

from ropewalk.lab.browser.pages import FLOWS_MEAN, KEPT, LOOK_S
from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars, distributions
from ropewalk.lab.statistics import estimate
from ropewalk.plan import (
    Balance,
    Carrier,
    Direct,
    Link,
    Mptcp,
    OvsBalance,
    Pages,
    Path,
    Plan,
    Protocol,
    RoundRobin,
    Tunnel,
)

PAGES, QUICK_PAGES = 20, 4
"""Over five seeds as many loads as the paper has sites; each seed has the same numbers of
connections."""
PAGE_MBIT = 21.0
"""A page on average, for how long a run is expected to take."""
RATE_MBIT = 4.0
DELAY_MS = 10.0
QUEUE_BYTES = 256 * 1024
"""Half a second, as access links have: with less, bursts of new connections lose a third."""

CEILING = "one-of-both"
CARRIERS: dict[str, Carrier] = {
    "a": Direct("a"),
    "b": Direct("b"),
    "balance": Balance(),
    "ovs-balance": OvsBalance("pages", probe="train"),
    "balance-all-sites": Balance(affinity_sites="all"),
    "balance-no-affinity": Balance(affinity_minutes=0),
    "least-finish": Balance(mode="least-finish", affinity_minutes=0),
    "least-finish-affinity": Balance(mode="least-finish"),
    "round-robin": RoundRobin(),
    "mptcp": Mptcp(),
    "tunnel": Tunnel(),
    CEILING: Direct("a"),
}
"""`a` and `b` are the uplinks alone, `round-robin` takes them in turn and knows nothing of them.

`one-of-both` is one link with the rate of both, which no way of giving out connections beats: an
uplink is never without work while the other one has more than it can do.

`ovs-balance` rebuilds the paper's system, Open vSwitch with a controller, and has no affinity. It
finds capacities by trains and by watching, and remembers flows by connection tracking. The paper
probes by a method of an earlier paper, and has a rule for each flow.
"""
BALANCED = (
    "balance",
    "ovs-balance",
    "balance-all-sites",
    "balance-no-affinity",
    "least-finish",
    "least-finish-affinity",
    "round-robin",
)

ASSUMPTIONS = (
    f"The published sites have changed since: pages are drawn anew. A hundred have {FLOWS_MEAN} "
    "connections on average and 281 at most, as in the paper; the twenty of a run have 41 and 175, "
    "the four of a short run 37 and 81. The paper's largest flow has close to 5 MB; here no object "
    "is larger. Two objects a connection, 32 kB an object on average, and all else are a model of "
    "ours (module `ropewalk.lab.browser.pages`).",
    "The paper names HTTP/1.1 for its count of connections, and no version for its page loads over "
    "TCP. Its figures over TCP stand beside HTTP/1.1 here.",
    "Each seed loads its own pages once.",
    "Every origin has an address in a network of 24 bits of its own; a page has eleven on average, "
    "of which all but its own are shared with other pages, the popular ones by Zipf's law.",
    "TLS 1.3 everywhere; names are known to the browser, so that no query is measured.",
    "Every page begins in an empty profile: no cache, no connection, no ticket. People look at a "
    f"page for {LOOK_S:g} s before they open the next.",
    "`ovs-balance` rebuilds the paper's system. It finds capacities by trains and by watching, and "
    "remembers flows by connection tracking; the paper probes by a method of an earlier paper, and "
    "has a rule for each flow.",
    "On Open vSwitch the same links are the ports of the switch. The controller probes idle "
    "uplinks by trains, as `ropewalk balance` does, and the browser is behind the switch.",
    "The load time is that of Navigation Timing, from the start of the navigation to the end of "
    "the load event; the paper begins with the first request, which comes later. A page with "
    "missing objects, as when its uplink dies, is loaded again half a second later, and all of "
    "that counts.",
)


def static_paths(rate_mbit: float = RATE_MBIT) -> tuple[Path, ...]:
    """Two equal uplinks."""
    link = Link(rate_mbit=rate_mbit, delay_ms=DELAY_MS, queue_bytes=QUEUE_BYTES)
    return Path("a", link), Path("b", link)


def static_seconds(pages: int, carrier: str, rate_mbit: float = RATE_MBIT) -> float:
    """How long so many pages are expected to take over uplinks of this rate."""
    rate = rate_mbit * (1 if carrier in ("a", "b") else 2)
    return max(30.0, pages * (PAGE_MBIT / rate + 1.0 + LOOK_S))


def static_cells(
    options: Options,
    experiment: str,
    protocol: Protocol,
    carriers: tuple[str, ...],
    video: bool = False,
    lines: str = "",
    rate_mbit: float = RATE_MBIT,
) -> list[Cell]:
    """Every carrier over two equal uplinks; `lines` names these in labels."""
    count = QUICK_PAGES if options.quick else PAGES
    case = protocol + lines
    cases = [
        (
            (case, carrier),
            Plan(
                name=f"{experiment}/{case}/{carrier}",
                duration_s=static_seconds(count, carrier, rate_mbit),
                path=static_paths(rate_mbit * (2 if carrier == CEILING else 1)),
                carrier=CARRIERS[carrier],
                traffic=(Pages(protocol, count, video=video),),
            ),
        )
        for carrier in carriers
    ]
    return expand(options, experiment, cases, "kernel")


def seconds(results: Results) -> dict[int, float]:
    """The mean page load time, by seed."""
    pages = {seed: report.pages() for seed, report in results.reports().items()}
    return {seed: fmean(page.seconds for page in found) for seed, found in pages.items() if found}


def reduction(
    name: str,
    shorter: Results,
    longer: Results,
    target: float | None = None,
    paper: float | None = None,
) -> Claim:
    """By which part the mean page load time is below another's, seed by seed."""
    above, below = seconds(shorter), seconds(longer)
    found = estimate(
        [1 - above[seed] / below[seed] for seed in sorted(above.keys() & below.keys())]
    )
    note = "" if found is not None else missing(shorter if not above else longer)
    return claim(
        f"{name}: reduction of the mean page load time",
        "of it",
        found,
        target=target,
        paper=paper,
        note=note,
    )


def time_claims(
    name: str,
    results: Results,
    paper_mean: float | None = None,
    paper_median: float | None = None,
) -> list[Claim]:
    """Mean and median page load time in seconds, without anything to meet."""
    pages = {seed: report.pages() for seed, report in results.reports().items()}
    medians = {
        seed: median(page.seconds for page in found) for seed, found in pages.items() if found
    }
    return [
        measures.value(f"{name}: {what} page load time", "s", results, values, None, paper=figure)
        for what, values, figure in (
            ("mean", seconds(results), paper_mean),
            ("median", medians, paper_median),
        )
    ]


def kept_claim(name: str, results: Results, target: float | None) -> list[Claim]:
    """Which part of the sites that were opened saw one address only; nothing over HTTP/3."""
    found = {
        seed: report.values[KEPT]
        for seed, report in results.reports().items()
        if KEPT in report.values
    }
    return [measures.value(f"{name}: {KEPT}", "of them", results, found, target)] if found else []


def reload_claim(name: str, results: Results) -> Claim:
    """How many pages had to be loaded again because connections broke."""
    again = {
        seed: float(sum(page.reloads > 0 for page in report.pages()))
        for seed, report in results.reports().items()
    }
    return measures.value(f"{name}: pages loaded again", "", results, again, None)


def figures(results: Results, names: tuple[str, ...], title: str) -> list[Figure]:
    """The distribution of the load times, and their means."""
    times: dict[str, list[float]] = {}
    for name in names:
        found = results.where("kernel", None, name)
        times[name] = [p.seconds for r in found.reports().values() for p in r.pages()]
    drawn = [name for name, values in times.items() if values]
    if not drawn:
        return []
    means = [measures.bar(estimate([fmean(times[name])])) for name in drawn]
    return [
        Figure(
            f"{title}: distribution of page load times",
            "All pages of all seeds.",
            distributions(times, "seconds"),
        ),
        Figure(
            f"{title}: mean page load time",
            "The same pages for all.",
            bars(drawn, {"mean": means}, "s"),
        ),
    ]
