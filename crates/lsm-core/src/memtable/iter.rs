//! A cursor over a memtable that owns a part of it.

use std::sync::Arc;

use super::protection::{damaged_at, is_intact};
use super::skiplist::{Cursor, NodeRef, SkipList, VersionRef};
use crate::error::Result;
use crate::iter::InternalIter;
use crate::types::{KeyRef, Slice};

/// See the module.
pub struct MemtableIter {
    cursor: Cursor,
    is_checked: bool,
}

impl MemtableIter {
    pub(super) fn new(list: Arc<SkipList>) -> MemtableIter {
        MemtableIter { cursor: Cursor::new(list), is_checked: false }
    }

    /// With each entry held against its checksum.
    pub(super) fn checked(self) -> MemtableIter {
        MemtableIter { is_checked: true, ..self }
    }

    /// After each move: an error if the entry is not the one that came in.
    #[inline]
    fn look(&mut self) -> Result<()> {
        match self.cursor.get() {
            Some((node, version)) if self.is_checked && !is_intact(node, version) => {
                let error = damaged_at(node.key());
                self.cursor.leave();
                Err(error)
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn present(&self) -> (NodeRef<'_>, VersionRef<'_>) {
        self.cursor.get().expect("a valid cursor is on an entry")
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

    fn seek_to_first(&mut self) -> Result<()> {
        self.cursor.go_first();
        self.look()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.cursor.go_last();
        self.look()
    }

    fn seek(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.cursor.seek(target);
        self.look()
    }

    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.cursor.seek_before(target);
        self.look()
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.cursor.next();
        self.look()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.cursor.prev();
        self.look()
    }

    #[inline]
    fn pass(&mut self, user: &[u8]) -> Result<()> {
        if self.cursor.get().is_some_and(|(node, _)| node.key() == user) {
            self.cursor.next_key();
        }
        self.look()
    }
}
