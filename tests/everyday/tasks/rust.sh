# Rust: cargo, with a home of its own for what it downloads.

## cargo new, build, run
# needs: cargo git
### inside
cargo new -q app && cd app && cargo run -q --offline | grep -q 'Hello, world'

## cargo test with a server on localhost
# needs: cargo
### inside
cargo init -q --vcs none --lib --name app .
cat >src/lib.rs <<'R'
#[test] fn serves() {
    use std::io::{Read, Write};
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let serving = std::thread::spawn(move || server.accept().unwrap().0.write_all(b"served").unwrap());
    let mut said = String::new();
    std::net::TcpStream::connect(address).unwrap().read_to_string(&mut said).unwrap();
    serving.join().unwrap();
    assert_eq!(said, "served");
}
R
cargo test -q --offline

## cargo doc, clippy, fmt
# needs: cargo cargo-clippy rustfmt
### inside
cargo init -q --vcs none --name app . && cargo fmt && cargo clippy -q --offline -- -D warnings && cargo doc -q --offline --no-deps && [ -f target/doc/app/index.html ]

## cargo install of a program of the workspace
# needs: cargo
### inside
cargo init -q --vcs none --name everyday-app . && cargo install -q --offline --path . && "$HOME/.cargo/bin/everyday-app" | grep -q Hello

## cargo build with a dependency from a directory of vendored crates
# needs: cargo
### inside
cargo new -q --vcs none --lib dep && cargo new -q --vcs none app && cd app && printf 'dep = { path = "../dep" }\n' >>Cargo.toml
echo 'fn main() { println!("{}", dep::add(20, 22)); }' >src/main.rs && cargo run -q --offline | grep -q 42

## a build script that compiles C
# needs: cargo cc
### inside
cargo init -q --vcs none --name app . && printf 'int answer(void) { return 42; }\n' >answer.c
cat >build.rs <<'R'
fn main() {
    let out = std::env::var("OUT_DIR").unwrap();
    let ok = |command: &mut std::process::Command| assert!(command.status().unwrap().success());
    ok(std::process::Command::new("cc").args(["-c", "answer.c", "-o"]).arg(format!("{out}/answer.o")));
    ok(std::process::Command::new("ar").args(["crs"]).arg(format!("{out}/libanswer.a")).arg(format!("{out}/answer.o")));
    println!("cargo:rustc-link-search={out}\ncargo:rustc-link-lib=static=answer");
}
R
echo 'unsafe extern "C" { fn answer() -> i32; } fn main() { println!("{}", unsafe { answer() }); }' >src/main.rs && cargo run -q --offline | grep -q 42

## sccache as the compiler's wrapper
# needs: cargo sccache
### inside
cargo init -q --vcs none --lib --name app . && RUSTC_WRAPPER=sccache cargo build -q --offline && sccache --show-stats | grep -q 'Compile requests' && sccache --stop-server >/dev/null

## download crates
# needs: cargo
# forbidden: no network
# allow: -c sandbox_workspace_write.network_access=true
### inside
cargo init -q --vcs none --lib --name app . && printf 'itoa = "1"\n' >>Cargo.toml && cargo fetch -q
