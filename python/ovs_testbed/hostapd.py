"""A stand-in for hostapd: its control socket, for networks whose air is a cable.

What an agent at an access point sees is hostapd's protocol, not the radio: a real agent attaches
here and is told what hostapd would say. Real hostapd: `python/tests/test_roam_hostapd.py`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class Hostapd:
    """A control socket that answers and speaks as hostapd's; a `deaf` one only hears."""

    def __init__(self, path: Path, *, deaf: bool = False) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._deaf = deaf
        self.asked: list[bytes] = []
        self.attached: list[str] = []
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        answers = {b"ATTACH": b"OK\n", b"DETACH": b"OK\n", b"PING": b"PONG\n"}
        while True:
            try:
                question, peer = self._socket.recvfrom(4096)
            except OSError:
                return
            self.asked.append(question)
            if self._deaf:
                continue
            with contextlib.suppress(OSError):
                self._socket.sendto(answers.get(question, b"UNKNOWN COMMAND\n"), peer)
            if question == b"ATTACH":
                self.attached.append(peer)

    def say(self, text: str) -> None:
        """To all that are attached."""
        for peer in self.attached:
            self._socket.sendto(text.encode(), peer)

    def close(self) -> None:
        """Answers nobody any more."""
        self._socket.close()
