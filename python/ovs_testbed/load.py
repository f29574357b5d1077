"""Loads for the experiments, one short program for each namespace; standard library only.

serve-tcp HOST PORT                 tells each client its address, then echoes
serve-udp HOST PORT                 tells each client its address for each datagram
connect HOST PORT COUNT [GAP_S]     TCP connections one by one: set-up times, addresses seen
flows HOST PORT COUNT RATE          UDP flows of one datagram each, at a rate: answers, addresses
steady HOST PORT SECONDS            one TCP connection, a message every 50 ms
steady-udp HOST PORT SECONDS        the same by UDP
flood HOST PORT SECONDS             one TCP connection that carries 20 Mbit/s there and back
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

EVERY_S = 0.05
TIMEOUT_S = 3.0
OPEN_MAX = 1000
FLOOD_BPS = 20e6


def serve_tcp(host: str, port: int) -> None:
    """Until the end of the process."""
    with socket.create_server((host, port), family=_family(host), backlog=4096) as listener:
        while True:
            client, address = listener.accept()
            threading.Thread(target=_echo, args=(client, address[0]), daemon=True).start()


def _echo(client: socket.socket, address: str) -> None:
    with contextlib.suppress(OSError), client:
        client.sendall(f"{address}\n".encode())
        while data := client.recv(4096):
            client.sendall(data)


def serve_udp(host: str, port: int) -> None:
    """Until the end of the process."""
    with socket.socket(_family(host), socket.SOCK_DGRAM) as server:
        server.bind((host, port))
        while True:
            _, address = server.recvfrom(2048)
            with contextlib.suppress(OSError):
                server.sendto(address[0].encode(), address)


def connect(host: str, port: int, count: int, gap_s: float) -> dict[str, object]:
    """Set-up times are from connect() to its return; `again_ms` is one exchange afterwards."""
    times, again, seen = [], [], Counter[str]()
    for _ in range(count):
        began = time.perf_counter()
        with contextlib.suppress(OSError):
            client = socket.create_connection((host, port), timeout=TIMEOUT_S)
            times.append(1e3 * (time.perf_counter() - began))
            with client:
                seen[client.recv(64).decode().strip()] += 1
                began = time.perf_counter()
                client.sendall(b"x")
                client.recv(1)
                again.append(1e3 * (time.perf_counter() - began))
        time.sleep(gap_s)
    row: dict[str, object] = {"connected": len(times), "of": count, "by": seen}
    if times:
        row |= {
            "setup_ms_median": _quantile(times, 0.5),
            "setup_ms_p99": _quantile(times, 0.99),
            "again_ms_median": _quantile(again, 0.5),
        }
        added = sorted(a - b for a, b in zip(times, again, strict=False))
        row |= {
            "added_ms_median": _quantile(added, 0.5),
            "added_ms_p99": _quantile(added, 0.99),
        }
    return row


def flows(host: str, port: int, count: int, rate: float) -> dict[str, object]:
    """Each flow has a socket of its own; an answer within `TIMEOUT_S` counts."""
    seen = Counter[str]()
    under_way: dict[int, tuple[socket.socket, float]] = {}
    began = time.perf_counter()
    late = sent = 0

    def collect(wait_s: float) -> None:
        ready, _, _ = select.select([row[0] for row in under_way.values()], [], [], wait_s)
        for client in ready:
            under_way.pop(client.fileno())
            with contextlib.suppress(OSError):
                seen[client.recv(64).decode()] += 1
            client.close()

    while sent < count or under_way:
        now = time.perf_counter()
        while sent < count and now >= began + sent / rate and len(under_way) < OPEN_MAX:
            client = socket.socket(_family(host), socket.SOCK_DGRAM)
            client.connect((host, port))
            client.send(b"x")
            under_way[client.fileno()] = (client, now)
            sent += 1
        collect(0.001)
        for number in [n for n, (_, at) in under_way.items() if now - at > TIMEOUT_S]:
            under_way.pop(number)[0].close()
            late += 1
    seconds = time.perf_counter() - began
    return {"answered": sum(seen.values()), "of": count, "lost": late, "by": seen,
            "rate": round(count / seconds, 1)}  # fmt: skip


def steady(host: str, port: int, seconds: float) -> dict[str, object]:
    """How many messages came back, the longest wait for one, and whether there was a reset."""
    with socket.create_connection((host, port), timeout=seconds) as client:
        address = client.recv(64).decode().strip()

        def exchange() -> None:
            client.sendall(b"x" * 100)
            client.recv(4096)

        return {"address": address, **_exchange(exchange, seconds)}


def steady_udp(host: str, port: int, seconds: float) -> dict[str, object]:
    """The same by UDP; a datagram unanswered for 0.2 s is sent again."""
    with socket.socket(_family(host), socket.SOCK_DGRAM) as client:
        client.settimeout(0.2)
        client.connect((host, port))
        seen = Counter[str]()

        def exchange() -> None:
            client.send(b"x")
            with contextlib.suppress(TimeoutError):
                seen[client.recv(64).decode()] += 1

        return {"by": seen, **_exchange(exchange, seconds)}


def flood(host: str, port: int, seconds: float) -> dict[str, object]:
    """Bytes that came back."""
    end = time.monotonic() + seconds
    received = 0
    with socket.create_connection((host, port), timeout=seconds) as client:
        client.recv(64)
        while time.monotonic() < end:
            client.sendall(b"x" * 4096)
            received += len(client.recv(65_536))
            time.sleep(8 * 4096 / FLOOD_BPS)
    return {"bytes": received}


def _exchange(exchange: Callable[[], None], seconds: float) -> dict[str, object]:
    end = time.monotonic() + seconds
    done, longest = 0, 0.0
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            exchange()
        except ConnectionResetError:
            return {"exchanges": done, "longest_s": round(longest, 3), "ended": "reset"}
        except OSError as error:
            return {"exchanges": done, "longest_s": round(longest, 3), "ended": str(error)}
        longest = max(longest, time.monotonic() - began)
        done += 1
        time.sleep(EVERY_S)
    return {"exchanges": done, "longest_s": round(longest, 3), "ended": "complete"}


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def main(words: list[str]) -> None:
    """Runs what the words say and prints its report as JSON."""
    match words:
        case ["serve-tcp", host, port]:
            serve_tcp(host, int(port))
        case ["serve-udp", host, port]:
            serve_udp(host, int(port))
        case ["connect", host, port, count, *gap]:
            gap_s = float(gap[0]) if gap else 0.0
            print(json.dumps(connect(host, int(port), int(count), gap_s)))
        case ["flows", host, port, count, rate]:
            print(json.dumps(flows(host, int(port), int(count), float(rate))))
        case ["steady", host, port, seconds]:
            print(json.dumps(steady(host, int(port), float(seconds))))
        case ["flood", host, port, seconds]:
            print(json.dumps(flood(host, int(port), float(seconds))))
        case ["steady-udp", host, port, seconds]:
            print(json.dumps(steady_udp(host, int(port), float(seconds))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
