"""Contexts for TLS, and whom a certificate speaks for.

A certificate of the authority gives its holder no rights by itself. Its subjectAltName lists them,
as URIs: the datapaths that a switch may be, the access ports that an agent may report, and the
stations that the agent may report where these are not all.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

DATAPATH = "ropewalk:datapath:"
"""Before the 16 hexadecimal digits of a datapath id."""
AGENT = "ropewalk:agent:"
"""Before the name of a switch, or of a switch and one of its ports, with a colon between."""
STATION = "ropewalk:station:"
"""Before the hardware address of a station."""
_DATAPATH = re.compile(r"[0-9A-Fa-f]{16}")
_PLACE = re.compile(r"([A-Za-z0-9_.@-]{1,64})(?::([A-Za-z0-9_.@-]{1,64}))?")
_STATION = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
_SHOWN_MAX = 200
"""Characters of a certificate's subject and names in a message."""


class TlsError(Exception):
    """A file that cannot be read or is not of its kind; the message names it."""


@dataclass(frozen=True)
class Identity:
    """Who the holder of a certificate is. A certificate that was renewed has the same identity."""

    issuer: str
    subject: str
    names: frozenset[str]
    """The whole subjectAltName, each name with its kind before it."""

    def __str__(self) -> str:
        """Subject and names, for people."""
        text = f"{self.subject or 'no subject'} ({', '.join(sorted(self.names)) or 'no names'})"
        shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
        return "".join(c if c.isprintable() else "?" for c in shown)

    @property
    def datapaths(self) -> frozenset[int]:
        """The datapaths that the holder may be."""
        return frozenset(int(t, 16) for t in self._after(DATAPATH) if _DATAPATH.fullmatch(t))

    def may_report(self, switch: str, port: str) -> bool:
        """Whether the holder is an agent of an access port."""
        places = (_PLACE.fullmatch(text) for text in self._after(AGENT))
        return any(p is not None and p[1] == switch and p[2] in (None, port) for p in places)

    def may_report_station(self, mac: str) -> bool:
        """Whether the holder may report a station: any, unless the certificate names some."""
        stations = self._after(STATION)
        return not stations or any(
            _STATION.fullmatch(text) and text.lower() == mac.lower() for text in stations
        )

    def _after(self, kind: str) -> list[str]:
        start = f"URI:{kind}"
        return [name.removeprefix(start) for name in self.names if name.startswith(start)]


def identity(connection: ssl.SSLSocket) -> Identity:
    """Who is at the other end of a connection whose certificate was checked."""
    certificate = connection.getpeercert() or {}
    names = [row for row in certificate.get("subjectAltName", ()) if isinstance(row, tuple)]
    return Identity(
        _distinguished(certificate.get("issuer", ())),
        _distinguished(certificate.get("subject", ())),
        frozenset(f"{row[0]}:{row[1]}" for row in names),
    )


def _distinguished(name: object) -> str:
    """The text of a distinguished name, as `ssl` gives it."""
    sets = name if isinstance(name, tuple) else ()
    short = {"commonName": "CN"}
    return ", ".join(f"{short.get(key, key)}={value}" for part in sets for key, value in part)


def context(purpose: ssl.Purpose, key: Path, certificate: Path, authority: Path) -> ssl.SSLContext:
    """What a connection is protected with; both ends show a certificate of the authority.

    Raises:
        TlsError: when a file cannot be read or is none of its kind.
    """
    kind = "certificates"
    file = authority
    try:
        # With a file the machine's own authorities are not taken.
        made = ssl.create_default_context(purpose, cafile=str(authority))
        made.verify_mode = ssl.CERT_REQUIRED
        if purpose is ssl.Purpose.CLIENT_AUTH:
            # A session that is resumed would outlive its certificate.
            made.options |= ssl.OP_NO_TICKET
            made.num_tickets = 0
        kind = f"key of {certificate}"
        for file in (certificate, key):
            file.open("rb").close()
        # Nobody is there to be asked for a password.
        made.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        problem = f"not the {kind}: {error.reason or 'none at all, or encrypted'}"
    except OSError as error:
        problem = str(error.strerror)
    else:
        return made
    raise TlsError(f"{file}: {problem}")


def why(error: ssl.SSLError) -> str:
    """Why a handshake failed, in a few words."""
    said = getattr(error, "verify_message", "") or (error.reason or "").replace("_", " ").lower()
    return said or "no handshake"
