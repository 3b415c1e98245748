//! Pictures on their way to a model: what no provider takes is refused with a reason, and what is larger than providers take is
//! made smaller. What a picture is and how large it is stands in its header; only one that must become smaller is decoded.

use std::borrow::Cow;
use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use outpost_thread::{GeneratedImage, Raw, picture_kind, picture_size};
use outpost_wire::SharedError;
use outpost_wire::base64;
use serde_json::{Value, json};
use thiserror::Error;

/// Providers make larger ones smaller themselves, or refuse them: Anthropic does where a request has more than twenty.
pub(crate) const LONGEST_SIDE: u32 = 2000;
/// The least that a provider takes: five megabytes of base64.
const LARGEST: usize = 3_750_000;
/// What a file or a message may hold to begin with.
pub const LARGEST_FILE: usize = 64 << 20;
/// A picture takes four bytes a pixel while it is made smaller.
const MOST_PIXELS: u64 = 64 << 20;
const QUALITY: u8 = 85;
/// Providers refuse the whole request for a side that is longer, or for more bytes.
const REFUSED_SIDE: u32 = 8000;
const REFUSED: usize = 20 << 20;

/// A picture as providers take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pub kind: &'static str,
    pub bytes: Vec<u8>,
}

/// Why a picture cannot be shown to a model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PictureError {
    #[error("it is {0}, and models take PNG, JPEG, GIF and WebP only: convert it first")]
    Kind(&'static str),
    #[error("it is damaged: {0}")]
    Damaged(#[source] SharedError),
    #[error("it has {width} × {height} pixels, and at most {MOST_PIXELS} in all can be made smaller: scale it down first")]
    Pixels { width: u32, height: u32 },
    #[error("it has {0} bytes; at most {LARGEST_FILE} can be shown")]
    Bytes(usize),
    #[error("its address is neither an `https:` address nor a `data:` address with base64")]
    Address,
}

impl Picture {
    /// The picture in a file, smaller if it must be. This takes a while for one that must.
    pub fn read(bytes: Vec<u8>) -> Result<Self, PictureError> {
        if bytes.len() > LARGEST_FILE {
            return Err(PictureError::Bytes(bytes.len()));
        }
        let kind = picture_kind(&bytes).ok_or_else(|| PictureError::Kind(stranger(&bytes)))?;
        let (width, height) = picture_size(&bytes).ok_or_else(|| PictureError::Damaged("its header cannot be read".into()))?;
        if width.max(height) <= LONGEST_SIDE && bytes.len() <= LARGEST {
            return Ok(Self { kind, bytes });
        }
        if u64::from(width) * u64::from(height) > MOST_PIXELS {
            return Err(PictureError::Pixels { width, height });
        }
        smaller(kind, bytes).map_err(|error| PictureError::Damaged(SharedError::new(error)))
    }

    /// The picture behind an address: one that holds it is looked at, any other is the provider's business.
    pub fn fitted(address: &str) -> Result<Cow<'_, str>, PictureError> {
        if address.starts_with("https://") || address.starts_with("http://") {
            return Ok(address.into());
        }
        let (kind, data) = address.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")).ok_or(PictureError::Address)?;
        let bytes = base64::decode(data).map_err(|error| PictureError::Damaged(SharedError::new(error)))?;
        let length = bytes.len();
        let picture = Self::read(bytes)?;
        // Most are as they should be.
        if picture.bytes.len() == length && picture.kind == kind { Ok(address.into()) } else { Ok(picture.address().into()) }
    }

    /// An address that holds it.
    pub fn address(&self) -> String {
        format!("data:{};base64,{}", self.kind, base64::encode(&self.bytes))
    }
}

/// What tools returned, with pictures as providers take them; in the place of one that cannot be shown stands why.
pub(crate) async fn fitted(items: Vec<Raw>) -> Vec<Raw> {
    if !items.iter().any(|item| has_pictures(item.get())) {
        return items;
    }
    let fit =
        |item: &Raw| replaced(item.get(), |address| Picture::fitted(address).map(Cow::into_owned)).map_or_else(|| item.clone(), Raw::from);
    let given = items.clone();
    tokio::task::spawn_blocking(move || items.iter().map(fit).collect()).await.unwrap_or(given)
}

/// An item of a history that was not checked when it came, if a provider would refuse its pictures. Only their headers are read.
pub(crate) fn acceptable(item: &str) -> Option<Value> {
    if !has_pictures(item) {
        return None;
    }
    replaced(item, |address| {
        let Some((said, data)) = address.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) else {
            return if address.starts_with("http") { Ok(address.to_owned()) } else { Err(PictureError::Address) };
        };
        let bytes = base64::decode(data).map_err(|error| PictureError::Damaged(SharedError::new(error)))?;
        let kind = picture_kind(&bytes).ok_or_else(|| PictureError::Kind(stranger(&bytes)))?;
        let (width, height) = picture_size(&bytes).ok_or_else(|| PictureError::Damaged("its header cannot be read".into()))?;
        if width.max(height) > REFUSED_SIDE {
            return Err(PictureError::Pixels { width, height });
        }
        if bytes.len() > REFUSED {
            return Err(PictureError::Bytes(bytes.len()));
        }
        Ok(if said == kind { address.to_owned() } else { format!("data:{kind};base64,{data}") })
    })
}

/// A picture that a model made, as a message that every wire has: a user shows it. Nothing if it was not made.
pub(crate) fn shown_again(image: &GeneratedImage) -> Option<Value> {
    let data = image.data()?;
    let kind = base64::decode(data.get(..64).unwrap_or(data)).ok().and_then(|bytes| picture_kind(&bytes)).unwrap_or("image/png");
    let place = image.saved_path.as_ref().map(|path| format!(", saved as {path}")).unwrap_or_default();
    Some(json!({"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": format!("<generated_image>The image that you made{place}:</generated_image>")},
        {"type": "input_image", "image_url": format!("data:{kind};base64,{data}")},
    ]}))
}

/// An item of a history as a wire takes it that has messages, calls and results only; nothing for a picture that was not made.
pub(crate) fn outgoing(item: &Raw, sees: bool) -> Option<Value> {
    let text = match GeneratedImage::of(item) {
        Some(image) => Cow::Owned(shown_again(&image)?.to_string()),
        None => Cow::Borrowed(item.get()),
    };
    let item = acceptable(&text).or_else(|| serde_json::from_str(&text).ok())?;
    Some(if sees { item } else { described(item) })
}

/// An item for a model that cannot see: in the place of each picture stands that there was one.
pub(crate) fn described(mut item: Value) -> Value {
    let told = json!({"type": "input_text", "text": "[an image, which this model cannot see]"});
    each_picture(&mut item, |part| *part = told.clone());
    item
}

/// Does something with each picture of a message or a result.
pub(crate) fn each_picture(item: &mut Value, mut act: impl FnMut(&mut Value)) {
    for name in ["content", "output"] {
        let parts = item.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten();
        parts.filter(|part| part["type"] == "input_image").for_each(&mut act);
    }
}

pub(crate) fn has_pictures(item: &str) -> bool {
    item.contains("\"input_image\"")
}

/// An item with other pictures, if one of them changes.
fn replaced(item: &str, fit: impl Fn(&str) -> Result<String, PictureError>) -> Option<Value> {
    let mut item: Value = serde_json::from_str(item).ok()?;
    let mut changed = false;
    each_picture(&mut item, |part| {
        if part["file_id"].is_string() {
            return;
        }
        let address = part["image_url"].as_str().unwrap_or_default();
        match fit(address) {
            Ok(fitted) if fitted == address => {}
            Ok(fitted) => {
                part["image_url"] = fitted.into();
                changed = true;
            }
            Err(why) => {
                *part = json!({"type": "input_text", "text": format!("[a picture that cannot be shown: {why}]")});
                changed = true;
            }
        }
    });
    changed.then_some(item)
}

/// What a file is that models do not take.
fn stranger(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "empty",
        [b'B', b'M', ..] => "a BMP",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "a TIFF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', ..] => "an AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h' | b'm', ..] => "a HEIC",
        [0, 0, 1, 0, ..] => "an icon",
        [b'%', b'P', b'D', b'F', ..] => "a PDF",
        _ if bytes.trim_ascii_start().starts_with(b"<") => "SVG or other markup",
        _ => "not a known kind of picture",
    }
}

fn smaller(kind: &str, bytes: Vec<u8>) -> image::ImageResult<Picture> {
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_PIXELS * 8);
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    // A camera may say that what it took stands on its side; what is written here says nothing of the kind.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    if picture.width().max(picture.height()) > LONGEST_SIDE {
        picture = picture.thumbnail(LONGEST_SIDE, LONGEST_SIDE);
    }
    if kind != "image/jpeg" {
        let mut bytes = Vec::new();
        picture.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png)?;
        if bytes.len() <= LARGEST {
            return Ok(Picture { kind: "image/png", bytes });
        }
    }
    let mut bytes = Vec::new();
    // At this quality a picture of the longest sides stays far below the limit.
    DynamicImage::ImageRgb8(picture.to_rgb8()).write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, QUALITY))?;
    Ok(Picture { kind: "image/jpeg", bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        let color = |x: u32, y: u32| image::Rgb([(x % 256) as u8, (y % 256) as u8, ((x ^ y) % 256) as u8]);
        let picture = DynamicImage::ImageRgb8(image::RgbImage::from_fn(width, height, color));
        picture.write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::WebP] {
            let bytes = drawn(64, 48, format);
            let picture = Picture::read(bytes.clone()).unwrap();
            assert_eq!(picture.bytes, bytes);
            assert_eq!(Picture::fitted(&picture.address()).unwrap(), picture.address());
        }
        assert_eq!(Picture::fitted("https://x/y.png").unwrap(), "https://x/y.png");
    }

    #[test]
    fn what_is_too_large_is_made_smaller() {
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::WebP] {
            let picture = Picture::read(drawn(2560, 40, format)).unwrap();
            assert_eq!((picture_size(&picture.bytes), picture_kind(&picture.bytes)), (Some((2000, 31)), Some(picture.kind)), "{format:?}");
            assert!(picture.bytes.len() <= LARGEST);
        }
        // Noise cannot be compressed, so this one is within the pixels and beyond the bytes.
        let mut seed = 1_u32;
        let mut noise = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        let picture = DynamicImage::ImageRgb8(image::RgbImage::from_fn(1150, 1150, |_, _| image::Rgb([noise(), noise(), noise()])));
        let mut bytes = Vec::new();
        picture.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png).unwrap();
        assert!(bytes.len() > LARGEST);
        let picture = Picture::read(bytes).unwrap();
        assert_eq!((picture.kind, picture_size(&picture.bytes)), ("image/jpeg", Some((1150, 1150))));
        assert!(picture.bytes.len() <= LARGEST, "{}", picture.bytes.len());
    }

    #[test]
    fn what_cannot_be_shown_is_told() {
        let told = |bytes: &[u8]| Picture::read(bytes.to_vec()).unwrap_err().to_string();
        assert!(told(b"BM......").contains("a BMP, and models take PNG"));
        assert!(told(b" <svg>").contains("SVG"));
        assert!(told(b"\0\0\0\x18ftypheic").contains("HEIC"));
        assert!(told(b"\x89PNG\r\n\x1a\n").contains("header"));
        let vast =
            [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &60_000_u32.to_be_bytes(), &60_000_u32.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
        assert!(told(&vast).contains("60000 × 60000"));
        let mut cut = drawn(2560, 40, ImageFormat::Png);
        cut.truncate(200);
        assert!(told(&cut).contains("damaged"));
        assert_eq!(Picture::fitted("file:///x.png"), Err(PictureError::Address));
    }

    #[test]
    fn an_address_tells_what_it_holds() {
        let png = drawn(8, 8, ImageFormat::Png);
        let wrong = format!("data:image/jpg;base64,{}", base64::encode(&png));
        assert!(Picture::fitted(&wrong).unwrap().starts_with("data:image/png;base64,"));
    }

    #[tokio::test]
    async fn results_of_tools_hold_what_can_be_shown() {
        let result = |address: &str| {
            json!({"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "two"}, {"type": "input_image", "image_url": address}]})
        };
        let large = Picture { kind: "image/png", bytes: drawn(3000, 30, ImageFormat::Png) }.address();
        let items = fitted(vec![Raw::from(result(&large)), Raw::from(result("data:image/bmp;base64,Qk0="))]).await;
        let items: Vec<Value> = items.iter().map(|item| item.read().unwrap()).collect();
        assert_ne!(items[0]["output"][1]["image_url"], large);
        assert!(items[1]["output"][1]["text"].as_str().unwrap().contains("a BMP"), "{}", items[1]);
        // What is only large is left to the provider; what it refuses is not sent.
        assert_eq!(acceptable(&result(&large).to_string()), None);
        assert!(acceptable(&result("data:image/tiff;base64,QUJD").to_string()).is_some());
        let wrong = large.replacen("image/png", "image/jpg", 1);
        assert_eq!(acceptable(&result(&wrong).to_string()), Some(result(&large)));
    }
}
