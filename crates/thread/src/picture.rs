//! Pictures: what kind they are, how large they are, and what they cost a model. Only their first bytes are looked at.

use outpost_wire::base64;
use serde_json::Value;

/// What kind of picture a file is by its first bytes; its name does not count. These are the kinds that models take.
pub fn picture_kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Width and height in pixels, from the header of a picture.
pub fn picture_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let size = match picture_kind(bytes)? {
        "image/png" if bytes.get(12..16)? == b"IHDR" => (number(bytes, 16, 4, Order::Big)?, number(bytes, 20, 4, Order::Big)?),
        "image/gif" => (number(bytes, 6, 2, Order::Little)?, number(bytes, 8, 2, Order::Little)?),
        "image/jpeg" => jpeg(bytes)?,
        "image/webp" => webp(bytes)?,
        _ => return None,
    };
    (size.0 > 0 && size.1 > 0).then_some(size)
}

#[derive(Clone, Copy)]
enum Order {
    Big,
    Little,
}

fn number(bytes: &[u8], at: usize, length: usize, order: Order) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    let add = |sum: u32, byte: &u8| sum << 8 | u32::from(*byte);
    Some(match order {
        Order::Big => bytes.iter().fold(0, add),
        Order::Little => bytes.iter().rev().fold(0, add),
    })
}

/// The size stands in the first frame header, behind segments of any length.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        // Any number of filling bytes may stand before a marker.
        while *bytes.get(at)? == 0xff && *bytes.get(at + 1)? == 0xff {
            at += 1;
        }
        if *bytes.get(at)? != 0xff {
            return None;
        }
        match *bytes.get(at + 1)? {
            // Frame headers, without tables (C4), arithmetic conditioning (CC) and the reserved C8.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Some((number(bytes, at + 7, 2, Order::Big)?, number(bytes, at + 5, 2, Order::Big)?));
            }
            0x01 | 0xd0..=0xd8 => at += 2,
            // The picture itself, or its end: nothing was said before.
            0xd9 | 0xda => return None,
            _ => at += 2 + number(bytes, at + 2, 2, Order::Big)? as usize,
        }
    }
}

fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8 " if bytes.get(23..26)? == [0x9d, 0x01, 0x2a] => {
            Some((number(bytes, 26, 2, Order::Little)? & 0x3fff, number(bytes, 28, 2, Order::Little)? & 0x3fff))
        }
        b"VP8L" if *bytes.get(20)? == 0x2f => {
            let bits = number(bytes, 21, 4, Order::Little)?;
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8X" => Some((number(bytes, 24, 3, Order::Little)? + 1, number(bytes, 27, 3, Order::Little)? + 1)),
        _ => None,
    }
}

/// What a model is charged for a picture that it sees only roughly.
const ROUGH: u64 = 85;
const TILE: u64 = 170;

/// What a picture of this size costs a model, by the rule that most providers have or stay below: it is fitted into a square of
/// 2048, then its shorter side to 768, and every started square of 512 is charged.
fn cost((width, height): (u32, u32)) -> u64 {
    let (width, height) = (u64::from(width.max(1)), u64::from(height.max(1)));
    let fit = |(width, height): (u64, u64), side: u64, most: u64| {
        if side <= most { (width, height) } else { ((width * most).div_ceil(side), (height * most).div_ceil(side)) }
    };
    let (width, height) = fit((width, height), width.max(height), 2048);
    let (width, height) = fit((width, height), width.min(height), 768);
    ROUGH + TILE * width.div_ceil(512) * height.div_ceil(512)
}

/// A picture whose size is not known: as much as a square one.
const UNKNOWN: u64 = ROUGH + 4 * TILE;

/// The pictures of a model item: how many bytes of its text they are, and what they cost instead.
pub(crate) fn pictures(item: &str) -> Option<(usize, u64)> {
    // Nearly all items have none, and need not be read.
    if !item.contains("_image\"") && !item.contains("\"image_generation_call\"") {
        return None;
    }
    let item: Value = serde_json::from_str(item).ok()?;
    let mut sum = (0, 0);
    if item["type"] == "image_generation_call" {
        add(&mut sum, item["result"].as_str()?, &Value::Null);
        return Some(sum);
    }
    for part in ["content", "output"].iter().flat_map(|name| item[*name].as_array().into_iter().flatten()) {
        if part["type"] == "input_image" {
            add(&mut sum, part["image_url"].as_str().unwrap_or_default(), &part["detail"]);
        }
    }
    Some(sum)
}

fn add(sum: &mut (usize, u64), url: &str, detail: &Value) {
    sum.0 += url.len();
    sum.1 += if detail == "low" { ROUGH } else { size_within(url).map_or(UNKNOWN, cost) };
}

/// The size of a picture in an address that holds it.
fn size_within(url: &str) -> Option<(u32, u32)> {
    // Headers are short, unless a camera puts a small picture before them.
    const FIRST: usize = 4 << 10;
    let data = url.split_once(";base64,").map_or(url, |(_, data)| data);
    let start = data.get(..FIRST).and_then(|start| base64::decode(start).ok()).and_then(|start| picture_size(&start));
    start.or_else(|| picture_size(&base64::decode(data).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes
    }

    #[test]
    fn sizes_stand_in_the_header() {
        assert_eq!(picture_size(&png(640, 480)), Some((640, 480)));
        assert_eq!(picture_size(b"GIF89a\x80\x02\xe0\x01"), Some((640, 480)));
        let mut jpeg = b"\xff\xd8\xff\xe1\x00\x08Exif\0\0\xff\xff\xfe\x00\x04hi\xff\xc2\x00\x11\x08\x01\xe0\x02\x80".to_vec();
        assert_eq!(picture_size(&jpeg), Some((640, 480)));
        jpeg.truncate(jpeg.len() - 1);
        assert_eq!(picture_size(&jpeg), None);
        assert_eq!(picture_size(b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x80\x02\xe0\x01"), Some((640, 480)));
        let bits = (639_u32 | 479 << 14).to_le_bytes();
        assert_eq!(picture_size(&[b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f".as_slice(), &bits].concat()), Some((640, 480)));
        assert_eq!(picture_size(b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x7f\x02\0\xdf\x01\0"), Some((640, 480)));
        for broken in [&b"\x89PNG"[..], b"GIF8", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"BM", b""] {
            assert_eq!(picture_size(broken), None);
        }
    }

    #[test]
    fn pictures_cost_what_providers_charge() {
        assert_eq!(cost((1024, 1024)), 765);
        assert_eq!(cost((2048, 4096)), 1105);
        assert_eq!(cost((512, 512)), 255);
        assert_eq!(cost((1, 1)), 255);
        assert_eq!(cost((100_000, 100_000)), 765);
    }

    #[test]
    fn the_bytes_of_a_picture_are_no_text() {
        let url = format!("data:image/png;base64,{}", base64::encode(&[png(1024, 1024), vec![0; 300_000]].concat()));
        let message = json!({"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}).to_string();
        assert_eq!(pictures(&message), Some((url.len(), 765)));
        let output =
            json!({"type": "function_call_output", "output": [{"type": "input_image", "image_url": url, "detail": "low"}]}).to_string();
        assert_eq!(pictures(&output), Some((url.len(), ROUGH)));
        let data = url.split_once(',').unwrap().1;
        let made = crate::GeneratedImage::item(data).to_string();
        assert_eq!(pictures(&made), Some((data.len(), 765)));
        assert_eq!(pictures(r#"{"type":"message","content":"a text"}"#), None);
        let elsewhere = json!({"type": "message", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}).to_string();
        assert_eq!(pictures(&elsewhere), Some((15, UNKNOWN)));
    }
}
