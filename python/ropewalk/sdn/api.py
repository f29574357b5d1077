"""The API on a Unix socket: state as JSON, metrics as Prometheus reads them. Nothing can be
changed.

A connection is one request and its answer. It has `SECONDS_MAX` for both together, so that who says
nothing, or says or reads it a byte at a time, keeps its place no longer than anybody else.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ropewalk.sdn import endpoint
from ropewalk.sdn.endpoint import Endpoint

ANSWER_BYTES_MAX = 8 << 20
"""More than the largest table of stations takes."""
CLIENTS_MAX = 32
"""At a time; others are told to come again."""
SECONDS_MAX = 5.0
_BACKLOG = 1024
_PAUSE_S = 0.1
_PREFIX = "ropewalk_sdn"
_BUSY = http.HTTPStatus.SERVICE_UNAVAILABLE
_NO_REQUEST = {400, 414, 431, 505}
_TOO_MANY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"

_log = logging.getLogger(__name__)


class ApiError(Exception):
    """The controller does not answer; the message says what to do."""


class Api:
    """Serves reports until closed."""

    def __init__(
        self,
        path: Path,
        report: Callable[[], dict[str, Any]],
        happened: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """Raises OSError when the socket cannot be made."""
        self.refused = 0
        """Connections beyond the bound."""
        self.broken = 0
        """Input that was not a request, and requests that ended before their answer did."""
        self._report = report
        self._happened = happened
        self._began_s = time.monotonic()
        if "\0" in str(path):
            raise OSError(f"{path}: no path of a socket".replace("\0", "\\0"))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._endpoint = Endpoint(path=path)
        self._server = _Server(self._endpoint, self)
        threading.Thread(target=self._server.serve_forever, name="api", daemon=True).start()

    def close(self) -> None:
        """Stops answering and removes the socket, unless another controller's has its place."""
        self._server.shutdown()
        endpoint.closed(self._server.socket, self._endpoint)
        self._server.leave_all()

    def reported(self) -> dict[str, Any]:
        """The report with the API's own counters."""
        report = self._report()
        own = {"refused_requests": self.refused, "broken_requests": self.broken}
        uptime_s = round(time.monotonic() - self._began_s, 1)
        counters = {**report.get("counters", {}), **own}
        return {**report, "uptime_s": uptime_s, "counters": counters}

    def happened(self) -> dict[str, Any]:
        """What happened lately, the oldest first."""
        return {"happened": self._happened()}


class _Server(socketserver.ThreadingMixIn, socketserver.BaseServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, here: Endpoint, api: Api) -> None:
        super().__init__(str(here.path), _Handler)
        self.api = api
        self.socket = endpoint.listener(here, _BACKLOG)
        self._room = threading.Semaphore(CLIENTS_MAX)
        self._lock = threading.Lock()
        self._clients: set[socket.socket] = set()

    def fileno(self) -> int:
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, str]:
        try:
            client, _ = self.socket.accept()
        except OSError:
            # Without descriptors, say: who waits is served when there are some again.
            time.sleep(_PAUSE_S)
            raise
        return client, ""

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if not self._room.acquire(blocking=False):
            self.api.refused += 1
            with request, contextlib.suppress(OSError):
                request.setblocking(False)
                request.sendall(_TOO_MANY)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No more threads on this machine.
            self._room.release()
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        with self._lock:
            self._clients.add(request)
        # For request and answer together, however slowly they go.
        ends = threading.Timer(SECONDS_MAX, shut, (request,))
        ends.daemon = True
        ends.start()
        try:
            super().finish_request(request, client_address)
        finally:
            ends.cancel()
            with self._lock:
                self._clients.discard(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A client that goes is not the controller's fault."""
        _log.debug("a client of the API", exc_info=True)
        self.count_broken()

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        shut(request)
        request.close()

    def count_broken(self) -> None:
        """Counts a request; from any thread."""
        with self._lock:
            self.api.broken += 1

    def leave_all(self) -> None:
        """Ends what is under way."""
        with self._lock:
            for client in self._clients:
                shut(client)


def shut(client: socket.socket) -> None:
    """Ends a connection; from any thread."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    default_request_version = "HTTP/1.0"

    def do_GET(self) -> None:
        """Answers with the report."""
        try:
            match self.path:
                case "/v1/status":
                    self._tell(json.dumps(self.server.api.reported()), "application/json")
                case "/v1/happened":
                    self._tell(json.dumps(self.server.api.happened()), "application/json")
                case "/metrics":
                    kind = "text/plain; version=0.0.4; charset=utf-8"
                    self._tell(metrics(self.server.api.reported()), kind)
                case _:
                    self.send_error(404, "there are /v1/status, /v1/happened and /metrics")
        except OSError:
            raise
        # A fault of the report must not end answers for good.
        except Exception:
            _log.exception("no report could be made")
            self.send_error(500, "no report could be made; see the log")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers with an error, and counts input that was not a request."""
        if code in _NO_REQUEST:
            self.server.count_broken()
        super().send_error(code, message, explain)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401
        """The log is for what happens to traffic."""

    def version_string(self) -> str:
        """Says who answers, and not which Python."""
        return "ropewalk-sdn"

    def _tell(self, text: str, kind: str) -> None:
        data = text.encode(errors="replace")
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def ask(path: Path, target: str = "/v1/status") -> dict[str, Any]:
    """The report of the controller behind a socket, or what else it answers.

    Raises:
        ApiError: when none answers.
    """
    deadline = time.monotonic() + SECONDS_MAX
    try:
        status, body = _get(path, target, deadline)
        while status == _BUSY and time.monotonic() + _PAUSE_S < deadline:
            time.sleep(_PAUSE_S)
            status, body = _get(path, target, deadline)
        if status == _BUSY:
            raise ApiError(f"{path}: the controller has too many requests at a time; try again")
        if status != http.HTTPStatus.OK:
            raise ValueError(f"it says {status}")
        value = json.loads(body)
        if not isinstance(value, dict):
            raise ValueError("its report is no object")
    except PermissionError as error:
        raise ApiError(
            f"{path}: {error.strerror}; ask as the user whose controller it is"
        ) from error
    except OSError as error:
        raise ApiError(
            f"{path}: no controller answers ({error}); is `ropewalk-sdn run` running?"
        ) from error
    except (http.client.HTTPException, ValueError, RecursionError) as error:
        raise ApiError(
            f"{path}: no controller of this version answers there ({error!r}); "
            "restart `ropewalk-sdn run`, or choose another socket"
        ) from error
    return value


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
    for name in ("connected", "standing_by", "flows", "groups", "copies"):
        if name in report:
            yield name, "gauge", "", float(report[name])
    for what in ("usable", "rtt_ms", "loss"):
        for uplink in report["uplinks"]:
            if uplink[what] is not None:
                labels = _labels(uplink=uplink["name"], family=uplink["family"])
                yield f"uplink_{what}", "gauge", labels, float(uplink[what])
    yield from _balancing(report)
    if "resets" in report:
        yield "resets_total", "counter", "", report["resets"]
    for name, count in report["counters"].items():
        yield f"{name}_total", "counter", "", count


def _balancing(report: dict[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    for name, count in report.get("new_flows", {}).items():
        yield "new_flows_total", "counter", _labels(uplink=name), count
    for name, mbit in report.get("load_mbit", {}).items():
        yield "uplink_load_mbit", "gauge", _labels(uplink=name), mbit
    for name, mbit in report.get("capacity_mbit", {}).items():
        labels = _labels(uplink=name, source=report["capacity_source"][name])
        yield "uplink_capacity_mbit", "gauge", labels, mbit


def _labels(**values: str) -> str:
    escaped = {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n"}
    pairs = (f'{key}="{text.translate(escaped)}"' for key, text in values.items())
    return f"{{{','.join(pairs)}}}"


def _roaming(report: dict[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    stations = report["stations"]
    yield "connected", "gauge", "", sum(switch["connected"] for switch in report["switches"])
    yield "standing_by", "gauge", "", report.get("standing_by", 0)
    yield "stations", "gauge", "", len(stations)
    yield "stations_away", "gauge", "", sum(not station["here"] for station in stations)
    yield "kept_bytes", "gauge", "", report["kept_bytes"]
    for name, count in report["counters"].items():
        yield f"{name}_total", "counter", "", count


class _Connection(http.client.HTTPConnection):
    """To a socket in the file system."""

    def __init__(self, path: Path, deadline: float) -> None:
        super().__init__("localhost")
        self._path = path
        self._deadline = deadline

    def connect(self) -> None:
        """Waits for a place among those who wait to be taken, which such sockets do not."""
        self.sock = socket.socket(socket.AF_UNIX)
        while True:
            self.sock.settimeout(_left(self._deadline))
            try:
                self.sock.connect(str(self._path))
                break
            except BlockingIOError:
                time.sleep(min(_PAUSE_S, _left(self._deadline)))


def _get(path: Path, target: str, deadline: float) -> tuple[int, bytes]:
    """Status and body of an answer.

    Raises:
        OSError: when nobody answers in time.
        HTTPException, ValueError: when the answer is none, or too long.
    """
    with contextlib.closing(_Connection(path, deadline)) as connection:
        # A server that refuses does not read the request, but its answer is there.
        with contextlib.suppress(BrokenPipeError):
            connection.request("GET", target)
        connection.sock.settimeout(_left(deadline))
        with connection.getresponse() as answer:
            body = answer.read(ANSWER_BYTES_MAX + 1)
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"its answer is longer than {ANSWER_BYTES_MAX} bytes")
            if answer.length:
                raise http.client.IncompleteRead(body, answer.length)
            return answer.status, body


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds
