//! Files under a second name: for checkpoints and ingests, and for the chunk files of value stores.
//!
//! Neither call syncs the folder of the new name.

use std::path::Path;

use super::{AppendMode, Fs};
use crate::error::{Error, Result};

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 256 << 10;

/// The way in which a file got its second name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The same bytes under two names.
    Linked,
    /// Other bytes, synced.
    Copied,
}

/// Gives the file `from` the name `to`, which is free; copies it as [`copy`] does if that fails.
///
/// # Errors
/// Those of the copy.
pub fn link_or_copy(fs: &dyn Fs, from: &Path, to: &Path, len: Option<u64>) -> Result<Placed> {
    // Whatever prevents a link, usually another device: a copy shows whether it matters.
    if fs.caps().link && fs.link(from, to).is_ok() {
        return Ok(Placed::Linked);
    }
    copy(fs, from, to, len)?;
    Ok(Placed::Copied)
}

/// Copies the first `len` bytes of the file `from`, or all of it, to the free name `to`, and syncs
/// them.
///
/// # Errors
/// Those of the files; corruption if `from` is shorter than `len`.
pub fn copy(fs: &dyn Fs, from: &Path, to: &Path, len: Option<u64>) -> Result<()> {
    let source = fs.open_read(from)?;
    let target = fs.open_append(to, AppendMode::IfAbsent)?;
    let end = len.unwrap_or(u64::MAX);
    let mut buf = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < end {
        let piece = (end - at).min(PIECE_BYTES as u64) as usize;
        let got = source.read_at(at, &mut buf[..piece])?;
        if got == 0 && len.is_some() {
            return Err(Error::corruption(from, at, "a file is shorter than it was"));
        }
        if got == 0 {
            break;
        }
        target.append(&buf[..got])?;
        at += got as u64;
    }
    // Only copies are synced: the bytes of a linked file are as durable as those of its first name.
    target.sync()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::MemFs;

    #[test]
    fn a_copy_has_what_was_asked_for_and_nothing_else() {
        let fs = MemFs::new();
        let from = Path::new("/from");
        let bytes: Vec<u8> = (0..600_000_u32).map(|n| (n >> 3) as u8).collect();
        fs.open_append(from, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
        for (name, len) in [("/all", None), ("/some", Some(300_000)), ("/none", Some(0))] {
            copy(&fs, from, name.as_ref(), len).unwrap();
            let expected = &bytes[..len.unwrap_or(600_000) as usize];
            assert!(fs.read_raw(name.as_ref()).unwrap() == expected, "{name}");
        }
        let short = copy(&fs, from, "/more".as_ref(), Some(600_001)).unwrap_err();
        assert!(short.is_corruption() && short.to_string().contains("/from"), "{short}");
        let placed = link_or_copy(&fs, from, "/linked".as_ref(), Some(5)).unwrap();
        assert_eq!(placed, Placed::Linked);
        assert!(link_or_copy(&fs, from, "/linked".as_ref(), None).is_err(), "the name is taken");
    }
}
