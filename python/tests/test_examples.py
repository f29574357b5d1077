"""The example set-ups of docs/examples do what their pages say.

Files and commands are those of the pages. The links have the rates of the page's table.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_docs
from docs_world import must
from examples_world import EXAMPLES, INTERNET, TRAFFIC, Example, links_of, page_of, quoted

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("ROPEWALK_PROGRAMS", ROOT / "target/release")).resolve()
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.md"))

RESOLV_CONF = Path("/etc/resolv.conf")

Make = Callable[..., Example]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the machines of an example."""
    made: list[Example] = []
    names = RESOLV_CONF.read_bytes() if RESOLV_CONF.exists() else None

    def begin(name: str, *others: str) -> Example:
        made.append(Example(name, tmp_path / name, PROGRAMS, others))
        return made[-1]

    yield begin
    for example in made:
        example.end()
    # Each machine of an example has its own.
    assert (RESOLV_CONF.read_bytes() if RESOLV_CONF.exists() else None) == names


def play(example: Example, section: str) -> None:
    """Runs the commands of a section of the page."""
    text = page_of(example.name).split(f"\n## {section}\n")[1].split("\n## ")[0]
    test_docs.play(example, test_docs.steps_in(text))


def asks_the_name_server_of_its_file(example: Example, machine: str) -> bool:
    """Whether the one of `dns` has taken the place of those that an uplink gave."""
    [server] = tomllib.loads((EXAMPLES / example.name / "site.toml").read_text())["network"]["dns"]
    must(
        example.machines[machine],
        f"for try in $(seq 50); do grep -qx 'nameserver {server}' {RESOLV_CONF} && break; "
        "sleep 0.1; done",
    )
    _, text = example.machines[machine].run(f"grep ^nameserver {RESOLV_CONF}")
    return text == f"nameserver {server}\n"


def mbit(samples: list[int]) -> float:
    """The rate of tenths of a second, Mbit/s."""
    return sum(samples) * 8 / 1e6 / (len(samples) / 10)


def silence(samples: list[int]) -> float:
    """The longest time in which nothing came, seconds."""
    longest = now = 0
    for sample in samples:
        now = 0 if sample else now + 1
        longest = max(longest, now)
    return longest / 10


@pytest.mark.real
def test_a_van_spends_lte_only_while_the_campsite_does_not_work(make: Make) -> None:
    example = make("van", "phone")
    example.lan("van", "192.168.50.1", "phone", "192.168.50.2")
    wifi = example.wires["van", "wlan0"]
    # The campsite shows everybody its own page until somebody logs in.
    must(
        example.net,
        "nft 'add table ip camp; add chain ip camp f { type filter hook forward priority 0; }; "
        "add rule ip camp f iifname van-wlan0 drop'",
    )
    play(example, "Set up")
    example.until_up("van", "wwan0")
    assert asks_the_name_server_of_its_file(example, "van")
    assert example.paths("van")["wlan0"]["state"] != "up"
    must(example.net, "nft delete table ip camp")
    example.until_up("van", "wlan0", "wwan0")
    # A network behind the router counts when it has been there for 10 s.
    van = example.machines["van"]
    must(van, "until ropewalk status | grep 192.168.50.0/24; do sleep 0.2; done")
    spent = used(example, "van", "wwan0")
    download = example.start("phone", f"download {INTERNET} 9")
    time.sleep(4)
    spent = used(example, "van", "wwan0") - spent
    wifi.cut()
    samples = download.result()
    before, after = samples[10:35], samples[60:]
    print(f"van: {mbit(before):.1f} Mbit/s, {spent} bytes over LTE; then {mbit(after):.1f} Mbit/s")
    print(f"van: silent for {silence(samples[5:]):.1f} s at most")
    # Over Wi-Fi, from the beginning.
    assert 0.5 * 10 < mbit(before) < 10, samples
    assert spent < 0.02 * sum(samples[:35]), spent
    assert mbit(after) > 0.5 * 16, samples
    assert silence(samples[5:]) < 3, samples
    # LTE stands by again.
    wifi.mend()
    example.until_up("van", "wlan0")
    time.sleep(2)
    spent = used(example, "van", "wwan0")
    again = example.start("phone", f"download {INTERNET} 2").result()
    assert used(example, "van", "wwan0") - spent < 0.02 * sum(again), (
        used(example, "van", "wwan0") - spent,
        again,
    )
    # Without a tunnel neither the van nor the phone leaves.
    must(example.machines["van"], "kill -9 $(pidof ropewalk); sleep 0.5")
    for machine in ("van", "phone"):
        code, said = example.machines[machine].run(f"ping -c 1 -W 1 {INTERNET}")
        assert code != 0, said


def used(example: Example, machine: str, uplink: str) -> int:
    """Bytes over an uplink, in both directions."""
    path = example.paths(machine)[uplink]
    return int(path["tx_bytes"] + path["rx_bytes"])


def in_time(times: list[float | None], limit_ms: float) -> float:
    """The share of packets that came back within a time."""
    return sum(time is not None and time <= limit_ms for time in times) / len(times)


def gap(times: list[float | None]) -> float:
    """The longest run of packets that did not come back, seconds."""
    return silence([0 if time is None else 1 for time in times]) * 10 * 0.02


@pytest.mark.real
def test_a_call_from_home_lasts_beside_uploads_and_when_dsl_fails(make: Make) -> None:
    example = make("home-office")
    play(example, "Set up")
    example.until_up("desk", "eth0", "wwan0")
    assert asks_the_name_server_of_its_file(example, "desk")
    before = used(example, "desk", "wwan0")
    upload = example.start("desk", f"upload {INTERNET} 3500000")
    download = example.start("desk", f"download {INTERNET} 10")
    time.sleep(1)
    call = example.start("desk", f"call {INTERNET} 8")
    time.sleep(4)
    spent = used(example, "desk", "wwan0") - before
    example.wires["desk", "eth0"].cut()
    times, samples, uploaded = call.result(), download.result(), upload.result()
    print(f"home office: {in_time(times[:180], 150):.3f} of the call in time, then "
          f"{in_time(times[250:], 200):.3f}; gap {gap(times):.2f} s; "
          f"download {mbit(samples[10:45]):.1f}, then {mbit(samples[70:]):.1f} Mbit/s; "
          f"{spent} bytes over LTE; longest {max(t or 0 for t in times[:180])}")  # fmt: skip
    assert in_time(times[:180], 150) > 0.8, times
    assert spent < 0.02 * sum(samples[:45]) + 20_000, spent
    # 4 s after the beginning DSL falls silent.
    assert sum(time is None or time > 400 for time in times[180:]) < 50, times
    assert in_time(times[300:], 250) > 0.9, times
    assert mbit(samples[70:]) > 0.15 * 20, samples
    assert uploaded == 3_500_000
    must(example.machines["desk"], "kill -9 $(pidof ropewalk); sleep 0.5")
    code, said = example.machines["desk"].run(f"ping -c 1 -W 1 {INTERNET}")
    assert code != 0, said


@pytest.mark.real
def test_a_ships_download_lasts_from_lte_to_satellite_and_through_an_outage(make: Make) -> None:
    example = make("ship")
    play(example, "Set up")
    example.until_up("ship", "wwan0", "sat0")
    assert asks_the_name_server_of_its_file(example, "ship")
    before = used(example, "ship", "sat0")
    coast, satellite = example.wires["ship", "wwan0"], example.wires["ship", "sat0"]
    download = example.start("ship", f"download {INTERNET} 19")
    time.sleep(3.5)
    spent = used(example, "ship", "sat0") - before
    coast.cut()
    time.sleep(4.5)
    satellite.cut()
    time.sleep(3)
    satellite.mend()
    time.sleep(3.5)
    coast.mend()
    samples = download.result()
    resumed = next(index for index in range(112, 190) if samples[index]) / 10 - 11
    print(f"ship: LTE {mbit(samples[15:33]):.1f}, satellite {mbit(samples[45:78]):.1f}, LTE again "
          f"{mbit(samples[-20:]):.1f} Mbit/s; {spent} bytes over the satellite before; "
          f"resumed {resumed:.1f} s after the outage")  # fmt: skip
    assert mbit(samples[15:33]) > 0.5 * 20, samples
    assert spent < 0.02 * sum(samples[:33]) + 20_000, spent
    assert mbit(samples[45:78]) > 0.1 * 8, samples
    assert resumed < 5, samples
    assert mbit(samples[-20:]) > 0.4 * 20, samples


@pytest.mark.real
def test_live_video_arrives_whole_over_three_modems_and_stays_when_one_fails(make: Make) -> None:
    example = make("studio")
    play(example, "Set up")
    example.until_up("studio", "wwan0", "wwan1", "wwan2")
    assert asks_the_name_server_of_its_file(example, "studio")
    # By the shares of the data plans.
    must(example.machines["studio"], "ropewalk scheduler weighted-round-robin --direction send")
    before = {uplink: path["tx_bytes"] for uplink, path in example.paths("studio").items()}
    example.start("studio", f"video {INTERNET} 2 3").result()
    sent = {
        uplink: path["tx_bytes"] - before[uplink]
        for uplink, path in example.paths("studio").items()
    }
    shares = {uplink: round(count / sum(sent.values()), 3) for uplink, count in sent.items()}
    print(f"studio: shares {shares}")
    assert shares["wwan0"] > shares["wwan1"] > shares["wwan2"], shares
    assert shares["wwan0"] > 0.4, shares
    must(example.machines["studio"], "ropewalk scheduler auto --direction send")
    time.sleep(1)
    example.net.run(f"python3 {TRAFFIC} seen 127.0.0.1")
    video = example.start("studio", f"video {INTERNET} 8 6")
    time.sleep(4.5)
    begin = time.monotonic()
    example.wires["studio", "wwan1"].cut()
    sent = video.result()
    time.sleep(1)
    _, text = example.net.run(f"python3 {TRAFFIC} seen 127.0.0.1")
    seen = json.loads(text)
    numbers = {number for number, _, _ in seen}
    cut = min(number for number, _, at in seen if at > begin)
    first = [number in numbers for number in range(cut - 50)]
    rest = [number in numbers for number in range(cut, sent)]
    delays = [delay for number, delay, _ in seen if number < cut - 50]
    later = [delay for number, delay, _ in seen if number >= cut]
    late, later_late = (
        statistics.quantiles(delays, n=100)[98],
        statistics.quantiles(later, n=100)[98],
    )
    print(f"studio: {sum(first) / len(first):.5f} arrived, 99 % in {late:.0f} ms")
    print(f"studio: then {sum(rest) / len(rest):.5f}, 99 % in {later_late:.0f} ms")
    assert sum(first) / len(first) > 0.999
    assert late < 600
    assert sum(rest) / len(rest) > 0.98
    assert later_late < 1000


@pytest.mark.real
def test_the_office_of_a_farm_reads_its_sites_and_they_reach_nobody(make: Make) -> None:
    example = make("farm")
    play(example, "Set up")
    example.until_up("barn", "wlan0", "wwan0")
    for site in ("barn", "pump"):
        must(example.machines[site], f"python3 {TRAFFIC} serve >serve.log 2>&1 &")
        code, said = example.machines["office"].run(
            f"python3 {TRAFFIC} upload {ADDRESS[site]} 20000"
        )
        assert (code, said.strip()) == (0, "20000"), said
    for site, other in (("barn", "office"), ("barn", "pump"), ("pump", "barn"), ("pump", "office")):
        code, said = example.machines[site].run(f"ping -c 1 -W 1 {ADDRESS[other]}")
        assert code != 0, said
    download = example.start("office", f"download {ADDRESS['barn']} 6")
    time.sleep(3)
    example.wires["barn", "wlan0"].cut()
    samples = download.result()
    print(f"farm: {mbit(samples[10:30]):.2f} Mbit/s from the barn, then {mbit(samples[45:]):.2f}")
    # --rate counts the bytes of inner packets.
    assert 1 < mbit(samples[10:30]) < 2.2, samples
    assert 0.8 < mbit(samples[45:]) < 2.2, samples


ADDRESS = {"barn": "10.104.16.2", "pump": "10.104.16.3", "office": "10.104.16.4"}
"""Of the farm's sites in the tunnel."""


@pytest.mark.real
def test_a_lab_forecasts_and_then_measures_what_two_recordings_carry(make: Make) -> None:
    example = make("lab", "box")
    play(example, "Set up")
    box = example.machines["box"]
    code, said = box.run("ropewalk replay wifi.csv lte.csv --delay 6ms,25ms --seconds 20 --json")
    assert code == 0, said
    must(box, "ip netns exec hub iperf3 -s >iperf.log 2>&1 &")
    rates = {}
    for kind in ("auto", "htmt", "otias"):
        must(box, f"ip netns exec hub ropewalk scheduler {kind} --direction send --config $HUB")
        code, said = box.run("ip netns exec site iperf3 -c 10.104.16.1 -R -t 2 -J")
        assert code == 0, said
        rates[kind] = json.loads(said)["end"]["sum_received"]["bits_per_second"] / 1e6
    print(f"lab: {rates}")
    assert rates["auto"] > 15, rates
    assert min(rates.values()) > 3, rates
    # What the page says ends all of it.
    end = re.search(r"- To end: `(.+?)`, then `(.+?)`", page_of("lab"))
    assert end
    for command in end.groups():
        must(box, command)
    code, said = box.run(
        "sleep 0.5; pgrep -l 'ropewalk|iperf3'; ls -A links.pid /etc/ropewalk; ip netns"
    )
    assert "ropewalk" not in said.replace("/etc/ropewalk", ""), said
    assert "iperf3" not in said and "hub" not in said and "site" not in said, said


@pytest.mark.parametrize("name", NAMES)
def test_a_page_quotes_its_files_and_tells_its_links(name: str) -> None:
    files = quoted(name)
    assert {path for path in files if path.endswith("hub.toml")}
    for path, text in files.items():
        assert (EXAMPLES / path).read_text() == text, path
        if path.endswith(".toml"):
            tomllib.loads(text)
    # Every file is on the page, or linked from it.
    for file in (EXAMPLES / name).iterdir():
        assert f"({name}/{file.name})" in page_of(name), file
    assert links_of(name) or name == "lab"


def test_every_example_has_its_test_and_its_line_in_the_index() -> None:
    index = (ROOT / "docs/examples.md").read_text()
    navigation = (ROOT / "mkdocs.yml").read_text()
    tests = Path(__file__).read_text()
    assert len(NAMES) == 6
    for name in NAMES:
        assert f"(examples/{name}.md)" in index, name
        assert f"examples/{name}.md" in navigation, name
        assert f'make("{name}"' in tests, name
