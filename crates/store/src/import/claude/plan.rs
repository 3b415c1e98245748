//! Which lines of a session belong to which conversation. Of each line only digests of its names are kept, so that a session of a
//! million lines takes a hundred megabytes and not a gigabyte.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::Line;
use crate::import::file;

/// A line's name, or a message's or a call's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LineId(u128);

impl LineId {
    fn of(name: &str) -> Self {
        Self(xxh3_128(name.as_bytes()))
    }
}

/// What is needed of a line to find the way.
struct Node {
    parent: Option<LineId>,
    /// The message that an answer is a part of.
    answer: Option<LineId>,
    /// The calls that it asks for, or ends.
    calls: Box<[LineId]>,
    is_result: bool,
}

/// Which lines belong to which conversation.
#[derive(Default)]
pub(super) struct Plan {
    main: HashSet<LineId>,
    /// Conversations of sub-agents in the same file, by their first line.
    aside: HashMap<LineId, LineId>,
    /// What lines are called that may be the first one of such a conversation.
    names: HashMap<LineId, String>,
}

impl Plan {
    /// Finds the way from the last line to the first, and what belongs to it.
    pub(super) fn of(mut lines: file::RolloutLines, is_agent: bool) -> Self {
        let mut nodes: HashMap<LineId, Node> = HashMap::new();
        let (mut order, mut asides, mut is_aside) = (Vec::new(), Vec::new(), HashSet::new());
        let mut plan = Self::default();
        while let Some(line) = lines.next_as::<Line>() {
            let Ok(line) = line else { continue };
            if line.uuid.is_empty() {
                continue;
            }
            let id = LineId::of(&line.uuid);
            let mut node = node(&line);
            if node.parent.is_none() && line.is_boundary() {
                node.parent = order.last().copied();
            }
            // A conversation aside in the file of a session; in a file of its own it is the conversation.
            if line.is_sidechain && !is_agent {
                if node.parent.is_none_or(|parent| !is_aside.contains(&parent)) {
                    plan.names.insert(id, line.uuid);
                }
                asides.push(id);
                is_aside.insert(id);
            } else {
                order.push(id);
            }
            nodes.insert(id, node);
        }
        plan.main = way(&nodes, &order);
        plan.gather(&nodes, &asides, &is_aside);
        plan
    }

    /// Gives each line aside the first line of its conversation. What is known of one line is known of all that answer it.
    fn gather(&mut self, nodes: &HashMap<LineId, Node>, asides: &[LineId], is_aside: &HashSet<LineId>) {
        for line in asides {
            let (mut climbed, mut seen, mut top) = (Vec::new(), HashSet::new(), *line);
            let root = loop {
                if let Some(root) = self.aside.get(&top) {
                    break *root;
                }
                climbed.push(top);
                seen.insert(top);
                match nodes.get(&top).and_then(|node| node.parent).filter(|parent| is_aside.contains(parent) && !seen.contains(parent)) {
                    Some(parent) => top = parent,
                    None => break top,
                }
            };
            self.aside.extend(climbed.into_iter().map(|line| (line, root)));
        }
    }

    /// The conversation of a line: that of the session (`None`), or the first line of the sub-agent's; nothing if it was taken back.
    pub(super) fn conversation(&self, line: &Line) -> Option<Option<LineId>> {
        if line.uuid.is_empty() {
            return Some(None);
        }
        let id = LineId::of(&line.uuid);
        match self.aside.get(&id) {
            Some(root) => Some(Some(*root)),
            None => self.main.contains(&id).then_some(None),
        }
    }

    pub(super) fn is_main(&self, uuid: &str) -> bool {
        self.main.contains(&LineId::of(uuid))
    }

    /// What the first line of a conversation is called.
    pub(super) fn name(&self, root: LineId) -> String {
        self.names.get(&root).cloned().unwrap_or_else(|| format!("{:032x}", root.0))
    }
}

fn node(line: &Line) -> Node {
    let parts = match &line.message.content {
        Value::Array(parts) => parts.as_slice(),
        _ => &[],
    };
    let member = |part: &Value, name: &str| part.get(name).and_then(Value::as_str).map(LineId::of);
    let results: Vec<LineId> = parts.iter().filter_map(|part| member(part, "tool_use_id")).collect();
    let is_result = !results.is_empty();
    let calls = if is_result {
        results
    } else {
        parts.iter().filter(|part| part["type"] == "tool_use").filter_map(|part| member(part, "id")).collect()
    };
    let parent = line.parent_uuid.as_deref().or(line.logical_parent_uuid.as_deref()).map(LineId::of);
    let answer = (line.kind == "assistant").then(|| LineId::of(&line.message.id));
    Node { parent, answer, calls: calls.into(), is_result }
}

fn way(nodes: &HashMap<LineId, Node>, order: &[LineId]) -> HashSet<LineId> {
    let mut way = HashSet::new();
    let mut next = order.last().copied();
    while let Some(line) = next {
        let (Some(node), true) = (nodes.get(&line), way.insert(line)) else { break };
        next = node.parent;
    }
    // Calls that were made side by side, and their results, hang beside the way.
    let nameless = LineId::of("");
    let answers: HashSet<LineId> = way.iter().filter_map(|line| nodes.get(line)?.answer).filter(|answer| *answer != nameless).collect();
    let is_part = |line: &&LineId| nodes.get(*line).and_then(|node| node.answer).is_some_and(|answer| answers.contains(&answer));
    way.extend(order.iter().filter(is_part));
    let asked = way.iter().filter_map(|line| nodes.get(line)).filter(|node| node.answer.is_some());
    let calls: HashSet<LineId> = asked.flat_map(|node| node.calls.iter().copied()).collect();
    let ends_one =
        |line: &&LineId| nodes.get(*line).is_some_and(|node| node.is_result && node.calls.iter().any(|call| calls.contains(call)));
    way.extend(order.iter().filter(ends_one));
    way
}
