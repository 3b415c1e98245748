//! Which kind of name a word of a command line is, by the arguments that the program takes.

use std::collections::BTreeSet;

use clap::{Arg, Command};

/// What is completed from files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameKind {
    Environment,
    /// The same, with a colon behind it.
    EnvironmentPath,
    Thread,
    McpServer,
    ConfigKey,
    /// The same, with `=` behind it.
    Setting,
    Topic,
}

/// What the word after these is, if it is a name.
pub(super) fn wanted(mut root: Command, before: &[String], typed: &str) -> Option<NameKind> {
    root.build();
    let mut command = &root;
    let (mut path, mut positional, mut pending): (Vec<&str>, usize, Option<&Arg>) = (Vec::new(), 0, None);
    for word in before {
        if pending.take().is_some() {
            continue;
        }
        if word == "--" {
            return None;
        }
        if let Some(long) = word.strip_prefix("--") {
            pending = value_of(command, |arg| arg.get_long() == Some(long));
        } else if let Some(shorts) = word.strip_prefix('-') {
            pending = shorts.chars().last().and_then(|last| value_of(command, |arg| arg.get_short() == Some(last)));
        } else if let Some(inner) = command.find_subcommand(word).filter(|_| positional == 0) {
            (command, positional) = (inner, 0);
            path.push(inner.get_name());
        } else if path.is_empty() && word == "help" {
            return Some(NameKind::Topic);
        } else {
            positional += 1;
        }
    }
    if let Some(option) = pending {
        return option_kind(option);
    }
    if typed.starts_with('-') {
        return None;
    }
    let many = command.get_positionals().filter(|arg| arg.get_num_args().is_some_and(|range| range.max_values() > 1)).last();
    let argument = command.get_positionals().filter(|arg| !arg.is_last_set()).nth(positional).or(many.filter(|arg| !arg.is_last_set()))?;
    positional_kind(&path, argument, positional)
}

/// The long names of all options, of any verb, whose values are names.
pub(super) fn options_with_names(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter(|arg| option_kind(arg).is_some()).filter_map(Arg::get_long).map(str::to_owned);
    own.chain(command.get_subcommands().flat_map(options_with_names)).collect()
}

fn value_of(command: &Command, is_it: impl Fn(&Arg) -> bool) -> Option<&Arg> {
    command.get_arguments().find(|arg| is_it(arg)).filter(|arg| arg.get_action().takes_values())
}

fn value_name(arg: &Arg) -> &str {
    arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str())
}

fn option_kind(arg: &Arg) -> Option<NameKind> {
    match (arg.get_long(), value_name(arg)) {
        (Some("environment"), _) => Some(NameKind::Environment),
        (Some("thread" | "children-of" | "below"), _) => Some(NameKind::Thread),
        (_, "KEY=VALUE") => Some(NameKind::Setting),
        _ => None,
    }
}

fn positional_kind(path: &[&str], arg: &Arg, at: usize) -> Option<NameKind> {
    match path {
        ["run" | "shell"] if arg.get_id() == "named" => Some(NameKind::Environment),
        ["forward"] if at == 0 => Some(NameKind::Environment),
        ["cp"] => Some(NameKind::EnvironmentPath),
        ["env", verb] if !["add", "list"].contains(verb) && ["name", "names"].contains(&arg.get_id().as_str()) => {
            Some(NameKind::Environment)
        }
        ["thread", _] if ["thread", "threads"].contains(&arg.get_id().as_str()) => Some(NameKind::Thread),
        ["exec" | "chat", _] if value_name(arg) == "ID" => Some(NameKind::Thread),
        ["mcp", "remove"] => Some(NameKind::McpServer),
        ["config", "get" | "set"] if arg.get_id() == "key" => Some(NameKind::ConfigKey),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    fn kind(line: &str) -> Option<NameKind> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (typed, before) = words.split_last().unwrap();
        wanted(Arguments::command(), before, typed)
    }

    #[test]
    fn a_word_is_what_the_arguments_say() {
        for (line, expected) in [
            ("shell b", Some(NameKind::Environment)),
            ("shell --patience 5 ", Some(NameKind::Environment)),
            ("run -e ", Some(NameKind::Environment)),
            ("run box -- ", None),
            ("exec -e ", Some(NameKind::Environment)),
            ("exec --environment b", Some(NameKind::Environment)),
            ("exec wh", None),
            ("exec resume ", Some(NameKind::Thread)),
            ("chat resume 0", Some(NameKind::Thread)),
            ("forward ", Some(NameKind::Environment)),
            ("forward box 60", None),
            ("forward box 6006 --thread ", Some(NameKind::Thread)),
            ("cp box", Some(NameKind::EnvironmentPath)),
            ("env remove ", Some(NameKind::Environment)),
            ("env check a b", Some(NameKind::Environment)),
            ("env add ", None),
            ("thread show ", Some(NameKind::Thread)),
            ("thread rm -y a b", Some(NameKind::Thread)),
            ("thread rename abc new", None),
            ("thread list --below ", Some(NameKind::Thread)),
            ("mcp remove ", Some(NameKind::McpServer)),
            ("mcp rm ", Some(NameKind::McpServer)),
            ("mcp add ", None),
            ("config get bud", Some(NameKind::ConfigKey)),
            ("config set budgets.turn_tokens 5", None),
            ("-c mod", Some(NameKind::Setting)),
            ("exec -c mod", Some(NameKind::Setting)),
            ("help conf", Some(NameKind::Topic)),
            ("thread show --", None),
            ("", None),
        ] {
            assert_eq!(kind(line), expected, "{line}");
        }
    }
}
