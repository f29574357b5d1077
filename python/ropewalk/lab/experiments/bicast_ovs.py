"""Copies beneath unmodified OpenVPN over TCP, by Open vSwitch, as in the bicasting paper."""

from __future__ import annotations

from itertools import product

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.ovs.bicast import PACKETS, PROCESSOR
from ropewalk.lab.statistics import Estimate, estimate, paired_ratio
from ropewalk.plan import Congestion, Link, OvsBicast, OvsPolicy, Path, Ping, Plan, Tcp

NAME = "bicast-ovs"
TITLE = "Copies beneath OpenVPN over TCP, on Open vSwitch"
ABOUT = (
    "A download and 30 pings through OpenVPN over TCP; a switch at each end sends its packets over "
    "one of two links that lose, or copies them over both, from the client alone or both ways, "
    "second copies removed in front of OpenVPN or not."
)
ASSUMPTIONS = (
    "Takeuchi et al., sections IV.A and IV.B. “RTT 10 ms” is taken as 5 ms each way on the two "
    "links, and the same on the link to the content server.",
    "The paper does not say how long its queues were: 1,000 packets is the default of netem, 100 "
    "stands for shorter ones. Targets are for 1,000.",
    "The congestion control, of which the paper says nothing, is that of OpenVPN's connection and "
    "of the download in it. Targets are for CUBIC, the default of Linux.",
    "Rates, 10 Mbit/s, are those of the paper; so are 30 pings, here every half second.",
    "With short queues in front of OpenVPN, unicast has them too; those settings have no target.",
    "Each link has random losses of its own, which go on from cell to cell.",
)

POLICIES: tuple[OvsPolicy, ...] = ("unicast", "c-bicast", "bi-bicast", "bi-bicast-removed")
CONGESTIONS: tuple[Congestion, ...] = ("cubic", "new-reno", "bbr")
LOSSES = tuple(product((0, 5), (0, 5, 10)))
"""Percent upstream (client to server) and downstream."""
HARD = ((5, 5), (5, 10))
QUEUES = (1000, 100)
"""Packets."""
SHORT_TUNNEL_QUEUE = 50
"""Packets in front of OpenVPN, where its own 500 are what a ping waits behind."""
SHORT = f"queue_{QUEUES[0]}_tunnel_{SHORT_TUNNEL_QUEUE}"
RATE_MBIT = 10
DELAY_MS = 5.0
DURATION_S = 16.0

GAIN_MIN = {(5, 5): 3.0, (5, 10): 5.0}
"""Copies both ways: throughput by unicast's, at least."""
GAIN_PAPER = {(5, 5): 3.0, (5, 10): 6.0}
LONGEST_MAX = 0.25
"""Copies both ways: longest round trip by unicast's, at most."""
LONGEST_PAPER = {(5, 5): 2450 / 10046, (5, 10): 3925 / 19591}
MEAN_RTT_PAPER_MS = {(0, 0): 1389.0, (0, 5): 6066.0, (0, 10): 11602.0, (5, 0): 1720.0}
"""Of unicast."""
CLIENT_GAIN_PAPER = 1.08
"""Copies from the client: throughput by unicast's, at most."""
CLIENT_LONGEST_PAPER = {(0, 5): 0.9, (5, 5): 0.9}


def cells(options: Options) -> list[Cell]:
    """Every policy in every setting; quick are those that have targets."""
    congestions = CONGESTIONS[:1] if options.quick else CONGESTIONS
    queues = QUEUES[:1] if options.quick else QUEUES
    losses = HARD if options.quick else LOSSES
    # Another policy means other controllers: settings change inside a policy.
    cases: list[tuple[tuple[str, ...], Plan]] = []
    for policy in POLICIES:
        for congestion, queue, loss in product(congestions, queues, losses):
            key = (f"{loss[0]}/{loss[1]}", congestion, f"queue_{queue}", policy)
            cases.append((key, _plan(key, OvsBicast(policy, congestion), queue, loss)))
        for loss in () if options.quick else HARD:
            carrier = OvsBicast(policy, "cubic", SHORT_TUNNEL_QUEUE)
            key = (f"{loss[0]}/{loss[1]}", "cubic", SHORT, policy)
            cases.append((key, _plan(key, carrier, QUEUES[0], loss)))
    return expand(options, NAME, cases, "ovs")


def _plan(key: tuple[str, ...], carrier: OvsBicast, queue: int, loss: tuple[int, int]) -> Plan:
    both = Link(rate_mbit=RATE_MBIT, delay_ms=DELAY_MS, queue_packets=queue)
    up, down = (Link(loss=percent / 100 or None) for percent in loss)
    return Plan(
        name="/".join((NAME, *key)),
        duration_s=DURATION_S,
        path=tuple(Path(name, both, up=up, down=down) for name in ("a", "b")),
        carrier=carrier,
        traffic=(Tcp(congestion=carrier.congestion), Ping(interval_s=0.5)),
    )


def claims(results: Results) -> list[Claim]:
    """Gains over unicast of the same setting and seed, and what copies cost."""
    rows = []
    for loss, congestion, queue in dict.fromkeys(
        outcome.cell.key[:3] for outcome in results.outcomes
    ):
        setting = (loss, congestion, queue)
        alone = results.where("ovs", *setting, "unicast")
        packets = queue.removeprefix("queue_").replace("_tunnel_", " packets, in front of OpenVPN ")
        label = f"{loss} % lost, {congestion}, {packets} packets"
        rows += _alone(alone, setting, label)
        for policy in POLICIES[1:]:
            found = results.where("ovs", *setting, policy)
            if found.planned():
                rows += _gains(found, alone, setting, f"{label}: {policy}")
                rows += _costs(found, f"{label}: {policy}")
    return rows


def _alone(alone: Results, setting: tuple[str, ...], label: str) -> list[Claim]:
    loss = _percent(setting[0])
    usual = setting[1:] == ("cubic", f"queue_{QUEUES[0]}")
    paper = MEAN_RTT_PAPER_MS.get(loss) if usual else None
    mean = estimate(list(_rtt(alone, "mean").values()))
    name = f"{label}: unicast, mean round trip"
    return [claim(name, "ms", mean, paper=paper, note="" if mean else missing(alone))]


def _gains(found: Results, alone: Results, setting: tuple[str, ...], label: str) -> list[Claim]:
    loss, policy = _percent(setting[0]), label.rpartition(": ")[2]
    usual = setting[1:] == ("cubic", f"queue_{QUEUES[0]}")
    judged = usual and policy.startswith("bi-")
    client = usual and policy == "c-bicast"
    gain_paper = GAIN_PAPER.get(loss) if judged else CLIENT_GAIN_PAPER if client else None
    longest_paper = (LONGEST_PAPER if judged else CLIENT_LONGEST_PAPER if client else {}).get(loss)
    longest = paired_ratio(_rtt(found, "max"), _rtt(alone, "max"))
    return [
        measures.compare(
            f"{label}, throughput by unicast's",
            found,
            alone,
            GAIN_MIN.get(loss) if judged else None,
            paper=gain_paper,
        ),
        claim(
            f"{label}, longest round trip by unicast's",
            "ratio",
            longest,
            relation="<=",
            target=LONGEST_MAX if judged and loss in HARD else None,
            paper=longest_paper,
            note="" if longest else missing(found if alone.reports() else alone),
        ),
    ]


def _costs(found: Results, label: str) -> list[Claim]:
    return [
        claim(f"{label}, {name}", "", estimate(values))
        for name, values in (
            (PACKETS, [r.values[PACKETS] for r in found.reports().values()]),
            (
                "processor time of both switches for each 10 Mbit/s, of a core",
                [
                    10 * r.values[PROCESSOR] / r.goodput_mbit
                    for r in found.reports().values()
                    if r.goodput_mbit > 0
                ],
            ),
        )
        if values
    ]


def _rtt(results: Results, which: str) -> dict[int, float]:
    """Mean (`mean`) or longest (`max`) of the answered pings, ms, by seed."""
    pings = {seed: report.ping() for seed, report in results.reports().items()}
    return {
        seed: float(getattr(ping.delay_ms, which))
        for seed, ping in pings.items()
        if ping is not None and ping.delay_ms
    }


def _percent(loss: str) -> tuple[int, int]:
    up, _, down = loss.partition("/")
    return int(up), int(down)


def figures(results: Results) -> list[Figure]:
    """Throughput and longest round trip by losses, for each congestion control and queue."""
    drawn = []
    for congestion, queue in product(CONGESTIONS, QUEUES):
        losses = [
            f"{up}/{down}"
            for up, down in LOSSES
            if results.where("ovs", f"{up}/{down}", congestion, f"queue_{queue}").planned()
        ]
        if not losses:
            continue
        usual = (congestion, queue) == ("cubic", QUEUES[0])
        for title, unit, marks in (
            ("Throughput by unicast's", "ratio", GAIN_PAPER),
            ("Longest round trip by unicast's", "ratio", LONGEST_PAPER),
        ):
            series: dict[str, list[Bar | None]] = {
                policy: [
                    measures.bar(
                        _ratio(results, title, (loss, congestion, f"queue_{queue}"), policy)
                    )
                    for loss in losses
                ]
                for policy in POLICIES[1:]
            }
            published = [marks.get(_percent(loss)) if usual else None for loss in losses]
            drawn.append(
                Figure(
                    f"{title}, {congestion}, queues of {queue} packets",
                    "By the percentage lost up and down on each link; the paper's values, where "
                    "it has them, are for copies both ways.",
                    bars([f"{loss} %" for loss in losses], series, unit, published),
                )
            )
    return drawn


def _ratio(results: Results, title: str, setting: tuple[str, ...], policy: str) -> Estimate | None:
    found = results.where("ovs", *setting, policy)
    alone = results.where("ovs", *setting, "unicast")
    if title.startswith("Throughput"):
        return paired_ratio(measures.goodput(found), measures.goodput(alone))
    return paired_ratio(_rtt(found, "max"), _rtt(alone, "max"))
