//! Which files may go, and removing them.
//!
//! A table that left the version waits here until no view holds it: neither a reader, nor an
//! iterator, nor a job. Removal itself needs no order: the edit that dropped the file is durable,
//! and what a crash leaves behind is removed at the next open.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::DbInner;
use crate::error::Result;
use crate::fs::names::{FileKind, FileName};
use crate::version::Table;

/// Files that are no longer referenced by the current version.
#[derive(Default)]
pub(super) struct ObsoleteFiles {
    waiting: Mutex<Vec<(FileName, Weak<Table>)>>,
}

impl ObsoleteFiles {
    /// Adds tables whose removal is durable.
    pub(super) fn add<'a>(&self, tables: impl Iterator<Item = &'a Arc<Table>>) {
        let entries = tables.map(|table| {
            let name = FileName::new(FileKind::Sst, table.meta.file, table.meta.epoch);
            (name, Arc::downgrade(table))
        });
        self.waiting.lock().extend(entries);
    }

    /// Whether files wait for somebody to let go of them.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Bytes of files that somebody holds.
    pub(super) fn pinned_bytes(&self) -> u64 {
        // Under the lock, so that this looks like no holder to `take_free`.
        let waiting = self.waiting.lock();
        waiting.iter().filter_map(|(_, table)| Some(table.upgrade()?.meta.bytes)).sum()
    }

    /// Takes out what nobody holds.
    fn take_free(&self) -> Vec<FileName> {
        let mut waiting = self.waiting.lock();
        let (free, held) = waiting.drain(..).partition(|(_, table)| table.strong_count() == 0);
        *waiting = held;
        drop(waiting);
        free.into_iter().map(|(name, _): (FileName, Weak<Table>)| name).collect()
    }
}

impl DbInner {
    /// Removes the files that nobody holds any more.
    ///
    /// # Errors
    /// Those of the file system. What was not removed is removed at the next open.
    pub(super) fn remove_obsolete(&self) -> Result<()> {
        let free = self.obsolete.take_free();
        let results: Vec<_> =
            free.iter().map(|name| self.fs.delete(&name.path(&self.dir))).collect();
        results.into_iter().collect()
    }
}
