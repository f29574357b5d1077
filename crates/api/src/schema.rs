//! JSON Schema of what a gateway is asked and answers, and OpenAPI of all requests.
//!
//! Invariant: types, keys and descriptions are those of the types that the gateway reads and writes,
//! and the requests those that it serves ([`Route`]).
//! Source: JSON Schema 2020-12, OpenAPI 3.1.0.

use ropewalk_types::{CongestionControl, SchedulerKind};
use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::routes::{Answer, Method, Route};
use crate::{
    Changed, Done, Failed, Happened, History, KeyChange, KeyRequest, PathRequest, Paths, Reloaded,
    SchedulerRequest, Schedulers, Status, prometheus,
};

/// Statuses of refusals, and when they come.
const REFUSALS: [(&str, &str); 6] = [
    ("400", "The body is no JSON"),
    ("404", "Nothing of this name"),
    ("409", "Not possible now, or not on this gateway"),
    ("415", "The body is not declared as JSON"),
    ("422", "The body or the query asks for what makes no sense"),
    ("503", "The gateway does not answer, or is stopping"),
];

/// The schema of a status (`GET /v1/status`, `ropewalk status --json`); `$defs` has every type of the API.
#[must_use]
pub fn api() -> Value {
    let path = "/$defs";
    let mut types = answers(path);
    types.append(&mut requests(path));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Ropewalk API",
        "description": "The state of a gateway: GET /v1/status, or `ropewalk status --json`. \
            Newer gateways may have further keys.",
        "$ref": "#/$defs/Status",
        "$defs": types,
    })
}

/// All requests, as OpenAPI 3.1. `version` is that of the program.
#[must_use]
pub fn openapi(version: &str) -> Value {
    let path = "/components/schemas";
    let mut types = answers(path);
    types.append(&mut requests(path));
    let mut paths = Map::new();
    for route in Route::ALL {
        let methods = paths.entry(route.path()).or_insert_with(|| json!({}));
        let method = match route.method() {
            Method::Get => "get",
            Method::Post => "post",
        };
        methods[method] = operation(route);
    }
    let refusals: Map<String, Value> = REFUSALS
        .iter()
        .map(|(code, when)| {
            let content = json!({"application/json": {"schema": reference("Failed")}});
            let refusal = json!({"description": when, "content": content});
            ((*code).to_owned(), refusal)
        })
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ropewalk",
            "version": version,
            "description": "HTTP on the Unix socket of a gateway, such as /run/ropewalk/site.sock, \
                and on a loopback address if [api] has `listen`.",
            "license": {"name": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": "http://localhost:9490", "description": "[api] listen"}],
        "paths": paths,
        "components": {"schemas": types, "responses": refusals},
    })
}

fn operation(route: Route) -> Value {
    let (kind, schema) = match route.answer() {
        Answer::Json(name) => ("application/json", reference(name)),
        Answer::List(name) => {
            let list = json!({"type": "array", "items": reference(name)});
            ("application/json", list)
        }
        Answer::Text => (prometheus::CONTENT_TYPE, json!({"type": "string"})),
    };
    let mut responses = Map::new();
    let answer = json!({"description": route.about(), "content": {kind: {"schema": schema}}});
    responses.insert("200".to_owned(), answer);
    for (code, _) in REFUSALS {
        let refusal = json!({"$ref": format!("#/components/responses/{code}")});
        responses.insert(code.to_owned(), refusal);
    }
    let mut operation = json!({
        "operationId": format!("{route:?}"),
        "summary": route.about(),
        "responses": responses,
    });
    if let Some(name) = route.body() {
        let content = json!({"application/json": {"schema": reference(name)}});
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    if route == Route::Status {
        operation["parameters"] = json!([{
            "name": "brief", "in": "query",
            "description": "Of a hub or relay: `sites` in place of `tunnels`",
            "schema": {"type": "boolean", "default": false},
        }]);
    }
    if route == Route::History {
        operation["parameters"] = json!([
            {
                "name": "range", "in": "query", "required": true,
                "schema": {"type": "string", "enum": ["minutes", "hour", "day"]},
            },
            {
                "name": "last", "in": "query", "description": "So many of the newest points",
                "schema": {"type": "integer", "minimum": 0},
            },
        ]);
    }
    operation
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// What a gateway writes: keys that it always writes are required.
fn answers(path: &str) -> Map<String, Value> {
    let mut types = generator(path, Contract::Serialize);
    add::<Changed>(&mut types);
    add::<Done>(&mut types);
    add::<Failed>(&mut types);
    add::<Happened>(&mut types);
    add::<History>(&mut types);
    add::<KeyChange>(&mut types);
    add::<Paths>(&mut types);
    add::<Reloaded>(&mut types);
    add::<Schedulers>(&mut types);
    add::<Status>(&mut types);
    types.take_definitions(true)
}

/// What a gateway reads: keys without which it takes a default are not required.
fn requests(path: &str) -> Map<String, Value> {
    let mut types = generator(path, Contract::Deserialize);
    add::<KeyRequest>(&mut types);
    add::<PathRequest>(&mut types);
    add::<SchedulerRequest>(&mut types);
    types.take_definitions(true)
}

fn generator(path: &str, contract: Contract) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        path.clone_into(settings.definitions_path.to_mut());
        settings.contract = contract;
        settings.meta_schema = None;
    });
    settings.into_generator()
}

fn add<T: JsonSchema>(types: &mut SchemaGenerator) {
    types.subschema_for::<T>();
}

/// Names of schedulers.
pub(crate) fn scheduler(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": SchedulerKind::ALL.map(SchedulerKind::name)})
}

/// Names of congestion controls.
pub(crate) fn congestion(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": CongestionControl::ALL.map(CongestionControl::name)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_names_types_that_are_there() {
        let api = openapi("1.2.3");
        let types = api["components"]["schemas"].as_object().unwrap();
        for route in Route::ALL {
            let name = match route.answer() {
                Answer::Json(name) | Answer::List(name) => Some(name),
                Answer::Text => None,
            };
            for name in name.into_iter().chain(route.body()) {
                assert!(types.contains_key(name), "{route:?}: {name}");
            }
        }
        let operations: usize = api["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|methods| methods.as_object().unwrap().len())
            .sum();
        assert_eq!(operations, Route::ALL.len());
    }

    #[test]
    fn answers_say_what_is_always_there_and_requests_what_is_needed() {
        let api = api();
        let required = |name: &str| -> Vec<&str> {
            let keys = api["$defs"][name]["required"].as_array().unwrap();
            keys.iter().map(|key| key.as_str().unwrap()).collect()
        };
        assert!(required("PathStatus").contains(&"tx_bytes"));
        assert!(!required("Status").contains(&"onward"));
        assert_eq!(required("SchedulerRequest"), ["kind"]);
        let request = &api["$defs"]["SchedulerRequest"];
        assert_eq!(request["additionalProperties"], false);
        let kinds = request["properties"]["kind"]["enum"].as_array().unwrap();
        assert_eq!(kinds.len(), SchedulerKind::ALL.len());
        let words = &api["$defs"]["PathStatus"]["properties"]["tx_bytes"]["description"];
        assert_eq!(words, "Outer bytes sent.");
    }
}
