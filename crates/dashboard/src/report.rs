//! The report for support: what the gateway says of itself, without secrets.
//!
//! Invariant: no key and no token occurs in a report, wherever it stood. Public keys are left out, too:
//! nobody who helps needs them, and nobody can mistake a private one for them.

use std::fmt::Write;

use ropewalk_api::Happened;
use serde_json::Value;

/// Length from which a run of characters of base64 or of hexadecimal digits is taken for a secret. Keys have
/// 44 and 64, the parts of tokens more.
const SECRET_MIN: usize = 32;

/// The report, of what the doctor printed, what happened, and the state. What could not be had says why.
#[must_use]
pub fn of(
    doctor: Result<String, String>,
    happened: Result<Vec<Happened>, String>,
    status: Result<Value, String>,
) -> String {
    let said = |result: Result<String, String>| result.unwrap_or_else(|why| format!("none: {why}"));
    let happened = happened.map(|list| {
        let lines = list
            .iter()
            .map(|event| format!("{} {}\n", event.at_s, event.what));
        lines.collect::<String>()
    });
    let status = status.map(|value| serde_json::to_string_pretty(&value).unwrap_or_default());
    render(&[
        ("Doctor", said(doctor)),
        ("What happened, by seconds since 1970", said(happened)),
        ("Status", said(status)),
    ])
}

/// Joins parts to a report; each has a heading.
fn render(parts: &[(&str, String)]) -> String {
    let mut out = String::from(
        "Ropewalk report. Keys and tokens are left out; names and addresses are not.\n",
    );
    for (heading, text) in parts {
        let _ = write!(
            out,
            "\n== {heading}\n{}\n",
            without_secrets(text.trim_end())
        );
    }
    out
}

/// The text with `(left out)` in place of whatever could be a key or a token.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let is_secret_char =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_' | '=');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_secret_char(c)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        out.push_str(if is_secret(run) { "(left out)" } else { run });
        let mut chars = after.chars();
        out.extend(chars.next());
        rest = chars.as_str();
    }
    out
}

/// Whether a run is long and looks random: words and paths have neither digits nor capitals inside, or have
/// separators at short distances.
fn is_secret(run: &str) -> bool {
    if run.len() < SECRET_MIN {
        return false;
    }
    let has = |test: fn(&char) -> bool| run.chars().any(|c| test(&c));
    let hexadecimal = run.chars().all(|c| c.is_ascii_hexdigit());
    let mixed = has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase);
    hexadecimal || mixed || has(char::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "M/xwKMrMzYDOzDQErY2eCKNGmcN4hDpZxFygAVEVhTA=";
    const TOKEN: &str = "ropewalk2.AwG9fJH_iaYIw7b0cf8wP3XoXDNKZ5fXIhH0pTTkPcAQ0WlmnYq5Krubd2qgTAcaAbsEBGJvYXQBF2h1Yi5leGFtcGxlLm9y";

    #[test]
    fn keys_and_tokens_never_occur_wherever_they_stand() {
        let hex = "0123456789abcdef".repeat(4);
        for secret in [KEY, TOKEN, &hex, &KEY.replace('/', "_").replace('=', "")] {
            for around in [
                secret.to_owned(),
                format!("\"private_key\": \"{secret}\","),
                format!("error: wrong key {secret}: refused"),
                format!("a=b;{secret}\nnext"),
                format!("öä{secret}ß"),
                format!("path/{secret}/x"),
            ] {
                let out = without_secrets(&around);
                for start in 0..secret.len().saturating_sub(20) {
                    let part = &secret[start..start + 20];
                    assert!(!out.contains(part), "{part} in {out}");
                }
                assert!(out.contains("(left out)"), "{out}");
            }
        }
    }

    #[test]
    fn what_helpers_need_stays() {
        let text = "eth0 (metered)  up  quic 203.0.113.2:4443 fddc:26d1:2c4::2/64\n/etc/ropewalk/site.toml \
                    key refused: the peer does not accept this key (not enrolled, or removed)\n\
                    net.ipv4.ip_forward \"hold_dropped_full\": 12, 2026-11-28 08:20:00 UTC";
        assert_eq!(without_secrets(text), text);
    }

    #[test]
    fn a_report_has_its_headings() {
        let report = render(&[
            ("Status", format!("{{\"public_key\":\"{KEY}\"}}")),
            ("Doctor", "ok\n".to_owned()),
        ]);
        assert!(
            report.contains("\n== Status\n{\"public_key\":\"(left out)\"}\n\n== Doctor\nok\n"),
            "{report}"
        );
    }
}
