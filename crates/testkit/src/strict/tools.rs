//! Tools, and schemas of what they take and of what is answered.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Checked, LONGEST_TEXT, MOST_TOOLS, Violation, name, text};

pub(super) fn tools(body: &Value) -> Result<&[Value], Violation> {
    match &body["tools"] {
        Value::Null => Ok(&[]),
        Value::Array(tools) if tools.len() > MOST_TOOLS => Err(Violation::too_long("tools", "array", MOST_TOOLS, tools.len())),
        Value::Array(tools) => Ok(tools),
        _ => Err(Violation::kind("tools", "an array")),
    }
}

pub(super) fn names<'a>(names: impl Iterator<Item = &'a Value>) -> Checked {
    let mut seen = BTreeSet::new();
    for name in names.filter_map(Value::as_str) {
        if !seen.insert(name) {
            return Err(Violation::new(format!("Tool names must be unique: '{name}'."), "tools", "invalid_value"));
        }
    }
    Ok(())
}

pub(super) fn responses_tool(tool: &Value, param: &str) -> Checked {
    match tool["type"].as_str() {
        Some("function") => function(tool, param),
        Some("custom") => {
            name(&tool["name"], format!("{param}.name"))?;
            let format = &tool["format"];
            match format["type"].as_str() {
                None | Some("text") => Ok(()),
                Some("grammar") if !matches!(format["syntax"].as_str(), Some("lark" | "regex")) => {
                    Err(Violation::value(format!("{param}.format.syntax"), format["syntax"].as_str().unwrap_or("null"), &["lark", "regex"]))
                }
                Some("grammar") => text(&format["definition"], format!("{param}.format.definition"), LONGEST_TEXT),
                Some(other) => Err(Violation::value(format!("{param}.format.type"), other, &["text", "grammar"])),
            }
        }
        Some("image_generation") => Ok(()),
        other => Err(Violation::value(format!("{param}.type"), other.unwrap_or("null"), &["function", "custom", "and others"])),
    }
}

pub(super) fn function(function: &Value, param: &str) -> Checked {
    name(&function["name"], format!("{param}.name"))?;
    if !function["description"].is_null() {
        text(&function["description"], format!("{param}.description"), LONGEST_TEXT)?;
    }
    let schema = &function["parameters"];
    if schema.is_null() {
        return Ok(());
    }
    let refuse = |why: String| {
        let message = format!("Invalid schema for function '{}': {why}", function["name"].as_str().unwrap_or_default());
        Violation::new(message, format!("{param}.parameters"), "invalid_function_parameters")
    };
    if schema["type"] != "object" {
        let found = schema["type"].as_str().unwrap_or("None");
        return Err(refuse(format!("schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{found}\"'.")));
    }
    if !schema["properties"].is_object() {
        return Err(refuse("In context=(), object schema missing properties.".into()));
    }
    schema_fault(schema, &mut Vec::new()).map_or(Ok(()), |why| Err(refuse(why)))
}

/// What is wrong with a schema, where there is something.
pub(super) fn schema_fault(schema: &Value, place: &mut Vec<String>) -> Option<String> {
    const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];
    let members = match schema {
        Value::Bool(_) => return None,
        Value::Object(members) => members,
        other => return Some(format!("{other} is not of type 'object', 'boolean'.")),
    };
    let context =
        |place: &[String]| format!("In context=({})", place.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", "));
    let kinds: Vec<&Value> = match members.get("type") {
        None => vec![],
        Some(Value::Array(kinds)) => kinds.iter().collect(),
        Some(kind) => vec![kind],
    };
    if let Some(kind) = kinds.iter().find(|kind| !kind.as_str().is_some_and(|kind| TYPES.contains(&kind))) {
        return Some(format!("{kind} is not valid under any of the given schemas."));
    }
    let has = |name: &str| members.contains_key(name);
    if kinds.iter().any(|kind| *kind == "array") && !has("items") && !has("prefixItems") {
        return Some(format!("{}, array schema missing items.", context(place)));
    }
    if members.get("required").is_some_and(|names| !names.as_array().is_some_and(|names| names.iter().all(Value::is_string))) {
        return Some(format!("{} is not of type 'array'.", members["required"]));
    }
    for (name, inner) in members {
        let inner: Vec<(String, &Value)> = match (name.as_str(), inner) {
            ("properties" | "$defs" | "definitions" | "patternProperties", Value::Object(inner)) => {
                inner.iter().map(|(key, inner)| (key.clone(), inner)).collect()
            }
            ("properties" | "$defs" | "definitions" | "patternProperties", other) => {
                return Some(format!("{other} is not of type 'object'."));
            }
            ("items", Value::Array(inner)) | ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(inner)) => {
                inner.iter().enumerate().map(|(at, inner)| (at.to_string(), inner)).collect()
            }
            ("items" | "additionalProperties" | "not", inner) => vec![(String::new(), inner)],
            _ => continue,
        };
        for (key, inner) in inner {
            place.push(name.clone());
            place.extend((!key.is_empty()).then(|| key.clone()));
            let fault = schema_fault(inner, place);
            place.truncate(place.len() - 1 - usize::from(!key.is_empty()));
            if fault.is_some() {
                return fault;
            }
        }
    }
    None
}

/// The format of an answer; a strict one has rules of its own.
pub(super) fn output_format(format: &Value, param: &str) -> Checked {
    if param == "text.format" && matches!(format["type"].as_str(), Some("text" | "json_object")) {
        return Ok(());
    }
    name(&format["name"], format!("{param}.name"))?;
    let refuse = |why: String| {
        let message = format!("Invalid schema for response_format '{}': {why}", format["name"].as_str().unwrap_or_default());
        Violation::new(message, format!("{param}.schema"), "invalid_json_schema")
    };
    if format["schema"]["type"] != "object" {
        return Err(refuse(format!("schema must be a JSON Schema of 'type: \"object\"', got 'type: {}'.", format["schema"]["type"])));
    }
    if let Some(why) = schema_fault(&format["schema"], &mut Vec::new()) {
        return Err(refuse(why));
    }
    if format["strict"] == true
        && let Some(why) = strict_fault(&format["schema"], &mut Vec::new())
    {
        return Err(refuse(why));
    }
    Ok(())
}

fn strict_fault(schema: &Value, place: &mut Vec<String>) -> Option<String> {
    let context = format!("In context=({})", place.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", "));
    if schema["type"] == "object" || schema["properties"].is_object() {
        if schema["additionalProperties"] != false {
            return Some(format!("{context}, 'additionalProperties' is required to be supplied and to be false."));
        }
        let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            if !required.contains(&name.as_str()) {
                let text = "'required' is required to be supplied and to be an array including every key in properties";
                return Some(format!("{context}, {text}. Missing '{name}'."));
            }
            place.extend(["properties".into(), name.clone()]);
            let fault = strict_fault(inner, place);
            place.truncate(place.len() - 2);
            if fault.is_some() {
                return fault;
            }
        }
    }
    let inner =
        ["anyOf", "oneOf", "allOf"].iter().flat_map(|name| schema[*name].as_array().into_iter().flatten()).chain(schema.get("items"));
    for inner in inner {
        place.push("items".into());
        let fault = strict_fault(inner, place);
        place.pop();
        if fault.is_some() {
            return fault;
        }
    }
    None
}
