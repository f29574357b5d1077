//! What `--plan` prints: every change to this machine, before it is made.

use super::output::{self, Colour, Style};
use crate::service::balance::Plan;

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
    let script: Vec<String> = plan.firewall.lines().map(str::to_owned).collect();
    section(&format!("firewall table {}", plan.table), &script);
    if !plan.doubts.is_empty() {
        let doubts: Vec<String> = plan.doubts.iter().map(ToString::to_string).collect();
        section("to check", &doubts);
    }
    out
}
