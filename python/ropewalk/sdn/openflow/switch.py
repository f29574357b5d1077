"""The connection to one switch. One thread greets and reads, any thread writes.

A malformed message is counted and skipped; the connection goes on as long as its framing holds.
The end of a connection is seen when reading ends, and by unanswered echo requests.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from os_ken.ofproto import ofproto_v1_3 as of
from os_ken.ofproto import ofproto_v1_3_parser as ofp

from ropewalk.sdn.openflow import codec, roles
from ropewalk.sdn.openflow.events import (
    Connected,
    Counters,
    Event,
    MeterStatistics,
    PacketIn,
    PortChanged,
    PortStatistics,
    Present,
)
from ropewalk.sdn.openflow.program import (
    GROUP_MAX,
    Flow,
    FlowMod,
    Group,
    GroupMod,
    Message,
    Program,
)
from ropewalk.sdn.tls import Identity

MESSAGE_BYTES_MAX = 65_535
FLOWS_MAX = 100_000
"""Flows of this project that are read back; more means a runaway and ends the connection."""
PORTS_MAX = 4_096
GROUPS_MAX = 4_096
"""Ports and groups of a switch; more ends the connection."""
ECHO_SECONDS = 1.0
"""Silence after which the switch is asked for a sign of life."""
ECHOES_MAX = 3
"""Unanswered echo requests after which the connection counts as dead."""
SEND_SECONDS_MAX = 5.0
GREETING_SECONDS_MAX = 10.0
"""In which a connection has to have said what its switch has: who dribbles takes a place away."""

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """The owner of connections: it is told of events and counts what is wrong."""

    malformed: int
    errors: int

    def claimed(self, connection: Connection, datapath: int) -> None:
        """Takes the datapath number that a connection claims; raises `RefusedError`."""

    def accepted(self, connection: Connection) -> None:
        """Takes a connection whose switch has said what it has; raises `RefusedError`."""

    def told(self, connection: Connection, event: Event) -> None:
        """Takes an event."""

    def demoted(self, connection: Connection) -> None:
        """Takes it that another controller is the switch's master now."""


class BrokenError(Exception):
    """A connection whose framing cannot be trusted any more."""


class RefusedError(BrokenError):
    """A connection of somebody who may not be the switch it claims to be."""


class Connection:
    """One connection to a switch; `datapath` is its number, 0 until its claim was taken.

    `identity` is who showed a certificate; None without TLS.
    With a rank among several controllers it is accepted when it has become the switch's master.
    """

    def __init__(
        self,
        client: socket.socket,
        switch: Owner,
        rank: int | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.datapath = 0
        self.identity = identity
        self._socket = client
        self._switch = switch
        self._lock = threading.Lock()
        self._transactions = itertools.count(1)
        self._ports: list[Any] = []
        self._flows: list[Flow] = []
        self._groups: list[Group] = []
        self._changes = 0
        self._changes_asked: int | None = None
        """Changes that had been sent when the program was asked for; None while it is not."""
        self._began_s = time.monotonic()
        self._role = None if rank is None else roles.Role(rank, self._began_s)
        self._wait_s = ECHO_SECONDS if rank is None else roles.BEACON_S
        self._passed_s = self._began_s
        self._described = False
        """Whether the switch has told its ports."""
        self.ready = False

    def run(self) -> None:
        """Greets and reads to the end; raises `BrokenError` or OSError at a bad one."""
        self._send(codec.hello())
        buffer = bytearray()
        silent = 0
        quiet_s = 0.0
        while True:
            self._pass_time()
            try:
                data = self._read()
            except TimeoutError:
                quiet_s += self._wait_s
                if quiet_s < ECHO_SECONDS:
                    continue
                quiet_s = 0.0
                silent += 1
                if silent > ECHOES_MAX:
                    raise BrokenError("no sign of life") from None
                self._send(codec.echo_request())
                continue
            if not data:
                return
            if not self._greeted and time.monotonic() - self._began_s > GREETING_SECONDS_MAX:
                raise BrokenError("it did not say what it has in time")
            silent = 0
            quiet_s = 0.0
            buffer += data
            while len(buffer) >= codec.HEADER_BYTES:
                (length,) = struct.unpack_from("!H", buffer, 2)
                if length < codec.HEADER_BYTES:
                    raise BrokenError(f"a message of {length} bytes")
                if len(buffer) < length:
                    break
                self._received(bytes(buffer[:length]))
                del buffer[:length]

    @property
    def _greeted(self) -> bool:
        return self.ready or (self._role is not None and self._described)

    def _pass_time(self) -> None:
        """What is due every `roles.BEACON_S`: here, so that no other switch holds it up."""
        now = time.monotonic()
        if self._role is None or not self._described or now - self._passed_s < roles.BEACON_S:
            return
        self._passed_s = now
        self._role, ask = roles.passed(self._role, now)
        self._ask_role(ask)

    def _ask_role(self, ask: roles.Ask) -> None:
        role = self._role
        assert role is not None, "one of several controllers"
        match ask:
            case roles.Ask.BEACON:
                self._write(codec.beacon(role.rank, next(self._transactions) & 0x7FFF_FFFF))
            case roles.Ask.GENERATION:
                self._send(codec.role_request(of.OFPCR_ROLE_NOCHANGE, 0))
            case roles.Ask.MASTER:
                number = ((role.generation or 0) + 1) & 0xFFFF_FFFF_FFFF_FFFF
                self._send(codec.role_request(of.OFPCR_ROLE_MASTER, number))
            case roles.Ask.EQUAL:
                self._send(codec.role_request(of.OFPCR_ROLE_EQUAL, 0))
            case roles.Ask.NOTHING:
                pass

    def send_all(self, messages: list[Message]) -> bool:
        """Writes messages in one go."""
        data = b"".join(
            codec.encode(message, next(self._transactions) & 0x7FFF_FFFF) for message in messages
        )
        self._changes += any(isinstance(message, FlowMod | GroupMod) for message in messages)
        return self._write(data)

    def ask_program(self) -> None:
        """Asks for flows, then groups; the answer to the second completes the first. Once at a
        time: parts of two answers would be taken for one."""
        if self._changes_asked is not None:
            return
        self._changes_asked = self._changes
        self._flows, self._groups = [], []
        self._send(codec.flows_request())
        self._send(codec.groups_request())

    def close(self) -> None:
        """Ends it at both ends; who reads notices. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, message: Any) -> None:
        self._write(codec.serialize(message, next(self._transactions) & 0x7FFF_FFFF))

    def _write(self, data: bytes) -> bool:
        with self._lock:
            try:
                self._socket.sendall(data)
            except OSError:
                # Half a message may have left: nothing after it would be understood. Reading
                # notices the end and tells.
                self.close()
                return False
        return True

    def _read(self) -> bytes:
        """What has arrived, empty at the end; raises TimeoutError after silence."""
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not pending and not select.select([self._socket], [], [], self._wait_s)[0]:
            raise TimeoutError
        # One TLS connection cannot be read and written at the same time.
        with self._lock:
            return self._socket.recv(65_536)

    def _received(self, data: bytes) -> None:
        try:
            if codec.is_packet_in(data):
                self._packet_in(codec.packet_in(data))
                return
            if data[1] in codec.IGNORED:
                return
            self._handle(codec.decode(data))
        except (codec.DecodeError, AttributeError, TypeError, ValueError) as error:
            self._switch.malformed += 1
            # It may be the answer that is waited for: the next look asks again.
            self._changes_asked = None
            _log.debug("a malformed message: %s", error)

    def _packet_in(self, packet: PacketIn) -> None:
        rank = roles.rank_of(packet.data) if packet.port == roles.IN_PORT else None
        if self._role is None or rank is None:
            self._switch.told(self, packet)
            return
        self._role = roles.heard(self._role, rank, time.monotonic())

    def _refused(self, message: Any) -> None:
        is_slave = (message.type, message.code) == (of.OFPET_BAD_REQUEST, of.OFPBRC_IS_SLAVE)
        if self._role is not None and is_slave:
            if self._role.master:
                self._role, ask = roles.demoted(self._role, time.monotonic())
                self.ready = False
                self._changes_asked = None
                self._switch.demoted(self)
                self._ask_role(ask)
            return
        if self._role is not None and message.type == of.OFPET_ROLE_REQUEST_FAILED:
            # Somebody else has claimed it in between: the number is asked for again.
            return
        self._switch.errors += 1
        _log.warning("the switch refused a message: type %s, code %s", message.type, message.code)

    def _role_told(self, master: bool, generation: int) -> None:
        if self._role is None:
            return
        was = self._role.master
        self._role = roles.answered(self._role, master, generation)
        if master and not was:
            # Its ports may have changed while another was the master.
            self._ports = []
            self._send(codec.port_description_request())

    def _handle(self, message: Any) -> None:
        """What belongs to the connection itself; all else is about the program or the traffic."""
        match message:
            case ofp.OFPHello():
                self._send(codec.features_request())
            case ofp.OFPSwitchFeatures():
                self._switch.claimed(self, message.datapath_id)
                self._ports = []
                self._send(codec.port_description_request())
            case ofp.OFPEchoRequest():
                reply = codec.echo_reply(message.data)
                self._write(codec.serialize(reply, message.xid))
            case ofp.OFPErrorMsg():
                self._refused(message)
            case ofp.OFPRoleReply():
                self._role_told(message.role == of.OFPCR_ROLE_MASTER, message.generation_id)
            case _:
                self._program(message)

    def _program(self, message: Any) -> None:
        match message:
            case ofp.OFPPortDescStatsReply():
                self._ports += message.body
                _bounded("ports", self._ports, PORTS_MAX)
                if not _more(message):
                    self._described = True
                    if self._role is None or self._role.master:
                        self.ask_program()
            case ofp.OFPFlowStatsReply():
                self._flows += [codec.flow(statistics) for statistics in message.body]
                _bounded("flows of this project", self._flows, FLOWS_MAX)
            case ofp.OFPGroupDescStatsReply():
                self._groups += [codec.group(statistics) for statistics in message.body]
                _bounded("groups", self._groups, GROUPS_MAX)
                if not _more(message):
                    self._program_known()
            case _:
                self._traffic(message)

    def _traffic(self, message: Any) -> None:
        match message:
            case ofp.OFPFlowRemoved():
                self._switch.told(self, codec.flow_removed(message))
            case ofp.OFPBarrierReply():
                self._switch.told(self, codec.confirmed(message))
            case ofp.OFPPortStatus():
                gone = message.reason == of.OFPPR_DELETE
                self._switch.told(self, PortChanged(codec.port(message.desc), gone))
            case ofp.OFPPortStatsReply():
                counters = {
                    row.port_no: Counters(
                        row.rx_bytes, row.tx_bytes, row.duration_sec + row.duration_nsec / 1e9
                    )
                    for row in message.body
                }
                self._switch.told(self, PortStatistics(counters))
            case ofp.OFPMeterStatsReply():
                for row in message.body:
                    count = (row.packet_in_count, row.byte_in_count)
                    self._switch.told(self, MeterStatistics(row.meter_id, *count))
            case _:
                pass

    def _program_known(self) -> None:
        ours = frozenset(group for group in self._groups if group.number <= GROUP_MAX)
        present = Program(frozenset(self._flows), ours)
        asked, self._changes_asked = self._changes_asked, None
        if self.ready:
            # What was changed since may be missing in the answer: the next one will tell.
            if asked == self._changes:
                self._switch.told(self, Present(present))
            return
        self.ready = True
        self._switch.accepted(self)
        ports = tuple(codec.port(description) for description in self._ports)
        self._switch.told(self, Connected(ports, present))


def _bounded(what: str, listed: Sequence[object], count_max: int) -> None:
    if len(listed) > count_max:
        raise BrokenError(f"more than {count_max} {what}")


def _more(message: Any) -> bool:
    return bool(message.flags & of.OFPMPF_REPLY_MORE)
