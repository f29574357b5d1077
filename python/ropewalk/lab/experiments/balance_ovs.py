"""Each new flow over one of two uplinks, by Open vSwitch: how fast and exact the choice is."""

from __future__ import annotations

from itertools import product

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim, Relation
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, bars
from ropewalk.lab.ovs import balance
from ropewalk.lab.statistics import estimate
from ropewalk.plan import Link, OvsBalance, OvsCase, OvsDecider, OvsProbe, Path, Plan

NAME = "balance-ovs"
TITLE = "Flows over two uplinks, on Open vSwitch"
ABOUT = (
    "New connections and datagram flows over two uplinks with weights 3 and 1: added set-up delay, "
    "shares, many flows a second, a controller that is killed, an uplink that falls silent, and "
    "the rates that are found."
)
STEPS_MBIT = 20.0
ASSUMPTIONS = (
    "The paper on flow balancing (AlNajjar et al.) gives page load times of sites as they were, "
    "and no set-up delay or share: nothing here has a published value. Its page loads are the "
    "carrier `ovs-balance` of `balance-static`, `-dynamic`, `-quic` and `-video`.",
    "“Added” is a connection's set-up less an exchange over the same connection.",
    f"A step takes the first uplink from {STEPS_MBIT:g} Mbit/s to a quarter and back, under eight "
    "downloads. An estimate is right within 15 %.",
    "A share is within 3 % when it is within three of 100 flows of the weight's.",
    "Uplinks are plain veth pairs, limited by a token bucket where a rate is to be found: eight "
    "downloads fill both.",
    "Idle uplinks, whose rate is found by probing, are emulated links of 10 ms one way: a token "
    "bucket would let a train through at once. The paper refers to an earlier one of its authors "
    "(ICSPCS 2016) for its probing, which is `vps`: packets of several sizes. `train` is what the "
    "nftables data plane does.",
)
SHARE = balance.WEIGHTS[0] / sum(balance.WEIGHTS)
RATES_MBIT = (2.0, 10.0, 50.0, 100.0)
QUICK_RATES_MBIT = (10.0,)
_SECONDS = {
    "set-up": 3.0,
    "shares": 10.0,
    "new-flows": 12.0,
    "controller-killed": 17.0,
    "uplink-dies": 18.0,
    "capacity": 9.0,
    "idle-capacity": 40.0,
    "capacity-steps": 45.0,
}
"""What each case takes, about."""

_DECIDERS: tuple[OvsDecider, ...] = ("controller", "switch")
_PROBES: tuple[OvsProbe, ...] = ("train", "vps")
_CASES: tuple[OvsCase, ...] = ("set-up", "shares", "new-flows", "controller-killed")
_Target = tuple[Relation, float, float]
TARGETS: dict[tuple[str, str], _Target] = {
    ("set-up", balance.ADDED): ("<=", 5.0, 0.0),
    ("set-up", balance.ADDED_99): ("<=", 20.0, 0.0),
    ("set-up", balance.FAILED): ("<=", 0.0, 0.0),
    ("shares", balance.FAILED): ("<=", 0.0, 0.0),
    ("shares", balance.SHARE): ("within", SHARE, 0.03),
    ("new-flows", balance.LOST): ("<=", 0.0, 0.0),
    ("new-flows", balance.RATE): (">=", 0.98 * balance.NEW_FLOWS_PER_S, 0.0),
    ("new-flows", balance.SHARE): ("within", SHARE, 0.03),
    ("controller-killed", balance.BROKEN): ("<=", 0.0, 0.0),
    ("controller-killed", balance.AFTERWARDS): (">=", 20.0, 0.0),
    ("controller-killed", balance.CHANGES): ("<=", 0.0, 0.0),
    ("uplink-dies", balance.ENDED): (">=", 4.0, 0.0),
    ("uplink-dies", balance.WENT_ON): (">=", 4.0, 0.0),
    ("uplink-dies", balance.DEAD): ("<=", 0.0, 0.0),
    ("capacity-steps", balance.FALL): ("<=", 3.0, 0.0),
    ("capacity-steps", balance.RISE): ("<=", 3.0, 0.0),
    ("capacity-steps", balance.KEPT): (">=", 0.85, 0.0),
}
"""What the controller's choice must show, by case and value; shares by a hash scatter."""
CAPACITY: _Target = ("within", 1.0, 0.15)


def cells(options: Options) -> list[Cell]:
    """Every case, decided by the controller, and by the switch where that is another thing."""
    cases: list[tuple[tuple[str, ...], Plan]] = []
    for decide, case in product(_DECIDERS, _CASES):
        carrier = OvsBalance(case, decide, balance.WEIGHTS)
        cases.append(((case, decide), _plan(carrier, None)))
    carrier = OvsBalance("uplink-dies", weights=balance.WEIGHTS)
    cases.append((("uplink-dies", "controller"), _plan(carrier, None)))
    cases.append(
        (("capacity-steps", "controller"), _plan(OvsBalance("capacity-steps"), STEPS_MBIT))
    )
    for rate in QUICK_RATES_MBIT if options.quick else RATES_MBIT:
        # Without weights, for those that are found to count.
        plan = _plan(OvsBalance("capacity"), rate)
        cases.append((("capacity", "controller", f"{rate:g}_mbit"), plan))
        for probe in _PROBES:
            plan = _plan(OvsBalance("idle-capacity", probe=probe), rate)
            cases.append((("idle-capacity", probe, f"{rate:g}_mbit"), plan))
    return expand(options, NAME, cases, "ovs")


def _plan(carrier: OvsBalance, rate_mbit: float | None) -> Plan:
    return Plan(
        name=f"{NAME}/{carrier.case}/{carrier.decide}/{carrier.probe}/{rate_mbit}",
        duration_s=_SECONDS[carrier.case],
        path=tuple(Path(name, Link(rate_mbit=rate_mbit)) for name in ("u0", "u1")),
        carrier=carrier,
    )


def claims(results: Results) -> list[Claim]:
    """Every value that was measured, with its target where it has one."""
    rows = []
    for key in dict.fromkeys(outcome.cell.key for outcome in results.outcomes):
        found = results.where("ovs", *key)
        for name in _names(found, key):
            relation, target, tolerance = _target(key, name) or ("none", None, 0.0)
            label = ", ".join((*key, name)).replace("_mbit", " Mbit/s")
            values = {
                seed: report.values[name]
                for seed, report in found.reports().items()
                if name in report.values
            }
            rows.append(
                measures.value(
                    label, "", found, values, target, relation=relation, tolerance=tolerance
                )
            )
    return rows


def _target(key: tuple[str, ...], name: str) -> _Target | None:
    if name.startswith(balance.CAPACITY):
        return CAPACITY
    return TARGETS.get((key[0], name)) if key[1] == "controller" else None


def _names(found: Results, key: tuple[str, ...]) -> list[str]:
    """What has a target, measured or not, and everything else that was measured."""
    wanted = [name for case, name in TARGETS if case == key[0] and key[1] == "controller"]
    if key[0] in ("capacity", "idle-capacity"):
        wanted = [f"{balance.CAPACITY}, {name}" for name in ("u0", "u1")]
    measured = [name for report in found.reports().values() for name in report.values]
    return list(dict.fromkeys((*wanted, *measured)))


def figures(results: Results) -> list[Figure]:
    """Added set-up delay by who decides, and rates found by those that were set."""
    deciders = [name for name in _DECIDERS if results.where("ovs", None, name).planned()]
    delays = {
        name: [
            measures.bar(estimate(_values(results.where("ovs", "set-up", decide), value)))
            for decide in deciders
        ]
        for name, value in (("median", balance.ADDED), ("99 %", balance.ADDED_99))
    }
    drawn = [
        Figure(
            "Set-up of a connection: what deciding adds",
            f"{balance.CONNECTIONS} connections one by one; asked for: 5 and 20 ms at most.",
            bars([f"by the {name}" for name in deciders], delays, "ms"),
        )
    ]
    for case, by, about in (
        ("capacity", "controller", "After six seconds of downloads that fill both uplinks."),
        ("idle-capacity", "train", "Idle uplinks, by packets that leave back to back."),
        ("idle-capacity", "vps", "Idle uplinks, by packets of several sizes."),
    ):
        drawn += _rates(results, case, by, about)
    return drawn


def _rates(results: Results, case: str, by: str, about: str) -> list[Figure]:
    """Rates found by those that were set, if that was planned."""
    planned = {rate: results.where("ovs", case, by, f"{rate:g}_mbit") for rate in RATES_MBIT}
    planned = {rate: found for rate, found in planned.items() if found.planned()}
    if not planned:
        return []
    bars_of = {
        uplink: [
            measures.bar(estimate(_values(found, f"{balance.CAPACITY}, {uplink}")))
            for found in planned.values()
        ]
        for uplink in ("u0", "u1")
    }
    names = [f"{rate:g} Mbit/s" for rate in planned]
    return [Figure("Rate found by rate set", about, bars(names, bars_of, "ratio"))]


def _values(results: Results, name: str) -> list[float]:
    return [r.values[name] for r in results.reports().values() if name in r.values]
