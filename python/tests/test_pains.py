"""docs/pains.md claims nothing without proof.

Each test that the page names exists in the file that it names. Each link leads to a page and a
heading. Each figure stands in a section that its row links to, or in a test that its row names.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/pains.md"
MARKS = ("shown by a test", "measured", "partly", "no")

ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)
MARK = re.compile(r"\*\*([a-z ]+)\*\*")
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]*)(?:#([^)\s]+))?\)")
# Projects with numbers of their issues.
SOURCES = re.compile(r"[\w-]+ #\d+(, #\d+)*(; [\w-]+ #\d+(, #\d+)*)*")
FIGURE = re.compile(r"\d[\d,_]*(?:\.\d+)?")
# A name of a test, unlike a key of a configuration or a name of a profile, has several words.
NAME = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+){3,}")


@dataclass(frozen=True)
class Row:
    """A complaint."""

    complaint: str
    sources: str
    deed: str
    proof: str

    @property
    def mark(self) -> str:
        found = MARK.match(self.proof)
        assert found, f"{self.complaint}: the proof begins with a mark"
        return found[1]

    def tests(self) -> list[tuple[str, str]]:
        """Files and names of tests. The file follows the names of its tests."""
        found: list[tuple[str, str]] = []
        names: list[str] = []
        for text in CODE.findall(self.proof):
            if text.endswith((".rs", ".py")):
                assert names, f"{self.complaint}: no test is named in {text}"
                found += [(text, name) for name in names]
                names = []
            elif NAME.fullmatch(text):
                names.append(text)
        assert not names, f"{self.complaint}: the file of {names} is missing"
        return found

    def links(self) -> list[tuple[Path, str]]:
        return links(f"{self.deed} {self.proof}")


def links(text: str) -> list[tuple[Path, str]]:
    """Files and anchors to which a text of the page leads."""
    found = []
    for target, anchor in LINK.findall(text):
        found.append(((PAGE.parent / target).resolve() if target else PAGE, anchor))
    return found


def rows() -> list[Row]:
    cells = [re.split(r" \| ", line) for line in ROW.findall(PAGE.read_text())]
    found = [Row(*row) for row in cells if len(row) == 4 and row[0] not in ("complaint", "---")]
    assert found
    return found


def body(path: str, name: str) -> str:
    """The text of a test, or nothing if there is none."""
    file = ROOT / path
    text = file.read_text() if file.is_file() else ""
    if path.endswith(".py"):
        begin = re.search(rf"^def {name}\(", text, re.MULTILINE)
        end = re.compile(r"^(?=[@\w])", re.MULTILINE)
    else:
        attributes = r"(?:[ \t]*(?:#\[.*\]|//.*)\n)*"
        begin = re.search(rf"^([ \t]*)#\[test\]\n{attributes}\1fn {name}\(", text, re.MULTILINE)
        end = re.compile(rf"^{begin[1]}\}}", re.MULTILINE) if begin else re.compile("$")
    if not begin:
        return ""
    last = end.search(text, begin.end())
    return text[begin.start() : last.end() if last else len(text)]


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def section(file: Path, anchor: str) -> str:
    """The text below a heading up to the next one of its level, or nothing if there is none."""
    text = file.read_text() if file.is_file() else ""
    if not anchor:
        return text
    for heading in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE):
        if anchor_of(heading[2]) == anchor:
            above = rf"^#{{1,{len(heading[1])}}} "
            return re.split(above, text[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    return ""


def figures(text: str) -> set[Decimal]:
    found = FIGURE.findall(text)
    return {Decimal(re.sub("[,_]", "", figure)).normalize() for figure in found}


def claimed(row: Row) -> set[Decimal]:
    """The figures that a reader sees beside the complaint."""
    text = f"{row.deed} {row.proof}"
    shown = re.sub(r"\]\([^)]*\)", "]", CODE.sub("", text))
    return figures(shown)


def unfounded(row: Row) -> set[Decimal]:
    """Figures of a row that stand in no section and in no test of the row."""
    texts = [section(file, anchor) for file, anchor in row.links()]
    texts += [body(path, name) for path, name in row.tests()]
    return claimed(row) - figures("\n".join(texts))


def test_every_test_that_the_page_names_exists() -> None:
    for row in rows():
        for path, name in row.tests():
            assert body(path, name), f"{row.complaint}: no test {name} in {path}"


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    for file, anchor in links(PAGE.read_text()):
        assert section(file, anchor), f"{file.name} has no heading #{anchor}"


def test_every_figure_stands_in_a_section_or_a_test_of_its_row() -> None:
    for row in rows():
        assert not unfounded(row), f"{row.complaint}: {unfounded(row)}"


def test_every_row_has_its_sources_and_the_proof_that_its_mark_asks_for() -> None:
    for row in rows():
        assert SOURCES.fullmatch(row.sources), row
        assert row.mark in MARKS, row
        assert row.mark != "shown by a test" or row.tests(), row
        assert row.mark != "measured" or any(anchor for _, anchor in row.links()), row


def test_the_page_counts_its_marks_right() -> None:
    counts = re.findall(r"^\| \*\*([a-z ]+)\*\* \| .+ \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {mark: int(count) for mark, count in counts} == Counter(row.mark for row in rows())


@pytest.mark.parametrize(
    "proof",
    [
        "**shown by a test**: `one_download_uses_no_path` (`crates/e2e/tests/tunnel.rs`)",
        "**shown by a test**: `one_download_uses_every_path` (`crates/e2e/tests/failover.rs`)",
        # A function that is no test.
        "**shown by a test**: `set_all_of_them_away` (`crates/e2e/tests/hold.rs`)",
    ],
)
def test_a_wrong_name_of_a_test_is_found(proof: str) -> None:
    [(path, name)] = Row("", "", "", proof).tests()
    assert not body(path, name)


def test_a_wrong_heading_and_a_wrong_figure_are_found() -> None:
    right = Row("", "", "", "**measured**: 1.49 s ([blocked](measurements.md#udp-blocked))")
    assert not unfounded(right)
    wrong = Row("", "", "", right.proof.replace("1.49", "1.48"))
    assert unfounded(wrong) == {Decimal("1.48")}
    [(file, anchor)] = right.links()
    assert section(file, anchor)
    assert not section(file, "udp-unblocked")
    assert not section(file.with_name("nothing.md"), anchor)
