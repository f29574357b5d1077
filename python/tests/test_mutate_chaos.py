"""The mutations of `scripts/mutate-chaos` fit the tree, and their page names them."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    """The script as a module."""
    loader = SourceFileLoader("mutate_chaos", str(ROOT / "scripts" / "mutate-chaos"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Its data classes look their module up.
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


MUTATIONS = load().MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_finds_its_text_once(mutation: Any) -> None:  # noqa: ANN401
    text = (ROOT / mutation.file).read_text()
    assert text.count(mutation.old) == 1, f"{mutation.file}: write {mutation.name!r} anew"
    assert mutation.new != mutation.old


def test_the_page_has_a_row_for_each_mutation() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text()
    for mutation in MUTATIONS:
        assert f"\n| `{mutation.name}`: {mutation.what} |" in page, mutation.name
