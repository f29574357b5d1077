"""What access points' agents tell the controller: one JSON object a line over TCP.

    {"switch": "ap1", "port": "wlan0", "mac": "02:00:00:00:00:01", "joined": true}

`packets` and `bytes`, when given, are what the station's flow had counted when it left. With TLS
configured for the controller both ends need certificates of the same authority, and the agent's has
to name the access ports that the agent reports; without, the network between them has to be trusted
as the switches' is. Each line is answered: by `{"taken": true}`, by `{"taken": false}` with a
`reason` when the place is no access port of the configuration or not in the agent's certificate and
without one for an empty line, or by an `error` when the line is no notice.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import socketserver
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from ropewalk.sdn import endpoint
from ropewalk.sdn import tls as certificates
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.limited import Limited
from ropewalk.sdn.roam.events import Notice
from ropewalk.sdn.tls import Identity

LINE_BYTES_MAX = 1024
AGENTS_MAX = 512
IDENTITY_AGENTS_MAX = 16
"""With TLS, connections of one identity: each holds a place of `AGENTS_MAX`."""
IDLE_S = 60.0
"""An agent says something at least so often; an empty line will do."""
HANDSHAKE_S = 5.0
"""With TLS: in which who connects has to show who it is, for it holds an agent's place."""
NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_NOBODY = "00:00:00:00:00:00"
_log = logging.getLogger(__name__)

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
        self.refused = 0
        """Notices of agents whose certificates do not name the place or the station."""
        self.refused_agents = 0
        """Connections of agents without a certificate of the authority, or with too many of one."""
        self._tell = tell
        self._lock = threading.Lock()
        self._refusals = Limited(_log)
        self._strangers = Limited(_log)
        self._present: Counter[Identity] = Counter()
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

    def line(self, data: bytes, who: Identity | None = None) -> dict[str, object]:
        """The answer to a line; `who` showed a certificate, None without TLS."""
        try:
            notice = read(data)
        except NoticeError as error:
            with self._lock:
                self.malformed += 1
            return {"error": str(error)}
        if notice is None:
            return {"taken": False}
        reason = "" if who is None else _not_in(who, notice)
        if reason:
            with self._lock:
                self.refused += 1
            self._refusals.warning("refused a notice: %s", reason)
        else:
            reason = self._tell(notice)
        return {"taken": False, "reason": reason} if reason else {"taken": True}

    def enter(self, who: Identity, address: object) -> bool:
        """Whether there is room for one more connection of an identity; `leave` ends it."""
        with self._lock:
            room = self._present[who] < IDENTITY_AGENTS_MAX
            self._present[who] += room
        if not room:
            self.stranger(address, f"{IDENTITY_AGENTS_MAX} connections of {who} are there already")
        return room

    def leave(self, who: Identity) -> None:
        """A connection of an identity has ended."""
        with self._lock:
            self._present[who] -= 1
            if not self._present[who]:
                del self._present[who]

    def stranger(self, address: object, problem: str) -> None:
        """A connection that is not an agent's."""
        with self._lock:
            self.refused_agents += 1
        where = endpoint.shown(address)
        self._strangers.warning("refused the agent at %s: %s", where, problem)


def _not_in(who: Identity, notice: Notice) -> str:
    """What of a notice is not in a certificate; nothing when all is."""
    if not who.may_report(notice.switch, notice.port):
        return f"{notice.switch} {notice.port} is not in the certificate of {who}"
    if not who.may_report_station(notice.mac):
        return f"station {notice.mac} is not in the certificate of {who}"
    return ""


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
        who = None
        try:
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                request.settimeout(HANDSHAKE_S)
                request = self._tls.wrap_socket(request, server_side=True)
                known = certificates.identity(request)
                who = known if self.notices.enter(known, client_address) else None
                if who is None:
                    return
            request.settimeout(IDLE_S)
            _Handler(request, client_address, self, who)
        except ssl.SSLError as error:
            if who is None:
                problem = certificates.why(error)
                self.notices.stranger(
                    client_address, f"no TLS with a certificate of the authority: {problem}"
                )
        finally:
            if who is not None:
                self.notices.leave(who)
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A connection that ended is not the controller's fault."""


class _Handler(socketserver.StreamRequestHandler):
    def __init__(
        self,
        request: Any,  # noqa: ANN401
        address: Any,  # noqa: ANN401
        server: _Server,
        who: Identity | None = None,
    ) -> None:
        self._notices = server.notices
        self._who = who
        super().__init__(request, address, server)

    def handle(self) -> None:
        while line := self.rfile.readline(LINE_BYTES_MAX + 1):
            if not line.endswith(b"\n"):
                self._notices.malformed += 1
                return
            answer = json.dumps(self._notices.line(line, self._who)).encode()
            self.wfile.write(answer + b"\n")
