"""Estimates, and what a claim makes of them."""

import math

import pytest

from ropewalk.lab.claims import Relation, claim, number, worst_first
from ropewalk.lab.statistics import Estimate, estimate, paired_ratio, t_quantile


def test_the_interval_is_students() -> None:
    # Mean 3, deviation sqrt(2.5), five values: 2.776 · sqrt(2.5 / 5).
    found = estimate([1, 2, 3, 4, 5])
    assert found is not None
    assert found.mean == 3
    assert found.high is not None
    assert found.high - 3 == pytest.approx(1.963, abs=0.001)
    assert estimate([]) is None
    assert estimate([7]) == Estimate(7, None, None, 1)


def test_quantiles_fall_and_never_below_the_normal_one() -> None:
    values = [t_quantile(freedom) for freedom in range(1, 500)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 12.706
    assert values[-1] >= 1.96


def test_ratios_pair_equal_seeds_and_leave_out_zero() -> None:
    found = paired_ratio({1: 2.0, 2: 6.0, 3: 1.0, 4: 1.0}, {1: 1.0, 2: 2.0, 4: 0.0})
    assert found is not None
    assert (found.mean, found.count) == (2.5, 2)
    assert paired_ratio({1: 1.0}, {2: 1.0}) is None


@pytest.mark.parametrize(
    ("relation", "measured", "ok"),
    [
        (">=", 0.98, True),
        (">=", 0.97, False),
        ("<=", 0.98, True),
        ("<=", 1.1, False),
        ("within", 1.05, True),
        ("within", 0.85, False),
    ],
)
def test_a_claim_is_judged_by_its_relation(relation: Relation, measured: float, ok: bool) -> None:
    row = claim(
        "x", "", Estimate(measured, None, None, 1), relation=relation, target=0.98, tolerance=0.1
    )
    assert row.ok is ok


def test_a_target_of_zero_can_be_met_and_missed() -> None:
    for measured, ok in ((0.0, True), (1.0, False)):
        row = claim("x", "", Estimate(measured, None, None, 1), relation="<=", target=0.0)
        assert row.ok is ok


def test_the_worst_claims_come_first_and_unmeasured_ones_before_met_ones() -> None:
    def row(name: str, measured: float | None, target: float | None = 1.0) -> object:
        found = None if measured is None else Estimate(measured, None, None, 1)
        return claim(name, "", found, target=target)

    rows = [
        row("met well", 2.0),
        row("no target", 5.0, None),
        row("missed", 0.9),
        row("not measured", None),
        row("missed by far", 0.1),
        row("met", 1.0),
    ]
    names = [found.name for found in worst_first(rows)]  # type: ignore[arg-type]
    assert names == ["missed by far", "missed", "not measured", "met", "met well", "no target"]


def test_numbers_have_three_digits() -> None:
    texts = [number(value) for value in (None, 0, 0.01234, 0.95, 12.345, 1234.5, math.inf)]
    assert texts == ["–", "0", "0.0123", "0.950", "12.3", "1,234", "inf"]
