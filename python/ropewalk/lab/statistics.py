"""Means with their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % confidence interval; no interval of fewer than two values."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and interval by Student's t; nothing of nothing."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = t_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def paired_ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Estimate | None:
    """Ratio of two measurements, seed by seed, over the seeds that have both."""
    seeds = sorted(above.keys() & below.keys())
    return estimate([above[seed] / below[seed] for seed in seeds if below[seed] > 0])


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; never below the true value."""
    if freedom < 1:
        raise ValueError("a t distribution has at least one degree of freedom")
    return next(value for limit, value in reversed(_T975) if freedom >= limit)


# From the smallest number of degrees of freedom on; between them the larger value holds.
_T975 = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365),
    (8, 2.306), (9, 2.262), (10, 2.228), (12, 2.179), (14, 2.145), (16, 2.120), (19, 2.093),
    (24, 2.064), (29, 2.045), (40, 2.021), (60, 2.000), (120, 1.980),
)  # fmt: skip
