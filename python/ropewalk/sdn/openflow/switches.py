"""Listens for switches: who is who by datapath number, and what each says as an event.

Strangers are refused; a newer connection of a switch replaces the older one when the switch has
said what it has. Invariant with TLS: a datapath number belongs to one identity at a time, whose
certificate names that number.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable

from ropewalk.sdn import endpoint, tls
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.limited import Limited
from ropewalk.sdn.openflow.events import Disconnected, Event
from ropewalk.sdn.openflow.program import Message
from ropewalk.sdn.openflow.switch import (
    SEND_SECONDS_MAX,
    BrokenError,
    Connection,
    RefusedError,
)
from ropewalk.sdn.tls import Identity

_BACKLOG = 64
_AWAITED_S = 10.0
_SPARE_PER_DATAPATH = 2
"""Connections that one identity may have at a time, for each datapath that it may be: the present
one, and the next."""

_log = logging.getLogger(__name__)


class Switches:
    """Listens for switches and turns their messages into events."""

    def __init__(
        self,
        listen: Endpoint,
        name_of: Callable[[int], str | None],
        tell: Callable[[str, Event], None],
        protection: ssl.SSLContext | None,
        connections_max: int,
        rank: int | None = None,
    ) -> None:
        """`name_of` gives the name of a datapath number, None for strangers; `rank` is this
        controller's among several.

        `connections_max` is at a time: besides one for each switch those about to be replaced or
        refused. Raises OSError when the address cannot be listened on.
        """
        self._name_of = name_of
        self._tell = tell
        self._protection = protection
        self._endpoint = listen
        self._listener = endpoint.listener(listen, _BACKLOG)
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while a connection takes a place or leaves it: an end that is told late would be
        taken for that of the next one."""
        self._by_name: dict[str, Connection] = {}
        self._all: set[Connection] = set()
        self._rank = rank
        self._room = threading.Semaphore(connections_max)
        self._stopped = False
        self.malformed = 0
        self.errors = 0
        self.refused = 0
        """Connections of those who may not be the switch they claim to be."""
        self._refusals = Limited(_log)
        self._strangers = Limited(_log)
        """Apart from refusals: strangers without certificates could hide these."""
        self._awaited = threading.Timer(_AWAITED_S, self._nobody_came)
        self._awaited.daemon = True
        self._awaited.start()
        threading.Thread(target=self._listen, name="openflow", daemon=True).start()

    @property
    def port(self) -> int:
        """TCP port it listens on."""
        return int(self._listener.getsockname()[1])

    @property
    def standing_by(self) -> int:
        """Switches that are there and have another controller for their master."""
        with self._lock:
            return sum(not connection.ready for connection in self._all) if self._rank else 0

    def connected(self, name: str) -> bool:
        """Whether a switch is there and has said what it has."""
        return name in self._by_name

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
        self._awaited.cancel()
        endpoint.closed(self._listener, self._endpoint)
        with self._lock:
            connections = list(self._all)
            self._by_name.clear()
        for connection in connections:
            connection.close()

    def claimed(self, connection: Connection, datapath: int) -> None:
        """Gives a datapath number to a connection.

        Raises:
            RefusedError: when its certificate does not name the number, another identity is
                connected with that number, or the connection had another number before.
        """
        with self._lock:
            self._check(connection, datapath)
            connection.datapath = datapath

    def _check(self, connection: Connection, datapath: int) -> None:
        who, number = connection.identity, f"datapath {datapath:016x}"
        if self._name_of(datapath) is None:
            raise RefusedError(f"{number} is not configured")
        if connection.datapath not in (0, datapath):
            raise RefusedError(f"it was datapath {connection.datapath:016x} before {number}")
        if who is not None and datapath not in who.datapaths:
            raise RefusedError(f"{number} is not in the certificate of {who}")
        for other in self._all:
            if other.datapath == datapath and other.identity != who:
                raise RefusedError(f"{number} is connected as {other.identity}, not as {who}")

    def accepted(self, connection: Connection) -> None:
        """A connection has said what its switch has: it takes the place of an older one.

        Raises:
            RefusedError: as `claimed`, for who has claimed nothing so far, too.
        """
        with self._turn, self._lock:
            self._check(connection, connection.datapath)
            name = self._name_of(connection.datapath)
            assert name is not None, "checked"
            former = self._by_name.get(name)
            self._by_name[name] = connection
        if former is not None and former is not connection:
            former.close()

    def told(self, connection: Connection, event: Event) -> None:
        """Passes an event of a switch's present connection on."""
        name = self._name_of(connection.datapath)
        if name is not None and self._by_name.get(name) is connection:
            self._tell(name, event)

    def _listen(self) -> None:
        while not self._stopped:
            try:
                client, address = self._listener.accept()
            except OSError:
                return
            self._awaited.cancel()
            if not self._room.acquire(blocking=False):
                self._strangers.warning(
                    "a connection from %s beyond the bound", endpoint.shown(address)
                )
                client.close()
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(client, address), name="switch", daemon=True
                ).start()
            except RuntimeError as error:
                _log.warning("a connection from %s: %s", address, error)
                client.close()
                self._room.release()

    def _nobody_came(self) -> None:
        _log.warning(
            "no switch has come to %s in %s s; `ropewalk-sdn setup` makes the bridge, "
            "`ovs-vsctl show` tells where it connects to",
            self._endpoint,
            round(_AWAITED_S),
        )

    def _serve(self, client: socket.socket, address: object) -> None:
        connection: Connection | None = None
        where = endpoint.shown(address) or str(self._endpoint)
        try:
            client.settimeout(SEND_SECONDS_MAX)
            who = None
            if self._protection is not None:
                client, who = _protected(client, self._protection)
            if client.family != socket.AF_UNIX:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(client, self, self._rank, who)
            with self._lock:
                self._all.add(connection)
                if who is not None:
                    self._bound(who)
            connection.run()
        except RefusedError as error:
            with self._lock:
                self.refused += 1
            log = self._strangers if connection is None else self._refusals
            log.warning("refused the switch at %s: %s", where, error)
        except BrokenError as error:
            self._strangers.warning("the switch at %s: %s", where, error)
        except OSError as error:
            if connection is not None and connection.datapath:
                _log.info("the switch at %s is gone: %s", where, error)
        finally:
            client.close()
            self._room.release()
            if connection is not None:
                with self._lock:
                    self._all.discard(connection)
                self._gone(connection)

    def _bound(self, who: Identity) -> None:
        """Leaves room for the others."""
        count = sum(other.identity == who for other in self._all)
        if count > _SPARE_PER_DATAPATH * max(1, len(who.datapaths)):
            raise RefusedError(f"{count - 1} connections of {who} are there already")

    def demoted(self, connection: Connection) -> None:
        """Another controller is the master of a connection's switch; it stands by."""
        _log.info("another controller has taken over %s", self._name_of(connection.datapath))
        self._gone(connection)

    def _gone(self, connection: Connection) -> None:
        name = self._name_of(connection.datapath)
        with self._turn:
            with self._lock:
                if name is None or self._by_name.get(name) is not connection:
                    return
                del self._by_name[name]
            self._tell(name, Disconnected())


def _protected(client: socket.socket, protection: ssl.SSLContext) -> tuple[ssl.SSLSocket, Identity]:
    """Does the handshake; who is at the other end."""
    try:
        made = protection.wrap_socket(client, server_side=True)
        return made, tls.identity(made)
    except ssl.SSLError as error:
        raise RefusedError(
            f"no TLS with a certificate of the authority: {tls.why(error)}"
        ) from error
    # Names that are no text.
    except ValueError as error:
        raise RefusedError(f"its certificate cannot be read: {error}") from error
