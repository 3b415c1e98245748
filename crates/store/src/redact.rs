//! Takes secrets out of what is about to be stored, string by string.

use outpost_thread::Raw;
use serde_json::Value;

use crate::store::Redactor;

/// The data without secrets, or None if there is nothing to change.
pub(crate) fn redact(redactor: &dyn Redactor, data: &Raw) -> Option<Raw> {
    let mut value: Value = serde_json::from_str(data.get()).ok()?;
    clean(redactor, &mut value).then(|| Raw::from(value))
}

fn clean(redactor: &dyn Redactor, value: &mut Value) -> bool {
    match value {
        Value::String(text) => match redactor.redact(text) {
            Some(clean) => {
                *text = clean;
                true
            }
            None => false,
        },
        Value::Array(values) => values.iter_mut().fold(false, |changed, value| clean(redactor, value) | changed),
        Value::Object(members) => members.values_mut().fold(false, |changed, value| clean(redactor, value) | changed),
        _ => false,
    }
}
