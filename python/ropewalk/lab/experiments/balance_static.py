"""Pages over two equal uplinks: each connection over one of them, without a hub."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import balance_pages as common
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
    "The published capacities are unknown: 4 Mbit/s each way, 20 ms round trip, 256 KiB of queue. "
    "A queue of 64 KiB drops a third of the packets of many new connections.",
    "At 4 Mbit/s half of the pages take 4 s over one uplink, of which nearly one is not for bytes; "
    "12 s are published. "
    f"Over slow lines, {SLOW_MBIT:g} Mbit/s with the same queue, they take about as long.",
)
LINES: tuple[tuple[Protocol, str, float], ...] = (
    ("http/1.1", "", common.RATE_MBIT),
    ("h2", "", common.RATE_MBIT),
    ("http/1.1", " slow", SLOW_MBIT),
)
"""Protocol, what labels say of the lines, and their capacity."""
TARGET = 0.45
"""Of at most 0.5."""
PUBLISHED = 0.37


def cells(options: Options) -> list[Cell]:
    """Every carrier, protocol and line; HTTP/1.1 alone for a quick look."""
    found = []
    for protocol, lines, rate_mbit in LINES[: 1 if options.quick else None]:
        carriers = tuple(common.CARRIERS)
        found += common.static_cells(
            options, NAME, protocol, carriers, lines=lines, rate_mbit=rate_mbit
        )
    return found


def claims(results: Results) -> list[Claim]:
    """What balancing takes from the load time over the first uplink alone."""
    rows = []
    for case in results.keys(0):
        alone = results.where("kernel", case, "a")
        for carrier in results.keys(1):
            found = results.where("kernel", case, carrier)
            name = f"{case}, {carrier}"
            rows.append(common.mean_claim(name, found))
            if carrier in ("a", "b"):
                continue
            target = TARGET if carrier in ("balance", "balance-no-affinity") else None
            paper = (
                PUBLISHED if carrier in common.BALANCED and case.startswith("http/1.1") else None
            )
            rows.append(common.reduction(f"{name} against one uplink", found, alone, target, paper))
    return rows


def figures(results: Results) -> list[Figure]:
    """Distributions, as the paper draws them."""
    drawn = []
    for case in results.keys(0):
        found = results.where("kernel", case)
        drawn += common.figures(found, tuple(common.CARRIERS), f"Two equal uplinks, {case}")
    return drawn
