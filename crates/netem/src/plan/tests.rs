//! Plans: what they mean, how they fail, and that writing and reading them agree.

use super::*;
use crate::direction::QUEUE_PACKETS_DEFAULT;

fn no_files(_: &str) -> Result<String, String> {
    Err("no file here".into())
}

fn resolve(text: &str) -> Result<LinkConfig, PlanError> {
    LinkPlan::parse(text)?.resolve(no_files)
}

#[test]
fn directions_override_what_both_have_key_by_key() {
    let config = resolve(
        r#"
        seed = 7
        both = { rate = "16Mbit", delay = "25ms", queue = "64KiB" }
        up = { rate = "8Mbit", loss = "1%", loss_burst = 4 }
        "#,
    )
    .expect("valid");
    assert_eq!(config.seed, 7);
    assert_eq!(
        config.up.capacity,
        Capacity::Fixed(Rate::from_bits_per_sec(8_000_000))
    );
    assert_eq!(
        config.down.capacity,
        Capacity::Fixed(Rate::from_bits_per_sec(16_000_000))
    );
    assert_eq!(config.up.delay, Duration::from_millis(25));
    assert_eq!(config.down.loss, LossModel::None);
    let LossModel::GilbertElliott(chain) = config.up.loss else {
        panic!("{:?}", config.up)
    };
    assert!((chain.bad_to_good - 0.25).abs() < 1e-12);
    assert_eq!(
        (config.up.queue_bytes_max, config.up.queue_packets_max),
        (Some(65_536), None)
    );
}

#[test]
fn an_empty_plan_is_a_plain_wire() {
    let config = resolve("").expect("valid");
    assert_eq!(config.up, DirectionConfig::default());
    assert_eq!(config.up.queue_packets_max, Some(QUEUE_PACKETS_DEFAULT));
}

#[test]
fn changes_apply_per_direction_and_for_both() {
    let config = resolve(
        r#"
        [[change]]
        at = "5s"
        both.blackhole = true
        down.rate = "unlimited"
        "#,
    )
    .expect("valid");
    let change = &config.changes[0];
    assert_eq!(change.at, Duration::from_secs(5));
    assert_eq!(
        (change.up.blackhole, change.down.blackhole),
        (Some(true), Some(true))
    );
    assert_eq!(change.up.capacity, None);
    assert_eq!(change.down.capacity, Some(Capacity::Unlimited));
}

#[test]
fn every_bad_plan_names_the_key_and_a_remedy() {
    let cases = [
        ("[up]\nspeed = \"1Mbit\"", "speed", "rate"),
        ("[up]\nrate = \"fast\"", "rate", "16Mbit"),
        ("[up]\nrate = 16", "rate", "16Mbit"),
        ("[up]\ndelay = true", "delay", "25ms"),
        ("[up]\nloss = \"120%\"", "loss", "0%"),
        ("[up]\nloss_burst = 4", "up.loss_burst", "needs `loss`"),
        (
            "[up]\nloss = \"90%\"\nloss_burst = 1",
            "up.loss_burst",
            "longer",
        ),
        (
            "[up]\nloss = 0\nloss_burst = -4",
            "up.loss_burst",
            "at least 1",
        ),
        (
            "[up]\nloss = 0\nloss_burst = nan",
            "up.loss_burst",
            "at least 1",
        ),
        (
            "[down]\nloss = \"1%\"\ngilbert = { p = \"1%\", r = \"25%\" }",
            "down.gilbert",
            "either",
        ),
        ("[down]\ngilbert = { p = \"1%\" }", "gilbert", "`r`"),
        (
            "[up]\nrate = \"1Mbit\"\ntrace = \"x\"",
            "up.trace",
            "either",
        ),
        ("[up]\ntrace = \"x\"", "up.trace", "no file here"),
        ("[[change]]\nboth.blackhole = true", "change", "`at`"),
        (
            "[[change]]\nat = \"1s\"\nblackhole = true",
            "blackhole",
            "both",
        ),
        (
            "[[change]]\nat = \"1s\"\nup.loss_burst = 2",
            "change[0].up.loss_burst",
            "needs",
        ),
        ("seed = -1", "seed", "u64"),
    ];
    for (text, key, remedy) in cases {
        let message = resolve(text).expect_err(text).to_string();
        assert!(
            message.contains(key),
            "{text:?} should name {key}: {message}"
        );
        assert!(
            message.contains(remedy),
            "{text:?} should say {remedy}: {message}"
        );
    }
}

#[test]
fn the_seed_says_where_a_recording_begins() {
    let trace = "1,100\n2,200\n3,300\n4,400\n5,500\n";
    let config = |seed: u64, start: &str| {
        let text = format!("seed = {seed}\n[both]\ntrace = \"x\"\ntrace_start = \"{start}\"");
        let plan = LinkPlan::parse(&text).expect("valid");
        plan.resolve(|_| Ok(trace.into())).expect("resolved")
    };
    assert_eq!(config(1, "seed"), config(1, "seed"));
    assert_eq!(config(1, "seed").up, config(1, "seed").down);
    assert_ne!(config(1, "seed").up, config(2, "seed").up);
    assert_eq!(config(1, "2s").up, config(7, "2s").up);
    for (text, problem) in [
        (
            "[up]\ntrace_start = \"2s\"",
            "up.trace_start: needs `trace`",
        ),
        (
            "[up]\ntrace = \"x\"\ntrace_start = \"2\"",
            "up.trace_start: ",
        ),
    ] {
        let error = LinkPlan::parse(text)
            .expect("valid")
            .resolve(|_| Ok(trace.into()));
        let error = error.expect_err("bad start").to_string();
        assert!(error.starts_with(problem), "{error}");
    }
}

#[test]
fn trace_errors_name_key_file_and_line() {
    let plan = LinkPlan::parse("[up]\ntrace = \"walk.csv\"").expect("valid");
    let error = plan
        .resolve(|_| Ok("1,100\n2,oops\n".into()))
        .expect_err("bad trace");
    let message = error.to_string();
    assert!(
        message.starts_with("up.trace: walk.csv, line 2: "),
        "{message}"
    );
    let config = plan.resolve(|_| Ok("1,100\n".into())).expect("good trace");
    assert!(matches!(config.up.capacity, Capacity::Trace(_)));
}

#[test]
fn a_plan_written_as_toml_reads_back() {
    let text = r#"
        seed = 3
        [both]
        rate = "16Mbit"
        delay = "25ms"
        jitter = "1500us"
        reorder = true
        queue = "64KiB"
        queue_packets = "unlimited"
        mtu = 1500
        [up]
        loss = 0.05
        loss_burst = 2.5
        [down]
        gilbert = { p = "1%", r = "25%", loss_bad = "50%" }
        [[change]]
        at = "1500ms"
        up.rate = "unlimited"
    "#;
    let plan = LinkPlan::parse(text).expect("valid");
    let written = plan.to_toml().expect("writable");
    assert_eq!(LinkPlan::parse(&written).expect(&written), plan);
}

#[test]
fn keys_set_from_text_equal_keys_in_a_plan() {
    let pairs = [
        ("rate", "\"16Mbit\""),
        ("trace", "\"a.csv\""),
        ("delay", "\"25ms\""),
        ("jitter", "\"1ms\""),
        ("reorder", "true"),
        ("loss", "\"5%\""),
        ("loss_burst", "4.0"),
        ("queue", "\"64KiB\""),
        ("queue_packets", "50"),
        ("mtu", "\"1400\""),
        ("blackhole", "true"),
    ];
    for (key, value) in pairs {
        let from_file = LinkPlan::parse(&format!("[up]\n{key} = {value}"))
            .expect(key)
            .up;
        let mut from_text = DirectionPlan::default();
        from_text.set(key, value.trim_matches('"')).expect(key);
        assert_eq!(from_text, from_file, "{key}");
        assert!(
            DirectionPlan::default().set(key, "").is_err() || key == "trace",
            "{key}"
        );
    }
    let error = DirectionPlan::default()
        .set("speed", "1")
        .expect_err("unknown")
        .to_string();
    assert!(
        error.contains("speed") && error.contains("rate, trace"),
        "{error}"
    );
}

#[test]
fn the_example_plans_are_valid() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plans");
    let mut checked = 0;
    for entry in std::fs::read_dir(directory).expect("the folder of plans") {
        let path = entry.expect("readable").path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let text = std::fs::read_to_string(&path).expect("readable");
            let config = resolve(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert_ne!(
                config.up,
                DirectionConfig::default(),
                "{path:?} does something"
            );
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked}");
}

#[test]
fn queue_management_is_read_per_direction_and_from_text() {
    let config = resolve(
        r#"
        both = { rate = "16Mbit", aqm = "fq-codel", ecn = true, aqm_target = "10ms" }
        up = { aqm = "pie" }
        down = { aqm_interval = "200ms", ce_threshold = "1ms" }
        "#,
    )
    .expect("valid");
    assert_eq!((config.up.aqm, config.down.aqm), (Aqm::Pie, Aqm::FqCoDel));
    assert!(config.up.ecn && config.down.ecn);
    assert_eq!(config.up.aqm_target, Some(Duration::from_millis(10)));
    assert_eq!(config.down.aqm_interval, Some(Duration::from_millis(200)));
    assert_eq!(config.down.ce_threshold, Some(Duration::from_millis(1)));
    let mut plan = DirectionPlan::default();
    for (key, value) in [("aqm", "codel"), ("ecn", "on"), ("aqm_interval", "50ms")] {
        plan.set(key, value).expect(key);
    }
    assert_eq!((plan.aqm, plan.ecn), (Some(Aqm::CoDel), Some(true)));
    let error = plan.set("aqm", "red").expect_err("unknown").to_string();
    assert!(error.contains("codel, fq-codel, pie"), "{error}");
}

#[test]
fn queue_management_that_does_nothing_or_cannot_be_is_refused_by_its_key() {
    for (plan, key) in [
        ("both.ecn = true", "up.ecn"),
        ("down.aqm_target = \"5ms\"", "down.aqm_target"),
        (
            "both = { aqm = \"pie\", aqm_interval = \"9ms\" }",
            "up.aqm_interval",
        ),
        (
            "up = { aqm = \"codel\", aqm_target = \"100ms\" }",
            "up.aqm_target",
        ),
        (
            "up = { aqm = \"pie\", aqm_target = \"0ms\" }",
            "up.aqm_target",
        ),
        (
            "both = { aqm = \"codel\", ecn = true }\n[[change]]\nat = \"2s\"\ndown.aqm = \"none\"",
            "change at 2s, down.ecn",
        ),
    ] {
        let error = resolve(plan).expect_err(plan).to_string();
        assert!(error.starts_with(key), "{plan}: {error}");
    }
    let unknown = LinkPlan::parse("both.aqm = \"red\"")
        .expect_err("unknown")
        .to_string();
    assert!(unknown.contains("fq-codel"), "{unknown}");
}
