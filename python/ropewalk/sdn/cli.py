"""The command `ropewalk-sdn`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from ropewalk import __version__
from ropewalk.sdn import api, modes
from ropewalk.sdn.happened import Happened
from ropewalk.sdn.host import certificates, changes, plan
from ropewalk.sdn.host.commands import CommandError
from ropewalk.sdn.modes import AnyConfig
from ropewalk.sdn.reader import ConfigError
from ropewalk.sdn.roam import agent_cli

ENVIRONMENT = "ROPEWALK_SDN_CONFIG"
DEFAULT = Path("/etc/ropewalk/sdn.toml")
_CONFIG = f"default: ${ENVIRONMENT}, else {DEFAULT}"
_WITHOUT_CONFIG = ("ap-agent", "completions")
"""Commands that take `--config` as all do, and do not use it."""

_EPILOG = """\
in short:
  ropewalk-sdn setup --plan     shows what would be changed on this machine
  ropewalk-sdn setup            makes the bridge, its ports and the application's interface
  ropewalk-sdn run              controls the bridge until it is stopped; traffic goes on without it
  ropewalk-sdn status           what each uplink does, or which station is where
  ropewalk-sdn dashboard        prints a link to a page that shows the same in a browser
  ropewalk-sdn teardown         undoes everything setup did

exit status:
  0  done     1  failed, or the controller does not answer     2  wrong usage or configuration
  130  interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file's name may be bytes that are not text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = make_parser().parse_args(arguments)
    finally:
        # The help, which is printed there.
        with contextlib.suppress(OSError):
            _put("", sys.stdout)
    logging.basicConfig(
        level=logging.DEBUG if getattr(options, "verbose", False) else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _done(options)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        _warn(str(error))
        return 2
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("os_ken"):
            raise
        _warn("ropewalk-sdn: os-ken is missing: install this program with its extra [sdn]")
        return 1
    except (CommandError, changes.ChangesError, api.ApiError, OSError) as error:
        _warn(f"ropewalk-sdn: {error}")
        return 1


def _done(options: argparse.Namespace) -> int:
    match options.command:
        case "completions":
            _say(_COMPLETIONS[options.shell].strip())
            return 0
        case "ap-agent":
            return agent_cli.run(options)
    config = modes.configuration(_path(options.config))
    match options.command:
        case "check":
            modes.check_files(config)
            _say(f"{config.path}: {modes.summary(config)}: in order")
            return 0
        case "setup":
            return _setup(config, options.plan, options.only)
        case "teardown":
            return _teardown(config, options.plan)
        case "run":
            return _run(config)
        case "certificates":
            return _certificates(config, options)
        case "dashboard":
            return _dashboard(config, options.port)
        case _:
            return _status(config, options.json)


def _say(text: str) -> None:
    _put(text + "\n", sys.stdout)


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):
        _put(text + "\n", sys.stderr)


def _put(text: str, stream: TextIO | None) -> None:
    """Prints at once. A reader that closed our output has seen enough: so ends `status | head`.

    Raises:
        OSError: when it cannot be written for another reason, as on a disk that is full.
    """
    if stream is None:
        return
    try:
        # Nothing written is an error, too, where there is no room.
        if text:
            stream.write(text)
        stream.flush()
    except OSError as error:
        # What is left in the stream would fail once more when the program ends.
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="ropewalk-sdn",
        description="Several uplinks on Open vSwitch: copies over all of them (bicast), or each "
        "new flow over one of them (balance); stations that move between switches (roam).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ropewalk-sdn {__version__}")
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help=f"{_CONFIG}; before or after the command",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("check", help="check the configuration")
    for name, text in (
        ("setup", "prepare this machine (as root)"),
        ("teardown", "undo what setup did (as root)"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--plan", action="store_true", help="show the commands, change nothing"
        )
        if name == "setup":
            command.add_argument(
                "--only",
                action="append",
                default=[],
                metavar="SWITCH",
                help="mode roam: of several machines' switches, this one",
            )
    run = commands.add_parser("run", help="control the bridge until stopped")
    run.add_argument("-v", "--verbose", action="store_true", help="log decisions too")
    status = commands.add_parser("status", help="what the running controller sees and does")
    status.add_argument("--json", action="store_true", help="one JSON object")
    dashboard = commands.add_parser(
        "dashboard",
        help="what the running controller sees and does, in a browser on this machine",
        description="Prints a link to a page for looking. It listens on 127.0.0.1 only, until "
        "Ctrl-C. The link is a secret: whoever opens it may look.",
    )
    dashboard.add_argument(
        "--port", type=_port, default=0, help="TCP port on 127.0.0.1, 1 to 65535; a free one else"
    )
    _add_certificates(commands)
    agent_cli.add(commands)
    completions = commands.add_parser("completions", help="print completions for a shell")
    completions.add_argument("shell", choices=sorted(_COMPLETIONS))
    for name, command in commands.choices.items():
        # Without a default, which would take the place of what was given before the command.
        command.add_argument(
            "-c",
            "--config",
            type=Path,
            metavar="FILE",
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS if name in _WITHOUT_CONFIG else _CONFIG,
        )
    return parser


def _add_certificates(commands: Any) -> None:  # noqa: ANN401 - argparse names its type in private
    command = commands.add_parser(
        "certificates",
        help="make an authority, and certificates of controller, switches and agents",
        description="Makes keys and certificates for TLS, by openssl, and leaves those that are "
        "there already. Keep authority.key: who has it can be any switch and any agent.",
    )
    command.add_argument("directory", type=Path, help="where the files come")
    command.add_argument(
        "--host", action="append", default=[], help="a further name or address of the controller"
    )
    command.add_argument(
        "--together",
        action="store_true",
        help="mode roam: all switches are on one machine, and share one certificate",
    )
    command.add_argument("--days", type=_days, default=certificates.DAYS, help="1 to 36500")


def _days(text: str) -> int:
    if not _is_short_number(text) or not 0 < int(text) <= 36_500:
        raise argparse.ArgumentTypeError(f"{text} is none of 1 to 36500")
    return int(text)


def _port(text: str) -> int:
    if not _is_short_number(text) or not 0 < int(text) < 65_536:
        raise argparse.ArgumentTypeError(f"{text} is none of 1 to 65535")
    return int(text)


def _is_short_number(text: str) -> bool:
    """Python refuses to read numbers of thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 5


def _path(given: Path | None) -> Path:
    named = os.environ.get(ENVIRONMENT)
    return given or (Path(named) if named else DEFAULT)


def _certificates(config: AnyConfig, options: argparse.Namespace) -> int:
    try:
        holders = modes.holders(config, options.host, options.together)
    except ValueError as error:
        _warn(f"ropewalk-sdn: {error}; mend --host")
        return 2
    new = certificates.made(options.directory, holders, options.days)
    for name in new:
        _say(f"{options.directory / name}.crt")
    if not new:
        _say(f"{options.directory}: all there already")
    return 0


def _setup(config: AnyConfig, plan_only: bool, only: Sequence[str]) -> int:
    path = modes.state_file(config)
    name = ", ".join(only) or modes.bridges(config)
    fingerprint = " ".join((modes.fingerprint(config), *sorted(only)))
    modes.check_files(config)
    if plan_only:
        if _is_done(changes.read(path), fingerprint, name):
            _say(f"{name}: set up already")
        else:
            _say("\n".join(plan.written(modes.steps(config, only))))
        return 0
    with changes.locked(path):
        record = changes.read(path)
        if _is_done(record, fingerprint, name):
            _say(f"{name}: set up already")
            return 0
        if record:
            count = changes.undone(path)
            why = "before the last start" if record.complete else "that was interrupted"
            _warn(f"undid {count} changes of a setup {why}")
        changes.make(path, fingerprint, modes.steps(config, only))
    _say(f"{name}: set up; `ropewalk-sdn run` is the controller")
    return 0


def _is_done(record: changes.Record | None, fingerprint: str, name: str) -> bool:
    """Whether a setup is there; raises ChangesError when it is another's."""
    if not record or not record.complete or not changes.is_of_this_boot(record):
        return False
    if record.fingerprint != fingerprint:
        raise changes.ChangesError(
            f"{name}: this machine is set up by another configuration or for other switches; "
            "run `ropewalk-sdn teardown` first"
        )
    return True


def _teardown(config: AnyConfig, plan_only: bool) -> int:
    path = modes.state_file(config)
    if plan_only:
        record = changes.read(path)
        for change in reversed(record.undo if record else ()):
            _say(" ".join(change.command))
        return 0
    with changes.locked(path):
        count = changes.undone(path)
    _say(f"undid {count} changes" if count else "nothing is set up")
    return 0


def _run(config: AnyConfig) -> int:
    past = Happened()
    logging.getLogger("ropewalk.sdn").addHandler(past)
    controller = modes.controller(config)

    def stop(_number: int, _frame: object) -> None:
        controller.stop()

    # Before the socket is made: an interruption would leave it.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        served = api.Api(config.socket, controller.report, past.lines)
    except BaseException:
        # Ends what it has begun to listen on.
        controller.stop()
        controller.run()
        raise
    try:
        controller.run()
    finally:
        served.close()
    return 0


def _dashboard(config: AnyConfig, port: int) -> int:
    from ropewalk.sdn.dashboard import server

    def told(link: str) -> None:
        _say(link)
        _warn("open this link in a browser on this machine; Ctrl-C ends it")

    server.serve(port, config.socket, told)
    return 0


def _status(config: AnyConfig, as_json: bool) -> int:
    report = api.ask(config.socket)
    try:
        text = json.dumps(report) if as_json else "\n".join(modes.lines(report))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise api.ApiError(
            f"{config.socket}: the controller's report is not of this version ({error!r}); "
            "restart `ropewalk-sdn run`"
        ) from error
    _say(text)
    return 0


_WORDS = "check setup teardown run status dashboard certificates ap-agent completions"
_OPTIONS = "-c --config --plan --only --json --host --together --days --port --help --version"
_COMPLETIONS = {
    "bash": f"""
complete -o default -W "{_WORDS} {_OPTIONS}" ropewalk-sdn
""",
    "zsh": f"""
#compdef ropewalk-sdn
_arguments {{-c,--config}}'[configuration]:file:_files' \\
  '1:command:({_WORDS})' '*:option:(--plan --json)'
""",
    "fish": f"""
complete -c ropewalk-sdn -f -a "{_WORDS}"
complete -c ropewalk-sdn -s c -l config -r
complete -c ropewalk-sdn -l plan
complete -c ropewalk-sdn -l json
""",
}
