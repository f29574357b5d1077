//! Texts that come from elsewhere: tokens, configuration files, requests to the API, and traces.

use crate::input::Input;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ropewalk_api::{LEAVING_SECONDS_MAX, PathRequest, PathUse, SchedulerRequest};
use ropewalk_config::token::Token;
use ropewalk_config::{balance, hub, relay, site, values};
use ropewalk_crypto::digest::{SHA256, digest};
use ropewalk_netem::{CapacityTrace, LinkPlan, units};
use std::path::Path;
use std::time::Duration;

/// Takes the input for a token, and for the bytes in one whose checksum is right. What is read is written as it
/// was read.
///
/// # Panics
/// When it is not.
pub fn token(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        token_text(text);
    }
    let checksum = digest(&SHA256, data);
    let body = [data, &checksum.as_ref()[..4]].concat();
    token_text(&format!("ropewalk2.{}", URL_SAFE_NO_PAD.encode(body)));
}

fn token_text(text: &str) {
    let Ok(read) = Token::decode(text) else {
        return;
    };
    assert!(values::parse_name(&read.name).is_ok());
    assert!((1..=hub::ENDPOINTS_MAX).contains(&read.endpoints.len()));
    let again = Token::decode(&read.encode()).expect("a token that was written");
    assert_eq!((&again.name, again.tcp_port), (&read.name, read.tcp_port));
    assert_eq!(again.hub_key, read.hub_key);
    assert_eq!(again.endpoints, read.endpoints);
    assert_eq!(again.networks, read.networks);
    assert_eq!(again.secret.is_some(), read.secret.is_some());
}

/// Takes the input for a configuration file and for each kind of value in one. The first byte says which.
///
/// # Panics
/// When a file is refused without a reason, or a value that was read is not one when it is written.
pub fn config(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    let path = Path::new("/etc/ropewalk/fuzz.toml");
    let problems = match kind % 5 {
        0 => hub::parse(path, text).err(),
        1 => site::parse(path, text).err(),
        2 => relay::parse(path, text).err(),
        3 => balance::parse(path, text).err(),
        _ => {
            value(text);
            None
        }
    };
    if let Some(problems) = problems {
        assert!(!problems.to_string().is_empty());
    }
}

fn value(text: &str) {
    if let Ok(read) = text.parse::<values::HostPort>() {
        assert_eq!(read.to_string().parse(), Ok(read));
    }
    if let Ok(name) = values::parse_name(text) {
        assert_eq!(values::parse_name(&name), Ok(name));
    }
    if let Ok(net) = values::parse_net(text) {
        assert_eq!(values::parse_net(&net.to_string()), Ok(net));
    }
    if let Ok(dscp) = values::parse_dscp(text) {
        assert!(dscp < 64);
    }
    let _ = values::parse_interface(text);
    let _ = values::parse_path(text);
    let _ = values::parse_word(text);
    let _ = values::parse_ip(text);
    let _ = values::parse_protocol(text);
    let _ = values::parse_ports(text);
}

/// Takes the input for bodies of requests to the API.
///
/// # Panics
/// When a request means something out of range, or is another one after it was written.
pub fn api(data: &[u8]) {
    if let Ok(read) = serde_json::from_slice::<SchedulerRequest>(data) {
        let written = serde_json::to_vec(&read).expect("a request");
        assert_eq!(serde_json::from_slice(&written).ok(), Some(read));
    }
    let Ok(read) = serde_json::from_slice::<PathRequest>(data) else {
        return;
    };
    let written = serde_json::to_vec(&read).expect("a request");
    assert_eq!(serde_json::from_slice(&written).ok(), Some(read.clone()));
    if let Ok(PathUse::Leaving(Some(time))) = read.wanted() {
        assert!(time <= Duration::from_secs(LEAVING_SECONDS_MAX.into()));
    }
}

/// Takes the input for a trace of a link's capacity, a link's plan, and values in one. The first byte says which.
///
/// # Panics
/// When a trace has no capacity, or a plan that was read is another one after it was written.
pub fn trace(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let Ok(text) = std::str::from_utf8(input.bytes(data.len())) else {
        return;
    };
    match kind % 3 {
        0 => {
            if let Ok(trace) = CapacityTrace::parse("trace", text) {
                assert!(trace.period_bytes() > 0, "{trace:?}");
                let start = ropewalk_types::Duration::from_millis(u64::from(kind) * 100);
                let bytes = trace.period_bytes();
                let turned = trace.starting_at(start);
                assert_eq!(turned.period_bytes(), bytes);
            }
        }
        1 => {
            if let Ok(plan) = LinkPlan::parse(text)
                && let Ok(written) = plan.to_toml()
            {
                assert_eq!(LinkPlan::parse(&written).ok(), Some(plan));
            }
        }
        _ => {
            let _ = units::parse_rate(text);
            let _ = units::parse_duration(text);
            let _ = units::parse_bytes(text);
            let _ = units::parse_switch(text);
            let _ = units::parse_count(text);
            if let Ok(probability) = units::parse_probability(text) {
                assert!((0.0..=1.0).contains(&probability));
            }
        }
    }
}
