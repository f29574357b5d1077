//! Which key of a plan cannot be read. serde forgets the keys in sections with a `kind`, so the key is
//! found by leaving keys out: without it, the plan has another error or none.

use serde::Deserialize;
use toml::{Table, Value};

use crate::{Plan, PlanError};

/// The key that says what the other keys of a section are.
const KIND: &str = "kind";

/// What is wrong with a text that is no plan.
pub(crate) fn explain(text: &str, error: &toml::de::Error) -> PlanError {
    let whole = || PlanError::Syntax(error.to_string().trim().into());
    let Ok(table) = text.parse::<Table>() else {
        return whole();
    };
    let plan = Value::Table(table);
    match problem(plan.clone()) {
        // These name the key already.
        Some(problem) if problem.starts_with("missing field") => whole(),
        Some(problem) if problem.starts_with("unknown field") => whole(),
        None => whole(),
        Some(told) => PlanError::Setting {
            key: narrow(plan, &|part| problem(part).as_ref() == Some(&told))
                .trim_start_matches('.')
                .into(),
            problem: told,
        },
    }
}

fn problem(plan: Value) -> Option<String> {
    Plan::deserialize(plan)
        .err()
        .map(|error| error.message().trim().to_owned())
}

/// The way to the key within `value` that cannot be read; `fails` tells whether the plan still has
/// the same error with a part of `value` in its place.
fn narrow(value: Value, fails: &dyn Fn(Value) -> bool) -> String {
    match value {
        Value::Table(table) => {
            let mut rest = table.clone();
            for (name, value) in table.into_iter().filter(|(name, _)| name != KIND) {
                rest.remove(&name);
                if fails(Value::Table(rest.clone())) {
                    continue;
                }
                let with = |part| {
                    let mut whole = rest.clone();
                    whole.insert(name.clone(), part);
                    fails(Value::Table(whole))
                };
                return format!(".{name}{}", narrow(value, &with));
            }
            // No other key is wrong.
            if rest.contains_key(KIND) {
                format!(".{KIND}")
            } else {
                String::new()
            }
        }
        Value::Array(values) => {
            let alone = |value: &Value| fails(Value::Array(vec![value.clone()]));
            let found = values
                .into_iter()
                .enumerate()
                .find(|(_, value)| alone(value));
            found.map_or_else(String::new, |(index, value)| {
                let within = narrow(value, &|part| fails(Value::Array(vec![part])));
                format!("[{index}]{within}")
            })
        }
        Value::String(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_) => String::new(),
    }
}
