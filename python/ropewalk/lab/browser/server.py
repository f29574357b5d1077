"""The web server of all origins: nginx for HTTP/1.1 and HTTP/2, Caddy for HTTP/3.

Its certificate is made for one run; browsers are told the digest of its key.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ropewalk.lab.browser.children import need, run, start, stop
from ropewalk.lab.browser.ground import Place
from ropewalk.lab.runner import RunError
from ropewalk.plan import Protocol

_START_SECONDS = 20.0

_NGINX = """\
daemon off;
master_process off;
user root;
pid {here}/nginx.pid;
error_log {here}/nginx.log warn;
events {{ worker_connections 4096; }}
http {{
  log_format ends '$remote_addr $server_addr';
  access_log {here}/ends.log ends;
  sendfile on;
  tcp_nopush on;
  client_body_temp_path {here}/body;
  proxy_temp_path {here}/proxy;
  fastcgi_temp_path {here}/fastcgi;
  uwsgi_temp_path {here}/uwsgi;
  scgi_temp_path {here}/scgi;
  types {{ text/html html; text/css css; text/javascript js; image/png png; }}
  server {{
    listen 443 ssl http2 backlog=1024;
    ssl_certificate {here}/certificate.pem;
    ssl_certificate_key {here}/key.pem;
    root {root};
  }}
}}
"""

_CADDY = """\
{{
  admin off
  auto_https off
}}
:443 {{
  tls {here}/certificate.pem {here}/key.pem
  root * {root}
  file_server
}}
"""

_ONE_ADDRESS = """\
table ip origins {{
  chain one_address {{
    type nat hook prerouting priority dstnat;
    ip daddr {network} udp dport 443 dnat to {address}
  }}
}}
"""
"""This Caddy answers from the main address of the machine, even when another was asked."""


@dataclass(frozen=True)
class Certificate:
    """Where it is, and the digest of its key as browsers take it."""

    directory: Path
    pin: str

    @classmethod
    def make(cls, directory: Path) -> Certificate:
        """A new key with its certificate, for one run."""
        key, certificate = directory / "key.pem", directory / "certificate.pem"
        run(
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=ropewalk-lab"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=DNS:*.test"),
            *("-keyout", str(key), "-out", str(certificate)),
        )
        pem = run("openssl", "pkey", "-in", str(key), "-pubout")
        public = base64.b64decode("".join(pem.strip().splitlines()[1:-1]))
        return cls(directory, base64.b64encode(hashlib.sha256(public).digest()).decode())


def programs(protocol: Protocol, mptcp: bool) -> tuple[str, ...]:
    """What serves pages over a protocol, without its arguments.

    Raises:
        UnavailableError: when it is not installed.
    """
    need("openssl", "openssl")
    if protocol == "h3":
        return (need("caddy", "caddy"), "run", "--adapter", "caddyfile", "--config")
    prefix = (need("mptcpize", "mptcpize"), "run") if mptcp else ()
    return (*prefix, need("nginx-light", "nginx"), "-c")


class Server:
    """The running server."""

    def __init__(
        self, place: Place, protocol: Protocol, root: Path, certificate: Certificate
    ) -> None:
        """Starts it and waits until it listens."""
        here, namespace = certificate.directory, place.server
        command = programs(protocol, place.mptcp)
        if protocol == "h3":
            rules = _ONE_ADDRESS.format(network=place.network, address=place.address)
            run("ip", "netns", "exec", namespace, "nft", "-f", "-", text=rules)
        self._ends = here / "ends.log"
        configuration = here / "server.conf"
        text = _CADDY if protocol == "h3" else _NGINX
        configuration.write_text(text.format(here=here, root=root))
        environment = {"HOME": str(here), "XDG_DATA_HOME": str(here), "XDG_CONFIG_HOME": str(here)}
        log = here / "server.log"
        self._process = start(namespace, (*command, str(configuration)), log, environment)
        try:
            _wait(namespace, "-Hlnu" if protocol == "h3" else "-Hlnt", self._process, log)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends it."""
        stop(self._process)

    def clients(self) -> Mapping[str, frozenset[str]] | None:
        """The addresses from which each address of the server was asked; None of HTTP/3."""
        if not self._ends.exists():
            return None
        found: dict[str, set[str]] = {}
        for line in self._ends.read_text().splitlines():
            client, server = line.split()
            found.setdefault(server, set()).add(client)
        return {server: frozenset(clients) for server, clients in found.items()}


def _wait(namespace: str, sockets: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    command = ("ip", "netns", "exec", namespace, "ss", sockets, "sport", "=", ":443")
    while not run(*command).strip():
        if process.poll() is not None or time.monotonic() > end:
            said = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise RunError(f"the web server does not listen: {' | '.join(said)}")
        time.sleep(0.05)
