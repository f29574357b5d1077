"""The command `ropewalk-sdn ap-agent`."""

from __future__ import annotations

import argparse
import re
import ssl
import sys
from pathlib import Path
from typing import Any

from ropewalk.sdn import endpoint
from ropewalk.sdn import tls as tls_files
from ropewalk.sdn.roam.agent import Agent, counter
from ropewalk.sdn.roam.notices import NAME

_NAMED = re.compile(r"([A-Za-z0-9.-]*[A-Za-z][A-Za-z0-9.-]*):([0-9]+)")
_AGENT = """\
example, for an access point whose hostapd.conf has ctrl_interface=/run/hostapd:
  ropewalk-sdn ap-agent --hostapd /run/hostapd/wlan0 --controller 192.0.2.1:6654 \\
      --switch ap1 --port wlan0
"""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse names its type in private
    """Adds the command to those of `ropewalk-sdn`."""
    parser = commands.add_parser(
        "ap-agent",
        help="at an access point, for mode roam",
        description="At an access point: tells the controller what hostapd says of stations.",
        epilog=_AGENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hostapd", type=Path, required=True, metavar="SOCKET", help="hostapd's control socket"
    )
    parser.add_argument(
        "--controller",
        type=_address,
        required=True,
        metavar="HOST:PORT",
        help="`notices` of the controller's configuration",
    )
    parser.add_argument(
        "--switch", type=_name, required=True, help="this access point's switch, as configured"
    )
    parser.add_argument("--port", type=_name, required=True, help="the switch's port to stations")
    parser.add_argument(
        "--counters",
        metavar="BRIDGE",
        help="tells how many bytes a leaving station was given, too: scheme zwa-adaptive compares",
    )
    for name in ("key", "certificate", "authority"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="for TLS, all three")


def run(options: argparse.Namespace) -> int:
    """Runs the agent until it is stopped, which counts as success; the exit status."""
    files = (options.key, options.certificate, options.authority)
    if any(files) and not all(files):
        print("ap-agent: TLS needs --key, --certificate and --authority", file=sys.stderr)
        return 2
    tls = None
    if all(files):
        try:
            tls = tls_files.context(ssl.Purpose.SERVER_AUTH, *files)
        except tls_files.TlsError as error:
            print(f"ap-agent: {error}; mend --key, --certificate, --authority", file=sys.stderr)
            return 2
    place = (options.switch, options.port)
    count = counter(options.counters, options.port) if options.counters else None
    try:
        return 0 if Agent(options.hostapd, options.controller, place, tls, count).run() else 1
    except KeyboardInterrupt:
        return 0


def _address(text: str) -> tuple[str, int]:
    named = _NAMED.fullmatch(text)
    try:
        # A name, of a host or of none, has a port as an address has.
        known = endpoint.parse(f"192.0.2.1:{named[2]}" if named else text)
    except ValueError as error:
        problem = f"{text} is no address; write it like 192.0.2.1:6654"
        raise argparse.ArgumentTypeError(problem) from error
    if known.path is not None:
        raise argparse.ArgumentTypeError(f"{text} is a file; the controller has an address")
    return named[1] if named else known.host, known.port


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is no name of a switch or port")
    return text
