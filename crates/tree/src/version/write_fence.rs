//! [`WriteFence`]: whether another process has taken the database over from the writer of the manifest.

use crate::error::{Error, Result};

/// Tells the writer of the manifest whether another process has taken its database over. The commit cursor
/// of the epoch implements it.
pub trait WriteFence: Send + Sync {
    /// Returns an error if the writer is fenced.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::error::ErrorKind::Fenced).
    fn check(&self) -> Result<()>;

    /// Returns `true` if another process has fenced the writer.
    fn is_fenced(&self) -> bool;

    /// Settles the edit `number`, which is durable: the writer may now act on it.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::error::ErrorKind::Fenced): the edit does not count, now or later.
    fn settle_edit(&self, number: u64) -> Result<()>;

    /// Takes note of the error of a write, which a fence may have caused.
    fn note_failure(&self, error: &Error);
}
