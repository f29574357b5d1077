"""Estimates, and what a claim makes of them."""

import math
from collections.abc import Sequence
from random import Random

import pytest

from ropewalk.lab.claims import (
    Claim,
    Relation,
    Verdict,
    claim,
    number,
    tally,
    worst_first,
)
from ropewalk.lab.statistics import (
    Estimate,
    estimate,
    paired_ratio,
    ratio_of_means,
    share,
    t_quantile,
)


def interval(values: Sequence[float]) -> tuple[float, float]:
    found = estimate(values)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    return found.low, found.high


def test_few_values_have_a_mean_and_no_interval() -> None:
    assert estimate([]) is None
    assert estimate([7]) == Estimate(7, None, None, 1)
    assert estimate([7, 9]) == Estimate(8, None, None, 2)


def test_the_interval_of_three_values_is_their_range() -> None:
    assert interval([1, 2, 6]) == (1, 6)


def test_the_interval_of_five_values_leaves_out_only_the_rarest_resamples() -> None:
    low, high = interval([1, 2, 3, 4, 5])
    # 0.00096 of 3,125 resamples are three: one has five ones, the next have four and a two.
    assert (low, high) == pytest.approx((1.2, 4.8))


def test_the_interval_of_many_values_is_that_of_students_t() -> None:
    random = Random(1)
    values = [random.gauss(10, 2) for _ in range(40)]
    found = estimate(values)
    assert found is not None
    deviation = math.sqrt(sum((value - found.mean) ** 2 for value in values) / 39)
    half = t_quantile(39) * deviation / math.sqrt(40)
    low, high = interval(values)
    assert low == pytest.approx(found.mean - half, abs=0.1)
    assert high == pytest.approx(found.mean + half, abs=0.1)


def test_the_interval_leans_to_the_side_of_the_outlier() -> None:
    low, high = interval([1.0] * 9 + [11.0])
    assert low == 1.0
    assert high - 2.0 > 2.0 - low


def test_equal_values_give_equal_intervals_without_width_where_nothing_strays() -> None:
    values = [Random(2).random() for _ in range(20)]
    assert estimate(values) == estimate(list(values))
    assert interval([0.1, 0.1, 0.1, 0.1, 0.1, 0.1]) == pytest.approx((0.1, 0.1))


def test_intervals_of_normal_values_hold_the_mean_nineteen_times_in_twenty() -> None:
    random = Random(3)
    for count, least in ((5, 0.90), (10, 0.92), (20, 0.93)):
        held = 0
        for _ in range(400):
            low, high = interval([random.gauss(0, 1) for _ in range(count)])
            held += low <= 0 <= high
        assert held / 400 >= least, count


def test_quantiles_fall_and_never_below_the_normal_one() -> None:
    values = [t_quantile(freedom) for freedom in range(1, 500)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 12.706
    assert values[-1] >= 1.96


def test_ratios_pair_equal_seeds_and_leave_out_zero() -> None:
    found = paired_ratio({1: 2.0, 2: 7.0, 3: 1.0}, {1: 1.0, 2: 2.0, 4: 1.0})
    assert found == Estimate(3.0, None, None, 2)
    assert paired_ratio({1: 1.0}, {2: 1.0}) is None
    assert paired_ratio({1: 1.0}, {1: 0.0}) is None


def test_ratios_the_other_way_round_are_reciprocals() -> None:
    one, two = (dict(enumerate(row)) for row in ([1.0, 3.0, 2.0], [3.0, 1.0, 2.5]))
    there, back = paired_ratio(one, two), paired_ratio(two, one)
    assert there is not None and there.low is not None and there.high is not None
    assert back is not None
    assert back.mean == pytest.approx(1 / there.mean)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))


def test_a_share_has_the_interval_of_clopper_and_pearson() -> None:
    def rounded(seen: int, count: int) -> tuple[float, ...]:
        found = share([run < seen for run in range(count)])
        assert found is not None and found.low is not None and found.high is not None
        return tuple(round(value, 3) for value in (found.mean, found.low, found.high))

    # The two-sided intervals as tables have them; without any event the bound is one-sided.
    assert rounded(1, 10) == (0.1, 0.003, 0.445)
    assert rounded(10, 10) == (1.0, 0.692, 1.0)
    assert rounded(0, 59) == (0.0, 0.0, 0.05)
    assert share([]) is None


@pytest.mark.parametrize(
    ("events", "runs", "verdict"), [(0, 58, "undecided"), (0, 59, "ok"), (1, 500, "not ok")]
)
def test_what_must_never_happen_needs_many_runs_without_it(
    events: int, runs: int, verdict: str
) -> None:
    found = share([run < events for run in range(runs)])
    assert claim("x", "of runs", found, relation="never", target=0.05).verdict == verdict


def test_means_of_runs_without_common_seeds_are_compared_by_all_of_them() -> None:
    found = ratio_of_means([2.0] * 20, [0.9, 1.0, 1.1])
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    assert found.count == 3
    assert (found.low, found.high) == pytest.approx((2.0 / 1.1, 2.0 / 0.9))
    assert found == ratio_of_means([2.0] * 20, [0.9, 1.0, 1.1])
    assert ratio_of_means([1.0], []) is None
    assert ratio_of_means([1.0, 2.0], [0.0, 0.0]) is None
    assert ratio_of_means([1.0, 2.0], [1.0, 1.0, 1.0]) == Estimate(1.5, None, None, 2)


@pytest.mark.parametrize(
    ("relation", "low", "high", "verdict"),
    [
        (">=", 0.98, 1.2, "ok"),
        (">=", 0.90, 0.97, "not ok"),
        (">=", 0.97, 1.2, "undecided"),
        ("<=", 0.90, 0.98, "ok"),
        ("<=", 1.00, 1.2, "not ok"),
        ("<=", 0.90, 1.1, "undecided"),
        ("within", 0.88, 1.08, "ok"),
        ("within", 0.80, 0.87, "not ok"),
        ("within", 1.09, 1.2, "not ok"),
        ("within", 0.87, 1.00, "undecided"),
        ("within", 0.80, 1.2, "undecided"),
        # What counts is the figure that is shown.
        (">=", 0.9796, 1.2, "ok"),
    ],
)
def test_a_claim_is_judged_by_its_whole_interval(
    relation: Relation, low: float, high: float, verdict: Verdict
) -> None:
    found = Estimate((low + high) / 2, low, high, 5)
    row = claim("x", "", found, relation=relation, target=0.98, tolerance=0.1)
    assert row.verdict == verdict


@pytest.mark.parametrize(("mean", "meets"), [(5.0, True), (0.5, False)])
def test_no_mean_of_too_few_seeds_is_ok_or_not_ok(mean: float, meets: bool) -> None:
    row = claim("x", "", estimate([mean, mean]), target=1.0, note="as published")
    assert (row.verdict, row.mean_meets) == ("undecided", meets)
    assert row.note == "as published; too few seeds for a verdict: 2 of at least 3"


def test_what_has_no_target_has_no_verdict() -> None:
    row = claim("x", "", estimate([1.0, 2.0, 3.0]), relation="none")
    assert (row.verdict, row.mean_meets, row.note) == ("no target", None, "")


def test_a_target_of_zero_can_be_met_and_missed() -> None:
    for measured, verdict in ((0.0, "ok"), (1.0, "not ok")):
        row = claim("x", "", estimate([measured] * 3), relation="<=", target=0.0)
        assert row.verdict == verdict


def test_claims_that_need_a_look_come_first_and_are_counted_first() -> None:
    def row(name: str, *values: float, target: float | None = 1.0) -> Claim:
        return claim(name, "", estimate(values), target=target)

    rows = [
        row("met well", 2.0, 2.0, 2.0),
        row("no target", 5.0, target=None),
        row("missed", 0.9, 0.9, 0.9),
        row("not measured"),
        row("missed by far", 0.1, 0.1, 0.1),
        row("met", 1.0, 1.0, 1.0),
        row("one seed", 3.0),
        row("straddles", 0.9, 1.0, 1.1),
    ]
    assert [found.name for found in worst_first(rows)] == [
        "missed by far", "missed", "straddles", "one seed", "not measured", "met", "met well",
        "no target",
    ]  # fmt: skip
    assert list(tally(rows).items()) == [
        ("not ok", 2), ("undecided", 2), ("no data", 1), ("ok", 2), ("no target", 1),
    ]  # fmt: skip


def test_numbers_have_three_digits() -> None:
    texts = [number(value) for value in (None, 0, 0.01234, 0.95, 12.345, 1234.5, math.inf)]
    assert texts == ["–", "0", "0.0123", "0.950", "12.3", "1,234", "inf"]
