//! What `--plan` prints: every change to this machine, before it is made.

use std::collections::BTreeMap;

use super::output::{self, Colour, Style};
use ropewalk_balance::Plan;

/// Prints it, as text or as one JSON object.
///
/// # Errors
/// Standard output is closed.
pub fn print(plan: &Plan, json: bool) -> anyhow::Result<()> {
    let text = if json {
        format!("{}\n", serde_json::to_string_pretty(plan)?)
    } else {
        render(plan, Style::of_stdout())
    };
    output::print(&text).map_err(Into::into)
}

/// A line of the script; one with many elements has how many lead where in place of them.
fn shortened(line: &str) -> String {
    let whole = || line.to_owned();
    let Some((head, rest)) = line.split_once("{ ") else {
        return whole();
    };
    let elements: Vec<&str> = rest.trim_end_matches(" }").split(", ").collect();
    if elements.len() < ELEMENTS_MANY {
        return whole();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for element in elements {
        let target = element
            .split_once(" : ")
            .map_or(element, |(_, target)| target);
        *counts.entry(target).or_default() += 1;
    }
    let counts = counts
        .into_iter()
        .map(|(target, count)| format!("{count} times {target}"));
    format!("{head}{{ {} }}", counts.collect::<Vec<_>>().join(", "))
}

/// Whether a line of the script only makes room for what follows: it names a chain that gets its
/// rules further down, or empties a part of the table.
fn prepares(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("flush ") || (line.starts_with("chain ") && line.ends_with("{  }"))
}

/// Elements of a map that are counted rather than listed.
const ELEMENTS_MANY: usize = 64;

fn render(plan: &Plan, style: Style) -> String {
    let mut out = String::new();
    let mut section = |title: &str, lines: &[String]| {
        out.push_str(&format!("{}\n", style.paint(Colour::Bold, title)));
        for line in lines {
            out.push_str(&format!("  {line}\n"));
        }
        if lines.is_empty() {
            out.push_str("  none\n");
        }
    };
    section("uplinks", &plan.uplinks);
    section("kernel settings", &plan.settings);
    section("routing", &plan.routing);
    let told = plan.firewall.lines().filter(|line| !prepares(line));
    let script: Vec<String> = told.map(shortened).collect();
    section(&format!("firewall table {}", plan.table), &script);
    if !plan.doubts.is_empty() {
        let doubts: Vec<String> = plan.doubts.iter().map(ToString::to_string).collect();
        section("to check", &doubts);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_with_many_elements_says_how_many_lead_where() {
        let element = |place: usize| format!("{place} : goto use_{}", 1 + place % 2);
        let elements = |count| (0..count).map(element).collect::<Vec<_>>().join(", ");
        let long = format!("add element inet t places {{ {} }}", elements(256));
        let expected = "add element inet t places { 128 times goto use_1, 128 times goto use_2 }";
        assert_eq!(shortened(&long), expected);
        for line in [
            format!("add element inet t m {{ {} }}", elements(3)),
            "flush".to_owned(),
        ] {
            assert_eq!(shortened(&line), line);
        }
    }

    #[test]
    fn lines_that_only_prepare_are_not_told() {
        for line in ["\tchain refuse {  }", "flush chain inet t refuse"] {
            assert!(prepares(line), "{line}");
        }
        for line in [
            "\tchain refuse {",
            "\tchain leaving { type route hook output priority mangle; }",
            "\tset s { type ip saddr; }",
        ] {
            assert!(!prepares(line), "{line}");
        }
    }
}
