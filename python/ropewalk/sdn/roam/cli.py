"""The commands `ropewalk-sdn roam` and `ropewalk-sdn ap-agent`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.sdn import api
from ropewalk.sdn.host import changes
from ropewalk.sdn.host.commands import CommandError
from ropewalk.sdn.reader import ConfigError
from ropewalk.sdn.roam import setup
from ropewalk.sdn.roam.agent import Agent, counter
from ropewalk.sdn.roam.config import Config, read
from ropewalk.sdn.roam.notices import NAME

ENVIRONMENT = "ROPEWALK_SDN_ROAM_CONFIG"
DEFAULT = Path("/etc/ropewalk/sdn-roam.toml")

_ROAM = """\
in short:
  ropewalk-sdn roam setup --plan   shows what would be changed on this machine
  ropewalk-sdn roam setup          makes the bridges of the configuration
  ropewalk-sdn roam run            controls them until it is stopped; traffic goes on without it
  ropewalk-sdn roam status         which station is where
  ropewalk-sdn roam teardown       undoes everything setup did

exit status:
  0  done     1  failed, or the controller does not answer     2  wrong usage or configuration
  130  interrupted
"""
_AGENT = """\
example, for an access point whose hostapd.conf has ctrl_interface=/run/hostapd:
  ropewalk-sdn ap-agent --hostapd /run/hostapd/wlan0 --controller 192.0.2.1:6654 \\
      --switch ap1 --port wlan0
"""


def main(arguments: Sequence[str]) -> int:
    """Runs `roam …` or `ap-agent …` and returns the exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments[0] == "ap-agent":
            return _agent(_agent_parser().parse_args(arguments[1:]))
        options = _roam_parser().parse_args(arguments[1:])
        named = os.environ.get(ENVIRONMENT)
        config = read(options.config or (Path(named) if named else DEFAULT))
        return _roam(config, options)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (CommandError, changes.ChangesError, api.ApiError, OSError) as error:
        print(f"ropewalk-sdn: {error}", file=sys.stderr)
        return 1


def _roam_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ropewalk-sdn roam",
        description="Stations that move between access points of OpenFlow switches.",
        epilog=_ROAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"default: ${ENVIRONMENT}, else {DEFAULT}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("check", help="check the configuration")
    make = commands.add_parser("setup", help="make the bridges (as root)")
    make.add_argument("--plan", action="store_true", help="show the commands, change nothing")
    make.add_argument(
        "--only", action="append", metavar="SWITCH", help="of several machines' switches, this one"
    )
    undo = commands.add_parser("teardown", help="undo what setup did (as root)")
    undo.add_argument("--plan", action="store_true", help="show the commands, change nothing")
    commands.add_parser("run", help="control the switches until stopped")
    status = commands.add_parser("status", help="which station is where")
    status.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _agent_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ropewalk-sdn ap-agent",
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
        help="tells a leaving station's flow counter, too, which mode zwa-adaptive compares",
    )
    for name in ("key", "certificate", "authority"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="for TLS, all three")
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"{text} is no address; write it like 192.0.2.1:6654")
    return host, int(port)


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is no name of a switch or port")
    return text


def _agent(options: argparse.Namespace) -> int:
    files = (options.key, options.certificate, options.authority)
    if any(files) and not all(files):
        print("ap-agent: TLS needs --key, --certificate and --authority", file=sys.stderr)
        return 2
    tls = None
    if all(files):
        tls = ssl.create_default_context(cafile=str(options.authority))
        tls.load_cert_chain(options.certificate, options.key)
    place = (options.switch, options.port)
    count = counter(options.counters) if options.counters else None
    Agent(options.hostapd, options.controller, place, tls, count).run()
    return 0


def _roam(config: Config, options: argparse.Namespace) -> int:
    match options.command:
        case "check":
            switches = f"{len(config.switches)} switches, {len(config.links)} links"
            print(f"{config.path}: mode {config.mode}, {switches}: in order")
            return 0
        case "setup":
            return _setup(config, options.plan, options.only)
        case "teardown":
            return _teardown(config, options.plan)
        case "run":
            return _run(config)
        case _:
            report = api.ask(config.socket)
            print(json.dumps(report) if options.json else "\n".join(_lines(report)))
            return 0


def _setup(config: Config, plan_only: bool, only: list[str] | None) -> int:
    path = setup.state_file(config)
    if plan_only:
        print("\n".join(" ".join(step.do) for step in setup.steps(config, only)))
        return 0
    with changes.locked(path):
        record = changes.read(path)
        fingerprint = setup.fingerprint(config)
        if record and record.complete:
            if record.fingerprint != fingerprint:
                raise changes.ChangesError(
                    "the bridges are set up by another configuration; "
                    "run `ropewalk-sdn roam teardown` first"
                )
            print("the bridges are set up already")
            return 0
        if record:
            count = changes.undone(path)
            print(f"undid {count} changes of a setup that was interrupted", file=sys.stderr)
        changes.make(path, fingerprint, setup.steps(config, only))
    print("the bridges are set up; `ropewalk-sdn roam run` controls them")
    return 0


def _teardown(config: Config, plan_only: bool) -> int:
    path = setup.state_file(config)
    if plan_only:
        record = changes.read(path)
        for change in reversed(record.undo if record else ()):
            print(" ".join(change.command))
        return 0
    with changes.locked(path):
        count = changes.undone(path)
    print(f"undid {count} changes" if count else "nothing is set up")
    return 0


def _run(config: Config) -> int:
    # Imported here: os-ken takes a second, which the other commands do not need.
    from ropewalk.sdn.roam.service import Service

    service = Service(config)
    served = api.Api(config.socket, service.report)

    def stop(_number: int, _frame: object) -> None:
        service.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        service.run()
    finally:
        served.close()
    return 0


def _lines(report: dict[str, Any]) -> list[str]:
    switches = report["switches"]
    connected = sum(switch["connected"] for switch in switches)
    lines = [f"{report['mode']}: {connected} of {len(switches)} switches connected"]
    for station in report["stations"]:
        state = "here" if station["here"] else "away"
        place = f"{station['switch']}:{station['port']}"
        lines.append(
            f"  {station['mac']}  {station['address'] or '-':<15} {place:<20} {state:<5}"
            f"{station['kept_packets']:>6} packets kept"
        )
    return lines
