//! Turns as they are read: whatever was told of them, put together.

use std::collections::HashMap;

use outpost_wire::app::event::Notice;
use outpost_wire::app::item::{Item, TimedItem};
use outpost_wire::app::thread::ThreadItemEntry;
use outpost_wire::app::turn::{ItemsView, Turn, TurnPlan};

use super::ClientMessage;

/// Collects what is told into turns with all their items.
#[derive(Debug, Default)]
pub struct Turns {
    turns: Vec<Turn>,
    items: Vec<ThreadItemEntry>,
    /// Where an item stands in the list.
    places: HashMap<(String, String), usize>,
}

impl Turns {
    pub fn take(&mut self, told: Vec<ClientMessage>) {
        for told in told {
            match told {
                ClientMessage::Notice(notice) => self.notice(notice),
                ClientMessage::Reverted(before) => self.revert(before.as_str()),
                ClientMessage::Ask(_) | ClientMessage::Resolved(_) => {}
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::TurnStarted(started) => self.turns.push(Turn { items_view: ItemsView::Full, ..started.turn }),
            Notice::ItemStarted(started) => {
                let entry = ThreadItemEntry {
                    turn_id: started.turn_id,
                    item: started.item,
                    started_at_ms: Some(started.started_at_ms),
                    completed_at_ms: None,
                };
                let place = (entry.turn_id.clone(), entry.item.id().to_owned());
                self.places.insert(place, self.items.len());
                self.items.push(entry);
            }
            Notice::ItemCompleted(completed) => {
                let place = (completed.turn_id, completed.item.id().to_owned());
                if let Some(entry) = self.places.get(&place).and_then(|place| self.items.get_mut(*place)) {
                    entry.item = completed.item;
                    entry.completed_at_ms = Some(completed.completed_at_ms);
                }
            }
            Notice::TurnPlanUpdated(told) => {
                if let Some(turn) = self.turns.iter_mut().rev().find(|turn| turn.id == told.turn_id) {
                    turn.plan = Some(TurnPlan { explanation: told.explanation, plan: told.plan });
                }
            }
            Notice::TurnCompleted(completed) => {
                if let Some(turn) = self.turns.iter_mut().rev().find(|turn| turn.id == completed.turn.id) {
                    let (items, root_turn_id, plan) = (std::mem::take(&mut turn.items), turn.root_turn_id.take(), turn.plan.take());
                    *turn = Turn { items, items_view: ItemsView::Full, root_turn_id, plan, ..completed.turn };
                }
            }
            _ => {}
        }
    }

    /// Forgets a turn and all later ones.
    fn revert(&mut self, before: &str) {
        let Some(at) = self.turns.iter().position(|turn| turn.id == before) else { return };
        let gone: Vec<String> = self.turns.drain(at..).map(|turn| turn.id).collect();
        self.items.retain(|entry| !gone.contains(&entry.turn_id));
        self.places = self.items.iter().enumerate().map(|(at, entry)| ((entry.turn_id.clone(), entry.item.id().to_owned()), at)).collect();
    }

    /// All items, in their order.
    pub fn into_items(self) -> Vec<ThreadItemEntry> {
        self.items
    }

    /// All turns with their items, in their order.
    pub fn into_turns(self) -> Vec<Turn> {
        let Self { mut turns, items, .. } = self;
        let mut by_turn: HashMap<String, Vec<TimedItem>> = HashMap::new();
        for entry in items {
            by_turn.entry(entry.turn_id).or_default().push(entry.item);
        }
        for turn in &mut turns {
            turn.items = by_turn.remove(&turn.id).unwrap_or_default();
        }
        turns
    }
}

/// A turn with nothing but the last message of the agent.
pub fn only_last_message(mut turn: Turn) -> Turn {
    let last = turn.items.iter().rposition(|item| matches!(item.item, Item::AgentMessage { .. }));
    turn.items = last.map(|last| turn.items.swap_remove(last)).into_iter().collect();
    turn.items_view = ItemsView::Summary;
    turn
}

pub fn without_items(turn: Turn) -> Turn {
    Turn { items: vec![], items_view: ItemsView::NotLoaded, ..turn }
}
