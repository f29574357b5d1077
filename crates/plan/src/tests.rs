use super::*;

const PLAN: &str = r#"
name = "uneven"
duration = "20s"
warmup = "5s"

[[path]]
name = "a"
both = { rate = "16Mbit", delay = "25ms", queue = "128KiB" }
[[path]]
name = "b"
both = { rate = "8Mbit", delay = "35ms" }
change = [ { at = "10s", both.blackhole = true } ]
leaving = [ "9500ms", "12s" ]

[carrier]
kind = "tunnel"
scheduler = "auto"
freeze = "planned"
order = "off"
send_buffer = 5
paths = ["a", "b"]

[[traffic]]
kind = "tcp"
flows = 5
[[traffic]]
kind = "quic"
congestion = "bbr"
direction = "up"
[[traffic]]
kind = "ping"
"#;

#[test]
fn a_plan_reads_and_writes_the_same() {
    let plan = Plan::parse(PLAN).unwrap();
    assert_eq!(plan.seed, 1);
    assert_eq!(plan.warmup, Duration::from_secs(5));
    let announced = [Duration::from_millis(9_500), Duration::from_secs(12)];
    assert_eq!(plan.path[1].leaving, announced);
    assert!(matches!(&plan.carrier, Carrier::Tunnel(t) if t.scheduler.as_deref() == Some("auto")));
    assert!(matches!(
        plan.traffic[1],
        Traffic::Quic {
            packet_threshold: 3,
            congestion: Congestion::Bbr,
            ..
        }
    ));
    let again = Plan::parse(&plan.to_toml().unwrap()).unwrap();
    assert_eq!(again, plan);
}

#[test]
fn carriers_without_a_tunnel_read_and_write_the_same() {
    let head = "kind = \"tunnel\"\nscheduler = \"auto\"\nfreeze = \"planned\"\norder = \"off\"\nsend_buffer = 5\npaths = [\"a\", \"b\"]";
    // Only a tunnel can be told.
    let base = PLAN.replace("leaving = [ \"9500ms\", \"12s\" ]\n", "");
    assert!(base.contains(head) && base != PLAN);
    for carrier in [
        "kind = \"balance\"",
        "kind = \"balance\"\nmode = \"least-finish\"\naffinity_minutes = 0",
        "kind = \"round-robin\"",
    ] {
        let plan = Plan::parse(&base.replace(head, carrier)).unwrap();
        assert_eq!(Plan::parse(&plan.to_toml().unwrap()).unwrap(), plan);
        assert_eq!(plan.hops(), 1);
    }
    let error = Plan::parse(&base.replace(head, "kind = \"balance\"\nmod = \"x\"")).unwrap_err();
    assert!(error.to_string().contains("mod"), "{error}");
}

#[test]
fn a_carrier_without_settings_refuses_keys() {
    let plan = |carrier: &str| {
        Plan::parse(&format!(
            "name = \"x\"\nduration = \"1s\"\n[[path]]\nname = \"a\"\n[carrier]\n{carrier}"
        ))
    };
    for (kind, key) in [
        ("direct", "path = \"a\""),
        ("direct", "foo = 1"),
        ("mptcp", "paths = [\"a\"]"),
        ("round-robin", "foo = 1"),
    ] {
        let kind = format!("kind = \"{kind}\"\n");
        assert!(plan(&kind).is_ok(), "{kind}");
        let error = plan(&format!("{kind}{key}")).unwrap_err().to_string();
        let name = key.split(' ').next().unwrap();
        assert!(error.contains(&format!("`{name}`")), "{error}");
    }
}

#[test]
fn names_that_the_programs_do_not_know_are_refused_with_their_key() {
    for (key, bad) in [
        ("scheduler", "fastest-ever"),
        ("congestion", "soon"),
        ("protect_up", "armour"),
        ("protect_down", "armour"),
        ("order", "maybe"),
        ("freeze", "deep"),
    ] {
        let line = format!("{key} = \"{bad}\"");
        let relay = ROW.replace("scheduler = \"auto\"", &line);
        let head = "scheduler = \"auto\"\nfreeze = \"planned\"\norder = \"off\"";
        assert!(PLAN.contains(head));
        let tunnel = PLAN.replace(head, &line);
        for (section, text) in [("carrier", tunnel), ("carrier.tunnel", relay)] {
            let error = Plan::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{section}.{key}: ")), "{error}");
            assert!(error.contains(&format!("\"{bad}\"")), "{error}");
        }
    }
    for (key, bad, told) in [
        ("mode", "\"best\"", "least-finish"),
        ("affinity_sites", "\"none\"", "opened"),
        ("affinity_minutes", "4294967295", "1440"),
    ] {
        let error = Plan::parse(&format!(
            "name = \"x\"\nduration = \"1s\"\n[[path]]\nname = \"a\"\n[carrier]\nkind = \"balance\"\n\
             {key} = {bad}"
        ));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(&format!("carrier.{key}: ")), "{error}");
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn new_reno_has_one_meaning_wherever_it_is_written() {
    for name in ["newreno", "new-reno"] {
        let text = PLAN
            .replace("scheduler = \"auto\"", &format!("congestion = \"{name}\""))
            .replace("\"bbr\"", &format!("\"{name}\""));
        let plan = Plan::parse(&text).unwrap();
        assert!(
            matches!(&plan.carrier, Carrier::Tunnel(t) if t.congestion.as_deref() == Some("newreno"))
        );
        assert!(matches!(
            plan.traffic[1],
            Traffic::Quic {
                congestion: Congestion::NewReno,
                ..
            }
        ));
    }
}

#[test]
fn what_has_no_effect_is_said() {
    assert_eq!(Plan::parse(PLAN).unwrap().warnings(), Vec::<String>::new());
    for (from, to, told) in [
        (
            "at = \"10s\"",
            "at = \"20s\"",
            "path[1].change[0].at: after the end",
        ),
        (
            "rate = \"8Mbit\", ",
            "",
            "path[1]: no `rate` or `trace` in either",
        ),
        (
            "both = { rate = \"8Mbit\"",
            "up = { rate = \"8Mbit\"",
            "`trace` down",
        ),
        (
            "delay = \"35ms\"",
            "delay = \"35ms\", reorder = true",
            "path[1]: `reorder` without `jitter`",
        ),
    ] {
        assert!(PLAN.contains(from), "{from}");
        let warnings = Plan::parse(&PLAN.replace(from, to)).unwrap().warnings();
        assert!(
            matches!(&warnings[..], [one] if one.contains(told)),
            "{told}: {warnings:?}"
        );
    }
    let silent = &PLAN[..PLAN.find("[[traffic]]").unwrap()];
    let warnings = Plan::parse(silent).unwrap().warnings();
    assert!(warnings[0].starts_with("traffic: "), "{warnings:?}");
}

#[test]
fn a_tunnel_names_each_of_its_paths_once() {
    for (paths, problem) in [
        ("[]", "name at least one path"),
        (r#"["a", "b", "a"]"#, "the path `a` is named twice"),
    ] {
        let text = PLAN.replace(r#"paths = ["a", "b"]"#, &format!("paths = {paths}"));
        assert_ne!(text, PLAN);
        let error = Plan::parse(&text).unwrap_err().to_string();
        assert!(error.starts_with("carrier.paths: "), "{error}");
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn a_value_that_cannot_be_read_is_named_with_its_place() {
    for (from, to, told) in [
        ("name = \"uneven\"", "name = 3", "name: "),
        (
            "warmup = \"5s\"",
            "warmup = \"soon\"",
            "warmup: `soon` is not",
        ),
        (
            "rate = \"8Mbit\"",
            "rate = \"fast\"",
            "path[1].both.rate: `fast` is not",
        ),
        (
            "at = \"10s\"",
            "at = \"soon\"",
            "path[1].change[0].at: `soon`",
        ),
        ("\"12s\" ]", "\"soon\" ]", "path[1].leaving[1]: `soon`"),
        (
            "send_buffer = 5",
            "send_buffer = -5",
            "carrier.send_buffer: ",
        ),
        (
            "kind = \"tunnel\"",
            "kind = \"tunel\"",
            "carrier.kind: unknown",
        ),
        (
            "kind = \"ping\"",
            "kind = \"pong\"",
            "traffic[2].kind: unknown",
        ),
        (
            "flows = 5",
            "start = \"1s\"\nuntil = \"soon\"",
            "traffic[0].until: `soon` is not",
        ),
        (
            "flows = 5",
            "start = \"soon\"\nuntil = \"2s\"",
            "traffic[0].start: `soon` is not",
        ),
        (
            "flows = 5",
            "access = { rate = \"1Mbit\", delay = \"soon\" }",
            "traffic[0].access.delay: `soon` is not",
        ),
        (
            "congestion = \"bbr\"",
            "congestion = \"bbx\"",
            "traffic[1].congestion: unknown variant `bbx`",
        ),
    ] {
        assert!(PLAN.contains(from), "{from}");
        let error = Plan::parse(&PLAN.replace(from, to)).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(told), "{told}: {error}");
    }
}

#[test]
fn bad_plans_name_the_key() {
    for (from, to, key) in [
        ("name = \"b\"", "name = \"a\"", "path[1].name"),
        ("warmup = \"5s\"", "warmup = \"20s\"", "warmup"),
        ("[ \"9500ms\", \"12s\" ]", "[ \"soon\" ]", "duration"),
        ("\"12s\" ]", "\"20s\" ]", "path[1].leaving"),
        ("[\"a\", \"b\"]", "[\"c\"]", "carrier.paths"),
        ("send_buffer = 5", "send_buffer = 0", "carrier.send_buffer"),
        ("flows = 5", "flows = 0", "traffic[0].flows"),
        ("flows = 5", "flowz = 5", "flowz"),
        ("duration = \"20s\"", "duration = \"20\"", "duration"),
        ("duration = \"20s\"", "duration = \"2000min\"", "duration"),
        ("kind = \"ping\"", "kind = \"pong\"", "pong"),
        ("scheduler = \"auto\"", "schedular = \"auto\"", "schedular"),
    ] {
        assert!(PLAN.contains(from), "{from}");
        let error = Plan::parse(&PLAN.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
}

const ROW: &str = r#"
name = "row"
duration = "20s"
[[path]]
name = "a"
[[path]]
name = "b"
[[path]]
name = "c"
[carrier]
kind = "relay"
hops = [["a"], ["b", "c"]]
tunnel = { scheduler = "auto" }
[[traffic]]
kind = "tcp"
direction = "up"
segment = 1000
[[traffic]]
kind = "tcp"
enter = 2
access = { rate = "1Mbit", delay = "1500us", queue_packets = 100 }
"#;

#[test]
fn tunnels_in_a_row_read_and_write_the_same() {
    let plan = Plan::parse(ROW).unwrap();
    assert_eq!(plan.hops(), 2);
    let places: Vec<_> = plan.traffic.iter().map(Traffic::enter).collect();
    assert_eq!(places, [1, 2]);
    assert!(plan.traffic[0].access().is_none() && plan.traffic[1].access().is_some());
    let again = Plan::parse(&plan.to_toml().unwrap()).unwrap();
    assert_eq!(again, plan);
    let chain = ROW.replace("[[\"a\"], [\"b\", \"c\"]]", "[\"a\", \"c\"]");
    let chain = chain.replace("relay", "chain").replace("tunnel = {", "# ");
    let plan = Plan::parse(&chain).unwrap();
    assert!(matches!(&plan.carrier, Carrier::Chain { hops } if hops == &["a", "c"]));
    assert_eq!(Plan::parse(&plan.to_toml().unwrap()).unwrap(), plan);
}

#[test]
fn tcp_nc_in_a_row_reads_back_and_names_what_it_cannot_carry() {
    let row = ROW
        .replace("[[\"a\"], [\"b\", \"c\"]]", "[\"a\", \"c\"]")
        .replace("relay", "tcp-nc")
        .replace("tunnel = { scheduler = \"auto\" }", "n = 10\nk = 2");
    let plain = "enter = 2\ndirection = \"up\"\ncongestion = \"new-reno\"\nplain = true";
    let good = row.replace("enter = 2", plain);
    let plan = Plan::parse(&good).unwrap();
    assert_eq!(plan.hops(), 2);
    assert!(plan.traffic[1].plain());
    assert_eq!(Plan::parse(&plan.to_toml().unwrap()).unwrap(), plan);
    for (text, key) in [
        (row, "traffic[1].direction"),
        (good.replace("k = 2", ""), "carrier.n"),
        (good.replace("n = 10", "n = 0"), "carrier.n"),
        (good.replace("new-reno", "bbr"), "traffic[1].plain"),
        (good.replace("\"c\"]", "\"x\"]"), "carrier.hops"),
    ] {
        let error = Plan::parse(&text).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
}

#[test]
fn bad_rows_name_the_key() {
    let hops = "[[\"a\"], [\"b\", \"c\"]]";
    for (from, to, key) in [
        (hops, "[]", "carrier.hops"),
        (hops, "[[\"a\"], []]", "carrier.hops"),
        (hops, "[[\"a\"], [\"x\"]]", "carrier.hops"),
        (hops, "[[\"a\"], [\"a\", \"b\"]]", "carrier.hops"),
        ("scheduler =", "schedular =", "schedular"),
        (
            "scheduler = \"auto\"",
            "paths = [\"a\"]",
            "carrier.tunnel.paths",
        ),
        (
            "scheduler = \"auto\"",
            "freeze = \"planned\"",
            "carrier.tunnel.freeze",
        ),
        ("enter = 2", "enter = 3", "traffic[1].enter"),
        ("enter = 2", "enter = 0", "traffic[1].enter"),
        ("segment = 1000", "segment = 2000", "traffic[0].segment"),
        ("segment = 1000", "window = 20", "traffic[0].window"),
        ("queue_packets", "queue_pakets", "queue_pakets"),
    ] {
        assert!(ROW.contains(from), "{from}");
        let error = Plan::parse(&ROW.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
    for (more, key) in [
        ("enter = 2", "traffic[0].enter"),
        ("access = { delay = \"1ms\" }", "traffic[0].access"),
    ] {
        let text = PLAN.replace("flows = 5", more);
        let error = Plan::parse(&text).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
}

#[test]
fn paths_of_one_plan_have_different_randomness_and_seeds_do_too() {
    let plan = Plan::parse(PLAN).unwrap();
    let seed = |seed, index: usize| plan.path[index].link(seed, index).seed;
    assert_ne!(seed(1, 0), seed(1, 1));
    assert_ne!(seed(1, 0), seed(2, 0));
    assert!(plan.path[0].link(u64::MAX, 0).to_toml().is_ok());
}

#[test]
fn ceilings_take_headers_off() {
    assert!((direct_ceiling(100.0) - 96.533).abs() < 0.01);
    assert!((tunnel_ceiling(100.0, true) - 95.0).abs() < 0.01);
    assert!((tunnel_ceiling(100.0, false) - 92.267).abs() < 0.01);
}

#[test]
fn percentiles_are_nearest_ranks() {
    let values: Vec<f64> = (1..=100).map(f64::from).rev().collect();
    let d = Distribution::of(&values);
    assert_eq!(
        (d.min, d.p50, d.p95, d.p99, d.max),
        (1.0, 50.0, 95.0, 99.0, 100.0)
    );
    assert_eq!(Distribution::of(&[]), Distribution::default());
    assert_eq!(Distribution::of(&[7.0]).p95, 7.0);
}

#[test]
fn a_report_survives_json() {
    let report = Report {
        plan: "x".into(),
        traffic: vec![TrafficReport {
            kind: "tcp".into(),
            goodput_mbit: 3.5,
            ..Default::default()
        }],
        ..Report::default()
    };
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

const SHARED: &str = r#"
name = "shared"
duration = "20s"

[[path]]
name = "a"
through = "cell"
both = { rate = "16Mbit" }
[[path]]
name = "b"
through = "cell"
both = { rate = "8Mbit" }
[[path]]
name = "c"
both = { rate = "3Mbit" }

[[link]]
name = "cell"
through = "backbone"
down = { rate = "20Mbit", aqm = "fq-codel" }
[[link]]
name = "backbone"

[carrier]
kind = "tunnel"

[[traffic]]
kind = "tcp"
direction = "up"
beside = "cell"
[[traffic]]
kind = "tcp"
ecn = true
start = "1s"
until = "9s"
"#;

#[test]
fn shared_links_join_paths_and_have_seeds_of_their_own() {
    let plan = Plan::parse(SHARED).unwrap();
    assert_eq!(Plan::parse(&plan.to_toml().unwrap()).unwrap(), plan);
    let through: Vec<_> = (0..plan.link_count()).map(|n| plan.through(n)).collect();
    assert_eq!(through, [Some(3), Some(3), None, Some(4), None]);
    let mut seeds: Vec<_> = (0..5).map(|n| plan.link_plan(n, 7).seed).collect();
    seeds.dedup();
    assert_eq!(seeds.len(), 5);
    // The carrier's own traffic decides on the direction of the report.
    assert_eq!(plan.sides(), [ropewalk_netem::Side::Down]);
    let rates = [Some(16.0), Some(8.0), Some(3.0), Some(20.0), None];
    assert_eq!(plan.carried(&[0, 1, 2], |n| rates[n]), Some(23.0));
    assert_eq!(plan.carried(&[1, 2], |n| rates[n]), Some(11.0));
    assert_eq!(plan.carried(&[0, 2], |_| None), None);
}

#[test]
fn bad_shared_links_name_the_key() {
    for (from, to, key) in [
        ("name = \"backbone\"", "name = \"a\"", "link[1].name"),
        (
            "name = \"b\"\nthrough = \"cell\"",
            "name = \"b\"\nthrough = \"cel\"",
            "path[1].through",
        ),
        (
            "name = \"c\"",
            "name = \"c\"\nthrough = \"a\"",
            "path[2].through",
        ),
        (
            "name = \"backbone\"",
            "name = \"backbone\"\nthrough = \"cell\"",
            "link[0].through: `cell` leads in a circle",
        ),
        ("through = \"backbone\"\n", "", "link[1]: nothing passes"),
        (
            "beside = \"cell\"",
            "beside = \"sell\"",
            "traffic[0].beside",
        ),
        ("until = \"9s\"", "until = \"1s\"", "traffic[1].until"),
        ("ecn = true", "tunnel = true", "traffic[1].tunnel"),
        (
            "kind = \"tunnel\"\n\n[[traffic]]\n",
            "kind = \"direct\"\n\n[[traffic]]\ntunnel = true\n",
            "traffic[0].tunnel",
        ),
        (
            "kind = \"tunnel\"",
            "kind = \"chain\"\nhops = [\"a\", \"b\"]",
            "link: not for",
        ),
    ] {
        assert!(SHARED.contains(from), "{from}");
        let error = Plan::parse(&SHARED.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
    let none = SHARED.replace("[[link]]\nname = \"cell\"", "[[link]]\nname = \"sell\"");
    let error = Plan::parse(&none).unwrap_err().to_string();
    assert!(
        error.contains("there is no link `cell`, only sell, backbone"),
        "{error}"
    );
}
