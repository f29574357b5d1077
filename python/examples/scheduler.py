"""A scheduler of one's own, against two that Ropewalk has, in the simulator.

Run it with `python python/examples/scheduler.py`."""

from collections.abc import Sequence

from ropewalk import sim
from ropewalk.plan import Link, Path, Ping, Plan, Tcp, Tunnel

PATHS = (
    Path("fast", Link(rate_mbit=16, delay_ms=10, queue_bytes=65536)),
    Path("slow", Link(rate_mbit=8, delay_ms=40, queue_bytes=65536)),
)


class SmallestQueue:
    """The path that is done soonest with what it has, among those that have room."""

    def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> int | None:
        with_room = [path for path in paths if path.free >= head.bytes]
        if not with_room:
            return None
        return min(with_room, key=lambda path: path.in_flight / (path.rate_mbit or 1)).id


def main() -> None:
    for name in ("auto", "round-robin"):
        plan = Plan(name, 10, PATHS, Tunnel(name), (Tcp(flows=3), Ping()), warmup_s=2)
        tell(name, sim.run(plan, seeds=3))
    tell("smallest queue", sim.run(plan, seeds=3, scheduler=SmallestQueue))


def tell(name: str, results: sim.Results) -> None:
    rate, ping = results.goodput_mbit.mean(), results.delay_ms(1)[:, 3].mean()
    print(f"{name:15} {rate:5.1f} of {results[0].ceiling_mbit:.1f} Mbit/s, ping p95 {ping:.0f} ms")


if __name__ == "__main__":
    main()
