"""Experiments: what they run and how they judge it."""

from __future__ import annotations

import pytest

from ropewalk.sdn.experiments.bicast_ovs import Cell, Result, cells, claims


def _result(policy: str, run: int, mbit: float, rtt_ms: float) -> Result:
    cell = Cell(policy, "cubic", 1000, 5, 5, run)
    return Result(cell, mbit, 30, rtt_ms / 2, rtt_ms, 2.0, 0.1, 0, {})


def test_every_policy_runs_in_every_setting_of_the_paper() -> None:
    grid = [cell for cell in cells(quick=False, runs=1) if cell.congestion == "cubic"]
    assert len(grid) == len(set(grid)) == 4 * 2 * 6
    assert set(cells(quick=True, runs=1)) <= set(grid)


def test_a_ratio_pairs_the_same_run_and_is_judged_by_its_mean() -> None:
    rows = claims(
        [
            _result("unicast", 1, 2.0, 2000),
            _result("unicast", 2, 1.0, 4000),
            _result("bi-bicast", 1, 8.0, 1000),
            _result("bi-bicast", 2, 3.0, 1000),
            _result("bi-bicast", 3, 99.0, 1),
        ]
    )
    by_name = {row.name.rpartition(": ")[2]: row for row in rows}
    assert by_name["throughput"].measured == pytest.approx((4 + 3) / 2)
    assert by_name["throughput"].ok is True
    assert by_name["longest round trip"].measured == pytest.approx((0.5 + 0.25) / 2)
    assert by_name["longest round trip"].ok is False
    assert rows[0].ok is False


def test_without_unicast_nothing_is_claimed() -> None:
    assert claims([_result("bi-bicast", 1, 8.0, 1000)]) == []
