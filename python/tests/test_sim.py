"""The simulator through its bindings."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as File
from typing import ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("ropewalk._native", reason="the native module is not installed")

from ropewalk import sim
from ropewalk.plan import (
    Carrier,
    Direct,
    Link,
    Mptcp,
    Path,
    Ping,
    Plan,
    RoundRobin,
    SharedLink,
    Tcp,
    Tunnel,
)

PATHS = (
    Path("a", Link(rate_mbit=16, delay_ms=10, queue_bytes=65536)),
    Path("b", Link(rate_mbit=8, delay_ms=20, queue_bytes=65536)),
)


def plan(seconds: float = 4, carrier: Carrier | None = None) -> Plan:
    traffic = (Tcp(flows=3), Ping())
    return Plan("x", seconds, PATHS, carrier or Tunnel(), traffic, warmup_s=1)


class First:
    """Always the path with the smallest identifier."""

    def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> int | None:
        assert now >= 0
        assert 0 < head.bytes <= head.flow_backlog <= head.backlog
        return min(path.id for path in paths)


def test_results_are_arrays_by_seed() -> None:
    results = sim.run(plan(), seeds=[3, 1, 2])
    assert results.seeds.tolist() == [3, 1, 2]
    assert results.flows_mbit().shape == (3, 3)
    assert results.series_mbit().shape == (3, 4)
    assert results.delay_ms(1).shape == (3, len(sim.DELAY_COLUMNS))
    np.testing.assert_allclose(results.flows_mbit().sum(axis=1), results.goodput_mbit, rtol=1e-6)
    # Both paths carry, and the headers are paid for. What waited in the links' queues when counting
    # began comes on top: at most 128 KiB, 0.35 Mbit/s over three seconds.
    assert np.all(results.goodput_mbit > 17)
    assert np.all(results.goodput_mbit <= results.ceiling_mbit + 0.35)
    # The base round-trip time of the faster path.
    assert np.all(results.delay_ms(1)[:, 1] >= 20)


def test_the_same_seed_gives_the_same_run_on_any_number_of_threads() -> None:
    lossy = Plan("x", 3, (Path("a", Link(rate_mbit=8, delay_ms=10, loss=0.01)),), traffic=(Tcp(),))
    hashes = [
        [report.trace_hash for report in sim.run(lossy, seeds=4, threads=threads)]
        for threads in (1, 3)
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 4


def test_a_plan_may_be_a_dictionary_a_text_or_a_file(tmp_path: File) -> None:
    wanted = sim.run(plan())[0].trace_hash
    text = plan().to_toml()
    (tmp_path / "plan.toml").write_text(text)
    link = {"rate": "16Mbit", "delay": "10ms", "queue": 65536}
    table = {
        "name": "x",
        "duration": "4s",
        "warmup": "1s",
        "path": [
            {"name": "a", "both": link},
            {"name": "b", "both": {**link, "rate": "8Mbit", "delay": "20ms"}},
        ],
        "carrier": {"kind": "tunnel"},
        "traffic": [{"kind": "tcp", "flows": 3}, {"kind": "ping"}],
    }
    for same in (text, table, tmp_path / "plan.toml", str(tmp_path / "plan.toml")):
        assert sim.run(same)[0].trace_hash == wanted


def test_traces_start_from_the_folder_of_the_plan(tmp_path: File) -> None:
    (tmp_path / "rate.csv").write_text("1,500000\n2,500000\n")
    (tmp_path / "plan.toml").write_text(
        Plan("x", 3, (Path("a", Link(trace="rate.csv", delay_ms=5)),), traffic=(Tcp(),)).to_toml()
    )
    assert 3 < sim.run(tmp_path / "plan.toml").goodput_mbit[0] < 4


def test_a_wrong_plan_names_its_key() -> None:
    with pytest.raises(ValueError, match="warmup"):
        sim.run(Plan("x", 1, PATHS, warmup_s=2))
    with pytest.raises(ValueError, match=r"carrier\.kind"):
        sim.run(plan(carrier=RoundRobin()))
    with pytest.raises(ValueError, match="seeds"):
        sim.run(plan(), seeds=0)
    for seeds in (-1, 10**12, [-3], [2**64]):
        with pytest.raises(ValueError, match="seeds"):
            sim.run(plan(), seeds=seeds)
    with pytest.raises(ValueError, match="threads"):
        sim.run(plan(), threads=-1)
    with pytest.raises(ValueError, match="traffic"):
        sim.run({"name": "x", "traffic": object()})
    with pytest.raises(FileNotFoundError):
        sim.run("no-such-plan.toml")


def test_seeds_are_those_of_the_command_line() -> None:
    lossy = Plan(
        "x", 2, (Path("a", Link(rate_mbit=8, delay_ms=10, loss=0.01)),), traffic=(Tcp(),), seed=9
    )
    assert sim.run(lossy).seeds.tolist() == [9]
    both = sim.run(lossy, seeds=2)
    assert both.seeds.tolist() == [9, 10]
    program = File(os.environ.get("ROPEWALK_PROGRAMS", "target/release")) / "ropewalk-sim"
    if not program.is_file():
        pytest.skip(f"no program {program}")
    done = subprocess.run(
        [program, "run", "/dev/stdin", "--seeds", "2", "--json"],
        input=lossy.to_toml(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert [(r["seed"], r["trace_hash"]) for r in found] == [(r.seed, r.trace_hash) for r in both]


def test_the_packets_of_a_download_have_delays_of_their_own() -> None:
    results = sim.run(plan(), histograms=True)
    delay = results[0].traffic[0].delay_ms
    assert delay is not None
    # The link's delay, and what may wait in its queue and in the tunnel's.
    assert 10 <= delay.min < delay.p50 < delay.p99 <= delay.max < 1_000
    assert results.flows_delay_ms().shape == (1, 3, len(sim.DELAY_COLUMNS))
    bins = results.delay_histogram_ms()
    assert bins[:, 1].sum() == delay.count
    assert np.all(np.diff(bins[:, 0]) > 0)
    below = np.interp(0.5, np.cumsum(bins[:, 1]) / delay.count, bins[:, 0])
    assert below == pytest.approx(delay.p50, rel=0.02)
    assert sim.run(plan()).delay_histogram_ms().shape == (0, 2)


def test_counters_of_shared_links_and_their_queues_are_in_the_report() -> None:
    cell = SharedLink("cell", Link(rate_mbit=8, delay_ms=20, aqm="fq-codel", ecn=True))
    paths = (Path("a", Link(delay_ms=5), through="cell"), Path("b", through="cell"))
    traffic = (Tcp(flows=4, ecn=True), Tcp(beside="cell"))
    (report,) = sim.run(Plan("x", 4, paths, Tunnel(), traffic, link=(cell,)))
    (link,) = report.links
    assert link.name == "cell"
    # The tunnel's packets can be marked; those of the connection beside are dropped.
    assert link.marked > 0
    assert link.dropped_aqm > 0


def test_events_show_where_each_packet_went_and_packets_are_in_files(tmp_path: File) -> None:
    file = tmp_path / "events.jsonl"
    report = sim.run(plan(seconds=2), scheduler=First, events=file, pcap=tmp_path / "pcap")[0]
    events = list(sim.read_events(file))
    data = [e for e in events if e["event"] == "tunnel_sent" and e["kind"] == "data"]
    down = [e for e in data if e["direction"] == "down"]
    assert len(down) > 500
    # Copies that protect go over the other path.
    assert sum(e["path"] == 0 for e in down) > 0.9 * len(down)
    assert all(e["srtt_ms"] > 0 and e["queued"] >= 0 for e in down)
    assert report.packets is not None
    assert (tmp_path / "pcap/path-a-site.pcap").stat().st_size > 100_000
    with pytest.raises(ValueError, match="one seed"):
        sim.run(plan(), seeds=2, events=file)
    (tmp_path / "old").write_text('{"schema": "ropewalk-sim-events", "version": 0}\n')
    with pytest.raises(ValueError, match="version 1"):
        list(sim.read_events(tmp_path / "old"))


def test_output_that_cannot_be_written_is_named() -> None:
    for name in ("/nonexist/x", "/dev/full"):
        with pytest.raises(OSError, match=name):
            sim.run(plan(seconds=2), events=name)
    with pytest.raises(OSError, match="/dev/null/x"):
        sim.run(plan(seconds=2), pcap="/dev/null/x")


def test_other_threads_go_on_while_the_simulator_runs() -> None:
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    sim.run(plan(seconds=30), threads=1)
    ended = time.monotonic()
    done.set()
    thread.join()
    inside = [moment for moment in ticks if began < moment < ended]
    assert len(inside) >= 5, f"{len(inside)} ticks in {ended - began:.3f} s"


def test_a_scheduler_in_python_decides_where_packets_go() -> None:
    report = sim.run(plan(), scheduler=First)[0]
    assert report.paths[0].bytes > 1_000_000
    assert report.paths[1].bytes < report.paths[0].bytes / 100
    again = sim.run(plan(), scheduler=First)[0]
    assert again.trace_hash == report.trace_hash


def test_copies_are_removed_at_the_exit() -> None:
    class Both:
        def pick(
            self, now: float, head: sim.Head, paths: Sequence[sim.PathView]
        ) -> list[int] | None:
            return [path.id for path in paths]

    tunnel = sim.run(plan(), scheduler=Both)[0].tunnel
    assert tunnel is not None
    assert tunnel.duplicates > 1000


def test_what_a_scheduler_raises_comes_out_of_run() -> None:
    class Broken:
        def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> int:
            raise LookupError("no idea")

    class Elsewhere:
        def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> int:
            return 7

    with pytest.raises(LookupError, match="no idea"):
        sim.run(plan(), scheduler=Broken)
    with pytest.raises(ValueError, match=r"path 7; usable now: \[0"):
        sim.run(plan(), scheduler=Elsewhere)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (-1, r"answered path -1; usable now: \[0"),
        (0.0, r"answered 0\.0 \(float\)"),
        (True, r"answered True \(bool\)"),
        ("a", r"answered 'a' \(str\)"),
        ([0, "b"], r"answered \[0, 'b'\] \(list\)"),
        (object, r"\(type\)"),
    ],
)
def test_a_wrong_answer_is_named_with_what_to_do(answer: object, told: str) -> None:
    class Wrong:
        def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> object:
            return answer

    with pytest.raises((TypeError, ValueError), match=told) as error:
        sim.run(plan(), scheduler=Wrong)  # type: ignore[arg-type]
    assert "None to wait" in str(error.value)


def test_a_scheduler_that_never_sends_is_noted_and_one_without_a_tunnel_refused() -> None:
    class Never:
        def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> None:
            return None

    notes = sim.run(plan(), scheduler=Never)[0].notes
    assert any("never answered a path" in note for note in notes), notes
    with pytest.raises(ValueError, match=r"carrier\.kind: a scheduler"):
        sim.run(plan(carrier=Direct()), scheduler=Never)


def test_the_rate_of_a_path_is_what_it_could_carry() -> None:
    class Watching:
        """Little goes over the second path, and its rate is asked for."""

        seen: ClassVar[list[tuple[float, float]]] = []

        def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> int | None:
            slow = next((path for path in paths if path.id == 1), None)
            if slow is not None and now > 2:
                self.seen.append((slow.rate_mbit, slow.delivered_mbit))
            return 0 if head.flow_backlog < 40_000 else 1

    sim.run(plan(), scheduler=Watching)
    assert all(rate >= delivered for rate, delivered in Watching.seen)


def test_a_path_with_little_under_way_counts_as_much_as_the_fastest() -> None:
    class Sparing:
        """The second path gets three packets every 0.1 s: they fill its pacer, not its window."""

        at: ClassVar[float] = 0.0
        left: ClassVar[int] = 0
        paced: ClassVar[int] = 0
        seen: ClassVar[list[tuple[float, float]]] = []

        def pick(self, now: float, head: sim.Head, paths: Sequence[sim.PathView]) -> int | None:
            if len(paths) < 2:
                return 0
            if now > 2:
                self.seen.append((paths[1].rate_mbit, max(path.rate_mbit for path in paths)))
                Sparing.paced += paths[1].free < head.bytes
            if now > Sparing.at + 0.1:
                Sparing.at, Sparing.left = now, 3
            if Sparing.left and head.bytes > 1000:
                Sparing.left -= 1
                return 1
            return 0

    # Queues that lose nothing: repairs of the first path's losses would fill the second.
    deep = tuple(replace(path, both=replace(path.both, queue_bytes=1_000_000)) for path in PATHS)
    sim.run(replace(plan(), path=deep), scheduler=Sparing)
    assert Sparing.paced > 0
    assert all(rate == fastest for rate, fastest in Sparing.seen)


def test_mptcp_adds_the_paths_up() -> None:
    report = sim.run(plan(seconds=10, carrier=Mptcp()))[0]
    assert report.tunnel is None
    assert 0.8 < report.goodput_mbit / report.ceiling_mbit <= 1.0
    assert report.paths[1].delivered_bytes > report.paths[0].delivered_bytes / 4


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = File(__file__).parents[1] / "examples/scheduler.py"
    assert len(example.read_text().splitlines()) <= 40
    runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == [
        "auto",
        "round-robin",
        "smallest queue",
    ]


def test_the_stub_says_what_the_module_has() -> None:
    from ropewalk import _native

    stub = File(sim.__file__).with_name("_native.pyi").read_text()
    functions = ("version", "plan_seed", "run_json", "run_scheduler", "run_recorded")
    for name in (*functions, "Head", "PathView"):
        assert hasattr(_native, name)
        assert f"def {name}(" in stub or f"class {name}:" in stub
    for kind in (_native.Head, _native.PathView):
        for attribute in (name for name in dir(kind) if not name.startswith("_")):
            assert f"def {attribute}(self)" in stub, attribute


def test_recorded_uplinks_are_replayed_alone_and_together_and_drawn(tmp_path: File) -> None:
    programs = File(os.environ.get("ROPEWALK_PROGRAMS", "target/release")).resolve()
    if not (programs / "ropewalk-sim").is_file():
        pytest.skip("ropewalk-sim is not built")
    # 8 and 4 Mbit/s, which fail in turn for five seconds; bytes per second.
    for name, rate, dead in (("a", 1_000_000, 10), ("b & <b>", 500_000, 20)):
        lines = [f"{s},{0 if dead <= s < dead + 5 else rate}\n" for s in range(30)]
        (tmp_path / f"{name}.csv").write_text("".join(lines))

    def replay(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / "ropewalk"), "replay", "a.csv", "b & <b>.csv"]
        run = [*command, "--seconds", "30", *options]
        return subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = replay("--json", "--svg", "gain.svg", "--html", "gain.html")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    alone = [uplink["download_mbit"] for uplink in found["uplinks"]]
    assert 5.0 < alone[0] < 8.0
    assert 2.5 < alone[1] < 4.0
    together = found["ropewalk"]["download_mbit"]
    # What two streams get differs by chance from seed to seed: 7.9 to 8.9 Mbit/s.
    others = [json.loads(replay("--json", "--seed", str(seed)).stdout) for seed in range(2, 6)]
    every = sorted([together, *(other["ropewalk"]["download_mbit"] for other in others)])
    assert 0.85 * sum(alone) < every[2], every
    assert every[-1] < 12.0, every
    assert found["gain"] == pytest.approx(together / max(alone))
    # Each uplink alone is silent for five seconds, both together never.
    assert min(uplink["longest_stall_s"] for uplink in found["uplinks"]) > 4.0
    assert found["ropewalk"]["longest_stall_s"] < 2.0
    assert found["ropewalk"]["call_in_time"] > max(u["call_in_time"] for u in found["uplinks"])
    drawn = ElementTree.parse(tmp_path / "gain.svg").getroot()
    texts = [text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("b & <b>") for text in texts), texts
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))) == 3
    table = replay()
    words = f"carry {found['gain']:.2f} times what a carries"
    assert words in table.stdout, table.stdout
    page = (tmp_path / "gain.html").read_text()
    assert words in page
    assert (tmp_path / "gain.svg").read_text() in page
    # A name of a file is text, and the page needs nothing else.
    assert '<th scope="row">b &amp; &lt;b&gt;<td>' in page
    assert "<b>" not in page
    assert not re.search(r"<script|<link|\b(src|href|on\w+)=|url\(|@import", page)
    # The table, and behind the picture 3 s in which connections begin and the 30 s that count.
    assert page.count("<tr>") == 4 + 1 + 33
    for wrong, says in (
        (("c.csv",), "cannot read c.csv"),
        (("a.csv",) * 7, "9 recordings; name those of 2 to 8 uplinks"),
        (("--delay", "1ms,2ms,3ms"), "3 values for 2 uplinks"),
        (("--loss", "much"), "--loss"),
    ):
        refused = replay(*wrong)
        assert (refused.returncode, says in refused.stderr) == (2, True), refused.stderr
