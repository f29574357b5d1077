"""Machines for `scripts/machines`: Debian with systemd in containers, and their provider."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "machines"
SUITE = "bookworm"
PACKAGES = (
    "systemd,systemd-sysv,dbus,polkitd,nftables,iproute2,iputils-ping,procps,kmod,ca-certificates"
)
"""What a machine has besides the essential packages."""
MANAGERS = {
    "file": "",
    "systemd-resolved": "systemd-resolved,libnss-resolve",
    "resolvconf": "resolvconf",
    "openresolv": "openresolv",
}
"""Who looks after /etc/resolv.conf, and its packages."""
OTHERS = {
    "sdn": "openvswitch-switch,ethtool,python3,python3-venv",
    "clients": "isc-dhcp-client,dhcpcd-base,network-manager",
    "rpm": "rpm",
    "ansible": "openssh-server,python3,python3-apt",
}
"""Other machines, and their packages."""
RUN = f"rwm{os.getpid()}"
"""With this begin the names of what a run makes, so that several can run at once."""
NET = f"{RUN}-net"
"""The namespace of the provider, of the internet, and of the server."""
SERVER = "198.51.100.80"
RESOLVER = "198.51.100.53"
"""Name server behind the tunnel."""
UPLINK_RESOLVER = "192.168.1.1"
"""Name server of the first uplink's network."""
HUB = "203.0.113.2"
ANSWERS = {RESOLVER: "10.53.0.1", UPLINK_RESOLVER: "10.53.0.2"}
"""What each name server answers, whatever is asked."""
PATIENCE_S = 40
EXIT_UNAVAILABLE = 3
"""The exit code when this machine lacks something, as of `ropewalk-testbed`."""

failures: list[str] = []


def claim(text: str, holds: bool, seen: str = "") -> None:
    """Prints a claim, and what was seen when it does not hold."""
    print(f"{'ok  ' if holds else 'FAIL'}  {text}", flush=True)
    if not holds:
        failures.append(text)
        print("      " + seen.strip().replace("\n", "\n      "), flush=True)


def output(*command: str, timeout: float = 300, check: bool = True, text: str | None = None) -> str:
    """What a command says, with its errors."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL if text is None else None,
        input=text,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}")
    return done.stdout


def wait(what: str, is_so: Callable[[], bool], seconds: float = PATIENCE_S) -> float:
    """Waits until something is so, and claims it; how long it took, seconds."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if is_so():
            break
        time.sleep(0.2)
    else:
        claim(what, False, f"not within {seconds:g} s")
    return time.monotonic() - begin


# Network


def within(namespace: str, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket of another network namespace."""
    made: list[socket.socket | OSError] = []

    def run() -> None:
        with Path("/run/netns", namespace).open() as file:
            if ctypes.CDLL(None).setns(file.fileno(), 0x40000000):
                made.append(OSError(f"no namespace {namespace}"))
                return
        try:
            made.append(make())
        except OSError as error:
            made.append(error)

    # A namespace counts for one thread.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def serve_who() -> None:
    """Tells each connection who asks, and gives back what it says."""
    listener = within(NET, lambda: socket.create_server((SERVER, 7)))

    def serve(connection: socket.socket, peer: str) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(f"{peer}\n".encode())
            while data := connection.recv(4096):
                connection.sendall(data)

    def accept() -> None:
        while True:
            connection, (peer, *_) = listener.accept()
            threading.Thread(target=serve, args=(connection, peer), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def serve_names(address: str) -> None:
    """A name server that has one address for every name."""

    def bound() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((address, 53))
        return made

    server = within(NET, bound)

    def serve() -> None:
        while True:
            query, peer = server.recvfrom(512)
            end = query.index(b"\0", 12) + 5
            question = query[12:end]
            # Type A. Other types have no answer, which is no error.
            found = question[-4:-2] == b"\0\1"
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(ANSWERS[address])
            head = query[:2] + b"\x85\x80\0\1\0" + bytes([found]) + b"\0\0\0\0"
            server.sendto(head + question + (answer if found else b""), peer)

    threading.Thread(target=serve, daemon=True).start()


class Stream:
    """A TCP connection from a machine to the server, and how long it was silent."""

    def __init__(self, machine: str) -> None:
        address = (SERVER, 7)
        self.socket = within(machine, lambda: socket.create_connection(address, 10))
        self.peer = self.socket.recv(100).decode().strip()
        self.gap_s, self.count, self.broken = 0.0, 0, ""
        self.stopped = False
        self.socket.settimeout(60)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Asks, waits for the answer, and asks again."""
        last = time.monotonic()
        try:
            while not self.stopped:
                self.socket.sendall(b"x" * 100)
                data = b""
                while len(data) < 100:
                    part = self.socket.recv(100 - len(data))
                    if not part:
                        raise OSError("closed by the server")
                    data += part
                now = time.monotonic()
                self.gap_s, last = max(self.gap_s, now - last), now
                self.count += 1
                time.sleep(0.02)
        except OSError as error:
            self.broken = str(error)

    def finish(self, what: str, seconds: float = 1) -> None:
        """Claims that the connection lives, and says how long it was silent.

        After a long silence TCP tries again late: then `seconds` have to be more.
        """
        before, end = self.count, time.monotonic() + seconds
        while not self.broken and self.count < before + 2 and time.monotonic() < end:
            time.sleep(0.1)
        alive = not self.broken and self.count > before
        self.stopped = True
        self.thread.join(timeout=61)
        self.socket.close()
        claim(f"{what}; silent for {self.gap_s:.2f} s at most", alive, self.broken or "silent")


def who(machine: str) -> str:
    """Whose address the server sees when a machine asks; empty if there is no way."""
    try:
        with within(machine, lambda: socket.create_connection((SERVER, 7), 3)) as made:
            return made.recv(100).decode().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def provider() -> Iterator[None]:
    """The provider, the internet beyond, and its servers."""
    output("ip", "netns", "add", NET)
    try:
        output("ip", "-n", NET, "link", "set", "lo", "up")
        for address in (SERVER, RESOLVER, UPLINK_RESOLVER):
            output("ip", "-n", NET, "address", "add", f"{address}/32", "dev", "lo")
        output("ip", "netns", "exec", NET, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        output("ip", "netns", "exec", NET, "nft", "-f", "-", text=COUNTER)
        yield
    finally:
        output("ip", "netns", "delete", NET, check=False)


COUNTER = f"""\
table inet leaks {{
    set who {{
        typeof ip daddr . meta l4proto . th dport
        flags dynamic
        size 64
    }}
    set who6 {{
        typeof ip6 daddr . meta l4proto . th dport
        flags dynamic
        size 64
    }}
    chain seen {{
        type filter hook prerouting priority -300
        iifname != "site*" accept
        fib saddr type local accept
        ip daddr {HUB} accept
        udp sport 68 udp dport 67 accept
        udp sport 546 udp dport 547 accept
        ip protocol igmp accept
        icmpv6 type {{ 131, 132, 133, 135, 136, 143 }} accept
        update @who {{ ip daddr . meta l4proto . th dport }}
        update @who6 {{ ip6 daddr . meta l4proto . th dport }}
        counter
    }}
}}
"""
"""Counts what comes from a site's uplinks, is not for the hub, and is not what an uplink needs:
DHCP, multicast reports, router and neighbour solicitations. What the provider itself sends to all
on a link comes back to it, and does not count."""


def leaks() -> int:
    """How many packets came from a site beside its tunnel."""
    found = re.search(
        r"packets (\d+)", output("ip", "netns", "exec", NET, "nft", "list", "ruleset")
    )
    if not found:
        raise RuntimeError(f"{NET}: the rule that counts leaks is gone")
    return int(found[1])


def leaked() -> str:
    """Where such packets went."""
    return output("ip", "netns", "exec", NET, "nft", "list", "table", "inet", "leaks")


LINKS = {
    "hub": [("eth0", "203.0.113.1", HUB)],
    "site": [("eth0", UPLINK_RESOLVER, "192.168.1.2"), ("eth1", "192.168.2.1", "192.168.2.2")],
}
"""Of each machine: interface, address of the provider, own address."""


# Machines


def base(manager: str = "file") -> Path:
    """A directory with Debian, fetched once."""
    packages = ",".join(filter(None, (PACKAGES, (MANAGERS | OTHERS)[manager])))
    mark = hashlib.sha256(packages.encode()).hexdigest()[:8]
    place = CACHE / f"{SUITE}-{manager}-{mark}"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Of runs at the same time one fetches, and the others wait.
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            print(f"fetching Debian with {packages}", file=sys.stderr)
            command = ("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}")
            with tempfile.TemporaryDirectory(dir=CACHE) as new:
                output(*command, SUITE, f"{new}/root", timeout=900)
                Path(new, "root").rename(place)
    return place


class Machine:
    """A container with systemd as process 1."""

    def __init__(self, name: str, directory: Path, packages: Path) -> None:
        self.name, self.packages = name, packages
        self.netns = f"{RUN}-{name}"
        self.place = directory / name
        self.root = self.place / "root"
        self.leases = False
        """Whether the uplinks get addresses and routes by DHCP."""
        self.process: subprocess.Popen[bytes] | None = None
        self.leader = 0

    def make(self, manager: str = "file") -> None:
        """Makes the file system of the machine. `remove` undoes that, also after a failure."""
        for part in ("up", "work", "root"):
            (self.place / part).mkdir(parents=True)
        parts = f"lowerdir={base(manager)},upperdir={self.place / 'up'}"
        parts += f",workdir={self.place / 'work'}"
        output("mount", "-t", "overlay", "-o", parts, "overlay", str(self.root))
        (self.root / "etc/machine-id").write_text("")
        if manager == "clients":
            # Only one client at a time.
            for unit in ("NetworkManager", "dhcpcd"):
                (self.root / f"etc/systemd/system/{unit}.service").symlink_to("/dev/null")

    def plug(self) -> None:
        """Gives the machine its links, with addresses and routes as DHCP would."""
        for number, (interface, far, near) in enumerate(LINKS.get(self.name, [])):
            there = f"{self.name}{number}"
            # The same after each start of the machine, as the address of a card is.
            card = f"02:00:00:00:{len(self.name):02x}:{number:02x}"
            peer = ("peer", "name", interface, "address", card, "netns", self.netns)
            output("ip", "-n", NET, "link", "add", there, "type", "veth", *peer)
            output("ip", "-n", NET, "address", "add", f"{far}/24", "dev", there)
            output("ip", "-n", NET, "link", "set", there, "up")
            output("ip", "-n", self.netns, "link", "set", interface, "up")
            if self.leases:
                continue
            output("ip", "-n", self.netns, "address", "add", f"{near}/24", "dev", interface)
            route = ("default", "via", far, "dev", interface, "metric", str(100 + number))
            output("ip", "-n", self.netns, "route", "add", *route)

    def start(self, unplugged: bool = False) -> None:
        """Starts the machine, as after it was switched on."""
        output("ip", "netns", "add", self.netns)
        output("ip", "-n", self.netns, "link", "set", "lo", "up")
        # Addresses are there at once, and not after a second.
        quiet = "net.ipv6.conf.default.accept_dad=0"
        output("ip", "netns", "exec", self.netns, "sysctl", "-qw", quiet)
        if not unplugged:
            self.plug()
        environment = os.environ | {
            "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
            "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
        }
        command = [
            *("systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--boot"),
            *(f"--directory={self.root}", f"--hostname={self.name}", f"--machine={self.netns}"),
            *(f"--network-namespace-path=/run/netns/{self.netns}", "--bind=/dev/net/tun"),
            "--capability=CAP_NET_ADMIN",
            *(f"--bind-ro={self.packages}:/packages", f"--bind-ro={ROOT}:/source"),
            *("--console=read-only", "--resolv-conf=off", "--timezone=off", "--link-journal=no"),
        ]
        with (self.place / "console").open("ab") as console:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        wait(f"{self.name} starts", self.find_leader, 10)
        if not self.leader:
            console_text = (self.place / "console").read_text(errors="replace")
            raise RuntimeError(f"{self.name}: no process 1\n{console_text[-2000:]}")
        # systemd-nspawn shows another number of the machine's start than the /proc of a unit does.
        self.run("umount /proc/sys/kernel/random/boot_id")
        wait(f"{self.name} is up", lambda: "starting" not in self.state() and self.is_up())

    def find_leader(self) -> bool:
        """Whether process 1 of the machine is there."""
        assert self.process
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for child in children.split():
            status = Path(f"/proc/{child}/status").read_text()
            if re.search(r"^NSpid:\s+\d+\s+1$", status, re.M):
                self.leader = int(child)
        return self.leader != 0

    def state(self) -> str:
        """What systemd says of itself."""
        return self.run("systemctl is-system-running", check=False)

    def is_up(self) -> bool:
        """Whether all units have started, or failed to."""
        return self.state().strip() in ("running", "degraded")

    def run(self, script: str, check: bool = True, text: str | None = None) -> str:
        """What a script says that root runs on the machine."""
        enter = ("nsenter", "--all", "--target", str(self.leader), "--wdns=/")
        clean = ("env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")
        return output(*enter, *clean, "sh", "-ec", script, check=check, text=text)

    def install(self, package: str) -> str:
        """Installs or upgrades a package with apt or rpm."""
        if package.endswith(".rpm"):
            # rpm does not know what Debian's packages bring.
            return self.run(f"rpm --upgrade --nodeps --verbose /packages/{package} 2>&1")
        # apt cannot be refused a version that has the same number.
        options = "--allow-downgrades --reinstall --no-install-recommends"
        return self.apt(f"install {options} /packages/{package}")

    def apt(self, what: str) -> str:
        """What apt-get says while it does something."""
        options = "-y -q -o Dpkg::Use-Pty=0"
        said = self.run(f"DEBIAN_FRONTEND=noninteractive apt-get {options} {what} 2>&1")
        return "\n".join(line for line in said.splitlines() if "%" not in line)

    def stop(self) -> None:
        """Switches the machine off."""
        if self.process:
            # A number of 0 would mean this program and those it has started.
            if self.leader:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.leader, signal.SIGRTMIN + 4)
            else:
                self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                claim(f"{self.name} stops", False, "not within 20 s")
                self.process.terminate()
                self.process.wait()
            self.process, self.leader = None, 0
        output("ip", "netns", "delete", self.netns, check=False)
        time.sleep(0.5)

    def reboot(self, unplugged: bool = False) -> None:
        """Switches the machine off and on: its interfaces, rules and /run are new."""
        self.stop()
        self.start(unplugged)

    def remove(self) -> None:
        """Leaves nothing of the machine."""
        try:
            self.stop()
        finally:
            output("umount", str(self.root), check=False)

    def network(self) -> str:
        """Interfaces, routes, rules, firewall and settings, in words that can be compared."""
        return self.run(
            "ip -br link | sed 's/@.*//' | cut -d' ' -f1; ip -br address | sed 's/@[^ ]*//';"
            "ip route show table all; ip -6 route show table all; ip rule; ip -6 rule;"
            "nft list ruleset;"
            "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding;"
            "grep . /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv6/conf/*/accept_ra"
        )

    def files(self) -> str:
        """The files of the machine that packages may make."""
        return self.run(
            "find /etc /usr /lib /var /run/ropewalk* /run/systemd/system /run/resolvconf"
            " -xdev \\( -path /var/cache -o -path /var/lib/apt -o -path /var/log -o"
            " -path /var/lib/systemd \\) -prune -o -printf '%p %u:%g %m\\n' 2>/dev/null | sort;"
            "ls -d /var/log/ropewalk* 2>/dev/null || true",
            check=False,
        )

    def modes(self) -> dict[str, str]:
        """Owner, group and mode of what lies in the directories of Ropewalk."""
        listed = self.run(
            "find /etc/ropewalk /var/lib/ropewalk /var/log/ropewalk -printf '%p %u:%g %m %y\\n'"
            " 2>/dev/null || true"
        )
        return dict(line.split(" ", 1) for line in listed.splitlines())


@contextlib.contextmanager
def machines(
    names: list[str], packages: Path, manager: str = "file", leases: bool = False
) -> Iterator[dict[str, Machine]]:
    """Machines that run, for as long as this lasts."""
    with (
        provider(),
        tempfile.TemporaryDirectory(dir=CACHE) as directory,
        contextlib.ExitStack() as undo,
    ):
        serve_who()
        for address in ANSWERS:
            serve_names(address)
        made = {}
        try:
            for name in names:
                kind = "file" if name == "hub" and manager in MANAGERS else manager
                made[name] = Machine(name, Path(directory), packages)
                undo.callback(made[name].remove)
                made[name].make(kind)
                made[name].leases = leases and name == "site"
                made[name].start()
            yield made
        except RuntimeError as error:
            claim("every command succeeds", False, str(error))
            for name, machine in made.items():
                if machine.leader:
                    print(log_of(machine, f"ropewalk-{name}"))


def configure(hub: Machine, site: Machine, network: str) -> None:
    """Makes a hub and a site that run, as the documentation says."""
    hub.run(f"ropewalk hub --init --public {HUB}:4443")
    hub.run("systemctl enable --now ropewalk-hub")
    wait("the hub runs", lambda: is_active(hub, "ropewalk-hub"))
    token = hub.run("ropewalk invite site 2>/dev/null").splitlines()[-1]
    site.run("ropewalk join - 2>&1", text=token + "\n")
    site.run("sed -i -E '/^(kill_switch|dns) =/d' /etc/ropewalk/site.toml")
    site.run(f"sed -i '/^\\[network\\]/a {network}' /etc/ropewalk/site.toml")
    site.run("systemctl enable --now ropewalk-site")
    wait("the site's connections go through the tunnel", lambda: who(site.netns) == HUB)


def is_active(machine: Machine, unit: str) -> bool:
    """Whether a unit runs."""
    return machine.run(f"systemctl is-active {unit}", check=False).strip() == "active"


def kill_for_good(machine: Machine) -> None:
    """Kills the gateway, and nobody starts it again."""
    unit = f"ropewalk-{machine.name}"
    machine.run(f"mkdir -p /run/systemd/system/{unit}.service.d")
    settings = f"/run/systemd/system/{unit}.service.d/no.conf"
    machine.run(f"cat >{settings}", text="[Service]\nRestart=no\n")
    machine.run(f"systemctl daemon-reload; systemctl kill --signal=KILL {unit} || true")
    wait(f"{unit} is dead", lambda: not is_active(machine, unit))
    machine.run(f"rm -r {settings}; rmdir $(dirname {settings}); systemctl daemon-reload")


def log_of(machine: Machine, unit: str) -> str:
    """The last lines of a unit."""
    return machine.run(f"journalctl -u {unit} -n 25 --no-pager -o cat", check=False)


def numbered(source: Path, to: Path, version: str) -> None:
    """A package with another version: both may have the same number."""
    with tempfile.TemporaryDirectory(dir=to.parent) as directory:
        output("dpkg-deb", "-R", str(source), directory)
        control = Path(directory) / "DEBIAN/control"
        text = re.sub(r"(?m)^Version: .*", f"Version: {version}", control.read_text())
        control.write_text(text)
        output("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", directory, str(to))


def difference(before: str, after: str) -> str:
    """Lines that came or went."""
    old, new = set(before.splitlines()), set(after.splitlines())
    gone = [f"-{line}" for line in sorted(old - new)]
    return "\n".join(gone + [f"+{line}" for line in sorted(new - old)])
