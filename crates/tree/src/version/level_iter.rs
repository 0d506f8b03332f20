//! [`LevelIter`]: a whole level below level 0 as one sorted source.
//!
//! The tables of the level are disjoint, so the cursor keeps only one of them open at a time.

use std::sync::Arc;

use super::{Level, Table, TableContext};
use crate::error::Result;
use crate::iter::{Direction, InternalIter, SkipOlder, skip_to_border};
use crate::sstable::{BlockCheck, RawIter, RawMode, ReadMode, SstIter, SstReader};
use crate::types::{KeyRef, SeqNo, Slice, Trailer};

/// A cursor over one table.
pub trait TableCursor: InternalIter {
    /// The way in which it reads.
    type Mode: Copy;

    /// The check of each block that the cursor enters.
    type Check: Default;

    /// A cursor over `table`, whose blocks are passed to `check`.
    ///
    /// # Errors
    /// Those of the check, and of opening the table.
    fn open(
        table: &Table,
        context: &TableContext,
        mode: Self::Mode,
        check: &Self::Check,
    ) -> Result<Self>
    where
        Self: Sized;

    /// Called when the cursor has passed the last entry of its table. Default: nothing.
    ///
    /// # Errors
    /// Those of the check.
    fn end(&self) -> Result<()> {
        Ok(())
    }
}

impl TableCursor for SstIter {
    type Mode = ReadMode;
    type Check = Option<Arc<dyn BlockCheck>>;

    fn open(
        table: &Table,
        context: &TableContext,
        mode: ReadMode,
        check: &Self::Check,
    ) -> Result<SstIter> {
        Ok(table.reader(context)?.checked_iter(mode, check.clone()))
    }

    fn end(&self) -> Result<()> {
        SstIter::end(self)
    }
}

impl TableCursor for RawIter {
    type Mode = RawMode;
    type Check = ();

    fn open(table: &Table, context: &TableContext, mode: RawMode, (): &()) -> Result<RawIter> {
        Ok(table.reader(context)?.raw_iter(mode))
    }
}

/// A cursor over all tables of a level below level 0.
pub struct LevelIter<C: TableCursor = SstIter> {
    pub(super) level: Level,
    pub(super) context: Arc<TableContext>,
    mode: C::Mode,
    check: C::Check,
    index: usize,
    table: Option<C>,
}

impl LevelIter {
    /// The table under the cursor, open. Only while valid.
    pub fn reader(&self) -> &SstReader {
        self.on_table().table()
    }

    /// Has the processor fetch memory that a seek to `target` waits for.
    pub fn prefetch(&self, target: KeyRef<'_>) {
        let table = self.level.tables().get(self.level.index_of(target.user));
        if let Some(reader) = table.and_then(|table| table.opened()) {
            reader.prefetch(target);
        }
    }

    /// The value, shared if that is worth it. Only while valid.
    pub fn value_slice(&self) -> Slice {
        self.on_table().value_slice()
    }
}

impl<C: TableCursor> LevelIter<C> {
    /// A cursor over `level`, which is sorted and disjoint.
    pub fn new(level: Level, context: Arc<TableContext>, mode: C::Mode) -> LevelIter<C> {
        LevelIter::with_check(level, context, mode, C::Check::default())
    }

    /// As [`LevelIter::new`], with a check of each block.
    pub fn with_check(
        level: Level,
        context: Arc<TableContext>,
        mode: C::Mode,
        check: C::Check,
    ) -> LevelIter<C> {
        LevelIter { level, context, mode, check, index: 0, table: None }
    }

    /// The table under the cursor. Only while valid.
    pub fn current_table(&self) -> &Arc<Table> {
        &self.level.tables()[self.index]
    }

    /// The cursor over that table. Only while valid.
    #[inline]
    pub fn on_table(&self) -> &C {
        self.table.as_ref().expect("a valid cursor is on a table")
    }

    /// The same, to be changed in anything but its place.
    pub fn on_table_mut(&mut self) -> &mut C {
        self.table.as_mut().expect("a valid cursor is on a table")
    }

    /// Moves to the table at `index` and places its cursor; past either end, to no table.
    fn enter(
        &mut self,
        index: Option<usize>,
        place: impl FnOnce(&mut C) -> Result<()>,
    ) -> Result<()> {
        let Some(index) = index.filter(|index| *index < self.level.tables().len()) else {
            // No table is no position: past the ends, and after a failed open, the cursor is
            // invalid.
            self.table = None;
            return Ok(());
        };
        // Within one table the cursor is kept: it need not be opened again.
        if self.table.is_none() || self.index != index {
            self.table = None;
            let table = &self.level.tables()[index];
            // The old cursor is dropped first: it holds a block, and read-ahead memory if it streams.
            self.table = Some(C::open(table, &self.context, self.mode, &self.check)?);
            self.index = index;
        }
        let table = self.table.as_mut().expect("it was just entered");
        let placed = place(table);
        if placed.is_err() {
            self.table = None;
        }
        placed
    }

    fn skip_ended_forward(&mut self) -> Result<()> {
        while let Some(table) = self.table.as_ref().filter(|table| !table.valid()) {
            table.end()?;
            // The open of the one after it is a wait for another machine.
            if self.context.is_far()
                && let Some(next) = self.level.tables().get(self.index + 2)
            {
                next.ask_open(&self.context);
            }
            self.enter(Some(self.index + 1), |table| table.seek(None))?;
        }
        Ok(())
    }

    fn skip_ended_backward(&mut self) -> Result<()> {
        while self.table.as_ref().is_some_and(|table| !table.valid()) {
            self.enter(self.index.checked_sub(1), |table| table.seek_before(None))?;
        }
        Ok(())
    }
}

impl<C: TableCursor> InternalIter for LevelIter<C> {
    #[inline]
    fn valid(&self) -> bool {
        self.table.as_ref().is_some_and(C::valid)
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        self.on_table().key()
    }

    #[inline(always)]
    fn value(&self) -> &[u8] {
        self.on_table().value()
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        // The fences choose the table, so a seek opens one table and not all of the level.
        let index = target.map_or(0, |target| self.level.index_of(target.user));
        self.enter(Some(index), |table| table.seek(target))?;
        self.skip_ended_forward()
    }

    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        let last = self.level.tables().len().checked_sub(1);
        // After all tables, the last one has the answer. If the whole table is after the target,
        // the one before it is tried.
        let index = match target {
            Some(target) => last.map(|last| last.min(self.level.index_of(target.user))),
            None => last,
        };
        self.enter(index, |table| table.seek_before(target))?;
        self.skip_ended_backward()
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let table = self.table.as_mut().expect("a valid cursor is on a table");
        // No table any more, so that a caller that overlooks the error finds no entry after the
        // damage.
        if let Err(error) = table.next() {
            self.table = None;
            return Err(error);
        }
        if table.valid() {
            return Ok(());
        }
        self.skip_ended_forward()
    }

    #[inline]
    fn next_key(&mut self, room: &mut Vec<u8>) -> Result<()> {
        let table = self.table.as_mut().expect("a valid cursor is on a table");
        if let Err(error) = table.next_key(room) {
            self.table = None;
            return Err(error);
        }
        if table.valid() {
            return Ok(());
        }
        // All versions of a key are in one table.
        self.skip_ended_forward()
    }

    fn run_before(&self, until: Option<KeyRef<'_>>) -> usize {
        self.on_table().run_before(until)
    }

    #[inline]
    fn next_in_run(&mut self) -> Result<Trailer> {
        let moved = self.on_table_mut().next_in_run();
        if moved.is_err() {
            self.table = None;
        }
        moved
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        let table = self.table.as_mut().expect("a valid cursor is on a table");
        if let Err(error) = table.prev() {
            self.table = None;
            return Err(error);
        }
        if table.valid() {
            return Ok(());
        }
        self.skip_ended_backward()
    }
}

impl SkipOlder for LevelIter {
    fn skip_older(
        &mut self,
        direction: Direction,
        border: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<bool> {
        let tables = self.level.tables();
        // Up to the first table with newer entries: it is walked.
        let newer = match direction {
            Direction::Forward => (self.index..tables.len())
                .take_while(|at| border.is_none_or(|end| *tables[*at].meta.smallest.user < *end))
                .find(|at| tables[*at].meta.newest() >= seq),
            Direction::Backward => (0..=self.index)
                .rev()
                .take_while(|at| {
                    border.is_none_or(|start| *tables[*at].meta.largest.user >= *start)
                })
                .find(|at| tables[*at].meta.newest() >= seq),
        };
        match newer {
            Some(index) if index == self.index => return Ok(false),
            Some(index) if direction == Direction::Forward => {
                self.enter(Some(index), |table| table.seek(None))?;
                self.skip_ended_forward()?;
            }
            Some(index) => {
                self.enter(Some(index), |table| table.seek_before(None))?;
                self.skip_ended_backward()?;
            }
            None => skip_to_border(self, direction, border)?,
        }
        Ok(true)
    }
}
