//! [`LastEntry`]: the entry that was added to a table last, which the next one must come after.

use crate::types::{KeyRef, Trailer};

/// The last entry of a table that is written.
pub(super) struct LastEntry {
    pub user: Vec<u8>,
    pub trailer: Trailer,
    /// `true` if it is hidden; then the last visible one is kept, too.
    pub is_hidden: bool,
    /// `true` if its hidden entry follows it: see [`SstWriter::note`](super::SstWriter::note).
    pub has_short_hidden: bool,
    visible_user: Vec<u8>,
    visible_trailer: Trailer,
}

impl LastEntry {
    /// Before the first entry.
    pub fn new() -> LastEntry {
        LastEntry {
            user: Vec::new(),
            trailer: Trailer::LAST,
            is_hidden: false,
            has_short_hidden: false,
            visible_user: Vec::new(),
            visible_trailer: Trailer::LAST,
        }
    }

    /// Remembers the entry that was just added.
    #[inline]
    pub fn set(&mut self, is_new_user_key: bool, key: KeyRef<'_>, is_hidden: bool) {
        let is_kept = is_hidden && !self.is_hidden;
        if is_kept {
            // In a sealed table a hidden entry follows nearly every visible one. The swap saves a
            // copy each time.
            std::mem::swap(&mut self.visible_user, &mut self.user);
            self.visible_trailer = self.trailer;
        }
        if is_new_user_key || is_kept {
            self.user.clear();
            self.user.extend_from_slice(key.user);
        }
        self.trailer = key.trailer;
        self.is_hidden = is_hidden;
        self.has_short_hidden = false;
    }

    /// The visible entry that was added last.
    #[inline]
    pub fn visible(&self) -> KeyRef<'_> {
        if self.is_hidden {
            KeyRef::new(&self.visible_user, self.visible_trailer)
        } else {
            KeyRef::new(&self.user, self.trailer)
        }
    }
}
