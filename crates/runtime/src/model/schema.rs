//! Schemas of tools as APIs take them. Tools come from clients and from servers of others, and one that an API cannot read makes
//! it refuse the whole request.

use serde_json::{Map, Value, json};

const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// So deep is looked; what is below stays as it is.
const DEEPEST: usize = 32;

/// The schema of a tool's parameters: always an object with properties, every array with items, no types that do not exist.
pub(super) fn sound(schema: &Value) -> Value {
    let Value::Object(members) = schema else { return json!({"type": "object", "properties": {}}) };
    let mut members = members.clone();
    mend(&mut members, 0);
    members.insert("type".into(), "object".into());
    if !members.get("properties").is_some_and(Value::is_object) {
        members.insert("properties".into(), json!({}));
    }
    Value::Object(members)
}

/// Whether a schema for an answer keeps to the rules under which providers can hold a model to it: every object names all of its
/// members as required and allows no others. A strict request with any other schema is refused.
pub(super) fn is_strict(schema: &Value) -> bool {
    let is_object = schema["type"] == "object" || schema["properties"].is_object();
    let members = || schema["properties"].as_object().into_iter().flatten();
    let is_required = |name: &String| schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name));
    if is_object && (schema["additionalProperties"] != false || !members().all(|(name, _)| is_required(name))) {
        return false;
    }
    let lists = ["anyOf", "oneOf", "allOf", "prefixItems"].iter().flat_map(|name| schema[*name].as_array().into_iter().flatten());
    let maps = ["$defs", "definitions"].iter().flat_map(|name| schema[*name].as_object().into_iter().flatten().map(|(_, inner)| inner));
    members().map(|(_, inner)| inner).chain(schema.get("items")).chain(lists).chain(maps).all(is_strict)
}

fn mend(schema: &mut Map<String, Value>, depth: usize) {
    if depth > DEEPEST {
        return;
    }
    let is_type = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
    let is_sound = match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => !kinds.is_empty() && kinds.iter().all(is_type),
        Some(kind) => is_type(kind),
    };
    if !is_sound {
        schema.remove("type");
    }
    let is_array =
        schema.get("type").is_some_and(|kind| kind == "array" || kind.as_array().is_some_and(|all| all.contains(&json!("array"))));
    if is_array && !schema.contains_key("items") && !schema.contains_key("prefixItems") {
        schema.insert("items".into(), json!({}));
    }
    if schema.get("required").is_some_and(|names| !names.as_array().is_some_and(|names| names.iter().all(Value::is_string))) {
        schema.remove("required");
    }
    if schema.get("properties").is_some_and(|properties| !properties.is_object()) {
        schema.remove("properties");
    }
    for (name, value) in schema.iter_mut() {
        match (name.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(inner)) => {
                // What a property is called says nothing about what it is; what is no schema becomes one that takes anything.
                for inner in inner.values_mut() {
                    mend_value(inner, depth);
                }
            }
            ("items" | "additionalProperties" | "not", value) => mend_value(value, depth),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(inner)) => {
                inner.iter_mut().for_each(|inner| mend_value(inner, depth))
            }
            _ => {}
        }
    }
}

fn mend_value(value: &mut Value, depth: usize) {
    match value {
        Value::Object(schema) => mend(schema, depth + 1),
        Value::Bool(_) => {}
        // `items` with a list is what older drafts had for tuples.
        Value::Array(list) => list.iter_mut().for_each(|inner| mend_value(inner, depth + 1)),
        other => *other = json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apis_refuse_is_mended() {
        let empty = json!({"type": "object", "properties": {}});
        assert_eq!(sound(&Value::Null), empty);
        assert_eq!(sound(&json!({})), empty);
        assert_eq!(sound(&json!({"type": "string", "properties": []})), empty);
        let mended = sound(&json!({"properties": {"type": {"type": "array"}, "x": {"type": "text"}, "y": 3}, "required": "type"}));
        assert_eq!(mended, json!({"type": "object", "properties": {"type": {"type": "array", "items": {}}, "x": {}, "y": {}}}));
        let nested = sound(&json!({"type": "object", "properties": {"a": {"anyOf": [{"type": ["array", "null"]}, {"type": "null"}]}}}));
        assert_eq!(nested["properties"]["a"]["anyOf"][0]["items"], json!({}));
    }

    #[test]
    fn what_is_sound_stays_as_it_is() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}, "b": true},
            "required": ["a"], "additionalProperties": false, "$defs": {"n": {"type": ["integer", "null"]}}});
        assert_eq!(sound(&schema), schema);
    }

    #[test]
    fn only_what_names_everything_is_strict() {
        let inner = json!({"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"], "additionalProperties": false});
        let strict = json!({"type": "object", "properties": {"a": {"type": "array", "items": inner}}, "required": ["a"], "additionalProperties": false});
        assert!(is_strict(&strict));
        for (pointer, value) in
            [("/additionalProperties", json!(true)), ("/required", json!([])), ("/properties/a/items/required", json!([]))]
        {
            let mut loose = strict.clone();
            *loose.pointer_mut(pointer).unwrap() = value;
            assert!(!is_strict(&loose), "{pointer}");
        }
    }
}
