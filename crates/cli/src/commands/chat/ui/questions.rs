//! Questions of the thread and of its agents: when one is shown, and what becomes of an answer.

use std::time::Instant;

use outpost_terminal::ink::Ink;
use outpost_terminal::menu::{Choice, ChoiceMenu};

use super::{ChatUi, Focus};
use crate::commands::chat::agents::AgentEvent;
use crate::commands::chat::question::{ApprovalAnswer, ChatQuestion, LineMeaning};
use crate::commands::chat::view::framed;

impl ChatUi<'_> {
    /// Shows the first question as soon as the keys are free for it.
    pub(super) fn ask(&mut self) {
        let is_free = self.editor.is_empty() && !self.editor.is_searching();
        if !self.questions.is_empty() && matches!(self.focus, Focus::Editor) && is_free {
            self.focus_question(Instant::now());
        }
    }

    pub(super) fn focus_question(&mut self, now: Instant) {
        let Some(question) = self.questions.first() else { return };
        let choices = question.choices();
        let (asked, facts) = question.parts();
        let columns = self.terminal.painter.columns();
        let height = framed(&asked, columns).len() + framed(&facts, columns).len();
        if height + 12 > self.terminal.painter.rows() {
            self.view.rows_of(&asked);
        }
        self.questions.shown(now);
        self.focus = match choices {
            Some(choices) => Focus::Menu(menu(choices)),
            None => Focus::Answer,
        };
    }

    /// The keys are for messages again.
    pub(super) fn focus_editor(&mut self) {
        self.focus = Focus::Editor;
        let draft = std::mem::take(&mut self.draft);
        if !draft.is_empty() {
            self.editor.set(&draft);
        }
    }

    pub(super) fn choose(&mut self, index: usize) {
        let Some(question) = self.questions.first_mut() else { return };
        let Some((letter, text)) = question.choices().and_then(|choices| choices.get(index).cloned()) else { return };
        let (meaning, (asked, _)) = (question.take(&letter.to_string()), question.parts());
        match meaning {
            LineMeaning::Answer(answer) => {
                // What was asked and answered stays on the screen.
                self.view.rows_of(&asked);
                self.view.say(Ink::Note, &text);
                self.answer(answer);
            }
            LineMeaning::Again(note) => {
                note.iter().for_each(|note| self.view.say(Ink::Bad, note));
                self.view.rows_of(&asked);
                // It is the same question: what was typed since it was first shown counts.
                self.focus_again();
            }
        }
    }

    fn focus_again(&mut self) {
        let choices = self.questions.first().and_then(ChatQuestion::choices).unwrap_or_default();
        self.focus = Focus::Menu(menu(choices));
    }

    pub(super) fn answer_with(&mut self, text: &str, at: Instant) {
        let Some(question) = self.questions.answered_by(at) else { return };
        let rows = question.parts().0;
        match question.take(text.trim()) {
            LineMeaning::Answer(answer) => {
                self.view.rows_of(&rows);
                self.view.sent(text);
                self.answer(answer);
            }
            LineMeaning::Again(note) => note.iter().for_each(|note| self.view.say(Ink::Bad, note)),
        }
    }

    fn answer(&mut self, answer: ApprovalAnswer) {
        let asker = self.questions.take().and_then(|question| question.agent).unwrap_or_else(|| self.thread.clone());
        self.focus_editor();
        self.errands.answer(asker, answer);
    }

    pub(super) fn agent(&mut self, news: AgentEvent) {
        match news {
            AgentEvent::Asked(agent, asked) => {
                if self.questions.iter().all(|known| !known.is(&asked.approval)) {
                    self.notifier.question(&asked);
                    self.questions.push(ChatQuestion::new(&asked).of(agent));
                }
            }
            AgentEvent::Answered(approval) => self.drop_questions(|question| question.is(&approval)),
            AgentEvent::Over(agent) => self.drop_questions(|question| question.is_of(agent)),
        }
    }

    /// These were withdrawn, or answered elsewhere.
    pub(super) fn drop_questions(&mut self, is_over: impl FnMut(&ChatQuestion) -> bool) {
        if self.questions.withdraw(Instant::now(), is_over) {
            self.focus_editor();
        }
    }
}

/// The answers to a question. A letter alone refuses or shows, and only Enter allows.
fn menu(choices: Vec<(char, String)>) -> ChoiceMenu {
    let choice = |(letter, text)| Choice { letter: Some(letter), text, is_quick: matches!(letter, 'n' | 's' | 'v') };
    ChoiceMenu::new(choices.into_iter().map(choice).collect())
}
