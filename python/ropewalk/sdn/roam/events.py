"""What the policy of roaming is told besides the events of switches."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.sdn.openflow.events import At, Tick


@dataclass(frozen=True)
class Notice:
    """An access point says that a station has come (`joined`) or gone.

    `packets` and `bytes` are what had been given to it when it went, by its flow's meter or by the
    flow itself; -1 when that was not read.
    """

    switch: str
    port: str
    mac: str
    joined: bool
    packets: int = -1
    bytes: int = -1


@dataclass(frozen=True)
class Release:
    """What came before a station's arrival has been read: now send it what was kept."""

    mac: str


Own = Notice | Release
Event = At | Tick | Own
