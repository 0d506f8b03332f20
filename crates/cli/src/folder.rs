//! The kind of a folder, by the names of its files: a database, one that is shipped to a bucket, or files of another kind.
//!
//! The subcommands ask before they open a database. An open would make one in any folder, after a typing error in a path.
//! Nothing here reads the content of a file: the engine does.

use std::path::Path;

use remote::Remote;

use crate::output::Failure;

/// The front of the names of all files that the crate `remote` makes for itself in a folder.
const REMOTE_PREFIX: &str = "remote-";

/// Name of the lock file of a database.
const LOCK_FILE: &str = "LOCK";

/// Returns whether a file in `folder` has a name as in a database. The engine checks the content:
/// if a manifest is lost, its message is better than "no database".
pub(crate) fn holds_database(folder: &Path) -> Result<bool, Failure> {
    has_file(folder, is_database_file)
}

/// Returns whether `folder` is that of a primary, which ships it to a bucket, or is being made as a bucket says.
pub(crate) fn is_shipped(folder: &Path) -> Result<bool, Failure> {
    Ok(folder.is_dir() && Remote::is_shipped(folder)?)
}

/// Returns whether a file in `folder` has a name that is wanted.
#[expect(clippy::disallowed_methods, reason = "looks before there is an engine")]
fn has_file(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<bool, Failure> {
    let list = |e: std::io::Error| Failure::io("list", folder, &e);
    for name in std::fs::read_dir(folder).map_err(list)? {
        if is_wanted(&name.map_err(list)?.file_name().to_string_lossy()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Refuses a folder that has files and no database: after a typing error in a path, a database would lie among
/// files of another kind.
pub(crate) fn refuse_other_files(folder: &Path) -> Result<(), Failure> {
    if !folder.is_dir() || !has_file(folder, is_other_file)? || holds_database(folder)? {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{} has files and no database; --create makes one there",
        folder.display()
    )))
}

/// An open that ended before it made a manifest leaves its lock file. So does a claim, with files of its own.
fn is_other_file(name: &str) -> bool {
    name != LOCK_FILE && !name.starts_with(REMOTE_PREFIX)
}

/// As in docs/FORMATS.md: number, `-`, epoch, both in hex, and the kind.
fn is_database_file(name: &str) -> bool {
    let stem = name.split_once('.').filter(|(_, k)| matches!(*k, "manifest" | "sst" | "wal"));
    let parts = stem.and_then(|(stem, _)| stem.split_once('-'));
    parts.is_some_and(|(number, epoch)| is_hex(number, 16) && is_hex(epoch, 8))
}

/// Returns whether `text` is that many hex digits.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_database_are_recognised() {
        assert!(is_database_file("000000000000002c-00000003.manifest"));
        for other in ["LOCK", "notes.wal", "000000000000002c-00000003.manifest.tmp", "", "-."] {
            assert!(!is_database_file(other), "{other}");
        }
    }
}
