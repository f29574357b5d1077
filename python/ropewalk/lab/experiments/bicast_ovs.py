"""Copies beneath unmodified OpenVPN over TCP, by Open vSwitch, as in the bicasting paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from ropewalk.lab.cell import Cell, Results
from ropewalk.lab.experiments import bicast_paper as paper
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.bicast_claims import claims, longest, mean_rtt
from ropewalk.lab.experiments.bicast_paper import HARD, QUOTED, SWEEP, Loss, written
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Bar, Figure, bars
from ropewalk.lab.statistics import estimate
from ropewalk.plan import OvsBicast, OvsPolicy, Path, Ping, Plan, Tcp

__all__ = ["ABOUT", "ASSUMPTIONS", "TITLE", "cells", "claims", "figures"]

NAME = "bicast-ovs"
TITLE = "Copies beneath OpenVPN over TCP, on Open vSwitch"
ABOUT = (
    "A download and 30 pings through OpenVPN over TCP; a switch at each end sends its packets over "
    "one of two links that lose, or copies them over both, from the client alone or both ways: all "
    "packets, small ones, or only under loss; over equal and unequal links."
)
ASSUMPTIONS = (
    "Takeuchi et al., sections IV.A and IV.B. “RTT 10 ms” is taken as 5 ms each way on the two "
    "links, and the same on the link to the content server.",
    "The paper's curves begin at 0 and end at 5 % upstream; the steps of 1 % between are ours.",
    "The paper does not say how long its queues were: 1,000 packets is the default of netem.",
    "The paper does not name the congestion control of OpenVPN's connection and of the download: "
    "CUBIC, the default of Linux.",
    "The paper does not say how far apart its 30 pings were, or how long the download ran: every "
    "half second, 16 s. `buffers` switches one such unknown after the other.",
    "Targets are the paper's own figures. Where the text gives a factor without the loss upstream, "
    "the target is at 0 and at 5 % for copies both ways, and at 5 % for copies from the client.",
    "The text gives 3,133 and 2,447 ms as means at 5/0, and 1,720 ms as the mean of the same "
    "setting. Both the mean and the longest round trip are compared with their ratio, and the two "
    "values stand beside our longest round trips.",
    "The abstract names no loss for the gain of up to 8 % by copies from the client. We read 5/0, "
    "because section IV.C says that only losses of the client's packets let them gain.",
    "The paper's text gives no throughput in Mbit/s, only factors.",
    "The paper has OpenVPN 2.5.1 on two machines, a third machine with the content, and links "
    "emulated by `tc`. Here one machine has all, with the OpenVPN that is installed, and links by "
    "`ropewalk-linkem`.",
    "Each link has random losses of its own, which go on from cell to cell.",
)

Cases: TypeAlias = list[tuple[tuple[str, ...], Plan]]

POLICIES: tuple[OvsPolicy, ...] = ("unicast", "c-bicast", "bi-bicast")
WITH_REMOVAL: tuple[OvsPolicy, ...] = ("unicast", "bi-bicast", "bi-bicast-removed")
SELECTIVE: tuple[OvsPolicy, ...] = (
    *("unicast", "bi-bicast", "bi-bicast-small", "bi-bicast-by-loss"),
)
CUBIC = OvsBicast("unicast", "cubic")
SEND_BUFFER_BYTES = 4_194_304
"""The most that Linux lets the buffer of a socket grow to, and that it keeps from then on."""
AHEAD_S = 15.0


@dataclass(frozen=True)
class Setting:
    """What a run has besides losses and policy."""

    carrier: OvsBicast = CUBIC
    queue_packets: int = paper.QUEUE_PACKETS
    delay_ms: float = paper.DELAY_MS
    duration_s: float = paper.DURATION_S
    ping_s: float = paper.PING_S
    window_bytes: int | None = None
    """Of the buffers of both ends of the download."""


SETTINGS = {
    "new-reno": Setting(replace(CUBIC, congestion="new-reno")),
    "bbr": Setting(replace(CUBIC, congestion="bbr")),
    "no sack": Setting(replace(CUBIC, sack=False)),
    # The paper's 10 ms may be meant for one way.
    "10 ms each way": Setting(delay_ms=10.0),
    "queue_100": Setting(queue_packets=100),
    # OpenVPN's own 500 packets are what a ping waits behind under loss.
    "tunnel_50": Setting(replace(CUBIC, tunnel_queue=50)),
}
LONG = Setting(
    replace(CUBIC, send_buffer_bytes=SEND_BUFFER_BYTES, ahead_s=AHEAD_S),
    duration_s=31.0,
    ping_s=1.0,
)
"""A socket that may hold much from the start, and pings of a download that has filled it."""
BUFFERS = {
    "ours": Setting(),
    # One thing more than `ours` ...
    "ours, 31 s": Setting(duration_s=31.0, ping_s=1.0),
    "ours, download ahead": Setting(replace(CUBIC, ahead_s=AHEAD_S)),
    "ours, send buffer": Setting(replace(CUBIC, send_buffer_bytes=SEND_BUFFER_BYTES)),
    "ours, 1000 in front": Setting(replace(CUBIC, tunnel_queue=1000)),
    # ... all that matters, and one thing less or other.
    "long": LONG,
    "long, small send buffer": replace(LONG, carrier=replace(LONG.carrier, send_buffer_bytes=None)),
    "long, not ahead": replace(LONG, carrier=replace(LONG.carrier, ahead_s=0.0)),
    "long, sndbuf 64 KiB": replace(LONG, carrier=replace(LONG.carrier, send_limit_bytes=65_536)),
    "long, window of 256 KiB": replace(LONG, window_bytes=262_144),
    "long, queue of 100": replace(LONG, queue_packets=100),
    "long, 10 ms each way": replace(LONG, delay_ms=10.0),
    "long, no sack": replace(LONG, carrier=replace(LONG.carrier, sack=False)),
    "long, new-reno": replace(LONG, carrier=replace(LONG.carrier, congestion="new-reno")),
    "long, many clients": replace(LONG, carrier=replace(LONG.carrier, multi_client=True)),
}
BUFFER_LOSSES: tuple[Loss, ...] = ((0, 0), (0, 10))

SLOW_MBIT, FAR_MS, BETTER = 5.0, 40.0, (1, 1)
UNEQUAL: dict[str, Path] = {
    "equal": paper.path("b", HARD[0]),
    f"second has {SLOW_MBIT:g} Mbit/s": paper.path("b", HARD[0], rate_mbit=SLOW_MBIT),
    f"second has {FAR_MS:g} ms": paper.path("b", HARD[0], delay_ms=FAR_MS),
    f"second loses {BETTER[0]} %": paper.path("b", BETTER),
}
"""The second link; the first is always the paper's at 5/5."""


def cells(options: Options) -> list[Cell]:
    """Every arm; quick are the settings that the paper's main figures are of.

    What has targets has all seeds; the rest of the sweep, other settings and the search for the
    paper's buffers have one.
    """
    if options.quick:
        return expand(options, NAME, _sweep(HARD), "ovs")
    few = 1 if options.seeds is None else options.seeds
    between = tuple(loss for loss in SWEEP if loss not in QUOTED)
    return [
        *expand(options, NAME, _sweep(QUOTED), "ovs"),
        *expand(options, NAME, _published(), "ovs"),
        *expand(options, NAME, _selective() + _unequal(), "ovs"),
        *expand(options, NAME, _sweep(between), "ovs", few),
        *expand(options, NAME, _settings(), "ovs", few),
        *expand(options, NAME, _buffers(), "ovs", few),
    ]


# Another policy means other controllers: losses and settings change inside a policy.


def _sweep(losses: tuple[Loss, ...]) -> Cases:
    return [
        _case(("sweep", written(loss), policy), policy, loss, Setting())
        for policy in POLICIES
        for loss in losses
    ]


def _published() -> Cases:
    """The setting that comes close to the paper's absolute round trips, with its own figures."""
    return [
        _case(("long", written(loss), policy), policy, loss, LONG)
        for policy in POLICIES
        for loss in QUOTED
    ]


def _settings() -> Cases:
    return [
        _case(("settings", name, written(loss), policy), policy, loss, setting)
        for policy in WITH_REMOVAL
        for name, setting in SETTINGS.items()
        for loss in HARD
    ]


def _buffers() -> Cases:
    return [
        _case(("buffers", name, written(loss), "unicast"), "unicast", loss, setting)
        for name, setting in BUFFERS.items()
        for loss in BUFFER_LOSSES
    ]


def _selective() -> Cases:
    return [
        _case(("selective", written(loss), policy), policy, loss, Setting())
        for policy in SELECTIVE
        for loss in ((0, 0), *HARD)
    ]


def _unequal() -> Cases:
    cases: Cases = []
    for policy in WITH_REMOVAL:
        for name, second in UNEQUAL.items():
            key = ("unequal", name, policy)
            _, plan = _case(key, policy, HARD[0], Setting())
            cases.append((key, replace(plan, path=(plan.path[0], second))))
    # The second link alone: what a user without copies would choose.
    for name, second in UNEQUAL.items():
        if name != "equal":
            other = ("unequal", name, "second alone")
            _, plan = _case(other, "unicast", HARD[0], Setting())
            cases.append((other, replace(plan, path=(replace(second, name="a"), plan.path[1]))))
    return cases


def _case(
    key: tuple[str, ...], policy: OvsPolicy, loss: Loss, setting: Setting
) -> tuple[tuple[str, ...], Plan]:
    carrier = replace(setting.carrier, policy=policy)
    plan = Plan(
        name="/".join((NAME, *key)),
        duration_s=setting.duration_s,
        path=tuple(
            paper.path(name, loss, setting.queue_packets, delay_ms=setting.delay_ms)
            for name in ("a", "b")
        ),
        carrier=carrier,
        traffic=(
            Tcp(congestion=carrier.congestion, window=setting.window_bytes),
            Ping(interval_s=setting.ping_s),
        ),
    )
    return key, plan


def figures(results: Results) -> list[Figure]:
    """Figures 7 and 8: round trips and throughput by losses, ours and with the long buffer."""
    drawn = []
    for arm, losses in (("sweep", SWEEP), ("long", QUOTED)):
        labels = [
            written(loss) for loss in losses if results.where("ovs", arm, written(loss)).planned()
        ]
        if not labels:
            continue
        for title, unit, values, marks in (
            ("Mean round trip", "ms", mean_rtt, paper.MEAN_RTT_MS),
            ("Longest round trip", "ms", longest, paper.LONGEST_RTT_MS),
            ("Throughput", "Mbit/s", measures.goodput, {}),
        ):
            series: dict[str, list[Bar | None]] = {
                policy: [
                    measures.bar(
                        estimate(list(values(results.where("ovs", arm, label, policy)).values()))
                    )
                    for label in labels
                ]
                for policy in POLICIES
            }
            published = [marks.get(("unicast", paper.read(label))) for label in labels]
            drawn.append(
                Figure(
                    f"{title}, {'buffers as Linux has them' if arm == 'sweep' else 'long buffers'}",
                    "By the percentage lost up and down on each link. The marks are the paper's "
                    "figures for unicast, where the text gives one.",
                    bars([f"{label} %" for label in labels], series, unit, published),
                )
            )
    return drawn
