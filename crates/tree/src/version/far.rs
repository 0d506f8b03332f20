//! Hints for tables whose files are on another machine: what several opens and seeks wait for is asked for at once.

use std::sync::Arc;

use super::level_iter::LevelIter;
use super::table::{Table, TableContext};
use crate::error::Result;
use crate::types::KeyRef;

impl TableContext {
    /// Returns `true` if a read of a file waits for another machine.
    pub fn is_far(&self) -> bool {
        self.fs.caps().is_far
    }
}

impl Table {
    /// Begins to read what the open of its file reads, unless it was read before.
    pub fn ask_open(&self, context: &TableContext) {
        if self.opened().is_none()
            && let Ok(file) = context.open_file(&self.path(context))
        {
            file.prefetch(self.meta.bytes.saturating_sub(1), 1);
        }
    }
}

impl LevelIter {
    /// The table that a seek to `target` opens.
    fn sought(&self, target: Option<KeyRef<'_>>) -> Option<&Arc<Table>> {
        let index = target.map_or(0, |target| self.level.index_of(target.user));
        self.level.tables().get(index)
    }

    /// Begins to read what the open of the table of a seek to `target` reads.
    pub fn ask_table(&self, target: Option<KeyRef<'_>>) {
        if let Some(table) = self.sought(target) {
            table.ask_open(&self.context);
        }
    }

    /// Opens the table of a seek to `target`, and begins to read its block. Errors are those of the seek.
    pub fn ask_block(&self, target: Option<KeyRef<'_>>) -> Result<()> {
        let Some(table) = self.sought(target) else { return Ok(()) };
        table.reader(&self.context)?.ask_block(target)
    }
}
