//! The history of a thread as it goes over the wire: every item is written once, and all later requests share what was
//! written. So a step costs what is new in it, and not what came before.
//!
//! Items go out as they came in, but for their ids. An id is the name under which one provider may have stored an item; another
//! provider refuses it, and so does the same one if what it stored beside the item is missing. We never ask for anything to be
//! stored, so nothing needs to be found by its id. And a picture that every provider refuses, in a history that was imported or is
//! older than the check, is told instead of shown: it would make the thread unusable.
//!
//! A picture that a model made goes back with its id, which the API asks for there, to the provider that gave the id. To any other it
//! is shown by the user.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use outpost_thread::GeneratedImage;

use super::HistoryItem;
use super::picture_load::{PictureLoad, lightened};
use crate::pictures::{acceptable, described, has_pictures, shown_again};

/// Pieces smaller than this grow before another one begins.
const PIECE: usize = 64 << 10;

/// What a model is shown of a thread. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ModelHistory {
    items: Arc<Vec<HistoryItem>>,
    /// The items with commas between them.
    pieces: Vec<Bytes>,
    pictures: PictureLoad,
}

/// What was written of a thread so far. It holds no items, so that adding to them needs no copy.
#[derive(Debug, Default)]
pub struct WrittenSoFar {
    count: usize,
    pieces: Vec<Bytes>,
    pictures: PictureLoad,
    edition: Edition,
}

/// Which context generation of a thread, and how often items were taken out of it. In one edition items are only added.
pub(super) type Edition = (u32, u32);

impl WrittenSoFar {
    /// Writes what was added since the last time. Within one edition nothing is ever taken away or changed.
    pub fn follow(&mut self, edition: Edition, items: Arc<Vec<HistoryItem>>) -> ModelHistory {
        if edition != self.edition || items.len() < self.count {
            *self = Self { edition, ..Self::default() };
        }
        if items.len() > self.count {
            self.write(&items[self.count..]);
            self.count = items.len();
        }
        ModelHistory { items, pieces: self.pieces.clone(), pictures: self.pictures }
    }

    fn write(&mut self, news: &[HistoryItem]) {
        let mut text = match self.pieces.pop_if(|last| last.len() < PIECE) {
            Some(last) => last.to_vec(),
            None => Vec::new(),
        };
        for item in news.iter().filter(|item| !is_of_another_wire(item.get()) && !is_missing_image(item)) {
            if !text.is_empty() || !self.pieces.is_empty() {
                text.push(b',');
            }
            self.pictures.add(item);
            match GeneratedImage::of(item).map_or_else(|| acceptable(item.get()), |image| sent_back(&image)) {
                Some(item) => text.extend_from_slice(without_id(&item.to_string()).as_bytes()),
                None => text.extend_from_slice(without_id(item.get()).as_bytes()),
            }
            if text.len() >= PIECE {
                self.pieces.push(std::mem::take(&mut text).into());
            }
        }
        if !text.is_empty() {
            self.pieces.push(text.into());
        }
    }
}

impl ModelHistory {
    pub fn new(items: Vec<HistoryItem>) -> Self {
        WrittenSoFar::default().follow(Edition::default(), Arc::new(items))
    }

    pub fn items(&self) -> &[HistoryItem] {
        &self.items
    }

    /// The same with as many pictures as providers take in one request, if it has more.
    pub(super) fn with_fewer_pictures(&self) -> Option<Self> {
        self.pictures.is_refused().then(|| Self::new(lightened(&self.items)))
    }

    /// The same for a model that cannot see.
    pub(super) fn without_pictures(&self) -> Cow<'_, Self> {
        let generated = |item: &HistoryItem| GeneratedImage::of(item).and_then(|image| shown_again(&image));
        if !self.items.iter().any(|item| has_pictures(item.get()) || generated(item).is_some()) {
            return Cow::Borrowed(self);
        }
        let told = |item: &HistoryItem| match generated(item).map_or_else(|| serde_json::from_str(item.get()), Ok) {
            Ok(read) if has_pictures(item.get()) || generated(item).is_some() => HistoryItem::from(described(read)),
            _ => item.clone(),
        };
        Cow::Owned(Self::new(self.items.iter().map(told).collect()))
    }

    /// A body with all items between what stands before and after them.
    pub(super) fn body(&self, before: Vec<u8>, after: Vec<u8>) -> Pieces {
        let pieces = std::iter::once(before.into()).chain(self.pieces.iter().cloned()).chain([after.into()]);
        Pieces(pieces.collect())
    }
}

/// The body of a request, piece by piece. Its length is known, so that it need not be counted.
pub(super) struct Pieces(VecDeque<Bytes>);

impl Pieces {
    /// All of it, as what it says.
    pub(super) fn read(self) -> serde_json::Result<serde_json::Value> {
        serde_json::from_slice(&self.0.iter().flatten().copied().collect::<Vec<u8>>())
    }
}

/// Whether an item is a thinking block of the Anthropic wire, which no other wire can read. Such items are left out already where the
/// provider changed; here are those of a provider that was configured with another wire before.
fn is_of_another_wire(item: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Thought<'a> {
        #[serde(borrow, default)]
        format: Option<Cow<'a, str>>,
    }
    item.contains("\"reasoning\"")
        && serde_json::from_str::<Thought<'_>>(item).is_ok_and(|item| item.format.is_some_and(|format| format == super::anthropic::FORMAT))
}

/// A picture that was not made: there is nothing to send.
fn is_missing_image(item: &HistoryItem) -> bool {
    GeneratedImage::of(item).is_some_and(|image| image.data().is_none())
}

/// A picture that a model made, with the members that the API has for it.
fn sent_back(image: &GeneratedImage) -> Option<serde_json::Value> {
    let Some(id) = &image.id else {
        let shown = shown_again(image)?;
        return Some(acceptable(&shown.to_string()).unwrap_or(shown));
    };
    Some(serde_json::json!({"type": "image_generation_call", "id": id, "status": image.end(), "result": image.data()?}))
}

/// Kinds of items that need no id. Others keep theirs, because their use is unknown.
const NAMELESS: [&str; 7] =
    ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "local_shell_call"];

/// An item without its id; everything else as it was received.
fn without_id(item: &str) -> Cow<'_, str> {
    // Most items have none.
    if !item.contains("\"id\"") {
        return item.into();
    }
    let Ok(members) = serde_json::Deserializer::from_str(item).deserialize_map(Members) else { return item.into() };
    let kind = members.iter().find(|(name, _)| name == "type").and_then(|(_, kind)| serde_json::from_str::<String>(kind.get()).ok());
    let is_nameless = kind.is_none_or(|kind| NAMELESS.contains(&kind.as_str()));
    if !is_nameless || members.iter().all(|(name, _)| name != "id") {
        return item.into();
    }
    let mut text = String::with_capacity(item.len());
    for (name, value) in members.iter().filter(|(name, _)| name != "id") {
        text.push(if text.is_empty() { '{' } else { ',' });
        text.push_str(&serde_json::Value::from(name.as_ref()).to_string());
        text.push(':');
        text.push_str(value.get());
    }
    text.push_str(if text.is_empty() { "{}" } else { "}" });
    text.into()
}

/// The members of an object, in their order.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            members.push(member);
        }
        Ok(members)
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn items(count: usize, length: usize) -> Vec<HistoryItem> {
        (0..count).map(|n| HistoryItem::from(json!({"n": n, "text": "x".repeat(length)}))).collect()
    }

    fn written(history: &ModelHistory) -> Value {
        let body = history.body(b"[".to_vec(), b"]".to_vec());
        let length = body.size_hint().exact().unwrap();
        let text: Vec<u8> = body.0.iter().flatten().copied().collect();
        assert_eq!(length, text.len() as u64);
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn what_is_written_step_by_step_is_what_is_written_at_once() {
        for length in [1, 1000, PIECE] {
            let all = items(40, length);
            let mut so_far = WrittenSoFar::default();
            for count in [0, 1, 1, 7, 8, 30, 40] {
                let history = so_far.follow((3, 0), Arc::new(all[..count].to_vec()));
                assert_eq!(written(&history), written(&ModelHistory::new(all[..count].to_vec())), "{count} of {length}");
                assert_eq!(written(&history).as_array().unwrap().len(), count);
            }
        }
    }

    #[test]
    fn only_what_is_new_is_written() {
        let all = items(200, 1000);
        let mut so_far = WrittenSoFar::default();
        let first = so_far.follow((0, 0), Arc::new(all[..150].to_vec())).pieces[0].clone();
        let mut all = Arc::new(all);
        assert_eq!(first.as_ptr(), so_far.follow((0, 0), all.clone()).pieces[0].as_ptr());
        assert!(Arc::get_mut(&mut all).is_some(), "the items are not shared");
    }

    /// A provider may have been configured with another wire when the thread began.
    #[test]
    fn thoughts_of_the_anthropic_wire_are_not_written() {
        let thought = json!({"type": "reasoning", "format": "anthropic", "summary": [], "encrypted_content": "signed"});
        let own = json!({"type": "reasoning", "summary": [], "encrypted_content": "sealed"});
        let all = [thought, own.clone()].map(HistoryItem::from).to_vec();
        assert_eq!(written(&ModelHistory::new(all)), json!([own]));
    }

    #[test]
    fn another_window_begins_anew() {
        let mut so_far = WrittenSoFar::default();
        so_far.follow((0, 0), Arc::new(items(9, 10)));
        let history = so_far.follow((1, 0), Arc::new(items(12, 3)));
        assert_eq!(written(&history), written(&ModelHistory::new(items(12, 3))));
    }

    #[test]
    fn what_was_taken_out_is_not_written() {
        let mut so_far = WrittenSoFar::default();
        let mut all = items(9, 10);
        so_far.follow((0, 0), Arc::new(all.clone()));
        all.remove(2);
        all.extend(items(3, 4));
        let history = so_far.follow((0, 1), Arc::new(all.clone()));
        assert_eq!(written(&history), written(&ModelHistory::new(all)));
    }

    #[test]
    fn ids_stay_with_the_provider_that_gave_them() {
        let said = r#"{"type":"message","id":"0198","role":"user","content":[{"type":"input_text","text":"the \"id\""}]}"#;
        assert_eq!(without_id(said), said.replace(r#""id":"0198","#, ""));
        assert_eq!(without_id(r#"{"id":"x","type":"reasoning","summary":[]}"#), r#"{"type":"reasoning","summary":[]}"#);
        for as_it_is in
            [r#"{"type":"image_generation_call","id":"ig"}"#, r#"{"type":"message","content":"\"id\""}"#, "[1]", r#"{"a":{"id":1}}"#]
        {
            assert_eq!(without_id(as_it_is), as_it_is);
        }
    }
}
