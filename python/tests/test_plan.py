"""Plans are written as the programs read them."""

import tomllib

import pytest

from ropewalk.plan import (
    Balance,
    Call,
    Carrier,
    Chain,
    Change,
    Direct,
    Gilbert,
    Link,
    Mptcp,
    Pages,
    Path,
    Peer,
    Ping,
    Plan,
    Quic,
    Relay,
    RoundRobin,
    SharedLink,
    Tcp,
    Tunnel,
    Web,
    dumps,
    paths_used,
)

PATHS = (
    Path("a", Link(rate_mbit=16, delay_ms=25, queue_bytes=131072)),
    Path(
        "b",
        Link(rate_mbit=0.5, delay_ms=0.25, loss=0.005, gilbert=Gilbert(0.1, 0.2)),
        down=Link(trace='odd "name"\\.csv'),
        change=(Change(10, Link(blackhole=True)), Change(12.5, up=Link(blackhole=False))),
    ),
)


def read(plan: Plan) -> dict[str, object]:
    return tomllib.loads(plan.to_toml())


def test_a_plan_is_toml_with_units() -> None:
    plan = Plan(
        "x", 20, PATHS, Tunnel("auto", paths=("a", "b")), (Tcp(5, "bbr"), Ping()), warmup_s=0.5
    )
    assert read(plan) == {
        "name": "x",
        "seed": 1,
        "duration": "20s",
        "warmup": "500000us",
        "path": [
            {"name": "a", "both": {"rate": "16Mbit", "delay": "25ms", "queue": 131072}},
            {
                "name": "b",
                "both": {
                    "rate": "0.5Mbit",
                    "delay": "0.25ms",
                    "loss": 0.005,
                    "gilbert": {"p": 0.1, "r": 0.2, "loss_good": 0.0, "loss_bad": 1.0},
                },
                "down": {"trace": 'odd "name"\\.csv'},
                "change": [
                    {"at": "10s", "both": {"blackhole": True}},
                    {"at": "12500000us", "up": {"blackhole": False}},
                ],
            },
        ],
        "carrier": {"kind": "tunnel", "scheduler": "auto", "paths": ["a", "b"]},
        "traffic": [
            {
                "kind": "tcp",
                "flows": 5,
                "congestion": "bbr",
                "direction": "down",
                "start": "0s",
            },
            {"kind": "ping", "interval": "100000us"},
        ],
    }


def test_every_carrier_and_traffic_has_its_kind() -> None:
    carriers: dict[str, Carrier] = {
        "direct": Direct(),
        "path": Direct("b"),
        "tunnel": Tunnel(),
        "relay": Relay((("a",), ("b",))),
        "chain": Chain(("a", "b")),
        "mptcp": Mptcp(),
        "balance": Balance("cheapest", 0),
        "round-robin": RoundRobin(),
        "peer": Peer("wireguard-go"),
    }
    for kind, carrier in carriers.items():
        found = read(Plan("x", 1, PATHS, carrier))["carrier"]
        assert isinstance(found, dict)
        assert found["kind"] == kind
    plan = Plan("x", 1, PATHS, traffic=(Tcp(), Quic(), Ping(), Call(), Web(), Pages("h3")))
    traffic = read(plan)["traffic"]
    assert isinstance(traffic, list)
    assert [item["kind"] for item in traffic] == ["tcp", "quic", "ping", "call", "web", "pages"]


def test_hosts_at_the_gateways_of_a_row_have_links_of_their_own() -> None:
    access = Link(rate_mbit=1, delay_ms=2.5, queue_packets=100)
    traffic = (Tcp(direction="up", segment=1000, enter=2, access=access), Tcp())
    plan = Plan("x", 1, PATHS, Relay((("a",), ("b",)), Tunnel(protect_up="none")), traffic)
    found = read(plan)
    assert found["carrier"] == {
        "kind": "relay",
        "hops": [["a"], ["b"]],
        "tunnel": {"protect_up": "none"},
    }
    assert isinstance(found["traffic"], list)
    first, second = found["traffic"]
    assert (first["segment"], first["enter"]) == (1000, 2)
    assert first["access"] == {"rate": "1Mbit", "delay": "2.5ms", "queue_packets": 100}
    assert not {"segment", "enter", "access"} & set(second)
    chain = read(Plan("x", 1, PATHS, Chain(("b", "a"))))
    assert chain["carrier"] == {"kind": "chain", "hops": ["b", "a"]}


def test_paths_in_use_follow_the_carrier() -> None:
    def names(carrier: Carrier) -> list[str]:
        return [path.name for path in paths_used(Plan("x", 1, PATHS, carrier))]

    assert names(Direct()) == ["a"]
    assert names(Direct("b")) == ["b"]
    assert names(Tunnel(paths=("b",))) == ["b"]
    assert names(Tunnel()) == names(Mptcp()) == ["a", "b"]
    assert names(Relay((("b",),))) == names(Chain(("b",))) == ["b"]


@pytest.mark.parametrize("name", ["\U000e0001", "\x7f", 'a "b"\\\n\t', "é", "\u2028"])
def test_every_text_reads_back_as_it_was(name: str) -> None:
    plan = Plan(name, 1, (Path(name, Link(trace=name)),), Direct(name))
    found = read(plan)
    assert found["name"] == name
    assert found["path"] == [{"name": name, "both": {"trace": name}}]
    assert found["carrier"] == {"kind": "path", "path": name}


def test_a_value_that_no_file_can_hold_is_refused_with_its_key() -> None:
    with pytest.raises(ValueError, match=r"name: '\\ud800' has no place"):
        Plan("\ud800", 1, PATHS).to_toml()
    with pytest.raises(ValueError, match="traffic: <object"):
        dumps({"name": "x", "traffic": object()})
    with pytest.raises(ValueError, match="seed: None"):
        dumps({"name": "x", "seed": None})


def test_shared_links_queues_and_traffic_beside_the_carrier_are_written() -> None:
    cell = Link(rate_mbit=20, aqm="fq-codel", ecn=True, aqm_target_ms=10, ce_threshold_ms=1)
    plan = Plan(
        "x",
        9,
        (Path("a", through="cell"),),
        Tunnel(),
        (Tcp(), Tcp(4, "bbr", beside="cell", start_s=1, until_s=5, ecn=True)),
        link=(SharedLink("cell", down=cell, through="core"), SharedLink("core")),
    )
    found = read(plan)
    assert found["path"] == [{"name": "a", "through": "cell"}]
    assert found["link"] == [
        {
            "name": "cell",
            "down": {
                "rate": "20Mbit",
                "aqm": "fq-codel",
                "ecn": True,
                "aqm_target": "10ms",
                "ce_threshold": "1ms",
            },
            "through": "core",
        },
        {"name": "core"},
    ]
    assert found["traffic"] == [
        {"kind": "tcp", "flows": 1, "congestion": "cubic", "direction": "down", "start": "0s"},
        {
            "kind": "tcp",
            "flows": 4,
            "congestion": "bbr",
            "direction": "down",
            "start": "1s",
            "beside": "cell",
            "until": "5s",
            "ecn": True,
        },
    ]
    assert "link" not in read(Plan("x", 9, PATHS))
