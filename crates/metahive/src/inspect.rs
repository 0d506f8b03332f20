//! The comparison of one table with its metadata, by the filter, outside of a job.
//!
//! [`scrub`](crate::scrub()) and [`explain`](crate::explain()) call it. It only reads: a compaction
//! repairs what it finds.
//!
//! Invariants:
//! 1. It judges as a compaction does. A fault here is a fault in a compaction. Entries that a
//!    compaction accepts, and metadata that it makes again, are counted as such.
//! 2. Entries that earlier repairs wrote do not count: they are in other tables.

use std::fmt;
use std::sync::Arc;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{Entry, Fault, InputTable, Job, JobKind, Origin, PartitionHooks, as_any};
use lsm_core::raw::{RawEntry, RawTable, Walk};
use lsm_core::types::{EntryKind, KeyForm, SeqNo};

use crate::counts::Counts;
use crate::filter::{Cause, HiveFilter, NotedFault, VerifiedEntries};
use crate::metahive::MetaHive;
use crate::payload::entry_key;
use crate::provider::Integrity;
use crate::shared::Shared;
use crate::table_seal::TableSeal;
use crate::verdict::Verdict;

/// The part of its entries for which a table has metadata: all, none, or those of others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sealing {
    /// No: a node without MetaHive wrote it, or it is older than its partition's MetaHive. If the
    /// partition has MetaHive, the next compaction makes what is missing.
    Unsealed,
    /// Yes: what is missing is damage.
    Sealed,
    /// Another provider or a newer version made its metadata, as this text says. Nothing of it can
    /// be verified here.
    Foreign(String),
}

/// Something wrong with an entry or its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryFault {
    /// The user key that it is about, as it is stored now: the damage may be in it.
    pub key: Vec<u8>,
    /// The stored sequence number.
    pub seq: SeqNo,
    /// The kind that the entry claims; for metadata without its entry, a tombstone.
    pub kind: EntryKind,
    /// The place of the thing that `what` names: the entry, or its metadata.
    pub at: Origin,
    /// The fault, in one phrase.
    pub what: String,
    /// The damaged part. [`Verdict::DataCorrupt`] as well where half of a pair is missing.
    pub verdict: Verdict,
}

impl EntryFault {
    fn new(key: &[u8], fault: &Fault, verdict: Verdict) -> EntryFault {
        let key = key.to_vec();
        let what = fault.what.clone();
        EntryFault { key, seq: fault.seq, kind: fault.kind, at: fault.at, what, verdict }
    }
}

impl fmt::Display for EntryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EntryFault { key, seq, kind, at, what, .. } = self;
        let key = key.escape_ascii();
        write!(f, "{what}: key \"{key}\", sequence {seq}, {kind:?}, ")?;
        write!(f, "block at {}, entry {}", at.block_offset, at.entry)
    }
}

/// The provider and the counts by which entries of a partition are verified.
pub(crate) struct Inspector {
    partition: String,
    shared: Arc<Shared>,
    /// `true` if the partition has MetaHive, so that flushes and compactions make what is missing.
    pub(crate) has_metahive: bool,
    pub(crate) key_form: KeyForm,
}

impl Inspector {
    /// By the partition's own provider; by integrity, if the partition has no filter that seals.
    ///
    /// # Errors
    /// `Unsupported` if the filter that seals is not [`MetaHive`].
    pub(crate) fn of(walk: &Walk) -> Result<Inspector> {
        let PartitionHooks { rules, .. } = &**walk.hooks();
        let shared = match walk.hooks().sealing() {
            None => Shared::new(Arc::new(Integrity), true),
            Some(factory) => {
                let Some(hive) = as_any(&**factory).downcast_ref::<MetaHive>() else {
                    let partition = walk.partition();
                    let name = factory.name();
                    let what = format!("partition {partition:?} is sealed by {name:?}");
                    return Err(Error::new(ErrorKind::Unsupported, what));
                };
                hive.apart()
            }
        };
        let partition = walk.partition().to_owned();
        let has_metahive = walk.hooks().sealing().is_some();
        Ok(Inspector { partition, shared, has_metahive, key_form: rules.key_form })
    }

    /// Returns `true` if entries are verified by integrity.
    pub(crate) fn is_integrity(&self) -> bool {
        self.shared.is_integrity
    }

    /// The stored key of a user key.
    pub(crate) fn stored_key(&self, key: &[u8]) -> Vec<u8> {
        self.key_form.stored(key.to_vec())
    }

    /// Begins with a table, or says who sealed it.
    ///
    /// # Errors
    /// Those of opening the table.
    pub(crate) fn begin(&self, table: &RawTable) -> Result<Result<Inspection, String>> {
        let file = table.meta().file;
        let input = InputTable { file, path: table.path(), properties: table.properties()?.user };
        // A table of another provider is no error: the rest of the partition can be verified.
        let seal = match TableSeal::of(&input.properties, self.shared.provider.name()) {
            Ok(seal) => seal,
            Err(refused) => return Ok(Err(refused.to_string())),
        };
        let job = Job {
            level_from: table.level(),
            level_to: table.level(),
            inputs: std::slice::from_ref(&input),
            // The filter runs as in a compaction of this table alone, which stays on its level.
            ..Job::new(&self.partition, JobKind::Compaction)
        };
        let filter = HiveFilter::start(self.shared.clone(), &job)?;
        let key_form = self.key_form;
        Ok(Ok(Inspection { seal, key_form, filter }))
    }
}

/// A table under way.
pub(crate) struct Inspection {
    /// The table's seal, if it is sealed.
    pub(crate) seal: Option<TableSeal>,
    key_form: KeyForm,
    filter: HiveFilter,
}

impl Inspection {
    pub(crate) fn sealing(&self) -> Sealing {
        if self.seal.is_some() { Sealing::Sealed } else { Sealing::Unsealed }
    }

    /// Takes the next entry, hidden ones as well.
    #[inline]
    pub(crate) fn take(&mut self, entry: &RawEntry<'_>) {
        self.filter.take(&stored(entry), entry.at);
    }

    /// Returns `true` if the filter takes the entry for metadata.
    pub(crate) fn may_be_metadata(&self, entry: &RawEntry<'_>) -> bool {
        self.filter.may_be_metadata(&stored(entry), entry.at)
    }

    /// All that is after the last entry.
    pub(crate) fn finish(mut self) -> Inspected {
        let sums = self.filter.block_sums.take().unwrap_or_default();
        let incomplete = self.seal.as_ref().map_or_else(Vec::new, |seal| seal.incomplete(&sums));
        let VerifiedEntries { entries, counts, faults, of_metadata } =
            self.filter.finish_verifying();
        let orphans = counts.orphans_dropped;
        let mut inspected = Inspected { entries, counts, orphans, faults: Vec::new(), incomplete };
        for NotedFault { fault, cause, is_sealed } in faults {
            inspected.orphans += u64::from(cause == Cause::Orphan);
            // In a sealed table no entry has a key of this ending: it is metadata, or was.
            let of = entry_key(&fault.key).filter(|_| is_sealed).unwrap_or(&fault.key);
            let key = self.key_form.user(of);
            inspected.faults.push(EntryFault::new(key, &fault, Verdict::DataCorrupt));
        }
        for (fault, verdict) in of_metadata {
            let key = self.key_form.user(&fault.key);
            inspected.faults.push(EntryFault::new(key, &fault, verdict));
        }
        // Entries without metadata are reported at the end of the table, and the others as they come.
        inspected.faults.sort_by_key(|fault| (fault.at.block_offset, fault.at.entry));
        inspected
    }
}

fn stored<'a>(entry: &RawEntry<'a>) -> Entry<'a> {
    let RawEntry { key, seq, stored_seq, kind, value, hidden, .. } = *entry;
    Entry { key, seq, stored_seq, kind, value, hidden }
}

/// The findings in a table.
pub(crate) struct Inspected {
    /// Its entries, metadata not counted.
    pub(crate) entries: u64,
    pub(crate) counts: Counts,
    /// Metadata without its entry.
    pub(crate) orphans: u64,
    /// In the order of their places.
    pub(crate) faults: Vec<EntryFault>,
    /// The offsets of blocks that lack entries, or have others.
    pub(crate) incomplete: Vec<Option<u64>>,
}
