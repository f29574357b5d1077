"""The agent at an access point: tells the controller what hostapd says of stations.

It attaches to hostapd's control socket (`ctrl_interface` of hostapd.conf) as hostapd_cli does.
hostapd sends `<3>AP-STA-CONNECTED 02:00:00:00:00:01`; after a roam the old access point says
nothing until the station is back, so the controller takes being at B for having left A. What is
said while the controller cannot be reached waits, bounded; when hostapd restarts the agent
attaches again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ropewalk.sdn.host.commands import CommandError, run
from ropewalk.sdn.roam import program
from ropewalk.sdn.roam.events import Notice
from ropewalk.sdn.roam.notices import Client, NoticeError

REPLY_S = 2.0
PING_S = 10.0
RETRY_S = 1.0
RETRY_FIRST_S = 0.05
"""After a failed try beyond the first, which is made at once; it doubles up to `RETRY_S`."""
WAITING_MAX = 1024
DATAGRAM_BYTES_MAX = 4096
_EVENT = re.compile(
    r"^(?:<\d>)?AP-STA-(CONNECTED|DISCONNECTED) ([0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5})(?: |$)"
)

_ENDS = re.compile(rb"^(?:<\d>)?CTRL-EVENT-TERMINATING")

_log = logging.getLogger(__name__)


def read(datagram: bytes) -> tuple[str, bool] | None:
    """The station and whether it has come, in a datagram of hostapd's; None for anything else."""
    found = _EVENT.match(datagram.decode("ascii", errors="replace").strip())
    if found is None:
        return None
    return found[2].lower(), found[1] == "CONNECTED"


NOTHING_READ = (-1, -1)


def counter(bridge: str, port: str = "") -> Callable[[str], tuple[int, int]]:
    """What a bridge has given a station, packets and bytes, for `zwa-adaptive`; -1 when unreadable.

    The count is that of the meter that the controller has put into the station's flow: the flow's
    own is up to half a second late on Open vSwitch. Reading takes a while, in which the station is
    gone already: what the switch sends out of the `port` meanwhile, to whomever, is taken off.
    """

    def count(mac: str) -> tuple[int, int]:
        before = _sent(port)
        flows = f"table={program.FORWARD},dl_dst={mac}"
        ofctl = ["ovs-ofctl", "-O", "OpenFlow13"]
        try:
            meter, found = counted(run([*ofctl, "dump-flows", bridge, flows]))
            if meter is not None:
                found = metered(run([*ofctl, "meter-stats", bridge, f"meter={meter}"]))
        except CommandError as error:
            _log.warning("the counter of %s: %s", mac, error)
            return NOTHING_READ
        if found == NOTHING_READ:
            return found
        meanwhile = [new - old for new, old in zip(_sent(port), before, strict=True)]
        return max(0, found[0] - meanwhile[0]), max(0, found[1] - meanwhile[1])

    return count


def _sent(port: str) -> tuple[int, int]:
    """Packets and bytes that have left by an interface, zero for none that is here."""
    directory = Path("/sys/class/net") / port / "statistics"
    try:
        packets, count = ((directory / f"tx_{name}").read_text() for name in ("packets", "bytes"))
    except OSError:
        return 0, 0
    return int(packets), int(count)


def counted(text: str) -> tuple[int | None, tuple[int, int]]:
    """The meter of the forwarding flow, and packets and bytes that the flow itself has counted, in
    what `ovs-ofctl dump-flows` printed."""
    for line in text.splitlines():
        found = re.search(r"n_packets=(\d+), n_bytes=(\d+)", line)
        if found and f"priority={program.PRIORITY_TO}," in line:
            meter = re.search(r"actions=meter:(\d+)", line)
            return int(meter[1]) if meter else None, (int(found[1]), int(found[2]))
    return None, NOTHING_READ


def metered(text: str) -> tuple[int, int]:
    """Packets and bytes that a meter was given, in what `ovs-ofctl meter-stats` printed."""
    found = re.search(r"packet_in_count:(\d+) byte_in_count:(\d+)", text)
    return (int(found[1]), int(found[2])) if found else NOTHING_READ


class Hostapd:
    """An attached control socket."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when hostapd does not answer there."""
        self._ended = False
        self._directory = tempfile.mkdtemp(prefix="ropewalk-agent-")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(f"{self._directory}/socket")
            self._socket.settimeout(REPLY_S)
            self._socket.connect(str(path))
            self._early: list[bytes] = []
            self._ask(b"ATTACH", b"OK")
        # Ctrl-C too: the socket's directory would stay.
        except BaseException:
            self.close()
            raise

    def events(self) -> list[tuple[str, bool]]:
        """What was said, after at most `PING_S`.

        Raises:
            OSError: when hostapd is gone.
        """
        if self._ended:
            raise OSError("hostapd has ended")
        early, self._early = self._early, []
        if not early:
            self._socket.settimeout(PING_S)
            try:
                early = [self._socket.recv(DATAGRAM_BYTES_MAX)]
            except TimeoutError:
                self._socket.settimeout(REPLY_S)
                self._ask(b"PING", b"PONG")
                return []
        self._ended = any(_ENDS.match(datagram) for datagram in early)
        return [event for datagram in early if (event := read(datagram))]

    def close(self) -> None:
        """Detaches."""
        with contextlib.suppress(OSError):
            self._socket.send(b"DETACH")
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(f"{self._directory}/socket")  # noqa: PTH108 - beside the socket's own text
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)  # noqa: PTH106 - the same

    def _ask(self, question: bytes, answer: bytes) -> None:
        self._socket.send(question)
        for _ in range(WAITING_MAX):
            datagram = self._socket.recv(DATAGRAM_BYTES_MAX)
            if datagram.strip() == answer:
                return
            # Events come on the same socket.
            self._early.append(datagram)
        raise OSError(f"hostapd does not answer {question.decode()}")


class Agent:
    """Passes what hostapd says on to the controller until stopped."""

    def __init__(
        self,
        control: Path,
        controller: tuple[str, int],
        place: tuple[str, str],
        tls: ssl.SSLContext | None = None,
        count: Callable[[str], tuple[int, int]] | None = None,
    ) -> None:
        self._control = control
        self._controller = controller
        self._place = place
        self._tls = tls
        self._count = count
        self._waiting: deque[Notice] = deque(maxlen=WAITING_MAX)
        self._ready = threading.Condition()
        self._stopped = threading.Event()
        self._faulty = False

    def run(self) -> bool:
        """Works until `stop`; False when it ends by a fault of its own, which is logged."""
        teller = threading.Thread(target=self._telling, name="notices", daemon=True)
        teller.start()
        try:
            self._listen()
        finally:
            self.stop()
            # What it is about to log would be cut off.
            teller.join(RETRY_S)
        return not self._faulty

    def stop(self) -> None:
        """Ends `run`, at the latest after `PING_S`."""
        self._stopped.set()
        with self._ready:
            self._ready.notify_all()

    def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                hostapd = Hostapd(self._control)
            except OSError as error:
                _log.warning(
                    "%s: %s; is hostapd running with ctrl_interface?", self._control, error
                )
                self._stopped.wait(RETRY_S)
                continue
            try:
                _log.info("attached to %s", self._control)
                while not self._stopped.is_set():
                    for mac, joined in hostapd.events():
                        self._heard(mac, joined)
            except OSError as error:
                _log.warning("%s: %s", self._control, error)
            finally:
                hostapd.close()
            self._stopped.wait(RETRY_S)

    def _heard(self, mac: str, joined: bool) -> None:
        count = self._count(mac) if self._count and not joined else NOTHING_READ
        with self._ready:
            self._waiting.append(Notice(*self._place, mac, joined, *count))
            self._ready.notify_all()

    def _telling(self) -> None:
        try:
            self._tell()
        # Nobody would hear of stations any more, and whoever started this would not know.
        except Exception:
            _log.exception("the controller is told nothing any more")
            self._faulty = True
            self.stop()

    def _tell(self) -> None:
        client: Client | None = None
        pause = 0.0
        while not self._stopped.is_set():
            with self._ready:
                self._ready.wait_for(
                    lambda: self._waiting or self._stopped.is_set(), timeout=PING_S
                )
                notice = self._waiting[0] if self._waiting else None
            try:
                client = client or Client(self._controller, self._tls)
                client.tell(notice)
            except NoticeError as error:
                _log.error("the controller refused %s: %s", notice, error)
            except (OSError, ValueError) as error:
                _log.warning("the controller at %s:%s: %s", *self._controller, error)
                if client:
                    client.close()
                client = None
                # A station waits, and a controller that has started again is soon there.
                self._stopped.wait(pause)
                pause = min(RETRY_S, max(RETRY_FIRST_S, 2 * pause))
                continue
            pause = 0.0
            with self._ready:
                if notice is not None and self._waiting and self._waiting[0] is notice:
                    self._waiting.popleft()
        if client:
            client.close()
