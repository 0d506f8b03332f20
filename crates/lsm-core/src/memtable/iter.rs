//! A cursor over a memtable that owns a part of it.

use std::sync::Arc;

use super::skiplist::{Cursor, NodeRef, SkipList, VersionRef};
use crate::error::Result;
use crate::iter::InternalIter;
use crate::types::{KeyRef, Slice};

/// See the module.
pub struct MemtableIter {
    cursor: Cursor,
}

impl MemtableIter {
    pub(super) fn new(list: Arc<SkipList>) -> MemtableIter {
        MemtableIter { cursor: Cursor::new(list) }
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
        Ok(())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.cursor.go_last();
        Ok(())
    }

    fn seek(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.cursor.seek(target);
        Ok(())
    }

    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.cursor.seek_before(target);
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.cursor.next();
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.cursor.prev();
        Ok(())
    }

    #[inline]
    fn pass(&mut self, user: &[u8]) -> Result<()> {
        if self.cursor.get().is_some_and(|(node, _)| node.key() == user) {
            self.cursor.next_key();
        }
        Ok(())
    }
}
