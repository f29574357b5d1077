//! What keys mean and what holds without them: the tables of `docs/configuration.md`.
//!
//! Invariant: the page is the only source of these words. Schemas and manual pages take them from here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::Role;

const PAGE: &str = include_str!("../../../docs/configuration.md");
/// The part of the page for every role.
const ALL: &str = "Options of all roles";

/// A row of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// What holds without the key, as Markdown; empty if the page does not say.
    pub default: String,
    /// What the key means, as Markdown.
    pub meaning: String,
}

/// Part of the page, section of the file (empty for none), key (empty for the section itself).
type Place = (String, String, String);

static ROWS: LazyLock<BTreeMap<Place, Described>> = LazyLock::new(rows);

/// What the page says of `key` in `section` of the file of `role`; an empty key stands for the section.
#[must_use]
pub fn of(role: Role, section: &str, key: &str) -> Option<&'static Described> {
    // Where the page refers to another part, such as "as for a site".
    let parts: &[&str] = match role {
        Role::Hub => &["Hub", ALL],
        Role::Site => &["Site", ALL, "Balance"],
        Role::Relay => &["Relay", "Hub", "Site", ALL],
        Role::Balance => &["Balance", "Site", ALL],
    };
    let sections: &[&str] = match (role, section) {
        (Role::Site, "direct") => &["direct", "balance"],
        (_, "rule") => &["rule", "class"],
        (Role::Relay, "onward") => &["onward", "tunnel"],
        _ => &[section],
    };
    let places = parts
        .iter()
        .flat_map(|part| sections.iter().map(move |section| (*part, *section)));
    let mut found = places.filter_map(|(part, section)| {
        let place = (part.to_owned(), section.to_owned(), key.to_owned());
        ROWS.get(&place)
    });
    found.find(|row| !row.meaning.is_empty() && !row.meaning.starts_with("as for "))
}

/// The rows of all tables whose columns are key, default and meaning.
fn rows() -> BTreeMap<Place, Described> {
    let mut rows = BTreeMap::new();
    let (mut part, mut section, mut in_table) = (String::new(), String::new(), false);
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            heading.clone_into(&mut part);
        }
        if line == "| key | default | meaning |" {
            in_table = true;
            section.clear();
        } else if !line.starts_with('|') {
            in_table = false;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (true, ["", keys, default, meaning, ""]) = (in_table, cells.as_slice()) else {
            continue;
        };
        let row = Described {
            default: (*default).to_owned(),
            meaning: (*meaning).to_owned(),
        };
        // Names of sections are bold and in brackets.
        let is_section = keys.starts_with("**");
        for name in keys.split('`').skip(1).step_by(2) {
            let name = name.trim_matches(['[', ']']);
            let key = if is_section { "" } else { name };
            if is_section {
                name.clone_into(&mut section);
            }
            let place = (part.clone(), section.clone(), key.to_owned());
            rows.insert(place, row.clone());
        }
    }
    rows
}

/// Markdown as plain text: links by their words, emphasis and code without marks.
#[must_use]
pub fn plain(markdown: &str) -> String {
    let mut out = String::new();
    let mut rest = markdown;
    while let Some(start) = rest.find(['[', '`', '*']) {
        out.push_str(&rest[..start]);
        let (mark, after) = rest[start..].split_at(1);
        rest = after;
        match mark {
            "`" => {
                let (code, after) = rest.split_once('`').unwrap_or((rest, ""));
                out.push_str(code);
                rest = after;
            }
            "[" => match link(rest) {
                Some((words, after)) => {
                    out.push_str(&plain(words));
                    rest = after;
                }
                None => out.push('['),
            },
            _ => {}
        }
    }
    out.push_str(rest);
    out
}

/// The words of a link, and what follows the link, of a text after its first bracket.
fn link(text: &str) -> Option<(&str, &str)> {
    let (words, target) = text.split_once("](")?;
    let (_, after) = target.split_once(')')?;
    Some((words, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_role_section_and_key() {
        let mtu = of(Role::Site, "tunnel", "mtu").unwrap();
        assert!(mtu.meaning.starts_with("inner MTU, 1280"), "{mtu:?}");
        assert_eq!(mtu.default, "`1500`, or more where all paths take more");
        let onward = of(Role::Relay, "onward", "mtu").unwrap();
        assert_eq!(onward, mtu);
        let mode = of(Role::Site, "direct", "mode").unwrap();
        assert!(mode.meaning.contains("least-finish"), "{mode:?}");
        let gateway = of(Role::Balance, "uplink", "match").unwrap();
        assert_eq!(gateway.meaning, "pattern of interface names");
        assert_eq!(of(Role::Hub, "uplink", "match"), None);
        assert!(of(Role::Hub, "pool", "").is_some());
    }

    #[test]
    fn plain_words_keep_what_is_said() {
        for (markdown, words) in [
            ("`a` and [`b` c](d.md#e), 2*", "a and b c, 2"),
            ("lists [x] of `[[y]]`", "lists [x] of [[y]]"),
        ] {
            assert_eq!(plain(markdown), words);
        }
    }
}
