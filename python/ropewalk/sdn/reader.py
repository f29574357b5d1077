"""Reads TOML tables into typed values and collects every error with file, key and remedy."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

FILE_BYTES_MAX = 1 << 20


class ConfigError(Exception):
    """What is wrong with a configuration, one line each: file, key, problem, remedy."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def load(path: Path) -> Table:
    """The file's top table.

    Raises:
        ConfigError: when it cannot be read or is not TOML.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(
                [f"{path}: larger than {FILE_BYTES_MAX} bytes; is it the right file?"]
            )
        return Table(path, tomllib.loads(path.read_text(encoding="utf-8")), "", [])
    except OSError as error:
        raise ConfigError(
            [f"{path}: {error.strerror}; name the file with --config FILE"]
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: not TOML: {error}; mend that place"]) from error


class Table:
    """One table; every key is taken once, what nobody takes is unknown."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str, errors: list[str]) -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._errors = errors
        self._known: list[str] = []

    def error(self, key: str, problem: str, remedy: str) -> None:
        """Notes what is wrong with a key."""
        self._errors.append(f"{self.path}: {self._prefix}{key}: {problem}; {remedy}")

    def finish(self) -> None:
        """Notes unknown keys, and raises when anything was wrong.

        Raises:
            ConfigError: with all errors of the file.
        """
        self.end()
        if self._errors:
            raise ConfigError(self._errors)

    def end(self) -> None:
        """Notes the keys that nobody took."""
        for key in self._values:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                remedy = f"did you mean {near[0]}?" if near else "remove it"
                self.error(key, "unknown key", remedy)

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return key in self._values

    def table(self, key: str) -> Table:
        """The table under a key, empty when it is absent."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            self.error(key, "not a table", f"write it as [{self._prefix}{key}]")
            value = {}
        return Table(self.path, value, f"{self._prefix}{key}.", self._errors)

    def tables(self, key: str, count_max: int) -> list[Table]:
        """The array of tables under a key."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.error(key, "not an array of tables", f"write it as [[{self._prefix}{key}]]")
            value = []
        if len(value) > count_max:
            self.error(key, f"{len(value)} of them", f"at most {count_max} are possible")
            value = value[:count_max]
        return [
            Table(self.path, item, f"{self._prefix}{key}[{number}].", self._errors)
            for number, item in enumerate(value, 1)
        ]

    def text(self, key: str, default: str | None = None, *, length_max: int = 255) -> str:
        """A text that is not empty."""
        value = self._take(key, default)
        if value is None:
            self.error(key, "missing", f'write {key.rpartition(".")[2]} = "…"')
            return ""
        if not isinstance(value, str) or (not value and default != ""):
            self.error(key, "not a text", 'write it like "…"')
            return ""
        if len(value) > length_max:
            self.error(key, "too long", f"at most {length_max} characters")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of some words."""
        value = self.text(key, default)
        if value not in choices:
            near = difflib.get_close_matches(value, choices, 1)
            hint = f', did you mean "{near[0]}"?' if near else ""
            listed = ", ".join(f'"{choice}"' for choice in choices)
            self.error(key, f'unknown value "{value}"{hint}', f"use one of {listed}")
            return default
        return value

    def number(
        self, key: str, default: float | None, least: float, most: float, unit: str
    ) -> float:
        """A number in a range."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            problem = "missing" if value is None else "not a number"
            self.error(key, problem, f"write a number from {least:g} to {most:g} {unit}".rstrip())
            return least
        if not least <= value <= most:
            self.error(key, f"{value} is out of range", f"{least:g} to {most:g} {unit}".rstrip())
        return float(value)

    def whole(self, key: str, default: int | None, least: int, most: int, unit: str = "") -> int:
        """A whole number in a range."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            problem = "missing" if value is None else "not a whole number"
            self.error(key, problem, f"write a whole number from {least} to {most} {unit}".rstrip())
            return least
        if not least <= value <= most:
            self.error(key, f"{value} is out of range", f"{least} to {most} {unit}".rstrip())
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.error(key, "neither true nor false", "write true or false")
            return default
        return value

    def texts(self, key: str, default: Sequence[str], choices: Sequence[str]) -> tuple[str, ...]:
        """A list of some of the words."""
        value = self._take(key, list(default))
        if not isinstance(value, list) or not all(item in choices for item in value):
            listed = ", ".join(f'"{choice}"' for choice in choices)
            self.error(key, "not a list of known words", f"use some of [{listed}]")
            return tuple(default)
        return tuple(value)

    def words(self, key: str, count_max: int) -> tuple[str, ...]:
        """A list of texts, empty when it is absent."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.error(key, "not a list of texts", 'write it like ["…", "…"]')
            return ()
        if len(value) > count_max:
            self.error(key, f"{len(value)} of them", f"at most {count_max} are possible")
        return tuple(value[:count_max])

    def address(self, key: str, default: str | None = None) -> str:
        """An IPv4 address."""
        return self._parsed(key, default, IPv4Address, '"192.0.2.1"')

    def interface(self, key: str) -> str:
        """An IPv4 address with the length of its prefix."""
        text = self._parsed(key, None, IPv4Interface, '"192.0.2.1/24"')
        if text and "/" not in text:
            self.error(key, "no prefix length", 'write it like "192.0.2.1/24"')
        return text

    def file(self, key: str, default: str = "") -> Path | None:
        """An absolute path."""
        text = self.text(key, default)
        if not text:
            return None
        if not text.startswith("/"):
            self.error(key, "not absolute", "begin it with /")
        return Path(text)

    def _parsed(
        self, key: str, default: str | None, parse: Callable[[str], object], example: str
    ) -> str:
        text = self.text(key, default)
        if text:
            try:
                return str(text) if parse(text) else ""
            except ValueError as error:
                self.error(key, str(error), f"write it like {example}")
        return ""

    def _take(self, key: str, default: object) -> Any:  # noqa: ANN401 - TOML has any type
        self._known.append(key)
        return self._values.get(key, default)
