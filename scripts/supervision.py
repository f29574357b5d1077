"""`scripts/machines supervision`: gateways in trouble."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from machinery import (
    CACHE,
    HUB,
    NET,
    RESOLVER,
    RUN,
    SERVER,
    UPLINK_RESOLVER,
    Machine,
    Stream,
    claim,
    configure,
    is_active,
    leaked,
    leaks,
    log_of,
    machines,
    output,
    wait,
    who,
    within,
)

KILLS = 11
"""More than any limit of starts that systemd has by default (5)."""
BACK_S = 90
"""Longer than the longest pause before a start, which is 60 s."""
STATE = "/var/lib/ropewalk"
KEYS = "/etc/ropewalk/keys"
SMALL = "/run/small"
"""A file system of 2 MiB, with the state and the keys of a machine."""
MEMORY = Path("/sys/fs/cgroup/memory")
"""The memory controller of cgroup version 1."""


class Escapes:
    """Sends from the site all the time, past its tunnel where it can, and counts what gets out."""

    def __init__(self, machine: Machine) -> None:
        for name in ("who", "who6"):
            output("ip", "netns", "exec", NET, "nft", "flush", "set", "inet", "leaks", name)
        self.netns = machine.netns
        self.tries, self.counted = 0, leaks()
        self.stopped = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Tries each way of a program: by the routes, and bound to each uplink."""
        while not self.stopped:
            with contextlib.suppress(OSError), Path("/run/netns", self.netns).open() as file:
                # The machine may be off, and nothing may be sent from another network.
                if ctypes.CDLL(None).setns(file.fileno(), 0x40000000):
                    raise OSError(f"no namespace {self.netns}")
                for interface in ("", "eth0", "eth1"):
                    self.send(socket.AF_INET, interface, (SERVER, 9), (UPLINK_RESOLVER, 53))
                    self.send(socket.AF_INET6, interface, ("2001:db8:ffff::1", 9))
            time.sleep(0.01)

    def send(self, family: int, interface: str, *to: tuple[str, int]) -> None:
        """Sends a packet to each of these."""
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            if interface:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            for address in to:
                self.tries += 1
                with contextlib.suppress(OSError):
                    made.sendto(b"x", address)

    def claim(self, what: str) -> None:
        """Claims that nothing left since the last claim."""
        tries, now = self.tries, leaks()
        beside = now - self.counted
        text = f"{what}: {beside} of {tries} packets left beside the tunnel"
        claim(text, beside == 0 and tries > 0, leaked())
        self.tries, self.counted = self.tries - tries, now


def down(site: Machine, what: str) -> None:
    """Takes the tunnel down for good, and claims that what leaves then is counted."""
    site.run("ropewalk down")
    before, direct = leaks(), who(site.netns)
    text = f"{what}: after `down` connections leave over the uplink"
    claim(text, direct.startswith("192.168."), direct)
    claim(f"{what}: after `down` what leaves is counted", leaks() > before, leaked())


def unit(machine: Machine) -> str:
    """The unit of a machine."""
    return f"ropewalk-{machine.name}"


def show(machine: Machine, what: str) -> str:
    """A property of the unit."""
    return machine.run(f"systemctl show -P {what} {unit(machine)}").strip()


def outside(machine: Machine, inside: int) -> int:
    """The number that a process of the machine has here."""
    space = Path(f"/proc/{machine.leader}/ns/pid").readlink()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            found = re.search(rf"^NSpid:\s+(\d+)\s+{inside}$", status.read_text(), re.M)
            if found and (status.parent / "ns/pid").readlink() == space:
                return int(found[1])
    raise RuntimeError(f"no process {inside} on {machine.name}")


def threads(pid: int) -> dict[str, int]:
    """Names and numbers of the threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {(task / "comm").read_text().strip(): int(task.name) for task in tasks}


def halt_thread(thread: int) -> None:
    """Stops one thread until its process is killed: a debugger takes it, and never lets it go."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = threading.Event()

    def hold() -> None:
        for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
            if libc.ptrace(request, thread, None, None):
                raise RuntimeError(f"thread {thread}: {os.strerror(ctypes.get_errno())}")
        held.set()
        # A debugger has to hear of the end, or the process is never gone.
        with contextlib.suppress(ChildProcessError):
            while not os.WIFSIGNALED(os.waitpid(thread, 0x40000000)[1]):  # __WALL
                pass

    threading.Thread(target=hold, daemon=True).start()
    if not held.wait(5):
        raise RuntimeError(f"thread {thread} cannot be stopped")


class Fall:
    """A gateway that systemd has to end and start again."""

    def __init__(self, machine: Machine, what: str) -> None:
        self.machine, self.what = machine, what
        self.pid = show(machine, "MainPID")
        self.restarts = int(show(machine, "NRestarts"))
        self.begin = time.monotonic()

    def is_new(self) -> bool:
        """Whether another process is ready."""
        return show(self.machine, "MainPID") not in (self.pid, "0") and is_active(
            self.machine, unit(self.machine)
        )

    def claim(self, seconds: float) -> None:
        """Claims that it runs again in time."""
        while not self.is_new() and time.monotonic() - self.begin < seconds:
            time.sleep(0.2)
        took = time.monotonic() - self.begin
        count = int(show(self.machine, "NRestarts")) - self.restarts
        starts = "once" if count == 1 else f"{count} times"
        text = f"{self.what}: systemd starts it again {starts}, and it is ready after {took:.1f} s"
        claim(text, self.is_new(), log_of(self.machine, unit(self.machine)))


def through(what: str, site: Machine, seconds: float = 20) -> None:
    """Claims that new connections of the site take the tunnel."""
    took = wait(f"{what}: the tunnel carries", lambda: who(site.netns) == HUB, seconds)
    claim(f"{what}: new connections go out at the hub {took:.1f} s later", who(site.netns) == HUB)


# Hangs


def hangs(hub: Machine, site: Machine) -> None:
    """A whole gateway stops, and one of its threads stops."""
    for whole, part in ((site, hub), (hub, site)):
        escapes, stream = Escapes(site), Stream(site.netns)
        pid = {m.name: outside(m, int(show(m, "MainPID"))) for m in (hub, site)}
        names = threads(pid[part.name])
        engine = next(name for name in names if "engine" in name or "worker" in name)
        falls = [
            Fall(whole, f"{whole.name} stopped (SIGSTOP)"),
            Fall(part, f"{part.name} whose thread {engine} is stopped"),
        ]
        halt_thread(names[engine])
        os.kill(pid[whole.name], signal.SIGSTOP)
        for fall in falls:
            fall.claim(45)
        through("both", site)
        log = part.run(f"journalctl -u {unit(part)} -n 60 --no-pager -o cat")
        claim(
            f"{part.name}: the log names the thread",
            f'hangs: the service manager ends the program if it goes on engine="{engine}"' in log,
            log,
        )
        stream.finish("a TCP connection outlives both", 60)
        escapes.stopped = True
        escapes.claim("hangs")


# Kills


def kill_as_it_starts(fall: Fall, ready: bool) -> None:
    """Kills each process of the gateway, as soon as it is there or ready."""
    machine, former = fall.machine, "0"
    for _ in range(KILLS):
        begin = time.monotonic()
        while time.monotonic() - begin < BACK_S:
            pid = show(machine, "MainPID")
            if pid not in (former, "0") and (not ready or is_active(machine, unit(machine))):
                break
            time.sleep(0.05)
        machine.run(f"kill -KILL {pid}", check=False)
        former = fall.pid = pid


def kills(hub: Machine, site: Machine) -> None:
    """More kills in a row than systemd bears by default."""
    for ready in (True, False):
        when = "ready" if ready else "there"
        escapes, stream = Escapes(site), Stream(site.netns)
        what = f"killed {KILLS} times as soon as it is {when}"
        falls = [Fall(m, f"{m.name} {what}") for m in (hub, site)]
        workers = [threading.Thread(target=kill_as_it_starts, args=(f, ready)) for f in falls]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        killed = time.monotonic() - falls[0].begin
        for fall in falls:
            fall.claim(killed + BACK_S)
        through("both", site)
        took = time.monotonic() - falls[0].begin - killed
        print(f"      the kills took {killed:.0f} s; {took:.0f} s after the last the tunnel is up")
        stream.finish("a TCP connection outlives the kills", 60)
        escapes.stopped = True
        escapes.claim("kills")


# Room


@contextlib.contextmanager
def small(machine: Machine) -> Iterator[None]:
    """State and keys of a machine lie on a small file system of their own."""
    image = machine.place / "image"
    with image.open("wb") as file:
        file.truncate(2 << 20)
    output("mkfs.ext4", "-q", "-m", "0", "-b", "1024", "-O", "^has_journal", str(image))
    name = unit(machine)
    with contextlib.ExitStack() as undo:
        device = output("losetup", "--find", "--show", str(image)).strip()
        undo.callback(output, "losetup", "--detach", device)
        number = Path(device).stat().st_rdev
        machine.run(
            f"mknod /dev/small b {os.major(number)} {os.minor(number)}; mkdir -p {SMALL};"
            f"systemctl stop {name}; mount /dev/small {SMALL}"
        )
        undo.callback(machine.run, f"umount {SMALL}; rm /dev/small; systemctl start {name}")
        for place, inside in ((STATE, f"{SMALL}/state"), (KEYS, f"{SMALL}/keys")):
            machine.run(f"cp -a {place} {inside}; mount --bind {inside} {place}")
            back = f"umount {place}; rm -rf {place}/*; cp -a {inside}/. {place}/"
            undo.callback(machine.run, back)
        undo.callback(machine.run, f"systemctl stop {name}")
        machine.run(f"systemctl start {name}")
        yield


def fill(machine: Machine) -> str:
    """Leaves no block and no inode free; what the system says of one more byte."""
    return machine.run(
        f"cd {SMALL}; cat /dev/zero >>full 2>/dev/null || true;"
        "n=0; while echo x >>full$n; do n=$((n+1)); done 2>/dev/null || true;"
        "dd if=/dev/zero of=one-more bs=1 count=1 2>&1",
        check=False,
    )


def sums(machine: Machine) -> str:
    """Names and contents of state and keys."""
    return machine.run(f"cd {SMALL}; find state keys -type f | sort | xargs sha256sum")


def refused(machine: Machine, command: str, name: str) -> None:
    """Claims that a command fails, and says what lacks room."""
    said = machine.run(f"{command} 2>&1 && echo succeeded", check=False)
    claim(
        f"{machine.name}: `{command}` fails, and names {name}",
        "succeeded" not in said and "No space left" in said and name in said,
        said,
    )


def room(hub: Machine, site: Machine) -> None:
    """State and keys lie on a full disk."""
    escapes = Escapes(site)
    with small(hub), small(site):
        through("state and keys on small file systems", site)
        stream = Stream(site.netns)
        for machine in (hub, site):
            said = fill(machine)
            is_full = "No space left" in said
            claim(f"{machine.name}: the file system of state and keys is full", is_full, said)
        before = {m.name: sums(m) for m in (hub, site)}
        refused(hub, "ropewalk invite another", "sites.toml")
        refused(hub, "ropewalk key rotate", "hub.key.next")
        refused(site, "ropewalk key rotate", "site.key.next")
        for machine in (hub, site):
            now = sums(machine)
            same = now == before[machine.name]
            claim(f"{machine.name}: no file of state or key has changed", same, now)
        for machine in (site, hub):
            name = unit(machine)
            # A stop removes files, and so makes room.
            machine.run(f"systemctl stop {name}")
            fill(machine)
            machine.run(f"systemctl start {name}", check=False)
            through(f"{machine.name} started on a full disk", site)
            log = log_of(machine, name)
            claim(f"{machine.name}: the log says so", "No space left" in log, log)
            fill(machine)
            machine.run(f"systemctl kill --signal=KILL {name}")
            time.sleep(1.2)
            through(f"{machine.name} killed on a full disk", site)
        stream.finish("a TCP connection outlives all of this", 60)
        for machine in (hub, site):
            machine.run(f"rm -f {SMALL}/full* {SMALL}/one-more")
        said = hub.run("ropewalk invite another 2>&1")
        claim("room again: `ropewalk invite` works", "ropewalk2." in said, said)
        said = site.run("ropewalk key rotate 2>&1")
        claim("room again: the site's key changes", "has its new key" in said, said)
        said = hub.run("ropewalk key rotate 2>&1; ropewalk key rotate --switch --force 2>&1")
        claim("room again: the hub's key changes", "next key  none" in said, said)
        for machine in (hub, site):
            machine.run(f"systemctl restart {unit(machine)}")
        through("room again, both keys are new, and both gateways are restarted", site)
    through("state and keys where they were", site)
    escapes.stopped = True
    escapes.claim("no room")


# Memory


@contextlib.contextmanager
def bounded(pids: list[int]) -> Iterator[Path]:
    """A memory group of the kernel with these processes. What they have already is not of it."""
    group = MEMORY / RUN
    group.mkdir()
    try:
        (group / "memory.swappiness").write_text("0")
        (group / "memory.limit_in_bytes").write_text(str(64 << 10))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            # It may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                (MEMORY / "cgroup.procs").write_text(left)
        group.rmdir()


def load(site: Machine, fall: Fall) -> None:
    """Has a gateway take memory: connections, and questions to its API."""
    made = []
    while fall.pid == show(fall.machine, "MainPID") and time.monotonic() - fall.begin < 30:
        with contextlib.suppress(OSError):
            made.append(within(site.netns, lambda: socket.create_connection((SERVER, 7), 0.5)))
            made[-1].send(b"x" * 4000)
        fall.machine.run("timeout 1 ropewalk status --json >/dev/null 2>&1 || true")
    for connection in made:
        connection.close()


def memory(hub: Machine, site: Machine) -> None:
    """The kernel kills a gateway for its memory."""
    for machine in (site, hub):
        escapes = Escapes(site)
        stream = Stream(site.netns)
        fall = Fall(machine, f"{machine.name} without memory in its group")
        pid = outside(machine, int(fall.pid))
        with bounded([pid]) as group:
            load(site, fall)
            found = re.search(r"oom_kill (\d+)", (group / "memory.oom_control").read_text())
        killed = int(found[1]) if found else 0
        claim(f"{machine.name}: the kernel killed {killed} of its processes", killed > 0)
        fall.claim(40)
        through(machine.name, site)
        stream.finish("a TCP connection outlives the lack of memory", 60)
        escapes.stopped = True
        escapes.claim(f"{machine.name} without memory")


# Power


def lose_power(machine: Machine) -> None:
    """Ends all processes of the machine at once, and nobody is asked."""
    os.kill(machine.leader, signal.SIGKILL)
    assert machine.process
    machine.process.wait(20)
    machine.process, machine.leader = None, 0


def write(machine: Machine, turn: int) -> tuple[list[str], threading.Thread]:
    """Has the machine write until it ends; what was confirmed then, and who waits for it."""
    script = f"n=0; while :; do n=$((n+1)); ropewalk invite t{turn}-$n && echo ok t{turn}-$n; done"
    if machine.name == "site":
        script = "while :; do ropewalk key rotate && echo ok; sleep 1; done"
    said: list[str] = []

    def run() -> None:
        text = machine.run(f"({script}) 2>/dev/null", check=False)
        said.extend(re.findall(r"(?m)^ok ?(.*)$", text))

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    return said, worker


def power(hub: Machine, site: Machine) -> None:
    """The machines lose power while they write."""
    escapes = Escapes(site)
    confirmed: list[str] = []
    for turn in range(5):
        victim = hub if turn < 3 else site
        said, worker = write(victim, turn)
        time.sleep(1.5)
        lose_power(victim)
        victim.reboot(unplugged=victim is site)
        worker.join(20)
        if victim is site:
            held = is_active(site, "ropewalk-kill-switch")
            claim("site: the kill switch is set before an uplink is there", held)
            site.plug()
        what = f"{victim.name} loses power during write {len(said) + 1}"
        through(what, site, 60)
        if victim is hub:
            confirmed += said
            known = set(re.findall(r'^name = "(.*)"', hub.run(f"cat {STATE}/sites.toml"), re.M))
            lost = [name for name in [*confirmed, "site"] if name not in known]
            text = f"{what}: the list has all {len(confirmed)} invitations that were confirmed"
            claim(text, not lost, " ".join(lost))
        stray = victim.run(f"find {STATE} {KEYS} -name '.*'; find {STATE} {KEYS} -size 0")
        locks = [line for line in stray.splitlines() if not line.endswith(".lock")]
        claim(f"{what}: no file is empty, and no part of one is left", not locks, stray)
    escapes.stopped = True
    escapes.claim("power")


# Parts


PARTS: dict[str, Callable[[Machine, Machine], None]] = {
    "hangs": hangs,
    "kills": kills,
    "room": room,
    "memory": memory,
    "power": power,
}


def supervision(options: argparse.Namespace) -> None:
    """A hub and a site in trouble."""
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        packages = Path(name)
        shutil.copy(options.new, packages / "new.deb")
        with machines(["hub", "site"], packages) as both:
            hub, site = both["hub"], both["site"]
            for machine in (hub, site):
                machine.run("cat >/etc/resolv.conf", text=f"nameserver {UPLINK_RESOLVER}\n")
                machine.install("new.deb")
            configure(hub, site, f'kill_switch = true\\ndns = ["{RESOLVER}"]')
            for part in options.part or PARTS:
                begin = time.monotonic()
                PARTS[part](hub, site)
                print(f"      {part}: {time.monotonic() - begin:.0f} s", flush=True)
            down(site, "supervision")
