"""`scripts/mutate-chaos`: its mutations fit the tree, its page names them, it cleans up."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

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


SCRIPT = load()
MUTATIONS = SCRIPT.MUTATIONS
RULES = {
    "isolation",
    "twice",
    "loss",
    "return",
    "stream",
    "memory",
    "leftovers",
    "spin",
    "internal errors",
    "panic",
    "served",
    "claims",
    "moves",
}
"""All rules of chaos."""


def test_all_mutations_fit_into_one_program() -> None:
    texts: dict[str, str] = {}
    for mutation in MUTATIONS:
        text = texts.get(mutation.file) or (ROOT / mutation.file).read_text()
        texts[mutation.file] = SCRIPT.apply(mutation, text)
        assert f'ropewalk_types::broken("{mutation.name}")' in texts[mutation.file]
    assert not any("BROKEN" in text for text in texts.values())


def test_each_rule_has_a_mutation() -> None:
    assert {mutation.rule for mutation in MUTATIONS} == RULES


def test_the_page_has_a_row_for_each_mutation() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text()
    for mutation in MUTATIONS:
        row = f"\n| `{mutation.rule}` | `{mutation.name}`: {mutation.what} |"
        assert row in page, mutation.name


CARGO = """#!/bin/sh
while [ "$1" != --target-dir ]; do shift; done
mkdir -p "$2/release"
{extra}
cat > "$2/release/ropewalk-sim" <<'END'
#!/bin/sh
echo '{{"failed": ['"$({failed})"']}}'
END
chmod +x "$2/release/ropewalk-sim"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the script and the files that mutations change."""
    files = {mutation.file for mutation in MUTATIONS}
    for file in [*files, "scripts/mutate-chaos", "crates/types/src/lib.rs", ".gitignore"]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, tmp_path / file)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def start(checkout: Path, failed: str, *names: str, extra: str = "") -> subprocess.Popen[str]:
    """Starts the script with a compiler that gives a program which prints what `failed` prints."""
    tools = checkout / "target" / "tools"
    tools.mkdir(parents=True)
    (tools / "cargo").write_text(CARGO.format(failed=failed, extra=extra))
    (tools / "cargo").chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k != "CARGO_TARGET_DIR"}
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    return subprocess.Popen(
        [sys.executable, checkout / "scripts" / "mutate-chaos", *names],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_clean(checkout: Path) -> bool:
    """Whether the checkout is as before, and the directory of the mutations is gone."""
    status = subprocess.run(
        ["git", "status", "--porcelain"],
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return not status.stdout and not (checkout / "target" / "mutate-chaos").exists()


ONE = '{"seed": 7, "rule": "spin"}'


@pytest.mark.parametrize(
    ("failed", "code", "line"),
    [
        (f"[ -z \"$ROPEWALK_MUTATION\" ] || echo '{ONE}'", 0, "spin timer 7"),
        ("true", 1, "spin timer not found"),
        (f"echo '{ONE}'", 1, "spin timer not found"),
        (f"echo '{ONE.replace('spin', 'loss')}'", 1, "spin timer not found"),
    ],
    ids=["found", "no seed fails", "fails without the mutation", "another rule fails"],
)
def test_a_mutation_that_is_not_found_is_a_failure(
    checkout: Path, failed: str, code: int, line: str
) -> None:
    script = start(checkout, failed, "timer")
    out, _ = script.communicate(timeout=60)
    assert " ".join(out.split()).startswith(line)
    assert script.returncode == code
    assert is_clean(checkout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "kill"])
def test_the_script_cleans_up_when_it_is_ended(checkout: Path, number: signal.Signals) -> None:
    begun = checkout / "target" / "begun"
    script = start(checkout, "true", extra=f"touch {begun}; exec sleep 60")
    deadline = time.monotonic() + 30
    while not begun.exists():
        assert time.monotonic() < deadline, "the build does not begin"
        time.sleep(0.02)
    assert not is_clean(checkout)
    # A terminal sends the signal to the whole group.
    os.killpg(script.pid, number)
    script.communicate(timeout=30)
    assert script.returncode == 128 + number
    assert is_clean(checkout)
