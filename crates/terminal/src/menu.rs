//! A list of which one is chosen with the arrow keys, a number or a letter.

use crate::ink::{Ink, InkLine};
use crate::keys::TerminalKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Goes to it, where there is one.
    pub letter: Option<char>,
    pub text: String,
    /// The letter alone chooses it. Nothing that allows something: the letter may be the first of a message.
    pub is_quick: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoiceMenu {
    choices: Vec<Choice>,
    at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MenuOutcome {
    Chosen(usize),
    Moved,
    Cancelled,
    Ignored,
}

impl ChoiceMenu {
    pub fn new(choices: Vec<Choice>) -> Self {
        Self { choices, at: 0 }
    }

    pub fn key(&mut self, key: &TerminalKey) -> MenuOutcome {
        let last = self.choices.len().saturating_sub(1);
        match key {
            TerminalKey::Up | TerminalKey::BackTab => self.at = if self.at == 0 { last } else { self.at - 1 },
            TerminalKey::Down | TerminalKey::Tab => self.at = if self.at == last { 0 } else { self.at + 1 },
            TerminalKey::Home | TerminalKey::PageUp => self.at = 0,
            TerminalKey::End | TerminalKey::PageDown => self.at = last,
            TerminalKey::Enter if !self.choices.is_empty() => return MenuOutcome::Chosen(self.at),
            TerminalKey::Escape => return MenuOutcome::Cancelled,
            TerminalKey::Char(c) => {
                let lower = c.to_ascii_lowercase();
                let by_letter = self.choices.iter().position(|choice| choice.letter == Some(lower));
                let by_number = lower.to_digit(10).and_then(|number| (number as usize).checked_sub(1)).filter(|at| *at <= last);
                let Some(at) = by_letter.or(by_number.filter(|_| !self.choices.is_empty())) else { return MenuOutcome::Ignored };
                self.at = at;
                if self.choices.get(at).is_some_and(|choice| choice.is_quick) {
                    return MenuOutcome::Chosen(at);
                }
            }
            _ => return MenuOutcome::Ignored,
        }
        MenuOutcome::Moved
    }

    /// Goes to the one with this letter.
    pub fn go_to(&mut self, letter: char) {
        self.at = self.choices.iter().position(|choice| choice.letter == Some(letter)).unwrap_or(self.at);
    }

    /// At most so many rows, with the chosen one among them.
    pub fn view(&self, mark: &str, rows: usize) -> Vec<InkLine> {
        let rows = rows.max(1);
        let first = (self.at + 1).saturating_sub(rows);
        let shown = self.choices.iter().enumerate().skip(first).take(rows);
        let row = |(index, choice): (usize, &Choice)| {
            let (sign, ink) = if index == self.at { ("> ", Ink::Chosen) } else { ("  ", Ink::Plain) };
            let letter = choice.letter.map(|letter| format!("{letter}  ")).unwrap_or_default();
            InkLine::of(Ink::Note, mark).with(ink, format!("{sign}{letter}{}", choice.text))
        };
        shown.map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn menu(count: usize) -> ChoiceMenu {
        ChoiceMenu::new(
            (0..count)
                .map(|n| Choice { letter: [Some('y'), Some('n'), None][n.min(2)], text: format!("choice {n}"), is_quick: n == 1 })
                .collect(),
        )
    }

    #[test]
    fn arrows_letters_and_numbers_choose() {
        let mut menu = menu(3);
        assert_eq!((menu.key(&TerminalKey::Char('Y')), menu.at), (MenuOutcome::Moved, 0), "a letter alone allows nothing");
        assert_eq!(menu.key(&TerminalKey::Char('n')), MenuOutcome::Chosen(1));
        assert_eq!((menu.key(&TerminalKey::Char('3')), menu.key(&TerminalKey::Enter)), (MenuOutcome::Moved, MenuOutcome::Chosen(2)));
        assert_eq!(menu.key(&TerminalKey::Char('4')), MenuOutcome::Ignored);
        menu.go_to('y');
        assert_eq!((menu.key(&TerminalKey::Up), menu.key(&TerminalKey::Enter)), (MenuOutcome::Moved, MenuOutcome::Chosen(2)));
        assert_eq!((menu.key(&TerminalKey::Down), menu.key(&TerminalKey::Enter)), (MenuOutcome::Moved, MenuOutcome::Chosen(0)));
        assert_eq!(menu.key(&TerminalKey::Escape), MenuOutcome::Cancelled);
        assert_eq!(ChoiceMenu::new(vec![]).key(&TerminalKey::Enter), MenuOutcome::Ignored);
    }

    #[test]
    fn the_chosen_one_stays_in_view() {
        let mut menu = menu(50);
        for _ in 0..20 {
            menu.key(&TerminalKey::Down);
        }
        let rows = menu.view("", 5);
        assert_eq!((rows.len(), rows[4].text()), (5, "> choice 20".to_owned()));
    }
}
