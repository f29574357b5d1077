"""The simulator and the rules of balancing, compiled.

`ropewalk.sim` is the way to use the simulator. The rules are those of `ropewalk balance`; their
values do not change: what happens to one makes the next. Times are seconds of a clock that never
goes back, rates bits a second.
"""

from collections.abc import Callable, Sequence

class Head:
    """The packet to place: the first of one flow's queue."""

    @property
    def flow(self) -> int:
        """Flow bucket, 0 to 4,095."""

    @property
    def bytes(self) -> int:
        """Bytes of the packet."""

    @property
    def flow_backlog(self) -> int:
        """Bytes waiting in this flow, the packet included."""

    @property
    def backlog(self) -> int:
        """Bytes waiting in all flows, the packet included."""

class PathView:
    """One path as a scheduler sees it; only usable ones are shown."""

    @property
    def id(self) -> int:
        """What `pick` answers to use this path."""

    @property
    def srtt(self) -> float:
        """Smoothed round-trip time, seconds."""

    @property
    def min_rtt(self) -> float:
        """Smallest round-trip time lately, seconds."""

    @property
    def delay_more(self) -> float:
        """One-way delay more than that of the fastest path, seconds."""

    @property
    def cwnd(self) -> int:
        """Congestion window, bytes."""

    @property
    def in_flight(self) -> int:
        """Bytes under way."""

    @property
    def queued(self) -> int:
        """Bytes given to the path and not sent yet."""

    @property
    def free(self) -> int:
        """Bytes the path takes now."""

    @property
    def rate_mbit(self) -> float:
        """What the path could carry, Mbit/s: an estimate, also of a path that is idle.

        The larger of `delivered_mbit` and the congestion window per smoothed round trip. A path
        that had less than half of its window under way throughout the last 10 s is not known: it
        counts as much as the fastest one.
        """

    @property
    def delivered_mbit(self) -> float:
        """The rate lately delivered, Mbit/s: no more than was sent; 0 when unknown."""

    @property
    def loss(self) -> float:
        """Share of packets lost lately, 0 to 1."""

def version() -> str:
    """Version of the simulator."""

def plan_seed(plan: str) -> int:
    """The seed of a plan (TOML), 1 unless given.

    Raises:
        ValueError: when it is no plan; the message names the key.
    """

def run_json(
    plan: str, seeds: list[int], threads: int, folder: str | None, histograms: bool
) -> str:
    """Runs a plan (TOML) with each seed, on `threads` threads (0: one for each core).

    Names of trace files start from `folder`. With `histograms` the reports have the delays of each
    bulk flow as a histogram. Returns a JSON array of reports in the order of the
    seeds. Other Python threads go on meanwhile.

    Raises:
        ValueError: when the plan cannot be run; the message names the key.
    """

def run_scheduler(
    plan: str,
    seeds: list[int],
    scheduler: Callable[[], object],
    folder: str | None,
    histograms: bool,
) -> str:
    """As `run_json` on one thread, with a scheduler in Python, a new one for each seed.

    Raises:
        ValueError: as `run_json`, without a tunnel, and when the scheduler answers a path that is
            not there.
        TypeError: when the scheduler answers anything but a path, several, or None.
        Exception: what the scheduler raises.
    """

def run_recorded(
    plan: str,
    seed: int,
    scheduler: Callable[[], object] | None,
    outputs: tuple[str | None, str | None],
    folder: str | None,
    histograms: bool,
) -> str:
    """As `run_json` with one seed; writes events to a file and packets to a directory.

    Raises:
        ValueError: as `run_scheduler`.
        OSError: when the file of events cannot be made.
    """

PLACES: int
"""Places of the table by which new flows are shared out: shares are exact to half a 256th."""
PAUSE_S: float
"""A web connection so long after a client's last one opens a site, seconds."""
WEB_PORTS: list[int]
"""Ports of the web, TCP and UDP."""
ROUNDS: int
"""Rounds of probing that make a first estimate."""

class Watch:
    """One way out as its probes show it.

    A way is usable until nothing has come back for `silence_s` and five probes, and again after
    three answers in a row. Time in which nobody looked is no silence.
    """

    def __init__(self, interval_s: float, silence_s: float) -> None: ...
    def is_due(self, now: float) -> bool:
        """Whether the next probe is due."""

    def sent(self, now: float) -> tuple[Watch, int]:
        """A probe leaves; its number, 0 to 65,535."""

    def answered(self, number: int, now: float) -> tuple[Watch, float | None]:
        """An answer has come; its round trip, seconds, where the answer tells one.

        An answer to nothing that was asked lately is ignored.

        Raises:
            OverflowError: when `number` is not from 0 to 65,535.
        """

    def heard(self, now: float) -> Watch:
        """The far end has answered something else that was asked."""

    def passed(self, now: float) -> Watch:
        """Looks at the time; to be called every 50 ms."""

    @property
    def usable(self) -> bool:
        """Whether new flows may use the way; true before anything is known."""

    @property
    def known(self) -> bool:
        """Whether the way has answered, or had the time to."""

    @property
    def rtt_s(self) -> float | None:
        """The last round trip."""

    @property
    def loss(self) -> float | None:
        """Share of the last 100 probes that were lost, 0 to 1; None before ten have an outcome."""

class Capacity:
    """What an uplink carries, by its counters, its round trips, and probing."""

    def __init__(self) -> None: ...
    def sampled(
        self, now: float, bytes: int, seconds: float, round_trips_s: Sequence[float]
    ) -> Capacity:
        """Takes what was carried in the `seconds` up to now, and the probes' round trips."""

    def estimated(self, bps: float | None) -> Capacity:
        """Takes what probing found; None for nothing."""

    @property
    def is_full(self) -> bool:
        """Whether the uplink was seen full lately, so that `carried_bps` is its capacity."""

    @property
    def is_worth_probing(self) -> bool:
        """Whether probing disturbs nobody, and could find something new."""

    @property
    def carried_bps(self) -> float:
        """The largest rate seen, or the rate while it was full."""

    @property
    def present_bps(self) -> float:
        """The rate of the last sample."""

def assumed(capacities: list[Capacity]) -> list[float]:
    """What each uplink is taken to carry: one that is unknown as much as the fastest."""

class Rounds:
    """When an idle uplink is probed, and what the last rounds found."""

    def __init__(self, now: float) -> None: ...
    def is_due(self, now: float) -> bool:
        """Whether the next round is due."""

    def begun(self, now: float, interval_s: float) -> Rounds:
        """A round begins; `interval_s` is between rounds after the first estimate."""

    def ended(self, now: float, found_bps: float | None, interval_s: float) -> Rounds:
        """A round has found a rate, or none."""

    @property
    def rates_bps(self) -> list[float]:
        """What the last rounds found, the oldest first; at most five."""

    @property
    def guess_bps(self) -> float | None:
        """Their median, however few there are."""

    @property
    def estimate_bps(self) -> float | None:
        """Their median, once there are three."""

def train_sizes(known_bps: float | None) -> list[int]:
    """Bytes of each packet of the next train, by what is known of the link."""

def train_rate(arrivals_s: list[float], sent: int) -> float | None:
    """The rate of a train; None when too few of `sent` were answered, or half of them at once."""

def several_sizes() -> list[int]:
    """Bytes of each packet of a round of several sizes."""

def several_sizes_rate(round_trips: list[tuple[int, float]]) -> float | None:
    """The rate from sizes and round trips; None when they do not tell."""

def shares(mode: str, uplinks: list[tuple[float, float]], flows: int, flow_bytes: int) -> list[int]:
    """Shares in the next flows, from what each uplink carries and carried last (or is to carry).

    Raises:
        ValueError: when there is no such mode ("weighted", "least-finish").
    """

def places(shares: list[int], count: int) -> list[int]:
    """Which uplink comes at each of `count` places, evenly mixed; empty without any share."""

def apportion(shares: list[int], count: int) -> list[int]:
    """How many of `count` places each uplink has; at least one where it has a share."""
