//! The file system of the command: the machine's, or an encrypted one over it if keys were given.
//!
//! Every subcommand opens databases, secondaries and backups on [`files`], and buckets by [`bucket`], so that `--key-file`
//! holds for all of them.
//!
//! Invariant: the keys are set once, before the subcommand runs.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use remote::Remote;
use siltstone::fs::{Fs, OsFs};
use siltstone::{Builder, Db, Result};

/// The file system, if keys were given.
static ENCRYPTED: OnceLock<Arc<dyn Fs>> = OnceLock::new();

/// The variable that names the file of the keys.
#[cfg(feature = "encryption")]
pub(crate) const KEY_FILE_VARIABLE: &str = "SILTSTONE_KEY_FILE";

/// The file system.
pub(crate) fn files() -> Arc<dyn Fs> {
    ENCRYPTED.get().cloned().unwrap_or_else(|| Arc::new(OsFs))
}

/// Options for the database at `path`.
pub(crate) fn builder(path: impl AsRef<Path>) -> Builder {
    Db::builder(path).fs(files())
}

/// The bucket that `url` names. With keys its objects and the folder of its primary are encrypted.
pub(crate) fn bucket(url: &str) -> Result<Remote> {
    let remote = Remote::url(url)?.fs(files());
    #[cfg(feature = "encryption")]
    if let Some(fs) = encrypted_files() {
        return Ok(remote.keys(fs.keys().clone()));
    }
    Ok(remote)
}

/// Makes a process of this command use the same keys.
pub(crate) fn hand_keys_to(child: &mut Command) {
    #[cfg(feature = "encryption")]
    if let Some(path) = KEY_FILE.get() {
        child.env(KEY_FILE_VARIABLE, path);
    }
    let _ = child;
}

/// The file of the keys that are used.
#[cfg(feature = "encryption")]
static KEY_FILE: OnceLock<std::path::PathBuf> = OnceLock::new();

#[cfg(feature = "encryption")]
mod with_keys;

#[cfg(feature = "encryption")]
pub(crate) use with_keys::{encrypted_files, use_keys};
