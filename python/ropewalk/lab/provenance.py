"""What a result depends on besides its plan: versions, machine, load."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ropewalk
from ropewalk import __version__
from ropewalk.lab import programs

_TIMEOUT_SECONDS = 10
_SYSCTLS = (
    "net/core/default_qdisc",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
)
_OFFLOADS = (
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "tx-udp-segmentation",
)


@dataclass(frozen=True)
class Source:
    """The state of the source the programs come from.

    `identity` is the commit, and with changes on top a digest of these: it tells two states apart.
    """

    commit: str
    dirty: bool
    identity: str


def source(directory: Path) -> Source:
    """The source around `directory`; outside any repository, what the files themselves are.

    Programs that were built anew are another source then, too, and so is a changed package.
    """
    commit = _output("git", "-C", str(directory), "rev-parse", "--short=12", "HEAD")
    if not commit:
        digest = _digest(directory)
        return Source(f"release {__version__}, {digest}", False, f"release-{__version__}-{digest}")
    # The state of the whole tree, not only of the programs' directory.
    status = _output("git", "-C", str(directory), "status", "--porcelain", ":/")
    if not status:
        return Source(commit, False, commit)
    changes = status + _output("git", "-C", str(directory), "diff", "HEAD", "--", ":/")
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
    return Source(commit, True, f"{commit}-{digest}")


def _digest(directory: Path) -> str:
    """Of the programs in `directory` and of this package's source."""
    package = Path(ropewalk.__file__).parent
    return digest_of([*sorted(directory.glob("ropewalk*")), *sorted(package.rglob("*.py"))])


def native() -> str:
    """The state of the native module: it may have been built from another source than programs."""
    return digest_of(sorted(Path(ropewalk.__file__).parent.glob("_native*.so")))


def digest_of(found: Iterable[Path]) -> str:
    """A short digest of what these files contain."""
    digest = hashlib.sha256()
    for path in found:
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def machine(directory: Path | None, jobs: int) -> dict[str, Any]:
    """Versions and settings that hold for a whole session."""
    names = (programs.GATEWAY, programs.LINK, programs.TESTBED, programs.SIMULATOR)
    return {
        # Builders of kernels put names of theirs behind the version.
        "kernel": ".".join(platform.release().split(".")[:2]),
        "system": _system(),
        "jobs": jobs,
        "scheduling": _scheduling(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "programs": {
            **{name: _version(name, directory) for name in names},
            "ovs-vswitchd": _output("ovs-vswitchd", "--version").partition("\n")[0] or "not found",
        },
        "settings": {name: _setting(name) for name in _SYSCTLS},
        "offloads": _offloads(),
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def is_real_time() -> bool:
    """Whether what this program starts has real-time priority."""
    return os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def _scheduling() -> str:
    """How the kernel schedules what this program starts."""
    policy = {
        os.SCHED_OTHER: "normal",
        os.SCHED_BATCH: "batch",
        os.SCHED_IDLE: "idle",
        os.SCHED_FIFO: "real time",
        os.SCHED_RR: "real time, in turns",
    }.get(os.sched_getscheduler(0), "unknown")
    return f"{policy}, nice {os.getpriority(os.PRIO_PROCESS, 0)}"


@dataclass(frozen=True)
class Load:
    """Load of the machine at one moment."""

    average: float
    busy_ticks: int
    ticks: int
    stolen_ticks: int

    @classmethod
    def now(cls) -> Load:
        """Reads it."""
        first = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        ticks = [int(value) for value in first]
        idle = ticks[3] + ticks[4]
        return cls(round(os.getloadavg()[0], 2), sum(ticks) - idle, sum(ticks), ticks[7])

    def busy_since(self, before: Load) -> float:
        """Share of the processors that was busy since then, 0 to 1."""
        ticks = self.ticks - before.ticks
        return round((self.busy_ticks - before.busy_ticks) / ticks, 3) if ticks > 0 else 0.0

    def stolen_since(self, before: Load) -> float:
        """Share of the processors' time that the host took since then, 0 to 1."""
        ticks = self.ticks - before.ticks
        return round((self.stolen_ticks - before.stolen_ticks) / ticks, 3) if ticks > 0 else 0.0


def stamp(before: Load, after: Load) -> dict[str, Any]:
    """What changes from cell to cell."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": before.average,
        "load_after": after.average,
        "cpu_busy": after.busy_since(before),
        "cpu_stolen": after.stolen_since(before),
    }


def _output(*command: str) -> str:
    """What a command prints; nothing if it cannot."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(name: str, directory: Path | None) -> str:
    program = programs.find_or_none(name, directory)
    if program is None:
        return "not found"
    return _output(str(program), "--version") or "unknown"


def _setting(name: str) -> str:
    try:
        return " ".join(Path("/proc/sys", name).read_text().split())
    except OSError:
        return "unknown"


def _offloads() -> dict[str, str] | str:
    """Offloads of the loopback interface: what new virtual interfaces of this kernel offer."""
    features = _output("ethtool", "-k", "lo")
    if not features:
        return "unknown: ethtool is not installed"
    lines = (line.partition(":") for line in features.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if key.strip() in _OFFLOADS}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
