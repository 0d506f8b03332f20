//! The input side of the filter: it pairs each entry with its metadata.
//!
//! An entry and its metadata have the same key, sequence number and file. Other nodes may have
//! written a table that is not sealed. There the filter makes missing metadata and drops metadata
//! without an entry, as in the paper. In a sealed table both are faults.
//!
//! Invariants:
//! 1. Every slot is judged once: by its metadata, by what the table's seal keeps, or as missing.
//! 2. An entry of a damaged block is good only if its metadata says so.

use std::path::PathBuf;
use std::sync::Arc;

use lsm_core::error::{Error, Result};
use lsm_core::hooks::{Entry, Fault, Faults, Job, Origin};
use lsm_core::types::{EntryKind, FileNo};

use crate::cluster::{Cluster, JUDGED};
use crate::counts::Counts;
use crate::payload::{HEAD_BYTES, Payload, entry_key};
use crate::shared::Shared;
use crate::table_seal::{INCOMPLETE, TableSeal};
use crate::verdict::{Verdict, judge};

/// The sort of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The entry disagrees with its metadata, or has none where it must have some.
    Entry,
    /// The metadata has no entry.
    Orphan,
}

/// A fault, and what is known of it.
pub(crate) struct NotedFault {
    pub(crate) fault: Fault,
    pub(crate) cause: Cause,
    /// `true` if the table has metadata for each entry.
    pub(crate) is_sealed: bool,
}

/// An input of the job.
struct CountedTable {
    file: FileNo,
    path: PathBuf,
    /// `None` for a table that is not sealed.
    seal: Option<TableSeal>,
    /// The number of entries that came from it, metadata not counted.
    entries: u64,
}

/// Compares the entries of one table with their metadata, in the order of the keys.
pub(super) struct Judge {
    // Fixed after the start.
    pub(super) shared: Arc<Shared>,
    /// All entries of the inputs come.
    pub(super) is_whole: bool,

    /// Ascending by file.
    tables: Vec<CountedTable>,
    /// The table that the last entry came from.
    last_table: usize,

    /// Not reported yet.
    pub(super) faults: Vec<NotedFault>,
    /// Metadata that is damaged while its entry is not.
    pub(super) metadata_faults: Vec<(Fault, Verdict)>,
    pub(super) counts: Counts,
}

impl Judge {
    pub(super) fn start(shared: Arc<Shared>, job: &Job<'_>) -> Result<Judge> {
        let mut tables = Vec::with_capacity(job.inputs.len());
        for input in job.inputs {
            let seal = TableSeal::of(&input.properties, shared.provider.name())?;
            let path = input.path.clone();
            tables.push(CountedTable { file: input.file, path, seal, entries: 0 });
        }
        // For the binary search of `seal_of`, which metadata and entries without it go through.
        tables.sort_unstable_by_key(|table| table.file);
        Ok(Judge {
            shared,
            is_whole: !job.partial,
            tables,
            last_table: 0,
            faults: Vec::new(),
            metadata_faults: Vec::new(),
            counts: Counts::default(),
        })
    }

    fn seal_of(&self, file: Option<FileNo>) -> Option<&TableSeal> {
        let file = file?;
        let at = self.tables.binary_search_by_key(&file, |table| table.file).ok()?;
        self.tables[at].seal.as_ref()
    }

    /// Returns `true` if each input table is sealed.
    pub(super) fn are_all_sealed(&self) -> bool {
        self.tables.iter().all(|table| table.seal.is_some())
    }

    /// Counts an entry that is no metadata.
    #[inline]
    pub(super) fn count(&mut self, at: Origin) {
        // Entries of one table mostly come one after the other, so the search is for the others.
        if self.tables.get(self.last_table).is_none_or(|table| Some(table.file) != at.file) {
            let Some(file) = at.file else { return };
            let found = self.tables.binary_search_by_key(&file, |table| table.file);
            let Ok(found) = found else { return };
            self.last_table = found;
        }
        self.tables[self.last_table].entries += 1;
    }

    /// The number of entries that came from all tables.
    pub(super) fn entries(&self) -> u64 {
        self.tables.iter().map(|table| table.entries).sum()
    }

    /// Counts, because entries that are gone with their metadata show nowhere else. A table
    /// whose blocks have a judge shows none of its entries here, and is counted there.
    ///
    /// # Errors
    /// Corruption, if a table had fewer entries than its seal counts.
    pub(super) fn check_counts(&self) -> Result<()> {
        for CountedTable { path, seal, entries, .. } in self.tables.iter().filter(|_| self.is_whole)
        {
            let sealed = seal.as_ref().map_or(0, |seal| seal.sealed);
            // Zero entries are no loss: the blocks of such a table have a judge, which counts them.
            if (1..sealed).contains(entries) {
                let what = format!("the seal counts {sealed} entries, there are {entries}");
                return Err(Error::corruption(path, None, what));
            }
        }
        Ok(())
    }

    /// Holds the blocks of the only table against the digests of its seal: an entry that stands in the
    /// place of another with metadata of its own shows nowhere else.
    ///
    /// # Errors
    /// Corruption that names the block, if a block has not the entries that were written to it.
    pub(super) fn check_digests(&self, sums: &[(u64, u32)]) -> Result<()> {
        let [CountedTable { path, seal: Some(seal), entries, .. }] = &self.tables[..] else {
            return Ok(());
        };
        if !self.is_whole || *entries == 0 {
            return Ok(());
        }
        match seal.incomplete(sums).first() {
            Some(offset) => Err(Error::corruption(path, *offset, INCOMPLETE)),
            None => Ok(()),
        }
    }

    /// Returns `true` if the entry is metadata, or was before it was damaged: no user key ends as
    /// its key does, so in a sealed table nothing else can have been there.
    #[inline]
    pub(super) fn may_be_metadata(&self, entry: &Entry<'_>, at: Origin) -> bool {
        if entry.hidden {
            return true;
        }
        // From here on the key decides. A bit may have made a hidden entry look like one of a user.
        if entry_key(entry.key).is_none() {
            return false;
        }
        let is_payload = entry.kind == EntryKind::Tombstone && !entry.value.is_empty();
        // In a table that is not sealed, users may have keys with this ending. There the form of
        // metadata must be there as well.
        is_payload || self.seal_of(at.file).is_some()
    }

    /// Judges the entry that this metadata belongs to, among the open clusters.
    pub(super) fn take_metadata(
        &mut self,
        entry: &Entry<'_>,
        at: Origin,
        open: &mut [Box<Cluster>],
    ) {
        let key = entry_key(entry.key);
        // From the top of the stack: metadata nearly always belongs to the last cluster.
        let cluster = open.iter_mut().rev().find(|cluster| Some(&cluster.key[..]) == key);
        if let Some(cluster) = cluster {
            // The two sequence numbers of sound metadata are one. If either is damaged the other
            // finds the entry, and the checksum tells whether it is the right one.
            let slot = cluster.find(entry.seq, at.file).or_else(|| {
                let seq = Payload::decode(entry.value).ok()?.seq;
                cluster.find(seq, at.file)
            });
            // Without a slot its entry may have come with another sequence number, or is gone: an
            // orphan, too.
            if let Some(slot) = slot {
                let is_whole = entry.kind == EntryKind::Tombstone
                    && entry.seq == cluster.slots[slot].seq()
                    && is_headed(entry.value, cluster, slot);
                let verdict = self.judge_slot(cluster, slot, entry.value, is_whole, at);
                if verdict == Verdict::DataCorrupt {
                    let what = "the entry disagrees with its metadata";
                    self.note_slot(cluster, slot, what);
                }
                return;
            }
        }
        self.take_orphan(entry, at);
    }

    /// Judges a slot by its V+, which lies at `at`, and marks it. `is_whole` says whether all else
    /// in the metadata entry is as it should be.
    fn judge_slot(
        &mut self,
        cluster: &mut Cluster,
        slot: usize,
        payload: &[u8],
        is_whole: bool,
        at: Origin,
    ) -> Verdict {
        let sum = cluster.slots[slot].sum;
        let verdict = if self.shared.is_integrity {
            Payload::decode(payload).map_or(Verdict::DataCorrupt, |payload| judge(sum, &payload))
        } else {
            self.ask_provider(cluster, slot, payload)
        };
        match verdict {
            Verdict::DataCorrupt => {
                cluster.judged(slot);
                return Verdict::DataCorrupt;
            }
            Verdict::Valid if is_whole => {}
            damage => {
                self.counts.metadata_rebuilt += 1;
                self.note_metadata(cluster, slot, damage, at);
            }
        }
        cluster.judged(slot);
        self.counts.verified += 1;
        // The block's checksum says that something in it is damaged. The metadata says that this
        // entry is not.
        if !cluster.origin(slot).block_verified {
            self.counts.suspects_accepted += 1;
        }
        Verdict::Valid
    }

    #[cold]
    fn note_metadata(&mut self, cluster: &Cluster, slot: usize, damage: Verdict, at: Origin) {
        let (verdict, what) = match damage {
            Verdict::SecondCopyDamaged => (damage, "the metadata's second checksum is damaged"),
            Verdict::MetadataCorrupt | Verdict::DataCorrupt => {
                (Verdict::MetadataCorrupt, "the metadata is damaged, the entry is not")
            }
            Verdict::Valid => {
                let what = "the metadata's sequence number or kind is damaged, the entry is not";
                (Verdict::MetadataCorrupt, what)
            }
        };
        let fault = Fault {
            key: cluster.key.clone(),
            seq: cluster.stored_seq(slot),
            kind: cluster.slots[slot].kind(),
            value: Vec::new(),
            at,
            what: what.to_owned(),
        };
        self.metadata_faults.push((fault, verdict));
    }

    fn ask_provider(&self, cluster: &mut Cluster, slot: usize, payload: &[u8]) -> Verdict {
        let Some((_, metadata)) = payload.split_at_checked(HEAD_BYTES) else {
            return Verdict::DataCorrupt;
        };
        let entry = Entry {
            key: &cluster.key,
            seq: cluster.slots[slot].seq(),
            stored_seq: cluster.stored_seq(slot),
            kind: cluster.slots[slot].kind(),
            value: &cluster.values[slot],
            hidden: false,
        };
        let verdict = self.shared.provider.check(&entry, metadata);
        let made = &mut cluster.made[slot];
        if verdict == Verdict::Valid
            && made.is_untouched
            && let Some(carried) = self.shared.provider.carry(&entry, metadata)
        {
            made.bytes = carried;
        }
        verdict
    }

    /// Judges what no metadata has come for.
    pub(super) fn judge_rest(&mut self, cluster: &mut Cluster) {
        for slot in 0..cluster.slots.len() {
            if cluster.slots[slot].is(JUDGED) {
                continue;
            }
            let at = cluster.origin(slot);
            let seal = self.seal_of(at.file);
            let stored_seq = cluster.stored_seq(slot).get();
            let kept = seal.and_then(|seal| seal.open_payload(&cluster.key, stored_seq));
            if let Some(payload) = kept.map(<[u8]>::to_vec) {
                if self.judge_slot(cluster, slot, &payload, true, at) == Verdict::DataCorrupt {
                    let what = "the entry disagrees with the metadata in the table's properties";
                    self.note_slot(cluster, slot, what);
                }
                continue;
            }
            // Neither next to the entry nor in the seal: in a sealed table that is damage, whatever
            // the block's checksum says. The entry may be one that a bit moved to another key.
            let what = match seal {
                Some(_) => "the entry has no metadata in a table that is sealed",
                // A table of other nodes may lack metadata. An entry of a damaged block then has
                // nothing left that vouches for it.
                None if !at.block_verified => "the block is damaged and the entry has no metadata",
                None => {
                    self.counts.made += 1;
                    cluster.judged(slot);
                    continue;
                }
            };
            self.note_slot(cluster, slot, what);
            cluster.judged(slot);
        }
    }

    /// Notes the fault of a slot.
    #[cold]
    fn note_slot(&mut self, cluster: &Cluster, slot: usize, what: &str) {
        let at = cluster.origin(slot);
        let fault = Fault {
            key: cluster.key.clone(),
            seq: cluster.stored_seq(slot),
            kind: cluster.slots[slot].kind(),
            // Only a provider keeps values.
            value: cluster.values.get(slot).cloned().unwrap_or_default(),
            at,
            what: what.to_owned(),
        };
        self.note(fault, Cause::Entry);
    }

    fn note(&mut self, fault: Fault, cause: Cause) {
        self.counts.faults += 1;
        let is_sealed = self.seal_of(fault.at.file).is_some();
        self.faults.push(NotedFault { fault, cause, is_sealed });
    }

    /// An entry that its judge found good, or left to this comparison, is not what was written.
    #[cold]
    pub(super) fn push_changed(&mut self, entry: &Entry<'_>, at: Origin, faults: &mut Faults) {
        self.counts.faults += 1;
        faults.push(Fault {
            key: entry.key.to_vec(),
            seq: entry.stored_seq,
            kind: entry.kind,
            value: Vec::new(),
            at,
            what: "the entry disagrees with its metadata".to_owned(),
        });
    }

    fn take_orphan(&mut self, entry: &Entry<'_>, at: Origin) {
        // A node without MetaHive may have dropped the entry and kept this.
        if self.seal_of(at.file).is_none() {
            self.counts.orphans_dropped += 1;
            return;
        }
        let is_data =
            !entry.hidden && (entry.kind != EntryKind::Tombstone || entry.value.is_empty());
        let (cause, what) = if is_data {
            (Cause::Entry, "the entry's key has the ending of metadata")
        } else {
            (Cause::Orphan, "metadata without its entry in a table that is sealed")
        };
        let fault = Fault {
            key: entry.key.to_vec(),
            seq: entry.stored_seq,
            kind: entry.kind,
            value: entry.value.to_vec(),
            at,
            what: what.to_owned(),
        };
        self.note(fault, cause);
    }

    /// Hands the faults over to the job. Metadata that is damaged alone is none: the job makes it again.
    #[inline]
    pub(super) fn report(&mut self, faults: &mut Faults) {
        if !self.faults.is_empty() {
            self.faults.drain(..).for_each(|found| faults.push(found.fault));
        }
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        // Here and not at the end of a job: a run that an error ends has counted as well.
        self.shared.add(self.counts);
    }
}

/// Returns `true` if V+ begins with the sequence number of its entry.
fn is_headed(payload: &[u8], cluster: &Cluster, slot: usize) -> bool {
    payload.starts_with(&cluster.stored_seq(slot).get().to_le_bytes())
}
