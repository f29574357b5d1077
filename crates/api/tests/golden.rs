//! What programs and dashboards of users read stays as it is: keys of the JSON, names and values of
//! the metrics. New ones need no place in the golden files.

use ropewalk_api::{Status, prometheus};
use serde_json::Value;

/// A gateway that is everything at once, with another value in every field.
const STATUS: &str = include_str!("golden/status.json");
/// The metrics of that gateway as a site, and as `ropewalk balance`.
const METRICS: &str = include_str!("golden/metrics.txt");

/// The first key of `known` that `value` lacks or holds another value for.
fn missing(value: &Value, known: &Value, key: &str) -> Option<String> {
    match (value, known) {
        (Value::Object(value), Value::Object(known)) => known.iter().find_map(|(name, known)| {
            let key = format!("{key}/{name}");
            value
                .get(name)
                .map_or(Some(key.clone()), |value| missing(value, known, &key))
        }),
        (Value::Array(value), Value::Array(known)) => {
            let mut pairs = value.iter().zip(known);
            let shorter = (value.len() != known.len()).then(|| key.to_owned());
            shorter.or_else(|| pairs.find_map(|(value, known)| missing(value, known, key)))
        }
        (value, known) => (value != known).then(|| key.to_owned()),
    }
}

#[test]
fn every_key_of_the_json_is_read_and_written_as_before() {
    let status: Status = serde_json::from_str(STATUS).unwrap();
    let known: Value = serde_json::from_str(STATUS).unwrap();
    let written = serde_json::to_value(&status).unwrap();
    assert_eq!(missing(&written, &known, ""), None);
}

#[test]
fn every_metric_has_its_name_its_help_and_its_value_as_before() {
    let all: Status = serde_json::from_str(STATUS).unwrap();
    let site = Status {
        balance: None,
        ..all.clone()
    };
    let balance = Status {
        direct: None,
        ..all
    };
    let text = prometheus::render(&site) + &prometheus::render(&balance);
    for line in METRICS.lines() {
        assert!(
            text.lines().any(|written| written == line),
            "{line} is not in\n{text}"
        );
    }
}
