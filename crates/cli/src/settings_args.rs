//! The command lines of `outpost mcp` and `outpost config`.

use clap::{Args, Subcommand};

pub(crate) const MCP_HELP: &str = "\
Examples:
  outpost mcp add docs -- npx -y some-docs-server        runs on this machine
  outpost mcp add db --environment box -- db-mcp --ro    runs on `box`
  outpost mcp add tickets --url https://tickets.example.org/mcp --bearer-token-env-var TICKETS_TOKEN
  outpost mcp list
  outpost mcp remove docs

They are written into config.toml and count from the next start of a program on. `outpost doctor` starts them and says what is wrong.";

#[derive(Subcommand)]
pub(crate) enum McpCommand {
    /// The servers of config.toml; nothing is started
    #[command(visible_alias = "ls")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a server
    Add(McpAddArguments),
    /// Remove a server
    #[command(visible_alias = "rm")]
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Args)]
pub(crate) struct McpAddArguments {
    /// A name of letters, digits, `-` and `_`
    pub name: String,
    /// The environment that it runs on, or is reached from; this machine without it
    #[arg(short, long, value_name = "ENV")]
    pub environment: Option<String>,
    /// A server that is reached over HTTP
    #[arg(long, value_name = "URL", conflicts_with = "command", required_unless_present = "command")]
    pub url: Option<String>,
    /// The variable of that machine that holds the token
    #[arg(long, value_name = "NAME", requires = "url")]
    pub bearer_token_env_var: Option<String>,
    /// A variable for its command; may be given several times. The value is written into config.toml
    #[arg(long = "env", value_name = "NAME=VALUE", conflicts_with = "url")]
    pub variables: Vec<String>,
    /// The command that starts it, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

pub(crate) const CONFIG_HELP: &str = "\
Examples:
  outpost config show                      everything that is set, without secrets
  outpost config get model
  outpost config set model qwen3           values are TOML, or else strings
  outpost config set budgets.turn_tokens 5000
  outpost config set model --unset
  outpost config path

`outpost help configuration` lists every key.";

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Everything that is set: the file, and -c over it. What may be a secret is left out
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// One value; exits with 1 if it is not set
    Get {
        /// A key, with dots: `budgets.turn_tokens`
        key: String,
    },
    /// Write a value into the file; everything else in it stays as it is
    Set {
        /// A key, with dots
        key: String,
        /// The value
        #[arg(required_unless_present = "unset")]
        value: Option<String>,
        /// Take it out of the file instead
        #[arg(long, conflicts_with = "value")]
        unset: bool,
    },
    /// Where the file is
    Path,
}
