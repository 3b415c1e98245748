//! Writes the schemas of both protocols; `cargo xtask schema` runs this.

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema");
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join("app.json"), outpost_wire::schema::app())?;
    std::fs::write(directory.join("exec.json"), outpost_wire::schema::exec())
}
