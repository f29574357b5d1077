"""Reads TOML tables into typed values and collects every error with file, key and remedy."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Sequence
from ipaddress import IPv6Interface, ip_address, ip_interface
from pathlib import Path
from typing import Any

from ropewalk.sdn import endpoint
from ropewalk.sdn.endpoint import Endpoint

FILE_BYTES_MAX = 1 << 20
INTERFACE_NAME_MAX = 15
"""Characters of an interface's name (IFNAMSIZ without its end)."""
NAMESPACE_NAME_MAX = 255
_NAME = re.compile(r"[A-Za-z0-9_.+@][A-Za-z0-9_.+@-]*")
"""Form of the names that commands take: no option, no path, no second word."""


def is_name(text: str) -> bool:
    """Whether commands can take it for the name of an interface, bridge or namespace."""
    return bool(_NAME.fullmatch(text)) and text not in (".", "..")


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
    except RecursionError as error:
        raise ConfigError([f"{path}: nested too deep; is it the right file?"]) from error
    # A number of too many digits is a plain ValueError.
    except ValueError as error:
        raise ConfigError([f"{path}: not TOML: {error}; mend that place"]) from error


class Table:
    """One table; every key is taken once, what nobody takes is unknown."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str, errors: list[str]) -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._errors = errors
        self._known: list[str] = []
        self._possible: list[str] = []
        """Keys that were looked for, and need not be there."""

    def error(self, key: str, problem: str, remedy: str) -> None:
        """Notes what is wrong with a key."""
        self._errors.append(f"{self.path}: {self._prefix}{key}: {problem}; {remedy}")

    def finish(self) -> None:
        """Notes unknown keys, and raises when anything was wrong.

        Raises:
            ConfigError: with all errors of the file.
        """
        self.end()
        self.check()

    @property
    def is_wrong(self) -> bool:
        """Whether anything was wrong so far."""
        return bool(self._errors)

    def check(self) -> None:
        """Raises when anything was wrong so far.

        Raises:
            ConfigError: with all errors up to here.
        """
        if self._errors:
            raise ConfigError(self._errors)

    def meant(self, key: str, choices: Sequence[str]) -> str | None:
        """Which of some words a wrong value is probably meant for: the nearest word, or else the
        only one that has a table of its name."""
        value = self._values.get(key)
        near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
        named = [choice for choice in choices if isinstance(self._values.get(choice), dict)]
        return near[0] if near else named[0] if len(named) == 1 else None

    def corrected(self, key: str, value: str) -> Table:
        """The table with another value under a key; errors so far stay."""
        return Table(self.path, {**self._values, key: value}, self._prefix, self._errors)

    def end(self) -> None:
        """Notes the keys that nobody took."""
        for key in self._values:
            if key not in self._known:
                near = difflib.get_close_matches(key, [*self._known, *self._possible], 1)
                remedy = f"did you mean {near[0]}?" if near else "remove it"
                self.error(key, "unknown key", remedy)

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        self._possible.append(key)
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

    def name(
        self, key: str, default: str | None = None, *, length_max: int = INTERFACE_NAME_MAX
    ) -> str:
        """The name of an interface, bridge or namespace; "" only as the default."""
        value = self.text(key, default, length_max=length_max)
        if value and not is_name(value):
            self.error(key, f'"{value}" is no name', "use letters, digits and . _ + @ -")
        return value

    def endpoint(self, key: str, default: str) -> Endpoint | None:
        """Where something listens; None when it is empty or wrong."""
        text = self.text(key, default)
        if not text:
            return None
        try:
            return endpoint.parse(text)
        except ValueError as error:
            example = '"127.0.0.1:6653", "[2001:db8::1]:6653" or "unix:/run/…"'
            self.error(key, str(error), f"write it like {example}")
            return None

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of some words."""
        known_errors = len(self._errors)
        value = self.text(key, default)
        if len(self._errors) > known_errors:
            return default
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

    def addresses(self, key: str, default: str | None = None) -> dict[int, str]:
        """IP addresses by version: one, or a list with one of each family."""
        return self._families(key, default, lambda text: str(ip_address(text)), '"192.0.2.1"')

    def interfaces(self, key: str) -> dict[int, str]:
        """IP addresses by version, with the lengths of their prefixes."""

        def parse(text: str) -> str:
            if "/" not in text:
                raise ValueError(f"{text!r} has no prefix length")
            return str(ip_interface(text))

        return self._families(key, None, parse, '"192.0.2.1/24"')

    def file(self, key: str, default: str = "") -> Path | None:
        """An absolute path."""
        text = self.text(key, default)
        if not text:
            return None
        if not text.startswith("/"):
            self.error(key, "not absolute", "begin it with /")
        return Path(text)

    def _families(
        self, key: str, default: str | None, parse: Callable[[str], str], example: str
    ) -> dict[int, str]:
        listed = self._values.get(key)
        if isinstance(listed, list):
            self._known.append(key)
            texts = listed if all(isinstance(text, str) for text in listed) else []
            if not texts:
                self.error(key, "neither a text nor a list of texts", f"write it like {example}")
        else:
            text = self.text(key, default)
            texts = [text] if text else []
        found: dict[int, str] = {}
        for text in texts:
            try:
                address = parse(text)
            except ValueError as error:
                self.error(key, str(error), f"write it like {example}")
                continue
            value = ip_interface(address)
            if value.version in found:
                self.error(key, f"two of IPv{value.version}", "one of each family is possible")
            if isinstance(value, IPv6Interface) and value.scope_id:
                self.error(key, f"{text!r} names an interface", "leave away % and what follows")
                continue
            if value.is_multicast or value.is_unspecified:
                self.error(key, f"{text!r} is no host's address", f"write it like {example}")
                continue
            found.setdefault(value.version, address)
        return dict(sorted(found.items()))

    def _take(self, key: str, default: object) -> Any:  # noqa: ANN401 - TOML has any type
        self._known.append(key)
        return self._values.get(key, default)
