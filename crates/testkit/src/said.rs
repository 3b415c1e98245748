//! What a program that has ended said.

use std::process::Output;

use serde_json::Value;

/// Its standard output as JSON. A program that failed fails the test with everything that it said.
pub fn json_of(output: &Output) -> Value {
    let said = || format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}: {}", output.status, said());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said()))
}
