//! The only place where a file name is made or parsed.
//!
//! ```text
//! 000000000000002a-00000003.sst        file number and epoch in hex, then the kind
//! 000000000000002b-00000003.wal        a log segment
//! 000000000000002c-00000003.manifest   a manifest generation
//! 000000000000002d-00000003.chunk      values of a value store
//! LOCK                                 held by the process that writes
//! cursor-00000003                      the commits of the writer of an epoch, for secondaries
//! reader-5f3a9c0d11e24b77              the lease of a secondary
//! epoch-00000004                       the claim of a promotion, and the lock of all later openers
//! fork-00000004                        where the epochs before that claim end
//! EXPORT                               in a folder of its own: the description of its tables
//! *.123-4.tmp                          a manifest, claim or fork that put_if_absent did not finish
//! ```
//!
//! Invariant: names of one kind and epoch sort by age, and a number is never used again, so that a
//! file that a crash left can never be taken for a live file.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Fs;
use crate::error::Result;
use crate::types::{Epoch, FileNo};

/// Name of the lock file.
pub const LOCK: &str = "LOCK";
/// Name of the description of an export.
pub const EXPORT: &str = "EXPORT";
/// Suffix of unfinished files.
pub const TEMPORARY_SUFFIX: &str = ".tmp";
/// The front of the name of a file that says that another layer ships the folder: the crate `remote`, to a bucket. The
/// file system of that layer hides the file.
pub const SHIPPED_PREFIX: &str = "remote-claim-";
/// The front of the name of a file that says that the layer is making the folder as the bucket says, and has not ended.
pub const RESTORING: &str = "remote-restoring";

/// Returns `true` if a file of this name says that another layer ships the folder, or is making it.
pub fn is_shipped_mark(name: &str) -> bool {
    name.starts_with(SHIPPED_PREFIX) || name.starts_with(RESTORING)
}

/// The front of the name of a commit cursor.
pub const CURSOR_PREFIX: &str = "cursor-";
/// The front of the name of a lease.
pub const LEASE_PREFIX: &str = "reader-";

/// Returns the name of the commit cursor of an epoch.
pub fn cursor(epoch: Epoch) -> String {
    format!("{CURSOR_PREFIX}{:08x}", epoch.0)
}

/// Returns `true` if `text` names a commit cursor.
pub fn is_cursor(text: &str) -> bool {
    text.strip_prefix(CURSOR_PREFIX).is_some_and(|rest| is_hex(rest, 8))
}

/// Returns the name of the lease with the random number `id`.
pub fn lease(id: u64) -> String {
    format!("{LEASE_PREFIX}{id:016x}")
}

/// Returns `true` if `text` names a lease.
pub fn is_lease(text: &str) -> bool {
    text.strip_prefix(LEASE_PREFIX).is_some_and(|rest| is_hex(rest, 16))
}

/// The front of the name of a claim.
pub const CLAIM_PREFIX: &str = "epoch-";
/// The front of the name of a fork.
pub const FORK_PREFIX: &str = "fork-";

/// Returns the name of the claim of an epoch.
pub fn claim(epoch: Epoch) -> String {
    format!("{CLAIM_PREFIX}{:08x}", epoch.0)
}

/// Returns the name of the fork after which the claim of an epoch begins.
pub fn fork(epoch: Epoch) -> String {
    format!("{FORK_PREFIX}{:08x}", epoch.0)
}

/// Returns the epoch of the claim that `text` names.
pub fn epoch_of_claim(text: &str) -> Option<Epoch> {
    epoch_after(CLAIM_PREFIX, text)
}

/// Returns the epoch of the fork that `text` names.
pub fn epoch_of_fork(text: &str) -> Option<Epoch> {
    epoch_after(FORK_PREFIX, text)
}

fn epoch_after(prefix: &str, text: &str) -> Option<Epoch> {
    let number = text.strip_prefix(prefix).filter(|rest| is_hex(rest, 8))?;
    u32::from_str_radix(number, 16).ok().map(Epoch)
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A sorted table.
    Sst,
    /// A segment of the WAL.
    Wal,
    /// A manifest generation.
    Manifest,
    /// A chunk file of a value store.
    Chunk,
}

impl FileKind {
    const ALL: [FileKind; 4] = [FileKind::Sst, FileKind::Wal, FileKind::Manifest, FileKind::Chunk];

    fn extension(self) -> &'static str {
        match self {
            FileKind::Sst => "sst",
            FileKind::Wal => "wal",
            FileKind::Manifest => "manifest",
            FileKind::Chunk => "chunk",
        }
    }
}

/// The name of a file of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName {
    /// The purpose of the file.
    pub kind: FileKind,
    /// Its number.
    pub number: FileNo,
    /// The epoch in which it was made.
    pub epoch: Epoch,
}

impl FileName {
    /// A name.
    pub const fn new(kind: FileKind, number: FileNo, epoch: Epoch) -> FileName {
        FileName { kind, number, epoch }
    }

    /// The path of the file in `dir`.
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }

    /// The name that `text` spells, exactly as [`FileName`] prints it.
    pub fn parse(text: &str) -> Option<FileName> {
        let (stem, extension) = text.rsplit_once('.')?;
        let (number, epoch) = stem.split_once('-')?;
        let kind = FileKind::ALL.into_iter().find(|kind| kind.extension() == extension)?;
        // Exact lengths, because names must sort by age and each file must have one name.
        if number.len() != 16 || epoch.len() != 8 {
            return None;
        }
        let number = FileNo(u64::from_str_radix(number, 16).ok()?);
        let epoch = Epoch(u32::from_str_radix(epoch, 16).ok()?);
        let name = FileName { kind, number, epoch };
        // The parser of numbers accepts a sign and capitals, which no name of ours has.
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}.{}", self.number.0, self.epoch.0, self.kind.extension())
    }
}

/// The files in `dir` whose names are those of a database.
///
/// # Errors
/// Those of the file system.
pub fn in_dir(fs: &dyn Fs, dir: &Path) -> Result<Vec<FileName>> {
    // Not the names alone: a folder or a link may have the name of a manifest.
    let entries = fs.list(dir, "")?;
    Ok(entries.iter().filter_map(|entry| FileName::parse(&entry.name)).collect())
}

/// Returns `true` if `text` names a manifest, claim or fork that
/// [`put_if_absent`](super::Fs::put_if_absent) did not finish: its name, then process and counter.
/// The check is strict on purpose: an open deletes these files, and a file of the user may end in
/// `.tmp` too.
pub fn is_temporary(text: &str) -> bool {
    let Some(stem) = text.strip_suffix(TEMPORARY_SUFFIX) else {
        return false;
    };
    let Some((name, writer)) = stem.rsplit_once('.') else {
        return false;
    };
    let Some((process, counter)) = writer.split_once('-') else {
        return false;
    };
    let is_manifest = FileName::parse(name).is_some_and(|name| name.kind == FileKind::Manifest);
    let is_published = is_manifest || epoch_of_claim(name).or(epoch_of_fork(name)).is_some();
    is_number(process) && is_number(counter) && is_published
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_sort_by_age() {
        let name = FileName::new(FileKind::Wal, FileNo(42), Epoch(3));
        assert_eq!(name.to_string(), "000000000000002a-00000003.wal");
        assert_eq!(FileName::parse(&name.to_string()), Some(name));
        let later = FileName::new(FileKind::Wal, FileNo(0x100), Epoch(1));
        assert!(later.to_string() > name.to_string());
    }

    #[test]
    fn foreign_names_are_not_ours() {
        for text in [
            "",
            ".DS_Store",
            "LOCK",
            "000000000000002a-00000003.sst.tmp",
            "000000000000002A-00000003.sst",
            "+00000000000002a-00000003.sst",
            "2a-3.sst",
            "000000000000002a-00000003.txt",
            "\u{e9}00000000000002a-0000003.sst",
        ] {
            assert_eq!(FileName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn cursors_and_leases_are_distinguished_from_files_of_the_user() {
        assert!(is_cursor(&cursor(Epoch(0xabc))) && is_lease(&lease(u64::MAX)));
        for text in ["cursor-", "cursor-0000000A", "cursor-000000001", "cursor-0000001.txt"] {
            assert!(!is_cursor(text), "{text}");
        }
        for text in ["reader-", "reader-5f3a9c0d11e24b7", "reader-5f3a9c0d11e24b77.txt"] {
            assert!(!is_lease(text), "{text}");
        }
    }

    #[test]
    fn claims_and_forks_are_distinguished_from_files_of_the_user() {
        assert_eq!(epoch_of_claim(&claim(Epoch(0xabc))), Some(Epoch(0xabc)));
        assert_eq!(epoch_of_fork(&fork(Epoch(u32::MAX))), Some(Epoch(u32::MAX)));
        for text in ["epoch-", "epoch-0000000A", "epoch-000000001", "fork-00000001", "epochs"] {
            assert_eq!(epoch_of_claim(text), None, "{text}");
        }
        assert_eq!(epoch_of_fork("epoch-00000001"), None);
    }

    #[test]
    fn only_our_own_unfinished_files_are_temporary() {
        assert!(is_temporary("000000000000002c-00000003.manifest.17-4.tmp"));
        assert!(is_temporary("epoch-00000003.17-4.tmp") && is_temporary("fork-00000003.17-5.tmp"));
        for text in [
            "notes.manifest.tmp",
            "000000000000002c-00000003.manifest.tmp",
            "000000000000002c-00000003.manifest.17-.tmp",
            "000000000000002c-00000003.manifest.a-1.tmp",
            "000000000000002c-00000003.sst.17-4.tmp",
            "000000000000002c-00000003.manifest",
        ] {
            assert!(!is_temporary(text), "{text}");
        }
    }
}
