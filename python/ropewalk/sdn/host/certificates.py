"""The keys and certificates of a laboratory or of a small network, by `openssl`.

Each certificate names what its holder may be (`ropewalk.sdn.tls`), and is of use at one end of a
connection only: who has a switch's or an agent's cannot pass for a controller.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from ropewalk.sdn import tls
from ropewalk.sdn.config import Controller
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.host.commands import run

DAYS = 365
_CURVE = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
_AUTHORITY = "authority"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


@dataclass(frozen=True)
class Holder:
    """Who gets a certificate: the name of its files, and what it names."""

    file: str
    names: tuple[str, ...]
    """As `openssl` writes a subjectAltName."""
    is_server: bool = False


def controller(config: Controller, notices: Endpoint | None, hosts: Sequence[str] = ()) -> Holder:
    """A controller, known by its own addresses and by further names of hosts.

    Raises:
        ValueError: for what is no name of a host.
    """
    names = {point.host: "IP" for point in (config.listen, notices) if point and point.host}
    for host in hosts:
        names[host] = _kind(host)
    file = f"controller{config.rank}" if config.others else "controller"
    return Holder(file, tuple(f"{kind}:{name}" for name, kind in names.items()), is_server=True)


def _kind(host: str) -> str:
    try:
        ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host} is no name of a host") from None
        return "DNS"
    return "IP"


def switch(file: str, datapaths: Sequence[int]) -> Holder:
    """A machine's switch, with all datapaths that are on the machine."""
    return Holder(file, tuple(f"URI:{tls.DATAPATH}{number:016x}" for number in datapaths))


def agent(file: str, switches: Sequence[str], stations: Sequence[str] = ()) -> Holder:
    """An agent of all access ports of some switches; of some stations only, if any are named."""
    places = tuple(f"URI:{tls.AGENT}{name}" for name in switches)
    return Holder(file, (*places, *(f"URI:{tls.STATION}{mac}" for mac in stations)))


def made(directory: Path, holders: Sequence[Holder], days: int = DAYS) -> list[str]:
    """Makes what is not there yet: an authority and the holders' files; the names of the new files.

    Raises:
        CommandError: when openssl is missing or fails.
        OSError: when the directory cannot be written to.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = []
    # Keys are for their owner alone from the beginning.
    mask = os.umask(0o077)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if not (directory / f"{_AUTHORITY}.crt").exists():
                _make_authority(directory, Path(scratch), days)
                new.append(_AUTHORITY)
            for holder in holders:
                if not (directory / f"{holder.file}.crt").exists():
                    _make(directory, Path(scratch), holder, days)
                    new.append(holder.file)
    finally:
        os.umask(mask)
    return new


def _make_authority(directory: Path, scratch: Path, days: int) -> None:
    key = directory / f"{_AUTHORITY}.key"
    _request(scratch, key, "Ropewalk SDN authority")
    extensions = ["basicConstraints=critical,CA:TRUE,pathlen:0", "keyUsage=critical,keyCertSign"]
    signer = ["-signkey", str(key)]
    _sign(scratch, directory / f"{_AUTHORITY}.crt", extensions, signer, days)


def _make(directory: Path, scratch: Path, holder: Holder, days: int) -> None:
    _request(scratch, directory / f"{holder.file}.key", holder.file)
    usage = "serverAuth" if holder.is_server else "clientAuth"
    extensions = ["basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature"]
    extensions += [f"extendedKeyUsage={usage}"]
    extensions += [f"subjectAltName={','.join(holder.names)}"] if holder.names else []
    authority = directory / _AUTHORITY
    signer = ["-CA", f"{authority}.crt", "-CAkey", f"{authority}.key"]
    signer += ["-CAserial", str(scratch / "serial"), "-CAcreateserial"]
    _sign(scratch, directory / f"{holder.file}.crt", extensions, signer, days)


def _request(scratch: Path, key: Path, name: str) -> None:
    run(["openssl", "genpkey", *_CURVE, "-out", str(key)])
    config = scratch / "request.cnf"
    config.write_text(f"[req]\nprompt=no\ndistinguished_name=dn\n[dn]\nCN={name}\n")
    request = ["openssl", "req", "-new", "-config", str(config), "-key", str(key)]
    run([*request, "-out", str(scratch / "request")])


def _sign(
    scratch: Path, file: Path, extensions: Sequence[str], signer: Sequence[str], days: int
) -> None:
    settings = scratch / "extensions.cnf"
    settings.write_text("\n".join(extensions) + "\n")
    request = ["openssl", "x509", "-req", "-in", str(scratch / "request"), "-sha256"]
    sign = [*request, "-days", str(days), "-extfile", str(settings), *signer]
    run([*sign, "-out", str(file)])
