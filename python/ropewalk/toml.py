"""Writes TOML: what a plan needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dumps(table: Mapping[str, Any]) -> str:
    """A table as TOML, everything in it inline.

    Raises:
        ValueError: when a value has no place in TOML; the message names the key.
    """
    return "".join(f"{_key(key)} = {_value(key, value)}\n" for key, value in table.items())


def text(value: str) -> str:
    """A basic string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{key!r}: keys are texts")
    return key if key.isascii() and key.replace("_", "").isalnum() else text(key)


def _value(key: object, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return text(value)
        case Mapping():
            pairs = (f"{_key(k)} = {_value(k, v)}" for k, v in value.items())
            return "{ " + ", ".join(pairs) + " }"
        case list() | tuple():
            return "[" + ", ".join(_value(key, item) for item in value) + "]"
        case _:
            raise ValueError(f"{key}: {value!r} has no place in a plan")
