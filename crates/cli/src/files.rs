//! The file system of the command: the machine's, or an encrypted one over it if keys were given.
//!
//! Every subcommand opens databases, secondaries and backups on [`files`], so that `--key-file` holds for all of them.
//!
//! Invariant: the keys are set once, before the subcommand runs.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use siltstone::fs::{Fs, OsFs};
use siltstone::{Builder, Db};

use crate::output::Failure;

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

/// Refuses to use a bucket if keys were given: what goes there is not encrypted.
pub(crate) fn refuse_bucket_with_keys() -> Result<(), Failure> {
    match ENCRYPTED.get() {
        None => Ok(()),
        Some(_) => Err(Failure::Usage(
            "--key-file encrypts no bucket; turn on the encryption of the bucket, and leave the keys out"
                .to_owned(),
        )),
    }
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
