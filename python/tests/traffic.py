"""Traffic of the example set-ups, between machines that share a clock.

`traffic.py serve` is the internet; the other commands talk to it and print what they saw as JSON:

    download HOST SECONDS [PORT]   bytes of each tenth of a second
    upload HOST BYTES              the bytes that arrived
    call HOST SECONDS              milliseconds until each packet came back, or null; every 20 ms
    video HOST SECONDS MBIT        sends numbered packets to UDP port 9000
    seen HOST                      of the video: number, delay in ms, and when each packet came, s
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import sys
import threading
import time

SOURCE, SINK, VIDEO, SEEN = 5001, 5002, 9000, 5004
"""Ports: TCP that sends, TCP that counts, UDP that notes what comes, TCP that tells it."""
ECHO = 16400
"""UDP that answers, in the range in which many programs place calls."""
CALL_BYTES, CALL_EVERY_S = 172, 0.02
"""As a telephone call with G.711 in RTP."""
VIDEO_BYTES = 1316
"""Seven packets of an MPEG transport stream, as live video is sent."""
SAMPLE_S = 0.1
INTERNET = "192.0.2.1"
"""An address at which the server answers."""
IP_FREEBIND = 15
"""Of Linux; Python has no name for it."""
PATIENCE_S = 20.0

seen: list[tuple[int, float, float]] = []


def _send(connection: socket.socket) -> None:
    with connection:
        try:
            while True:
                connection.sendall(bytes(65536))
        except OSError:
            return


def _count(connection: socket.socket) -> None:
    with connection:
        count = 0
        while data := connection.recv(65536):
            count += len(data)
        connection.sendall(str(count).encode())


def _tell(connection: socket.socket) -> None:
    with connection:
        connection.sendall(json.dumps(seen).encode())
        seen.clear()


def serve() -> None:
    """Answers until it is killed."""

    def accept(port: int) -> None:
        answer = {SOURCE: _send, SINK: _count, SEEN: _tell}[port]
        server = socket.create_server(("0.0.0.0", port), backlog=64)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def video() -> None:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        server.bind(("0.0.0.0", VIDEO))
        while True:
            number, sent = struct.unpack_from("!Id", server.recv(2048))
            now = time.monotonic()
            seen.append((number, round((now - sent) * 1e3, 2), now))

    for port in (SOURCE, SINK, SEEN):
        threading.Thread(target=accept, args=(port,), daemon=True).start()
    threading.Thread(target=video, daemon=True).start()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # Answers come from the address that was asked, also where it is on no interface.
    server.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    server.bind((INTERNET, ECHO))
    while True:
        data, peer = server.recvfrom(2048)
        server.sendto(data, peer)


def connect(host: str, port: int) -> socket.socket:
    """A connection; tries again while there is no way."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), 3)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def download(host: str, seconds: float, port: int = SOURCE) -> list[int]:
    """Bytes of each tenth of a second."""
    connection = connect(host, port)
    begin = time.monotonic()
    samples = [0] * round(seconds / SAMPLE_S)
    while (left := begin + seconds - time.monotonic()) > 0:
        if select.select([connection], [], [], left)[0]:
            data = connection.recv(1 << 18)
            assert data, "the server closed the connection"
            index = int((time.monotonic() - begin) / SAMPLE_S)
            if index < len(samples):
                samples[index] += len(data)
    return samples


def upload(host: str, size: int) -> int:
    """The bytes that arrived, of a file."""
    connection = connect(host, SINK)
    connection.settimeout(60)
    connection.sendall(bytes(size))
    connection.shutdown(socket.SHUT_WR)
    return int(connection.recv(100))


def call(host: str, seconds: float) -> list[float | None]:
    """Milliseconds until each packet came back; none for those that did not within a second."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect((host, ECHO))
    count = round(seconds / CALL_EVERY_S)
    times: list[float | None] = [None] * count
    begin = time.monotonic()
    number, end = 0, begin + seconds + 1
    while (now := time.monotonic()) < end:
        due = begin + number * CALL_EVERY_S
        if number < count and now >= due:
            packet = struct.pack("!Id", number, now).ljust(CALL_BYTES, b"\0")
            # As a telephone does, it goes on with the next packet.
            with contextlib.suppress(OSError):
                sender.send(packet)
            number += 1
            continue
        wait = (due if number < count else end) - now
        if select.select([sender], [], [], max(0.0, wait))[0]:
            try:
                came, sent = struct.unpack_from("!Id", sender.recv(2048))
            except OSError:
                continue
            times[came] = round((time.monotonic() - sent) * 1e3, 2)
    return times


def video(host: str, seconds: float, mbit: float) -> int:
    """Sends packets at an even rate; how many."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    every = VIDEO_BYTES * 8 / (mbit * 1e6)
    count = round(seconds / every)
    begin = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begin + number * every - time.monotonic()))
        packet = struct.pack("!Id", number, time.monotonic()).ljust(VIDEO_BYTES, b"\0")
        with contextlib.suppress(OSError):
            sender.sendto(packet, (host, VIDEO))
    return count


def tell(host: str) -> object:
    """What was seen of the video since the last question."""
    connection = connect(host, SEEN)
    text = b""
    while data := connection.recv(1 << 18):
        text += data
    return json.loads(text)


def main(command: str, *arguments: str) -> None:
    """Runs a command of the list above."""
    if command == "serve":
        serve()
    host, *numbers = arguments
    found: object
    if command == "download":
        found = download(host, float(numbers[0]), *map(int, numbers[1:]))
    elif command == "upload":
        found = upload(host, int(numbers[0]))
    elif command == "call":
        found = call(host, float(numbers[0]))
    elif command == "video":
        found = video(host, float(numbers[0]), float(numbers[1]))
    else:
        found = tell(host)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
