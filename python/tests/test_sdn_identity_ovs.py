"""Certificates that are exchanged between real switches, agents and controllers; needs root.

Two machines have an Open vSwitch each, and reach the controllers over a network of their own.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ovs_testbed.hostapd import Hostapd
from ovs_testbed.links import veth
from ovs_testbed.machine import Machine, Sandbox, inside, run, stop, wait
from ropewalk.sdn.api import ask
from ropewalk.sdn.host import certificates
from ropewalk.sdn.host.certificates import Holder

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run `make test` as root"),
]

MAC = "02:00:00:00:00:07"
CONTROLLERS = ("10.7.0.1", "10.7.0.2")
FLOOD_S = 3
MEMORY_KIB_MAX = 64 << 10
TOLD_S_MAX = 1.0
SERVES = """\
import socket, ssl, sys
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=sys.argv[1])
context.load_cert_chain(sys.argv[2] + ".crt", sys.argv[2] + ".key")
context.verify_mode = ssl.CERT_REQUIRED
with socket.create_server((sys.argv[3], 6699)) as server:
    server.settimeout(20)
    client, _ = server.accept()
    client.settimeout(5)
    try:
        with context.wrap_socket(client, server_side=True) as tls:
            print("greeted" if tls.recv(8)[1:2] == b"\\0" else "nothing")
    except OSError as error:
        print(error)
"""
FLOODS = """\
import socket, ssl, sys, threading, time
said, flood = bytes.fromhex(sys.argv[4]), bytes.fromhex(sys.argv[5])
context = ssl.create_default_context(cafile=sys.argv[1])
context.load_cert_chain(sys.argv[2] + ".crt", sys.argv[2] + ".key")
plain = socket.create_connection((sys.argv[3], 6653))
with context.wrap_socket(plain, server_hostname=sys.argv[3]) as tls:
    tls.sendall(said)
    time.sleep(0.5)
    end, count = time.monotonic() + float(sys.argv[6]), 0
    many = flood * 200
    while time.monotonic() < end:
        tls.sendall(many)
        count += 200
print(count)
"""


class Net:
    """Two switches and their controllers; `ends` are the machines by the names of the switches."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.control = sandbox.namespace("ctl")
        self.ends = {name: sandbox.machine(name) for name in ("ap1", "ap2")}
        for address in CONTROLLERS:
            run("ip", "-n", self.control, "addr", "add", f"{address}/32", "dev", "lo")
        for number, machine in enumerate(self.ends.values(), 1):
            veth(f"{self.control}:m{number}", f"{machine.namespace}:mgmt")
            veth(f"{machine.namespace}:air{number}", f"{machine.namespace}:sta{number}")
            near, far = f"10.7.{number}.1", f"10.7.{number}.2"
            run("ip", "-n", self.control, "addr", "add", f"{near}/24", "dev", f"m{number}")
            run("ip", "-n", machine.namespace, "addr", "add", f"{far}/24", "dev", "mgmt")
            for address in CONTROLLERS:
                run("ip", "-n", machine.namespace, "route", "add", address, "via", near)
        first, second = (machine.namespace for machine in self.ends.values())
        veth(f"{first}:up1", f"{second}:up2")
        self.keys = sandbox.directory / "tls"
        # The command of the documentation makes the certificates, for each controller.
        for rank in (1, 2):
            path = self.configuration(f"controller{rank}", rank, self.control)
            done = self.sdn(self.control, path, "certificates", str(self.keys))
            assert f"controller{rank}.crt" in done
        self.odd_certificates()
        self.controllers: dict[int, subprocess.Popen[Any]] = {}
        for name, machine in self.ends.items():
            path = self.configuration(name, 1, machine.namespace, machine)
            self.sdn(machine.namespace, path, "setup", "--only", name)

    def odd_certificates(self) -> None:
        certificates.made(self.keys, [Holder("nameless", ()), certificates.switch("also", [1])])
        certificates.made(self.keys, [certificates.switch("expired", [1])], days=-1)
        other = [certificates.switch("switch-ap1", [1]), certificates.agent("agent-ap1", ["ap1"])]
        certificates.made(self.keys / "elsewhere", other)

    def configuration(
        self, name: str, rank: int, namespace: str, machine: Machine | None = None
    ) -> Path:
        own, other = CONTROLLERS[rank - 1], CONTROLLERS[2 - rank]
        here = self.sandbox.directory
        database = machine.database if machine else f"unix:{here}/none.sock"
        keys = f'switch_key = "{self.keys}/switch-{name}.key"\n'
        keys += f'switch_certificate = "{self.keys}/switch-{name}.crt"\n'
        text = (
            f'mode = "roam"\ndatabase = "{database}"\nsocket = "{self.socket(rank)}"\n'
            f'state_dir = "{here}/{namespace}-state"\n'
            f'[roam]\nscheme = "bare"\nframes = false\nnotices = "{own}:6654"\n'
            f'[controller]\nlisten = "{own}:6653"\nothers = ["{other}:6653"]\nrank = {rank}\n'
            f'[controller.tls]\nkey = "{self.keys}/controller{rank}.key"\n'
            f'certificate = "{self.keys}/controller{rank}.crt"\n'
            f'authority = "{self.keys}/authority.crt"\n{keys if machine else ""}'
        )
        for number in (1, 2):
            text += f'[[switch]]\nname = "ap{number}"\ndatapath_id = "{number:016x}"\n'
            text += f'access = ["air{number}"]\n'
        text += '[[link]]\na = "ap1:up1"\nb = "ap2:up2"\n'
        path = here / f"{name}.toml"
        path.write_text(text)
        return path

    def socket(self, rank: int) -> Path:
        return self.sandbox.directory / f"api{rank}.sock"

    def sdn(self, namespace: str, path: Path, *arguments: str) -> str:
        command = [sys.executable, "-m", "ropewalk.sdn", "--config", str(path), *arguments]
        return inside(namespace, *command, seconds=60)

    def start(self, rank: int) -> None:
        path = self.sandbox.directory / f"controller{rank}.toml"
        command = [sys.executable, "-m", "ropewalk.sdn", "--config", str(path), "run"]
        self.controllers[rank] = self.sandbox.start(
            self.control, *command, log=f"controller{rank}.log"
        )

    def says(self, rank: int = 1) -> dict[str, Any]:
        return ask(self.socket(rank))

    def counter(self, name: str, rank: int = 1) -> int:
        return int(self.says(rank)["counters"].get(name, 0))

    def connected(self, rank: int = 1) -> set[str]:
        return {row["name"] for row in self.says(rank)["switches"] if row["connected"]}

    def log(self, rank: int = 1) -> str:
        return (self.sandbox.directory / f"controller{rank}.log").read_text()

    def become(
        self, name: str, certificate: str, datapath: int, to: str = f"{CONTROLLERS[0]}:6653"
    ) -> None:
        """A machine's switch gets a certificate and a datapath number, and connects anew."""
        machine, files = self.ends[name], f"{self.keys}/{certificate}"
        vsctl = ["ovs-vsctl", f"--db={machine.database}", "--timeout=10"]
        machine.run(*vsctl, "del-controller", name)
        ssl = ["set-ssl", f"{files}.key", f"{files}.crt", f"{self.keys}/authority.crt"]
        number = f"other_config:datapath-id={datapath:016x}"
        machine.run(*vsctl, *ssl, "--", "set", "bridge", name, number)
        machine.run(*vsctl, "set-controller", name, f"ssl:{to}")
        every = ["connection_mode=out-of-band", "max_backoff=1000"]
        machine.run(*vsctl, "set", "controller", name, *every)

    def as_set_up(self) -> None:
        for number, name in enumerate(self.ends, 1):
            self.become(name, f"switch-{name}", number)
        wait(lambda: self.connected() == {"ap1", "ap2"}, "not both switches came back")


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with Sandbox("ropewalk-ovs-test-identity-") as sandbox:
        net = Net(sandbox)
        net.start(1)
        wait(lambda: net.connected() == {"ap1", "ap2"}, "the switches did not connect")
        yield net


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        ("switch-ap2", "datapath 0000000000000001 is not in the certificate of CN=switch-ap2"),
        ("nameless", "datapath 0000000000000001 is not in the certificate of CN=nameless"),
        ("agent-ap1", "datapath 0000000000000001 is not in the certificate of CN=agent-ap1"),
        ("expired", "certificate has expired"),
        ("elsewhere/switch-ap1", "no TLS with a certificate of the authority"),
        ("controller1", "no TLS with a certificate of the authority"),
    ],
)
def test_a_switch_with_a_wrong_certificate_does_not_get_in(
    net: Net, certificate: str, said: str
) -> None:
    net.as_set_up()
    refused, begin = net.counter("refused_connections"), len(net.log())
    net.become("ap1", certificate, 1)
    wait(lambda: net.counter("refused_connections") > refused + 1, "it was not refused twice")
    assert net.connected() == {"ap2"}
    # At most so many lines a minute: of earlier rows, too.
    assert said in net.log()[begin:] or net.log().count("refused the switch") >= 10
    assert net.counter("faults") == 0
    net.as_set_up()


@pytest.mark.parametrize("certificate", ["switch-ap2", "also"])
def test_a_switch_that_claims_anothers_number_does_not_displace_it(
    net: Net, certificate: str
) -> None:
    net.as_set_up()
    gone, refused = net.counter("disconnections"), net.counter("refused_connections")
    net.become("ap2", certificate, 1)
    wait(lambda: net.counter("refused_connections") > refused + 1, "it was not refused twice")
    assert net.connected() == {"ap1"}
    # The second switch alone has gone, and came back as nobody.
    assert net.counter("disconnections") == gone + 1
    net.as_set_up()


def test_a_switch_takes_nobody_for_a_controller_who_has_a_switchs_certificate(net: Net) -> None:
    answers = {}
    for certificate in ("switch-ap2", "agent-ap1", "elsewhere/switch-ap1", "controller1"):
        files = (str(net.keys / "authority.crt"), str(net.keys / certificate))
        server = net.sandbox.start(
            net.control, sys.executable, "-c", SERVES, *files, CONTROLLERS[0], quiet=False
        )
        time.sleep(0.5)
        net.become("ap1", "switch-ap1", 1, f"{CONTROLLERS[0]}:6699")
        out, _ = server.communicate(timeout=30)
        answers[certificate] = (out or b"").decode()
    assert "greeted" in answers.pop("controller1"), answers
    assert all("greeted" not in answer for answer in answers.values()), answers
    net.as_set_up()


def agent(net: Net, name: str, certificate: str, switch: str, rank: int = 1) -> tuple[Hostapd, Any]:
    """An agent at a machine, and the hostapd it listens to."""
    number = switch[-1]
    path = net.sandbox.directory / f"hostapd-{name}"
    hostapd = Hostapd(path)
    files = f"{net.keys}/{certificate}"
    started = net.sandbox.start(
        net.ends["ap1"].namespace,
        *(sys.executable, "-m", "ropewalk.sdn", "ap-agent", "--hostapd", str(path)),
        *("--controller", f"{CONTROLLERS[rank - 1]}:6654"),
        *("--switch", switch, "--port", f"air{number}"),
        *("--key", f"{files}.key", "--certificate", f"{files}.crt"),
        *("--authority", f"{net.keys}/authority.crt"),
        log=f"agent-{name}.log",
    )
    wait(lambda: bool(hostapd.attached), "the agent did not attach")
    return hostapd, started


def where(net: Net, rank: int = 1) -> str | None:
    """The switch that a controller takes the station to be at."""
    rows = [row for row in net.says(rank)["stations"] if row["mac"] == MAC]
    return str(rows[0]["switch"]) if rows else None


@pytest.mark.parametrize(
    ("certificate", "switch", "counter"),
    [
        ("agent-ap1", "ap2", "refused_notices"),
        ("switch-ap1", "ap1", "refused_notices"),
        ("nameless", "ap1", "refused_notices"),
        ("expired", "ap1", "refused_agents"),
        ("elsewhere/agent-ap1", "ap1", "refused_agents"),
    ],
)
def test_an_agent_with_a_wrong_certificate_moves_no_station(
    net: Net, certificate: str, switch: str, counter: str
) -> None:
    refused, before = net.counter(counter), where(net)
    name = f"{certificate.replace('/', '-')}-{switch}"
    hostapd, started = agent(net, name, certificate, switch)
    hostapd.say(f"<3>AP-STA-CONNECTED {MAC}")
    wait(lambda: net.counter(counter) > refused, "it was not refused")
    assert where(net) == before
    stop(started)
    hostapd.close()


def test_agents_of_two_controllers_work_side_by_side(net: Net) -> None:
    net.start(2)
    for number, name in enumerate(net.ends, 1):
        net.become(name, f"switch-{name}", number)
        both = [f"ssl:{address}:6653" for address in CONTROLLERS]
        vsctl = ["ovs-vsctl", f"--db={net.ends[name].database}", "--timeout=10"]
        net.ends[name].run(*vsctl, "set-controller", name, *both)
    wait(lambda: net.connected() == {"ap1", "ap2"}, "the first is not the master")
    wait(lambda: net.says(2)["standing_by"] == 2, "the second does not stand by")
    pairs = [agent(net, f"rank{rank}", "agent-ap1", "ap1", rank) for rank in (1, 2)]
    for hostapd, _ in pairs:
        hostapd.say(f"<3>AP-STA-CONNECTED {MAC}")
    wait(lambda: where(net, 1) == "ap1", "controller 1 does not know the station")
    wait(lambda: where(net, 2) == "ap1", "controller 2 does not know the station")
    net.controllers[1].send_signal(signal.SIGKILL)
    net.controllers[1].wait()
    wait(lambda: net.connected(2) == {"ap1", "ap2"}, "the second did not take over")
    assert where(net, 2) == "ap1"
    assert net.counter("refused_connections", 2) == 0
    pairs[1][0].say(f"<3>AP-STA-DISCONNECTED {MAC}")
    wait(lambda: net.counter("left", 2) == 1, "the second hears its agent no more")
    for hostapd, started in pairs:
        stop(started)
        hostapd.close()
    stop(net.controllers.pop(2))
    net.start(1)
    net.as_set_up()


def test_a_flood_of_one_switch_is_bounded_and_holds_up_no_other(net: Net) -> None:
    """It says what it has as a switch does, and then sends packets as fast as they go."""
    net.as_set_up()
    net.ends["ap2"].run("ovs-vsctl", f"--db={net.ends['ap2'].database}", "del-controller", "ap2")
    wait(lambda: net.connected() == {"ap1"}, "the switch did not go")
    greeting = struct.pack("!BBHI", 4, 0, 8, 1)
    greeting += struct.pack("!BBHIQIBBHII", 4, 6, 32, 2, 2, 256, 254, 0, 0, 0, 0)
    for kind in (13, 1, 7):
        greeting += struct.pack("!BBHIHH4x", 4, 19, 16, 3, kind, 0)
    frame = bytes(12) + b"\x08\x00" + bytes(50)
    match = struct.pack("!HHII4x", 1, 12, 0x8000_0004, 1)
    head = struct.pack("!IHBBQ", 0xFFFF_FFFF, len(frame), 0, 0, 0)
    packet = head + match + bytes(2) + frame
    packet = struct.pack("!BBHI", 4, 10, 8 + len(packet), 4) + packet
    before = _memory_kib(net.controllers[1].pid)
    words = [str(net.keys / "authority.crt"), str(net.keys / "switch-ap2"), CONTROLLERS[0]]
    words += [greeting.hex(), packet.hex(), str(FLOOD_S)]
    flood = net.sandbox.start(
        net.ends["ap2"].namespace, sys.executable, "-c", FLOODS, *words, quiet=False
    )
    wait(lambda: net.counter("packets_in") > 1000, "the flood did not come")
    hostapd, started = agent(net, "flooded", "agent-ap1", "ap1")
    begin = time.monotonic()
    hostapd.say(f"<3>AP-STA-CONNECTED {MAC}")
    wait(lambda: where(net) == "ap1", "the notice was not heard")
    took = time.monotonic() - begin
    out, _ = flood.communicate(timeout=60)
    memory = _memory_kib(net.controllers[1].pid) - before
    counters = net.says()["counters"]
    print(json.dumps({"sent": out.decode().strip(), "told_s": took, "kib": memory, **counters}))
    assert net.connected() >= {"ap1"} and counters["faults"] == 0
    assert memory < MEMORY_KIB_MAX
    assert took < TOLD_S_MAX
    stop(started)
    hostapd.close()
    net.as_set_up()


def _memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no memory")
