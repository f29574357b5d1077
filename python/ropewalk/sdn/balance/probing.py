"""When idle uplinks are probed for what they carry, and what the answers say.

Pure. A round is a train, or the packets of all sizes one after the other; there is one at a time
over all uplinks, as rounds would disturb each other in the switch and the controller. An answer
counts when it carries the round's token and a number that has left over that way and was not
answered before; all others are ignored. The token is made from the clock: who does not see the
probes has to guess it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ropewalk._native import (
    Rounds,
    several_sizes,
    several_sizes_rate,
    train_rate,
    train_sizes,
)
from ropewalk.sdn.paths.neighbours import Key

BYTES_PER_MINUTE = 550_000
"""For each uplink and direction, IP headers included; a round that would exceed it waits."""
MINUTE_S = 60.0
WAIT_S = 3.0
"""Silence that ends a round."""
LOST_S = 1.0
"""After which the next packet leaves without the answer, where one leaves at a time."""
TOKEN_BYTES = 8
HEADER = struct.Struct(f"!{TOKEN_BYTES}sH")
"""At the start of a probe's payload: token and number."""


@dataclass(frozen=True)
class Method:
    """A way of probing."""

    sizes: Callable[[float | None], Sequence[int]]
    """Bytes of each packet of a round with its IP header, by the rate that is known so far."""
    together: bool
    """Whether they leave back to back; otherwise each after the answer to the one before."""
    rate: Callable[[Sequence[Answer], int], float | None]
    """From the answers and how many packets were sent."""


@dataclass(frozen=True)
class Answer:
    """To a packet of so many bytes with its IP header."""

    size: int
    sent_s: float
    arrived_s: float


METHODS: Mapping[str, Method] = {
    "train": Method(
        train_sizes,
        together=True,
        rate=lambda answers, sent: train_rate([answer.arrived_s for answer in answers], sent),
    ),
    "vps": Method(
        lambda _: several_sizes(),
        together=False,
        rate=lambda answers, _: several_sizes_rate(
            [(answer.size, answer.arrived_s - answer.sent_s) for answer in answers]
        ),
    ),
}
"""By the names in the configuration."""


@dataclass(frozen=True)
class Packet:
    """One that leaves now."""

    key: Key
    token: bytes
    number: int
    size: int
    """Bytes with its IP header."""

    def payload(self, headers: int) -> bytes:
        """What follows `headers` bytes of IP and ICMP."""
        return HEADER.pack(self.token, self.number).ljust(self.size - headers, b"\0")


@dataclass(frozen=True)
class Round:
    """The one under way."""

    key: Key
    token: bytes
    sizes: tuple[int, ...]
    heard_s: float
    """When something left or came last."""
    sent: Mapping[int, float] = field(default_factory=dict)
    answers: Mapping[int, Answer] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """What is known of an uplink."""

    rounds: Rounds = field(default_factory=lambda: Rounds(0.0))
    spent: tuple[tuple[float, int], ...] = ()
    """When rounds began, and their bytes: of the last minute."""


@dataclass(frozen=True)
class Probing:
    """All uplinks."""

    method: Method
    interval_s: float
    """Between rounds after the first ones."""
    round: Round | None = None
    records: Mapping[str, Record] = field(default_factory=dict)


def changed(probing: Probing, uplink: str) -> Probing:
    """An uplink's port came, went or changed: what was found is of another link, perhaps.

    What was spent stays spent.
    """
    former = probing.records.get(uplink, Record())
    records = {**probing.records, uplink: Record(spent=former.spent)}
    is_probed = probing.round is not None and probing.round.key[0] == uplink
    return replace(probing, round=None if is_probed else probing.round, records=records)


def stopped(probing: Probing) -> Probing:
    """The switch is gone, and the round under way with it."""
    return replace(probing, round=None)


def passed(probing: Probing, idle: Sequence[Key], now: float) -> tuple[Probing, list[Packet]]:
    """Time has passed: a round ends or goes on, or one begins over one of the `idle` ways.

    A round of a way that is not idle any more says nothing.
    """
    under_way = probing.round
    if under_way is not None and under_way.key not in idle:
        return _concluded(probing, replace(under_way, answers={}), now), []
    if under_way is not None:
        if _is_over(under_way, probing.method.together, now):
            return _concluded(probing, under_way, now), []
        return continued(probing, now)
    for key in idle:
        record = probing.records.get(key[0], Record())
        spent = tuple(row for row in record.spent if now - row[0] < MINUTE_S)
        room = BYTES_PER_MINUTE - sum(count for _, count in spent)
        sizes = tuple(probing.method.sizes(record.rounds.guess_bps))
        if not record.rounds.is_due(now) or sum(sizes) > room:
            continue
        begun = record.rounds.begun(now, probing.interval_s)
        record = Record(begun, (*spent, (now, sum(sizes))))
        probing = replace(probing, records={**probing.records, key[0]: record})
        return _sent(probing, Round(key, _token(key, now), sizes, now), now)
    return probing, []


def continued(probing: Probing, now: float) -> tuple[Probing, list[Packet]]:
    """The packet after one that was answered, where one leaves at a time."""
    under_way = probing.round
    if under_way is None or probing.method.together or not _is_next_due(under_way, now):
        return probing, []
    return _sent(probing, under_way, now)


def answered(
    probing: Probing, key: Key, payload: bytes, size: int, arrived_s: float
) -> tuple[Probing, bool]:
    """An answer of `size` bytes came over a way; whether it was to a probe of the round."""
    under_way = probing.round
    if under_way is None or under_way.key != key or len(payload) < HEADER.size:
        return probing, False
    token, number = HEADER.unpack_from(payload)
    sent_s = under_way.sent.get(number)
    if token != under_way.token or sent_s is None or number in under_way.answers:
        return probing, False
    # Who answers with less than was asked has carried less back.
    if size < under_way.sizes[number] or arrived_s < sent_s:
        return probing, False
    answer = Answer(under_way.sizes[number], sent_s, arrived_s)
    after = replace(
        under_way,
        heard_s=max(under_way.heard_s, arrived_s),
        answers={**under_way.answers, number: answer},
    )
    return replace(probing, round=after), True


def _sent(probing: Probing, under_way: Round, now: float) -> tuple[Probing, list[Packet]]:
    begin = len(under_way.sent)
    end = len(under_way.sizes) if probing.method.together else begin + 1
    packets = [
        Packet(under_way.key, under_way.token, number, under_way.sizes[number])
        for number in range(begin, end)
    ]
    sent = {**under_way.sent, **dict.fromkeys(range(begin, end), now)}
    return replace(probing, round=replace(under_way, sent=sent, heard_s=now)), packets


def _is_next_due(under_way: Round, now: float) -> bool:
    last = len(under_way.sent) - 1
    if last + 1 == len(under_way.sizes):
        return False
    return last in under_way.answers or now - under_way.sent[last] >= LOST_S


def _is_over(under_way: Round, together: bool, now: float) -> bool:
    if len(under_way.answers) == len(under_way.sizes):
        return True
    unheard = len(under_way.sent) - len(under_way.answers)
    # One after the other: a way that loses many would be asked for a minute and more.
    hopeless = not together and unheard > len(under_way.sizes) // 5
    all_sent = len(under_way.sent) == len(under_way.sizes)
    return hopeless or (all_sent and now - under_way.heard_s >= WAIT_S)


def _concluded(probing: Probing, under_way: Round, now: float) -> Probing:
    uplink = under_way.key[0]
    record = probing.records.get(uplink, Record())
    found = probing.method.rate(list(under_way.answers.values()), len(under_way.sizes))
    record = replace(record, rounds=record.rounds.ended(now, found, probing.interval_s))
    return replace(probing, round=None, records={**probing.records, uplink: record})


def _token(key: Key, now: float) -> bytes:
    made = hashlib.blake2b(repr((key, now)).encode(), digest_size=TOKEN_BYTES)
    return made.digest()
