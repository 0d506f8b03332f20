//! The cursors that a scan merges, as one type, so that the merge calls no virtual function.

use std::ops::Bound;
use std::sync::Arc;

use super::prefix::PrefixQuery;
use crate::error::Result;
use crate::iter::{
    Direction, InternalIter, MergeSource, SkipOlder, forward_to_variants, skip_to_border,
};
use crate::memtable::MemtableIter;
use crate::partition::ReadView;
use crate::sstable::{BlockCheck, ReadMode, SstIter, SstReader};
use crate::types::{KeyRef, SeqNo, Slice, Trailer, prefix8};
use crate::version::{LevelIter, TableContext};

/// One sorted input of a scan. With a memtable and a table comes the number of its newest entry, as far as a reader of
/// the view sees it.
pub enum Source {
    /// A memtable.
    Memtable(MemtableIter, SeqNo),
    /// A table of level 0.
    Table(SstIter, SeqNo),
    /// A whole deeper level.
    Level(LevelIter),
}

impl Source {
    /// The sources of a view, newest first.
    pub fn all(view: &ReadView, context: &Arc<TableContext>) -> Result<Vec<Source>> {
        Source::all_checked(view, context, SeqNo::ZERO, None, None)
    }

    /// As [`Source::all`], without those whose entries all lie below `clear_seq`; `check` sees each block of
    /// a table before anything of the block is returned. Those that `prefix` spares are left out as well.
    pub fn all_checked(
        view: &ReadView,
        context: &Arc<TableContext>,
        clear_seq: SeqNo,
        check: Option<&Arc<dyn BlockCheck>>,
        mut prefix: Option<PrefixQuery<'_>>,
    ) -> Result<Vec<Source>> {
        let level0 = view.version.levels[0].tables();
        // Later entries of an empty memtable are newer than the sequence number of the reader.
        let memtables = view.memtables().filter(|memtable| !memtable.is_empty());
        let memtables = memtables.filter(|memtable| memtable.last_seq() >= clear_seq);
        let level0 = level0.iter().filter(|table| table.meta.newest() >= clear_seq);
        let levels = view.version.levels[1..].iter().filter(|level| !level.is_empty());
        let levels = levels.filter(|level| level.newest() >= clear_seq);
        // Counted: room for all levels takes more than 1 KiB, which the allocator of glibc does not
        // keep ready. If a memtable gets its first entry after the count, the vector grows.
        // By a prefix, most are left out: the room grows as it is needed.
        let count = match prefix {
            Some(_) => 0,
            None => memtables.clone().count() + level0.clone().count() + levels.clone().count(),
        };
        let mut sources = Vec::with_capacity(count);
        for memtable in memtables {
            // Entries that are inserted later are not seen.
            sources.push(Source::Memtable(memtable.iter(), memtable.last_seq()));
        }
        // Tables of level 0 overlap, so all are opened now. A deeper level opens a table when the
        // walk comes to it.
        for table in level0 {
            let reader = table.reader(context)?;
            if prefix.as_mut().is_some_and(|prefix| prefix.spares_table(reader)) {
                continue;
            }
            let iter = reader.checked_iter(ReadMode::Cached, check.cloned());
            sources.push(Source::Table(iter, table.meta.newest()));
        }
        for level in levels {
            if prefix.as_mut().is_some_and(|prefix| prefix.spares_level(level, context)) {
                continue;
            }
            let context = context.clone();
            let mode = ReadMode::Cached;
            let iter = LevelIter::with_check(level.clone(), context, mode, check.cloned());
            sources.push(Source::Level(iter));
        }
        if let Some(prefix) = prefix {
            prefix.count(context);
        }
        Ok(sources)
    }

    /// The table that the present entry lies in; `None` for a memtable. Only while valid.
    pub fn table(&self) -> Option<&SstReader> {
        match self {
            Source::Memtable(..) => None,
            Source::Table(iter, _) => Some(iter.table()),
            Source::Level(iter) => Some(iter.reader()),
        }
    }

    /// Has the processor fetch memory that seeks to `target` wait for.
    pub fn prefetch_all(sources: &[Source], target: Option<KeyRef<'_>>) -> Result<()> {
        let Some(target) = target else { return Ok(()) };
        for source in sources {
            match source {
                Source::Memtable(..) => {}
                Source::Table(cursor, _) => cursor.prefetch(target),
                Source::Level(cursor) => cursor.prefetch(target),
            }
        }
        Ok(())
    }

    /// Begins to read the ends of tables that a scan from `lower` on opens, where the files are on another machine, all of
    /// them at once. Those of a scan without a lower bound may begin at its other end: they wait for the seek.
    pub fn ask_tables(view: &ReadView, context: &TableContext, lower: &Bound<Vec<u8>>) {
        let [level0, levels @ ..] = &view.version.levels;
        level0.tables().iter().for_each(|table| table.ask_open(context));
        if let Bound::Included(lower) | Bound::Excluded(lower) = lower {
            let tables = levels.iter().filter_map(|it| it.tables().get(it.index_of(lower)));
            tables.for_each(|table| table.ask_open(context));
        }
    }

    /// Begins to read what seeks to `target` wait for, where the files are on another machine: first the ends of
    /// tables that are not open, all of them at once, then blocks.
    ///
    /// # Errors
    /// That of the first table which does not open: each may take the patience of its storage.
    pub fn ask_all(sources: &[Source], target: Option<KeyRef<'_>>) -> Result<()> {
        for source in sources {
            if let Source::Level(cursor) = source {
                cursor.ask_table(target);
            }
        }
        for source in sources {
            match source {
                Source::Memtable(..) => {}
                Source::Table(cursor, _) => cursor.table().ask_block(target)?,
                Source::Level(cursor) => cursor.ask_block(target)?,
            }
        }
        Ok(())
    }

    /// The value, shared where that is worth it.
    pub fn value_slice(&self) -> Slice {
        match self {
            Source::Memtable(cursor, _) => cursor.value_slice(),
            Source::Table(cursor, _) => cursor.value_slice(),
            Source::Level(cursor) => cursor.value_slice(),
        }
    }
}

impl MergeSource for Source {
    #[inline]
    fn prefix(&self) -> u64 {
        match self {
            Source::Memtable(cursor, _) => prefix8(cursor.key().user),
            Source::Table(cursor, _) => cursor.prefix(),
            Source::Level(cursor) => cursor.on_table().prefix(),
        }
    }
}

impl InternalIter for Source {
    forward_to_variants!(Source: Memtable, Table, Level);

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        match self {
            Source::Memtable(cursor, _) => cursor.key(),
            Source::Table(cursor, _) => cursor.key(),
            Source::Level(cursor) => cursor.key(),
        }
    }
}

impl SkipOlder for Source {
    fn skip_older(
        &mut self,
        direction: Direction,
        border: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<bool> {
        match self {
            Source::Level(cursor) => return cursor.skip_older(direction, border, seq),
            Source::Memtable(_, newest) | Source::Table(_, newest) if *newest >= seq => {
                return Ok(false);
            }
            Source::Memtable(cursor, _) => skip_to_border(cursor, direction, border)?,
            Source::Table(cursor, _) => skip_to_border(cursor, direction, border)?,
        }
        Ok(true)
    }
}
