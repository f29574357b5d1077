"""Parts of the tests of roaming: frames, a configuration, and switches that only remember."""

import socket
import struct
from collections import Counter
from pathlib import Path

from ropewalk.sdn import packets
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import At
from ropewalk.sdn.openflow.program import Flow, FlowMod, Output, PacketOut, Program, apply
from ropewalk.sdn.roam import config, frames, policy, program, state
from ropewalk.sdn.roam.events import Event, Notice, Release

MAC = "02:00:00:00:00:64"
HOST_MAC = "02:00:00:00:00:02"
STATION, HOST = "10.0.0.100", "10.0.0.2"


def data_frame(
    sequence: int,
    length: int,
    *,
    stamp: int = 100,
    echo: int = 50,
    flags: int = 0x18,
    acknowledged: int = 9000,
    reverse: bool = False,
    odd: bool = False,
    selected: tuple[tuple[int, int], ...] = (),
    port: int = 40000,
) -> bytes:
    """A TCP segment from the host to the station, or back."""
    macs, ends, ports = (HOST_MAC, MAC), (HOST, STATION), (port, 5001)
    if reverse:
        macs, ends, ports = macs[::-1], ends[::-1], ports[::-1]
    stamps = struct.pack("!BBII", 8, 10, stamp, echo)
    options = b"\x01" + stamps + b"\x01" if odd else b"\x01\x01" + stamps
    if selected:
        numbers = b"".join(struct.pack("!II", *block) for block in selected)
        options += b"\x01\x01" + bytes((5, 2 + len(numbers))) + numbers
    offset = (20 + len(options)) << 2
    tcp = struct.pack(
        "!HHIIBBHHH", *ports, sequence % 2**32, acknowledged % 2**32, offset, flags, 500, 0, 0
    )
    tcp += options + bytes(n % 251 for n in range(length))
    addresses = socket.inet_aton(ends[0]) + socket.inet_aton(ends[1])
    checksum = _sum(addresses + struct.pack("!BBH", 0, 6, len(tcp)) + tcp) ^ 0xFFFF
    tcp = tcp[:16] + struct.pack("!H", checksum) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0x4000, 64, 6, 0) + addresses
    ip = ip[:10] + struct.pack("!H", _sum(ip) ^ 0xFFFF) + ip[12:]
    return _mac(macs[1]) + _mac(macs[0]) + b"\x08\x00" + ip + tcp


def over_ipv6(frame: bytes) -> bytes:
    """The same segment between IPv6 addresses."""
    tcp = frame[34:50] + bytes(2) + frame[52:]
    ends = (packets.mac(frame[26:30]), packets.mac(frame[30:34]))
    source, target = (f"fd00::{end.replace(':', '')[-4:]}" for end in ends)
    checksum = packets.sum_of(packets.pseudo((source, target), 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", checksum) + tcp[18:]
    macs = (packets.mac(frame[6:12]), packets.mac(frame[:6]))
    return packets.framed(macs, (source, target), 6, tcp)


def tcp_checksum_right(frame: bytes) -> bool:
    """Whether the receiver would take the segment (RFC 9293 section 3.1)."""
    if frame[12:14] == b"\x86\xdd":
        tcp = frame[54:]
        return _sum(frame[22:54] + struct.pack("!II", len(tcp), 6) + tcp) == 0xFFFF
    total = int.from_bytes(frame[16:18])
    tcp = frame[34 : 14 + total]
    return _sum(frame[26:34] + struct.pack("!BBH", 0, 6, len(tcp)) + tcp) == 0xFFFF


def _sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def configuration(directory: Path, scheme: str = "replay", extra: str = "") -> config.Config:
    """Two access points on one switch, with a host at it."""
    path = directory / "roam.toml"
    path.write_text(
        f'mode = "roam"\n[roam]\nscheme = "{scheme}"\n{extra}\n'
        '[[switch]]\nname = "ap1"\ndatapath_id = "0000000000000001"\naccess = ["air1"]\n'
        '[[switch]]\nname = "ap2"\ndatapath_id = "0000000000000002"\naccess = ["air2"]\n'
        '[[switch]]\nname = "s1"\ndatapath_id = "0000000000000003"\nhosts = ["host"]\n'
        '[[link]]\na = "ap1:up1"\nb = "s1:down1"\n[[link]]\na = "ap2:up2"\nb = "s1:down2"\n'
    )
    return config.read(path)


PORTS = {
    "ap1": {"air1": 1, "up1": 2},
    "ap2": {"air2": 1, "up2": 2},
    "s1": {"host": 1, "down1": 2, "down2": 3},
}


OFPP_TABLE = 0xFFFF_FFF9


class Network:
    """The policy with switches that keep what they are sent, and count in table 0."""

    def __init__(self, directory: Path, scheme: str = "replay", extra: str = "") -> None:
        self.config = configuration(directory, scheme, extra)
        self.now = 0.0
        self.state = policy.begin(self.config)
        self.programs = dict.fromkeys(PORTS, Program())
        self.sent: list[tuple[str, PacketOut]] = []
        self.counts: Counter[tuple[str, object]] = Counter()
        self.telling: set[tuple[str, object]] = set()
        """Flows that are to tell what they have counted when they go."""
        for name in PORTS:
            self.connect(name)

    def connect(self, name: str) -> None:
        """The switch connects, with what it has."""
        ports = tuple(
            events.Port(number, port, f"0a:00:00:00:00:{number:02x}", True)
            for port, number in PORTS[name].items()
        )
        self.tell(At(name, events.Connected(ports, self.programs[name])))

    def restart(self) -> None:
        """A new controller without any memory."""
        self.state = policy.begin(self.config)

    def tell(self, event: Event) -> list[tuple[str, PacketOut]]:
        """What packets an event sends."""
        self.state, out = policy.step(self.state, event, self.now)
        packets = []
        removed: list[At] = []
        for name, message in out:
            if isinstance(message, PacketOut):
                packets.append((name, message))
                if message.actions == (Output(OFPP_TABLE),):
                    self._count(name, message.in_port, message.data)
            if isinstance(message, FlowMod):
                assert all(value is not None for _, value in message.flow.match)
                removed += self._changed(name, message)
            self.programs[name] = apply(self.programs[name], [message])
        self.sent += packets
        asked = self.state.asked
        for told in removed:
            packets += self.tell(told)
        for mac in asked:
            packets += self.tell(Release(mac))
        return packets

    def _changed(self, name: str, message: FlowMod) -> list[At]:
        """What a switch tells when a flow of table 0 goes; keeps track of who is to tell."""
        flow, key = message.flow, (name, message.flow.key)
        there = any(other.key == flow.key for other in self.programs[name].flows)
        if not message.remove:
            (self.telling.add if message.tell else self.telling.discard)(key)
            return []
        count = self.counts.pop(key, 0)
        if not there or key not in self.telling or flow.table != program.CLASSIFY:
            return []
        self.telling.discard(key)
        return [At(name, events.FlowRemoved(flow.table, flow.match, count, 0))]

    def _count(self, name: str, port: int, data: bytes) -> Flow | None:
        """The flow of table 0 that takes a frame of a known sender, counted."""
        found = frames.ends(data)
        wanted = {"in_port": port, "eth_src": found[0] if found else ""}
        flows = (flow for flow in self.programs[name].flows if flow.table == program.CLASSIFY)
        known = max(
            (flow for flow in flows if dict(flow.match) == wanted),
            key=lambda flow: flow.priority,
            default=None,
        )
        if known is not None:
            self.counts[(name, known.key)] += 1
        return known

    def says(self, name: str, data: bytes, port: int = 1) -> None:
        """A frame comes in at a port: known senders are counted, others asked about."""
        if self._count(name, port, data) is None:
            self.packet(name, program.CLASSIFY, data, port)

    def pass_time(self, seconds: float, every: float = 1.0) -> None:
        """Ticks, for so long."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + every)
            self.tell(events.Tick())

    def packet(
        self, name: str, table: int, data: bytes, port: int = 1
    ) -> list[tuple[str, PacketOut]]:
        """A packet-in."""
        return self.tell(At(name, events.PacketIn(port, table, data, len(data))))

    def join(self, name: str, port: str = "") -> list[tuple[str, PacketOut]]:
        """The access point says that the station has come."""
        return self.tell(Notice(name, port or f"air{name[-1]}", MAC, True))

    def leave(self, name: str, given: int = -1) -> list[tuple[str, PacketOut]]:
        """The access point says that it has gone."""
        return self.tell(Notice(name, f"air{name[-1]}", MAC, False, bytes=given))

    def host(self) -> None:
        """The host is seen."""
        self.packet("s1", program.CLASSIFY, data_frame(1, 0))

    def outputs(self, name: str) -> dict[str, tuple[object, ...]]:
        """Actions of the forwarding flows by receiver and, for what turns round, port."""
        return {
            ",".join(f"{key}={value}" for key, value in flow.match): flow.actions
            for flow in self.programs[name].flows
            if flow.table == program.FORWARD
        }

    def counter(self, name: str) -> int:
        """A counter of the report."""
        counters = state.report(self.state, self.now)["counters"]
        assert isinstance(counters, dict)
        return int(counters.get(name, 0))


def sequences(packets: list[tuple[str, PacketOut]]) -> list[int]:
    """The sequence numbers of TCP segments among packets."""
    return [segment.sequence for _, packet in packets if (segment := frames.parse(packet.data))]
