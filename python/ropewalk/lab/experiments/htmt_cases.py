"""The cases of `htmt`: the paper's tunnel and ours over the paper's paths, and single changes.

Source of the settings that the paper leaves out: the scripts and the code in the authors' public
repository (github.com/richi235/einsfroest). They may belong to later runs than the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ropewalk.lab.experiments import measures
from ropewalk.plan import Carrier, Direct, Link, Mptcp, Path, Ping, Plan, Tcp, Tunnel

NAME = "htmt"
PAPER_SECONDS = 70
OURS, PAPER, PER_FLOW, SWITCHES = "ours", "paper", "paper-per-flow", "switches"
"""Arms: first places of the keys."""
FLOWS = 5
OUR_QUEUE_BYTES = 128 * 1024
PAPER_QUEUE_PACKETS = 1_000
"""Default limit of `netem`, which the authors' scripts leave as it is."""
PAPER_SEGMENT = 1_419 - 52
"""Bytes of TCP data in a packet of 1,419 bytes, the MTU of the authors' tunnel interface."""
PAPER_SEND_BUFFER = 5
"""Packets: `tx_qlen` of DCCP. The authors' scripts set Linux's default, or nothing."""


@dataclass(frozen=True)
class PathSet:
    """Paths (Mbit/s, RTT in ms), and the paper's megabytes in 70 s by the paper's scheduler."""

    name: str
    paths: tuple[tuple[float, float], ...]
    paper: Mapping[str, float]

    @property
    def described(self) -> str:
        """The paths in words."""
        return " and ".join(f"{rate:g} Mbit/s, {rtt:g} ms" for rate, rtt in self.paths)


PAIRS = (
    PathSet("equal", ((8, 50), (8, 50)), {"htmt": 80, "low-rtt": 80, "otias": 65, "afmt": 65}),
    PathSet("unequal", ((16, 50), (8, 70)), {"htmt": 180, "low-rtt": 155}),
    PathSet("crossed", ((8, 50), (16, 70)), {"htmt": 160, "low-rtt": 125}),
)
THIRD = (8.0, 50.0)
"""The third path in the authors' scripts."""
TRIPLES = tuple(replace(pair, name=f"{pair.name}-3", paths=(*pair.paths, THIRD)) for pair in PAIRS)
ASYMMETRIC = ("unequal", "crossed")

RULES = ("htmt-paper", "htmt-prototype")
"""The rule as the paper writes it, and as the authors' program codes it."""
PUBLISHED = ("low-rtt", "otias", "afmt")
"""What the paper compares with; round robin is not in it."""
UNPUBLISHED = ("round-robin",)
OTHERS = (*PUBLISHED, *UNPUBLISHED)
PAPER_SCHEDULERS = (*RULES, *OTHERS)
SWITCHED = ("htmt-prototype", "htmt-paper", "low-rtt", "otias", "afmt")


@dataclass(frozen=True)
class Reading:
    """In what packets wait before a sub-tunnel has a free slot. The paper does not say.

    `schedulers` run in `arm`. OTIAS, AFMT and round robin fill send buffers, so nothing waits for a
    slot, and their runs in the arm `paper` stand for both readings.
    """

    arm: str
    words: str
    schedulers: tuple[str, ...]
    source: str

    def arm_of(self, scheduler: str) -> str:
        """The arm in which this scheduler runs."""
        return self.arm if scheduler in self.schedulers else PAPER


READINGS = (
    Reading(
        PAPER,
        "paper's tunnel",
        PAPER_SCHEDULERS,
        "packets wait in one queue: the authors' program, and pfifo_fast in the paper",
    ),
    Reading(
        PER_FLOW,
        "paper's tunnel, a queue per flow",
        (*RULES, "low-rtt"),
        "packets wait in a queue per flow: a reading of ours, of which the paper says nothing",
    ),
)
JUDGED = ("auto", "htmt")
"""Carriers of our arm that have targets."""

OUR_CARRIERS: dict[str, Carrier] = {
    **{name: Tunnel(scheduler=name) for name in measures.SCHEDULERS},
    "direct-a": Direct("a"),
    "direct-b": Direct("b"),
    "mptcp": Mptcp(),
}


def published(scheduler: str) -> Tunnel:
    """A tunnel as the authors' program has it.

    NewReno as in CCID 2 of DCCP, no reordering at the exit, and nothing sent again. Packets wait in
    one queue; schedulers that ask for no free slot put them into short send buffers.
    """
    return Tunnel(
        scheduler=scheduler,
        congestion="newreno",
        protect_up="none",
        protect_down="none",
        order="off",
        send_buffer=PAPER_SEND_BUFFER,
    )


def plan(paths: PathSet, carrier: str, duration_s: float, warmup_s: float) -> Plan:
    """Our arm: everything as users get it."""
    link = Link(queue_bytes=OUR_QUEUE_BYTES)
    traffic = (Tcp(flows=FLOWS), Ping())
    return _plan(paths, OUR_CARRIERS[carrier], link, traffic, duration_s, warmup_s)


def paper_plan(paths: PathSet, scheduler: str, duration_s: float) -> Plan:
    """The paper's arm, counted from the start."""
    link = Link(queue_packets=PAPER_QUEUE_PACKETS)
    traffic = (Tcp(flows=FLOWS, segment=PAPER_SEGMENT), Ping())
    return _plan(paths, published(scheduler), link, traffic, duration_s, 0.0)


def per_flow_plan(paths: PathSet, scheduler: str, duration_s: float) -> Plan:
    """The paper's arm with a queue per flow (FQ-CoDel) before the sub-tunnels."""
    return _tunnel(send_buffer=None)(paper_plan(paths, scheduler, duration_s))


def _plan(
    paths: PathSet,
    carrier: Carrier,
    link: Link,
    traffic: tuple[Tcp, Ping],
    duration_s: float,
    warmup_s: float,
) -> Plan:
    return Plan(
        name=f"{NAME}/{paths.name}",
        duration_s=duration_s,
        warmup_s=warmup_s,
        path=tuple(
            Path(name, replace(link, rate_mbit=rate, delay_ms=rtt / 2))
            for name, (rate, rtt) in zip("abc", paths.paths, strict=False)
        ),
        carrier=carrier,
        traffic=traffic,
    )


Switch: TypeAlias = Callable[[Plan], Plan]


def _tunnel(**settings: object) -> Switch:
    def change(plan: Plan) -> Plan:
        assert isinstance(plan.carrier, Tunnel), plan.carrier
        return replace(plan, carrier=replace(plan.carrier, **settings))  # type: ignore[arg-type]

    return change


def _tcp(**settings: object) -> Switch:
    def change(plan: Plan) -> Plan:
        tcp, *rest = plan.traffic
        assert isinstance(tcp, Tcp), tcp
        return replace(plan, traffic=(replace(tcp, **settings), *rest))  # type: ignore[arg-type]

    return change


def _queue(size: int) -> Switch:
    def change(plan: Plan) -> Plan:
        path = tuple(
            replace(path, both=replace(path.both, queue_packets=None, queue_bytes=size))
            for path in plan.path
        )
        return replace(plan, path=path)

    return change


SWITCHES_BY_NAME: dict[str, Switch] = {
    "order on": _tunnel(order="on"),
    "send buffer 50": _tunnel(send_buffer=50),
    "sub-tunnels cubic": _tunnel(congestion="cubic"),
    "sub-tunnels bdp": _tunnel(congestion="bdp"),
    "repairs": _tunnel(protect_up=None, protect_down=None),
    "queue 128 KiB": _queue(OUR_QUEUE_BYTES),
    "queue 32 KiB": _queue(32 * 1024),
    "inner new-reno": _tcp(congestion="new-reno"),
    "inner bbr": _tcp(congestion="bbr"),
    "inner without RACK": _tcp(duplicates=3),
    "one flow": _tcp(flows=1),
    "one flow, a queue per flow": lambda plan: _tcp(flows=1)(_tunnel(send_buffer=None)(plan)),
    "10 s warm-up": lambda plan: replace(plan, warmup_s=10.0),
}
"""Each changes one thing of the paper's arm. The arm `paper-per-flow` is one more such change.

With one flow a queue per flow is one queue. So the pair of cases with one flow shows what else that
arm changes: CoDel, and windows in bytes.
"""
SIMULATED_SWITCHES = ("inner without RACK",)
"""Not for the kernel."""
