//! What programs print when the system refuses them something. In lower case.
//!
//! One list: executors tell by it that a sandbox probably refused something, the runtime finds what it was.

/// When a file may not be written or a call may not be made.
pub const REFUSED: [&str; 6] =
    ["read-only file system", "permission denied", "operation not permitted", "failed to write file", "erofs", "eacces"];

/// When there is no network.
pub const OFFLINE: [&str; 6] = [
    "network is unreachable",
    "could not resolve",
    "name resolution",
    "name or service not known",
    "temporary failure in name",
    "getaddrinfo",
];
