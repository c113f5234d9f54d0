use serde_json::{Map, Value, json};

use super::table::{DOMAIN, Field, HOST, Kind, MACHINES, OBJECTIVE, PILOTS, STUDY};

/// The JSON Schema of study files, for editors. It comes from the tables that files are read by.
///
/// ```
/// let schema = pollux_tune::space::schema();
/// assert_eq!(schema["properties"]["search"]["properties"]["trials"]["default"], 100);
/// assert_eq!(schema["required"], serde_json::json!(["space", "objective"]));
/// ```
#[must_use]
pub fn schema() -> Value {
    let mut schema = object(STUDY);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("A pollux-tune study");
    schema["required"] = json!(["space", "objective"]);
    let domain = object(DOMAIN);
    let values = json!({"type": "array", "items": {"$ref": "#/$defs/value"}, "minItems": 1});
    schema["$defs"] = json!({
        "value": {"type": ["number", "string", "boolean"]},
        "objective": object(OBJECTIVE),
        "machines": object(MACHINES),
        "pilots": object(PILOTS),
        "host": object(HOST),
        "parameter": {
            "description": "A domain; a list is short for `choice`, a single value for `fixed`",
            "anyOf": [domain, values, {"$ref": "#/$defs/value"}],
        },
    });
    schema
}

fn object(table: &[Field]) -> Value {
    let properties: Map<String, Value> =
        table.iter().map(|field| (field.key.to_owned(), property(field))).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn property(field: &Field) -> Value {
    let mut schema = match field.kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Words => json!({"type": ["array", "string"], "items": {"type": ["string", "number"]}}),
        Kind::Whole { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Number { min, max } => json!({"type": "number", "minimum": min, "maximum": max}),
        Kind::Positive => json!({"type": "number", "exclusiveMinimum": 0}),
        Kind::Finite => json!({"type": "number"}),
        Kind::Duration => json!({"type": "string", "pattern": "^([0-9.]+(d|h|m|s|ms))+$"}),
        Kind::Size => json!({
            "type": ["integer", "string"], "minimum": 1, "pattern": "^[0-9.]+([kKMG]|[KMGT]i)?B?$",
        }),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Share => json!({
            "anyOf": [{"enum": ["all", "none"]}, {"type": "integer", "minimum": 0, "maximum": u32::MAX}],
        }),
        Kind::OneOf(names) => json!({"enum": names}),
        Kind::Form(form) => json!({"type": ["string", "integer"], "pattern": form.pattern}),
        Kind::Section(table) => object(table),
        Kind::Raw(text) => serde_json::from_str(text).unwrap_or(Value::Bool(true)),
    };
    schema["description"] = json!(field.about);
    if let Some(default) = field.default {
        // Numbers and truth values as such, everything else as text.
        schema["default"] = serde_json::from_str(default).unwrap_or_else(|_| json!(default));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_is_json() {
        for field in STUDY.iter().chain(DOMAIN).chain(OBJECTIVE).chain(MACHINES) {
            if let Kind::Raw(text) = field.kind {
                let fragment: Value = serde_json::from_str(text).expect(field.key);
                assert!(fragment.is_object(), "{}", field.key);
            }
        }
    }
}
