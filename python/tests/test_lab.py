"""The laboratory from its command to its report, on programs that only calculate."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Lab

from ropewalk.lab import session as sessions
from ropewalk.lab.cell import Outcome
from ropewalk.lab.cli import main
from ropewalk.lab.experiments import EXPERIMENTS
from ropewalk.lab.experiments.options import Options
from ropewalk.lab.papers import PAPERS
from ropewalk.lab.store import Store, StoreError, digest

FAILOVER_CELLS = 17


def result(tmp_path: Path) -> dict[str, object]:
    value = json.loads((tmp_path / "out/result.json").read_text())
    assert isinstance(value, dict)
    return value


def calls(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_a_run_leaves_cells_a_result_and_a_report(lab: Lab, tmp_path: Path) -> None:
    assert lab("failover", "--kernel") == 0
    assert len(list((tmp_path / "out/cells").glob("*.json"))) == FAILOVER_CELLS
    found = result(tmp_path)
    assert found["cells"] == {"ok": FAILOVER_CELLS, "failed": 0, "skipped": 0, "missing": 0}
    claims = found["claims"]
    assert isinstance(claims, list)
    by_name = {row["name"]: row for row in claims}
    row = by_name["32 streams: auto against mqvpn (kernel)"]
    assert row["paper"] == 310
    # 95 % of what the tunnel's headers leave of 380 Mbit/s.
    assert row["measured"] == pytest.approx(0.95 * 380 * 1425 / 1500)
    assert (row["verdict"], row["mean_meets"]) == ("undecided", True)
    assert "1 of at least 3" in row["note"]


def test_result_has_the_documented_keys(lab: Lab, tmp_path: Path) -> None:
    assert lab("failover", "--kernel", "--seeds", "3") == 0
    found = result(tmp_path)
    assert set(found) == {
        "format", "experiment", "mode", "source", "dirty", "began", "cells", "retried", "claims",
    }  # fmt: skip
    assert found["retried"] == {}
    claims = found["claims"]
    assert isinstance(claims, list)
    assert claims
    for row in claims:
        assert set(row) == {
            "name", "unit", "paper", "relation", "target", "measured", "interval", "seeds", "note",
            "tolerance", "verdict", "mean_meets",
        }  # fmt: skip
        assert row["seeds"] == 3
        low, high = row["interval"]
        assert low <= row["measured"] <= high


def test_an_interrupted_run_goes_on_where_it_stopped(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    real = Store.save
    saved: list[str] = []

    def stop_at_the_fourth(store: Store, outcome: Outcome, source: str) -> None:
        if len(saved) == 3:
            raise KeyboardInterrupt
        saved.append(source)
        real(store, outcome, source)

    monkeypatch.setattr(Store, "save", stop_at_the_fourth)
    assert lab("failover", "--kernel", jobs=1) == 130
    monkeypatch.setattr(Store, "save", real)
    before = len(calls(log))
    assert 3 <= before < FAILOVER_CELLS
    assert main(["report", str(tmp_path / "out")]) == 0
    counts = result(tmp_path)["cells"]
    assert counts == {"ok": 3, "failed": 0, "skipped": 0, "missing": FAILOVER_CELLS - 3}

    assert lab("failover", "--kernel", jobs=1) == 0
    assert len(calls(log)) - before == FAILOVER_CELLS - 3
    assert lab("failover", "--kernel", jobs=1) == 0
    assert len(calls(log)) - before == FAILOVER_CELLS - 3, "nothing runs twice"


def test_a_cell_that_fails_is_tried_again_then_shown_with_its_reason(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("FAKE_FAIL", "streams/auto/8")
    monkeypatch.setenv("FAKE_FAIL_ONCE", "streams/auto/4")
    assert lab("failover", "--kernel") == 1
    assert sum("streams/auto/8 " in line for line in calls(log)) == 2
    found = result(tmp_path)
    assert found["cells"] == {"ok": FAILOVER_CELLS - 1, "failed": 1, "skipped": 0, "missing": 0}
    claims = found["claims"]
    assert isinstance(claims, list)
    row = next(row for row in claims if row["name"].startswith("8 streams"))
    assert row["measured"] is None
    assert "the link fell over" in row["note"]
    page = (tmp_path / "out/report.html").read_text()
    assert "failover/streams/auto/8/kernel/1" in page
    assert "second attempt" in page
    assert page.count("ended with 1: the link fell over") >= 2

    monkeypatch.delenv("FAKE_FAIL")
    assert lab("failover", "--kernel") == 0, "failed cells run again, and only those"


def test_what_this_machine_cannot_do_is_skipped_without_a_second_attempt(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("FAKE_CANNOT", "mptcp")
    assert lab("failover", "--kernel") == 1
    assert len(calls(log)) == FAILOVER_CELLS
    counts = result(tmp_path)["cells"]
    assert counts == {"ok": FAILOVER_CELLS - 6, "failed": 0, "skipped": 6, "missing": 0}
    assert "not root" in (tmp_path / "out/report.html").read_text()


def test_a_full_disk_leaves_the_former_files_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.write("result.json", "former")

    def write_a_part(path: Path, text: str) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_a_part)
    with pytest.raises(StoreError, match=r"result\.json: No space left on device"):
        store.write("result.json", "new")
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]
    assert (tmp_path / "result.json").read_text() == "former"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 0}',
        '{"format": 1, "status": "ok", "report": null, "reason": ""}',
        '{"format": 1, "status": "odd", "report": null, "reason": ""}',
    ],
)
def test_a_cell_that_cannot_be_read_runs_again(text: str, tmp_path: Path) -> None:
    cell = EXPERIMENTS["failover"].cells(Options("quick"))[0]
    store = Store(tmp_path)
    store.cells.mkdir()
    store.save(Outcome(cell, "failed", reason="why", attempts=2), "source")
    stored = store.load(cell, "source")
    assert stored is not None
    assert stored.reason == "why"
    (file,) = store.cells.iterdir()
    file.write_text(text)
    assert store.load(cell, "source") is None


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("reason", "5"),
        ("attempts", '"x"'),
        ("attempts", "-1"),
        ("provenance", "null"),
        ("provenance", "[]"),
        ("provenance", DEEP),
        ("provenance", '{"cpu_busy": "x"}'),
        ("provenance", '{"cpu_busy": NaN}'),
        ("seed", "99"),
        ("plan", '"another"'),
        ("cell", "null"),
        ("ceiling_mbit", "-5"),
        ("goodput_mbit", "-5"),
        ("goodput_mbit", "NaN"),
        ("goodput_mbit", "Infinity"),
        ("goodput_mbit", "1" + "0" * 400),
        ("series_mbit", '["nan"]'),
    ],
)
def test_a_cell_with_a_wrong_value_has_no_result_and_runs_again(
    key: str, written: str, lab: Lab, tmp_path: Path
) -> None:
    assert lab("loss", "--sim") == 0
    file = min((tmp_path / "out/cells").iterdir())
    value = json.loads(file.read_text())
    for place in (value, value["report"], *value["report"]["traffic"]):
        if key in place:
            place[key] = "HERE"
    file.write_text(json.dumps(value).replace('"HERE"', written))
    assert main(["report", str(tmp_path / "out")]) == 0
    assert result(tmp_path)["cells"] == {"ok": 3, "failed": 0, "skipped": 0, "missing": 1}
    assert f"cells/{file.name} cannot be read" in (tmp_path / "out/report.html").read_text()
    assert lab("loss", "--sim") == 0
    assert result(tmp_path)["cells"] == {"ok": 4, "failed": 0, "skipped": 0, "missing": 0}


def test_the_file_of_another_cell_does_not_count(tmp_path: Path) -> None:
    wanted, other = EXPERIMENTS["failover"].cells(Options("quick"))[:2]
    store = Store(tmp_path)
    store.cells.mkdir()
    for cell in (wanted, other):
        store.save(Outcome(cell, "failed", reason="why", attempts=2), "source")
    file = store.cells / f"{digest(wanted, 'source')}.json"
    file.write_bytes((store.cells / f"{digest(other, 'source')}.json").read_bytes())
    assert store.load(wanted, "source") is None
    assert store.load(other, "source") is not None


@pytest.mark.parametrize(
    ("key", "said"),
    [("experiment", "no experiment of this version"), ("mode", "cannot be read (mode gone")],
)
def test_a_session_of_another_version_is_named(
    key: str, said: str, lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab("failover", "--kernel", "--only", "/1/") == 0
    session = tmp_path / "out/session.json"
    session.write_text(json.dumps({**json.loads(session.read_text()), key: "gone"}))
    assert main(["report", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_what_reads_the_list_may_go() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "ropewalk.lab", "list"]
    with os.fdopen(writes) as gone:
        done = subprocess.run(
            command, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_children_end_when_the_laboratory_is_killed() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("no program setpriv")
    # The child says who it is and goes on; whoever started it kills itself.
    code = (
        "import os, threading\n"
        "from ropewalk.lab.runner.process import Children\n"
        "threading.Timer(1, os.kill, (os.getpid(), 9)).start()\n"
        "Children().run(['sh', '-c', 'echo $$ >&3; exec sleep 60'], 60)\n"
    ).replace(">&3", ">/proc/$PPID/fd/1")
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    child = int(done.stdout)
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child went on")


def test_without_programs_nothing_is_written_over_and_the_message_says_how_to_get_them(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab("failover", "--kernel") == 0
    before = (tmp_path / "out/report.html").read_text()
    (empty := tmp_path / "empty").mkdir()
    arguments = ["run", "failover", "--kernel", "--programs", str(empty)]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert "no program ropewalk-testbed" in capsys.readouterr().err
    assert (tmp_path / "out/report.html").read_text() == before


def test_short_runs_show_only_what_they_ran(lab: Lab, tmp_path: Path) -> None:
    assert lab("loss", "--sim") == 0
    page = (tmp_path / "out/report.html").read_text()
    charts = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "5%" in charts
    assert "10%" not in charts
    assert "target" in charts
    assert "published" not in page, "no claim has a published figure"
    assert lab("htmt", "--sim", "--only", "/equal/") == 0
    found = result(tmp_path)["claims"]
    assert isinstance(found, list)
    assert found
    assert not [row["name"] for row in found if "unequal" in row["name"]]


def test_one_page_has_all_papers_with_their_figures_beside_ours(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab("htmt", "--sim", "--seeds", "3") == 0
    (tmp_path / "out").rename(tmp_path / "htmt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/session.json").write_text("{")
    capsys.readouterr()
    assert main(["report", "--all", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for paper in PAPERS:
        assert f"{paper.key}: " in said
    assert "missing: tcpnc" in said
    page = (tmp_path / "papers.html").read_text()
    assert "ropewalk-lab run tcpnc --full" in page
    assert 'href="htmt/report.html"' in page
    charts = (tmp_path / "htmt/report.html").read_text().count("<svg")
    assert page.count("<svg") == charts > 0
    # The paper has 180 MB for HTMT on the unequal pair; the column has it beside what was measured.
    assert any("unequal" in row and ">180<" in row for row in page.split("<tr>"))


def test_claims_that_were_kept_without_their_cells_are_on_the_page(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab("htmt", "--sim", "--seeds", "3") == 0
    capsys.readouterr()
    assert main(["report", "--all", str(tmp_path)]) == 0
    whole = capsys.readouterr().out
    for path in (tmp_path / "out/cells", tmp_path / "out/report.html"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["report", "--all", str(tmp_path)]) == 0
    assert capsys.readouterr().out == whole
    page = (tmp_path / "papers.html").read_text()
    assert any("unequal" in row and ">180<" in row for row in page.split("<tr>"))
    assert "report.html" not in page
    path = tmp_path / "out/result.json"
    path.write_text(path.read_text().replace('"began": "20', '"began": "19'))
    assert main(["report", "--all", str(tmp_path)]) == 0
    assert "is of another run" in (tmp_path / "papers.html").read_text()


def test_the_results_of_this_repository_are_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Path(__file__).parents[2] / "lab/results"
    shutil.copytree(kept, tmp_path / "results")
    assert main(["report", "--all", str(tmp_path / "results")]) == 0
    page = (tmp_path / "results/papers.html").read_text()
    sessions = list(kept.glob("*/session.json"))
    assert sessions
    for path in sessions:
        assert f"source {json.loads(path.read_text())['source']}" in page, path
    assert '; <span class="bad">' not in page, "a session has no claims"


def test_the_docs_list_the_results_of_this_repository() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs/lab.md").read_text()
    table = text[text.index("**Kept runs.**") : text.index("### Terms")]
    listed = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", table, re.MULTILINE)
    kept = [
        (path.parent.name, json.loads(path.read_text())["experiment"])
        for path in sorted(root.glob("lab/results/*/session.json"))
    ]
    assert listed == kept


def test_a_report_without_cells_leaves_what_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Path(__file__).parents[2] / "lab/results/balance-ovs-steps"
    here = tmp_path / "steps"
    shutil.copytree(kept, here)
    assert main(["report", str(here)]) == 2
    assert f"`ropewalk-lab report --all {here}` shows the claims" in capsys.readouterr().err
    assert {file.name for file in here.iterdir()} == {"session.json", "result.json"}
    assert (here / "result.json").read_bytes() == (kept / "result.json").read_bytes()
    assert main(["report", "--all", str(here)]) == 0


def _put(place: Path, name: str, key: str, written: str) -> None:
    """Changes a key of one of the two files of a session; without a key, the whole file."""
    file = place / f"{name}.json"
    value = json.loads(file.read_text())
    if key == "is a directory":
        file.unlink()
        file.mkdir()
        return
    if name == "result" and key in value["claims"][0]:
        value["claims"][0][key] = "HERE"
    else:
        value[key] = "HERE"
    file.write_text(json.dumps(value).replace('"HERE"', written) if key else written)


RESULTS = Path(__file__).parents[2] / "lab/results"


def _source(name: str) -> str:
    """What the page says of the source of a kept result."""
    session = json.loads((RESULTS / name / "session.json").read_text())
    return f"source {session['source']}"


def _page_with(changed: tuple[str, str, str], directory: Path) -> str:
    """The page of two kept results, of which one is changed."""
    for name in ("balance-ovs-steps", "bicast-ovs"):
        shutil.copytree(RESULTS / name, directory / name)
    _put(directory / "balance-ovs-steps", *changed)
    assert main(["report", "--all", str(directory)]) == 0
    return (directory / "papers.html").read_text()


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("", DEEP),
        ("", "[]"),
        ("is a directory", ""),
        ("seeds", '"x"'),
        ("seeds", "true"),
        ("seeds", "10000000"),
        ("only", '"("'),
        ("only", '"a{99999999999999999999}"'),
        ("traces", "5"),
        ("traces", '"\\u0000"'),
        ("source", "5"),
        ("began", "5"),
        ("runners", "5"),
        ("runners", "[[]]"),
        ("machine", "[]"),
        ("resumed", "[5]"),
    ],
)
def test_a_session_that_cannot_be_read_is_left_out_of_the_page(
    key: str, written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = _page_with(("session", key, written), tmp_path)
    assert _source("bicast-ovs") in page
    assert _source("balance-ovs-steps") not in page
    capsys.readouterr()
    assert main(["report", str(tmp_path / "balance-ovs-steps")]) == 2
    assert "session.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("", DEEP),
        ("is a directory", ""),
        ("cells", '{"ok": Infinity}'),
        ("cells", "[]"),
        ("claims", "[5]"),
        ("interval", "[1]"),
        ("interval", '["a", "b"]'),
        ("paper", '"x"'),
        ("target", "NaN"),
        ("measured", "1" + "0" * 400),
        ("relation", '"=="'),
        ("tolerance", "null"),
        ("seeds", "1.5"),
        ("note", "5"),
    ],
)
def test_a_result_that_cannot_be_read_is_named_on_the_page(
    key: str, written: str, tmp_path: Path
) -> None:
    page = _page_with(("result", key, written), tmp_path)
    assert _source("bicast-ovs") in page
    assert "balance-ovs-steps/result.json cannot be read" in page


def test_every_paper_names_experiments_that_there_are() -> None:
    names = [name for paper in PAPERS for name in paper.experiments]
    assert set(names) <= set(EXPERIMENTS)
    assert len(set(names)) == len(names)
    assert len(PAPERS) == 5


def test_the_report_is_one_file_that_loads_nothing(lab: Lab, tmp_path: Path) -> None:
    assert lab("htmt", "--sim") == 0
    page = (tmp_path / "out/report.html").read_text()
    assert not re.search(r"https?:|//[a-z]|@import|<link|<script|<img", page)
    for target in re.findall(r'(?:href|src)="([^"]*)"', page):
        assert target.startswith("#")
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    # Three pairs: one chart of our tunnel, two of each reading of the paper's.
    assert page.count("<svg") == 15
    # Charts take their colours from the page.
    charts = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "var(--c1)" in charts
    assert not re.search(r"#[0-9a-f]{6}\b", charts.replace('href="#', ""))
    for label in ("equal/auto", "crossed/direct-b", "unequal/htmt-prototype"):
        assert label in page


def test_fast_cells_go_alone_on_the_kernel() -> None:
    cells = EXPERIMENTS["failover"].cells(Options("quick", runners=("kernel",)))
    assert all(sessions.runs_alone(cell) for cell in cells)
    cells = EXPERIMENTS["grid"].cells(Options("quick", runners=("kernel",)))
    assert not any(sessions.runs_alone(cell) for cell in cells)


def test_the_simulator_runs_all_seeds_of_a_plan_in_one_call(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    assert lab("failover", "--sim", "--seeds", "4", "--only", "streams/auto") == 0
    assert len(calls(log)) == 5
    assert result(tmp_path)["cells"] == {"ok": 20, "failed": 0, "skipped": 0, "missing": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "failover", "--only", "nothing-like-it"], "no cell matches"),
        (["run", "failover", "--only", "("], "no regular expression"),
        (["run", "failover", "--only", "a{99999999999999999999}"], "no regular expression"),
        (["run", "failover", "--seeds", "0"], "from 1 to"),
        (["run", "failover", "--seeds", "10000000"], "from 1 to"),
        (["run", "nosuch"], "invalid choice"),
        (["run", "traces"], "--traces DIR"),
        (["run", "traces", "--traces", "/nonexistent"], "not a directory"),
        (["report", "/nonexistent"], "session.json"),
        (["report", "--all", "/nonexistent"], "holds no results"),
        (
            ["run", "loss", "--sim", "--only", "nothing"],
            "there are 4, such as loss/0%/auto/cubic/sim",
        ),
        (["run", "bicast-ovs", "--sim"], "has no cell with --sim, only with --ovs"),
        (["run", "loss", "--sim", "--out", __file__], "Not a directory; what is stored stays"),
    ],
)
def test_wrong_usage_says_what_to_do(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("ROPEWALK_TRACES", raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as end:
        status = int(str(end.code))
    assert status == 2
    assert said in capsys.readouterr().err


def test_the_list_says_how_long_each_experiment_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    for name in ("htmt", "grid", "traces", "failover", "validate"):
        assert f"{name}: " in listed
    assert "real runs, about" in listed
    assert "about 0 min" not in listed
