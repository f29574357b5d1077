//! What a replay found as one HTML page: words, picture, tables. The page loads nothing and runs no script.

use std::fmt::Write as _;

use super::{Outcome, ReplayArgs, picture, verdict};

/// The page has no scripts, so the policy allows what is inside it only.
const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>What Ropewalk would gain</title>
<style>
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
div { overflow-x: auto }
svg { width: 100%; min-width: 32rem }
table { border-collapse: collapse }
th, td { padding: .2rem 1.2rem .2rem 0; text-align: right }
th:first-child { text-align: left }
</style>
<main>
<h1>What Ropewalk would gain</h1>
";

/// What the recordings cannot say, as on the page about `replay` in the documentation.
const LIMITS: &str = "<h2>What this page does not tell</h2>
<ul>
<li>Losses and delays are those that were given, not those of the day of the recording.</li>
<li>The two directions of a real uplink differ; here a recording holds for both.</li>
<li>A recording with another program running holds only what that program left.</li>
</ul>
</main>
";

/// Makes the page; the tunnel is the last of `outcomes`.
pub(super) fn of(outcomes: &[Outcome], args: &ReplayArgs) -> String {
    let mut page = HEAD.to_owned();
    let _ = writeln!(page, "<p>{}</p>", escaped(&verdict(outcomes)));
    let _ = writeln!(page, "<div>{}</div>", picture::draw(outcomes));
    page += "<div><table><tr><th scope=\"col\">Over<th scope=\"col\">Download, Mbit/s\
             <th scope=\"col\">Longest stall, s<th scope=\"col\">Call in time\n";
    for one in outcomes {
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{}<td>{:.1}<td>{:.1}<td>{:.1} %",
            escaped(&one.name),
            one.goodput(),
            one.stall(),
            one.in_time() * 100.0
        );
    }
    page += "</table></div>\n";
    page += &each_second(outcomes);
    let _ = writeln!(page, "<h2>What was played</h2>\n<p>{}</p>", played(args));
    page + LIMITS
}

/// The figures of the picture.
fn each_second(outcomes: &[Outcome]) -> String {
    let mut text = "<details><summary>The download of each second, Mbit/s</summary>\
                    <div><table><tr><th scope=\"col\">Second"
        .to_owned();
    for one in outcomes {
        let _ = write!(text, "<th scope=\"col\">{}", escaped(&one.name));
    }
    let seconds = outcomes.iter().map(|one| one.series().len()).max();
    for second in 0..seconds.unwrap_or(0) {
        let _ = write!(text, "\n<tr><th scope=\"row\">{second}");
        for one in outcomes {
            match one.series().get(second) {
                Some(mbit) => {
                    let _ = write!(text, "<td>{mbit:.1}");
                }
                None => text += "<td>",
            }
        }
    }
    text + "\n</table></div></details>\n"
}

/// The settings, in words.
fn played(args: &ReplayArgs) -> String {
    let files = args.files.iter().map(|file| file.display().to_string());
    let files: Vec<String> = files.collect();
    let given = |name: &str, values: &[String], default: &str| {
        let values = if values.is_empty() {
            default.to_owned()
        } else {
            values.join(", ")
        };
        format!("{name} {values}")
    };
    escaped(&format!(
        "{} for {} s. {}, {}, {}. TCP connections of the download: {}. The scheduler is {}. The seed is {}. A packet of \
         the call is in time when it arrives within 150 ms.",
        files.join(", "),
        args.seconds,
        given("One-way delay", &args.delay, super::DELAY),
        given("loss", &args.loss, "none"),
        given("queue", &args.queue, super::QUEUE),
        args.flows,
        args.scheduler.as_deref().unwrap_or("auto"),
        args.seed,
    ))
}

/// Text without the signs of markup.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            letter if letter.is_control() => {}
            letter => out.push(letter),
        }
    }
    out
}
