"""Means with their confidence intervals, by the bootstrap over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SEEDS_MIN = 3
"""Values, at least, for an interval. Two values say next to nothing of how far they stray."""
RESAMPLES = 4_000
"""Drawn from six values or more. More resamples steady the ends of intervals, and cost time."""
_ALL_RESAMPLES_MAX = 5
"""Up to so many values all resamples are taken: 3,125 of five."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % confidence interval; no interval of fewer than `SEEDS_MIN` values."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and bootstrap interval; nothing of nothing. Equal values give equal intervals.

    The interval is the expanded percentile interval of Hesterberg, "What Teachers Should Know
    About the Bootstrap" (The American Statistician 69, 2015, section 4.1): the plain percentile
    interval is too narrow for few values, by about the factor sqrt((n - 1) / n) and by what
    Student's t has over the normal distribution. The tails that are cut off are made smaller by
    both. Unlike Student's interval, it leans to the side to which the values stray, and never
    leaves their range. Of three to five values it is nearly that range.
    """
    if not values:
        return None
    count = len(values)
    mean = math.fsum(values) / count
    if count < SEEDS_MIN:
        return Estimate(mean, None, None, count)
    low, high = _percentiles(values)
    # Sums in another order may differ in their last digit.
    return Estimate(mean, min(low, mean), max(high, mean), count)


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    import numpy as np

    count = len(values)
    means = np.asarray(values, dtype=float)[_resamples(count)].mean(axis=1)
    return _middle(means, count)


def _middle(resampled: NDArray[np.float64], count: int) -> tuple[float, float]:
    """The expanded percentile interval of figures that were resampled from `count` values."""
    import numpy as np

    tail = NormalDist().cdf(-t_quantile(count - 1) * math.sqrt(count / (count - 1)))
    low = np.quantile(resampled, tail, method="lower")
    high = np.quantile(resampled, 1 - tail, method="higher")
    return float(low), float(high)


@lru_cache(maxsize=64)
def _resamples(count: int) -> NDArray[np.int32]:
    """Resamples x values: which values each resample takes. The same for equal counts."""
    import numpy as np

    if count <= _ALL_RESAMPLES_MAX:
        return np.array(list(product(range(count), repeat=count)), dtype=np.int32)
    return _drawn(count, count)


@lru_cache(maxsize=64)
def _drawn(count: int, seed: int) -> NDArray[np.int32]:
    import numpy as np

    random = Random(seed)
    drawn = [[int(random.random() * count) for _ in range(count)] for _ in range(RESAMPLES)]
    return np.array(drawn, dtype=np.int32)


def paired_ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Estimate | None:
    """Ratio of the means of two measurements over the seeds that have both.

    Seeds are resampled in pairs. The other way round gives the reciprocal of mean and interval,
    which the mean of the seeds' ratios does not: both of them may be above 1.
    """
    import numpy as np

    seeds = sorted(above.keys() & below.keys())
    over = np.asarray([above[seed] for seed in seeds], dtype=float)
    under = np.asarray([below[seed] for seed in seeds], dtype=float)
    if not seeds or under.sum() <= 0:
        return None
    mean = float(over.sum() / under.sum())
    if len(seeds) < SEEDS_MIN:
        return Estimate(mean, None, None, len(seeds))
    drawn = _resamples(len(seeds))
    sums = under[drawn].sum(axis=1)
    usable = sums > 0
    low, high = _middle(over[drawn].sum(axis=1)[usable] / sums[usable], len(seeds))
    return Estimate(mean, min(low, mean), max(high, mean), len(seeds))


def quantile_estimate(values: Sequence[float], part: float) -> Estimate | None:
    """The value below which this part (0 to 1) of the values lies, and its bootstrap interval, as
    `estimate` has them for the mean. Between two values it is interpolated.
    """
    import numpy as np

    if not values:
        return None
    count = len(values)
    found = float(np.quantile(values, part))
    if count < SEEDS_MIN:
        return Estimate(found, None, None, count)
    resampled = np.asarray(values, dtype=float)[_resamples(count)]
    low, high = _middle(np.quantile(resampled, part, axis=1), count)
    return Estimate(found, min(low, found), max(high, found), count)


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Ratio of the means of two measurements whose seeds have nothing in common.

    Such are runs in the simulator and on the kernel: from one seed they draw different losses. Both
    are resampled on their own. The interval is as wide as the smaller number of values asks for,
    and `count` is this number.
    """
    import numpy as np

    count = min(len(above), len(below))
    if count == 0 or math.fsum(below) <= 0:
        return None
    mean = (math.fsum(above) / len(above)) / (math.fsum(below) / len(below))
    if count < SEEDS_MIN:
        return Estimate(mean, None, None, count)
    # Two seeds, so that the resamples of both have nothing in common either.
    over = np.asarray(above, dtype=float)[_drawn(len(above), 1)].mean(axis=1)
    under = np.asarray(below, dtype=float)[_drawn(len(below), 2)].mean(axis=1)
    usable = under > 0
    low, high = _middle(over[usable] / under[usable], count)
    return Estimate(mean, min(low, mean), max(high, mean), count)


def jain(values: Sequence[float]) -> float | None:
    """Jain's index: 1 where all have the same, 1 / n where one of n has all (RFC 5166, 2.6).

    None where nobody has anything.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def share(events: Sequence[bool]) -> Estimate | None:
    """Share of independent runs with an event, and its exact 95 % interval; nothing of nothing.

    The interval is that of Clopper and Pearson (Biometrika 26, 1934). Unlike the bootstrap's, it
    says how often an event may happen that was not seen: of 59 runs without one, up to 5 % of
    the time. That bound is one-sided, as no share is below 0.
    """
    if not events:
        return None
    count, seen = len(events), sum(events)
    if seen == 0:
        return Estimate(0.0, 0.0, 1 - 0.05 ** (1 / count), count)
    high = 1.0 if seen == count else _where(lambda p: _at_most(seen, count, p) <= _TAIL)
    low = _where(lambda p: 1 - _at_most(seen - 1, count, p) >= _TAIL)
    return Estimate(seen / count, low, high, count)


_TAIL = 0.025


def _at_most(most: int, count: int, p: float) -> float:
    """Probability of at most `most` events in `count` runs."""
    terms = (math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(most + 1))
    return math.fsum(terms)


def _where(holds: Callable[[float], bool]) -> float:
    """The least probability, to nine digits, from which on something holds."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


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
