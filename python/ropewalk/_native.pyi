"""The simulator, compiled. `ropewalk.sim` is the way to use it."""

from collections.abc import Callable

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
        """Measured rate, Mbit/s; 0 when unknown."""

    @property
    def loss(self) -> float:
        """Share of packets lost lately, 0 to 1."""

def version() -> str:
    """Version of the simulator."""

def run_json(plan: str, seeds: list[int], threads: int, folder: str | None) -> str:
    """Runs a plan (TOML) with each seed, on `threads` threads (0: one for each core).

    Names of trace files start from `folder`. Returns a JSON array of reports in the order of the
    seeds. Other Python threads go on meanwhile.

    Raises:
        ValueError: when the plan cannot be run; the message names the key.
    """

def run_scheduler(
    plan: str, seeds: list[int], scheduler: Callable[[], object], folder: str | None
) -> str:
    """As `run_json` on one thread, with a scheduler in Python, a new one for each seed.

    Raises:
        ValueError: as `run_json`, and when the scheduler answers a path that is not there.
        Exception: what the scheduler raises.
    """
