//! Questions of a thread, as a person answers them with a line.

use outpost_runtime::live::LiveThread;
use outpost_thread::{ApprovalAsked, ApprovalId, Decision, Raw, ThreadId};
use serde_json::{Map, Value, json};

pub struct Question {
    /// Who asks, if it is an agent that the thread made.
    pub agent: Option<LiveThread>,
    approval: ApprovalId,
    kind: Kind,
}

enum Kind {
    /// Whether something may be done.
    Consent { what: Vec<String>, yes: &'static str },
    /// Several questions, answered one by one.
    Input { questions: Vec<Value>, answers: Map<String, Value> },
    /// What a server of tools wants to know, member by member.
    Form { message: String, members: Vec<(String, Value)>, content: Map<String, Value> },
    /// Only a program could answer it.
    Foreign { what: String },
}

pub struct Answer {
    pub approval: ApprovalId,
    pub decision: Decision,
    pub detail: Option<Raw>,
}

impl Question {
    pub fn new(asked: &ApprovalAsked) -> Self {
        let detail: Value = asked.detail.as_ref().and_then(|detail| detail.read().ok()).unwrap_or_default();
        let kind = match asked.kind.as_str() {
            "userInput" => Kind::Input { questions: detail["questions"].as_array().cloned().unwrap_or_default(), answers: Map::new() },
            "mcpElicitation" => Kind::form(&detail),
            "dynamicTool" => Kind::Foreign { what: format!("the tool {} of another program", detail["tool"]) },
            "permissions" => Kind::Consent { what: consent(asked, &detail), yes: "y yes, until this turn ends" },
            _ => Kind::Consent { what: consent(asked, &detail), yes: "y yes" },
        };
        Self { agent: None, approval: asked.approval.clone(), kind }
    }

    /// The same, asked by an agent.
    pub fn of(self, agent: LiveThread) -> Self {
        Self { agent: Some(agent), ..self }
    }

    pub fn is(&self, approval: &ApprovalId) -> bool {
        self.approval == *approval
    }

    pub fn is_of(&self, agent: ThreadId) -> bool {
        self.agent.as_ref().is_some_and(|own| own.id() == agent)
    }

    /// What to show.
    pub fn lines(&self) -> Vec<String> {
        let asker = self.agent.as_ref().map(|agent| format!("agent {} asks:", agent.id()));
        asker.into_iter().chain(self.words()).collect()
    }

    fn words(&self) -> Vec<String> {
        match &self.kind {
            Kind::Consent { what, yes } => {
                let mut lines = what.clone();
                lines.push(format!("May it? {yes}, a yes for this thread, n no, s no and stop the turn"));
                lines
            }
            Kind::Input { questions, answers } => {
                let Some(question) = questions.get(answers.len()) else { return vec![] };
                let mut lines = vec![text(&question["question"])];
                for (number, option) in (1..).zip(options(question)) {
                    lines.push(format!("  {number}  {}  {}", text(&option["label"]), text(&option["description"])));
                }
                lines
            }
            Kind::Form { message, members, content } => {
                let mut lines = if content.is_empty() { vec![message.clone()] } else { vec![] };
                lines.push(match members.get(content.len()) {
                    Some((name, schema)) => {
                        let title = schema["description"].as_str().or(schema["title"].as_str()).unwrap_or(name);
                        format!("{title}: (Enter alone says no)")
                    }
                    None => "y yes, Enter no".into(),
                });
                lines
            }
            Kind::Foreign { what } => vec![format!("The agent calls {what}; that cannot be answered here. Enter says no.")],
        }
    }

    /// What a line means; nothing if it is to be asked again, or if there is more to ask.
    pub fn take(&mut self, line: &str) -> Option<Answer> {
        match &mut self.kind {
            Kind::Consent { .. } => {
                let decision = match line.to_ascii_lowercase().as_str() {
                    "y" | "yes" => Decision::Approved,
                    "a" | "always" => Decision::ApprovedForThread,
                    "n" | "no" => Decision::Denied,
                    "s" | "stop" => Decision::Aborted,
                    _ => return None,
                };
                Some(Answer { approval: self.approval.clone(), decision, detail: None })
            }
            Kind::Input { questions, answers } => {
                let question = questions.get(answers.len())?;
                let chosen = line.parse::<usize>().ok().and_then(|number| options(question).get(number.checked_sub(1)?).cloned());
                let answer = chosen.map_or_else(|| line.to_owned(), |option| text(&option["label"]));
                let id = question["id"].as_str().map_or_else(|| answers.len().to_string(), str::to_owned);
                answers.insert(id, answer.into());
                if answers.len() < questions.len() {
                    return None;
                }
                let detail = Some(Raw::from(json!({"answers": answers})));
                Some(Answer { approval: self.approval.clone(), decision: Decision::Approved, detail })
            }
            Kind::Form { members, content, .. } => {
                if line.is_empty() {
                    return Some(self.refusal());
                }
                if let Some((name, schema)) = members.get(content.len()) {
                    content.insert(name.clone(), typed(schema, line)?);
                    if content.len() < members.len() {
                        return None;
                    }
                }
                let detail = Some(Raw::from(json!({"content": content})));
                Some(Answer { approval: self.approval.clone(), decision: Decision::Approved, detail })
            }
            Kind::Foreign { .. } => Some(self.refusal()),
        }
    }

    pub fn refusal(&self) -> Answer {
        Answer { approval: self.approval.clone(), decision: Decision::Denied, detail: None }
    }
}

impl Kind {
    /// A question of an MCP server.
    fn form(detail: &Value) -> Self {
        let request = &detail["request"];
        let mut message = format!("MCP server {} asks: {}", text(&detail["server"]), text(&request["message"]));
        if let Some(url) = request["url"].as_str() {
            message.push_str(&format!("\n  {url}"));
        }
        let members = request["requestedSchema"]["properties"].as_object();
        let members = members.map(|members| members.iter().map(|(name, schema)| (name.clone(), schema.clone())).collect());
        Self::Form { message, members: members.unwrap_or_default(), content: Map::new() }
    }
}

/// A line as the kind of value that is wanted; nothing if it is none.
fn typed(schema: &Value, line: &str) -> Option<Value> {
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

/// What is to be allowed, where, and why that is a question.
fn consent(asked: &ApprovalAsked, detail: &Value) -> Vec<String> {
    let place = asked.environment.as_ref().map(|id| format!("[{id}] ")).unwrap_or_default();
    let mut lines = Vec::new();
    match asked.kind.as_str() {
        "command" => lines.push(format!("{place}$ {}    in {}", text(&detail["command"]), text(&detail["cwd"]))),
        "fileChange" => {
            for change in detail["changes"].as_array().into_iter().flatten() {
                lines.push(format!("{place}{} {}", text(&change["kind"]["type"]), text(&change["path"])));
                lines.extend(text(&change["diff"]).lines().map(|line| format!("  {line}")));
            }
        }
        "permissions" => lines.push(format!("{place}The agent asks for more than the sandbox allows:")),
        "mcpTool" => lines.push(format!("{place}{} {} {}", text(&detail["server"]), text(&detail["tool"]), detail["arguments"])),
        kind => {
            let message = [&detail["message"], &detail["reason"]].into_iter().find_map(Value::as_str);
            lines.push(format!("{place}{kind}: {}", message.map_or_else(|| detail.to_string(), str::to_owned)));
        }
    }
    lines.extend(detail["words"].as_array().into_iter().flatten().map(|word| format!("  + {}", text(word))));
    let reasons = [detail["why"].as_str(), detail["reason"].as_str()];
    lines.extend(reasons.into_iter().flatten().map(|reason| format!("  {reason}")));
    lines
}

fn options(question: &Value) -> Vec<Value> {
    question["options"].as_array().cloned().unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
