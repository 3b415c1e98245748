//! One test per promise that tries to break it: as root, and as an ordinary user.
//!
//! A test that cannot fail shows nothing. Each guard below was taken out once, alone, and these failed:
//!
//! | guard taken out | tests that failed |
//! |---|---|
//! | tokens are asked for | `s1_a_plain_start…`, `s1_our_own_client…`, `s2_a_browser…`, `q3_wrong_tokens…` |
//! | `Origin`, `Host` | `s2_a_browser…`, `s2_a_name…` |
//! | a wide bind is refused; a token file that others may read is refused | `s3_a_wide_bind…`, `s1_a_token_that_others…` (they wait for ever) |
//! | a bound on strangers; a delay for wrong tokens | `q3_a_silent_crowd…`; `q3_wrong_tokens…` |
//! | addresses of HTTP requests | `s5_inner_addresses…`, `s5_what_was_named…` |
//! | servers cannot be looked into | `k1_another_process…` |
//! | secrets leave the environment; keys are withheld; header variables are guarded | `k1_a_command…`, `k1_the_local_executor…`; `k1_a_command…`; `k1_no_header…` |
//! | modes of the home; redaction | `k2_everything…`; `k4_…` |
//! | the operator's ceiling | `no_request_exceeds_the_ceiling` |
//! | the read-only view of the file system | `no_link_and_no_path_leads_out` (user); with Landlock taken out as well, `a_workspace_can_be_written…` too |
//! | Landlock | `landlock_holds_beneath_everything_else`; others hold the paths that it holds |
//! | seccomp | `files_that_lend_rights…`, `no_process_inside_is_root…`, `nothing_is_typed…`, `the_kernel_and_other_processes…` |
//! | users and capabilities are dropped | `no_process_inside_is_root…`, `files_that_lend_rights…`, `the_kernel_and_other_processes…`, `what_is_denied…` and more |
//! | the network's and the process table's own namespace | `the_kernel_and_other_processes…` |
//! | `/tmp` and `/run` of its own | `temporary_files_are_the_sessions_own`, `the_operator_can_name_a_user` |
//! | protected paths; our own home | `what_runs_later_outside…`, `x2_what_runs_later…`; `x1_the_executors_own_things…` |
//! | links are pinned and remembered; mounts are compared and put back; what comes to match is hidden | `moves` (run against the program before: 8 of 9 failed), `layouts` (2 of 3), `leftovers` (1 of 2) |
//! | other names by mounts; what is made is told; directories are compared without mounts; few system calls | `what_is_mounted_a_second_time…` (user), `what_is_made_where…`, `without_namespaces_a_workspace…`, `calls` (run against the program before) |
//! | file calls are made inside the cell | `x2_no_race_gets_out` (in round 41, and 116), `x1_the_executors_own_things…` |
//! | the layer in the place of a gitdir (`git = "full"`) | `planted_in_the_repository_itself_it_runs` shows what then happens |
//! | refusals name their rule | `x4_…`, `x2_files_are_written…`, `x2_what_runs_later…` |
//! | children of the dead are killed | `terminate_leaves_nothing` |
//! | rlimits; control groups; the watchdog | `a_file_does_not_grow…`, `whoever_forks…`; `a_memory_hog…`, `whoever_forks…`; `a_disk_filler…` |
//! | files are replaced; a redo copy is kept | `l8_a_kill_tears_nothing`; `l8_a_file_with_two_names…` |
//!
//! All of `denials`, and `a_ceiling_may_deny_what_we_protect`, `the_sessions_own_temporary_files_count`, `a_writable_root_counts…` and
//! `a_file_call_at_the_limit…`, were run against the program as it was before what they are about, and failed; only root's halves of
//! `a_locked_directory…` and `whoever_may_write_everywhere…` held before.
//!
//! `no_new_privs` taken out alone breaks nothing: Landlock and seccomp ask for it and set it themselves. Not tried: redirects and proxies of HTTP, the
//! time in which a client must introduce itself, the fork bomb, unread output, a full disk, stopped helpers (`stops`), the ceiling for requests that name
//! no sandbox, the shared loopback (`loopback`), what debuggers reach (`debugging`), watched memory, devices, the layer over the home (`home`), the process table that is read-only for root by name (`levels`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod attack;
mod calls;
mod card;
mod ceiling;
mod daemons;
mod debugging;
mod denials;
mod devices;
mod doors;
mod file_calls;
mod files;
mod git;
mod home;
mod http;
mod layouts;
mod leftovers;
mod levels;
mod limits;
mod loopback;
mod moves;
mod rights;
mod secrets;
mod server;
mod stops;
mod support;
mod writes;
