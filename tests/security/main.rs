//! One test per promise of `SECURITY.md` that tries to break it, as root and as an ordinary user where that differs.

mod doors;
mod support;
