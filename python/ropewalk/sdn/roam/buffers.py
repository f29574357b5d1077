"""What stations have not acknowledged: copies while they are there, everything while they are not.

Invariants: the bytes and packets kept never exceed the bounds; of the same segment the first copy
is kept. This is the one value of a policy's state that changes in place, with the counters of
packets that are kept and sent again: a copy for each packet would cost more than forwarding it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

from ropewalk.sdn import packets
from ropewalk.sdn.roam import frames
from ropewalk.sdn.roam.config import Bounds
from ropewalk.sdn.roam.frames import Flow, Segment

FLOWS_MAX = 256
"""TCP connections of a station that are followed."""
OTHER_MAX = 256
"""Packets of a station other than TCP that are kept."""
OTHER_AGE_S = 2.0
"""Only TCP is of use to its receiver later (RFC 9000 section 6.2: probes within seconds)."""
REPLAY_FIRST = 10
"""Segments that are sent again at once; as many as a sender begins with (RFC 6928)."""
REPLAY_MAX = 256
"""Segments under way to the station at most. More would overflow a short queue of the access
point's, and fewer would leave fast air idle: 256 full segments in 5 ms are 600 Mbit/s."""
_OVERHEAD = 64


@dataclass(slots=True)
class Kept:
    """A frame with what is known of it."""

    frame: bytes
    segment: Segment
    at_s: float
    taken: bool = False
    """Whether the station has said that it has the segment."""


@dataclass(slots=True)
class Connection:
    """Segments of one direction of a TCP connection, in the order of their sequence numbers.

    They do not arrive in that order: what is under way to the station when it leaves comes from the
    switches nearest to the sender first.
    """

    acknowledged: int | None = None
    newest: int | None = None
    """The newest timestamp the station has echoed: it takes nothing older (PAWS)."""
    segments: list[Kept] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)
    used_s: float = 0.0


@dataclass(slots=True)
class Store:
    """What is kept for one station."""

    connections: dict[Flow, Connection] = field(default_factory=dict)
    other: deque[tuple[float, bytes]] = field(default_factory=deque)
    rest: deque[tuple[bytes, Kept | None]] = field(default_factory=deque)
    """Frames still to be sent again, at the pace of the station's acknowledgements; their segments
    as they were kept, and None for what is not TCP."""
    bytes: int = 0
    packets: int = 0
    room: int = 0
    """Segments that may be sent now."""
    window: int = 0
    went_on: bool = False
    """Whether the station has acknowledged anything since the last tick."""


class Buffers:
    """The stores of all stations."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._stores: dict[str, Store] = {}
        self.bytes = 0
        self.counters: Counter[str] = Counter()

    def packets(self, mac: str) -> int:
        """How many packets are kept for a station."""
        store = self._stores.get(mac)
        return store.packets + len(store.other) if store else 0

    def add(
        self, mac: str, frame: bytes, segment: Segment | None, now: float, *, away: bool
    ) -> bool:
        """Keeps a frame for a station; False for a copy of one that is kept, and without room.

        While the station is there the oldest, likely acknowledged, make room for the newest. While
        it is away the first are worth most, because the receiver needs them first.
        """
        store = self._stores.setdefault(mac, Store())
        if segment is None or not segment.length:
            return away and self._add_other(store, frame, now)
        connection = self._connection(store, segment.flow)
        if connection is None:
            self.counters["overflowed"] += 1
            return False
        connection.used_s = now
        name = (segment.sequence, segment.length)
        known = connection.acknowledged
        if segment.flags & packets.SYN:
            connection.acknowledged = known = None
        if name in connection.seen:
            self.counters["repeated"] += 1
            return False
        if known is not None and frames.after(segment.end, known) <= 0:
            if away:
                # The station's acknowledgement was lost: a copy makes it repeat that.
                return self._keep(store, connection, frame, segment, now, away)
            return False
        return self._keep(store, connection, frame, segment, now, away)

    def holds(self, mac: str, segment: Segment) -> bool:
        """Whether a segment is kept; of one without data, whether its connection is known."""
        store = self._stores.get(mac)
        connection = store.connections.get(segment.flow) if store else None
        if connection is None:
            return False
        return not segment.length or (segment.sequence, segment.length) in connection.seen

    def acknowledged(self, mac: str, segment: Segment, now: float) -> None:
        """The station has acknowledged data, or reset the connection."""
        store = self._stores.get(mac)
        if store is None or not segment.flags & (packets.ACK | packets.RST):
            return
        flow = (segment.flow[1], segment.flow[0])
        connection = store.connections.get(flow)
        if connection is None:
            return
        connection.used_s = now
        if segment.flags & packets.RST:
            # Without ACK where the station knows the connection no more (RFC 9293 section 3.5.2).
            if connection.segments:
                self._drop(store, connection, 0, len(connection.segments))
                store.rest = deque(row for row in store.rest if not _of(row, flow))
            self._went_on(store, 1)
            return
        known = connection.acknowledged
        if known is None or frames.after(segment.acknowledged, known) > 0:
            connection.acknowledged = segment.acknowledged
        newest = connection.newest
        if segment.stamp is not None and (newest is None or frames.after(segment.echo, newest) > 0):
            connection.newest = segment.echo
        taken = self._take(store, connection, segment)
        if not taken and not segment.length:
            # Behind a hole a station without SACK only repeats itself, for each segment it gets.
            taken = 1
        self._went_on(store, taken)

    def _went_on(self, store: Store, taken: int) -> None:
        """The station has answered so many segments: there is room for as many, and as in slow
        start for one more each."""
        if store.rest and taken:
            grown = min(REPLAY_MAX, store.window + taken)
            store.room += taken + grown - store.window
            store.window, store.went_on = grown, True

    def released(self, mac: str, now: float) -> list[bytes]:
        """What to send to the station now, each connection in the order of its sequence numbers.

        Connections take turns: one that the station has given up meanwhile holds up no other. TCP
        segments stay until they are acknowledged. Timestamps never fall along the sequence (PAWS,
        RFC 7323 section 5.3): segments behind a repetition take its stamp. No stamp is made older.
        A repetition is kept only where the first transmission was not, as when it was lost
        on its way, and the sender must not take the echo for that of the first (RFC 3522).
        """
        store = self._stores.get(mac)
        return [frame for frame, _ in self._pending(store, now)] if store else []

    def _pending(self, store: Store, now: float) -> list[tuple[bytes, Kept | None]]:
        turns = [pair for row in store.connections.values() for pair in enumerate(_stamped(row))]
        turns.sort(key=itemgetter(0))
        found: list[tuple[bytes, Kept | None]] = [sent for _, sent in turns]
        found += [(frame, None) for at_s, frame in store.other if now - at_s <= OTHER_AGE_S]
        self._drop_other(store)
        return found

    def begin(self, mac: str, now: float) -> list[bytes]:
        """What to send first of `released`; the rest follows by `more`."""
        store = self._stores.get(mac)
        if store is None:
            return []
        store.rest = deque(self._pending(store, now))
        store.window = store.room = REPLAY_FIRST
        store.went_on = True
        return self.more(mac)

    def more(self, mac: str) -> list[bytes]:
        """What of the rest may be sent now: as in slow start, two segments for each that is
        acknowledged, and one from `REPLAY_MAX` under way on."""
        store = self._stores.get(mac)
        found: list[bytes] = []
        while store and store.rest and store.room > 0:
            frame, kept = store.rest.popleft()
            # The last one asks for an acknowledgement, whatever is known.
            if kept is None or not kept.taken or not store.rest:
                found.append(frame)
                store.room -= 1
        return found

    def stalled(self) -> list[str]:
        """Whose rest waits for an acknowledgement since the last tick: it may go on without."""
        found = []
        for mac, store in self._stores.items():
            if store.rest and not store.went_on:
                store.room = store.window = REPLAY_FIRST
                found.append(mac)
            store.went_on = False
        return found

    def forget(self, mac: str) -> None:
        """Drops all of a station."""
        store = self._stores.pop(mac, None)
        if store:
            self.bytes -= store.bytes + sum(len(frame) for _, frame in store.other)

    def passed(self, now: float) -> None:
        """Drops what is too old, and connections without segments not used for as long."""
        age_s = self._bounds.age_s
        for store in self._stores.values():
            for flow, connection in list(store.connections.items()):
                old = _leading(connection, lambda kept: now - kept.at_s > age_s)
                self._drop(store, connection, 0, old)
                self.counters["too_old"] += old
                if not connection.segments and now - connection.used_s > self._bounds.age_s:
                    del store.connections[flow]
            while store.other and now - store.other[0][0] > OTHER_AGE_S:
                self.bytes -= len(store.other.popleft()[1])
        for mac in [mac for mac, store in self._stores.items() if _empty(store)]:
            del self._stores[mac]

    def _connection(self, store: Store, flow: Flow) -> Connection | None:
        connection = store.connections.get(flow)
        if connection is None and len(store.connections) < FLOWS_MAX:
            connection = store.connections[flow] = Connection()
        return connection

    def _keep(
        self,
        store: Store,
        connection: Connection,
        frame: bytes,
        segment: Segment,
        now: float,
        away: bool,
    ) -> bool:
        size = len(frame) + _OVERHEAD
        while not self._fits(store, size):
            if away or not connection.segments:
                self.counters["overflowed"] += 1
                return False
            self._drop(store, connection, 0, 1)
            self.counters["overwritten"] += 1
        _insert(connection, Kept(frame, segment, now))
        connection.seen.add((segment.sequence, segment.length))
        store.packets += 1
        store.bytes += size
        self.bytes += size
        return True

    def _fits(self, store: Store, size: int) -> bool:
        bounds = self._bounds
        return (
            store.packets < bounds.station_packets
            and store.bytes + size <= bounds.station_bytes
            and self.bytes + size <= bounds.all_bytes
        )

    def _take(self, store: Store, connection: Connection, answer: Segment) -> int:
        """Drops what the station has, also above a hole (RFC 2018); how many segments that were.

        A station may forget what it has selected. Its sender then still has that.
        """
        known = connection.acknowledged
        if known is None:
            return 0
        whole = _leading(connection, lambda kept: frames.after(kept.segment.end, known) <= 0)
        taken = self._taken(store, connection, 0, whole)
        for begin, end in answer.selected:
            at, behind = _behind(connection, begin), _behind(connection, end)
            while (
                behind > at and frames.after(connection.segments[behind - 1].segment.end, end) > 0
            ):
                behind -= 1
            taken += self._taken(store, connection, at, max(0, behind - at))
        return taken

    def _taken(self, store: Store, connection: Connection, at: int, count: int) -> int:
        for kept in connection.segments[at : at + count]:
            kept.taken = True
        self._drop(store, connection, at, count)
        return count

    def _drop(self, store: Store, connection: Connection, at: int, count: int) -> None:
        """Drops segments from one on."""
        for kept in connection.segments[at : at + count]:
            connection.seen.discard((kept.segment.sequence, kept.segment.length))
            size = len(kept.frame) + _OVERHEAD
            store.packets -= 1
            store.bytes -= size
            self.bytes -= size
        del connection.segments[at : at + count]

    def _add_other(self, store: Store, frame: bytes, now: float) -> bool:
        if len(store.other) >= OTHER_MAX or self.bytes + len(frame) > self._bounds.all_bytes:
            self.counters["overflowed"] += 1
            return False
        store.other.append((now, frame))
        self.bytes += len(frame)
        return True

    def _drop_other(self, store: Store) -> None:
        self.bytes -= sum(len(frame) for _, frame in store.other)
        store.other.clear()


def _insert(connection: Connection, kept: Kept) -> None:
    """Behind the last as a rule, else where its sequence number belongs."""
    segments, sequence = connection.segments, kept.segment.sequence
    if not segments or frames.after(sequence, segments[-1].segment.sequence) >= 0:
        segments.append(kept)
    else:
        segments.insert(_behind(connection, sequence), kept)


def _behind(connection: Connection, sequence: int) -> int:
    """How many segments begin before a sequence number."""
    # Numbers go round: they are compared by how far they are from this one.
    return bisect_left(
        connection.segments,
        0,
        key=lambda kept: frames.after(kept.segment.sequence, sequence),
    )


def _leading(connection: Connection, goes: Callable[[Kept], bool]) -> int:
    """How many of the first segments go."""
    segments = connection.segments
    return next((at for at, kept in enumerate(segments) if not goes(kept)), len(segments))


def _stamped(connection: Connection) -> list[tuple[bytes, Kept | None]]:
    """What a connection still needs, with timestamps that do not fall."""
    found: list[tuple[bytes, Kept | None]] = []
    newest = connection.newest
    for kept in _needed(connection):
        frame, stamp = kept.frame, kept.segment.stamp
        if stamp is not None:
            if newest is None or frames.after(stamp, newest) > 0:
                newest = stamp
            frame = frames.restamped(frame, kept.segment, newest)
        found.append((frame, kept))
    return found


def _of(row: tuple[bytes, Kept | None], flow: Flow) -> bool:
    kept = row[1]
    return kept is not None and kept.segment.flow == flow


def _needed(connection: Connection) -> list[Kept]:
    kept, known = connection.segments, connection.acknowledged
    needed = [item for item in kept if known is None or frames.after(item.segment.end, known) > 0]
    # With nothing needed the last is sent, so that the station repeats its acknowledgement.
    return needed or kept[-1:]


def _empty(store: Store) -> bool:
    return not (store.connections or store.other or store.rest)
