//! Pictures that models made, as files that people can open: `images/<thread>/image-N.png`. The journal has them, too; these are copies.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use outpost_thread::ThreadId;

use super::{LocalHome, make_folder};

impl LocalHome {
    fn images(&self, thread: ThreadId) -> PathBuf {
        self.config.home.join("images").join(thread.to_string())
    }

    /// Writes a picture under the next free number; where it is now.
    pub(super) fn save_image(&self, thread: ThreadId, extension: &str, content: &[u8]) -> io::Result<PathBuf> {
        let folder = self.images(thread);
        make_folder(&folder)?;
        let mut number = 1_u32;
        let (mut file, path) = loop {
            let path = folder.join(format!("image-{number}.{extension}"));
            match File::options().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        };
        if let Err(error) = file.write_all(content) {
            // A part of a file is no picture.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok(path)
    }

    /// Removes the pictures of a thread.
    pub(super) fn remove_images(&self, thread: ThreadId) {
        let _ = fs::remove_dir_all(self.images(thread));
    }
}
