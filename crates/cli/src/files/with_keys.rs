//! The keys of a file, for the rest of the process.

use encryption::{EncryptedFs, KeyRing};

use super::{Arc, ENCRYPTED, KEY_FILE, OnceLock, OsFs, Path};
use crate::output::{Failure, note};

/// Uses the keys of the file at `path` from now on.
pub(crate) fn use_keys(path: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    let keys = KeyRing::parse(&text)
        .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    note_readable_by_others(path);
    let fs = EncryptedFs::new(Arc::new(OsFs), Arc::new(keys));
    let _ = ENCRYPTED.set(Arc::new(fs.clone()));
    let _ = WITH_KEYS.set(fs);
    let _ = KEY_FILE.set(path.to_owned());
    Ok(())
}

/// The same file system as that of all subcommands, for what only an encrypted one can do.
static WITH_KEYS: OnceLock<EncryptedFs> = OnceLock::new();

/// The encrypted file system; `None` without keys.
pub(crate) fn encrypted_files() -> Option<&'static EncryptedFs> {
    WITH_KEYS.get()
}

#[cfg(unix)]
fn note_readable_by_others(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
        note(format_args!("siltstone: other users may read the keys in {}", path.display()));
    }
}

#[cfg(not(unix))]
fn note_readable_by_others(_: &Path) {}
