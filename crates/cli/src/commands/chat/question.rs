//! Questions of a thread, as a person answers them with a line.
//!
//! What is asked about stands in rows of its own, exactly and wholly; where it runs, in which sandbox and why it is asked stands
//! in the program's own rows, below it and next to the prompt, where nothing that the model wrote can push it away.

use outpost_runtime::live::LiveThread;
use outpost_thread::{ApprovalAsked, ApprovalDetail, ApprovalId, ApprovalKind, ChangeKind, Decision, PlannedChange, Raw, ThreadId};
use outpost_wire::shown::Form;
use serde_json::{Map, Value, json};

use crate::frame::{FrameRow, cut, line, lines, word};

/// More than this of what is asked about is folded: it must be looked at before it is allowed.
const ROWS: usize = 16;
const CHARACTERS: usize = 1600;
/// What is shown of something that is folded.
const FOLDED_ROWS: usize = 6;
const FOLDED_CHARACTERS: usize = 300;
/// What is shown of a text that is no part of what will be done.
const REMARK: usize = 400;

pub(super) struct ChatQuestion {
    /// Who asks, if it is an agent that the thread made.
    pub agent: Option<LiveThread>,
    approval: ApprovalId,
    kind: Kind,
}

enum Kind {
    /// Whether something may be done.
    Consent(Consent),
    /// Several questions, answered one by one.
    Input { questions: Vec<Value>, answers: Map<String, Value> },
    /// What a server of tools wants to know, member by member.
    Form { server: String, request: Value, members: Vec<(String, Value)>, content: Map<String, Value> },
    /// Only a program could answer it.
    Foreign { tool: String },
}

struct Consent {
    title: &'static str,
    /// What is to be done, shown, line by line.
    what: Vec<String>,
    /// Where, in which sandbox, and why it is asked.
    facts: Vec<(&'static str, String)>,
    /// Whether a yes holds until the turn ends, and not only once.
    holds_for_turn: bool,
    /// The beginning of commands that a rule would allow from now on, if the agent suggests one.
    rule: Option<Vec<String>>,
    is_unfolded: bool,
}

pub(super) struct ApprovalAnswer {
    pub approval: ApprovalId,
    pub decision: Decision,
    pub detail: Option<Raw>,
}

/// What a line comes to.
pub(super) enum LineMeaning {
    Answer(ApprovalAnswer),
    /// It is asked again, or there is more to ask; with a word about it.
    Again(Option<String>),
}

impl ChatQuestion {
    pub(super) fn new(asked: &ApprovalAsked) -> Self {
        let question = asked.question();
        let kind = match &asked.kind {
            ApprovalKind::UserInput => Kind::Input { questions: question.questions, answers: Map::new() },
            ApprovalKind::McpElicitation => Kind::form(question),
            ApprovalKind::DynamicTool => Kind::Foreign { tool: question.tool.unwrap_or_default() },
            ApprovalKind::Command
            | ApprovalKind::FileChange
            | ApprovalKind::Permissions
            | ApprovalKind::McpTool
            | ApprovalKind::Unknown(_) => Kind::Consent(Consent::new(asked, &question)),
        };
        Self { agent: None, approval: asked.approval.clone(), kind }
    }

    /// The same, asked by an agent.
    pub(super) fn of(self, agent: LiveThread) -> Self {
        Self { agent: Some(agent), ..self }
    }

    pub(super) fn is(&self, approval: &ApprovalId) -> bool {
        self.approval == *approval
    }

    pub(super) fn is_of(&self, agent: ThreadId) -> bool {
        self.agent.as_ref().is_some_and(|own| own.id() == agent)
    }

    /// What to show.
    pub(super) fn rows(&self) -> Vec<FrameRow> {
        let asker = self.agent.as_ref().map(|agent| FrameRow::Own(format!("Agent {} asks:", agent.id())));
        asker.into_iter().chain(self.asked()).collect()
    }

    /// What a menu offers; nothing for what is answered with a text.
    pub(super) fn choices(&self) -> Option<Vec<(char, String)>> {
        if let Kind::Consent(consent) = &self.kind { Some(consent.choices()) } else { None }
    }

    /// What is asked about, and below it what the program knows of that.
    pub(super) fn parts(&self) -> (Vec<FrameRow>, Vec<FrameRow>) {
        let asker = self.agent.as_ref().map(|agent| FrameRow::Own(format!("Agent {} asks:", agent.id())));
        let (asked, facts) = if let Kind::Consent(consent) = &self.kind { consent.parts() } else { (self.asked(), vec![]) };
        (asker.into_iter().chain(asked).collect(), facts)
    }

    fn asked(&self) -> Vec<FrameRow> {
        let own = |text: &str| FrameRow::Own(text.to_owned());
        let theirs = |text: &str| lines(text, Form::Text).into_iter().map(FrameRow::Theirs).collect::<Vec<_>>();
        match &self.kind {
            Kind::Consent(consent) => consent.rows(),
            Kind::Input { questions, answers } => {
                let Some(question) = questions.get(answers.len()) else { return vec![] };
                let mut rows = vec![own("The agent asks:")];
                rows.extend(theirs(&text(&question["question"])));
                for (number, option) in (1..).zip(options(question)) {
                    let (label, description) = (line(&text(&option["label"])), line(&text(&option["description"])));
                    rows.push(FrameRow::Theirs(format!("  {number}  {label}  {description}")));
                }
                rows
            }
            Kind::Form { server, request, members, content } => {
                let mut rows = Vec::new();
                if content.is_empty() {
                    rows.push(FrameRow::Own(format!("MCP server {} asks:", word(server))));
                    rows.extend(theirs(&text(&request["message"])));
                    rows.extend(request["url"].as_str().map(|url| FrameRow::Theirs(format!("  {}", word(url)))));
                }
                match members.get(content.len()) {
                    Some((name, schema)) => {
                        let title = schema["description"].as_str().or(schema["title"].as_str()).unwrap_or(name);
                        rows.push(FrameRow::Theirs(format!("{}:", cut(&line(title), REMARK))));
                        rows.push(own("Enter alone says no"));
                    }
                    None => rows.push(own("[y]es, Enter says no")),
                }
                rows
            }
            Kind::Foreign { tool } => vec![FrameRow::Own(format!(
                "The agent calls the tool {} of another program; that cannot be answered here. Enter says no.",
                cut(&word(tool), REMARK)
            ))],
        }
    }

    pub(super) fn take(&mut self, typed: &str) -> LineMeaning {
        let answer =
            |approval: &ApprovalId, decision, detail| LineMeaning::Answer(ApprovalAnswer { approval: approval.clone(), decision, detail });
        match &mut self.kind {
            Kind::Consent(consent) => match consent.take(typed) {
                Ok((decision, detail)) => answer(&self.approval, decision, detail),
                Err(note) => LineMeaning::Again(note),
            },
            Kind::Input { questions, answers } => {
                let Some(question) = questions.get(answers.len()) else { return LineMeaning::Again(None) };
                let chosen = typed.parse::<usize>().ok().and_then(|number| options(question).get(number.checked_sub(1)?).cloned());
                let given = chosen.map_or_else(|| typed.to_owned(), |option| text(&option["label"]));
                let id = question["id"].as_str().map_or_else(|| answers.len().to_string(), str::to_owned);
                answers.insert(id, given.into());
                if answers.len() < questions.len() {
                    return LineMeaning::Again(None);
                }
                answer(&self.approval, Decision::Approved, Some(Raw::from(json!({"answers": answers}))))
            }
            Kind::Form { members, content, .. } => {
                if typed.is_empty() {
                    return LineMeaning::Answer(self.refusal());
                }
                if let Some((name, schema)) = members.get(content.len()) {
                    let Some(value) = value_of(schema, typed) else { return LineMeaning::Again(None) };
                    content.insert(name.clone(), value);
                    if content.len() < members.len() {
                        return LineMeaning::Again(None);
                    }
                }
                answer(&self.approval, Decision::Approved, Some(Raw::from(json!({"content": content}))))
            }
            Kind::Foreign { .. } => LineMeaning::Answer(self.refusal()),
        }
    }

    pub(super) fn refusal(&self) -> ApprovalAnswer {
        ApprovalAnswer { approval: self.approval.clone(), decision: Decision::Denied, detail: None }
    }
}

impl Kind {
    /// A question of an MCP server.
    fn form(question: ApprovalDetail) -> Self {
        let request = question.request;
        let members = request["requestedSchema"]["properties"].as_object();
        let members = members.map(|members| members.iter().map(|(name, schema)| (name.clone(), schema.clone())).collect());
        Self::Form { server: question.server.unwrap_or_default(), request, members: members.unwrap_or_default(), content: Map::new() }
    }
}

impl Consent {
    fn new(asked: &ApprovalAsked, question: &ApprovalDetail) -> Self {
        let script = |text: &Option<String>| numbered(lines(text.as_deref().unwrap_or_default(), Form::Script));
        let (title, what) = match &asked.kind {
            ApprovalKind::Command if question.typed_into.is_some() => ("Type this into a running command?", script(&question.command)),
            ApprovalKind::Command if question.command.is_some() => ("Run this command?", script(&question.command)),
            ApprovalKind::FileChange if !question.changes.is_empty() => {
                ("Change these files?", question.changes.iter().flat_map(change).collect())
            }
            ApprovalKind::Permissions => ("The agent asks for more than the sandbox allows:", vec![]),
            ApprovalKind::McpTool => {
                let arguments = serde_json::to_string_pretty(&question.arguments).unwrap_or_default();
                let named = |name: &Option<String>| word(name.as_deref().unwrap_or_default());
                let name = format!("{} {}", named(&question.server), named(&question.tool));
                ("Call this tool of an MCP server?", [vec![name], lines(&arguments, Form::Script)].concat())
            }
            // What this version does not understand is shown as it was recorded, so that it is not allowed unseen.
            kind => {
                let recorded = asked.detail.as_ref().map_or("", |detail| detail.raw().get());
                ("Allow this?", lines(&format!("{} {recorded}", kind.as_str()), Form::Script))
            }
        };
        let more = question.words.iter().map(|permission| format!("+ {}", word(permission)));
        let remark = |text: &Option<String>| text.as_ref().map(|text| cut(&line(text), REMARK));
        let path = |text: &Option<String>| text.as_ref().map(|text| cut(&word(text), REMARK));
        let changed = question.changed.as_ref().filter(|changed| !changed.is_empty());
        let again = changed.map(|changed| format!("changed since you answered: {}", line(&changed.join(", "))));
        let program = question.program.as_ref().map(|words| words.iter().map(|one| word(one)).collect::<Vec<_>>().join(" "));
        let facts = [
            ("asked again", again),
            ("environment", asked.environment.as_ref().map(|id| word(id.as_str()))),
            ("directory", path(&question.cwd)),
            ("typed into", path(&question.typed_into)),
            ("sandbox", remark(&question.sandbox)),
            ("run by", program.map(|program| cut(&program, REMARK))),
            ("asked because", remark(&question.why)),
            ("agent's reason", remark(&question.reason)),
        ];
        Self {
            title,
            what: what.into_iter().chain(more).collect(),
            facts: facts.into_iter().filter_map(|(name, fact)| Some((name, fact?))).collect(),
            holds_for_turn: asked.kind == ApprovalKind::Permissions,
            rule: question.prefix_rule.clone(),
            is_unfolded: false,
        }
    }

    /// The rule, as it is shown.
    fn shown_rule(&self) -> Option<String> {
        self.rule.as_ref().map(|words| cut(&words.iter().map(|one| word(one)).collect::<Vec<_>>().join(" "), REMARK))
    }

    /// What can be answered, by the letter that answers it.
    fn choices(&self) -> Vec<(char, String)> {
        let view = self.folded().map(|_| ('v', "View all of it first".to_owned()));
        let yes = if self.holds_for_turn { "Yes, until this turn ends" } else { "Yes, once" };
        let rule = self.shown_rule().map(|rule| ('r', format!("Yes, and always allow commands that begin with `{rule}`")));
        let rest = [('n', "No".to_owned()), ('s', "No, and stop the turn".to_owned())];
        let always = [('y', yes.to_owned()), ('a', "Yes, always in this thread".to_owned())];
        view.into_iter().chain(always).chain(rule).chain(rest).collect()
    }

    /// What is asked about, and what the program knows of it.
    fn parts(&self) -> (Vec<FrameRow>, Vec<FrameRow>) {
        let mut rows = self.rows();
        // The last row tells the letters, which a menu shows.
        rows.pop();
        let facts = rows.split_off(rows.len() - self.facts.len());
        (rows, facts)
    }

    /// How many lines and characters are not shown, if it is folded.
    fn folded(&self) -> Option<(usize, usize)> {
        let characters: usize = self.what.iter().map(|line| line.chars().count()).sum();
        let is_long = self.what.len() > ROWS || characters > CHARACTERS;
        let shown: usize = self.what.iter().take(FOLDED_ROWS).map(|line| line.chars().count().min(FOLDED_CHARACTERS)).sum();
        let hidden = (self.what.len().saturating_sub(FOLDED_ROWS), characters - shown);
        (is_long && !self.is_unfolded).then_some(hidden)
    }

    fn rows(&self) -> Vec<FrameRow> {
        let mut rows = vec![FrameRow::Own(self.title.to_owned())];
        match self.folded() {
            None => rows.extend(self.what.iter().cloned().map(FrameRow::Theirs)),
            Some((lines, characters)) => {
                rows.extend(self.what.iter().take(FOLDED_ROWS).map(|line| FrameRow::Theirs(cut(line, FOLDED_CHARACTERS))));
                rows.push(FrameRow::Own(format!("… {lines} more lines, {characters} more characters; v shows all of it")));
            }
        }
        rows.extend(self.facts.iter().map(|(name, fact)| FrameRow::Fact(name, fact.clone())));
        let view = if self.folded().is_some() { "[v]iew all of it first, " } else { "" };
        let rule = self.shown_rule().map(|rule| format!("[r]ule for `{rule}`, ")).unwrap_or_default();
        let yes = if self.holds_for_turn { "[y]es until this turn ends" } else { "[y]es once" };
        rows.push(FrameRow::Own(format!("Allow? {view}{yes}, [a]lways in this thread, {rule}[n]o, [s]top the turn")));
        rows
    }

    /// The decision, or what to say before it is asked again.
    fn take(&mut self, typed: &str) -> Result<(Decision, Option<Raw>), Option<String>> {
        let mut detail = None;
        let decision = match typed.to_ascii_lowercase().as_str() {
            "r" | "rule" if self.rule.is_some() => {
                detail = Some(Raw::from(json!({"prefix": self.rule})));
                Decision::Approved
            }
            "y" | "yes" => Decision::Approved,
            "a" | "always" => Decision::ApprovedForThread,
            "n" | "no" => Decision::Denied,
            "s" | "stop" => Decision::Aborted,
            "v" | "view" => {
                self.is_unfolded = true;
                return Err(None);
            }
            _ => return Err(None),
        };
        if decision.permits() && self.folded().is_some() {
            return Err(Some("not all of it was shown: type v to see the rest, then answer".into()));
        }
        Ok((decision, detail))
    }
}

/// The lines of a command. Only the first one has the sign of a prompt.
fn numbered(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().enumerate().map(|(number, line)| format!("{}{line}", if number == 0 { "$ " } else { "  " })).collect()
}

/// A change of a file: which, and the difference.
fn change(change: &PlannedChange) -> Vec<String> {
    let moved = match &change.kind {
        ChangeKind::Update { move_path: Some(path) } => format!(" to {}", word(path)),
        ChangeKind::Add | ChangeKind::Delete | ChangeKind::Update { move_path: None } => String::new(),
    };
    let heading = format!("{} {}{moved}", change.kind.as_str(), word(&change.path));
    // The last line of a difference ends there; of a file that is made or removed the content is shown, with every end of a line.
    let diff = match &change.kind {
        ChangeKind::Update { .. } => change.diff.strip_suffix('\n').unwrap_or(&change.diff),
        ChangeKind::Add | ChangeKind::Delete => &change.diff,
    };
    let difference = if diff.is_empty() { vec![] } else { lines(diff, Form::Script) };
    std::iter::once(heading).chain(difference.into_iter().map(|line| format!("  {line}"))).collect()
}

/// A line as the kind of value that is wanted; nothing if it is none.
fn value_of(schema: &Value, line: &str) -> Option<Value> {
    match schema["type"].as_str() {
        Some("integer") => line.parse::<i64>().ok().map(Value::from),
        Some("number") => line.parse::<f64>().ok().map(Value::from),
        Some("boolean") => match line.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => Some(true.into()),
            "n" | "no" | "false" => Some(false.into()),
            _ => None,
        },
        _ => Some(line.into()),
    }
}

fn options(question: &Value) -> Vec<Value> {
    question["options"].as_array().cloned().unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
