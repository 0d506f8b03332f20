//! A cursor over a memtable. It keeps the memtable's list alive.

use std::sync::Arc;

use super::skiplist::{ListCursor, NodeRef, SkipList, VersionRef};
use crate::error::{Error, Result};
use crate::hooks::Entry;
use crate::iter::InternalIter;
use crate::types::{KeyRef, Slice};

/// A cursor over a memtable, with or without checks.
pub struct MemtableIter {
    cursor: ListCursor,
    check: Option<WalkCheck>,
}

/// The state of a cursor that compares entries with their checksums.
struct WalkCheck {
    /// Entries when the cursor was made. The number may only grow.
    entry_count: u64,
    /// Entries met so far by a walk from the first one; `None` after any other move.
    met: Option<u64>,
    /// The checksum of the present value, which was confirmed.
    value_sum: Option<u64>,
}

impl MemtableIter {
    pub(super) fn new(list: Arc<SkipList>) -> MemtableIter {
        MemtableIter { cursor: ListCursor::new(list), check: None }
    }

    /// Compares each entry with its checksum, and the end of a whole walk with `entry_count`, the
    /// number of existing entries.
    pub(super) fn checked(self, entry_count: u64) -> MemtableIter {
        MemtableIter { check: Some(WalkCheck { entry_count, met: None, value_sum: None }), ..self }
    }

    /// After each move: returns an error if the entry has changed since its insertion, or if the
    /// walk ends before it met all of them.
    #[inline]
    fn look(&mut self) -> Result<()> {
        let Some(check) = &mut self.check else { return Ok(()) };
        match self.cursor.get() {
            Some((node, version)) => {
                let (is_intact, value_sum) = confirm(node, version);
                if !is_intact {
                    let error = damaged_at(node.key());
                    // An error leaves the cursor invalid, as every cursor does.
                    self.cursor.leave();
                    return Err(error);
                }
                check.value_sum = value_sum;
                check.met = check.met.map(|met| met + 1);
                Ok(())
            }
            // A damaged link skips entries, and leaves no trace in the others. After a flush the
            // log is deleted, so the skipped entries would be lost.
            None => match check.met.take() {
                // More than expected is no damage: entries may have been inserted since the count.
                Some(met) if met < check.entry_count => Err(lost_entries(met, check.entry_count)),
                _ => Ok(()),
            },
        }
    }

    /// Called before a move that is no step of a whole walk.
    #[inline]
    fn leave_walk(&mut self) {
        if let Some(check) = &mut self.check {
            check.met = None;
        }
    }

    #[inline]
    fn present(&self) -> (NodeRef<'_>, VersionRef<'_>) {
        self.cursor.get().expect("a valid cursor is on an entry")
    }

    /// The present entry, and the checksum of its value under
    /// [`VALUE_SEED`](crate::types::VALUE_SEED), which was confirmed; `None` without a check.
    #[inline]
    pub fn entry(&self) -> (Entry<'_>, Option<u64>) {
        let (node, version) = self.present();
        let trailer = version.trailer();
        let seq = trailer.seq();
        let entry = Entry {
            key: node.key(),
            seq,
            stored_seq: seq,
            kind: trailer.kind().expect("a memtable takes known kinds alone"),
            value: version.value(),
            hidden: false,
        };
        (entry, self.check.as_ref().and_then(|check| check.value_sum))
    }

    /// The value, shared where that is worth it.
    pub fn value_slice(&self) -> Slice {
        self.present().1.value_slice()
    }
}

impl InternalIter for MemtableIter {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.get().is_some()
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        let (node, version) = self.present();
        KeyRef::new(node.key(), version.trailer())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.present().1.value()
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        if let Some(check) = &mut self.check {
            // Only a walk from the first entry on can count the entries.
            check.met = target.is_none().then_some(0);
        }
        match target {
            None => self.cursor.go_first(),
            Some(target) => self.cursor.seek(target),
        }
        self.look()
    }

    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.leave_walk();
        match target {
            None => self.cursor.go_last(),
            Some(target) => self.cursor.seek_before(target),
        }
        self.look()
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.cursor.next();
        self.look()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.leave_walk();
        self.cursor.prev();
        self.look()
    }

    #[inline]
    fn next_key(&mut self, _room: &mut Vec<u8>) -> Result<()> {
        self.leave_walk();
        self.cursor.next_key();
        self.look()
    }
}

/// Returns `true` if an entry has not changed since its insertion.
pub(super) fn is_intact(node: NodeRef<'_>, version: VersionRef<'_>) -> bool {
    confirm(node, version).0
}

/// As [`EntryChecksum::confirms`].
#[inline]
pub(super) fn confirm(node: NodeRef<'_>, version: VersionRef<'_>) -> (bool, Option<u64>) {
    version.sum().confirms(node.key(), version.trailer(), version.value())
}

/// The error of an entry of `key` that has changed since its insertion.
#[cold]
pub(super) fn damaged_at(key: &[u8]) -> Error {
    let what = "an entry changed in memory after it was written";
    Error::corruption("memtable", None, what).at_key(key)
}

/// The error of a walk that met `met` of `count` entries.
#[cold]
pub(super) fn lost_entries(met: u64, count: u64) -> Error {
    let what = format!("a memtable has {count} entries, and a walk over it met {met}");
    Error::corruption("memtable", None, what)
}
