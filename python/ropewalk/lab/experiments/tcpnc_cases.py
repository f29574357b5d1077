"""The cases of `tcpnc` (both topologies of the paper, losses, carriers), and what is possible."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.plan import Carrier, Chain, Congestion, Link, Path, Plan, Relay, Tcp, TcpNc, Tunnel

NAME = "tcpnc"

SEGMENT = 1000
PACKET = SEGMENT + 52
"""IPv4 and TCP with timestamps."""
PACKET_PUBLISHED = SEGMENT + 40
"""IPv4 and TCP without options."""
OUTER = PACKET + 65
"""That packet in a tunnel: `crates/plan/src/ceiling.rs`."""
QUEUE_PACKETS = 100
HOP_MS = 10.0
ACCESS_MS = 1.5 + 1.0
BURST = 4.0


@dataclass(frozen=True)
class Case:
    """Rates in Mbit/s of the two hops and of the sources, and the gateways that those are at."""

    name: str
    hops: tuple[float, float]
    access: tuple[float, float, float]
    enter: tuple[int, int, int]

    @property
    def topology(self) -> int:
        """As the paper numbers them."""
        return 1 if self.enter == (1, 1, 1) else 2


CASES = (
    *(
        Case(f"topology 1, case {number}", (rate, 5.0), (1.0, 1.0, 3.0), (1, 1, 1))
        for number, rate in enumerate((3.0, 5.0, 7.0), 1)
    ),
    *(
        Case(f"topology 2, case {number}", (2.0, rate), (1.0, 1.0, 1.0), (1, 1, 2))
        for number, rate in enumerate((2.0, 3.0, 4.0), 1)
    ),
)
QUICK_CASES = (CASES[0], CASES[4])
LOSSES = (0.0, 0.02, 0.05, 0.10, 0.15, 0.20)
LITERAL_LOSSES = (0.001, 0.002)
"""What section 3.1 of the paper says to the letter, "0 to 0.2%"; section 2.2 says 0.2, with a
redundancy factor of 1.5."""
QUICK_LOSSES = (0.0, 0.10)
KERNEL_CASES = QUICK_CASES
KERNEL_LOSSES = (0.0, 0.10, 0.20)
"""Where our tunnel runs on the kernel with hosts like Linux. With hosts as published it runs there
in all cases, as the paper's system does."""
CONGESTIONS: tuple[Congestion, ...] = ("new-reno", "cubic", "bbr")
KINDS = ("alone", "bursts")

END_TO_END = "end-to-end"
TCP_NC = "tcp-nc"
"""The paper's system: a session of TCP/NC on each hop (`crates/tcpnc`)."""
TWO_PATHS = "tunnel, two paths a hop"
"""The tunnel, where each hop is two links of half its rate."""
PUBLISHED = "end-to-end as published"
TCP_NC_PUBLISHED = "tcp-nc as published"
TUNNEL_PUBLISHED = "tunnel, hosts as published"
PLAIN = (PUBLISHED, TCP_NC_PUBLISHED, TUNNEL_PUBLISHED)
"""Hosts with the settings of the paper, and NewReno; that they have no SACK is assumed. Elsewhere
hosts are like Linux."""
TUNNELS: dict[str, Tunnel] = {
    "tunnel": Tunnel(),
    "code": Tunnel(protect_up="code"),
    "block": Tunnel(protect_up="block"),
}
"""The tunnels to compare: each is one on every hop, with these settings of what the data meets."""
CARRIERS: dict[str, Carrier] = {
    END_TO_END: Chain(("a", "b")),
    TCP_NC: TcpNc(("a", "b")),
    TWO_PATHS: Relay((("a", "a2"), ("b", "b2"))),
    PUBLISHED: Chain(("a", "b")),
    TCP_NC_PUBLISHED: TcpNc(("a", "b")),
    TUNNEL_PUBLISHED: Relay((("a",), ("b",))),
    **{name: Relay((("a",), ("b",)), tunnel) for name, tunnel in TUNNELS.items()},
}
DEFAULT = "tunnel"
"""What users get. A code chosen by hand is beside it, without targets."""
EVERYWHERE = (END_TO_END, *TUNNELS)
"""What runs with every congestion control; the others with NewReno, because the paper has no other.
"""
QUICK = (END_TO_END, "tunnel")
QUICK_PLAIN = (PUBLISHED, TCP_NC_PUBLISHED)


def lost(loss: float, kind: str) -> str:
    """How a loss is written in keys and names."""
    return f"{loss * 100:g}% in bursts" if kind == "bursts" else f"{loss * 100:g}%"


def plan(
    case: Case, loss: float, kind: str, carrier: str, congestion: Congestion, quick: bool = False
) -> Plan:
    """One case; the sources are on the site's side, so that data goes up."""
    burst = BURST if kind == "bursts" else None
    lossy = Link(loss=loss, loss_burst=burst) if loss else Link()
    links = 2 if carrier == TWO_PATHS else 1
    hops = [
        (name + ("" if number == 1 else str(number)), rate / links)
        for name, rate in zip("ab", case.hops, strict=True)
        for number in range(1, links + 1)
    ]
    return Plan(
        name=f"{NAME}/{case.name}/{lost(loss, kind)}/{carrier}/{congestion}",
        duration_s=20.0 if quick else 60.0,
        warmup_s=5.0 if quick else 10.0,
        path=tuple(
            Path(name, Link(rate, delay_ms=HOP_MS, queue_packets=QUEUE_PACKETS), up=lossy)
            for name, rate in hops
        ),
        carrier=CARRIERS[carrier],
        traffic=tuple(
            Tcp(
                congestion=congestion,
                direction="up",
                segment=SEGMENT,
                plain=True if carrier in PLAIN else None,
                enter=enter,
                access=Link(rate, delay_ms=ACCESS_MS, queue_packets=QUEUE_PACKETS),
            )
            for rate, enter in zip(case.access, case.enter, strict=True)
        ),
    )


def erasure_shares(case: Case, loss: float) -> tuple[float, ...]:
    """What each session can get at most through tunnels for each hop, Mbit/s of TCP payload.

    A hop of `C` Mbit/s that loses the share `p` delivers `C * (1 - p)` of outer packets, whatever
    is sent: of that, payload is `SEGMENT / OUTER`. A session gets no more than its access link
    carries (`SEGMENT / PACKET` of it), and the sessions of a hop together no more than the hop
    delivers. What is to be shared is shared as evenly as that allows (max-min), which in both
    topologies also gives the greatest sum.
    """
    room = [rate * (1 - loss) * SEGMENT / OUTER for rate in case.hops]
    left = [rate * SEGMENT / PACKET for rate in case.access]
    shares = [0.0 for _ in left]
    growing = set(range(len(left)))
    while growing:
        users = [[s for s in growing if case.enter[s] <= hop] for hop in (1, 2)]
        step = min(
            *(left[session] for session in growing),
            *(space / len(on) for space, on in zip(room, users, strict=True) if on),
        )
        for session in growing:
            shares[session] += step
            left[session] -= step
        room = [space - step * len(on) for space, on in zip(room, users, strict=True)]
        full = {s for s in growing if left[s] < _NOTHING}
        full |= {s for space, on in zip(room, users, strict=True) if space < _NOTHING for s in on}
        growing -= full
    return tuple(shares)


def erasure_capacity(case: Case, loss: float) -> float:
    """What all sessions together can get at most, Mbit/s of TCP payload."""
    return sum(erasure_shares(case, loss))


_NOTHING = 1e-9
