"""Parts of tests of the dashboard: a window of Chromium, a gateway of a few lines, the program."""

from __future__ import annotations

import base64
import json
import os
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from importlib import resources
from pathlib import Path
from typing import Any

from docs_world import Machine, World, must

from ropewalk.lab.browser.chromium import program
from ropewalk.lab.browser.devtools import DevTools

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_S = 15.0
# Attempts at a page.
OPENINGS = 5


class Window:
    """A browser with one window, and what a person does in it."""

    def __init__(self, directory: Path, inside: Sequence[str] = ()) -> None:
        """`inside` is a command before that of the browser, such as one that enters a namespace."""
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        shell = ("sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', "sh")
        profile = f"--user-data-dir={directory}/profile"
        with os.fdopen(to_read, "rb") as source, os.fdopen(from_write, "wb") as sink:
            self.process = subprocess.Popen(
                [*inside, *shell, program(), *FLAGS, profile, "about:blank"],
                stdin=source,
                stdout=sink,
                env={**os.environ, "HOME": str(directory), "TMPDIR": str(directory)},
            )
        self.tools = DevTools(from_read, to_write, threading.Event())
        target = self.tools.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.tools.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        return self.tools.call(method, self.session, **parameters)

    def open(self, url: str) -> None:
        # Another fragment alone would load nothing.
        self.call("Page.navigate", url="about:blank")
        # A browser with a screen loads a page again by itself that a change of the network ended.
        for _ in range(OPENINGS):
            if "errorText" not in self.call("Page.navigate", url=url):
                return
            time.sleep(0.5)

    def block(self, *parts: str) -> None:
        """Requests whose address contains one of the parts fail from now on, and no others."""
        self.call("Network.setBlockedURLs", urls=[f"*{part}*" for part in parts])

    def size(self, width: int, height: int, dark: bool, mobile: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def value(self, expression: str, waits: bool = False) -> Any:  # noqa: ANN401
        """The value of an expression; of what it promises if it `waits`."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=waits
        )
        assert "exceptionDetails" not in found, (expression, found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = PATIENCE_S) -> Any:  # noqa: ANN401
        """Waits until an expression is true; its value. What it needs may not be there yet."""
        end = time.monotonic() + seconds
        # An element is as good as true.
        safe = (
            f"(() => {{ try {{ const v = {expression}; return v instanceof Node || v; }} "
            "catch { return null; } })()"
        )
        while not (value := self.value(safe)):
            if time.monotonic() > end:
                text = self.value("document.body?.innerText ?? ''")
                raise AssertionError(
                    f"not within {seconds} s: {expression}; the page: {text[:2000]}"
                )
            time.sleep(0.05)
        return value

    def press(self, label: str) -> None:
        """Presses the button with this name, as people and screen readers know it."""
        quoted = json.dumps(label)
        self.until(
            f"(() => {{ const b = [...document.querySelectorAll('button')].find((b) => "
            f"(b.getAttribute('aria-label') ?? b.textContent) === {quoted} && !b.disabled && "
            "b.offsetParent); b?.click(); return Boolean(b); })()"
        )

    def key(self, key: str, code: int, text: str = "", shift: bool = False) -> None:
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=8 if shift else 0,
                **extra,
            )

    def complaints(self) -> list[str]:
        """What the browser complained of: scripts that failed, what the policy forbids."""
        self.value("1")
        found: list[str] = []
        # Those that came with the answers above are there already.
        while True:
            try:
                event = self.tools.event(time.monotonic() + 0.05)
            except Exception:
                return found
            if event.method == "Runtime.exceptionThrown":
                found.append(json.dumps(event.parameters["exceptionDetails"])[:500])
            elif event.method == "Log.entryAdded":
                entry = event.parameters["entry"]
                if entry["level"] in ("error", "warning"):
                    found.append(f"{entry['text']} {entry.get('url', '')}")

    def picture(self) -> bytes:
        shot = self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])

    def accessibility(self) -> list[str]:
        """What axe-core finds on the page as it is."""
        source = (resources.files("axe_core_python") / "axe.min.js").read_text("utf-8")
        if self.value("typeof axe") != "object":
            self.value(source + "; 1")
        found = self.value(
            "axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) => "
            "v.id + ': ' + v.nodes.map((n) => n.html).slice(0, 3).join(' ')))",
            waits=True,
        )
        return list(found)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.tools.close()


def words(about: str, weight: str, text: str) -> dict[str, str]:
    return {"about": about, "weight": weight, "text": text}


def path(name: str, said: list[dict[str, str]], state: str = "up") -> dict[str, Any]:
    return {
        "id": 0, "uplink": name, "state": state, "transport": "quic", "local": None,
        "remote": "203.0.113.2:4443", "standby": False, "metered": False, "congestion": "bdp",
        "last_error": None, "words": said, "rtt_ms": 20.0, "loss": 0.01, "rate_mbit": 20.0,
        "full_mbit": 4.25, "tx_bytes": 1_000_000, "rx_bytes": 2_000_000,
    }  # fmt: skip


def tunnel(name: str, paths: list[dict[str, Any]], up: bool = True) -> dict[str, Any]:
    return {
        "peer": name, "peer_key": "", "up": up, "peer_addresses": ["10.9.0.2"],
        "scheduler_send": "auto", "scheduler_receive": "auto", "wire_version": 3,
        "reason": "both carry what they can", "paths": paths, "tx_bytes": int(time.time() * 1e5),
    }  # fmt: skip


def status(role: str, tunnels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "role": role, "version": "1.2.3", "public_key": "", "interface": "ropewalk0", "mtu": 1500,
        "addresses": ["10.9.0.1/24"], "uptime_s": 61.0, "offloads": [], "tunnels": tunnels,
        "drops": {}, "words": [],
    }  # fmt: skip


def balanced(name: str, share: float, reason: str, state: str = "up") -> dict[str, Any]:
    return {
        "uplink": name, "number": 1, "mark": 0, "state_ipv4": state, "state_ipv6": "none",
        "share_ipv4": share, "share_ipv6": 0.0, "reason": reason, "weight": None,
        "capacity_mbit": 20.0, "capacity_measured": True, "load_mbit": 3.0, "rtt_ms": 30.0,
        "metered": False, "standby": False, "flows": 7, "tx_bytes": 1_000_000,
        "rx_bytes": 2_000_000, "failures": 2, "severed": 5,
    }  # fmt: skip


def balance(uplinks: list[dict[str, Any]], rules: list[dict[str, Any]]) -> dict[str, Any]:
    state = {"mode": "weighted", "affinity_s": 300, "uplinks": uplinks, "rules": rules}
    return {**status("balance", []), "interface": "", "addresses": [], "balance": state}


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class FakeGateway:
    """The API of a gateway on a Unix socket, with answers of the test; remembers changes."""

    def __init__(self, socket: Path, status: Callable[[], dict[str, Any]]) -> None:
        self.status = status
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self.happened: list[dict[str, Any]] = []
        self.asked = 0
        # Of all that the charts show.
        self.scale = 1.0
        self.now: Callable[[], float] = time.time
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return "socket"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                gateway.asked += 1
                self._answer(gateway.look(self.path))

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", "0"))
                body = json.loads(self.rfile.read(length) or b"{}")
                gateway.changes.append((self.path, body))
                answers = {
                    "/v1/scheduler": {"changed": 1},
                    "/v1/sites/reload": {"reloaded": "sites"},
                }
                self._answer(answers.get(self.path, {"ok": True}))

            def _answer(self, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = True

        self.server = _UnixServer(str(socket), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def look(self, path: str) -> object:
        if path.partition("?")[0] == "/v1/status":
            return self.status()
        if path == "/healthz":
            return {"ok": True}
        if path == "/v1/happened":
            return self.happened
        if path == "/v1/scheduler":
            schedulers = [
                {"name": name, "description": f"rule of {name}"} for name in ("auto", "htmt")
            ]
            one = {"peer": "hub", "reason": "", "receive": "auto", "send": "auto"}
            return {"available": schedulers, "tunnels": [one]}
        assert path.startswith("/v1/history"), path
        last = path.partition("last=")[2]
        return self.history(int(last or 300))

    def history(self, count: int) -> dict[str, Any]:
        end = int(self.now())
        status = self.status()
        names = {
            "site": [p["uplink"] for t in status["tunnels"] for p in t["paths"]],
            "balance": [
                uplink["uplink"] for uplink in status.get("balance", {}).get("uplinks", [])
            ],
        }.get(status["role"], ["all sites"])

        def wave(index: int, scale: float) -> list[float | None]:
            scale *= self.scale
            return [scale * (1 + (end - at + index) % 7) for at in reversed(range(count))]

        uplinks = [
            {
                "name": name,
                "sent": wave(index, 1e5),
                "received": wave(index, 4e5),
                "rtt_ms": wave(index, 9.0),
                "loss": wave(index, 0.004),
            }
            for index, name in enumerate(names)
        ]
        ups: list[float | None] = [1.0] * count
        offered = wave(0, 3e5)
        return {"step_s": 1, "end_s": end, "offered": offered, "up": ups, "uplinks": uplinks}

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Dashboard:
    """`ropewalk dashboard` for the gateway behind a socket."""

    def __init__(
        self, binary: Path, socket: Path, *arguments: str, config: Path | None = None
    ) -> None:
        command = [str(binary), "--socket", str(socket), *arguments]
        if config:
            command += ["--config", str(config)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        assert self.link.startswith("http://127.0.0.1:"), self.link

    def memory_kib(self) -> int:
        """What only this process has in memory."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        lines = [line.split() for line in text.splitlines()[1:]]
        private = {"Private_Clean:", "Private_Dirty:"}
        return sum(int(line[1]) for line in lines if line[0] in private)

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")")[-1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def link_of(machine: Machine) -> str:
    """Starts the dashboard of a machine; its link."""
    must(machine, "ropewalk dashboard >link.txt 2>&1 &")
    for _ in range(100):
        _, text = machine.run("cat link.txt")
        if "http://" in text:
            return text.split()[0]
        time.sleep(0.1)
    raise AssertionError(f"no link: {text}")


def until(machine: Machine, command: str) -> None:
    """Waits until a command succeeds."""
    must(machine, f"for i in $(seq 75); do {command} && break; sleep 0.2; done; {command}")


def begin_hub(hub: Machine) -> None:
    """Starts a hub."""
    must(hub, "ropewalk hub --init --public hub.example.org:4443")
    must(hub, "ropewalk hub >hub.log 2>&1 &")
    until(hub, "ropewalk status >/dev/null 2>&1")


def join(world: World, name: str, machine: Machine, before: str = "true") -> None:
    """Makes a machine a site of the hub, runs a command, and starts the site."""
    status, token = world.machines["hub"].run(f"ropewalk invite {name} 2>/dev/null")
    assert status == 0, token
    must(machine, f"echo {token.strip()} | ropewalk join")
    must(machine, before)
    must(machine, "ropewalk up >up.log 2>&1 &")
    until(machine, "ropewalk status 2>/dev/null | grep -q 'hub up'")


def inside(machine: Machine) -> tuple[str, ...]:
    """What runs a program in the network of a machine."""
    return ("nsenter", f"--net=/proc/{machine.pid}/ns/net")
