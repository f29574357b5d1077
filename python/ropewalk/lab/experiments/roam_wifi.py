"""A station moves between access points of 802.11: what a TCP stream waits.

The radios are emulated by a Linux kernel that has mac80211_hwsim, in a guest (docs/lab.md).
"""

from __future__ import annotations

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.ovs import roam
from ropewalk.lab.statistics import estimate, paired_ratio
from ropewalk.plan import Link, Move, OvsRoamWifi, OvsScheme, Path, Plan, Tcp
from ropewalk.report import HandoverReport

NAME = "roam-wifi"
TITLE = "A station that moves between access points of 802.11"
ABOUT = (
    "The network of roam-ovs with radios: three hostapd access points on channels 1, 6 and 11, "
    "wpa_supplicant, and an agent at each access point. The station leaves for 1 and 2 s, then "
    "goes straight to the next access point."
)
ASSUMPTIONS = (
    "Singh et al., section 3: Reno without SACK, an initial window of 1, 2 hops, links of 80 ms. "
    "The paper limits the sender's window to 40,000 bytes for figure 7, and gives no window for "
    "figure 6; here the receiver's window does that, always. "
    "Rates of 20 Mbit/s and queues of 1,000 packets are taken here.",
    "The emulated medium loses nothing. The paper does not say what its emulated medium lost.",
    "The guest's processor is emulated, at about a tenth of this machine's speed. So controller, "
    "switches and scans take longer than on hardware: absolute times are upper bounds, and only "
    "schemes of one run compare.",
    "Associations are open, without a key. wpa_supplicant scans the new channel before it joins.",
)

SCHEMES: tuple[OvsScheme, ...] = ("bare", "zwa", "zwa-adaptive", "replay")
LINK = Link(rate_mbit=20.0, delay_ms=80, queue_packets=1000)
WINDOW = 40_000
GAPS_S = (1.0, 2.0, 0.0)
"""The last is a roam: the station tells the former access point nothing."""
PAPER = {
    "bare": "published for gaps of 1 to 2 s: 3 to 5 s",
    "zwa": "published for gaps of 1 to 2 s: the gap alone; a few runs broke",
}
"""What the paper says of interruptions, by scheme; it gives no single figures."""


def cells(options: Options) -> list[Cell]:
    """A download with three moves for each scheme; quick are plain TCP and replay."""
    schemes = (SCHEMES[0], SCHEMES[-1]) if options.quick else SCHEMES
    return expand(options, NAME, [((scheme,), _plan(scheme)) for scheme in schemes], "ovs")


def _plan(scheme: OvsScheme) -> Plan:
    moves = tuple(Move(gap) for gap in GAPS_S)
    carrier = OvsRoamWifi(scheme, 2, moves, sack=False, initial_window=1)
    return Plan(
        name=f"{NAME}/{scheme}",
        duration_s=roam.duration_s(LINK, carrier),
        path=(Path("link", LINK),),
        carrier=carrier,
        traffic=(Tcp(congestion="new-reno", window=WINDOW),),
    )


def claims(results: Results) -> list[Claim]:
    """Replay loses nothing and beats plain TCP; the others beside what the paper says."""
    rows = []
    for scheme in SCHEMES:
        found = results.where("ovs", scheme)
        if found.planned():
            rows += _ends(found, scheme)
            rows += [_interrupted(found, scheme, gap) for gap in GAPS_S]
    bare = results.where("ovs", "bare")
    for scheme in SCHEMES[1:]:
        found = results.where("ovs", scheme)
        for gap in GAPS_S if found.planned() else ():
            ratio = paired_ratio(_interruption_s(found, gap), _interruption_s(bare, gap))
            name = f"{scheme}: interruption by that of bare, {_gap(gap)}"
            target = 1.0 if scheme == "replay" else None
            lacking = bare if found.reports() else found
            note = "" if ratio else missing(lacking)
            rows.append(claim(name, "ratio", ratio, relation="<=", target=target, note=note))
    return rows


def _ends(found: Results, scheme: str) -> list[Claim]:
    """How connections ended; with replay, each must have ended well with every byte."""
    target = 0.0 if scheme == "replay" else None
    broken = {seed: float(report.broken) for seed, report in found.reports().items()}
    lost = {seed: report.values.get(roam.LOST, 0.0) for seed, report in found.reports().items()}
    return [
        measures.value(f"{scheme}: {name}", unit, found, values, target, relation="<=")
        for name, unit, values in (
            ("connections that broke or hung", "", broken),
            ("bytes lost or changed", "bytes", lost),
        )
    ]


def _interrupted(found: Results, scheme: str, gap_s: float) -> Claim:
    note = PAPER.get(scheme, "") if gap_s else ""
    name = f"{scheme}: interruption, {_gap(gap_s)}"
    return measures.value(name, "s", found, _interruption_s(found, gap_s), None, note=note)


def _interruption_s(found: Results, gap_s: float) -> dict[int, float]:
    """From the time the station left, as planned, to the first new byte, s, by seed."""
    return {
        seed: gap_s + _idle_s(row)
        for seed, report in found.reports().items()
        for row in report.handovers
        if row.gap_s == gap_s
    }


def _idle_s(row: HandoverReport) -> float:
    """From the association to the first new byte; all the time that the move had if none came."""
    idle_ms = row.had_ms if row.receiver_idle_ms is None else row.receiver_idle_ms
    return idle_ms / 1e3


def _gap(gap_s: float) -> str:
    return f"away for {gap_s:g} s" if gap_s else "straight to the next access point"


def figures(results: Results) -> list[Figure]:
    """Interruption by kind of move."""
    rows = [_gap(gap) for gap in GAPS_S]
    series: dict[str, list[Bar | None]] = {
        scheme: [
            measures.bar(estimate(list(_interruption_s(found, gap).values()))) for gap in GAPS_S
        ]
        for scheme in SCHEMES
        if (found := results.where("ovs", scheme)).reports()
    }
    if not series:
        return []
    caption = "From the time the station left to the first new byte. Reno, 2 hops of 80 ms."
    return [Figure("Interruption of a download", caption, bars(rows, series, "s"))]
