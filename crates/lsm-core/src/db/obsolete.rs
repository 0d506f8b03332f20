//! Which files may go, and removing them.
//!
//! A table that left the version waits here until no view holds it: neither a reader, nor an
//! iterator, nor a job. Removal itself needs no order: the edit that dropped the file is durable,
//! and what a crash leaves behind is removed at the next open.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::DbInner;
use crate::error::Result;
use crate::fs::names::{FileKind, FileName};
use crate::hooks::ValueStore;
use crate::version::{PartitionVersion, Table};

/// The edit that dropped values, the versions before it, and their store.
type DroppedValues = (u64, Vec<Weak<PartitionVersion>>, Arc<dyn ValueStore>);

/// Files that are no longer referenced by the current version.
#[derive(Default)]
pub(super) struct ObsoleteFiles {
    waiting: Mutex<Vec<(FileName, Weak<Table>)>>,
    /// Oldest first.
    values: Mutex<VecDeque<DroppedValues>>,
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

    /// Notes that edit `number` dropped values that readers of the versions `before` may still
    /// read.
    pub(super) fn add_values(
        &self,
        number: u64,
        before: Vec<Weak<PartitionVersion>>,
        store: Arc<dyn ValueStore>,
    ) {
        self.values.lock().push_back((number, before, store));
    }

    /// Takes out the oldest edit whose dropped values nobody can read any more. Later ones wait
    /// for it, because a reader of an older version may read what they dropped.
    fn take_free_values(&self) -> Option<(u64, Arc<dyn ValueStore>)> {
        let mut values = self.values.lock();
        let is_free = values
            .front()
            .is_some_and(|(_, before, _)| before.iter().all(|version| version.strong_count() == 0));
        if !is_free {
            return None;
        }
        values.pop_front().map(|(number, _, store)| (number, store))
    }

    /// Whether files wait for somebody to let go of them.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && self.values.lock().is_empty()
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
        while let Some((number, store)) = self.obsolete.take_free_values() {
            store.reclaim(number)?;
        }
        let free = self.obsolete.take_free();
        let results: Vec<_> =
            free.iter().map(|name| self.fs.delete(&name.path(&self.dir))).collect();
        results.into_iter().collect()
    }
}
