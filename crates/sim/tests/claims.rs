//! What the simulator promises, each claim on small plans.

use proptest::prelude::*;
use ropewalk_core::path::PathView;
use ropewalk_core::schedule::{Decision, Head, PathSet, Policy};
use ropewalk_plan::{Plan, Report};
use ropewalk_sim::run::Options;
use ropewalk_sim::sweep::Job;
use ropewalk_sim::{run, run_with, sweep};
use ropewalk_types::Instant;
use std::num::NonZeroUsize;

const TWO_PATHS: &str = r#"
    [[path]]
    name = "a"
    both = { rate = "16Mbit", delay = "25ms", queue = "128KiB" }
    [[path]]
    name = "b"
    both = { rate = "8Mbit", delay = "35ms", queue = "128KiB" }
"#;

fn plan(text: &str) -> Plan {
    Plan::parse(&format!("name = \"test\"\n{text}")).expect("a valid plan")
}

/// Why a plan is refused, when it is read or before it runs.
fn refusal(text: &str) -> String {
    match Plan::parse(&format!("name = \"test\"\n{text}")) {
        Err(error) => error.to_string(),
        Ok(plan) => run(&plan, 1).expect_err("not simulated").to_string(),
    }
}

fn report(text: &str) -> Report {
    let plan = plan(text);
    run(&plan, plan.seed).expect("a plan that can be simulated")
}

/// One connection over one path of 50 Mbit/s.
fn over_one_path(link: &str, traffic: &str, seconds: u32) -> Report {
    report(&format!(
        "duration = \"{seconds}s\"\nwarmup = \"3s\"\n[[path]]\nname = \"a\"\n{link}\n[[traffic]]\n{traffic}"
    ))
}

fn goodput(report: &Report) -> f64 {
    report.traffic[0].goodput_mbit
}

fn retransmits(report: &Report) -> u64 {
    report.traffic[0].flows[0].retransmits
}

#[test]
fn a_seed_decides_the_trace_whatever_the_number_of_threads() {
    let lossy = TWO_PATHS.replace("queue", "loss = \"1%\", jitter = \"2ms\", queue");
    let plan = plan(&format!(
        "duration = \"3s\"\n{lossy}\n[carrier]\nkind = \"tunnel\"\n\
         [[traffic]]\nkind = \"tcp\"\nflows = 3\n[[traffic]]\nkind = \"web\"\n\
         [[traffic]]\nkind = \"quic\"\ncongestion = \"bbr\"\n[[traffic]]\nkind = \"call\""
    ));
    let jobs: Vec<Job> = (1..=6)
        .map(|seed| Job {
            plan: plan.clone(),
            seed,
            folder: None,
            histograms: false,
        })
        .collect();
    let hashes = |threads: usize| -> Vec<String> {
        let reports = sweep(&jobs, NonZeroUsize::new(threads), |_| {});
        let hash = |report: Report| report.trace_hash.expect("a hash");
        reports
            .into_iter()
            .map(|r| hash(r.expect("a run")))
            .collect()
    };
    let (one, four) = (hashes(1), hashes(4));
    assert_eq!(one, four);
    let different: std::collections::BTreeSet<_> = one.iter().collect();
    assert_eq!(different.len(), jobs.len());
}

#[test]
fn a_tunnel_repeats_itself_and_comes_near_the_sum_of_its_paths() {
    for (link, share) in [("", 0.85), ("loss = \"1%\", jitter = \"3ms\", ", 0.7)] {
        let paths = TWO_PATHS.replace("queue", &format!("{link}queue"));
        let [first, second] = [(); 2].map(|()| {
            report(&format!(
                "duration = \"8s\"\nwarmup = \"2s\"\n{paths}\n[carrier]\nkind = \"tunnel\"\n\
                 [[traffic]]\nkind = \"tcp\"\nflows = 3"
            ))
        });
        assert_eq!(first.trace_hash, second.trace_hash, "{link}");
        let found = goodput(&first) / first.ceiling_mbit;
        assert!(found > share, "{link}: {found}");
    }
}

#[test]
fn a_tunnel_offers_every_congestion_control() {
    for congestion in ["newreno", "cubic", "bbr", "bdp"] {
        let tunnel = plan(&format!(
            "duration = \"6s\"\nwarmup = \"2s\"\n{TWO_PATHS}\n[carrier]\nkind = \"tunnel\"\n\
             congestion = \"{congestion}\"\n[[traffic]]\nkind = \"tcp\"\nflows = 3"
        ));
        let report = run(&tunnel, 1).expect(congestion);
        assert!(goodput(&report) > 0.5 * report.ceiling_mbit, "{congestion}");
    }
}

#[test]
fn every_packet_is_delivered_dropped_or_under_way() {
    // The run itself compares the links' counters and notes what does not add up.
    let changes = "change = [ { at = \"1s\", both.blackhole = true }, \
                   { at = \"1500ms\", both.blackhole = false, both.rate = \"3Mbit\" } ]";
    for carrier in ["direct\"", "tunnel\""] {
        let paths = TWO_PATHS.replace("queue", "loss = \"3%\", queue");
        let report = report(&format!(
            "duration = \"4s\"\n{paths}\n{changes}\n[carrier]\nkind = \"{carrier}\n\
             [[traffic]]\nkind = \"tcp\"\nflows = 4\n[[traffic]]\nkind = \"tcp\"\ndirection = \"up\""
        ));
        assert_eq!(report.notes, Vec::<String>::new(), "{carrier}");
        assert!(report.paths[0].lost > 0 && report.packets > Some(1_000));
    }
}

#[test]
fn new_reno_follows_the_square_root_law() {
    for (loss, rtt) in [(0.005, 0.100), (0.01, 0.040)] {
        let link = format!(
            "both = {{ rate = \"100Mbit\", delay = \"{}ms\" }}\ndown.loss = \"{}%\"",
            rtt * 500.0,
            loss * 100.0
        );
        let traffic = "kind = \"tcp\"\nflows = 8\ncongestion = \"new-reno\"";
        let share = goodput(&over_one_path(&link, traffic, 60)) / 8.0;
        let law = 1.22 * 1_448.0 * 8e-6 / (rtt * f64::sqrt(loss));
        assert!((0.75..1.25).contains(&(share / law)), "{share} of {law}");
    }
}

#[test]
fn a_quic_connection_waits_for_its_receiver_on_a_long_fast_path() {
    // 6 MiB in each round trip of 300 ms, where the path carries 300 Mbit/s.
    let link = "both = { rate = \"300Mbit\", delay = \"150ms\", queue = \"16MiB\" }";
    for congestion in ["cubic", "bbr"] {
        let traffic = format!("kind = \"quic\"\ncongestion = \"{congestion}\"");
        let mbit = goodput(&over_one_path(link, &traffic, 8));
        assert!((80.0..168.0).contains(&mbit), "{congestion}: {mbit} Mbit/s");
    }
}

#[test]
fn cubic_and_bbr_fill_a_clean_link() {
    let link = "both = { rate = \"50Mbit\", delay = \"20ms\", queue = \"256KiB\" }";
    for congestion in ["cubic", "bbr"] {
        for kind in ["tcp", "quic"] {
            let traffic = format!("kind = \"{kind}\"\ncongestion = \"{congestion}\"");
            let report = over_one_path(link, &traffic, 15);
            let share = goodput(&report) / report.ceiling_mbit;
            assert!(share > 0.95, "{kind} {congestion}: {share}");
        }
    }
}

#[test]
fn five_flows_reach_the_sum_of_uneven_paths() {
    let report = report(&format!(
        "duration = \"15s\"\nwarmup = \"3s\"\n{TWO_PATHS}\n[carrier]\nkind = \"tunnel\"\n\
         scheduler = \"htmt\"\n[[traffic]]\nkind = \"tcp\"\nflows = 5"
    ));
    let share = goodput(&report) / report.ceiling_mbit;
    assert!((0.95..=1.01).contains(&share), "{share}");
    assert!(report.tunnel.expect("a tunnel").delivered > 10_000);
}

#[test]
fn quic_takes_reordering_for_loss_and_order_for_order() {
    let traffic = "kind = \"quic\"";
    let window = "rate = \"100Mbit\", delay = \"20ms\", queue = \"unlimited\"";
    let in_order = over_one_path(&format!("both = {{ {window} }}"), traffic, 6);
    let reordering = format!("both = {{ {window}, jitter = \"500us\", reorder = true }}");
    let crossed = over_one_path(&reordering, traffic, 6);
    let patient = format!("{traffic}\npacket_threshold = 1000");
    let patient = over_one_path(&reordering, &patient, 6);
    // No packet was lost in any of them.
    for report in [&in_order, &crossed, &patient] {
        assert_eq!((report.paths[0].lost, report.paths[0].dropped), (0, 0));
    }
    assert_eq!(retransmits(&in_order), 0);
    assert!(retransmits(&crossed) > 20, "{}", retransmits(&crossed));
    assert!(retransmits(&patient) < 5, "{patient:?}");
    assert!(goodput(&patient) > 2.0 * goodput(&crossed));
}

#[test]
fn tcp_forgives_reordering_by_time_and_not_by_duplicates() {
    let plan = plan(
        "duration = \"10s\"\nwarmup = \"3s\"\n[[path]]\nname = \"a\"\nboth = { rate = \"50Mbit\", \
         delay = \"20ms\", jitter = \"1ms\", reorder = true }\n[[traffic]]\nkind = \"tcp\"",
    );
    let run = |duplicate_threshold| {
        let options = Options {
            duplicate_threshold,
            ..Options::default()
        };
        run_with(&plan, 1, options).expect("a run")
    };
    let (rack, duplicates) = (run(None), run(Some(3)));
    assert!(goodput(&rack) > 0.9 * rack.ceiling_mbit, "{rack:?}");
    assert!(
        retransmits(&duplicates) > 2 * retransmits(&rack),
        "{duplicates:?}"
    );
}

#[test]
fn pages_load_and_calls_are_in_time_beside_a_download_through_the_tunnel() {
    let report = report(&format!(
        "duration = \"20s\"\nwarmup = \"2s\"\n{TWO_PATHS}\n[carrier]\nkind = \"tunnel\"\n\
         [[traffic]]\nkind = \"tcp\"\n[[traffic]]\nkind = \"call\"\n[[traffic]]\nkind = \"web\"\n\
         [[traffic]]\nkind = \"ping\""
    ));
    let [_, call, web, ping] = &report.traffic[..] else {
        panic!("four sections")
    };
    // 50 packets each way in all of the 18 seconds but the last half.
    assert!(call.in_time.expect("a call") > 0.98 && call.sent == Some(1_750));
    let pages = web.delay_ms.expect("pages");
    assert!(pages.count >= 3 && pages.min > 150.0, "{pages:?}");
    assert_eq!((ping.sent, ping.lost), (Some(180), Some(0)));
}

/// Bytes that paths carried towards the receiver for each byte of bulk data.
fn bytes_for_a_byte(report: &Report) -> f64 {
    let carried: u64 = report.paths.iter().map(|path| path.delivered_bytes).sum();
    carried as f64 * 8e-6 / report.traffic[0].goodput_mbit / report.seconds
}

#[test]
fn a_new_download_starts_as_over_the_better_path_alone_beside_a_far_or_a_thin_path() {
    let paths = |other: &str| {
        format!(
            "duration = \"2s\"\nwarmup = \"0s\"\n[[path]]\nname = \"a\"\n\
             both = {{ rate = \"50Mbit\", delay = \"20ms\", queue = \"256KiB\" }}\n\
             [[path]]\nname = \"b\"\nboth = {{ {other} }}\n[[traffic]]\nkind = \"tcp\"\n"
        )
    };
    for other in [
        "rate = \"50Mbit\", delay = \"70ms\", queue = \"900KiB\"",
        "rate = \"5Mbit\", delay = \"20ms\", queue = \"64KiB\"",
    ] {
        let alone = goodput(&report(&paths(other)));
        let plan = plan(&format!("{}[carrier]\nkind = \"tunnel\"\n", paths(other)));
        let seeds = (1..=5).map(|seed| goodput(&run(&plan, seed).unwrap()));
        let mean = seeds.sum::<f64>() / 5.0;
        // Headers take 2 % of what a path carries.
        assert!(mean >= 0.95 * alone, "{other}: {mean} of {alone}");
    }
}

#[test]
fn compressed_headers_save_what_they_are_long_and_a_seed_decides_the_trace() {
    for segment in [500, 1_374] {
        let download = |compress: &str| {
            report(&format!(
                "duration = \"12s\"\nwarmup = \"2s\"\n{TWO_PATHS}\n\
                 [[traffic]]\nkind = \"tcp\"\nsegment = {segment}\n\
                 [carrier]\nkind = \"tunnel\"\n{compress}"
            ))
        };
        let full = download("compress_headers = false");
        let compressed = download("compress_headers = true");
        assert_eq!(
            compressed.trace_hash,
            download("compress_headers = true").trace_hash
        );
        // 52 bytes are 8 to 11 then, with the number of the reference.
        let saved = bytes_for_a_byte(&full) - bytes_for_a_byte(&compressed);
        let bytes = saved * f64::from(segment);
        assert!((39.0..46.0).contains(&bytes), "{segment}: {bytes}");
        assert!(goodput(&compressed) > goodput(&full), "{segment}");
    }
}

#[test]
fn calls_pages_and_rows_of_tunnels_work_with_compressed_headers() {
    let mixed = format!(
        "[[traffic]]\nkind = \"tcp\"\necn = true\n[[traffic]]\nkind = \"quic\"\n\
         [[traffic]]\nkind = \"call\"\n[[traffic]]\nkind = \"web\"\n[[traffic]]\nkind = \"ping\"\n\
         [carrier]\nkind = \"tunnel\"\n{COMPRESS}"
    );
    let paths = TWO_PATHS.replace("queue", "loss = \"1%\", jitter = \"3ms\", queue");
    let mixed = report(&format!("duration = \"20s\"\n{paths}\n{mixed}"));
    let [tcp, quic, call, web, ping] = &mixed.traffic[..] else {
        panic!("five sections")
    };
    assert!(tcp.goodput_mbit > 1.0 && quic.goodput_mbit > 1.0);
    assert!(call.in_time.expect("a call") > 0.9);
    assert!(web.delay_ms.expect("pages").count >= 2);
    assert!(ping.lost < Some(10));
    assert_eq!(mixed.notes, Vec::<String>::new());
    let relay = |compress: bool| {
        let carrier = format!("{RELAY}\ntunnel.compress_headers = {compress}");
        report(&row(&carrier))
    };
    let (full, compressed) = (relay(false), relay(true));
    assert_ne!(full.trace_hash, compressed.trace_hash);
    // 5 % of the uploads is lost, but not the same packets.
    for (with, without) in compressed.traffic.iter().zip(&full.traffic).take(3) {
        assert!(with.goodput_mbit > 0.8 * without.goodput_mbit, "{with:?}");
    }
}

/// In the section of a tunnel.
const COMPRESS: &str = "compress_headers = true";

/// Two hops with loss towards the server, three hosts; the third is at the second gateway.
fn row(carrier: &str) -> String {
    format!(
        "duration = \"12s\"\nwarmup = \"2s\"\n\
         [[path]]\nname = \"a\"\nboth = {{ rate = \"2Mbit\", delay = \"10ms\" }}\n\
         up.loss = \"5%\"\n\
         [[path]]\nname = \"b\"\nboth = {{ rate = \"4Mbit\", delay = \"10ms\" }}\n\
         up.loss = \"5%\"\n[carrier]\n{carrier}\n\
         [[traffic]]\nkind = \"tcp\"\ndirection = \"up\"\naccess = {{ rate = \"1Mbit\", delay = \"1ms\" }}\n\
         [[traffic]]\nkind = \"tcp\"\ndirection = \"down\"\nsegment = 1000\n\
         [[traffic]]\nkind = \"tcp\"\ndirection = \"up\"\nenter = 2\naccess = {{ rate = \"1Mbit\", delay = \"1ms\" }}\n\
         [[traffic]]\nkind = \"ping\""
    )
}

const RELAY: &str = "kind = \"relay\"\nhops = [[\"a\"], [\"b\"]]";
const TCP_NC: &str = "kind = \"tcp-nc\"\nhops = [\"a\", \"b\"]\nn = 10\nk = 3";
const CHAIN: &str = "kind = \"chain\"\nhops = [\"a\", \"b\"]";

#[test]
fn tunnels_in_a_row_deliver_over_every_hop_and_repeat_themselves() {
    for carrier in [RELAY, CHAIN] {
        let text = row(carrier);
        let [first, again] = [report(&text), report(&text)];
        assert_eq!(first.trace_hash, again.trace_hash, "{carrier}");
        assert_ne!(
            first.trace_hash,
            run(&plan(&text), 2).expect("a run").trace_hash
        );
        assert_eq!(first.notes, Vec::<String>::new(), "{carrier}");
        assert!(first.paths.iter().all(|path| path.lost > 0), "{first:?}");
        // Two links of 10 ms each way; the download waits before it.
        let ping = first.traffic[3].delay_ms.expect("answers");
        assert!(ping.min > 40.0, "{carrier}: {ping:?}");
        let each: Vec<f64> = first.traffic.iter().map(|t| t.goodput_mbit).collect();
        assert!(
            each[..3].iter().all(|mbit| *mbit > 0.05),
            "{carrier}: {each:?}"
        );
        if carrier == CHAIN {
            assert!(each[0] < 0.5, "TCP feels the loss: {each:?}");
        } else {
            assert!(each[0] > 0.8 && each[2] > 0.8, "{carrier}: {each:?}");
            let tunnel = first.tunnel.expect("tunnels");
            assert!(tunnel.reason.contains("hop 2: "), "{tunnel:?}");
        }
    }
}

#[test]
fn tcp_nc_in_a_row_masks_losses_from_hosts_without_options_and_repeats_itself() {
    let both = [TCP_NC, CHAIN].map(|carrier| {
        row(carrier)
            .replace("direction = \"down\"", "direction = \"up\"")
            .replace(
                "segment = 1000",
                "segment = 1000\ncongestion = \"new-reno\"\nplain = true",
            )
    });
    let [coded, bare] = both.each_ref().map(|text| report(text));
    assert_eq!(coded.trace_hash, report(&both[0]).trace_hash);
    assert_eq!(coded.notes, Vec::<String>::new());
    // The host without options, at the first gateway.
    let [masked, felt] = [&coded, &bare].map(|report| report.traffic[1].goodput_mbit);
    assert!(masked > 3.0 * felt && masked > 0.2, "{coded:?} {bare:?}");
    let names = coded.buffers.iter().map(|buffer| buffer.name.as_str());
    assert!(names.eq(["link a", "link b", "send a", "send b"]));
    assert!(
        coded
            .buffers
            .iter()
            .all(|buffer| buffer.packets.len() == 24)
    );
    assert!(
        coded.buffers[2]
            .packets
            .iter()
            .all(|&packets| packets <= 163)
    );
    let tunnel = coded.tunnel.expect("sessions");
    assert!(tunnel.repair_symbols > 0 && tunnel.reason.contains("hop 2: n 10, k 3"));
}

#[test]
fn a_host_at_the_second_gateway_does_not_feel_the_first_hop() {
    let text = row(RELAY).replace("rate = \"2Mbit\"", "rate = \"2Mbit\", blackhole = true");
    let report = report(&text);
    let each: Vec<f64> = report.traffic.iter().map(|t| t.goodput_mbit).collect();
    assert!(
        each[0] == 0.0 && each[1] == 0.0 && each[2] > 0.8,
        "{each:?}"
    );
    assert_eq!(report.traffic[3].lost, report.traffic[3].sent);
}

/// Sends everything over the path with the highest number, while it has room.
struct Last;

impl Policy for Last {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        match paths.last() {
            Some(path) if path.free >= head.bytes => Decision::Send(PathSet::one(path.id)),
            _ => Decision::WaitAll,
        }
    }

    fn reason(&self) -> String {
        "the last path".into()
    }
}

#[test]
fn a_policy_of_the_caller_schedules_the_data() {
    let plan = plan(&format!(
        "duration = \"5s\"\nwarmup = \"1s\"\n{TWO_PATHS}\n[carrier]\nkind = \"tunnel\"\n\
         [[traffic]]\nkind = \"tcp\""
    ));
    let options = Options {
        policy: Some(Box::new(Last)),
        ..Options::default()
    };
    let report = run_with(&plan, 1, options).expect("a run");
    assert!(
        report.paths[1].bytes > 50 * report.paths[0].bytes,
        "{:?}",
        report.paths
    );
    assert_eq!(report.tunnel.expect("a tunnel").reason, "the last path");
}

#[test]
fn plans_that_cannot_be_simulated_name_the_key() {
    let rest = format!("duration = \"2s\"\n{TWO_PATHS}\n[[traffic]]\nkind = \"tcp\"\n");
    for (carrier, key) in [
        ("kind = \"balance\"", "carrier.kind"),
        ("kind = \"round-robin\"", "carrier.kind"),
        ("kind = \"peer\"\npeer = \"wireguard-go\"", "carrier.kind"),
        (
            "kind = \"tunnel\"\nscheduler = \"fastest\"",
            "carrier.scheduler",
        ),
        ("kind = \"tunnel\"\nfreeze = \"planned\"", "carrier.freeze"),
        (
            "kind = \"tunnel\"\ncongestion = \"vegas\"",
            "carrier.congestion",
        ),
    ] {
        let error = refusal(&format!("{rest}[carrier]\n{carrier}"));
        assert!(error.contains(key), "{key}: {error}");
    }
    for (setting, key) in [
        ("loss_burst = 4", "path[0].both.loss_burst"),
        ("trace = \"none.csv\", loss = \"1%\"", "path[0].both.trace"),
    ] {
        let error = refusal(&rest.replacen("rate = \"16Mbit\"", setting, 1));
        assert!(error.contains(key), "{key}: {error}");
    }
    for (from, to, key) in [
        (
            "delay = \"1ms\"",
            "loss_burst = 4",
            "traffic[0].access.loss_burst",
        ),
        (
            RELAY,
            &format!("{RELAY}\ntunnel.congestion = \"vegas\""),
            "carrier.tunnel.congestion",
        ),
        (
            RELAY,
            &format!("{RELAY}\ntunnel.protect_up = \"hope\""),
            "carrier.tunnel.protect_up",
        ),
    ] {
        let error = refusal(&row(RELAY).replacen(from, to, 1));
        assert!(error.contains(key), "{key}: {error}");
    }
}

fn any_direction() -> impl Strategy<Value = String> {
    (
        1u64..40_000,
        0u64..150,
        0u64..20,
        any::<bool>(),
        0u64..60,
        2u64..80,
        any::<bool>(),
    )
        .prop_map(|(kbit, delay, jitter, reorder, loss, queue, blackhole)| {
            format!(
                "{{ rate = \"{kbit}kbit\", delay = \"{delay}ms\", jitter = \"{jitter}ms\", \
                 reorder = {reorder}, loss = \"{loss}%\", queue = \"{queue}KiB\", \
                 blackhole = {blackhole} }}"
            )
        })
}

fn any_traffic() -> impl Strategy<Value = String> {
    let congestion = prop::sample::select(vec!["new-reno", "cubic", "bbr"]);
    let kind = prop::sample::select(vec!["tcp", "quic", "ping", "call", "web"]);
    (kind, congestion, any::<bool>(), 1u32..6).prop_map(|(kind, congestion, up, flows)| {
        let direction = if up { "up" } else { "down" };
        let more = match kind {
            "tcp" | "quic" => format!(
                "flows = {flows}\ncongestion = \"{congestion}\"\ndirection = \"{direction}\""
            ),
            "web" => format!("users = {flows}\npause = \"50ms\""),
            _ => String::new(),
        };
        format!("[[traffic]]\nkind = \"{kind}\"\n{more}\n")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_plan_makes_a_run_panic_or_lose_count(
        paths in prop::collection::vec((any_direction(), any_direction()), 1..5),
        traffic in prop::collection::vec(any_traffic(), 0..4),
        carrier in prop::sample::select(vec!["direct", "tunnel", "mptcp"]),
        scheduler in prop::sample::select(vec!["auto", "htmt", "redundant", "otias", "low-rtt"]),
        at in 1u64..900,
        seed in any::<u64>(),
    ) {
        let mut text = String::from("duration = \"1500ms\"\nwarmup = \"200ms\"\n");
        for (index, (before, after)) in paths.iter().enumerate() {
            text += &format!(
                "[[path]]\nname = \"p{index}\"\nboth = {}\nchange = [ {{ at = \"{at}ms\", both = {after} }} ]\n",
                before.replace("blackhole = true", "blackhole = false")
            );
        }
        text += &format!("[carrier]\nkind = \"{carrier}\"\n");
        if carrier == "tunnel" {
            text += &format!("scheduler = \"{scheduler}\"\n");
        }
        text += &traffic.concat();
        let report = run(&plan(&text), seed).expect("a valid plan");
        let warnings = plan(&text).warnings();
        prop_assert_eq!(report.notes, warnings);
    }
}
