"""Grid: never worse than the best single path, over sixteen pairs of paths that mqvpn published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.lab.cell import Cell, Results, Runner
from ropewalk.lab.claims import Claim, claim, missing
from ropewalk.lab.experiments import measures
from ropewalk.lab.experiments.options import Options, expand
from ropewalk.lab.figures import Figure, dots
from ropewalk.lab.statistics import paired_ratio
from ropewalk.plan import Carrier, Direct, Link, Mptcp, Path, Ping, Plan, Quic, Tcp, Traffic, Tunnel

NAME = "grid"
TITLE = "Never worse than the best single path"
ABOUT = (
    "16 pairs of paths, 5 kinds of traffic; one default configuration against every single path."
)
ASSUMPTIONS = (
    "The queue is not published: the bandwidth-delay product of the path at its round-trip time, "
    "and at least 64 KiB, in each direction.",
    "Delay, jitter (normal) and loss apply in each direction; packets stay in order, as with netem "
    "when it has a rate. Here what jitter held up leaves at once, there at the rate of the link: "
    "their single paths lose more of it (17 of 50 Mbit/s with 20 ms), and a gain over 2 is out of "
    "reach of whoever fills a single path.",
    "mqvpn measured a download of 20 MiB over QUIC with BBR; here the flow has always more to send "
    "and is counted after a warm-up.",
    "A ping may take any path: it is held against the faster one.",
    "The best single path is chosen by its mean over all seeds.",
)


@dataclass(frozen=True)
class Side:
    """One path: one-way delay and jitter in ms, Mbit/s, loss per direction."""

    delay: float
    rate: float
    jitter: float = 0.0
    loss: float = 0.0

    def path(self, name: str) -> Path:
        """The path, with a queue of one bandwidth-delay product."""
        product = self.rate * 1e6 / 8 * 2 * self.delay / 1e3
        link = Link(
            rate_mbit=self.rate,
            delay_ms=self.delay,
            jitter_ms=self.jitter or None,
            loss=self.loss or None,
            queue_bytes=max(64 * 1024, round(product)),
        )
        return Path(name, link)


@dataclass(frozen=True)
class Profile:
    """Two paths, and what mqvpn published: best single path, best manual setting, Mbit/s."""

    name: str
    a: Side
    b: Side
    single: float
    manual: float

    @property
    def clean(self) -> bool:
        """Whether there is neither loss nor jitter."""
        return not any((self.a.loss, self.b.loss, self.a.jitter, self.b.jitter))

    @property
    def spread_ms(self) -> float:
        """Difference of the one-way delays."""
        return abs(self.a.delay - self.b.delay)


def _same(name: str, side: Side, single: float, manual: float) -> Profile:
    return Profile(name, side, side, single, manual)


PROFILES = (
    _same("baseline", Side(20, 50), 40.6, 73.9),
    Profile("rtt_40", Side(20, 50), Side(40, 50), 40.5, 45.7),
    Profile("rtt_70", Side(20, 50), Side(70, 50), 40.6, 40.2),
    Profile("rtt_120", Side(20, 50), Side(120, 50), 40.7, 40.6),
    Profile("rtt_320", Side(20, 50), Side(320, 50), 40.3, 40.1),
    _same("jit_5", Side(20, 50, jitter=5), 38.8, 55.7),
    _same("jit_20", Side(20, 50, jitter=20), 17.4, 37.6),
    _same("loss_05", Side(20, 50, loss=0.005), 32.2, 70.7),
    _same("loss_2", Side(20, 50, loss=0.02), 16.3, 29.0),
    Profile("bw_4to1", Side(20, 50), Side(20, 12), 40.6, 39.9),
    Profile("bw_10to1", Side(20, 100), Side(20, 10), 74.2, 70.1),
    Profile("dual_lte", Side(30, 40, 5, 0.005), Side(45, 25, 8, 0.005), 29.6, 29.6),
    Profile("fiber_lte", Side(8, 300), Side(40, 30, 8, 0.005), 212.4, 212.3),
    Profile("lte_starlink", Side(35, 40, 8), Side(50, 100, 25, 0.01), 29.6, 27.2),
    Profile("lte_geo", Side(35, 40), Side(320, 20, 20, 0.005), 31.7, 31.5),
    Profile("congested", Side(50, 20, 20, 0.02), Side(60, 15, 25, 0.02), 6.4, 6.4),
)
QUICK_PROFILES = ("baseline", "rtt_70", "jit_5", "loss_2", "bw_4to1", "dual_lte")
"""In these the first path is the best single one, and three cells at once fit two processors."""

TRAFFIC: dict[str, Traffic] = {
    "tcp-cubic-1": Tcp(flows=1),
    "tcp-bbr-1": Tcp(flows=1, congestion="bbr"),
    "tcp-cubic-5": Tcp(flows=5),
    "quic-bbr-1": Quic(flows=1, congestion="bbr"),
    "quic-cubic-1": Quic(flows=1),
}
QUICK_TRAFFIC = ("tcp-cubic-1", "tcp-cubic-5", "quic-bbr-1")

SINGLES: dict[str, Carrier] = {
    "direct-a": Direct("a"),
    "direct-b": Direct("b"),
    "single-a": Tunnel(paths=("a",)),
    "single-b": Tunnel(paths=("b",)),
}
CARRIERS: dict[str, Carrier] = {**SINGLES, "auto": Tunnel(), "mptcp": Mptcp()}
OTHERS: dict[str, Carrier] = {
    name: Tunnel(scheduler=name) for name in measures.SCHEDULERS if name != "auto"
}
OTHERS_TRAFFIC = ("tcp-cubic-5",)
"""What the other schedulers carry on the kernel, as in their papers; simulated they carry all.
With all of it a single seed would be 768 runs more."""
PING_EXTRA_MS = 30


def cells(options: Options) -> list[Cell]:
    """The whole grid; quick takes a part of it on the kernel."""
    names = [profile.name for profile in PROFILES]
    if options.quick:
        kernel = _cases(options, QUICK_PROFILES, ("direct-a", "single-a", "auto"), QUICK_TRAFFIC)
        simulated = _cases(options, names, (*SINGLES, "auto"), QUICK_TRAFFIC)
        return expand(options, NAME, kernel, "kernel") + expand(options, NAME, simulated, "sim")
    kernel = _cases(options, names, tuple(CARRIERS), tuple(TRAFFIC))
    others = _cases(options, names, tuple(OTHERS), OTHERS_TRAFFIC)
    simulated = _cases(options, names, (*SINGLES, "auto", *OTHERS), tuple(TRAFFIC))
    return [
        *expand(options, NAME, kernel, "kernel"),
        *expand(options, NAME, others, "kernel", seeds=1),
        *expand(options, NAME, simulated, "sim"),
    ]


def _cases(
    options: Options, profiles: Sequence[str], carriers: Sequence[str], traffic: Sequence[str]
) -> list[tuple[tuple[str, ...], Plan]]:
    return [
        ((profile.name, carrier, kind), plan(profile, carrier, kind, options.quick))
        for profile in PROFILES
        if profile.name in profiles
        for kind in traffic
        for carrier in carriers
        # MPTCP does not carry QUIC.
        if not (carrier == "mptcp" and kind.startswith("quic"))
    ]


def plan(profile: Profile, carrier: str, kind: str, quick: bool) -> Plan:
    """One case."""
    duration, warmup = (6.0, 2.0) if quick else (12.0, 3.0)
    return Plan(
        name=f"{NAME}/{profile.name}/{carrier}/{kind}",
        duration_s=duration,
        warmup_s=warmup,
        path=(profile.a.path("a"), profile.b.path("b")),
        carrier={**CARRIERS, **OTHERS}[carrier],
        traffic=(TRAFFIC[kind], Ping()),
    )


def claims(results: Results) -> list[Claim]:
    """Every rule, in every profile, for every traffic that was planned."""
    rows = []
    for runner in results.runners():
        for profile in PROFILES:
            for kind in TRAFFIC:
                if results.where(runner, profile.name, None, kind).planned():
                    rows += _case_claims(results, runner, profile, kind)
    return rows


def _case_claims(results: Results, runner: Runner, profile: Profile, kind: str) -> list[Claim]:
    def case(carrier: str) -> Results:
        return results.where(runner, profile.name, carrier, kind)

    auto = case("auto")
    outside = measures.best(case("direct-a"), case("direct-b"))
    inside = measures.best(case("single-a"), case("single-b"))
    quic = kind.startswith("quic")
    where = f"{profile.name}, {kind} ({measures.on(runner)})"
    rows = [
        # With QUIC inside "never below": no allowance.
        measures.compare(f"{where}: auto ÷ single inside", auto, inside, 1.0 if quic else 0.98),
        measures.compare(f"{where}: auto ÷ single outside", auto, outside, 0.95),
        _ping(f"{where}: ping p95 under load", auto, profile),
    ]
    target = ceiling_target(profile, kind)
    if target is not None:
        rows.append(measures.reach(f"{where}: auto ÷ ceiling", auto, target))
    if kind == "quic-bbr-1":
        rows.append(_against_mqvpn(where, auto, outside, profile))
    return rows


def ceiling_target(profile: Profile, kind: str) -> float | None:
    """What part of the ceiling is asked for, by class of profile and traffic."""
    if kind.startswith("quic"):
        return 0.75 if profile.spread_ms <= 50 else None
    if profile.spread_ms > 100:
        return None
    several = kind.endswith("-5")
    if profile.clean:
        return 0.95 if several else 0.85
    return 0.90 if several else 0.80


def _ping(name: str, auto: Results, profile: Profile) -> Claim:
    base = 2 * min(profile.a.delay, profile.b.delay)
    p95 = measures.ping_p95(auto)
    limit = base + PING_EXTRA_MS
    note = f"base RTT {base:g} ms"
    return measures.value(name, "ms", auto, p95, limit, relation="<=", note=note)


def _against_mqvpn(where: str, auto: Results, outside: Results, profile: Profile) -> Claim:
    """Gain over the best single path against the gain of mqvpn's best manual setting."""
    theirs = profile.manual / profile.single
    ratio = paired_ratio(measures.goodput(auto), measures.goodput(outside))
    return claim(
        f"{where}: gain against mqvpn's best manual setting",
        "ratio",
        ratio,
        target=theirs,
        paper=theirs,
        note="" if ratio else missing(auto),
    )


def figures(results: Results) -> list[Figure]:
    """Where auto stands against the best single path, and against mqvpn."""
    drawn = []
    rows = [profile.name for profile in PROFILES]
    for runner in results.runners():
        series = {
            kind: [gain(results, runner, profile.name, "auto", kind) for profile in PROFILES]
            for kind in TRAFFIC
        }
        drawn.append(
            Figure(
                f"auto by the best single path outside the tunnel ({measures.on(runner)})",
                "Dashed: the best single path. The target is 0.95 of it in every case.",
                dots(rows, series, "goodput ÷ best single path", 1.0),
            )
        )
        compared: dict[str, Sequence[float | None]] = {
            "mqvpn, best manual setting": [p.manual / p.single for p in PROFILES],
            "Ropewalk, default": series["quic-bbr-1"],
        }
        drawn.append(
            Figure(
                f"One QUIC flow with BBR: gain over the best single path ({measures.on(runner)})",
                "mqvpn as published, its setting chosen by hand in each row.",
                dots(rows, compared, "goodput ÷ best single path", 1.0),
            )
        )
    return drawn


def gain(results: Results, runner: Runner, profile: str, carrier: str, kind: str) -> float | None:
    """Goodput of a carrier by that of the better path without a tunnel."""
    found = results.where(runner, profile, carrier, kind)
    outside = measures.best(
        results.where(runner, profile, "direct-a", kind),
        results.where(runner, profile, "direct-b", kind),
    )
    ratio = paired_ratio(measures.goodput(found), measures.goodput(outside))
    return None if ratio is None else ratio.mean
