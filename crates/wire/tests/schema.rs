//! The schemas that are checked in are those of the code.

use std::collections::BTreeSet;

use serde_json::Value;

const APP: &str = include_str!("../../../schema/app.json");
const EXEC: &str = include_str!("../../../schema/exec.json");

#[test]
fn the_schemas_are_those_of_the_code() {
    assert!(APP == outpost_wire::schema::app(), "schema/app.json is out of date: run `cargo xtask schema`");
    assert!(EXEC == outpost_wire::schema::exec(), "schema/exec.json is out of date: run `cargo xtask schema`");
}

#[test]
fn every_reference_leads_somewhere() {
    fn references(value: &Value, out: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    out.insert(reference.clone());
                }
                members.values().for_each(|value| references(value, out));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, out)),
            _ => {}
        }
    }
    for text in [APP, EXEC] {
        let schema: Value = serde_json::from_str(text).unwrap();
        let mut found = BTreeSet::new();
        references(&schema, &mut found);
        assert!(found.len() > 20);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(schema.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
    }
}
