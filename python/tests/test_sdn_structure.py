"""How the packages of `ropewalk.sdn` use each other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path

import ropewalk.sdn

PACKAGE = "ropewalk.sdn"
ROOT = Path(ropewalk.sdn.__path__[0])


@dataclass(frozen=True, order=True)
class Edge:
    """A child of the package uses another one in a module."""

    user: str
    used: str
    module: str

    def __str__(self) -> str:
        return f"{self.user} -> {self.used} (in {self.module})"


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Every module: its name, the package that relative imports begin at, its syntax tree."""
    for file in sorted(ROOT.rglob("*.py")):
        parts = list(file.relative_to(ROOT).with_suffix("").parts)
        package = ".".join([PACKAGE, *parts[:-1]])
        name = package if parts[-1] == "__init__" else f"{package}.{parts[-1]}"
        yield name, package, ast.parse(file.read_text(), str(file))


def imported(tree: ast.Module, package: str) -> Iterator[str]:
    """What a module imports, inside functions too; of `from a import b` it is `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            where = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{where}.{alias.name}" for alias in node.names)


def child(name: str) -> str | None:
    """The direct child of the package that a dotted name is in."""
    inside = name.removeprefix(f"{PACKAGE}.")
    return None if inside == name else inside.partition(".")[0]


def edges() -> set[Edge]:
    found = set()
    for name, package, tree in modules():
        user = child(name)
        for used in map(child, imported(tree, package)):
            if user is not None and used is not None and used != user:
                found.add(Edge(user, used, name))
    return found


def cycle(found: Iterable[Edge]) -> list[Edge]:
    """The edges of a cycle; none when there is no cycle."""
    by_user: dict[str, list[Edge]] = {}
    for edge in sorted(found):
        by_user.setdefault(edge.user, []).append(edge)
    done: set[str] = set()
    for start in by_user:
        if (around := _from(start, by_user, [], done)) is not None:
            return around
    return []


def _from(
    node: str, by_user: Mapping[str, list[Edge]], path: list[Edge], done: set[str]
) -> list[Edge] | None:
    users = [edge.user for edge in path]
    if node in users:
        return path[users.index(node) :]
    if node in done:
        return None
    for edge in by_user.get(node, ()):
        if (around := _from(edge.used, by_user, [*path, edge], done)) is not None:
            return around
    done.add(node)
    return None


def test_a_cycle_is_found_with_its_edges() -> None:
    rows = [Edge("a", "b", "a.x"), Edge("b", "c", "b"), Edge("c", "b", "c"), Edge("d", "a", "d")]
    assert cycle(rows) == rows[1:3]
    assert cycle(rows[:2]) == []


def test_no_two_children_of_the_package_use_each_other() -> None:
    found = edges()
    assert {edge.user for edge in found} >= {"balance", "bicast", "openflow", "roam", "service"}
    around = cycle(found)
    assert not around, "\n".join(map(str, around))


def test_the_package_uses_neither_a_testbed_nor_the_laboratory() -> None:
    used = [
        f"{name} imports {target}"
        for name, package, tree in modules()
        for target in imported(tree, package)
        if f"{target}.".startswith("ropewalk.lab.") or "testbed" in target
    ]
    assert used == []
