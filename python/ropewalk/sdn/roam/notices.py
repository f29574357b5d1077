"""What access points' agents tell the controller: one JSON object a line over TCP.

    {"switch": "ap1", "port": "wlan0", "mac": "02:00:00:00:00:01", "joined": true}

`packets` and `bytes`, when given, are what the station's flow had counted when it left. With TLS
configured for the controller both ends need certificates of the same authority; without, the
network between them has to be trusted as the switches' is. Each line is answered: by
`{"taken": true}`, by `{"taken": false}` with a `reason` when the place is no access port of the
configuration and without one for an empty line, or by an `error` when the line is no notice.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from typing import Any

from ropewalk.sdn import endpoint
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.roam.events import Notice

LINE_BYTES_MAX = 1024
AGENTS_MAX = 512
IDLE_S = 60.0
"""An agent says something at least so often; an empty line will do."""
HANDSHAKE_S = 5.0
"""With TLS: in which who connects has to show who it is, for it holds an agent's place."""
NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_NOBODY = "00:00:00:00:00:00"
_KEYS = ("switch", "port", "mac", "joined", "packets", "bytes")


class NoticeError(ValueError):
    """A line that is not a notice; the message says why."""


def read(line: bytes) -> Notice | None:
    """The notice in a line; None for an empty one.

    Raises:
        NoticeError: when it is anything else.
    """
    text = line.strip()
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoticeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise NoticeError("not an object")
    unknown = next((key for key in value if key not in _KEYS), None)
    if unknown is not None:
        raise NoticeError(f"{unknown[: LINE_BYTES_MAX // 8]}: no key of a notice")
    switch, port, mac = (value.get(key) for key in ("switch", "port", "mac"))
    joined = value.get("joined")
    if not isinstance(switch, str) or not NAME.fullmatch(switch):
        raise NoticeError("switch: no name")
    if not isinstance(port, str) or not NAME.fullmatch(port):
        raise NoticeError("port: no name")
    if not isinstance(mac, str) or not MAC.fullmatch(mac.lower()):
        raise NoticeError("mac: no station's address")
    if int(mac[:2], 16) & 1 or mac == _NOBODY:
        raise NoticeError("mac: no station's address")
    if not isinstance(joined, bool):
        raise NoticeError("joined: neither true nor false")
    packets, count = (_count(value, key) for key in ("packets", "bytes"))
    return Notice(switch, port, mac.lower(), joined, packets, count)


def _count(value: dict[str, Any], key: str) -> int:
    count = value.get(key, -1)
    if isinstance(count, bool) or not isinstance(count, int) or not -1 <= count < 1 << 64:
        raise NoticeError(f"{key}: no count")
    return count


def written(notice: Notice) -> bytes:
    """A notice as a line."""
    value: dict[str, Any] = {"switch": notice.switch, "port": notice.port}
    value |= {"mac": notice.mac, "joined": notice.joined}
    if notice.packets >= 0:
        value["packets"] = notice.packets
    if notice.bytes >= 0:
        value["bytes"] = notice.bytes
    return json.dumps(value).encode() + b"\n"


class Notices:
    """Takes notices until closed."""

    def __init__(
        self,
        address: Endpoint,
        tell: Callable[[Notice], str],
        tls: ssl.SSLContext | None,
    ) -> None:
        """`tell` gives a reason when it does not take a notice, and nothing else.

        Raises OSError when the address cannot be listened on."""
        self.malformed = 0
        self._tell = tell
        self._server = _Server(address, self, tls)
        threading.Thread(target=self._server.serve_forever, name="notices", daemon=True).start()

    @property
    def port(self) -> int:
        """TCP port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()

    def line(self, data: bytes) -> dict[str, object]:
        """The answer to a line."""
        try:
            notice = read(data)
        except NoticeError as error:
            self.malformed += 1
            return {"error": str(error)}
        if notice is None:
            return {"taken": False}
        reason = self._tell(notice)
        return {"taken": False, "reason": reason} if reason else {"taken": True}


class Client:
    """An agent's connection to the controller."""

    def __init__(
        self, address: tuple[str, int], tls: ssl.SSLContext | None = None, seconds: float = 5
    ) -> None:
        """Raises OSError when nobody answers."""
        connection = socket.create_connection(address, timeout=seconds)
        self._socket = connection
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(connection, server_hostname=address[0])
        except OSError:
            connection.close()
            raise
        self._answers = self._socket.makefile("rb")

    def tell(self, notice: Notice | None) -> None:
        """Says one thing, or that it is there.

        Raises:
            OSError: when the controller is gone.
            NoticeError: when it refuses.
            ValueError: when it does not speak as a controller does.
        """
        self._socket.sendall(written(notice) if notice else b"\n")
        line = self._answers.readline(LINE_BYTES_MAX)
        if not line:
            raise OSError("the controller has closed the connection")
        try:
            answer = json.loads(line)
        except RecursionError as error:
            raise ValueError("the controller's answer is nested too deep") from error
        if not isinstance(answer, dict):
            raise ValueError("the controller's answer is no object")
        for key in ("error", "reason"):
            if key in answer:
                raise NoticeError(str(answer[key]))

    def close(self) -> None:
        """Ends it."""
        self._answers.close()
        self._socket.close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Endpoint, notices: Notices, tls: ssl.SSLContext | None) -> None:
        self.notices = notices
        self._tls = tls
        self.room = threading.Semaphore(AGENTS_MAX)
        super().__init__((address.host, address.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = endpoint.listener(address, AGENTS_MAX)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if not self.room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread to be had.
            self.room.release()
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        try:
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                request.settimeout(HANDSHAKE_S)
                request = self._tls.wrap_socket(request, server_side=True)
            request.settimeout(IDLE_S)
            super().finish_request(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A connection that ended is not the controller's fault."""


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server), "made for this server"
        while line := self.rfile.readline(LINE_BYTES_MAX + 1):
            if not line.endswith(b"\n"):
                self.server.notices.malformed += 1
                return
            answer = json.dumps(self.server.notices.line(line)).encode()
            self.wfile.write(answer + b"\n")
