"""Where something listens: an IP address and port, or a socket in the file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

_UNIX = "unix:"
_PATH_BYTES_MAX = 107
"""Bytes of a socket's path (sockaddr_un without its end)."""
_SECONDS_MAX = 5.0
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Endpoint:
    """`host` and `port`, or `path` alone, whose owner decides who may connect."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        """As Open vSwitch and the configuration write it."""
        if self.path is not None:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_anywhere(self) -> bool:
        """Whether it is all addresses of this machine, which nobody can connect to as such."""
        return self.path is None and ip_address(self.host).is_unspecified


def shown(address: object) -> str:
    """The address of a peer as `socket` gives it; "" for one without."""
    if not isinstance(address, tuple) or len(address) < 2:
        return ""
    return str(Endpoint(str(address[0]), int(address[1])))


def parse(text: str) -> Endpoint:
    """Reads "192.0.2.1:6653", "[2001:db8::1]:6653" or "unix:/run/…".

    Raises:
        ValueError: when it is none of these; the message says what it lacks.
    """
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        is_file = path.startswith("/") and Path(path).name not in ("", "..") and "\0" not in path
        if not is_file or len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise ValueError(f'"{text}" is no absolute path of at most {_PATH_BYTES_MAX} bytes')
        return Endpoint(path=Path(path))
    host, _, port = text.rpartition(":")
    is_short = port.isascii() and port.isdecimal() and len(port) <= 5
    if not is_short or not 0 < int(port) < 65_536:
        raise ValueError(f'"{text}" is no address with a port')
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ip_address(host[1:-1] if bracketed else host)
    except ValueError as error:
        raise ValueError(f'"{text}" is no address: {error}') from error
    is_6 = isinstance(address, IPv6Address)
    if is_6 != bracketed:
        raise ValueError(f'"{text}" is no address: brackets are for IPv6, and IPv6 needs them')
    return Endpoint(str(address), int(port))


def listener(endpoint: Endpoint, backlog: int) -> socket.socket:
    """A socket that listens there.

    One in the file system is for its directory's owner alone: that is whom Open vSwitch runs as.
    What a listener that was killed has left there is replaced.

    Raises:
        OSError: when it cannot be listened on; the message says where.
    """
    try:
        return _listener(endpoint, backlog)
    except OSError as error:
        # The error for a path that is too long lacks a number.
        problem = error.strerror or error
        raise OSError(f"cannot listen on {endpoint}: {problem}; {_remedy(error)}") from error


def _remedy(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "is this controller running already? Stop it, or choose another"
        case errno.EADDRNOTAVAIL:
            return "name an address of this machine"
        case errno.EACCES | errno.EPERM:
            return "run as root"
        case errno.ENOENT:
            return "make the directory, or choose another; Open vSwitch makes its own when it runs"
        case _:
            return "choose another"


def _listener(endpoint: Endpoint, backlog: int) -> socket.socket:
    if endpoint.path is None:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        return socket.create_server((endpoint.host, endpoint.port), family=family, backlog=backlog)
    made = socket.socket(socket.AF_UNIX)
    try:
        with _alone(endpoint.path):
            _remove_dead(endpoint.path)
            # Before it is bound, because nobody else may connect in between.
            os.fchmod(made.fileno(), 0o600)
            made.bind(str(endpoint.path))
            owner = endpoint.path.parent.stat()
            # The socket's owner, not that of what others may have put in its place by now.
            os.chown(endpoint.path, owner.st_uid, owner.st_gid, follow_symlinks=False)
            made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made


def closed(made: socket.socket, endpoint: Endpoint) -> None:
    """Ends listening, and removes what it was in the file system."""
    # Wakes who waits in `accept`, which closing alone does not.
    with contextlib.suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)
    made.close()
    if endpoint.path is not None:
        # Unless another has its place by now.
        with contextlib.suppress(OSError), _alone(endpoint.path):
            _remove_dead(endpoint.path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lets those that start at once make their sockets one after the other: what one has bound and
    the other finds not yet listening looks dead.

    By a file of its own: a directory can be locked by all who may read it.
    """
    deadline = time.monotonic() + _SECONDS_MAX
    lock = path.with_name(f".{path.name}.lock")
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise OSError(errno.EBUSY, f"{lock} is locked by another") from None
                time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(held)


def _remove_dead(path: Path) -> None:
    """Removes a socket that nobody listens on.

    Raises:
        OSError: when somebody does, or it is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is something that is no socket")
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_SECONDS_MAX)
        # Only a refusal says that nobody listens: who does may be too busy to be reached.
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise OSError(errno.EADDRINUSE, "somebody listens there already")
