//! `outpost completions`: scripts for shells. They ask `outpost __complete` for names that only this machine knows.

mod names;
mod word;

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use self::word::{options_with_names, wanted};
use crate::ProcessContext;
use crate::args::Arguments;
use crate::commands;

pub(crate) fn run(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "outpost", &mut script);
    let script = String::from_utf8_lossy(&script);
    let whole = match shell {
        Shell::Bash => format!("{script}{BASH}"),
        // A file of this name is loaded as the function of this name, so that one must be ours.
        Shell::Zsh => {
            let body = script.replace("_outpost", "_outpost_words");
            let body = body.split_once("if [ \"$funcstack[1]\"").map_or(body.as_str(), |(body, _)| body);
            format!("{body}{ZSH}")
        }
        Shell::Fish => format!("{script}{FISH}{}", fish_options(&script)),
        _ => script.into_owned(),
    };
    commands::printed(&whole)
}

/// Prints what the last word can be, one name on a line, with what it is behind a tab; nothing where only the script knows.
pub(crate) async fn complete(words: &[String], own: &ProcessContext) -> ExitCode {
    let Some((typed, before)) = words.split_last() else { return ExitCode::SUCCESS };
    let Some(kind) = wanted(Arguments::command(), before, typed) else { return ExitCode::SUCCESS };
    let mut text = String::new();
    for (name, what) in names::of(kind, typed, own).await {
        text.push_str(&name);
        if !what.is_empty() {
            text.push('\t');
            text.push_str(&what);
        }
        text.push('\n');
    }
    commands::printed(&text)
}

/// Fish looks for the value of an option only at that option: each line of the script that is about one with names gets a second one.
fn fish_options(script: &str) -> String {
    let mut command = Arguments::command();
    command.build();
    let named = options_with_names(&command);
    let line = |line: &str| {
        let (condition, rest) = line.strip_prefix("complete -c outpost -n \"")?.split_once("\" ")?;
        let (option, _) = rest.split_once(" -d ")?;
        let long = option.split_once("-l ")?.1;
        let condition = format!("{condition}; and __outpost_has_names");
        named.contains(long).then(|| format!("complete -c outpost -n \"{condition}\" {option} -x -a '$__outpost_names'\n"))
    };
    script.lines().filter_map(line).collect()
}

const BASH: &str = r#"
_outpost_names() {
    local line found=() typed="${COMP_WORDS[COMP_CWORD]}"
    if [[ $typed != -* ]]; then
        while IFS= read -r line; do
            found+=("$line")
        done < <("$1" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    fi
    if (( ${#found[@]} == 0 )); then
        _outpost "$@"
        return
    fi
    COMPREPLY=()
    if (( ${#found[@]} == 1 )); then
        COMPREPLY=("${found[0]%%$'\t'*}")
    else
        for line in "${found[@]}"; do
            # What a name means is listed beside it; only what all have in common is inserted then.
            case $line in
                *$'\t'*) COMPREPLY+=("${line%%$'\t'*}  (${line#*$'\t'})") ;;
                *) COMPREPLY+=("$line") ;;
            esac
        done
        # Other keys insert what is listed.
        if [[ ${COMP_TYPE:-9} != 9 && ${COMP_TYPE:-9} != 63 ]]; then
            COMPREPLY=("${COMPREPLY[@]%%  (*}")
        fi
    fi
    if [[ ${COMPREPLY[0]} == *[=:] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _outpost_names -o bashdefault -o default outpost
"#;

const ZSH: &str = r#"
_outpost() {
    local -a found entries glued
    local line
    if [[ ${words[CURRENT]} != -* ]]; then
        found=("${(@f)$(${words[1]} __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    fi
    for line in $found; do
        case $line in
            '') continue ;;
            *$'\t'*) entries+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
            *) entries+=("${line//:/\\:}") ;;
        esac
        # A path or a value follows without a blank.
        [[ $line == *[:=] ]] && glued=(-S '')
    done
    if (( $#entries == 0 )); then
        _outpost_words "$@"
        return
    fi
    _describe name entries "${glued[@]}"
}

if [ "$funcstack[1]" = "_outpost" ]; then
    _outpost "$@"
else
    compdef _outpost outpost
fi
"#;

/// Files are offered only where there are no names.
const FISH: &str = r#"
function __outpost_has_names
    set -l words (commandline -opc) (commandline -ct)
    set -g __outpost_names (outpost __complete -- $words[2..-1] 2>/dev/null)
    test (count $__outpost_names) -gt 0
end
complete -c outpost -n __outpost_has_names -f -a '$__outpost_names'
"#;
