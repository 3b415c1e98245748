//! Rules about commands: which may run unasked, which are asked about, which never run.
//!
//! A rule names the first words of a command. Of all rules that match, the strictest decides. A rule for one environment
//! may only restrict, because an environment must not be able to widen what its user allowed.

mod words;

use serde::Deserialize;
use thiserror::Error;

pub use words::{Script, split};

/// What a rule says. The order is that of strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleDecision {
    Allow,
    Ask,
    Forbid,
}

/// One `[[rules]]` of `rules.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandRule {
    /// The first words of a command; a list stands for any one of its words.
    pub prefix: Vec<Word>,
    pub decision: RuleDecision,
    /// For people, shown when the rule decides.
    #[serde(default)]
    pub reason: Option<String>,
    /// Only in this environment.
    #[serde(default)]
    pub environment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Word {
    One(String),
    AnyOf(Vec<String>),
}

impl Word {
    fn matches(&self, word: &str) -> bool {
        match self {
            Self::One(own) => own == word,
            Self::AnyOf(words) => words.iter().any(|own| own == word),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RuleError {
    #[error("rule {number}: a prefix needs at least one word")]
    EmptyPrefix { number: usize },
    #[error("rule {number}: a rule for one environment may ask or forbid, it cannot allow")]
    Widens { number: usize },
}

/// All rules of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandRules(Vec<CommandRule>);

/// What the rules say about a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulesVerdict<'r> {
    /// Every command of the script is allowed by a rule.
    Allowed,
    Asked(&'r CommandRule),
    Forbidden(&'r CommandRule),
    /// No rule says anything about at least one of its commands.
    Silent,
}

impl CommandRules {
    /// Checks rules; they are counted from 1.
    pub fn new(rules: Vec<CommandRule>) -> Result<Self, RuleError> {
        for (index, rule) in rules.iter().enumerate() {
            let number = index + 1;
            let has_gap = |word: &Word| matches!(word, Word::AnyOf(words) if words.is_empty());
            if rule.prefix.is_empty() || rule.prefix.iter().any(has_gap) {
                return Err(RuleError::EmptyPrefix { number });
            }
            if rule.environment.is_some() && rule.decision == RuleDecision::Allow {
                return Err(RuleError::Widens { number });
            }
        }
        Ok(Self(rules))
    }

    /// Adds a rule that a user made by an answer.
    pub fn push(&mut self, rule: CommandRule) -> Result<(), RuleError> {
        let mut rules = self.0.clone();
        rules.push(rule);
        *self = Self::new(rules)?;
        Ok(())
    }

    /// What is to be done about a command line in an environment.
    pub fn judge(&self, command: &str, environment: &str) -> RulesVerdict<'_> {
        let script = split(command);
        let mut strictest: Option<&CommandRule> = None;
        let mut all_allowed = script.is_plain && !script.commands.is_empty();
        for words in &script.commands {
            let matching = self.0.iter().filter(|rule| rule.matches(words, environment)).max_by_key(|rule| rule.decision);
            all_allowed &= matching.is_some();
            strictest = strictest.into_iter().chain(matching).max_by_key(|rule| rule.decision);
        }
        match strictest {
            Some(rule) if rule.decision == RuleDecision::Forbid => RulesVerdict::Forbidden(rule),
            Some(rule) if rule.decision == RuleDecision::Ask => RulesVerdict::Asked(rule),
            _ if all_allowed => RulesVerdict::Allowed,
            _ => RulesVerdict::Silent,
        }
    }
}

impl CommandRule {
    fn matches(&self, words: &[String], environment: &str) -> bool {
        self.environment.as_deref().is_none_or(|own| own == environment)
            && words.len() >= self.prefix.len()
            && self.prefix.iter().zip(words).enumerate().all(|(n, (own, word))| own.matches(word) || (n == 0 && own.matches(name(word))))
    }

    /// The rule as it stands in `rules.toml`.
    pub fn to_toml(&self) -> String {
        let text = |text: &str| toml::Value::from(text).to_string();
        let words: Vec<String> = self
            .prefix
            .iter()
            .map(|word| match word {
                Word::One(word) => text(word),
                Word::AnyOf(words) => format!("[{}]", words.iter().map(|word| text(word)).collect::<Vec<_>>().join(", ")),
            })
            .collect();
        let decision = match self.decision {
            RuleDecision::Allow => "allow",
            RuleDecision::Ask => "ask",
            RuleDecision::Forbid => "forbid",
        };
        let mut rule = format!("[[rules]]\nprefix = [{}]\ndecision = \"{decision}\"\n", words.join(", "));
        for (name, value) in [("reason", &self.reason), ("environment", &self.environment)] {
            if let Some(value) = value {
                rule.push_str(&format!("{name} = {}\n", text(value)));
            }
        }
        rule
    }

    /// The prefix and the reason, for people.
    pub fn describe(&self) -> String {
        let words: Vec<String> = self
            .prefix
            .iter()
            .map(|word| match word {
                Word::One(word) => word.clone(),
                Word::AnyOf(words) => format!("({})", words.join("|")),
            })
            .collect();
        match &self.reason {
            Some(reason) => format!("`{}`: {reason}", words.join(" ")),
            None => format!("`{}`", words.join(" ")),
        }
    }
}

/// Programs that run whatever they are given.
const ANYTHING: &[&str] = &[
    "ash", "awk", "bash", "csh", "dash", "doas", "env", "eval", "exec", "find", "fish", "ksh", "lua", "nice", "node", "nohup", "perl",
    "php", "python", "python2", "python3", "ruby", "sh", "ssh", "sudo", "tcsh", "time", "timeout", "xargs", "zsh",
];

/// Programs with so many verbs that their bare name says nothing.
const VERBS: &[&str] = &["cargo", "docker", "gh", "git", "go", "kubectl", "make", "npm", "npx", "pip", "pnpm", "podman", "uv", "yarn"];

/// Whether a rule that allows these first words would allow nearly everything. Such rules are neither offered nor made by an answer;
/// who wants one writes it into `rules.toml`.
pub fn is_broad(prefix: &[String]) -> bool {
    let Some((program, rest)) = prefix.split_first() else { return true };
    let program = name(program);
    match rest {
        [] => ANYTHING.contains(&program) || VERBS.contains(&program) || program.is_empty(),
        // An interpreter with the name of a script is one program; with an option it is any.
        [first, ..] => ANYTHING.contains(&program) && (first.starts_with('-') || !first.contains(['.', '/'])),
    }
}

/// Whether these are the first words of a command of this script, with or without the directory of its program.
pub fn begins(script: &str, prefix: &[String]) -> bool {
    let Some((program, rest)) = prefix.split_first() else { return false };
    let fits = |words: &Vec<String>| {
        words.split_first().is_some_and(|(first, others)| (first == program || name(first) == program) && others.starts_with(rest))
    };
    split(script).commands.iter().any(fits)
}

const SHELLS: &[&str] = &["ash", "bash", "dash", "fish", "ksh", "mksh", "sh", "yash", "zsh"];
/// Where only the machine's administrator puts programs.
const PROGRAMS: &[&str] = &["/bin/", "/usr/bin/", "/usr/local/bin/"];

/// Whether a program that is to run a command line is a shell of the machine, and not something that is only called like one.
pub fn is_shell(program: &str, usual: &str) -> bool {
    let directory = program.strip_suffix(name(program)).unwrap_or_default();
    program == usual || (SHELLS.contains(&name(program)) && (directory.is_empty() || PROGRAMS.contains(&directory)))
}

/// A program's name without its directory: `/usr/bin/git` is `git`.
fn name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(prefix: &[&str], decision: RuleDecision) -> CommandRule {
        CommandRule { prefix: prefix.iter().map(|word| Word::One((*word).into())).collect(), decision, reason: None, environment: None }
    }

    fn rules() -> CommandRules {
        let mut worker = rule(&["make"], RuleDecision::Forbid);
        worker.environment = Some("worker".into());
        let either = Word::AnyOf(vec!["status".into(), "diff".into()]);
        CommandRules::new(vec![
            rule(&["ls"], RuleDecision::Allow),
            CommandRule { prefix: vec![Word::One("git".into()), either], ..rule(&[], RuleDecision::Allow) },
            rule(&["git", "push"], RuleDecision::Ask),
            rule(&["git"], RuleDecision::Ask),
            rule(&["rm"], RuleDecision::Forbid),
            rule(&["make"], RuleDecision::Allow),
            worker,
        ])
        .unwrap()
    }

    #[test]
    fn what_is_kept_is_read_again() {
        #[derive(Deserialize)]
        struct Kept {
            rules: Vec<CommandRule>,
        }
        let either = Word::AnyOf(vec!["it's".into(), "a \"b\"".into()]);
        let odd = CommandRule {
            prefix: vec![Word::One("c:\\d\u{7f}\n".into()), either],
            reason: Some("två".into()),
            ..rule(&[], RuleDecision::Ask)
        };
        let kept: Kept = toml::from_str(&odd.to_toml()).unwrap_or_else(|error| panic!("{}: {error}", odd.to_toml()));
        assert_eq!(kept.rules, [odd]);
    }

    #[test]
    fn the_strictest_rule_decides() {
        let rules = rules();
        let decision = |command: &str| match rules.judge(command, "local") {
            RulesVerdict::Allowed => "allowed",
            RulesVerdict::Asked(_) => "asked",
            RulesVerdict::Forbidden(_) => "forbidden",
            RulesVerdict::Silent => "silent",
        };
        let cases = [
            ("ls -la", "allowed"),
            ("/bin/ls", "allowed"),
            ("git status", "asked"),
            ("git push origin", "asked"),
            ("ls && make", "allowed"),
            ("ls; cargo test", "silent"),
            ("ls | rm -rf x", "forbidden"),
            ("cargo test || rm x", "forbidden"),
            ("ls $(rm x)", "forbidden"),
            ("ls $HOME", "silent"),
            ("ls > file", "silent"),
            ("", "silent"),
        ];
        for (command, expected) in cases {
            assert_eq!(decision(command), expected, "{command}");
        }
    }

    #[test]
    fn broad_rules_are_recognised() {
        let broad = |words: &str| is_broad(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for words in ["", "bash", "/bin/bash", "bash -c", "python3 -m", "sudo rm", "env X=1", "git", "xargs rm", "timeout 5"] {
            assert!(broad(words), "{words}");
        }
        for words in ["git push", "cargo test", "ls", "python3 tools/check.py", "npm run build", "make test"] {
            assert!(!broad(words), "{words}");
        }
    }

    #[test]
    fn a_script_begins_with_the_words_of_its_commands_only() {
        let begins = |script: &str, words: &str| begins(script, &words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for (script, words) in [("touch a", "touch"), ("ls; git push x", "git push"), ("/usr/bin/git push", "git push"), ("rm a", "rm a")] {
            assert!(begins(script, words), "{script}: {words}");
        }
        for (script, words) in
            [("touch a", "rm"), ("touch a", "touch b"), ("touch a", "touch a b"), ("touch a", ""), ("", "rm"), ("git", "/tmp/git")]
        {
            assert!(!begins(script, words), "{script}: {words}");
        }
    }

    #[test]
    fn only_shells_of_the_machine_are_shells() {
        for program in ["/bin/sh", "bash", "/usr/bin/zsh", "/nix/store/x/bin/bash"] {
            assert!(is_shell(program, "/nix/store/x/bin/bash"), "{program}");
        }
        for program in ["./sh", "/tmp/sh", "/work/bin/bash", "python3", "/bin/../tmp/sh", ""] {
            assert!(!is_shell(program, "/bin/bash"), "{program}");
        }
    }

    #[test]
    fn an_environment_can_only_restrict() {
        assert!(matches!(rules().judge("make", "worker"), RulesVerdict::Forbidden(_)));
        assert_eq!(rules().judge("make", "local"), RulesVerdict::Allowed);
        let mut widening = rule(&["x"], RuleDecision::Allow);
        widening.environment = Some("worker".into());
        assert_eq!(CommandRules::new(vec![widening]), Err(RuleError::Widens { number: 1 }));
        assert_eq!(CommandRules::new(vec![rule(&[], RuleDecision::Allow)]), Err(RuleError::EmptyPrefix { number: 1 }));
    }
}
