//! Pictures that the model made: each is kept in the thread with the answer, and as a file where people can open it.

use std::io;

use outpost_thread::{GeneratedImage, Raw, picture_kind};
use outpost_wire::base64;
use thiserror::Error;

use super::Driver;
use crate::live::ThreadEvent;

/// Why a picture is in the thread only.
#[derive(Debug, Error)]
enum ImageError {
    #[error(transparent)]
    Encoding(#[from] base64::Base64Error),
    #[error("it is not a PNG, JPEG, GIF or WebP")]
    Kind,
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl Driver {
    /// The items of an answer, with the place of every picture among them. One that cannot be saved is reported, and stays in the thread.
    pub(super) async fn save_images(&self, mut items: Vec<Raw>) -> Vec<Raw> {
        for item in &mut items {
            let Some(image) = GeneratedImage::of(item) else { continue };
            let saved = match image.data() {
                Some(data) => self.save_image(data).await.unwrap_or_else(|why| {
                    let message = format!("the image that the model made was not saved as a file: {why}");
                    self.audience.feed.publish(ThreadEvent::Warning { message }, 256);
                    None
                }),
                None => None,
            };
            // Only a file of ours is named to the user.
            if saved.is_some() || image.saved_path.is_some() {
                *item = GeneratedImage::saved_as(item, saved);
            }
        }
        items
    }

    async fn save_image(&self, data: &str) -> Result<Option<String>, ImageError> {
        let bytes = base64::decode(data)?;
        let extension = match picture_kind(&bytes) {
            Some("image/png") => "png",
            Some("image/jpeg") => "jpg",
            Some("image/gif") => "gif",
            Some("image/webp") => "webp",
            _ => return Err(ImageError::Kind),
        };
        let saved = self.journal.store.save_image(self.thread.id, extension, bytes).await?;
        Ok(saved.map(|path| path.display().to_string()))
    }
}
