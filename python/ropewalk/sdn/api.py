"""The API on a Unix socket: state as JSON, metrics as Prometheus reads them. Nothing can be
changed."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ANSWER_BYTES_MAX = 1 << 20
SECONDS_MAX = 5.0
_PREFIX = "ropewalk_sdn"


class ApiError(Exception):
    """The controller does not answer; the message says what to do."""


class Api:
    """Serves reports until closed."""

    def __init__(self, path: Path, report: Callable[[], dict[str, Any]]) -> None:
        """Raises OSError when the socket cannot be made."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if _alive(path):
            raise OSError(f"{path}: another controller answers there; stop it or choose a socket")
        path.unlink(missing_ok=True)
        former = os.umask(0o177)
        try:
            self._server = _Server(str(path), report)
        finally:
            os.umask(former)
        threading.Thread(target=self._server.serve_forever, name="api", daemon=True).start()

    def close(self) -> None:
        """Stops answering and removes the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def ask(path: Path) -> dict[str, Any]:
    """The report of the controller behind a socket.

    Raises:
        ApiError: when none answers.
    """
    try:
        value = json.loads(_get(path, "/v1/status"))
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        raise ApiError(
            f"{path}: no controller answers ({error}); is `ropewalk-sdn run` running?"
        ) from error
    return dict(value)


def metrics(report: dict[str, Any]) -> str:
    """The report in Prometheus' text format."""
    lines: list[str] = []
    samples = _roaming if report.get("mode") == "roam" else _samples
    for name, kind, labels, value in samples(report):
        full = f"{_PREFIX}_{name}"
        header = f"# TYPE {full} {kind}"
        if header not in lines:
            lines.append(header)
        lines.append(f"{full}{labels} {value:g}" if value < 1e6 else f"{full}{labels} {value:.0f}")
    return "\n".join(lines) + "\n"


def _samples(report: dict[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    """Name, kind, labels and value of each."""
    for name in ("connected", "flows", "groups", "copies"):
        if name in report:
            yield name, "gauge", "", float(report[name])
    for what in ("usable", "rtt_ms", "loss"):
        for uplink in report["uplinks"]:
            if uplink[what] is not None:
                labels = f'{{uplink="{uplink["name"]}",family="{uplink["family"]}"}}'
                yield f"uplink_{what}", "gauge", labels, float(uplink[what])
    for name, count in report.get("new_flows", {}).items():
        yield "new_flows_total", "counter", _label(name), count
    if "resets" in report:
        yield "resets_total", "counter", "", report["resets"]
    for name, count in report["counters"].items():
        yield f"{name}_total", "counter", "", count


def _label(uplink: str) -> str:
    return f'{{uplink="{uplink}"}}'


def _roaming(report: dict[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    stations = report["stations"]
    yield "connected", "gauge", "", sum(switch["connected"] for switch in report["switches"])
    yield "stations", "gauge", "", len(stations)
    yield "stations_away", "gauge", "", sum(not station["here"] for station in stations)
    yield "kept_bytes", "gauge", "", report["kept_bytes"]
    for name, count in report["counters"].items():
        yield f"{name}_total", "counter", "", count


def _get(path: Path, target: str) -> str:
    connection = _UnixConnection(path)
    try:
        connection.request("GET", target)
        return connection.getresponse().read(ANSWER_BYTES_MAX).decode(errors="replace")
    finally:
        connection.close()


def _alive(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(SECONDS_MAX)
            client.connect(str(path))
            return True
    except OSError:
        return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=SECONDS_MAX)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS_MAX)
        self.sock.connect(str(self._path))


class _Server(socketserver.UnixStreamServer):
    def __init__(self, path: str, report: Callable[[], dict[str, Any]]) -> None:
        self.report = report
        super().__init__(path, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = SECONDS_MAX

    def do_GET(self) -> None:
        """Answers; the name is what http.server calls."""
        assert isinstance(self.server, _Server), "made for this server"
        match self.path:
            case "/v1/status":
                self._send(json.dumps(self.server.report()), "application/json")
            case "/metrics":
                self._send(metrics(self.server.report()), "text/plain; version=0.0.4")
            case _:
                self.send_error(404, "there are /v1/status and /metrics")

    def address_string(self) -> str:
        """A Unix socket's client has no address."""
        return "local"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""

    def _send(self, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
