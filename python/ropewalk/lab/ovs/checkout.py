"""Finds `ovs_testbed`, which is in a checkout of the repository and never installed.

Nothing else is taken from the checkout: `ropewalk` beside it has no native module, and would hide
the installed one if the directory were searched for modules.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

from ropewalk.lab.runner import UnavailableError

TESTBED = "ovs_testbed"


def load(name: str) -> ModuleType:
    """A module of `ovs_testbed`.

    Raises:
        UnavailableError: when there is no checkout here, or it is of another release.
    """
    try:
        if find_spec(TESTBED) is None:
            _load_package()
        return import_module(f"{TESTBED}.{name}")
    except ImportError as error:
        raise UnavailableError(
            f"{TESTBED} of this checkout and the installed ropewalk do not fit: {error}; "
            "install ropewalk from the checkout: pip install '.[lab,sdn]'"
        ) from error


def _load_package() -> None:
    here = Path.cwd()
    root = next((place for place in (here, *here.parents) if _is_checkout(place)), None)
    spec = root and PathFinder.find_spec(TESTBED, [str(root / "python")])
    if not spec or spec.loader is None:
        raise UnavailableError(
            "experiments on Open vSwitch need a checkout of the repository, and "
            f"{here} is in none; run from the checkout's root"
        )
    package = module_from_spec(spec)
    sys.modules[TESTBED] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules[TESTBED]
        raise


def _is_checkout(place: Path) -> bool:
    try:
        project = tomllib.loads((place / "pyproject.toml").read_text()).get("project")
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == "ropewalk"
