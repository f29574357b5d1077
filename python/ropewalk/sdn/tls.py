"""Contexts for TLS, with errors that name the file."""

from __future__ import annotations

import ssl
from pathlib import Path


class TlsError(Exception):
    """A file that cannot be read or is not of its kind; the message names it."""


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
