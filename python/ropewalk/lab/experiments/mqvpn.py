"""Mqvpn: the default beside mqvpn, on the sixteen pairs of paths that mqvpn published."""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim
from ropewalk.lab.experiments import grid, measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, dots
from ropewalk.plan import Carrier, Direct, Peer, Ping, Plan, Tunnel

NAME = "mqvpn"
TITLE = "Ropewalk beside mqvpn"
ABOUT = (
    "The 16 pairs of paths of `grid`, which mqvpn published: the default of Ropewalk, mqvpn as it "
    "is by default, with its scheduler minrtt, with its buffer for order and with its TCP lane, "
    "and each path alone. One QUIC flow with BBR, one CUBIC flow and five."
)
ASSUMPTIONS = (
    *grid.ASSUMPTIONS[:2],
    "mqvpn is one program built from its public source; its congestion control is its default, "
    "bbr2. It runs on the kernel only.",
    "The best of mqvpn is the one of its settings here with the largest mean in the cell. mqvpn "
    "advises its buffer for order in six of the pairs; here it is a setting in all.",
)
TRAFFIC = ("quic-bbr-1", "tcp-cubic-1", "tcp-cubic-5")
PEERS: dict[str, Carrier] = {
    name: Peer(name)
    for name in (
        "mqvpn",
        "mqvpn-minrtt",
        "mqvpn-reorder",
        "mqvpn-minrtt-reorder",
        "mqvpn-hybrid",
    )
}
"""By default (its scheduler wlb), with its scheduler minrtt, both with its buffer for order, and
with its TCP lane."""
CARRIERS: dict[str, Carrier] = {
    "direct-a": Direct("a"),
    "direct-b": Direct("b"),
    "auto": Tunnel(),
    **PEERS,
}
QUICK_PROFILES = ("baseline", "loss_2")
LEAST = 0.95
"""Of the best setting of mqvpn, which nobody knows before the run."""


def cells(options: Options) -> list[Cell]:
    """Every pair, traffic and carrier; two pairs and one kind of traffic for a quick look."""
    named = [
        ((profile.name, carrier, kind), plan(profile, carrier, kind, options.quick))
        for profile in grid.PROFILES
        if not options.quick or profile.name in QUICK_PROFILES
        for kind in (TRAFFIC[:1] if options.quick else TRAFFIC)
        for carrier in CARRIERS
        # The TCP lane carries QUIC as the default does.
        if not (carrier == "mqvpn-hybrid" and kind.startswith("quic"))
    ]
    return expand(options, NAME, named, "kernel") if "kernel" in options.plan_runners else []


def plan(profile: grid.Profile, carrier: str, kind: str, quick: bool) -> Plan:
    """One case."""
    duration, warmup = (6.0, 2.0) if quick else (12.0, 3.0)
    return Plan(
        name=f"{NAME}/{profile.name}/{carrier}/{kind}",
        duration_s=duration,
        warmup_s=warmup,
        path=(profile.a.path("a"), profile.b.path("b")),
        carrier=CARRIERS[carrier],
        traffic=(grid.TRAFFIC[kind], Ping()),
    )


def claims(results: Results) -> list[Claim]:
    """The default against the best and the default of mqvpn, in every pair with every traffic."""
    rows = []
    for profile in grid.PROFILES:
        for kind in TRAFFIC:
            if results.where("kernel", profile.name, None, kind).planned():
                rows += _case(results, profile.name, kind)
    return rows


def _case(results: Results, profile: str, kind: str) -> list[Claim]:
    def case(carrier: str) -> Results:
        return results.where("kernel", profile, carrier, kind)

    where = f"{profile}, {kind}"
    auto, default = case("auto"), case("mqvpn")
    theirs = measures.best(*(case(name) for name in PEERS))
    rows = [
        measures.compare(f"{where}: auto ÷ the best of mqvpn", auto, theirs, LEAST),
        measures.compare(f"{where}: auto ÷ mqvpn by default", auto, default, 1.0),
    ]
    for name, found in {"auto": auto, **{name: case(name) for name in PEERS}}.items():
        if found.planned():
            rate = measures.goodput(found)
            ping = measures.ping_p95(found)
            rows += [
                measures.value(f"{where}: {name}", "Mbit/s", found, rate, None),
                measures.value(f"{where}: {name}, ping p95", "ms", found, ping, None),
            ]
    return rows


def figures(results: Results) -> list[Figure]:
    """Goodput by the best single path without a tunnel."""
    names = [profile.name for profile in grid.PROFILES]
    drawn = []
    for kind in TRAFFIC:
        series = {
            carrier: [grid.gain(results, "kernel", name, carrier, kind) for name in names]
            for carrier in ("auto", *PEERS)
        }
        if any(gain is not None for gains in series.values() for gain in gains):
            drawn.append(
                Figure(
                    f"{kind}: goodput by the best single path",
                    "Dashed: the best single path without a tunnel.",
                    dots(names, series, "goodput ÷ best single path", 1.0),
                )
            )
    return drawn
