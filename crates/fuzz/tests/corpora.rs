//! Every input that is kept for the fuzzers, once more.

use ropewalk_fuzz::{
    api, config, decoder, dns, feedback, headers, hub, quic, tcpnc, tls, token, trace, wire, work,
};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: ropewalk_tally::Counting = ropewalk_tally::Counting;

/// Fewest inputs that a corpus is believed to consist of, and most.
const INPUTS: core::ops::RangeInclusive<usize> = 20..=70;
/// Most bytes of one corpus.
const BYTES_MAX: usize = 100_000;

fn replay(target: &str, run: fn(&[u8])) {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let corpus = corpora.join(target);
    let mut files: Vec<_> = std::fs::read_dir(&corpus)
        .expect("a corpus per target")
        .map(|entry| entry.expect("a readable directory").path())
        .collect();
    files.sort();
    assert!(INPUTS.contains(&files.len()), "{} files", files.len());
    let mut bytes = 0;
    for file in files {
        println!("{}", file.display()); // shown only when the next lines fail
        let input = std::fs::read(&file).expect("a readable input");
        run(&input);
        bytes += input.len();
    }
    assert!(bytes <= BYTES_MAX, "{bytes} bytes in {target}");
}

#[test]
fn datagrams_still_parse_or_are_refused_and_are_emitted_as_they_came() {
    replay("wire", wire);
}

#[test]
fn the_decoder_still_recovers_only_what_was_sent_within_its_bounds() {
    replay("decoder", decoder);
}

#[test]
fn a_tunnel_still_keeps_its_bounds_whatever_its_peer_says() {
    replay("feedback", feedback);
}

#[test]
fn the_bytes_of_a_peer_still_cost_a_tunnel_what_they_may_cost() {
    replay("work", work);
}

#[test]
fn the_bytes_of_peers_still_cost_a_hub_what_they_may_cost() {
    replay("hub", hub);
}

#[test]
fn headers_still_come_out_as_they_went_in() {
    replay("headers", headers);
}

#[test]
fn strangers_are_still_answered_within_bounds_and_never_connected() {
    replay("quic", quic);
    replay("tls", tls);
}

#[test]
fn texts_from_elsewhere_are_still_read_or_refused() {
    replay("token", token);
    replay("config", config);
    replay("api", api);
    replay("trace", trace);
    replay("dns", dns);
}

#[test]
fn the_baseline_still_takes_any_datagram() {
    replay("tcpnc", tcpnc);
}
