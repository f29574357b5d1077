"""The quick experiments on the real programs, held against loose bounds.

They need the programs of `make build` in target/release; those on the kernel run as root.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ropewalk.lab.cli import main
from ropewalk.lab.experiments import grid

PROGRAMS = Path(__file__).parents[2] / "target" / "release"


def measured(out: Path, *arguments: str) -> dict[str, float]:
    """Runs an experiment's quick version; every claim with what was measured."""
    status = main(["run", *arguments, "--quick", "--programs", str(PROGRAMS), "--out", str(out)])
    assert status == 0, "a cell has no result: is `make build` done?"
    claims = json.loads((out / "result.json").read_text())["claims"]
    missing = [row["name"] for row in claims if row["measured"] is None]
    assert not missing
    return {row["name"]: row["measured"] for row in claims}


def test_auto_in_the_simulated_grid(tmp_path: Path) -> None:
    found = measured(tmp_path, "grid", "--sim", "--seeds", "1")
    ratios = {name: ratio for name, ratio in found.items() if "auto ÷ single inside" in name}
    several = {name: ratio for name, ratio in ratios.items() if "tcp-cubic-5" in name}
    assert len(several) == len(grid.PROFILES)
    worst = min(several, key=lambda name: several[name])
    assert several[worst] > 0.85, f"{worst}: {several[worst]:.2f}"
    # One flow in a few seconds depends on single packets: one case in ten may be unlucky.
    jittery = {p.name for p in grid.PROFILES if p.a.jitter or p.b.jitter}
    single = {
        name: ratio
        for name, ratio in ratios.items()
        if name not in several and name.split(",")[0] not in jittery
    }
    assert len(single) == 2 * (len(grid.PROFILES) - len(jittery))
    low = [f"{name}: {ratio:.2f}" for name, ratio in single.items() if ratio < 0.85]
    assert 10 * len(low) <= len(single), low


def test_auto_over_simulated_recordings(tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for name, phase in (("wifi", 0.0), ("cellular", 2.0)):
        rates = (2e6 + 1.9e6 * math.sin(second / 3 + phase) for second in range(30))
        lines = (f"{second},{rate:.0f}\n" for second, rate in enumerate(rates, 1))
        (recordings / f"7_1_{name}.csv").write_text("".join(lines))
    found = measured(
        tmp_path / "out", "traces", "--sim", "--seeds", "1", "--traces", str(recordings)
    )
    assert found["7_1 (simulator): auto ÷ better single path"] > 1.0
    assert found["7_1 (simulator): auto ÷ ceiling of both"] > 0.8
    assert found["7_1 (simulator): connections that broke"] == 0


@pytest.mark.real
def test_auto_in_the_grid_on_the_kernel(tmp_path: Path) -> None:
    only = "^grid/rtt_70/(direct-a|single-a|auto)/tcp-cubic-5/"
    found = measured(tmp_path, "grid", "--kernel", "--seeds", "1", "--jobs", "1", "--only", only)
    where = "rtt_70, tcp-cubic-5 (kernel): auto ÷"
    assert found[f"{where} single inside"] > 1.2
    assert found[f"{where} single outside"] > 1.2
