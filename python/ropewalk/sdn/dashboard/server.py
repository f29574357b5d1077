"""Serves the page to browsers of this machine; see docs/decisions/dashboard.md for its checks.

A process of its own asks the controller over its socket. Nothing can be changed. While no window
is open nothing is asked.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ropewalk import __version__
from ropewalk.sdn import api
from ropewalk.sdn.dashboard import view

CONNECTIONS_MAX = 32
"""At a time; further ones wait in the kernel's queue."""
SECONDS_MAX = 10.0
"""In which a browser has to send a request, or to take a part of an answer."""
BODY_MAX = 16 << 10
"""Bytes of a request's body."""
SESSIONS_MAX = 16
"""Browsers that followed the link; the first of them gives its place to a new one."""
INTERVAL_S = 1.0
"""Between two looks at the controller. Longer: less work, later news."""
POINTS = 300
"""Seconds that the charts show."""
NEWEST = 10
"""Seconds of the charts in each message. Fewer: pages ask for all of them more often."""
LATE_S = 5
"""Between two looks without a gap in the charts. Longer: a controller that hangs shows later."""
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)

Ask = Callable[[str], dict[str, Any]]


class Looks:
    """The newest message to all windows, and the points of their charts."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._message = b""
        self._points: deque[tuple[int, dict[str, dict[str, float | None]]]] = deque(maxlen=POINTS)

    def message(self) -> bytes:
        """An event for a window; made anew when the last one is old."""
        with self._lock:
            if time.monotonic() - self._looked_s >= 0.9 * INTERVAL_S:
                kind, value = self._look()
                self._message = f"event: {kind}\ndata: {json.dumps(value)}\n\n".encode()
                self._looked_s = time.monotonic()
            return self._message

    def _look(self) -> tuple[str, dict[str, Any]]:
        now_s = int(time.time())
        try:
            report = self._ask("/v1/status")
            samples = view.samples(report)
            last_s = self._points[-1][0] if self._points else now_s - 1
            # Looks are a little more than a second apart: a second without one is no gap.
            first_s = last_s + 1 if now_s - last_s <= LATE_S else now_s
            for at_s in range(min(first_s, now_s), now_s + 1):
                self._points.append((at_s, samples))
            return "view", view.of(report, __version__, now_s, self._history(now_s, NEWEST))
        except api.ApiError as error:
            return "gone", {"error": str(error)}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"the controller is of another version ({error!r}): restart `ropewalk-sdn run`"
            return "gone", {"error": text}

    def history(self) -> dict[str, Any]:
        """The points of the last minutes, as the charts read them."""
        with self._lock:
            return self._history(int(time.time()), POINTS)

    def _history(self, end_s: int, count: int) -> dict[str, Any]:
        known = dict(self._points)
        newest = self._points[-1][1] if self._points else {}
        times = range(end_s - count + 1, end_s + 1)
        nothing: list[float | None] = [None] * count

        def values(name: str, what: str) -> list[float | None]:
            return [known.get(at, {}).get(name, {}).get(what) for at in times]

        uplinks = [
            {
                "name": name,
                "sent": nothing,
                **{what: values(name, what) for what in ("received", "rtt_ms", "loss")},
            }
            for name in newest
        ]
        return {"step_s": 1, "end_s": end_s, "offered": nothing, "up": nothing, "uplinks": uplinks}


class Dashboard(http.server.ThreadingHTTPServer):
    """The server; `link` opens the page."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, port: int, ask: Ask) -> None:
        """Raises OSError when the port cannot be listened on."""
        self.room = threading.Semaphore(CONNECTIONS_MAX)
        super().__init__(("127.0.0.1", port), _Handler)
        self.ask = ask
        self.looks = Looks(ask)
        self.token = secrets.token_hex(32)
        # Browsers send cookies to all ports of this machine.
        self.cookie = f"ropewalk_{secrets.token_hex(4)}"
        self.sessions: deque[str] = deque(maxlen=SESSIONS_MAX)
        self.files = _files()
        hashes = "".join(
            f" 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
            for script in _INLINE.findall(self.files["index.html"].decode())
        )
        self.policy = (
            f"default-src 'none'; script-src 'self'{hashes}; style-src 'self'; "
            "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
            "form-action 'none'"
        )

    @property
    def link(self) -> str:
        """Whoever opens it may look."""
        return f"http://127.0.0.1:{self.server_address[1]}/#{self.token}"

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serves a connection in a thread of its own, when there is room."""
        self.room.acquire()
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No more threads on this machine.
            self.room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Gives the place back at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A browser that goes is no fault."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Dashboard
    protocol_version = "HTTP/1.1"
    timeout = SECONDS_MAX

    def handle_one_request(self) -> None:
        """Ends the connection when head and body have not come in time."""
        # `timeout` is for each part that comes, and there may be one for each byte.
        self._late = threading.Timer(SECONDS_MAX, api.shut, (self.connection,))
        self._late.daemon = True
        self._late.start()
        try:
            super().handle_one_request()
        finally:
            self._late.cancel()

    def do_GET(self) -> None:
        """Pages for all of this machine, and the rest for those who followed the link."""
        self._late.cancel()
        path = self.path.partition("?")[0]
        name = "index.html" if path == "/" else path.removeprefix("/assets/")
        if self._is_foreign():
            return
        if path == "/" or path.startswith("/assets/"):
            self._file(name)
        elif not self._is_known():
            text = "open the link that `ropewalk-sdn dashboard` printed"
            self._refuse(HTTPStatus.UNAUTHORIZED, text)
        elif path == "/api/about":
            self._tell({"admin": False})
        elif path == "/api/history":
            self._tell(self.server.looks.history())
        elif path == "/api/happened":
            self._happened()
        elif path == "/events":
            self._events()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """Exchanges the token of the link for a cookie; nothing else is taken."""
        # A body that is not read must not be taken for the next request.
        self.close_connection = True
        if self._is_foreign():
            return
        length = self.headers.get("content-length", "")
        is_short = length.isascii() and length.isdecimal() and len(length) <= 9
        if not is_short or int(length) > BODY_MAX:
            self._refuse(HTTPStatus.BAD_REQUEST, "a body of a known, small length is needed")
            return
        body = self.rfile.read(int(length))
        self._late.cancel()
        if self.path != "/session":
            self._refuse(HTTPStatus.FORBIDDEN, "this link is for looking only")
            return
        try:
            token = str(json.loads(body)["token"])
        except (ValueError, LookupError, TypeError, RecursionError):
            token = ""
        if not _same(token, self.server.token):
            text = "the link is of another run: open the one that was printed last"
            self._refuse(HTTPStatus.UNAUTHORIZED, text)
            return
        session = secrets.token_hex(32)
        self.server.sessions.append(session)
        cookie = f"{self.server.cookie}={session}; Path=/; HttpOnly; SameSite=Strict"
        # The proof is for changes, and there are none.
        self._tell({"proof": ""}, cookie=cookie)

    def _is_foreign(self) -> bool:
        """Refuses requests that no page of this server made."""
        host = self.headers.get("host", "")
        origin = self.headers.get("origin")
        why = ""
        if not _is_own(host):
            why = "open the dashboard at 127.0.0.1 or localhost, as its link says"
        elif origin is not None and origin != f"http://{host}":
            why = "a page of another origin may not use the dashboard"
        elif self.command != "GET" and origin is None:
            why = "a change must name its origin, as browsers do"
        elif self.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            why = "a page of another site may not use the dashboard"
        if why:
            self._refuse(HTTPStatus.FORBIDDEN, why)
        return bool(why)

    def _is_known(self) -> bool:
        """Whether the browser has followed the link."""
        name = self.server.cookie
        for pair in ";".join(self.headers.get_all("cookie", [])).split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name and any(_same(value, known) for known in tuple(self.server.sessions)):
                return True
        return False

    def _file(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such file")
            return
        self._begin(HTTPStatus.OK, _KINDS[Path(name).suffix], len(data))
        self.wfile.write(data)

    def _happened(self) -> None:
        try:
            lines = self.server.ask("/v1/happened")["happened"]
        except (api.ApiError, LookupError, TypeError) as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error))
            return
        self._tell(lines)

    def _events(self) -> None:
        """A message each second, until the window is gone."""
        self.close_connection = True
        self._begin(HTTPStatus.OK, "text/event-stream", None)
        self.wfile.write(self.server.looks.message())
        while not self._is_gone():
            self.wfile.write(self.server.looks.message())

    def _is_gone(self) -> bool:
        """Waits for a moment; whether the browser has gone meanwhile, which says no more."""
        end_s = time.monotonic() + INTERVAL_S
        self.connection.settimeout(INTERVAL_S)
        try:
            if not self.connection.recv(4096):
                return True
        except TimeoutError:
            return False
        finally:
            self.connection.settimeout(SECONDS_MAX)
        # Whoever says something gets no news earlier.
        time.sleep(max(0.0, end_s - time.monotonic()))
        return False

    def _tell(self, value: object, code: HTTPStatus = HTTPStatus.OK, cookie: str = "") -> None:
        data = json.dumps(value).encode()
        self._begin(code, "application/json", len(data), cookie)
        self.wfile.write(data)

    def _refuse(self, code: HTTPStatus, why: str) -> None:
        self._tell({"error": why}, code)

    def _begin(self, code: HTTPStatus, kind: str, length: int | None, cookie: str = "") -> None:
        self.send_response(code)
        lines = {
            "Content-Type": kind,
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        if length is not None:
            lines["Content-Length"] = str(length)
        if self.close_connection:
            lines["Connection"] = "close"
        if cookie:
            lines["Set-Cookie"] = cookie
        for name, value in lines.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401
        """Tokens occur in no log."""

    def version_string(self) -> str:
        """Says who answers, and not which Python."""
        return "ropewalk-sdn"


def _files() -> dict[str, bytes]:
    """The pages by their names."""
    found: dict[str, bytes] = {}
    pages = resources.files("ropewalk.sdn.dashboard") / "pages"
    for directory, before in ((pages, ""), (pages / "uplot", "uplot/")):
        for file in directory.iterdir():
            if file.is_file():
                found[before + file.name] = file.read_bytes()
    return found


def _same(one: str, other: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _is_own(host: str) -> bool:
    """Whether a `Host` is a literal name of the loopback; `ssh -L` changes its port."""
    name, _, port = host.partition(":")
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        if port and not port.startswith(":"):
            return False
    if name.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ip_address(name).is_loopback
    return False


def serve(port: int, socket_path: Path, told: Callable[[str], None]) -> None:
    """Tells the link, and serves until interrupted.

    Raises:
        ApiError: when no controller answers.
        OSError: when the port cannot be listened on.
    """

    def ask(target: str) -> dict[str, Any]:
        return api.ask(socket_path, target)

    # Who may not use the socket hears so now, not in the browser.
    ask("/v1/status")
    try:
        server = Dashboard(port, ask)
    except OSError as error:
        text = f"cannot listen on 127.0.0.1:{port} ({error.strerror}); choose another --port"
        raise OSError(text) from error
    with server:
        told(server.link)
        server.serve_forever()
