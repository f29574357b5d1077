"""Machines for experiments and tests: a network namespace with an Open vSwitch of its own.

Everything a `Sandbox` starts or makes ends with it, also on Ctrl-C. What is left after `kill -9` is
removed at the start of the next one of the same name, or of the next session of the laboratory.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ropewalk.lab.runner import STOPPED, RunError, leftovers
from ropewalk.lab.runner.process import tie
from ropewalk.sdn.api import ApiError, ask
from ropewalk.sdn.config import Config, read

START_S = 60.0
"""For programs to start and states to come about, on a machine that does other things too."""
STOP_S = 5.0
_LOOK_S = 0.2
"""Between two looks at a lock that is taken."""
KERNEL_NAMES = {"new-reno": "reno", "cubic": "cubic", "bbr": "bbr"}
"""What Linux calls a plan's congestion controls."""
_SEEDS = 1000
"""More than a network has links."""
_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


class SandboxError(RunError):
    """Something could not be started; the message says what and why."""


class Sandbox:
    """A set of namespaces and processes that share a prefix and a directory."""

    def __init__(
        self,
        prefix: str,
        *,
        number: int | None = None,
        tied: bool = False,
    ) -> None:
        """`number` tells several at once with the same prefix apart. With `tied`, processes die
        with the thread that started them, so also when this program is killed."""
        self.prefix = prefix if number is None else f"{prefix}{number}-"
        self._seeds = itertools.count(_SEEDS * (number or 0) + 1)
        self._tie = tie("KILL") if tied else ()
        self._namespaces: list[str] = []
        self._processes: list[subprocess.Popen[Any]] = []
        self._machines: list[Machine] = []
        self._locks = contextlib.ExitStack()
        self._owned: IO[str] | None = None
        self.directory = Path()

    def __enter__(self) -> Sandbox:
        """Waits for its turn, and removes what an earlier one left.

        Raises:
            SandboxError: when this process may not do that.
        """
        self._lock(leftovers.MEASURING, fcntl.LOCK_SH)
        self._lock(leftovers.own_lock(self.prefix), fcntl.LOCK_EX)
        for name in _namespaces():
            if name.startswith(self.prefix):
                leftovers.remove_namespace(name)
        for left in Path(tempfile.gettempdir()).glob(f"{self.prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        self.directory, file = leftovers.make(self.prefix)
        self._owned = self._locks.enter_context(file)
        return self

    def _lock(self, path: Path, how: int) -> None:
        try:
            file = self._locks.enter_context(path.open("a"))
        except OSError as error:
            raise SandboxError(f"{path}: {error.strerror}; run as root") from error
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting until {path} is free", file=sys.stderr)
            _wait_for(file, path, how)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends processes, then namespaces, then files."""
        for process in reversed(self._processes):
            # All begin to end before the first is waited for: some take seconds.
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            stop(process)
        for name in self._namespaces:
            leftovers.remove_namespace(name)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._locks.close()

    def next_seed(self) -> int:
        """A seed for random losses: no two links, here and beside, lose the same packets."""
        return next(self._seeds)

    def namespace(self, name: str) -> str:
        """A new namespace; its full name."""
        full = self.prefix + name
        assert self._owned is not None, "entered"
        print(full, file=self._owned, flush=True)
        run("ip", "netns", "add", full)
        self._namespaces.append(full)
        run("ip", "-n", full, "link", "set", "lo", "up")
        return full

    def adopt(self, name: str) -> None:
        """A namespace that somebody else made, to be removed at the end."""
        self._namespaces.append(name)

    def start(
        self, namespace: str, *command: str, log: str | None = None, quiet: bool = True
    ) -> subprocess.Popen[Any]:
        """A process in a namespace, ended with the sandbox."""
        output: int | IO[bytes] = subprocess.DEVNULL if quiet else subprocess.PIPE
        if log:
            output = self._locks.enter_context((self.directory / log).open("ab"))
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *self._tie, *command],
            stdout=output,
            stderr=subprocess.STDOUT if quiet or log else None,
            stdin=subprocess.DEVNULL,
            # Ctrl-C is for the caller, who ends it in order.
            process_group=0,
        )
        self._processes.append(process)
        return process

    def machine(self, name: str) -> Machine:
        """A namespace with its own switch."""
        return Machine(self, self.namespace(name))


class Machine:
    """A namespace with a private ovsdb-server and ovs-vswitchd."""

    def __init__(self, sandbox: Sandbox, namespace: str) -> None:
        self.sandbox = sandbox
        self.namespace = namespace
        self.directory = sandbox.directory / namespace
        self.directory.mkdir()
        self.database = f"unix:{self.directory}/db.sock"
        self._controller: subprocess.Popen[Any] | None = None
        self.switch = self._start_switch()

    def _start_switch(self) -> subprocess.Popen[Any]:
        here = self.directory
        run("ovsdb-tool", "create", f"{here}/conf.db", str(_SCHEMA))
        self._spawn(
            "ovsdb-server",
            f"{here}/conf.db",
            f"--remote=punix:{here}/db.sock",
            f"--unixctl={here}/db.ctl",
        )
        wait(lambda: (here / "db.sock").exists(), "ovsdb-server did not start")
        # The socket is there before the server listens.
        wait(self._initialised, "ovsdb-server did not answer")
        switch = self._spawn("ovs-vswitchd", self.database, f"--unixctl={here}/switch.ctl")
        wait(lambda: (here / "switch.ctl").exists(), "ovs-vswitchd did not start")
        return switch

    def _initialised(self) -> bool:
        run("ovs-vsctl", f"--db={self.database}", "--no-wait", "init")
        return True

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[Any]:
        environment = ["env", f"OVS_RUNDIR={self.directory}", f"OVS_LOGDIR={self.directory}"]
        return self.sandbox.start(
            self.namespace, *environment, program, *arguments, log=f"{program}.log"
        )

    def configure(self, text: str) -> Config:
        """Writes a configuration for this machine's switch, with `{here}` filled in."""
        path = self.directory / "sdn.toml"
        head = f'socket = "{self.directory}/api.sock"\nstate_dir = "{self.directory}"\n'
        path.write_text(head + text.replace("DATABASE", self.database))
        return read(path)

    def command(self, config: Config, *arguments: str) -> str:
        """Runs `ropewalk-sdn` here."""
        return self.run(*_program(config), *arguments)

    def run(self, *command: str, seconds: float = 30) -> str:
        """Runs a command here."""
        return inside(self.namespace, *command, seconds=seconds)

    def control(self, config: Config) -> subprocess.Popen[Any]:
        """Starts the controller and waits until the program is installed."""
        controller = self.sandbox.start(
            self.namespace, *_program(config), "run", log=f"{self.namespace}-controller.log"
        )
        wait(lambda: _settled(config), f"the controller of {self.namespace} did not settle")
        return controller

    def flows(self, config: Config, *arguments: str) -> str:
        """What `ovs-ofctl` says of the bridge."""
        what = arguments or ("dump-flows",)
        return run(
            "ovs-ofctl",
            "-O",
            "OpenFlow13",
            what[0],
            f"unix:{self.directory}/{config.bridge.name}.mgmt",
            *what[1:],
        )


def run(*command: str, seconds: float = 30) -> str:
    """Runs a command.

    Raises:
        SandboxError: when it fails; with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise SandboxError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def inside(namespace: str, *command: str, seconds: float = 30) -> str:
    """Runs a command in a namespace."""
    return run("ip", "netns", "exec", namespace, *command, seconds=seconds)


def listens(namespace: str, port: int) -> bool:
    """Whether a program there waits for TCP connections."""
    return bool(inside(namespace, "ss", "-Hltn", f"sport = {port}").strip())


def wait(ready: Callable[[], bool], problem: str, seconds: float = START_S) -> None:
    """Waits until `ready()` is true; what cannot be asked yet is not ready.

    Raises:
        SandboxError: when that takes too long, or the user has given up.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(SandboxError, ApiError):
            if ready():
                return
        if STOPPED.wait(0.05):
            raise SandboxError("stopped")
    raise SandboxError(problem)


def stop(process: subprocess.Popen[Any]) -> None:
    """Asks a process to end, then makes it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _program(config: Config) -> list[str]:
    return [sys.executable, "-m", "ropewalk.sdn", "--config", str(config.path)]


def _settled(config: Config) -> bool:
    return bool(ask(config.socket)["settled"])


def _wait_for(file: IO[str], path: Path, how: int) -> None:
    while not STOPPED.wait(_LOOK_S):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return
    raise SandboxError(f"stopped before {path} was free")


def _namespaces() -> list[str]:
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]
