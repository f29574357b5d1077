"""What stations have not acknowledged: copies while they are there, everything while they are not.

Invariants: the bytes and packets kept never exceed the bounds; of the same segment the first copy
is kept. This is the one value of a policy's state that changes in place, with the counters of
packets that are kept and sent again: a copy for each packet would cost more than forwarding it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Connection:
    """Segments of one direction of a TCP connection, in the order of their arrival."""

    acknowledged: int | None = None
    newest: int | None = None
    """The newest timestamp the station has echoed: it takes nothing older (PAWS)."""
    segments: deque[Kept] = field(default_factory=deque)
    seen: set[tuple[int, int]] = field(default_factory=set)
    used_s: float = 0.0


@dataclass(slots=True)
class Store:
    """What is kept for one station."""

    connections: dict[Flow, Connection] = field(default_factory=dict)
    other: deque[tuple[float, bytes]] = field(default_factory=deque)
    rest: deque[bytes] = field(default_factory=deque)
    """What is still to be sent again, at the pace of the station's acknowledgements."""
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
        """The station has acknowledged all before `segment.acknowledged`."""
        store = self._stores.get(mac)
        if store is None or not segment.flags & packets.ACK:
            return
        flow = (segment.flow[1], segment.flow[0])
        connection = store.connections.get(flow)
        if connection is None:
            return
        connection.used_s = now
        known = connection.acknowledged
        if known is None or frames.after(segment.acknowledged, known) > 0:
            connection.acknowledged = segment.acknowledged
        newest = connection.newest
        if segment.stamp is not None and (newest is None or frames.after(segment.echo, newest) > 0):
            connection.newest = segment.echo
        taken = 0
        while connection.segments and self._done(connection, connection.segments[0]):
            self._drop(store, connection)
            taken += 1
        if store.rest and taken:
            grown = min(REPLAY_MAX, store.window + taken)
            store.room += taken + grown - store.window
            store.window, store.went_on = grown, True
        if segment.flags & packets.RST:
            while connection.segments:
                self._drop(store, connection)

    def released(self, mac: str, now: float) -> list[bytes]:
        """What to send to the station now, each connection in the order of its sequence numbers.

        TCP segments stay until they are acknowledged. Timestamps never fall along the sequence
        (PAWS, RFC 7323 section 5.3): where a repetition stands before older segments it takes the
        least stamp behind it, but none older than the newest that the station has echoed. The
        sender then sees by the echo that the first transmission arrived (RFC 3522). Without an
        echo the older segments take the repetition's stamp.
        """
        store = self._stores.get(mac)
        if store is None:
            return []
        found: list[bytes] = []
        for connection in store.connections.values():
            ordered = _ordered(connection)
            for kept, stamp in zip(ordered, _stamps(ordered, connection.newest), strict=True):
                found.append(
                    kept.frame
                    if stamp is None
                    else frames.restamped(kept.frame, kept.segment, stamp)
                )
        found += [frame for at_s, frame in store.other if now - at_s <= OTHER_AGE_S]
        self._drop_other(store)
        return found

    def begin(self, mac: str, now: float) -> list[bytes]:
        """What to send first of `released`; the rest follows by `more`."""
        found = self.released(mac, now)
        store = self._stores.get(mac)
        if store is None:
            return found
        store.rest = deque(found)
        store.window = store.room = REPLAY_FIRST
        store.went_on = True
        return self.more(mac)

    def more(self, mac: str) -> list[bytes]:
        """What of the rest may be sent now: as in slow start, two segments for each that is
        acknowledged, and one from `REPLAY_MAX` under way on."""
        store = self._stores.get(mac)
        found: list[bytes] = []
        while store and store.rest and store.room > 0:
            frame = store.rest.popleft()
            if self._wanted(store, frame):
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

    def _wanted(self, store: Store, frame: bytes) -> bool:
        segment = frames.parse(frame)
        connection = store.connections.get(segment.flow) if segment else None
        known = connection.acknowledged if connection else None
        # The last one asks for an acknowledgement, whatever is known.
        if segment is None or known is None or not store.rest:
            return True
        return frames.after(segment.end, known) > 0

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
                while connection.segments and now - connection.segments[0].at_s > age_s:
                    self._drop(store, connection)
                    self.counters["too_old"] += 1
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
            self._drop(store, connection)
            self.counters["overwritten"] += 1
        connection.segments.append(Kept(frame, segment, now))
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

    def _drop(self, store: Store, connection: Connection) -> None:
        kept = connection.segments.popleft()
        connection.seen.discard((kept.segment.sequence, kept.segment.length))
        size = len(kept.frame) + _OVERHEAD
        store.packets -= 1
        store.bytes -= size
        self.bytes -= size

    def _done(self, connection: Connection, kept: Kept) -> bool:
        known = connection.acknowledged
        return known is not None and frames.after(kept.segment.end, known) <= 0

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


def _ordered(connection: Connection) -> list[Kept]:
    kept = list(connection.segments)
    if not kept:
        return []
    first = kept[0].segment.sequence
    kept.sort(key=lambda item: frames.after(item.segment.sequence, first))
    known = connection.acknowledged
    needed = [item for item in kept if known is None or frames.after(item.segment.end, known) > 0]
    # With nothing needed the last is sent, so that the station repeats its acknowledgement.
    return needed or kept[-1:]


def _stamps(ordered: list[Kept], newest: int | None) -> list[int | None]:
    """A timestamp for each, None for segments without any."""
    stamps = [kept.segment.stamp for kept in ordered]
    turn = newest is not None
    order = range(len(stamps) - 1, -1, -1) if turn else range(len(stamps))
    bound: int | None = None
    for at in order:
        stamp = stamps[at]
        if stamp is None:
            continue
        if bound is None or (frames.after(stamp, bound) < 0) == turn:
            bound = stamp
        stamps[at] = bound
        if newest is not None and frames.after(bound, newest) < 0:
            stamps[at] = newest
    return stamps


def _empty(store: Store) -> bool:
    return not store.connections and not store.other
