//! Questions that wait for an answer, and since when the first of them is on the screen: what was typed before that is no answer to it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A question that takes the place of another one is answered no sooner than this: the answer may have been meant for the other.
pub(super) const SETTLES: Duration = Duration::from_millis(700);

pub(super) struct Waiting<Q> {
    /// The oldest first.
    questions: VecDeque<Q>,
    shown_at: Option<Instant>,
    /// When the question that was on the screen was withdrawn.
    replaced_at: Option<Instant>,
}

impl<Q> Waiting<Q> {
    pub(super) fn new(questions: VecDeque<Q>) -> Self {
        Self { questions, shown_at: None, replaced_at: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Q> {
        self.questions.iter()
    }

    pub(super) fn first(&self) -> Option<&Q> {
        self.questions.front()
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut Q> {
        self.questions.front_mut()
    }

    pub(super) fn push(&mut self, question: Q) {
        self.questions.push_back(question);
    }

    /// The first question is drawn now. Drawn again, it is still the same question: what was typed since the first time answers it.
    pub(super) fn shown(&mut self, now: Instant) {
        let replaced = self.replaced_at.take();
        self.shown_at.get_or_insert_with(|| replaced.map_or(now, |at| now.max(at + SETTLES)));
    }

    /// The question that a line answers, if it was typed in the sight of one.
    pub(super) fn answered_by(&mut self, typed: Instant) -> Option<&mut Q> {
        let was_seen = self.shown_at.is_some_and(|shown| typed >= shown);
        self.questions.front_mut().filter(|_| was_seen)
    }

    /// The first question, which was answered.
    pub(super) fn take(&mut self) -> Option<Q> {
        self.shown_at = None;
        self.questions.pop_front()
    }

    /// These are over without an answer of this user. Says whether the first question was among them.
    pub(super) fn withdraw(&mut self, now: Instant, mut is_over: impl FnMut(&Q) -> bool) -> bool {
        let is_first_over = self.questions.front().is_some_and(&mut is_over);
        if is_first_over && self.shown_at.take().is_some() {
            self.replaced_at = Some(now);
        }
        self.questions.retain(|question| !is_over(question));
        is_first_over
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn what_was_typed_before_a_question_was_shown_is_no_answer_to_it() {
        let start = Instant::now();
        let mut waiting = Waiting::new(VecDeque::from(["a"]));
        assert_eq!(waiting.answered_by(start), None);
        waiting.shown(at(start, 10));
        assert_eq!(waiting.answered_by(at(start, 9)), None);
        assert_eq!(waiting.answered_by(at(start, 10)), Some(&mut "a"));
        assert_eq!(waiting.take(), Some("a"));
        waiting.push("b");
        assert_eq!(waiting.answered_by(at(start, 11)), None, "it was typed for the one before");
    }

    /// The turn of the thread ends while the user types the answer to one of its agents.
    #[test]
    fn a_question_that_stays_keeps_what_was_typed_in_its_sight() {
        let start = Instant::now();
        let mut waiting = Waiting::new(VecDeque::from(["agent", "own"]));
        waiting.shown(start);
        assert!(!waiting.withdraw(at(start, 20), |question| *question == "own"));
        waiting.shown(at(start, 21));
        assert_eq!(waiting.answered_by(at(start, 10)), Some(&mut "agent"));
        assert_eq!(waiting.iter().count(), 1);
    }

    #[test]
    fn an_answer_to_a_withdrawn_question_is_none_to_the_next() {
        let start = Instant::now();
        let mut waiting = Waiting::new(VecDeque::from(["a", "b"]));
        waiting.shown(start);
        assert!(waiting.withdraw(at(start, 100), |question| *question == "a"));
        waiting.shown(at(start, 110));
        assert_eq!(waiting.answered_by(at(start, 500)), None);
        assert_eq!(waiting.answered_by(at(start, 800)), Some(&mut "b"));
    }

    /// What is typed long after a withdrawal and before the next question is no answer either.
    #[test]
    fn a_late_question_counts_from_when_it_is_shown() {
        let start = Instant::now();
        let mut waiting = Waiting::new(VecDeque::from(["a"]));
        waiting.shown(start);
        assert!(waiting.withdraw(at(start, 100), |_| true) && waiting.is_empty() && waiting.first().is_none());
        waiting.push("b");
        waiting.shown(at(start, 60_000));
        assert_eq!(waiting.answered_by(at(start, 59_000)), None);
        assert_eq!(waiting.answered_by(at(start, 60_000)), Some(&mut "b"));
    }
}
