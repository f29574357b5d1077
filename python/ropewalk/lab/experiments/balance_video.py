"""Pages beside a film over two equal uplinks and HTTP/3."""

from __future__ import annotations

from ropewalk.lab.browser import site, video
from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import balance_pages as common
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.statistics import estimate, paired_ratio
from ropewalk.plan import Pages, Plan

NAME = "balance-video"
TITLE = "Pages beside a film, over two equal uplinks and HTTP/3"
ABOUT = "As balance-quic, while another window plays a film; and the film alone over one uplink."
_RATES = ", ".join(f"{rate:g}" for rate in site.FILM_RATES_MBIT)
ASSUMPTIONS = (
    *common.ASSUMPTIONS,
    "The film is an adaptive player in a window of the browser: segments of "
    f"{site.FILM_SEGMENT_S:g} s at {_RATES} Mbit/s, the highest below {video.SAFETY:.0%} of the "
    f"rate of the last three; {video.BUFFER_S:g} s of buffer.",
    "The rate of the film is what its player received by the time in which the pages were loaded. "
    "On Open vSwitch it is that of the flow statistics, which count frames: 4 % more.",
    "The paper's film is encoded at 1 Mbit/s and has 3 minutes; its text gives no measured rate, "
    "and says that the film gets more with both uplinks than with one. Our film has rates up to 8 "
    "Mbit/s and does not end, so it takes more of the uplinks.",
    "The paper loads the 100 sites as they are, of which few speak QUIC; here all pages come over "
    "HTTP/3.",
)
CARRIERS = ("a", "balance", "ovs-balance", "balance-no-affinity", "round-robin")
REFERENCE = "film-alone"
REFERENCE_S = 60.0
PUBLISHED = 0.22
"""Figure 12."""
TARGETS = {"balance": 0.22, "ovs-balance": 0.22}


def cells(options: Options) -> list[Cell]:
    """Pages and film over each carrier, and the film without pages over one uplink."""
    found = common.static_cells(options, NAME, "h3", CARRIERS, video=True)
    plan = Plan(
        name=f"{NAME}/h3/{REFERENCE}",
        duration_s=20.0 if options.quick else REFERENCE_S,
        path=common.static_paths(),
        carrier=common.CARRIERS["a"],
        traffic=(Pages("h3", 0, video=True),),
    )
    return found + expand(options, NAME, [(("h3", REFERENCE), plan)], "kernel")


def rates(results: Results) -> dict[int, float]:
    """What the player received, Mbit/s, by seed."""
    return {
        seed: traffic.goodput_mbit
        for seed, report in results.reports().items()
        for traffic in report.traffic
        if traffic.kind == "video"
    }


def claims(results: Results) -> list[Claim]:
    """Pages come sooner, and the film is not worse."""
    rows = []
    alone = results.where("kernel", "h3", "a")
    reference = results.where("kernel", "h3", REFERENCE)
    for carrier in (*CARRIERS, REFERENCE):
        found = results.where("kernel", "h3", carrier)
        rows.append(measures.value(f"{carrier}: film", "Mbit/s", found, rates(found), None))
        if carrier not in common.BALANCED:
            continue
        target = None if carrier == "round-robin" else 1.0
        ratio = paired_ratio(rates(found), rates(alone))
        note = "" if ratio is not None else missing(found if not found.reports() else alone)
        rows.append(
            claim(f"{carrier} ÷ one uplink: film", "ratio", ratio, target=target, note=note)
        )
        rows += common.time_claims(carrier, found)
        rows.append(
            common.reduction(
                f"{carrier} against one uplink", found, alone, TARGETS.get(carrier), PUBLISHED
            )
        )
        rows.append(_below(f"{carrier} ÷ without pages: film", found, reference))
    return rows


def _below(name: str, found: Results, reference: Results) -> Claim:
    """With pages beside it the film gets at most what it gets alone."""
    ratio = paired_ratio(rates(found), rates(reference))
    note = "" if ratio is not None else missing(reference if found.reports() else found)
    return claim(name, "ratio", ratio, note=note)


def figures(results: Results) -> list[Figure]:
    """Distributions and means of the load times; rates of the film."""
    drawn = common.figures(results, CARRIERS, "Pages beside a film")
    names = (*CARRIERS, REFERENCE)
    found = [rates(results.where("kernel", "h3", name)) for name in names]
    if any(found):
        heights = [measures.bar(estimate(list(values.values()))) for values in found]
        caption = "By the time in which the pages were loaded."
        drawn.append(
            Figure("What the film received", caption, bars(names, {"film": heights}, "Mbit/s"))
        )
    return drawn
