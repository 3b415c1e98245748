//! Scripts for POSIX shells that lead one step further in.
//!
//! Each takes a script for the inside and gives one for the outside. Standard input and output are those of the inside; what
//! is said on the way goes to standard error.

use std::time::Duration;

use super::{Container, DevContainer, EngineContainer, JOB_OVER_EXIT, Pod};
use crate::foreign::slurm::UNKNOWN_JOB;

/// The exit code of a way that could not be gone to its end.
const NO_WAY: u8 = 125;

/// One word for a shell, whatever is in it.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A command that every login shell understands: between its quotes is nothing that one of them would take for itself, neither
/// quotes nor newlines nor exclamation marks.
pub(super) fn for_any_shell(script: &str) -> String {
    let mut encoded = String::with_capacity(script.len() * 2);
    for byte in script.bytes() {
        if byte.is_ascii_alphanumeric() || b" _./:=,-+@;|&<>()[]{}".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("\\0{byte:03o}"));
        }
    }
    format!("exec sh -c 'eval \"$(printf %b \"{encoded}\")\"'")
}

pub(super) fn in_container(container: &Container, script: &str) -> String {
    match container {
        Container::Engine(found) => in_engine(found, script),
        Container::Dev(dev) => in_dev_container(dev, script),
        Container::Pod(pod) => in_pod(pod, script),
    }
}

/// Starts the container if it is stopped, and makes it if there is only an image. An image that is not there is not fetched: a
/// typing error must not run what a stranger has published under that name.
fn in_engine(found: &EngineContainer, script: &str) -> String {
    let (engine, target, own) = (found.engine.name(), quoted(&found.target), quoted(&found.own_name));
    let user = found.user.as_ref().map(|user| format!(" -u {}", quoted(user))).unwrap_or_default();
    let run_args: String = found.run_args.iter().map(|argument| format!(" {}", quoted(argument))).collect();
    let wait = quoted("trap \"exit 0\" TERM INT; while :; do sleep 3600 & wait; done");
    let neither =
        quoted(&format!("outpost: {engine} knows neither a container nor an image `{}`; `{engine} pull` gets an image", found.target));
    format!(
        "state() {{ {engine} container inspect -f '{{{{.State.Status}}}}' \"$1\" 2> /dev/null; }}; \
         c={target}; s=$(state \"$c\") || {{ c={own}; s=$(state \"$c\"); }} || s=; \
         if [ -z \"$s\" ]; then \
         if {engine} image inspect {target} > /dev/null 2>&1; then \
         {engine} run -d --name \"$c\"{run_args} --entrypoint sh {target} -c {wait} > /dev/null || exit {NO_WAY}; \
         else echo {neither} >&2; exit {NO_WAY}; fi; \
         else case $s in running) ;; paused) {engine} unpause \"$c\" > /dev/null;; *) {engine} start \"$c\" > /dev/null;; esac || exit {NO_WAY}; fi; \
         exec {engine} exec -i{user} \"$c\" sh -c {}",
        quoted(script)
    )
}

/// `up` builds, starts and runs the lifecycle commands; all of it is for people to see.
fn in_dev_container(dev: &DevContainer, script: &str) -> String {
    let (engine, folder) = (dev.engine.name(), quoted(&dev.folder));
    let label = quoted(&format!("label=devcontainer.local_folder={}", dev.folder));
    let flags = format!("--docker-path {engine} --workspace-folder {folder}");
    format!(
        "c=$({engine} ps -q --filter {label}) || exit {NO_WAY}; \
         if [ -z \"$c\" ]; then devcontainer up {flags} >&2 < /dev/null || exit {NO_WAY}; fi; \
         exec devcontainer exec {flags} sh -c {}",
        quoted(script)
    )
}

fn in_pod(pod: &Pod, script: &str) -> String {
    let option = |flag: &str, name: &Option<String>| name.as_ref().map(|name| format!(" {flag} {}", quoted(name))).unwrap_or_default();
    let (namespace, container) = (option("-n", &pod.namespace), option("-c", &pod.container));
    format!("exec kubectl exec -i{namespace} {}{container} -- sh -c {}", quoted(&pod.pod), quoted(script))
}

/// A step of a job. The scheduler ends what a step leaves behind when the step ends, so what is to go on is a step of its own,
/// whose command on this side has left our session.
pub(super) fn in_job(job: &str, script: &str, companion: Option<&str>) -> String {
    let step = format!("srun -Q --overlap --jobid={job} -N1 -n1");
    let over = quoted(&format!("outpost: the Slurm job {job} is over or not known:"));
    let unknown = quoted(&format!("outpost: Slurm cannot be asked about the job {job}:"));
    let waits = quoted(&format!("outpost: the Slurm job {job} does not run yet:"));
    let beside = companion
        .map_or_else(String::new, |companion| format!("setsid {step} sh -c {} < /dev/null > /dev/null 2>&1 & ", quoted(companion)));
    format!(
        "cd \"$HOME\" 2> /dev/null; s=$(squeue -h -j {job} -o %T 2>&1) || case $s in *\"{UNKNOWN_JOB}\"*) ;; *) s=\"? $s\";; esac; \
         case $s in RUNNING) ;; PENDING | CONFIGURING) echo {waits} \"$s\" >&2; exit {NO_WAY};; \
         \"? \"*) echo {unknown} \"$s\" >&2; exit {NO_WAY};; *) echo {over} \"$s\" >&2; exit {JOB_OVER_EXIT};; esac; \
         {beside}exec {step} sh -c {}",
        quoted(script)
    )
}

/// Stops a container, unless a session still has something running in it, or had within a time. A keeper that comes or goes changes
/// the directory of its socket.
pub(super) fn stop(container: &Container, unused_for: Option<Duration>) -> Option<String> {
    let minutes = unused_for.map_or(0, |time| time.as_secs() / 60);
    let recent = match minutes {
        0 => String::new(),
        _ => format!(" || [ -n \"$(find \"$HOME/.outpost/run\" -maxdepth 0 -mmin -{minutes} 2> /dev/null)\" ]"),
    };
    let kept = quoted(&format!("p=$HOME/.outpost/bin/outpost; [ -x \"$p\" ] || p=outpost; \"$p\" __kept{recent}"));
    match container {
        Container::Engine(found) => {
            let (engine, target, own) = (found.engine.name(), quoted(&found.target), quoted(&found.own_name));
            let user = found.user.as_ref().map(|user| format!(" -u {}", quoted(user))).unwrap_or_default();
            Some(format!(
                "c={target}; {engine} container inspect \"$c\" > /dev/null 2>&1 || c={own}; \
                 sleep 6; if {engine} exec{user} \"$c\" sh -c {kept}; then :; else {engine} stop -t 5 \"$c\" > /dev/null; fi"
            ))
        }
        Container::Dev(dev) => {
            let (engine, folder) = (dev.engine.name(), quoted(&dev.folder));
            let label = quoted(&format!("label=devcontainer.local_folder={}", dev.folder));
            Some(format!(
                "sleep 6; if devcontainer exec --docker-path {engine} --workspace-folder {folder} sh -c {kept} > /dev/null 2>&1; then :; \
                 else c=$({engine} ps -q --filter {label}); [ -z \"$c\" ] || {engine} stop -t 5 $c > /dev/null; fi"
            ))
        }
        Container::Pod(_) => None,
    }
}
