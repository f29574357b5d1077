"""Every program and command has a manual page, and no page has an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.lab.programs import ENVIRONMENT

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(os.environ.get(ENVIRONMENT, ROOT / "target/release"))
BUILT = ("ropewalk", "ropewalk-linkem", "ropewalk-sim", "ropewalk-swarm")
MAN = {"LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MAN_KEEP_FORMATTING": ""}

pytestmark = [
    pytest.mark.skipif(
        any(not (PROGRAMS / name).exists() for name in BUILT),
        reason=f"not all programs are in {PROGRAMS}: cargo build --release --bins",
    ),
    pytest.mark.skipif(shutil.which("man") is None, reason="man-db is missing"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("manual")
    script = ROOT / "scripts/manual"
    subprocess.run([sys.executable, script, directory, PROGRAMS], check=True, timeout=120)
    return directory


def commands(program: Path, *words: str) -> list[tuple[str, ...]]:
    """A program's commands at all levels, as its help lists them."""
    told = subprocess.run(
        [program, *words, "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    part = re.search(r"^Commands:\n((?:  .*\n|\n)+)", told.stdout, re.MULTILINE)
    found = re.findall(r"^  ([a-z][\w-]*)", part[1] if part else "", re.MULTILINE)
    below = [(*words, name) for name in found if name != "help"]
    return below + [deeper for each in below for deeper in commands(program, *each)]


def test_every_command_has_a_page_that_names_it(pages: Path) -> None:
    count = 0
    for program in BUILT:
        for words in [(), *commands(PROGRAMS / program)]:
            name = "-".join([program, *words])
            page = (pages / f"man1/{name}.1").read_text()
            escaped = name.replace("-", r"\-")
            assert re.search(rf"^{re.escape(escaped)} \\- \w", page, re.MULTILINE), name
            count += 1
    assert count > 25
    for program in ("ropewalk-lab", "ropewalk-sdn"):
        assert (pages / f"man1/{program}.1").is_file()


def warnings(page: Path) -> str:
    """What `man` and groff have against a page."""
    formatted = subprocess.run(
        ["man", "--warnings=w", "-l", page],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, **MAN},
    )
    assert "NAME\n" in formatted.stdout
    name = subprocess.run(["lexgrog", page], capture_output=True, text=True, timeout=60)
    return formatted.stderr + (name.stdout if name.returncode else "")


def test_no_page_has_a_warning(pages: Path) -> None:
    every = sorted(pages.rglob("*.[15]"))
    assert len(every) > 27
    told = {page.name: warnings(page) for page in every}
    assert {name: text for name, text in told.items() if text} == {}


def test_a_bad_page_is_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.1"
    bad.write_text(".TH BAD 1\n.SH NAME\nbad \\- x\n.SH TEXT\n\\*[nothing] .\n.nosuch\n")
    assert "nosuch" in warnings(bad)
