//! What the model is told about its environments: everything at first, afterwards only what has changed.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// An environment as the model is told about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnnouncedEnvironment {
    pub id: String,
    pub cwd: String,
    /// `ready`, `starting`, `failed`, `missing`, …
    pub state: String,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// What was granted beyond that, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workspace_roots: Vec<String>,
    /// The executor that answers there, where it tells who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
}

impl AnnouncedEnvironment {
    fn is_ready(&self) -> bool {
        self.state == "ready"
    }
}

/// Everything that the model was told last. It is kept with the step, so that a resumed thread goes on where it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentContext {
    /// In the order of the selection; the first one is the primary.
    pub places: Vec<AnnouncedEnvironment>,
    pub date: String,
    pub timezone: String,
    /// The executors that answered last under the ids of environments, also of those that are out of reach or not selected now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub executors: BTreeMap<String, String>,
}

impl EnvironmentContext {
    /// As it stands now, with what is remembered of before.
    #[must_use]
    pub fn after(mut self, before: Option<&Self>) -> Self {
        self.executors = before.map(|before| before.executors.clone()).unwrap_or_default();
        for place in &self.places {
            if let Some(executor) = &place.executor {
                self.executors.insert(place.id.clone(), executor.clone());
            }
        }
        self
    }

    /// The text of the message, or nothing if the model knows it all. `before` is what it was told last.
    pub fn message(&self, before: Option<&Self>) -> Option<String> {
        if before == Some(self) {
            return None;
        }
        const BEGIN: &str = "<environment_context>\n";
        let mut text = String::from(BEGIN);
        match (&self.places[..], before) {
            ([place], None) if place.is_ready() => place.describe(&mut text, "  "),
            _ => self.list(before, &mut text),
        }
        if before.is_none_or(|before| (&before.date, &before.timezone) != (&self.date, &self.timezone)) {
            element(&mut text, "  ", "current_date", &self.date);
            element(&mut text, "  ", "timezone", &self.timezone);
        }
        if text == BEGIN {
            return None;
        }
        text.push_str("</environment_context>");
        Some(text)
    }

    fn list(&self, before: Option<&Self>, text: &mut String) {
        let known = before.map_or(&[][..], |before| &before.places);
        let primary = |places: &[AnnouncedEnvironment]| places.first().map(|place| place.id.clone());
        let moved = primary(known) != primary(&self.places);
        let gone: Vec<&AnnouncedEnvironment> = known.iter().filter(|old| self.places.iter().all(|place| place.id != old.id)).collect();
        let is_known = |place: &AnnouncedEnvironment| known.iter().any(|known| known.is_told_as(place));
        let is_replaced = |place: &AnnouncedEnvironment| {
            let last = before.and_then(|before| before.executors.get(&place.id));
            matches!((last, &place.executor), (Some(last), Some(now)) if last != now)
        };
        let is_news = |index: usize, place: &AnnouncedEnvironment| {
            !is_known(place) || is_replaced(place) || (moved && (index == 0 || primary(known).as_ref() == Some(&place.id)))
        };
        let news: Vec<(usize, &AnnouncedEnvironment)> =
            self.places.iter().enumerate().filter(|(index, place)| is_news(*index, place)).collect();
        if news.is_empty() && gone.is_empty() {
            return;
        }
        text.push_str("  <environments>\n");
        for (index, place) in news {
            let status = if place.is_ready() { String::new() } else { format!(" status=\"{}\"", escape(&place.state)) };
            let _ = writeln!(text, "    <environment id=\"{}\" primary=\"{}\"{status}>", escape(&place.id), index == 0);
            place.describe(text, "      ");
            if is_replaced(place) {
                element(text, "      ", "warning", REPLACED);
            }
            text.push_str("    </environment>\n");
        }
        for place in gone {
            let _ = writeln!(text, "    <environment id=\"{}\" status=\"unavailable\" />", escape(&place.id));
        }
        text.push_str("  </environments>\n");
    }
}

/// What the model is told when it works on another machine than it did.
const REPLACED: &str = "another executor answers under this id than before: this may be another machine, with other files and without the \
                        processes that were started; look before you rely on what you know of it";

impl AnnouncedEnvironment {
    /// Whether the model would be told the same of both.
    fn is_told_as(&self, other: &Self) -> bool {
        Self { executor: None, ..self.clone() } == Self { executor: None, ..other.clone() }
    }

    fn describe(&self, text: &mut String, indent: &str) {
        element(text, indent, "cwd", &self.cwd);
        for (name, value) in [("shell", &self.shell), ("os", &self.os), ("reason", &self.reason), ("permissions", &self.permissions)] {
            if let Some(value) = value {
                element(text, indent, name, value);
            }
        }
        for granted in &self.granted {
            element(text, indent, "granted", granted);
        }
        if self.workspace_roots.iter().any(|root| *root != self.cwd) {
            for root in &self.workspace_roots {
                element(text, indent, "workspace_root", root);
            }
        }
    }
}

fn element(text: &mut String, indent: &str, name: &str, value: &str) {
    let _ = writeln!(text, "{indent}<{name}>{}</{name}>", escape(value));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(id: &str, state: &str) -> AnnouncedEnvironment {
        AnnouncedEnvironment {
            id: id.into(),
            cwd: format!("/{id}"),
            state: state.into(),
            reason: (state == "failed").then(|| "no route".into()),
            shell: (state == "ready").then(|| "bash".into()),
            os: None,
            permissions: None,
            granted: vec![],
            workspace_roots: vec![format!("/{id}")],
            executor: None,
        }
    }

    fn around(places: Vec<AnnouncedEnvironment>) -> EnvironmentContext {
        EnvironmentContext { places, date: "2026-01-02".into(), timezone: "UTC".into(), ..EnvironmentContext::default() }
    }

    #[test]
    fn one_ready_environment_needs_no_name() {
        let text = around(vec![place("local", "ready")]).message(None).unwrap();
        assert_eq!(
            text,
            "<environment_context>\n  <cwd>/local</cwd>\n  <shell>bash</shell>\n  <current_date>2026-01-02</current_date>\n  \
             <timezone>UTC</timezone>\n</environment_context>"
        );
    }

    #[test]
    fn several_are_listed_in_the_order_of_the_selection() {
        let text = around(vec![place("worker", "failed"), place("local", "ready")]).message(None).unwrap();
        let worker = text.find("<environment id=\"worker\" primary=\"true\" status=\"failed\">").unwrap();
        let local = text.find("<environment id=\"local\" primary=\"false\">").unwrap();
        assert!(worker < local && text.contains("<reason>no route</reason>"), "{text}");
    }

    #[test]
    fn only_news_is_told() {
        let before = around(vec![place("worker", "starting"), place("local", "ready")]);
        assert_eq!(before.message(Some(&before)), None);
        let text = around(vec![place("worker", "ready"), place("local", "ready")]).message(Some(&before)).unwrap();
        assert!(text.contains("\"worker\"") && !text.contains("\"local\"") && !text.contains("current_date"), "{text}");
        let text = around(vec![place("local", "ready")]).message(Some(&before)).unwrap();
        assert!(text.contains("<environment id=\"worker\" status=\"unavailable\" />"), "{text}");
        assert!(text.contains("<environment id=\"local\" primary=\"true\">"), "{text}");
    }

    #[test]
    fn another_executor_under_an_id_is_told_once() {
        let with = |state: &str, executor: Option<&str>, before: Option<&EnvironmentContext>| {
            around(vec![AnnouncedEnvironment { executor: executor.map(str::to_owned), ..place("box", state) }]).after(before)
        };
        let first = with("ready", Some("a"), None);
        // Who it is matters only when it is another one: also after it was away.
        assert_eq!(with("ready", Some("a"), Some(&first)).message(Some(&first)), None);
        let away = with("failed", None, Some(&first));
        assert!(!away.message(Some(&first)).unwrap().contains("another executor"));
        let other = with("ready", Some("b"), Some(&away));
        assert!(other.message(Some(&away)).unwrap().contains("another executor answers under this id"));
        assert!(with("ready", Some("b"), Some(&first)).message(Some(&first)).unwrap().contains("another executor"));
        assert_eq!(with("ready", Some("b"), Some(&other)).message(Some(&other)), None);
        // Journals of before do not say who it was.
        let old = around(vec![place("box", "ready")]);
        assert_eq!(with("ready", Some("a"), Some(&old)).message(Some(&old)), None);
    }

    #[test]
    fn no_environment_leaves_the_date() {
        let text = around(vec![]).message(None).unwrap();
        assert!(!text.contains("environments>") && text.contains("current_date"), "{text}");
    }

    #[test]
    fn names_cannot_close_tags() {
        let mut evil = place("local", "ready");
        evil.cwd = "/</cwd><x>".into();
        assert!(around(vec![evil]).message(None).unwrap().contains("/&lt;/cwd&gt;&lt;x&gt;"));
    }
}
