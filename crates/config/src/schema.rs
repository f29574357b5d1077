//! JSON Schema (2020-12) of configuration files, for editors and checks.
//!
//! Invariant: keys, kinds, ranges and examples are those that the readers ask for. A schema refuses no
//! file that the reader takes. What a schema cannot state, as most conditions between keys, only the
//! reader refuses.

use serde_json::{Map, Value, json};

use crate::described::{self, plain};
use crate::survey::{Key, Kind, Table, Text, in_units};
use crate::{Role, balance, hub, relay, site};

/// The version of JSON Schema.
pub const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// What the reader of a role asks a file for.
#[must_use]
pub fn survey(role: Role) -> Table {
    match role {
        Role::Hub => hub::survey(),
        Role::Site => site::survey(),
        Role::Relay => relay::survey(),
        Role::Balance => balance::survey(),
    }
}

/// The schema of the file of a role.
#[must_use]
pub fn of(role: Role) -> Value {
    let mut schema = object(role, "", &survey(role));
    schema.insert("$schema".to_owned(), json!(DIALECT));
    schema.insert("title".to_owned(), json!(format!("Ropewalk {role}")));
    schema.insert(
        "description".to_owned(),
        json!(format!(
            "{}, read by `{}`",
            role.path(),
            crate::command(role.name())
        )),
    );
    Value::Object(schema)
}

fn object(role: Role, section: &str, table: &Table) -> Map<String, Value> {
    let properties: Map<String, Value> = table
        .keys
        .iter()
        .map(|key| (key.name.to_owned(), property(role, section, key)))
        .collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema.insert("additionalProperties".to_owned(), json!(false));
    let required: Vec<_> = table.keys.iter().filter(|key| key.required).collect();
    if !required.is_empty() {
        let names: Vec<_> = required.iter().map(|key| key.name).collect();
        schema.insert("required".to_owned(), json!(names));
    }
    let one_of = table.one_of.iter().map(|keys| {
        let each: Vec<_> = keys.iter().map(|key| json!({"required": [key]})).collect();
        json!({"anyOf": each})
    });
    let unless = table.unless.iter().map(|unless| {
        let (other, value) = (unless.other, unless.value);
        json!({
            "if": {"properties": {other: {"const": value}}, "required": [other]},
            "else": {"required": [unless.key]},
        })
    });
    let conditions: Vec<Value> = one_of.chain(unless).collect();
    if !conditions.is_empty() {
        schema.insert("allOf".to_owned(), Value::Array(conditions));
    }
    schema
}

fn property(role: Role, section: &str, key: &Key) -> Value {
    let mut schema = match &key.kind {
        Kind::Text(text) => string(text),
        Kind::Choice(choices) => from(&json!({"type": "string", "enum": choices})),
        Kind::Boolean => from(&json!({"type": "boolean"})),
        Kind::Decimal(range) => {
            let [least, most] = in_units(range);
            from(&json!({"type": "number", "minimum": least, "maximum": most}))
        }
        Kind::Integer { range, auto } => {
            let integer =
                json!({"type": "integer", "minimum": range.start(), "maximum": range.end()});
            if *auto {
                from(&json!({"anyOf": [integer, {"const": "auto"}]}))
            } else {
                from(&integer)
            }
        }
        Kind::List {
            text,
            least,
            most,
            unique,
        } => list(text, *least, *most, *unique),
        Kind::Table(table) => object(role, key.name, table),
        Kind::Tables { table, most } => {
            let items = object(role, key.name, table);
            from(&json!({"type": "array", "items": items, "maxItems": most}))
        }
    };
    let is_section = matches!(&key.kind, Kind::Table(_) | Kind::Tables { .. });
    let row = if is_section {
        described::of(role, key.name, "")
    } else {
        described::of(role, section, key.name)
    };
    if let Some(row) = row {
        let default = toml_of(&row.default);
        let mut text = plain(&row.meaning);
        match default {
            // The value without the key, if it is one and not words.
            Some(value) => {
                schema.insert("default".to_owned(), value);
            }
            None if row.default.is_empty() || row.default.starts_with("required") => {}
            None => text.push_str(&format!(" (default: {})", plain(&row.default))),
        }
        schema.insert("description".to_owned(), json!(text));
    }
    Value::Object(schema)
}

fn string(text: &Text) -> Map<String, Value> {
    let mut schema = from(&json!({"type": "string"}));
    if let Some(pattern) = text.pattern {
        schema.insert("pattern".to_owned(), json!(pattern));
    }
    if let Some(example) = value(&text.example) {
        schema.insert("examples".to_owned(), json!([example]));
    }
    schema
}

fn list(text: &Text, least: usize, most: usize, unique: bool) -> Map<String, Value> {
    let mut items = string(text);
    let examples = items.remove("examples");
    let mut schema = from(&json!({"type": "array", "items": items, "maxItems": most}));
    if let Some(examples) = examples {
        schema.insert("examples".to_owned(), examples);
    }
    if least > 0 {
        schema.insert("minItems".to_owned(), json!(least));
    }
    if unique {
        schema.insert("uniqueItems".to_owned(), json!(true));
    }
    schema
}

/// A value that stands alone in a cell as code, such as `` `"auto"` ``.
fn toml_of(cell: &str) -> Option<Value> {
    let code = cell.strip_prefix('`')?.strip_suffix('`')?;
    (!code.contains('`')).then(|| value(code)).flatten()
}

/// A value as TOML writes it; `None` for words.
fn value(text: &str) -> Option<Value> {
    let document: toml::Table = toml::from_str(&format!("x = {text}")).ok()?;
    let [(_, value)] = &document.into_iter().collect::<Vec<_>>()[..] else {
        return None;
    };
    serde_json::to_value(value).ok()
}

fn from(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of a table and those in it, as `section.key`, with whether it is a section.
    fn keys(section: &str, table: &Table, found: &mut Vec<(String, String, bool)>) {
        for key in &table.keys {
            let inner = match &key.kind {
                Kind::Table(table) | Kind::Tables { table, .. } => Some(table),
                Kind::Text(_)
                | Kind::Choice(_)
                | Kind::Boolean
                | Kind::Integer { .. }
                | Kind::Decimal(_)
                | Kind::List { .. } => None,
            };
            found.push((section.to_owned(), key.name.to_owned(), inner.is_some()));
            if let Some(table) = inner {
                keys(key.name, table, found);
            }
        }
    }

    #[test]
    fn every_key_is_described_in_the_page_of_the_configuration() {
        for role in Role::ALL {
            let mut all = Vec::new();
            keys("", &survey(role), &mut all);
            assert!(all.len() > 35, "{role}: {}", all.len());
            for (section, key, is_section) in all {
                // Headers may stand for themselves; the other is for experiments, outside of the tables.
                if is_section || key == "send_buffer_packets" {
                    continue;
                }
                let row = described::of(role, &section, &key);
                assert!(row.is_some(), "{role}: [{section}] {key}");
            }
        }
    }

    #[test]
    fn keys_of_sections_that_a_file_may_lack_are_known_with_their_ranges() {
        let site = of(Role::Site);
        let class = &site["properties"]["class"];
        assert_eq!(class["type"], "array");
        assert_eq!(class["items"]["required"], json!(["name"]));
        assert_eq!(class["items"]["properties"]["copies"]["maximum"], 16);
        let rule = &site["properties"]["rule"]["items"];
        assert_eq!(rule["required"], json!(["name", "uplinks"]));
        let mtu = &site["properties"]["tunnel"]["properties"]["mtu"];
        assert_eq!(
            (&mtu["minimum"], &mtu["maximum"]),
            (&json!(1280), &json!(9000))
        );
        assert_eq!(site["required"], json!(["hub"]));
        let scheduler = &site["properties"]["tunnel"]["properties"]["scheduler"];
        assert_eq!(scheduler["default"], "auto");
        let hub = of(Role::Hub);
        assert_eq!(hub["required"], json!(["pool"]));
        assert_eq!(
            hub["properties"]["listen"]["properties"]["udp"]["minItems"],
            1
        );
        assert_eq!(of(Role::Balance)["required"], json!(["balance"]));
        assert!(of(Role::Relay)["properties"]["onward"]["properties"]["protect"].is_object());
    }

    #[test]
    fn a_reader_surveys_the_same_keys_that_it_refuses_others_for() {
        // The message names all keys that the reader has asked for.
        for (role, section, file) in [
            (
                Role::Hub,
                "tunnel",
                "[pool]\nipv4 = \"10.9.0.0/16\"\n[tunnel]\nqqqqqqqqqq = 1\n",
            ),
            (
                Role::Balance,
                "rule",
                "[balance]\n[[rule]]\nqqqqqqqqqq = 1\n",
            ),
            (
                Role::Balance,
                "uplink",
                "[balance]\n[[uplink]]\nqqqqqqqqqq = 1\n",
            ),
        ] {
            let path = std::path::Path::new(role.path());
            let error = match role {
                Role::Hub => hub::parse(path, file).unwrap_err(),
                Role::Balance => balance::parse(path, file).unwrap_err(),
                Role::Site | Role::Relay => unreachable!("not in the table"),
            };
            let unknown = error.0.iter().find(|problem| problem.what == "unknown key");
            let told = unknown
                .unwrap()
                .remedy
                .split_once(": ")
                .unwrap()
                .1
                .to_owned();
            let mut asked: Vec<&str> = told.split(", ").collect();
            let table = survey(role);
            let (Kind::Table(inner) | Kind::Tables { table: inner, .. }) =
                &table.get(section).unwrap().kind
            else {
                panic!("{section} is no section");
            };
            let mut surveyed: Vec<&str> = inner.keys.iter().map(|key| key.name).collect();
            surveyed.sort_unstable();
            asked.sort_unstable();
            assert_eq!(surveyed, asked, "{role} {section}");
        }
    }
}
