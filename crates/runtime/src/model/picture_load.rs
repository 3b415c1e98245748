//! How many pictures one request may hold. Providers refuse the whole request for one too many, so a thread that has shown a hundred
//! screenshots could not go on: the oldest are told instead of shown.

use outpost_thread::{GeneratedImage, picture_size};
use outpost_wire::base64;
use serde_json::{Value, json};

use super::HistoryItem;
use crate::pictures::{LONGEST_SIDE, each_picture, has_pictures};

/// The fewest that one of the known providers takes (Anthropic: 100), with some room.
const MOST: usize = 90;
/// Bytes of base64: the smallest body that one of them takes has 32 MB, and words need room, too.
const MOST_BYTES: usize = 20 << 20;
/// Beside more than so many no picture may have a side that is longer than [`LONGEST_SIDE`]. Those of earlier versions may.
const MANY: usize = 20;

const LEFT_OUT: &str = "[an earlier image, left out because a request holds no more images]";
const TOO_LARGE: &str = "[an image that is too large to be shown beside so many others]";

/// The pictures of a history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PictureLoad {
    number: usize,
    bytes: usize,
    /// How many have a longer side than they may have among many.
    long: usize,
}

impl PictureLoad {
    pub(super) fn add(&mut self, item: &HistoryItem) {
        *self = self.plus(Self::of(item));
    }

    fn plus(self, other: Self) -> Self {
        Self { number: self.number + other.number, bytes: self.bytes + other.bytes, long: self.long + other.long }
    }

    fn minus(self, other: Self) -> Self {
        Self { number: self.number - other.number, bytes: self.bytes - other.bytes, long: self.long - other.long }
    }

    fn of(item: &HistoryItem) -> Self {
        let mut load = Self::default();
        if let Some(image) = GeneratedImage::of(item) {
            load.note(image.data().unwrap_or_default());
        } else if has_pictures(item.get())
            && let Ok(mut item) = item.read::<Value>()
        {
            each_picture(&mut item, |part| load.note(part["image_url"].as_str().unwrap_or_default()));
        }
        load
    }

    fn note(&mut self, address: &str) {
        self.number += 1;
        self.bytes += address.len();
        self.long += usize::from(is_long(address));
    }

    fn is_too_much(self) -> bool {
        self.number > MOST || self.bytes > MOST_BYTES
    }

    pub(super) fn is_refused(self) -> bool {
        self.is_too_much() || (self.number > MANY && self.long > 0)
    }
}

/// The items with as many pictures as a request may hold. The oldest go, many at a time: a request that begins otherwise than the one
/// before finds nothing in the provider's cache.
pub(super) fn lightened(items: &[HistoryItem]) -> Vec<HistoryItem> {
    let loads: Vec<PictureLoad> = items.iter().map(PictureLoad::of).collect();
    let mut rest = loads.iter().fold(PictureLoad::default(), |sum, load| sum.plus(*load));
    let mut shown_from = 0;
    while rest.is_too_much() && shown_from < items.len() {
        let mut gone = PictureLoad::default();
        while gone.number < MOST / 2 && gone.bytes < MOST_BYTES / 2 && shown_from < items.len() {
            gone = gone.plus(loads[shown_from]);
            shown_from += 1;
        }
        rest = rest.minus(gone);
    }
    let among_many = rest.number > MANY;
    let light = |(at, item): (usize, &HistoryItem)| match (at < shown_from, loads[at]) {
        (_, load) if load.number == 0 => item.clone(),
        (true, _) => told(item, LEFT_OUT, |_| true),
        (false, load) if among_many && load.long > 0 => told(item, TOO_LARGE, is_long),
        (false, _) => item.clone(),
    };
    items.iter().enumerate().map(light).collect()
}

/// An item with words in the place of some of its pictures.
fn told(item: &HistoryItem, words: &str, goes: impl Fn(&str) -> bool) -> HistoryItem {
    if GeneratedImage::of(item).is_some() {
        return json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]}).into();
    }
    let Ok(mut read) = item.read::<Value>() else { return item.clone() };
    each_picture(&mut read, |part| {
        if goes(part["image_url"].as_str().unwrap_or_default()) {
            *part = json!({"type": "input_text", "text": words});
        }
    });
    read.into()
}

/// Of a picture that is only named by its address nothing is known.
fn is_long(address: &str) -> bool {
    let data = address.split_once(";base64,").map_or(address, |(_, data)| data);
    let bytes = base64::decode(data).unwrap_or_default();
    picture_size(&bytes).is_some_and(|(width, height)| width.max(height) > LONGEST_SIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a PNG, which is all that is looked at, with as many bytes behind it.
    fn picture(side: u32, bytes: usize) -> String {
        let head = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &side.to_be_bytes(), &side.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
        format!("data:image/png;base64,{}", base64::encode(&[head, vec![0; bytes]].concat()))
    }

    fn shown(pictures: &[String]) -> Vec<HistoryItem> {
        let item = |address: &String| {
            HistoryItem::from(json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": address}]}))
        };
        pictures.iter().map(item).collect()
    }

    fn load(items: &[HistoryItem]) -> PictureLoad {
        let mut load = PictureLoad::default();
        items.iter().for_each(|item| load.add(item));
        load
    }

    #[test]
    fn the_oldest_of_too_many_pictures_are_told() {
        let items = shown(&vec![picture(10, 10); MOST]);
        assert!(!load(&items).is_refused());
        let items = shown(&vec![picture(10, 10); MOST + 1]);
        assert!(load(&items).is_refused());
        let light = lightened(&items);
        assert_eq!(light.len(), items.len());
        assert!(light[0].get().contains(LEFT_OUT) && light[0].get().contains("look"));
        assert_eq!(load(&light).number, MOST + 1 - MOST / 2);
        // What is told stays told, and nothing more is, while the next ones come.
        let more = lightened(&shown(&vec![picture(10, 10); MOST + MOST / 2]));
        assert_eq!(more[..items.len()], light[..]);
    }

    #[test]
    fn many_bytes_are_too_much_as_well() {
        let items = shown(&vec![picture(10, 3 << 20); 7]);
        assert!(load(&items).is_refused());
        let light = load(&lightened(&items));
        assert!(!light.is_refused() && light.number >= 3, "{light:?}");
    }

    #[test]
    fn a_large_picture_is_told_among_many_only() {
        let few = shown(&vec![picture(2048, 10); MANY]);
        assert!(!load(&few).is_refused());
        let items = shown(&[vec![picture(2048, 10); 2], vec![picture(2000, 10); MANY]].concat());
        assert!(load(&items).is_refused());
        let light = lightened(&items);
        assert_eq!(load(&light).number, MANY);
        assert!(light[1].get().contains(TOO_LARGE));
    }

    #[test]
    fn what_a_model_made_counts_and_is_told() {
        let made = |n: usize| {
            HistoryItem::from(json!({"type": "image_generation_call", "id": format!("ig_{n}"), "status": "completed",
                "result": picture(10, 10).split_once(',').unwrap().1}))
        };
        let items: Vec<_> = (0..=MOST).map(made).collect();
        let light = lightened(&items);
        assert_eq!(load(&light).number, MOST + 1 - MOST / 2);
        assert!(light[0].get().contains(LEFT_OUT), "{}", light[0].get());
    }
}
