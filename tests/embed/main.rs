//! The example of the runtime as a library does what it says.
#![allow(clippy::unwrap_used)]

#[path = "../../examples/embed.rs"]
mod embed;

#[tokio::test]
async fn the_runtime_is_a_library() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (output, answer) = embed::one_turn(env!("CARGO_BIN_EXE_outpost"), home.path(), work.path()).await.unwrap();
    assert!(output.contains("made by a library\n"), "{output}");
    assert_eq!(answer, "Done.");
    assert_eq!(std::fs::read_to_string(work.path().join("made.txt")).unwrap(), "made by a library\n");
}
