//! [`Fill`]: finished tables of entries that come one by one, in the order of their keys.
//!
//! Used by a bulk load. It is a flush whose entries come from the caller instead of a memtable: the
//! filter that seals takes part, and tables end where they are long enough, as those of a
//! compaction do.
//!
//! Invariant: what is not finished is removed when it is dropped, see [`Outputs`].

use super::inputs::JobEntry;
use super::leveled::level_compression;
use super::rules::KeyBelow;
use super::survivors::Writing;
use super::{JobHooks, JobOutcome, Outputs, Split, TableFactory};
use crate::error::{Error, Result};
use crate::hooks::{Entry, Job, JobKind, JobValues, catch_blamed};
use crate::limits::LEVEL_COUNT;
use crate::types::{EntryKind, SeqNo};
use crate::version::{PartitionVersion, SstMeta};

/// Writes sorted entries of the application to tables, as a bulk load does.
pub struct Fill<'a> {
    factory: &'a TableFactory,
    writing: Writing<'a, 'a>,
    /// The sequence number that every entry is stored with.
    seq: SeqNo,
}

impl<'a> Fill<'a> {
    /// Tables of a partition for its deep levels, whose entries are all stored with `seq`. Of the
    /// hooks in `job_hooks` only the one that seals takes part, and the value store.
    pub fn begin(
        mut job_hooks: JobHooks<'a>,
        version: &PartitionVersion,
        factory: &'a TableFactory,
        seq: SeqNo,
    ) -> Result<Fill<'a>> {
        job_hooks.start(&Job::new(&version.name, JobKind::Flush))?;
        // Nothing in the log names the values of a load, so the store may place them.
        job_hooks.may_relocate = true;
        let options = &version.options;
        let compression = level_compression(options, LEVEL_COUNT - 1);
        let suffix = &job_hooks.hooks().rules.reserved_suffix;
        let outputs =
            Outputs::new(factory, options, compression, seq, suffix).of_partition(version);
        // By size alone: the level, and so what lies below the tables, is chosen when they are
        // finished.
        let split = Some(Split::by_size(options.table_bytes));
        // Stored with `seq`, the entries are newer than any loss: they count under a number that they
        // get when they are installed.
        let writing =
            Writing::new(job_hooks, KeyBelow::for_flush(version), split, outputs).without_gaps();
        Ok(Fill { factory, writing, seq })
    }

    /// Appends an entry; keys ascend.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let seq = self.seq;
        let kind = EntryKind::Value;
        let entry = Entry { key, seq, stored_seq: seq, kind, value, hidden: false };
        let entry = JobEntry::plain(entry);
        // Around each entry, because the loop is the caller's.
        catch_blamed(|| self.writing.take(&entry))
    }

    /// Ends the last table; the tables and their names are durable. The values that the store took
    /// are not.
    pub fn finish(self) -> Result<(Vec<SstMeta>, JobValues)> {
        match self.writing.finish()? {
            JobOutcome::Done { tables, values, .. } => Ok((tables, values)),
            JobOutcome::Faulty(fault) => {
                Err(Error::corruption(&self.factory.dir, None, fault.what).at_key(&fault.key))
            }
        }
    }
}
