//! The manual: a page for each command, and one for each configuration file.
//!
//! Invariant: pages say what the code reads and what `docs/configuration.md` says of it.

use std::path::Path;

use anyhow::Context;
use clap::Command;
use ropewalk_config::described::{self, plain};
use ropewalk_config::survey::{Key, Kind, Table, in_units};
use ropewalk_config::{Role, command, schema, template};
use ropewalk_manual::{FileKey, FilePage, FileSection};

/// Writes all pages, each into the directory of its section in `directory`.
///
/// # Errors
/// A page cannot be written.
pub fn write(program: Command, directory: &Path) -> anyhow::Result<()> {
    let version = program.get_version().unwrap_or_default().to_owned();
    ropewalk_manual::write(program, &directory.join("man1"))?;
    let files = directory.join("man5");
    std::fs::create_dir_all(&files).with_context(|| files.display().to_string())?;
    for role in Role::ALL {
        let page = page(role, &version);
        let path = files.join(format!("{}.5", page.name));
        std::fs::write(&path, page.render()).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn page(role: Role, version: &str) -> FilePage {
    let run = command(role.name());
    let about = match role {
        Role::Balance => "configuration of ropewalk balance".to_owned(),
        Role::Hub | Role::Site | Role::Relay => format!("configuration of a Ropewalk {role}"),
    };
    let description = [
        format!(
            "What {run} reads at its start, in TOML. A key that is not listed here is refused."
        ),
        "ropewalk doctor checks the file, and names line, key and remedy of each error.".to_owned(),
        format!(
            "ropewalk schema {role} prints a JSON Schema of the file, with which editors complete and check it."
        ),
    ];
    let mut sections = vec![FileSection::default()];
    add(role, "", &schema::survey(role), 0, &mut sections);
    let written = run.strip_prefix("ropewalk ").unwrap_or(run);
    let others = [format!("ropewalk-{written}"), "ropewalk-doctor".to_owned()];
    FilePage {
        name: format!("ropewalk-{role}.toml"),
        about,
        source: format!("ropewalk {version}"),
        path: role.path().to_owned(),
        description: description.to_vec(),
        sections,
        example: template::example(role),
        see_also: others.map(|name| (name, 1)).to_vec(),
    }
}

/// Adds the keys of a table to the section at `place`, and a section for each table in it.
fn add(role: Role, name: &str, table: &Table, place: usize, sections: &mut Vec<FileSection>) {
    for key in &table.keys {
        let (inner, header) = match &key.kind {
            Kind::Table(inner) => (inner, format!("[{}]", key.name)),
            Kind::Tables { table, .. } => (table, format!("[[{}]]", key.name)),
            Kind::Text(_)
            | Kind::Choice(_)
            | Kind::Boolean
            | Kind::Integer { .. }
            | Kind::Decimal(_)
            | Kind::List { .. } => {
                sections[place].keys.push(entry(role, name, key));
                continue;
            }
        };
        let row = described::of(role, key.name, "");
        sections.push(FileSection {
            header,
            about: row.map_or_else(String::new, |row| plain(&row.meaning)),
            keys: Vec::new(),
        });
        add(role, key.name, inner, sections.len() - 1, sections);
    }
}

fn entry(role: Role, section: &str, key: &Key) -> FileKey {
    let mut facts = match &key.kind {
        Kind::Text(_) => "text".to_owned(),
        Kind::Choice(choices) => choices.join(", "),
        Kind::Boolean => "true or false".to_owned(),
        Kind::Integer { range, auto } => {
            let auto = if *auto { ", or \"auto\"" } else { "" };
            format!(
                "whole number from {} to {}{auto}",
                range.start(),
                range.end()
            )
        }
        Kind::Decimal(range) => {
            let [least, most] = in_units(range);
            format!("number from {least} to {most}")
        }
        Kind::List { most, .. } => format!("list of up to {most} texts"),
        Kind::Table(_) | Kind::Tables { .. } => String::new(),
    };
    let row = described::of(role, section, key.name);
    let default = row.map_or_else(String::new, |row| plain(&row.default));
    if key.required {
        facts.push_str("; required");
    } else if default.starts_with("required") {
        facts.push_str(&format!("; {default}"));
    } else if !default.is_empty() {
        facts.push_str(&format!("; default: {default}"));
    }
    FileKey {
        name: key.name.to_owned(),
        facts,
        meaning: row.map_or_else(String::new, |row| plain(&row.meaning)),
    }
}
