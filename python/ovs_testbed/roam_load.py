"""The ends of one TCP connection, and a station's radio, for the network of `roam`.

receive HOST PORT                            one connection: when how much came, its checksum
send HOST PORT SECONDS CONGESTION            one connection: what TCP_INFO said when, its checksum
radio MAC BRIDGE                             commands on standard input: leave|silent|join PORT
tell PORT                                    notices on standard input, to the controller
flood INTERFACE PACKETS_PER_SECOND SECONDS   frames from ever new senders
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from ropewalk.sdn.roam import frames

EVERY_S = 0.002
END_S = 16.0
"""How long the sender waits for room, and for the receiver to have everything; a timer that has
doubled through a gap of 6 s may take 14."""
_BLOCK = 1 << 16
FORWARDS_S = 5.0
BR_STATE_FORWARDING = "3"
"""include/uapi/linux/if_bridge.h."""


def receive(host: str, port: int) -> dict[str, object]:
    """Times are of CLOCK_MONOTONIC, which namespaces share; SIGTERM ends the wait for more."""
    signal.signal(signal.SIGTERM, _give_up)
    digest, total = hashlib.sha256(), 0
    arrivals: list[tuple[float, int]] = []
    ended = "complete"
    with socket.create_server((host, port), family=_family(host)) as listener:
        try:
            client, _ = listener.accept()
            with client:
                while data := client.recv(_BLOCK):
                    total += len(data)
                    digest.update(data)
                    arrivals.append((round(time.monotonic(), 4), total))
                client.sendall(b"done")
        except TimeoutError:
            ended = "hung"
        except OSError as error:
            ended = type(error).__name__
    return {"bytes": total, "sha256": digest.hexdigest(), "arrivals": arrivals, "ended": ended}


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _give_up(*_: object) -> None:
    raise TimeoutError


def send(host: str, port: int, seconds: float, congestion: str) -> dict[str, object]:
    """Samples are (time, segments, acknowledged bytes, window, retransmitted segments)."""
    block = random.Random(2).randbytes(_BLOCK + 251)
    digest, total, ended = hashlib.sha256(), 0, "complete"
    samples: list[tuple[float, int, int, int, int]] = []
    stop = threading.Event()
    with socket.socket(_family(host)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        client.settimeout(END_S)
        client.connect((host, port))
        sampler = threading.Thread(target=_sample, args=(client, samples, stop))
        sampler.start()
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                start = total % 251
                sent = client.send(block[start : start + 4096])
                digest.update(block[start : start + sent])
                total += sent
            client.shutdown(socket.SHUT_WR)
            client.settimeout(END_S)
            if client.recv(4) != b"done":
                ended = "cut"
        except TimeoutError:
            ended = "hung"
        except OSError as error:
            ended = type(error).__name__
        ended_s = time.monotonic()
        stop.set()
        sampler.join()
    found = {"bytes": total, "sha256": digest.hexdigest(), "samples": samples}
    return {**found, "ended": ended, "ended_s": ended_s}


def _sample(
    client: socket.socket, samples: list[tuple[float, int, int, int, int]], stop: threading.Event
) -> None:
    last: tuple[int, ...] = ()
    while not stop.wait(EVERY_S):
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 168)
        (cwnd,) = struct.unpack_from("=I", info, 80)
        (again,) = struct.unpack_from("=I", info, 100)
        (acked,) = struct.unpack_from("=Q", info, 120)
        (segments,) = struct.unpack_from("=I", info, 156)
        now = (segments, acked, cwnd, again)
        if now != last:
            samples.append((round(time.monotonic(), 4), *now))
            last = now


def radio(mac: str, bridge: str) -> None:
    """`leave` takes the link down, `silent` only stops hearing; `join` says so with an XID frame.

    Each command is answered with its time. The bridge is the station's interface: the members are
    its associations, of which there is one at most.
    """
    for line in sys.stdin:
        command, interface = line.split()
        match command:
            case "leave":
                at_s = time.monotonic()
                _ip("link", "set", interface, "down")
                _ip("link", "set", interface, "nomaster")
            case "silent":
                at_s = time.monotonic()
                _ip("link", "set", interface, "nomaster")
            case _:
                _ip("link", "set", interface, "master", bridge)
                _ip("link", "set", interface, "up")
                _forwards(interface)
                with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
                    raw.bind((interface, 0))
                    at_s = time.monotonic()
                    raw.send(frames.xid(mac))
        print(at_s, flush=True)


def _forwards(member: str) -> None:
    """Waits until the bridge takes frames from its member.

    A worker of the kernel sees to that after `up`. What comes earlier is lost, and no station says
    that it is there before it can hear.
    """
    state = Path(f"/sys/class/net/{member}/brport/state")
    until = time.monotonic() + FORWARDS_S
    while state.read_text().strip() != BR_STATE_FORWARDING:
        if time.monotonic() > until:
            raise TimeoutError(f"{member} does not forward after {FORWARDS_S} s")
        time.sleep(0.0002)


def tell(port: int) -> None:
    """Each line is a notice as agents write them; answered with a line when it was taken."""
    for line in sys.stdin:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(line.encode())
            print(client.makefile().readline().strip(), flush=True)


def flood(interface: str, rate: float, seconds: float) -> dict[str, object]:
    """Each frame is from another sender."""
    began = time.monotonic()
    sent = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((interface, 0))
        while (now := time.monotonic() - began) < seconds:
            while sent < now * rate:
                source = b"\x06" + (sent & 0xFF_FFFF_FFFF).to_bytes(5)
                raw.send(b"\xff" * 6 + source + b"\x08\x00" + bytes(50))
                sent += 1
            time.sleep(0.001)
    return {"sent": sent, "per_s": round(sent / seconds)}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main(words: list[str]) -> None:
    """Runs what the words say and prints its report as JSON."""
    match words:
        case ["receive", host, port]:
            print(json.dumps(receive(host, int(port))))
        case ["send", host, port, seconds, congestion]:
            print(json.dumps(send(host, int(port), float(seconds), congestion)))
        case ["radio", mac, bridge]:
            radio(mac, bridge)
        case ["tell", port]:
            tell(int(port))
        case ["flood", interface, rate, seconds]:
            print(json.dumps(flood(interface, float(rate), float(seconds))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
