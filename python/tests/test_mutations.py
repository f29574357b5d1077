"""The mutations of `scripts/mutate-chaos` fit the code as it is."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_text_of_each_mutation_is_in_its_file_once() -> None:
    """A text that is gone, or is there twice, would end the script in the middle of its work."""
    loader = SourceFileLoader("mutate_chaos", str(ROOT / "scripts" / "mutate-chaos"))
    spec = spec_from_loader("mutate_chaos", loader)
    assert spec is not None
    script = module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules["mutate_chaos"] = script
    loader.exec_module(script)
    for mutation in script.MUTATIONS:
        text = (ROOT / mutation.file).read_text()
        assert text.count(mutation.old) == 1, mutation.name
        assert mutation.new != mutation.old, mutation.name
