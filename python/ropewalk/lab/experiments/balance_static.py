"""Pages over two equal uplinks: each connection over one of them, without a hub."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import balance_pages as common
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.figures import Figure
from ropewalk.plan import Protocol

NAME = "balance-static"
TITLE = "Pages over two equal uplinks"
ABOUT = (
    "Chromium loads pages over HTTP/1.1 and HTTP/2 from many origins: over each uplink alone, "
    "balanced, in turn, over MPTCP and through the tunnel; HTTP/1.1 also over slow lines."
)
SLOW_MBIT = 1.25
ASSUMPTIONS = (
    *common.ASSUMPTIONS,
    "The paper loads each page ten times.",
    "The paper's MPTCP (0.90) sent 91 % of the bytes over one of two equal paths. Linux's is here.",
    "The published capacities are unknown: 4 Mbit/s each way, 20 ms round trip, 256 KiB of queue. "
    "A queue of 64 KiB drops a third of the packets of many new connections.",
    "At 4 Mbit/s half of the pages take 4 s over one uplink, of which nearly one is not for bytes; "
    "12 s are published. "
    f"Over slow lines, {SLOW_MBIT:g} Mbit/s with the same queue, they take about as long.",
)
ALL = tuple(common.CARRIERS)
SLOW = ("a", "balance", "ovs-balance")
LINES: tuple[tuple[Protocol, str, float, tuple[str, ...]], ...] = (
    ("http/1.1", "", common.RATE_MBIT, ALL),
    ("h2", "", common.RATE_MBIT, ALL),
    ("http/1.1", " slow", SLOW_MBIT, SLOW),
)
"""Protocol, what labels say of the lines, their capacity, and who loads pages over them: over slow
lines those whose load times are published.
"""
TARGETS = {"balance": 0.42, "ovs-balance": 0.37, "balance-no-affinity": 0.45}
"""Of at most 0.5."""
PUBLISHED = 0.37
"""Section 5.1: "almost 37%", the mean over 100 sites."""
MEDIANS = {
    ("http/1.1 slow", "a"): 12.0,
    ("http/1.1 slow", "balance"): 7.5,
    ("http/1.1 slow", "ovs-balance"): 7.5,
}
"""Seconds, figure 9; the lines of 1.25 Mbit/s are those over which one uplink takes as long."""
MPTCP, BELOW_MPTCP = 0.37, 1 - (1 - 0.51) / (1 - 0.37)
"""Figure 10, one site: MPTCP below one uplink; weighted round robin, 0.51 below it, below MPTCP.
The paper prints 0.37 and 0.51; the last follows from them."""
MPTCP_FIRST = 1.3 / (1.3 + 0.13)
AGAINST_MPTCP = ("balance", "ovs-balance", "round-robin")
KEPT = 0.95
"""Opened sites that must see one address. Some are opened while pictures of the last page come."""


def cells(options: Options) -> list[Cell]:
    """Every protocol and line with its carriers; HTTP/1.1 alone for a quick look."""
    found = []
    for protocol, lines, rate_mbit, carriers in LINES[: 1 if options.quick else None]:
        found += common.static_cells(
            options, NAME, protocol, carriers, lines=lines, rate_mbit=rate_mbit
        )
    return found


def claims(results: Results) -> list[Claim]:
    """What balancing takes from the load time over the first uplink alone, and over MPTCP."""
    rows = []
    for case in results.keys(0):
        alone = results.where("kernel", case, "a")
        mptcp = results.where("kernel", case, "mptcp")
        for carrier in results.keys(1):
            found = results.where("kernel", case, carrier)
            name = f"{case}, {carrier}"
            rows += common.time_claims(name, found, None, MEDIANS.get((case, carrier)))
            if carrier in ("a", "b"):
                continue
            rows += common.kept_claim(name, found, KEPT if carrier == "balance" else None)
            is_tcp = case.startswith("http/1.1")
            paper = PUBLISHED if carrier in common.BALANCED and is_tcp else None
            if carrier == "mptcp" and is_tcp:
                paper = MPTCP
            rows.append(
                common.reduction(
                    f"{name} against one uplink", found, alone, TARGETS.get(carrier), paper
                )
            )
            if carrier in AGAINST_MPTCP and case == "http/1.1":
                rows.append(
                    common.reduction(f"{name} against MPTCP", found, mptcp, 0.0, BELOW_MPTCP)
                )
        rows.append(_first_share(case, mptcp))
    return rows


def _first_share(case: str, mptcp: Results) -> Claim:
    """How unevenly MPTCP uses equal paths."""
    shares = {
        seed: report.paths[0].bytes / total
        for seed, report in mptcp.reports().items()
        if (total := sum(path.bytes for path in report.paths))
    }
    return measures.value(
        f"{case}, mptcp: share of the first path in the bytes", "of them", mptcp, shares, None,
        paper=MPTCP_FIRST if case == "http/1.1" else None,
    )  # fmt: skip


def figures(results: Results) -> list[Figure]:
    """Distributions, as the paper draws them."""
    drawn = []
    for case in results.keys(0):
        found = results.where("kernel", case)
        drawn += common.figures(found, tuple(common.CARRIERS), f"Two equal uplinks, {case}")
    return drawn
