"""Pages over two equal uplinks and HTTP/3: one connection to each origin."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import balance_pages as common
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.figures import Figure

NAME = "balance-quic"
TITLE = "Pages over two equal uplinks and HTTP/3"
ABOUT = "As balance-static, over HTTP/3: every connection is a flow of UDP packets."
ASSUMPTIONS = (
    *common.ASSUMPTIONS,
    "The published capacities are unknown: 4 Mbit/s each way, 20 ms round trip, 256 KiB of queue. "
    "A queue of 64 KiB drops a third of the packets of many new connections.",
    "The paper loads one page ten times over Google's QUIC of 2017. Here it is the same pages as "
    "over TCP, over HTTP/3 (RFC 9114).",
)
CARRIERS = (
    *("a", "b", "balance", "ovs-balance"),
    *("balance-all-sites", "balance-no-affinity", "round-robin", "tunnel"),
)
TARGET = 0.30
PUBLISHED = 0.30
"""Figure 11, the mean of one page loaded ten times."""
JUDGED = ("balance", "ovs-balance", "balance-no-affinity")


def cells(options: Options) -> list[Cell]:
    """Every carrier but MPTCP, which carries no UDP."""
    return common.static_cells(options, NAME, "h3", CARRIERS)


def claims(results: Results) -> list[Claim]:
    """What balancing takes from the load time over the first uplink alone."""
    rows = []
    alone = results.where("kernel", "h3", "a")
    for carrier in CARRIERS:
        found = results.where("kernel", "h3", carrier)
        rows += common.time_claims(f"h3, {carrier}", found)
        if carrier in ("a", "b"):
            continue
        target = TARGET if carrier in JUDGED else None
        paper = PUBLISHED if carrier in common.BALANCED else None
        rows.append(
            common.reduction(f"h3, {carrier} against one uplink", found, alone, target, paper)
        )
    return rows


def figures(results: Results) -> list[Figure]:
    """Distributions and means."""
    return common.figures(results, CARRIERS, "Two equal uplinks, HTTP/3")
