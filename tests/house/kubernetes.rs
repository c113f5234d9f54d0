//! The manifest for Kubernetes keeps to the schema of Kubernetes: `scripts/kubernetes-schema.py` has made the part of it that is used.

use std::{fs, path::Path};

use granit_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};

fn file(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect(name)
}

/// The only document of a text.
fn yaml(text: &str) -> Value {
    let mut parser = Parser::new_from_str(text);
    loop {
        match next(&mut parser) {
            Event::StreamStart | Event::DocumentStart(..) => {}
            event => return node(event, &mut parser),
        }
    }
}

fn next<'t>(parser: &mut Parser<'t, StrInput<'t>>) -> Event<'t> {
    parser.next_event().expect("there is more").expect("it is YAML").0
}

fn node<'t>(event: Event<'t>, parser: &mut Parser<'t, StrInput<'t>>) -> Value {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, ..) => {
            serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.to_string()))
        }
        Event::Scalar(text, ..) => Value::String(text.to_string()),
        Event::SequenceStart(..) => {
            let mut list = Vec::new();
            loop {
                match next(parser) {
                    Event::SequenceEnd => return Value::Array(list),
                    event => list.push(node(event, parser)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                match next(parser) {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(key, ..) => {
                        let event = next(parser);
                        assert!(
                            map.insert(key.to_string(), node(event, parser)).is_none(),
                            "{key} is there twice"
                        );
                    }
                    event => panic!("{event:?} is no key"),
                }
            }
        }
        event => panic!("{event:?} is not expected"),
    }
}

/// All that is wrong with a value.
fn mistakes(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let is_of = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the type {other} is not known here"),
    };
    let fits = match &schema["type"] {
        Value::String(name) => is_of(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is_of),
        _ => true,
    };
    if !fits {
        found.push(format!("{path} is {value}; expected {}", schema["type"]));
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
        found.push(format!("{path} is {value}; expected {allowed:?}"));
    }
    if let Some(any) = schema["oneOf"].as_array() {
        let is_right = |schema: &Value| {
            let mut inner = Vec::new();
            mistakes(schema, value, path, &mut inner);
            inner.is_empty()
        };
        if !any.iter().any(is_right) {
            found.push(format!("{path} is {value}; expected one of {any:?}"));
        }
    }
    if let Some(map) = value.as_object() {
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(key) {
                found.push(format!("{path} has no {key}"));
            }
        }
        for (key, inner) in map {
            let path = format!("{path}.{key}");
            match (schema["properties"].get(key), &schema["additionalProperties"]) {
                (Some(schema), _) | (None, schema @ Value::Object(_)) => {
                    mistakes(schema, inner, &path, found);
                }
                (None, _) => found.push(format!("{path} is not known")),
            }
        }
    }
    for (place, inner) in value.as_array().into_iter().flatten().enumerate() {
        mistakes(&schema["items"], inner, &format!("{path}[{place}]"), found);
    }
}

fn check(manifest: &str) -> Vec<String> {
    let schema: Value =
        serde_json::from_str(&file("tests/fixtures/kubernetes/job.json")).expect("it is JSON");
    let mut found = Vec::new();
    mistakes(&schema, &yaml(manifest), "job", &mut found);
    found
}

#[test]
fn the_manifest_keeps_to_the_schema_of_kubernetes() {
    let manifest = file("examples/kubernetes/agents.yaml");
    assert_eq!(check(&manifest), Vec::<String>::new());
    for (from, to) in [
        ("restartPolicy:", "restartPolice:"),
        ("parallelism: 2", "parallelism: two"),
        ("        - name: agent\n", "        - nam: agent\n"),
        ("defaultMode: 256", "defaultMode: \"256\""),
        ("kind: Job", "kind: Pod"),
    ] {
        let broken = manifest.replacen(from, to, 1);
        assert_ne!(broken, manifest, "{from}");
        assert!(!check(&broken).is_empty(), "{to} was not noticed");
    }
}

#[test]
fn the_page_shows_what_the_manifest_says() {
    let (page, manifest) = (file("docs/kubernetes.md"), file("examples/kubernetes/agents.yaml"));
    for line in ["restartPolicy: Never", "nvidia.com/gpu: 4", "terminationGracePeriodSeconds: 120"] {
        assert!(manifest.contains(line), "{line}");
        assert!(page.contains(&format!("`{line}`")), "{line}");
    }
}
