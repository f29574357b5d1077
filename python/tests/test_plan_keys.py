"""What a plan says is obeyed or refused: every key of the schema, one by one.

The schema is read from the code by `scripts/reference`. A new key needs a case here: what is to be
written, and whether the simulator obeys or refuses it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, fields, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path as File
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("ropewalk._native", reason="the native module is not installed")

from ropewalk import _native
from ropewalk import report as reports
from ropewalk.lab.cell import Cell
from ropewalk.lab.runner import UnavailableError, ns3, ns3_chain
from ropewalk.plan import Chain, Change, Direct, Link, Path, Plan, Tcp

ROOT = File(__file__).resolve().parents[2]

HEAD = 'name = "x"\nduration = "2s"\n'
A = '[[path]]\nname = "a"\nboth = { rate = "8Mbit", delay = "10ms", queue = "32KiB" }\n'
B = '[[path]]\nname = "b"\nboth = { rate = "4Mbit", delay = "20ms", queue = "32KiB" }\n'
SECOND = '[[path]]\nname = "b"\n'
TCP = '[[traffic]]\nkind = "tcp"\n'
BARE = HEAD + A + B + TCP
LOSSY = BARE.replace('"32KiB" }', '"32KiB", loss = "3%" }')
TUNNEL = LOSSY + '[carrier]\nkind = "tunnel"\n'
UP = TUNNEL.replace('kind = "tcp"', 'kind = "tcp"\ndirection = "up"')
ROW = BARE + '[carrier]\nkind = "chain"\nhops = ["a", "b"]\n'
RELAY = LOSSY + '[carrier]\nkind = "relay"\nhops = [["a"], ["b"]]\n'
RENO_ROW = ROW.replace(TCP, f'{TCP}congestion = "new-reno"\n')
CODED = LOSSY.replace(TCP, f'{TCP}direction = "up"\n') + (
    '[carrier]\nkind = "tcp-nc"\nhops = ["a", "b"]\nn = 10\nk = 2\n'
)
BALANCE = BARE + '[carrier]\nkind = "balance"\n'
GILBERT = BARE.replace(
    '"32KiB" }', '"32KiB", gilbert = { p = 0.02, r = 0.5, loss_good = 0.0, loss_bad = 1.0 } }'
)


SHARED = BARE.replace(SECOND, f'{SECOND}through = "cell"\n') + (
    '[[link]]\nname = "cell"\nboth = { rate = "2Mbit", delay = "5ms" }\n'
)
SHARED_BY_A = SHARED.replace('name = "a"\n', 'name = "a"\nthrough = "cell"\n')
# Others fill the queue of the shared link, so that the tunnel competes: for so long that its
# connection uses both paths.
COUPLED = (
    SHARED_BY_A.replace('duration = "2s"', 'duration = "12s"').replace(
        'rate = "2Mbit", delay = "5ms"', 'rate = "8Mbit", delay = "5ms", queue = "64KiB"'
    )
    + '[[traffic]]\nkind = "tcp"\nflows = 4\nbeside = "cell"\n[carrier]\nkind = "tunnel"\n'
)
SILENT = HEAD + A + B
RECORDED = BARE.replace('rate = "8Mbit"', 'trace = "rate.csv"')
JITTERY = BARE.replace("10ms", '10ms", jitter = "3ms')
# Gateways' packets can be marked, those of hosts cannot.
MANAGED = TUNNEL.replace('delay = "10ms"', 'delay = "10ms", aqm = "codel"')
MARKED = MANAGED.replace("aqm", "ecn = true, aqm")


def beside(traffic: str) -> str:
    """A download, and other traffic over a link with some loss."""
    return f"{LOSSY}[[traffic]]\n{traffic}\n"


def changed(change: str) -> str:
    """A path with a change of its settings."""
    return BARE.replace(B, f"change = [ {{ {change} }} ]\n{B}")


def link(more: str, base: str = BARE) -> tuple[str, str]:
    """A plan, and the same with more settings of the first path."""
    return base, base.replace('queue = "32KiB"', f'queue = "32KiB", {more}', 1)


@dataclass(frozen=True)
class Case:
    """Two plans that differ in one key."""

    before: str
    after: str
    refused: bool = False


def pair(before: str, old: str, new: str, refused: bool = False) -> Case:
    assert old in before, old
    return Case(before, before.replace(old, new, 1), refused)


def with_line(before: str, line: str, refused: bool = False) -> Case:
    """A line more in the last section."""
    return Case(before, f"{before}{line}\n", refused)


CASES: dict[str, Case] = {
    "Plan.name": pair(BARE, '"x"', '"y"'),
    "Plan.seed": pair(LOSSY, "duration", "seed = 2\nduration"),
    "Plan.duration": pair(BARE, "2s", "3s"),
    "Plan.warmup": pair(BARE, "duration", 'warmup = "1s"\nduration'),
    "Plan.path": pair(BARE, A, ""),
    "Plan.carrier": Case(LOSSY, TUNNEL),
    "Plan.traffic": Case(SILENT, BARE),
    "PathPlan.name": pair(BARE, '"a"', '"c"'),
    "PathPlan.both": pair(BARE, "8Mbit", "7Mbit"),
    "PathPlan.up": pair(BARE, B, f'up.rate = "100kbit"\n{B}'),
    "PathPlan.down": pair(BARE, B, f'down.rate = "1Mbit"\n{B}'),
    "PathPlan.change": Case(BARE, changed('at = "1s", both.rate = "1Mbit"')),
    "PathPlan.leaving": pair(TUNNEL, SECOND, f'leaving = ["1s"]\n{SECOND}', True),
    "ChangePlan.at": Case(
        changed('at = "1s", both.rate = "1Mbit"'), changed('at = "500ms", both.rate = "1Mbit"')
    ),
    "ChangePlan.both": Case(changed('at = "1s"'), changed('at = "1s", both.delay = "90ms"')),
    "ChangePlan.up": Case(changed('at = "1s"'), changed('at = "1s", up.delay = "90ms"')),
    "ChangePlan.down": Case(changed('at = "1s"'), changed('at = "1s", down.delay = "90ms"')),
    "DirectionPlan.rate": pair(BARE, "8Mbit", "7Mbit"),
    "DirectionPlan.trace": pair(BARE, 'rate = "8Mbit"', 'trace = "rate.csv"'),
    "DirectionPlan.trace_start": pair(
        RECORDED, 'trace = "rate.csv"', 'trace = "rate.csv", trace_start = "1s"'
    ),
    "DirectionPlan.delay": pair(BARE, "10ms", "11ms"),
    "DirectionPlan.jitter": Case(*link('jitter = "3ms"')),
    "DirectionPlan.reorder": Case(*link("reorder = true", JITTERY)),
    "DirectionPlan.loss": Case(*link('loss = "5%"')),
    "DirectionPlan.loss_burst": Case(*link("loss_burst = 4", LOSSY)),
    "DirectionPlan.gilbert": Case(*link("gilbert = { p = 0.02, r = 0.5 }")),
    "DirectionPlan.queue": pair(BARE, "32KiB", "8KiB"),
    "DirectionPlan.queue_packets": Case(*link("queue_packets = 4")),
    "DirectionPlan.mtu": Case(*link("mtu = 1000")),
    "DirectionPlan.blackhole": Case(*link("blackhole = true")),
    "DirectionPlan.aqm": Case(*link('aqm = "codel"')),
    "DirectionPlan.ecn": Case(*link("ecn = true", MANAGED)),
    "DirectionPlan.aqm_target": Case(*link('aqm_target = "1ms"', MANAGED)),
    "DirectionPlan.aqm_interval": Case(*link('aqm_interval = "10ms"', MANAGED)),
    "DirectionPlan.ce_threshold": Case(*link('ce_threshold = "1ms"', MARKED)),
    "GilbertPlan.p": pair(GILBERT, "p = 0.02", "p = 0.1"),
    "GilbertPlan.r": pair(GILBERT, "r = 0.5", "r = 0.1"),
    "GilbertPlan.loss_good": pair(GILBERT, "loss_good = 0.0", "loss_good = 0.05"),
    "GilbertPlan.loss_bad": pair(GILBERT, "loss_bad = 1.0", "loss_bad = 0.1"),
    "Carrier, kind `path`.path": Case(
        BARE + '[carrier]\nkind = "path"\npath = "a"\n',
        BARE + '[carrier]\nkind = "path"\npath = "b"\n',
    ),
    "Carrier, kind `chain`.hops": pair(ROW, '["a", "b"]', '["b"]'),
    "Carrier, kind `peer`.peer": with_line(
        BARE + '[carrier]\nkind = "peer"\n', 'peer = "wireguard-go"', refused=True
    ),
    "TunnelPlan.scheduler": with_line(TUNNEL, 'scheduler = "redundant"'),
    "TunnelPlan.congestion": with_line(TUNNEL, 'congestion = "new-reno"'),
    "TunnelPlan.protect_up": with_line(UP, 'protect_up = "duplicate"'),
    "TunnelPlan.protect_down": with_line(TUNNEL, 'protect_down = "duplicate"'),
    "TunnelPlan.paths": with_line(TUNNEL, 'paths = ["b"]'),
    "TunnelPlan.freeze": with_line(TUNNEL, 'freeze = "planned"', refused=True),
    "BalancePlan.mode": with_line(BALANCE, 'mode = "weighted"', refused=True),
    "BalancePlan.affinity_minutes": with_line(BALANCE, "affinity_minutes = 5", refused=True),
    "RelayPlan.hops": pair(RELAY, '[["a"], ["b"]]', '[["b"], ["a"]]'),
    "BalancePlan.affinity_sites": with_line(BALANCE, 'affinity_sites = "all"', refused=True),
    "TunnelPlan.order": with_line(TUNNEL, 'order = "off"'),
    "TunnelPlan.compress_headers": with_line(TUNNEL, "compress_headers = false"),
    "TunnelPlan.accelerate": with_line(TUNNEL, "accelerate = true", refused=True),
    "TunnelPlan.coupled": with_line(COUPLED, "coupled = true"),
    "TunnelPlan.send_buffer": with_line(TUNNEL, "send_buffer = 5"),
    "Traffic, kind `tcp`.duplicates": with_line(LOSSY, "duplicates = 3"),
    "TcpNcPlan.hops": pair(CODED, '["a", "b"]', '["b"]'),
    "PathPlan.through": pair(SHARED, 'name = "a"\n', 'name = "a"\nthrough = "cell"\n'),
    "Plan.link": pair(SHARED_BY_A, '"2Mbit"', '"1Mbit"'),
    "TcpNcPlan.n": pair(CODED, "n = 10", "n = 20"),
    "TcpNcPlan.k": pair(CODED, "k = 2", "k = 5"),
    "RelayPlan.tunnel": with_line(RELAY, 'tunnel = { congestion = "cubic" }'),
    "Traffic, kind `tcp`.flows": with_line(BARE, "flows = 2"),
    "Traffic, kind `tcp`.congestion": with_line(LOSSY, 'congestion = "bbr"'),
    "Traffic, kind `tcp`.direction": with_line(
        BARE.replace(SECOND, f'down.rate = "1Mbit"\n{SECOND}'), 'direction = "up"'
    ),
    "Traffic, kind `tcp`.start": with_line(BARE, 'start = "1s"'),
    "Traffic, kind `tcp`.segment": with_line(BARE, "segment = 500"),
    "Traffic, kind `tcp`.window": with_line(BARE, "window = 6000"),
    "Traffic, kind `tcp`.beside": with_line(BARE, 'beside = "b"'),
    "Traffic, kind `tcp`.tunnel": with_line(
        TUNNEL + '[[traffic]]\nkind = "tcp"\nbeside = "b"\n', "tunnel = true"
    ),
    "Traffic, kind `tcp`.until": with_line(BARE, 'until = "1s"'),
    "Traffic, kind `tcp`.ecn": with_line(
        BARE.replace("KiB", 'KiB", ce_threshold = "5ms'), "ecn = true"
    ),
    "Traffic, kind `tcp`.plain": pair(RENO_ROW, TCP, f"{TCP}plain = true\n"),
    "Traffic, kind `tcp`.enter": pair(ROW, TCP, f"{TCP}enter = 2\n"),
    "Traffic, kind `tcp`.access": pair(ROW, TCP, f'{TCP}access = {{ rate = "1Mbit" }}\n'),
    "Traffic, kind `quic`.flows": with_line(beside('kind = "quic"'), "flows = 2"),
    "Traffic, kind `quic`.congestion": with_line(beside('kind = "quic"'), 'congestion = "bbr"'),
    "Traffic, kind `quic`.direction": with_line(beside('kind = "quic"'), 'direction = "up"'),
    "Traffic, kind `quic`.start": with_line(beside('kind = "quic"'), 'start = "1s"'),
    "Traffic, kind `quic`.packet_threshold": with_line(
        beside('kind = "quic"'), "packet_threshold = 500"
    ),
    "Traffic, kind `ping`.interval": with_line(beside('kind = "ping"'), 'interval = "50ms"'),
    "Traffic, kind `call`.interval": with_line(beside('kind = "call"'), 'interval = "50ms"'),
    "Traffic, kind `call`.bytes": with_line(beside('kind = "call"'), "bytes = 1000"),
    "Traffic, kind `call`.deadline": with_line(beside('kind = "call"'), 'deadline = "11ms"'),
    "Traffic, kind `web`.users": with_line(beside('kind = "web"'), "users = 3"),
    "Traffic, kind `web`.objects": with_line(beside('kind = "web"'), "objects = 2"),
    "Traffic, kind `web`.pause": with_line(
        beside('kind = "web"\nobjects = 1').replace("8Mbit", "80Mbit"), 'pause = "10ms"'
    ),
}


def reference() -> ModuleType:
    """`scripts/reference` as a module."""
    loader = SourceFileLoader("reference", str(ROOT / "scripts/reference"))
    spec = importlib.util.spec_from_loader("reference", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules["reference"] = module
    loader.exec_module(module)
    return module


def report(plan: str, folder: File) -> dict[str, object]:
    """What came of a plan."""
    found = json.loads(_native.run_json(plan, [_native.plan_seed(plan)], 1, str(folder), False))[0]
    found.pop("wall_seconds", None)
    assert isinstance(found, dict)
    return found


def test_every_key_has_a_case() -> None:
    keys = reference().plan_keys()
    missing, gone = sorted(keys - CASES.keys()), sorted(CASES.keys() - keys)
    assert not missing, f"add what these keys do to CASES: {missing}"
    assert not gone, f"no such keys any more: {gone}"


@pytest.mark.parametrize("key", CASES)
def test_the_simulator_obeys_or_refuses(key: str, tmp_path: File) -> None:
    (tmp_path / "rate.csv").write_text("1,300000\n2,500000\n3,100000\n")
    case = CASES[key]
    if case.refused:
        with pytest.raises(ValueError, match=key.split(".")[-1] + r"|carrier\.kind"):
            report(case.after, tmp_path)
        return
    assert report(case.before, tmp_path) != report(case.after, tmp_path)


NS3_PATH = Path("a", Link(rate_mbit=10, delay_ms=10, queue_bytes=65536))
NS3 = Plan("x", 5, (NS3_PATH,), Direct(), (Tcp(),))
CHAIN_PATH = Path("a", Link(rate_mbit=10, delay_ms=10, queue_packets=100))
CHAIN_FLOW = Tcp(
    congestion="new-reno",
    direction="up",
    segment=1000,
    access=Link(rate_mbit=1, delay_ms=1, queue_packets=100),
)
CHAIN = Plan("x", 5, (CHAIN_PATH,), Chain(("a",)), (CHAIN_FLOW,))
OTHER: dict[str, Any] = {
    "flows": 3,
    "congestion": "bbr",
    "direction": "up",
    "start_s": 1.0,
    "segment": 500,
    "window": 40_000,
    "up": Link(jitter_ms=1),
    "down": Link(jitter_ms=1),
    "both": Link(rate_mbit=10, delay_ms=10, queue_bytes=65536, queue_packets=100, mtu=900),
    "change": (Change(1, Link(rate_mbit=1)),),
    "leaving_s": (1.0,),
}
"""For each field something that no ns-3 program knows."""


def other(plan: Plan, field: str) -> Plan:
    if field in {f.name for f in fields(Tcp)}:
        flow = plan.traffic[0]
        assert isinstance(flow, Tcp)
        value: Any = "down" if field == "direction" and flow.direction == "up" else OTHER[field]
        return replace(plan, traffic=(replace(flow, **{field: value}),))
    return replace(plan, path=(replace(plan.path[0], **{field: OTHER[field]}),))


@pytest.mark.parametrize("field", OTHER)
def test_ns3_refuses_what_it_does_not_know(field: str) -> None:
    ns3.wanted(NS3)
    with pytest.raises(UnavailableError):
        ns3.wanted(other(NS3, field))


@pytest.mark.parametrize("field", [field for field in OTHER if field != "segment"])
def test_a_chain_in_ns3_refuses_what_it_does_not_know(field: str) -> None:
    ns3_chain.arguments(Cell("x", ("x",), CHAIN, 1, "ns3"))
    with pytest.raises(UnavailableError):
        ns3_chain.arguments(Cell("x", ("x",), other(CHAIN, field), 1, "ns3"))


def test_python_keeps_every_key_of_a_report() -> None:
    module = reference()
    for file, names in module.REPORTS:
        for table in module.tables(file, names):
            kept = {field.name for field in fields(getattr(reports, table.name))}
            lost = {key.name for key in table.keys} - kept
            assert not lost, f"ropewalk.report.{table.name} lacks {lost}"


def test_the_reference_is_what_the_code_says() -> None:
    assert (ROOT / "docs/reference.md").read_text() == reference().page(), "run scripts/reference"
