//! The file in a folder that names its bucket, for people and commands: `remote-url`, the text of the URL.
//!
//! It decides nothing. A folder without it, or with a wrong one, is shipped all the same.

use std::path::Path;

use lsm_core::fs::{ENCRYPTED_MAGIC, Fs};
use siltstone::{Error, ErrorKind, Result};

/// Its name in the folder.
const URL_FILE: &str = "remote-url";
/// The longest URL that is noted.
const URL_BYTES_MAX: usize = 4096;

/// Notes the bucket of the folder `dir`; with `None` that it has no URL.
pub(crate) fn note_url(fs: &dyn Fs, dir: &Path, url: Option<&str>) -> Result<()> {
    let path = dir.join(URL_FILE);
    let url = url.filter(|url| url.len() <= URL_BYTES_MAX);
    // A file that is not readable is replaced.
    if url.is_some() && noted_url(fs, dir).is_ok_and(|noted| noted.as_deref() == url) {
        return Ok(());
    }
    fs.delete(&path)?;
    match url {
        Some(url) => fs.put_if_absent(&path, url.as_bytes()).map(drop),
        None => Ok(()),
    }
}

/// Returns the URL of the bucket of the folder `dir`, if it is noted.
///
/// # Errors
/// Corruption for what is no text; [`ErrorKind::InvalidArgument`] for an encrypted one without keys; those of the folder.
pub(crate) fn noted_url(fs: &dyn Fs, dir: &Path) -> Result<Option<String>> {
    if !fs.list_names(dir, URL_FILE)?.iter().any(|name| name == URL_FILE) {
        return Ok(None);
    }
    let path = dir.join(URL_FILE);
    let file = fs.open_read(&path)?;
    let mut bytes = vec![0; URL_BYTES_MAX + 1];
    let len = file.read_at(0, &mut bytes)?;
    bytes.truncate(len);
    if bytes.starts_with(&ENCRYPTED_MAGIC) {
        let message = format!("{} is encrypted, and was opened without keys", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() <= URL_BYTES_MAX);
    match text {
        Some(url) => Ok(Some(url)),
        None => Err(Error::corruption(path, None, "the name of a bucket that is no URL")),
    }
}
