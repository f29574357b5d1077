"""Which uplink a new flow gets.

Pure. Sources: smooth weighted round robin as nginx does it (each choice lowers the chosen one's
credit by the sum of all weights); least expected finish is join-shortest-queue weighted by rate.
"""

from __future__ import annotations

from collections.abc import Mapping

UTILISATION_MAX = 0.95
"""A link that is full still has this much less than none left."""


def weighted_round_robin(
    credit: Mapping[str, float], weights: Mapping[str, float]
) -> tuple[dict[str, float], str]:
    """The next credits and the choice: flows in proportion to the weights, evenly mixed.

    Raises:
        ValueError: without any weight.
    """
    if not weights:
        raise ValueError("nothing to choose from")
    after = {name: credit.get(name, 0.0) + weight for name, weight in weights.items()}
    # Ties go to the first.
    chosen = max(after, key=lambda name: after[name])
    after[chosen] -= sum(weights.values())
    return after, chosen


def least_expected_finish(
    backlog_bytes: Mapping[str, float],
    rates_bps: Mapping[str, float],
    utilisation: Mapping[str, float],
    flow_bytes: float,
) -> tuple[dict[str, float], str]:
    """The backlogs with the new flow, and its uplink: where it is expected to end first.

    What other flows use of a link (0 to 1) is not there for the new one.

    Raises:
        ValueError: without any link.
    """
    if not rates_bps:
        raise ValueError("nothing to choose from")

    def finish_s(name: str) -> float:
        left = rates_bps[name] * (1 - min(utilisation.get(name, 0.0), UTILISATION_MAX))
        return 8 * (backlog_bytes.get(name, 0.0) + flow_bytes) / left

    chosen = min(rates_bps, key=finish_s)
    return {**backlog_bytes, chosen: backlog_bytes.get(chosen, 0.0) + flow_bytes}, chosen


def drained(
    backlog_bytes: Mapping[str, float], rates_bps: Mapping[str, float], seconds: float
) -> dict[str, float]:
    """The backlogs after some time at full rate."""
    return {
        name: max(0.0, left - rates_bps.get(name, 0.0) / 8 * seconds)
        for name, left in backlog_bytes.items()
    }
