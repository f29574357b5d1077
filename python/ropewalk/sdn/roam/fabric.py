"""The connections to all switches: who is who by datapath number, and what each says as an event.

Strangers are refused; a newer connection of a switch replaces the older one.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable

from ropewalk.sdn.events import Disconnected, Event
from ropewalk.sdn.openflow.program import Message
from ropewalk.sdn.openflow.switch import SEND_SECONDS_MAX, BrokenError, Connection
from ropewalk.sdn.roam.config import Config

_SPARE = 16
"""Connections beyond one for each switch: those about to be replaced or refused."""

_log = logging.getLogger(__name__)


class Fabric:
    """Listens for switches and turns their messages into events."""

    def __init__(
        self, config: Config, tell: Callable[[str, Event], None], tls: ssl.SSLContext | None
    ) -> None:
        """Raises OSError when the address cannot be listened on."""
        self._names = {switch.datapath: switch.name for switch in config.switches}
        self._tell = tell
        self._tls = tls
        address = (config.controller.address, config.controller.port)
        self._listener = socket.create_server(address, backlog=64)
        self._lock = threading.Lock()
        self._by_name: dict[str, Connection] = {}
        self._room = threading.Semaphore(len(self._names) + _SPARE)
        self._stopped = False
        self.malformed = 0
        self.errors = 0
        threading.Thread(target=self._listen, name="openflow", daemon=True).start()

    def send(self, name: str, messages: list[Message]) -> bool:
        """Sends messages; False when the switch is not connected or takes nothing."""
        with self._lock:
            connection = self._by_name.get(name)
        return connection is not None and connection.send_all(messages)

    def audit(self) -> None:
        """Asks every switch what it has; answered by `Present`."""
        with self._lock:
            connections = list(self._by_name.values())
        for connection in connections:
            connection.ask_program()

    def close(self) -> None:
        """Ends all connections; the switches keep their flows."""
        self._stopped = True
        self._listener.close()
        with self._lock:
            connections = list(self._by_name.values())
            self._by_name.clear()
        for connection in connections:
            connection.close()

    def accepted(self, connection: Connection) -> None:
        """A connection has said what its switch has: it takes the place of an older one."""
        name = self._names.get(connection.datapath)
        if name is None:
            raise BrokenError(f"datapath {connection.datapath:016x} is not configured")
        with self._lock:
            former = self._by_name.get(name)
            self._by_name[name] = connection
        if former is not None and former is not connection:
            former.close()

    def told(self, connection: Connection, event: Event) -> None:
        """Passes an event of a switch's present connection on."""
        name = self._names.get(connection.datapath)
        if name is not None and self._by_name.get(name) is connection:
            self._tell(name, event)

    def _listen(self) -> None:
        while not self._stopped:
            try:
                client, address = self._listener.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                _log.warning("a connection from %s beyond the bound", address)
                client.close()
                continue
            threading.Thread(
                target=self._serve, args=(client, address), name="switch", daemon=True
            ).start()

    def _serve(self, client: socket.socket, address: object) -> None:
        connection: Connection | None = None
        try:
            client.settimeout(SEND_SECONDS_MAX)
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(client, self)
            connection.run()
        except BrokenError as error:
            _log.warning("the switch at %s: %s", address, error)
        except OSError as error:
            _log.info("the switch at %s is gone: %s", address, error)
        finally:
            client.close()
            self._room.release()
            if connection is not None:
                self._gone(connection)

    def _gone(self, connection: Connection) -> None:
        name = self._names.get(connection.datapath)
        with self._lock:
            if name is None or self._by_name.get(name) is not connection:
                return
            del self._by_name[name]
        self._tell(name, Disconnected())
