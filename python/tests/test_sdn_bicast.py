"""The policy `bicast` on a fake switch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sdn_parts import APP_MAC, FakeSwitch, bicast, gateway_mac, uplink_mac

from ropewalk.sdn.bicast.policy import Bicast
from ropewalk.sdn.openflow import events
from ropewalk.sdn.openflow.program import (
    Bucket,
    CheckLarger,
    Group,
    Output,
    SetField,
    ToGroup,
)


def _group(switch: FakeSwitch, number: int) -> Group | None:
    return next((group for group in switch.program.groups if group.number == number), None)


def _ports(group: Group | None) -> list[int]:
    assert group is not None
    return [
        action.port
        for bucket in group.buckets
        for action in bucket.actions
        if isinstance(action, Output)
    ]


FAMILIES = pytest.mark.parametrize(
    ("version", "prefix", "groups"), [(4, "10.{}.0.", 0), (6, "fd0{}::", 50)]
)


@FAMILIES
@pytest.mark.parametrize("both", [False, True])
def test_each_copy_leaves_over_its_own_path_with_its_own_addresses(
    tmp_path: Path, version: int, prefix: str, groups: int, both: bool
) -> None:
    versions = (4, 6) if both else (version,)
    switch = FakeSwitch(Bicast(), bicast(tmp_path, versions=versions))
    switch.run(1)
    copies = _group(switch, groups + 1)
    assert copies is not None
    assert copies.kind == "all"
    slots = (Bucket((ToGroup(groups + 10),)), Bucket((ToGroup(groups + 11),)))
    assert copies.buckets == slots
    for number in range(2):
        slot = _group(switch, groups + 10 + number)
        assert slot is not None
        assert slot.buckets[0].actions == (
            SetField("eth_src", uplink_mac(number)),
            SetField("eth_dst", gateway_mac(number)),
            SetField(f"ipv{version}_src", f"{prefix.format(number)}1"),
            SetField(f"ipv{version}_dst", f"{prefix.format(number)}2"),
            Output(2 + number),
        )


@FAMILIES
def test_what_arrives_is_rewritten_to_the_far_host(
    tmp_path: Path, version: int, prefix: str, groups: int
) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path, versions=(4, 6)))
    switch.run(1)
    sources = set()
    for number in range(2):
        source = {f"ipv{version}_src": f"{prefix.format(number)}2"}
        arriving = switch.flows(0, in_port=2 + number, **source)
        (plain,) = [flow for flow in arriving if flow.priority == 500]
        assert SetField("eth_dst", APP_MAC) in plain.actions
        far, own = {4: ("10.99.0.2", "10.99.0.1"), 6: ("fd99::2", "fd99::1")}[version]
        assert SetField(f"ipv{version}_src", far) in plain.actions
        assert SetField(f"ipv{version}_dst", own) in plain.actions
        assert plain.actions[-1] == Output(1)
        sources |= {action for action in plain.actions if getattr(action, "field", "") == "eth_src"}
    # The removal of copies tells paths by it.
    assert len(sources) == 2


def test_a_path_can_be_dead_in_one_family_alone(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path, versions=(4, 6)))
    switch.run(1)
    switch.silent_versions = {(2, 6)}
    switch.run(2)
    assert _ports(_group(switch, 2)) == [2, 3]
    assert _ports(_group(switch, 52)) == [3]
    rows = switch.policy.report(switch.state, switch.now)["uplinks"]
    down = [(row["name"], row["family"]) for row in rows if not row["usable"]]
    assert down == [("w0", "ipv6")]


def test_one_copy_is_unicast_with_spares(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path, "copies = 1", uplinks=3))
    switch.run(1)
    assert _group(switch, 1) is None
    once = _group(switch, 2)
    assert once is not None
    assert once.kind == "ff"
    assert _ports(once) == [2, 3, 4]


def test_two_copies_over_four_paths_have_different_spares(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path, "copies = 2", uplinks=4))
    switch.run(1)
    assert _ports(_group(switch, 10)) == [2, 4, 5]
    assert _ports(_group(switch, 11)) == [3, 5, 4]


def test_a_silent_path_is_left_and_used_again_when_it_answers(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path))
    switch.run(1)
    switch.silent = {2}
    switch.run(2)
    assert _group(switch, 1) is None
    assert _ports(_group(switch, 2)) == [3]
    switch.silent = set()
    switch.run(2)
    assert _group(switch, 1) is not None
    assert _ports(_group(switch, 2)) == [2, 3]


def test_a_dead_port_is_left_at_once(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path))
    switch.run(1)
    switch.tell(events.PortChanged(replace(switch.ports[1], live=False)))
    assert _ports(_group(switch, 2)) == [3]


def test_a_controller_that_was_held_up_condemns_no_path(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path))
    switch.run(1)
    switch.mods()
    switch.now += 30
    switch.run(0.2)
    assert switch.mods() == []


def test_copies_begin_with_losses_and_end_without(tmp_path: Path) -> None:
    config = bicast(tmp_path, 'when = "loss"\nloss_on_percent = 5\nloss_off_percent = 1')
    switch = FakeSwitch(Bicast(), config)
    switch.run(5)
    assert _group(switch, 1) is None
    switch.lossy = {2: 10}
    switch.run(15)
    assert _group(switch, 1) is not None
    switch.lossy = {}
    switch.run(20)
    assert _group(switch, 1) is None


def test_only_chosen_flows_and_small_packets_are_copied(tmp_path: Path) -> None:
    rows = "packet_bytes_max = 200\n" + '[[bicast.flow]]\nprotocol = "tcp"\nport = 1194\n'
    switch = FakeSwitch(Bicast(), bicast(tmp_path, rows))
    switch.run(1)
    for end in ("src", "dst"):
        (chosen,) = switch.flows(1, **{f"tcp_{end}": 1194})
        assert chosen.actions[0] == CheckLarger(214)
    (others,) = [flow for flow in switch.flows(1) if flow.priority == 0]
    assert others.actions == (ToGroup(2),)
    (small,) = switch.flows(2, reg0=(0, 1))
    (large,) = [flow for flow in switch.flows(2) if flow.priority == 0]
    assert small.actions == (ToGroup(1),)
    assert large.actions == (ToGroup(2),)


@pytest.mark.parametrize("versions", [(4,), (6,), (4, 6)])
def test_a_restarted_controller_changes_nothing(tmp_path: Path, versions: tuple[int, ...]) -> None:
    config = bicast(tmp_path, versions=versions)
    first = FakeSwitch(Bicast(), config)
    first.run(2)
    again = FakeSwitch(Bicast(), config, first.program)
    again.run(5)
    assert again.mods() == []


def test_a_restarted_controller_mends_what_is_wrong(tmp_path: Path) -> None:
    config = bicast(tmp_path)
    first = FakeSwitch(Bicast(), config)
    first.run(2)
    broken = replace(
        first.program,
        flows=frozenset(flow for flow in first.program.flows if flow.priority != 500),
    )
    again = FakeSwitch(Bicast(), config, broken)
    again.run(5)
    assert again.program == first.program


def test_the_program_comes_although_one_path_never_answered(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path), silent={3})
    switch.run(5)
    assert _ports(_group(switch, 2)) == [2]


def test_a_new_host_behind_the_same_port_is_asked_for_at_once(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path))
    switch.run(1)
    switch.host_mac = "0a:00:00:00:00:99"
    switch.tell(events.Disconnected())
    switch.tell(events.Connected(switch.ports, switch.program))
    switch.run(1)
    arriving = [flow for flow in switch.flows(0, in_port=2) if flow.priority == 500]
    assert SetField("eth_dst", "0a:00:00:00:00:99") in arriving[0].actions


def test_a_flow_that_somebody_removed_comes_back_with_the_next_look(tmp_path: Path) -> None:
    switch = FakeSwitch(Bicast(), bicast(tmp_path))
    switch.run(1)
    whole = switch.program
    switch.program = replace(
        whole, flows=frozenset(flow for flow in whole.flows if flow.priority != 500)
    )
    switch.tell(events.Present(switch.program))
    assert switch.program == whole
