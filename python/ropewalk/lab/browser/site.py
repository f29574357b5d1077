"""Pages as files for a web server, and where they are found.

Every origin has a name and an address in a network of 24 bits of its own; all addresses are those
of one server, which has all files for every name.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

from ropewalk.lab.browser.pages import PAGES_MAX, SITES, Kind, Object, Page

WARM_UP = SITES + PAGES_MAX
"""The origin of a page that is not counted."""
VIDEO = WARM_UP + 1
"""The origin of the film."""
FILM_RATES_MBIT = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FILM_SEGMENT_S = 2.0
"""The film has one segment of each rate, which players ask for again and again."""

_FIRST = IPv4Address("198.18.0.10")
"""In the network for benchmarks of RFC 2544, which has 512 networks of 24 bits."""
_SUFFIX: dict[Kind, str] = {"style": "css", "script": "js", "image": "png"}


def host(origin: int) -> str:
    """The name of an origin (RFC 6761: for tests)."""
    return f"o{origin}.test"


def address(origin: int) -> str:
    """The address of an origin."""
    return str(_FIRST + 256 * origin)


def url(page: Page) -> str:
    """Where the document of a page is."""
    return f"https://{host(page.origin)}/{page.number}/"


def urls(page: Page) -> frozenset[str]:
    """The addresses of the document and all objects."""
    return frozenset((url(page), *(_url(page, index) for index in range(len(page.objects)))))


def write(pages: Sequence[Page], directory: Path) -> None:
    """Writes all pages, an empty one and the film."""
    for page in pages:
        folder = directory / str(page.number)
        folder.mkdir(parents=True)
        (folder / "index.html").write_text(_document(page))
        # Scripts of the page's own origins share out what only they name.
        naming = [i for i, thing in enumerate(page.objects) if _names_others(thing)]
        late = [i for i, thing in enumerate(page.objects) if thing.late]
        for index, thing in enumerate(page.objects):
            named = late[naming.index(index) :: len(naming)] if index in naming else []
            file = folder / f"{index}.{_SUFFIX[thing.kind]}"
            file.write_bytes(_content(page, thing, named))
    (directory / "index.html").write_text(_HEAD + "<title>empty</title>")
    film = directory / "film"
    film.mkdir()
    for rate in FILM_RATES_MBIT:
        (film / f"{rate:g}").write_bytes(bytes(round(rate * FILM_SEGMENT_S * 1e6 / 8)))


def _names_others(thing: Object) -> bool:
    return thing.kind == "script" and not thing.late


def _url(page: Page, index: int) -> str:
    thing = page.objects[index]
    return f"https://{host(thing.origin)}/{page.number}/{index}.{_SUFFIX[thing.kind]}"


_HEAD = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">\n'


def _document(page: Page) -> str:
    head, body = [_HEAD, f"<title>{page.number}</title>"], []
    for index, thing in enumerate(page.objects):
        place = _url(page, index)
        if thing.late:
            continue
        match thing.kind:
            case "style":
                head.append(f'<link rel="stylesheet" href="{place}">')
            case "script":
                head.append(f'<script async src="{place}"></script>')
            case "image":
                body.append(f'<img alt="" src="{place}">')
    text = "\n".join((*head, "<body>", *body, ""))
    return text + _padding("<!--", "-->", page.document - len(text))


def _content(page: Page, thing: Object, named: Sequence[int]) -> bytes:
    match thing.kind:
        case "image":
            return _image(thing.size)
        case "style":
            return _padding("/*", "*/", thing.size).encode()
        case "script":
            # Only pictures are late: `pages` gives origins that a script names nothing else.
            calls = "".join(f"new Image().src='{_url(page, index)}';\n" for index in named)
            return (calls + _padding("/*", "*/", thing.size - len(calls))).encode()


def _padding(begin: str, end: str, size: int) -> str:
    """A comment of `size` characters; an empty text where a comment does not fit."""
    inner = size - len(begin) - len(end)
    return f"{begin}{'x' * inner}{end}" if inner >= 0 else ""


def _image(size: int) -> bytes:
    """A picture of one grey point with so many bytes: browsers read only real pictures to the end.

    What fills it comes before the point, in a private chunk that decoders pass over (PNG 4.7.2).
    """
    head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", bytes((0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0)))
    tail = _chunk(b"IDAT", zlib.compress(b"\0\x80")) + _chunk(b"IEND", b"")
    room = size - len(head) - len(tail) - len(_chunk(b"paDd", b""))
    return head + (_chunk(b"paDd", bytes(room)) if room > 0 else b"") + tail


def _chunk(name: bytes, data: bytes) -> bytes:
    body = name + data
    return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
