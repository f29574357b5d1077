"""What the tests of `ropewalk.sdn` share: configurations, and a fake switch for pure policies."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ropewalk.sdn import packets, resolution
from ropewalk.sdn.config import Config, read
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.events import Port
from ropewalk.sdn.openflow.program import (
    Flow,
    FlowMod,
    GroupMod,
    Message,
    PacketOut,
    Program,
    apply,
)

APP_MAC = "0a:00:00:00:00:01"


def uplink_mac(number: int) -> str:
    """The bridge's side of an uplink."""
    return f"0a:00:00:00:01:{number:02x}"


def gateway_mac(number: int) -> str:
    """The other side of it."""
    return f"0a:00:00:00:02:{number:02x}"


def bicast(
    directory: Path,
    more: str = "",
    uplinks: int = 2,
    probe: str = "",
    versions: tuple[int, ...] = (4,),
) -> Config:
    """A configuration of mode `bicast`."""
    rows = "".join(
        f'[[uplink]]\nname = "w{n}"\n'
        f"address = {_listed(versions, f'10.{n}.0.1/24', f'fd0{n}::1/64')}\n"
        f"peer = {_listed(versions, f'10.{n}.0.2', f'fd0{n}::2')}\n"
        for n in range(uplinks)
    )
    return write(
        directory,
        'mode = "bicast"\n[application]\n'
        f"address = {_listed(versions, '10.99.0.1/24', 'fd99::1/64')}\n"
        f"peer = {_listed(versions, '10.99.0.2', 'fd99::2')}\n"
        f"{rows}[probe]\n{probe}\n[bicast]\n{more}",
    )


def balance(
    directory: Path,
    more: str = "",
    weights: tuple[float, ...] = (3, 1),
    versions: tuple[int, ...] = (4,),
) -> Config:
    """A configuration of mode `balance`."""
    rows = "".join(
        f'[[uplink]]\nname = "w{n}"\n'
        f"address = {_listed(versions, f'10.{n}.0.1/24', f'fd0{n}::1/64')}\n"
        f"gateway = {_listed(versions, f'10.{n}.0.2', f'fe80::{n}')}\n"
        f"weight = {weight}\n"
        for n, weight in enumerate(weights)
    )
    return write(
        directory,
        'mode = "balance"\n[application]\n'
        f"address = {_listed(versions, '10.98.0.2/24', 'fd98::2/64')}\n"
        f"gateway = {_listed(versions, '10.98.0.1', 'fd98::1')}\n"
        f"{rows}[balance]\n{more}",
    )


def _listed(versions: tuple[int, ...], *texts: str) -> str:
    """TOML: one address, or a list of both families'."""
    chosen = [f'"{texts[0 if version == 4 else 1]}"' for version in versions]
    return chosen[0] if len(chosen) == 1 else f"[{', '.join(chosen)}]"


def write(directory: Path, text: str) -> Config:
    """Writes and reads a configuration."""
    path = directory / "sdn.toml"
    path.write_text(text)
    return read(path)


class FakeSwitch:
    """Applies what a policy sends to a flow table of its own; answers questions for addresses and
    reflects probes, in both address families."""

    def __init__(
        self,
        policy: Any,  # noqa: ANN401 - either policy
        config: Config,
        present: Program | None = None,
        silent: set[int] | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.state = policy.begin(config)
        self.now = 100.0
        self.program = present or Program()
        self.sent: list[Message] = []
        self.silent = silent or set()
        self.host_mac = APP_MAC
        self.lossy: dict[int, int] = {}
        self.silent_versions: set[tuple[int, int]] = set()
        self._probes = 0
        ports = [Port(1, config.application.port, "0a:00:00:00:00:ff", True)]
        for number, uplink in enumerate(config.uplinks):
            ports.append(Port(2 + number, uplink.name, uplink_mac(number), True))
        self.ports = tuple(ports)
        self.tell(events.Connected(self.ports, self.program))

    def tell(self, event: object) -> list[Message]:
        """One step; its messages take effect."""
        self.state, messages = self.policy.step(self.state, event, self.now)
        self.program = apply(self.program, messages)
        self.sent += messages
        for message in messages:
            if isinstance(message, PacketOut):
                self._packet_out(message)
        return list(messages)

    def run(self, seconds: float) -> None:
        """Time passes."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            self.tell(events.Tick())

    def mods(self) -> list[Message]:
        """The changes of the program that were sent since the last call."""
        mods: list[Message] = [
            message for message in self.sent if isinstance(message, FlowMod | GroupMod)
        ]
        self.sent = []
        return mods

    def flows(self, table: int, **fields: object) -> list[Flow]:
        """The flows of a table whose match has these fields."""
        wanted = set(fields.items())
        return [
            flow for flow in self.program.flows if flow.table == table and wanted <= set(flow.match)
        ]

    def _packet_out(self, message: PacketOut) -> None:
        if len(message.actions) != 1 or not hasattr(message.actions[0], "port"):
            return
        port = message.actions[0].port
        if port in self.silent:
            return
        asked = resolution.parse(message.data)
        packet = packets.parse(message.data)
        if packet is not None and (port, ip_address(packet.source).version) in self.silent_versions:
            return
        if isinstance(asked, resolution.Question):
            mac = self.host_mac if port == 1 else gateway_mac(port - 2)
            reply = resolution.answer(mac, asked.target, asked)
            self.tell(events.PacketIn(port, 0, reply, len(reply)))
        elif asked is None and packet is not None and port != 1:
            self._reflect(port, packet)

    def _reflect(self, port: int, packet: packets.Ip) -> None:
        self._probes += 1
        every = self.lossy.get(port)
        if every and self._probes % every < 2:
            return
        macs = (packet.target_mac, packet.source_mac)
        ends = (packet.target, packet.source)
        if packet.protocol == packets.UDP:
            ports = (packet.target_port, packet.source_port)
            frame = packets.udp(macs, ends, ports, packet.payload)
        else:
            frame = packets.echo_request(macs, ends, packet.target_port, packet.payload)
        self.tell(events.PacketIn(port, 0, frame, len(frame)))
