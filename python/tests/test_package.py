"""What the installed package asks for."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import files, requires

LAB_ONLY = ("matplotlib", "numpy")
# Stands in for an environment without the extra: what it does not find, nobody finds.
WITHOUT_LAB = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {LAB_ONLY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_only_the_laboratory_asks_for_charts_and_arrays() -> None:
    wanted = requires("ropewalk") or []
    for library in LAB_ONLY:
        asked = [line for line in wanted if re.match(rf"{library}\b", line)]
        assert asked
        assert all("extra ==" in line and "lab" in line for line in asked), asked


def without_lab(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_LAB + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_controller_runs_without_the_laboratory() -> None:
    done = without_lab("from ropewalk.sdn.cli import main; main(['--help'])")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_simulator_says_which_extra_it_needs() -> None:
    done = without_lab("import ropewalk.sim")
    assert done.returncode == 1
    assert "'.[lab]'" in done.stderr


def test_the_package_has_the_native_module_and_the_controller_and_no_testbed() -> None:
    paths = [str(path) for path in files("ropewalk") or []]
    assert any(path.startswith("ropewalk/_native") for path in paths)
    assert {"ropewalk/sdn/service.py", "ropewalk/sdn/host/copies/copies.c"} <= set(paths)
    assert "ropewalk/sdn/dashboard/pages/uplot/uPlot.iife.min.js" in paths
    assert [path for path in paths if "testbed" in path] == []
