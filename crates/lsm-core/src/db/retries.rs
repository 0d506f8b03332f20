//! [`Retries`]: decides whether files that another process changes are worth another look.
//!
//! Called by opens next to a writer and by followers. One look reads the folder, the manifest and the log,
//! one after the other, while the writer continues. So a mismatch is damage, or a file that was made or
//! removed between two steps. Damage is the same at each look; the work of a writer is not.
//!
//! Invariant: an error of damage comes from several successive looks with the same result.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Retries in a row that find the same damage.
const SAME_LOOKS: usize = 4;
/// The pause between two looks, once the first one failed.
const PAUSE: Duration = Duration::from_millis(1);

/// The looks that one call takes.
pub(crate) struct Retries {
    left: usize,
    /// The message of the last error, and the number of looks in a row that ended with it.
    last: String,
    same: usize,
}

impl Retries {
    /// At most `count` looks.
    pub(crate) fn new(count: usize) -> Retries {
        Retries { left: count, last: String::new(), same: 0 }
    }

    /// Waits for a moment if another look may get past `error`.
    ///
    /// # Errors
    /// That of the caller: `error`, or [`ErrorKind::NeedsManifest`] if each look had another
    /// result.
    pub(crate) fn again(&mut self, error: Error) -> Result<()> {
        let message = error.to_string();
        let is_same = message == self.last;
        self.same = if is_same { self.same + 1 } else { 1 };
        self.last = message;
        let may_be_damage = match error.kind() {
            ErrorKind::FileGone | ErrorKind::LeaseLost | ErrorKind::NeedsManifest => false,
            // A folder without a database stays without one.
            kind if kind == ErrorKind::Corruption || error.is_missing() => true,
            _ => return Err(error),
        };
        if may_be_damage && self.same >= SAME_LOOKS {
            return Err(error);
        }
        // Each look reads the manifest again. A writer deletes nothing that the newest manifest names.
        if error.kind() == ErrorKind::FileGone
            && self.same >= SAME_LOOKS
            && let Some(path) = error.path()
        {
            return Err(Error::corruption(path, None, "a file that the manifest names is missing"));
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && may_be_damage {
            let message = "the files of the database kept changing while they were read; try again";
            return Err(Error::because(ErrorKind::NeedsManifest, message, error));
        }
        if self.left == 0 {
            return Err(error);
        }
        if self.same > 1 {
            // No one unparks this thread.
            std::thread::park_timeout(PAUSE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(number: u64) -> Error {
        Error::corruption("file", number, "it does not fit")
    }

    #[test]
    fn damage_is_what_looks_in_a_row_find_alike() {
        let mut retries = Retries::new(100);
        for number in 0..20 {
            retries.again(damage(number / 3)).unwrap();
        }
        retries.again(damage(7)).unwrap();
        retries.again(damage(7)).unwrap();
        retries.again(damage(7)).unwrap();
        assert!(retries.again(damage(7)).unwrap_err().is_corruption());
    }

    #[test]
    fn files_that_change_at_each_look_are_no_damage() {
        let mut retries = Retries::new(10);
        for number in 0..9 {
            retries.again(damage(number)).unwrap();
        }
        let error = retries.again(damage(9)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NeedsManifest);
        assert!(error.to_string().contains("kept changing"), "{error}");
    }

    #[test]
    fn other_errors_are_returned_at_once() {
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let error = Retries::new(10).again(Error::io("open", "file".as_ref(), denied)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }
}
