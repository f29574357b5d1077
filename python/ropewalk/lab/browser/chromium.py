"""Chromium without a screen, in a namespace: loads pages and tells how long they took.

The page load time is that of Navigation Timing: from the start of the navigation to the end of the
load event, which waits for every object.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.lab.browser import site
from ropewalk.lab.browser.children import need, run, start, stop
from ropewalk.lab.browser.devtools import DevTools, Event, TimedOutError
from ropewalk.lab.runner import RunError
from ropewalk.plan import Protocol

LOAD_SECONDS = 120.0
"""A page that is not there by then is given up; it counts as having taken so long."""
RELOAD_PAUSE_S = 0.5
"""What people take to see that something is missing; it bounds how often they try."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-features=HttpsUpgrades,LazyImageLoading",
    "--remote-debugging-pipe",
)
_ALPN: dict[Protocol, tuple[str, ...]] = {
    "http/1.1": ("--disable-http2", "--disable-quic"),
    "h2": ("--disable-quic",),
    "h3": ("--enable-quic", "--origin-to-force-quic-on=*"),
}


@dataclass(frozen=True)
class Loaded:
    """A page that was loaded, or given up (`complete` is false then)."""

    seconds: float
    flows: int
    objects: int
    bytes: int
    reloads: int
    complete: bool


@dataclass
class _Transfers:
    """What a page fetched so far."""

    urls: dict[str, str] = field(default_factory=dict)
    got: set[str] = field(default_factory=set)
    flows: set[tuple[str, str]] = field(default_factory=set)
    protocols: set[str] = field(default_factory=set)
    bytes: int = 0

    def note(self, event: Event) -> None:
        """Takes an event of the domain Network."""
        request = str(event.parameters.get("requestId"))
        match event.method:
            case "Network.requestWillBeSent":
                self.urls[request] = str(event.parameters["request"]["url"])
            case "Network.responseReceived":
                self._answered(request, event.parameters["response"])
            case "Network.loadingFinished":
                self.bytes += round(event.parameters.get("encodedDataLength", 0))
                if request in self.urls:
                    self.got.add(self.urls[request])

    def _answered(self, request: str, response: dict[str, Any]) -> None:
        if response["status"] >= 400:
            raise RunError(f"the server answers {response['status']} for {response['url']}")
        if response.get("fromDiskCache") or not response.get("remoteIPAddress"):
            return
        self.protocols.add(str(response.get("protocol")))
        # HTTP/3 has one connection to an origin and no number for it.
        self.flows.add((str(response["remoteIPAddress"]), str(response.get("connectionId", 0))))


def program() -> str:
    """Chromium, or its part that needs no screen.

    Raises:
        UnavailableError: when neither is installed.
    """
    return need("chromium-headless-shell", "chromium-headless-shell", "chromium")


def version() -> str:
    """What the program says of itself."""
    return run(program(), "--version").strip()


class Chromium:
    """A running browser with an empty profile."""

    def __init__(
        self,
        namespace: str,
        protocol: Protocol,
        mptcp: bool,
        pin: str,
        origins: Iterable[int],
        directory: Path,
        stopped: threading.Event,
    ) -> None:
        """Starts it. `pin` is the digest of the server's key, `origins` are those it will meet.

        `stopped` ends whatever is waited for.
        """
        self._protocol = protocol
        rules = ",".join(f"MAP {site.host(o)} {site.address(o)}" for o in sorted(origins))
        command = (
            *((need("mptcpize", "mptcpize"), "run") if mptcp else ()),
            program(),
            *_FLAGS,
            *_ALPN[protocol],
            f"--user-data-dir={directory}/profile",
            f"--ignore-certificate-errors-spki-list={pin}",
            f"--host-resolver-rules={rules}",
            "about:blank",
        )
        self._process, self.tools = _piped(namespace, command, directory, stopped)

    def stop(self) -> None:
        """Ends it with its helpers."""
        # What was started may be a script around the browser, which ends when its pipe does.
        with contextlib.suppress(RunError):
            self.tools.call("Browser.close")
        self.tools.close()
        stop(self._process)

    def open(self) -> tuple[str, str]:
        """A window of its own, without anything that earlier ones kept; its context and session."""
        context = self.tools.call("Target.createBrowserContext")["browserContextId"]
        target = self.tools.call(
            "Target.createTarget", url="about:blank", browserContextId=context
        )["targetId"]
        session = self.tools.call("Target.attachToTarget", targetId=target, flatten=True)
        return context, session["sessionId"]

    def close(self, context: str) -> None:
        """Closes a window."""
        self.tools.call("Target.disposeBrowserContext", browserContextId=context)

    def visit(self, session: str, url: str) -> None:
        """Opens a page in a window and waits until it is there.

        Raises:
            RunError: when it does not come, or takes too long.
        """
        self.tools.call("Page.enable", session)
        found = self.tools.call("Page.navigate", session, url=url)
        if "errorText" in found:
            raise RunError(f"{url}: {found['errorText']}")
        try:
            self._until_loaded(session, _Transfers(), time.monotonic() + LOAD_SECONDS)
        except TimedOutError:
            raise RunError(f"{url} did not load within {LOAD_SECONDS:g} s") from None

    def evaluate(self, session: str, expression: str) -> object:
        """The value of a JavaScript expression in a window."""
        found = self.tools.call(
            "Runtime.evaluate", session, expression=expression, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RunError(f"{expression}: {found['exceptionDetails'].get('text')}")
        value: object = found["result"].get("value")
        return value

    def load(self, url: str, wanted: frozenset[str]) -> Loaded:
        """Loads a page in a new window; again, as people do, while objects are missing.

        Raises:
            RunError: when it came over another protocol than the one asked for.
        """
        context, session = self.open()
        for domain in ("Page", "Network"):
            self.tools.call(f"{domain}.enable", session)
        transfers = _Transfers()
        began = time.monotonic()
        reloads, seconds = 0, LOAD_SECONDS
        try:
            self.tools.call("Page.navigate", session, url=url)
            while True:
                self._until_loaded(session, transfers, began + LOAD_SECONDS)
                seconds = time.monotonic() - began
                if wanted <= transfers.got:
                    break
                reloads += 1
                time.sleep(RELOAD_PAUSE_S)
                self.tools.call("Page.reload", session)
            if not reloads:
                seconds = self._navigation_seconds(session)
        except TimedOutError:
            pass
        finally:
            self.tools.forget()
        complete = wanted <= transfers.got
        self.close(context)
        if transfers.protocols - {self._protocol}:
            raise RunError(f"{url} came over {', '.join(sorted(transfers.protocols))}")
        return Loaded(
            seconds if complete else LOAD_SECONDS,
            len(transfers.flows),
            len(transfers.got),
            transfers.bytes,
            reloads,
            complete,
        )

    def _until_loaded(self, session: str, transfers: _Transfers, end: float) -> None:
        while True:
            event = self.tools.event(end)
            if event.session != session:
                continue
            transfers.note(event)
            if event.method == "Page.loadEventFired":
                return

    def _navigation_seconds(self, session: str) -> float:
        """The end of the load event; the event is told before it ends."""
        expression = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        for _ in range(100):
            value = self.evaluate(session, expression)
            if isinstance(value, int | float) and value > 0:
                return value / 1e3
        raise RunError("the browser tells no end of the load event")


def _piped(
    namespace: str, command: tuple[str, ...], directory: Path, stopped: threading.Event
) -> tuple[subprocess.Popen[bytes], DevTools]:
    """Starts the browser with its debugging pipes, which it wants as descriptors 3 and 4."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    try:
        with os.fdopen(to_read, "rb") as source, os.fdopen(from_write, "wb") as sink:
            shell = ("sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >&2', "sh", *command)
            environment = {"HOME": str(directory), "TMPDIR": str(directory)}
            log = directory / "chromium.log"
            process = start(namespace, shell, log, environment, source, sink)
    except BaseException:
        os.close(to_write)
        os.close(from_read)
        raise
    return process, DevTools(from_read, to_write, stopped)
