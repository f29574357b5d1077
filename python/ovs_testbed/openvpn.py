"""One OpenVPN connection between two hosts, and what waits in its socket."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from ovs_testbed.machine import Sandbox, SandboxError, inside, run, stop, wait
from ropewalk.plan import OvsBicast

CLIENT_INNER, SERVER_INNER = "10.8.0.2", "10.8.0.1"
TUNNEL = "ovpn0"
_SERVER = "10.99.0.2"
_PORT = "1194"
_CONNECT_S = 30.0
_SEND_BUFFER_BYTES, _SEND_BUFFER_BYTES_MAX = 16_384, 4_194_304
"""`net.ipv4.tcp_wmem` as Linux has it: what a socket may hold at first, and at most."""
_SAMPLE_S = 0.5
"""Time between two looks at the socket. Each starts a program, which takes some milliseconds."""


class Keys:
    """Certificates of both ends; each end knows the other's fingerprint."""

    def __init__(self, directory: Path, ends: tuple[str, ...]) -> None:
        self.directory = directory
        self._made = {end: certificate(directory, end) for end in ends}

    def arguments(self, end: str, other: str) -> list[str]:
        """What OpenVPN at an end is told of both."""
        file, key, _ = self._made[end]
        return ["--cert", file, "--key", key, "--peer-fingerprint", self._made[other][2]]


@contextlib.contextmanager
def connected(
    sandbox: Sandbox, hosts: Mapping[str, str], keys: Keys, carrier: OvsBicast
) -> Iterator[None]:
    """OpenVPN between the hosts `client` and `server`, up.

    Raises:
        SandboxError: when it does not connect.
    """
    for host in hosts.values():
        _sockets(host, carrier)
    started = []
    try:
        for end, other in (("server", "client"), ("client", "server")):
            command = ["openvpn", "--dev", TUNNEL, "--dev-type", "tun", "--disable-dco"]
            command += ["--connect-retry", "1", "1", "--data-ciphers", "AES-256-GCM"]
            command += [*keys.arguments(end, other), "--verb", "3"]
            if carrier.tunnel_queue is not None:
                command += ["--txqueuelen", str(carrier.tunnel_queue)]
            if carrier.send_limit_bytes is not None:
                command += ["--sndbuf", str(carrier.send_limit_bytes)]
            command += _role(end, carrier, sandbox.directory)
            started.append(sandbox.start(hosts[end], *command, log=f"vpn-{end}.log"))
        wait(lambda: _answers(hosts["client"]), "OpenVPN did not connect", _CONNECT_S)
        yield
    finally:
        for process in started:
            stop(process)


def _sockets(host: str, carrier: OvsBicast) -> None:
    """How the next TCP connections of a host are."""
    first = carrier.send_buffer_bytes or _SEND_BUFFER_BYTES
    sizes = f"4096 {first} {max(first, _SEND_BUFFER_BYTES_MAX)}"
    inside(host, "sysctl", "-qw", f"net.ipv4.tcp_wmem={sizes}")
    for name in ("sack", "recovery"):
        inside(host, "sysctl", "-qw", f"net.ipv4.tcp_{name}={int(carrier.sack)}")


def _role(end: str, carrier: OvsBicast, directory: Path) -> list[str]:
    """Arguments of one end."""
    udp = carrier.protocol == "udp"
    inner = [CLIENT_INNER, SERVER_INNER]
    if end == "client":
        role = ["--proto", "udp4" if udp else "tcp4-client", "--remote", _SERVER, _PORT, "--nobind"]
        if carrier.multi_client:
            return [*role, "--client", "--topology", "p2p"]
        return [*role, "--tls-client", "--ifconfig", *inner]
    inner.reverse()
    role = ["--proto", "udp4" if udp else "tcp4-server", "--local", _SERVER, "--lport", _PORT]
    role += ["--tls-server", "--dh", "none", "--ifconfig", *inner]
    if carrier.multi_client:
        (directory / "DEFAULT").write_text(f"ifconfig-push {CLIENT_INNER} {SERVER_INNER}\n")
        role += ["--mode", "server", "--topology", "p2p", "--client-config-dir", str(directory)]
    return role


class Unsent:
    """Looks every half second at the bytes that OpenVPN at the server waits to send."""

    def __init__(self, server: str) -> None:
        """`server` is its namespace."""
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.bytes: list[int] = []

    def __enter__(self) -> Unsent:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            with contextlib.suppress(SandboxError):
                self.bytes += unsent(inside(self._server, "ss", "-Htin", f"sport = {_PORT}"))


def unsent(text: str) -> list[int]:
    """Bytes that wait in each connection that `ss -Htin` shows; it names none without any."""
    connections = [line for line in text.splitlines() if "cwnd:" in line]
    found = (re.search(r"notsent:(\d+)", line) for line in connections)
    return [int(match[1]) if match else 0 for match in found]


def certificate(directory: Path, name: str) -> tuple[str, str, str]:
    """Makes a certificate; the files of it and of its key, and its fingerprint."""
    file, key = f"{directory}/{name}.crt", f"{directory}/{name}.key"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    request += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"]
    run(*request, "-keyout", key, "-out", file)
    text = run("openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", file)
    return file, key, text.strip().partition("=")[2]


def _answers(namespace: str) -> bool:
    inside(namespace, "ping", "-c1", "-W1", SERVER_INNER)
    return True
