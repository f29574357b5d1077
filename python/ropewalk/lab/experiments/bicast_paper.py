"""The links, losses and figures of the paper on bicasting, for all experiments beside it.

Source: Takeuchi et al., "A Practical SDN-based Bicasting Method for Mitigating HOL Blocking in VPN
over TCP": table III, sections IV.B and IV.C, figures 7 and 8. Losses are percent upstream (client
to server) and downstream.
"""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

from ropewalk.plan import Link, Path

Loss: TypeAlias = tuple[int, int]

RATE_MBIT = 10.0
DELAY_MS = 5.0
"""One way, so that the round trip of table III is 10 ms."""
QUEUE_PACKETS = 1000
"""The default of netem; the paper names none."""
DURATION_S = 16.0
PING_S = 0.5
"""Of 30 pings."""

DOWN = (0, 5, 10)
"""The panels of figures 7 and 8."""
SWEEP: tuple[Loss, ...] = tuple(product(range(6), DOWN))
QUOTED: tuple[Loss, ...] = tuple(product((0, 5), DOWN))
"""Those of which the text gives figures."""
HARD: tuple[Loss, ...] = ((5, 5), (5, 10))

MEAN_RTT_MS: dict[tuple[str, Loss], float] = {
    ("unicast", (0, 0)): 1389.0,
    ("unicast", (0, 5)): 6066.0,
    ("unicast", (0, 10)): 11602.0,
    ("unicast", (5, 0)): 1720.0,
}
LONGEST_RTT_MS: dict[tuple[str, Loss], float] = {
    ("unicast", (5, 5)): 10046.0,
    ("unicast", (5, 10)): 19591.0,
    ("bi-bicast", (5, 5)): 2450.0,
    ("bi-bicast", (5, 10)): 3925.0,
    # The text calls these two means, and gives 1,720 ms as unicast's mean at the same loss. That
    # they stand beside our longest round trip is our reading.
    ("unicast", (5, 0)): 3133.0,
    ("c-bicast", (5, 0)): 2447.0,
}
GAIN = {0: None, 5: 3.0, 10: 6.0}
"""Copies both ways: throughput by unicast's, by the loss downstream."""
CLIENT_GAIN = 1.08
"""Copies from the client: throughput by unicast's, at most. The abstract names no loss; that the
gain belongs to losses of the client's packets alone is our reading of section IV.C."""
CLIENT_RTT = {(5, 0): 2447 / 3133, (5, 5): 0.9}
"""Copies from the client: round trip by unicast's; the longest at 5 % downstream, of which the text
names no loss upstream; at 0 % the text says the mean."""


def written(loss: Loss) -> str:
    """How a loss is written in keys and names: upstream/downstream in percent."""
    return f"{loss[0]}/{loss[1]}"


def read(loss: str) -> Loss:
    """The reverse of `written`."""
    up, _, down = loss.partition("/")
    return int(up), int(down)


def longest_by_unicast(loss: Loss) -> float | None:
    """Copies both ways: the longest round trip by unicast's."""
    both, alone = (LONGEST_RTT_MS.get((policy, loss)) for policy in ("bi-bicast", "unicast"))
    return both / alone if both is not None and alone is not None else None


def path(
    name: str,
    loss: Loss,
    queue_packets: int = QUEUE_PACKETS,
    rate_mbit: float = RATE_MBIT,
    delay_ms: float = DELAY_MS,
) -> Path:
    """A link between client and VPN server."""
    both = Link(rate_mbit=rate_mbit, delay_ms=delay_ms, queue_packets=queue_packets)
    up, down = (Link(loss=percent / 100 or None) for percent in loss)
    return Path(name, both, up=up, down=down)


def paths(loss: Loss, queue_packets: int = QUEUE_PACKETS) -> tuple[Path, ...]:
    """Both links, equal."""
    return tuple(path(name, loss, queue_packets) for name in ("a", "b"))
