//! What a conversation on a terminal is made of: keys, a line editor, Markdown, differences, folded output, menus, and the painter of
//! the region at the bottom of the screen.
//!
//! Everything here is a value: state and events go in, lines with inks come out. No file, no clock, no task and no terminal is
//! touched. Text of others goes through `outpost_wire::shown` before it becomes a line.

pub mod beginning;
pub mod diff;
pub mod editor;
pub mod folded;
mod highlight;
pub mod history;
pub mod ink;
pub mod keys;
pub mod markdown;
pub mod menu;
pub mod painter;
