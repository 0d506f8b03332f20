//! The input side of the filter: it pairs each entry with its metadata.
//!
//! An entry and its metadata have the same key, sequence number and file. Other nodes may have
//! written a table that is not sealed. There the filter makes missing metadata and drops metadata
//! without an entry, as in the paper. In a sealed table both are faults.
//!
//! Invariants:
//! 1. Every slot is judged once: by its metadata, by what the table's seal keeps, by what a repair
//!    put there, or as missing.
//! 2. An entry of a damaged block is good only if its metadata says so.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use lsm_core::error::{Error, Result};
use lsm_core::hooks::{Entry, Fault, Faults, Job, Origin, Vouched};
use lsm_core::types::{EntryKind, FileNo, SeqNo};

use crate::cluster::{Cluster, JUDGED};
use crate::counts::Counts;
use crate::detail::{Cause, Detail, EntryPlace};
use crate::metahive::Shared;
use crate::payload::{HEAD_BYTES, Payload, entry_key};
use crate::table_seal::{INCOMPLETE, TableSeal};
use crate::verdict::{Verdict, judge};

use super::halves::{Half, join, push};
use super::provided;

/// An input of the job.
struct CountedTable {
    file: FileNo,
    path: PathBuf,
    /// `None` for a table that is not sealed.
    seal: Option<TableSeal>,
    /// The number of entries that came from it, metadata not counted.
    entries: u64,
}

/// See the module.
pub(super) struct Judge {
    // Fixed after the start.
    pub(super) shared: Arc<Shared>,
    /// The places that repairs filled: an entry that came out of the log has no metadata to agree
    /// with, and a poisoned one disagrees for ever.
    repaired: HashSet<EntryPlace>,
    /// All entries of the inputs come.
    pub(super) is_whole: bool,

    /// Ascending by file.
    tables: Vec<CountedTable>,
    /// The table that the last entry came from.
    last_table: usize,

    /// Entries without metadata, and metadata without entries, that must not be.
    unpaired: Vec<Half>,
    orphans: Vec<Half>,
    /// Entries that a repair put there and no metadata has come for: what may still come, because
    /// another entry's damage put it elsewhere, is no orphan.
    settled: Vec<(Vec<u8>, SeqNo, Option<FileNo>)>,
    /// Metadata that is damaged while its entry is not: the job writes it anew.
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
            repaired: job.repaired.iter().map(EntryPlace::from).collect(),
            is_whole: !job.partial,
            tables,
            last_table: 0,
            unpaired: Vec::new(),
            orphans: Vec::new(),
            settled: Vec::new(),
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
        faults: &mut Faults,
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
                    let half = self.half(cluster, slot, what, Some(entry.value));
                    push(faults, half, &mut self.counts);
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
            Verdict::DataCorrupt if !self.is_repaired(cluster, slot) => {
                cluster.judged(slot);
                return Verdict::DataCorrupt;
            }
            Verdict::Valid if is_whole => {}
            // A repair put the entry there, and the metadata is that of the entry before.
            Verdict::DataCorrupt => self.counts.metadata_rebuilt += 1,
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
            detail: Vec::new(),
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

    /// Returns `true` if a repair has put the entry there.
    fn is_repaired(&self, cluster: &Cluster, slot: usize) -> bool {
        // The first question answers for nearly every job, and saves the search for the place.
        !self.repaired.is_empty()
            && self.repaired.contains(&EntryPlace::from(&cluster.origin(slot)))
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
                    let half = self.half(cluster, slot, what, Some(&payload));
                    self.unpaired.push(half);
                }
                continue;
            }
            // Neither beside the entry nor in the seal: in a sealed table that is damage, whatever
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
            if self.is_repaired(cluster, slot) {
                let seq = cluster.stored_seq(slot);
                self.settled.push((cluster.key.clone(), seq, at.file));
            } else {
                let half = self.half(cluster, slot, what, None);
                self.unpaired.push(half);
            }
            cluster.judged(slot);
        }
    }

    fn half(&self, cluster: &Cluster, slot: usize, what: &str, payload: Option<&[u8]>) -> Half {
        let at = cluster.origin(slot);
        let cause = if payload.is_some() { Cause::Disagrees } else { Cause::Unpaired };
        Half {
            fault: Fault {
                key: cluster.key.clone(),
                seq: cluster.stored_seq(slot),
                kind: cluster.slots[slot].kind(),
                // Only a provider keeps values. A repair reads the entry again by its place.
                value: cluster.values.get(slot).cloned().unwrap_or_default(),
                at,
                what: what.to_owned(),
                detail: Vec::new(),
            },
            detail: Detail {
                cause,
                is_sealed: self.seal_of(at.file).is_some(),
                payload: payload.map(<[u8]>::to_vec),
                partner: None,
            },
        }
    }

    /// An entry that its judge found good, or left to this comparison, is not what was written.
    #[cold]
    pub(super) fn push_changed(
        &mut self,
        entry: &Entry<'_>,
        at: Origin,
        vouched: Vouched<'_>,
        faults: &mut Faults,
    ) {
        let fault = Fault {
            key: entry.key.to_vec(),
            seq: entry.stored_seq,
            kind: entry.kind,
            value: Vec::new(),
            at,
            what: String::new(),
            detail: Vec::new(),
        };
        // The judge only believed the metadata, in the first run. This ends that run, and in the
        // next one the judge compares.
        if vouched.is_compared_later {
            // Not counted, and without words: it only ends this run, and the next one finds out what is
            // damaged.
            return faults.push(fault);
        }
        let what = "the entry changed in memory after it was verified".to_owned();
        let fault = Fault { what, ..fault };
        // Of integrity the metadata is made from the note, with which it agreed. Only the provider
        // itself can read that of a provider.
        let payload = match vouched.hidden {
            Some(hidden) if !self.shared.is_integrity => provided(entry.stored_seq, hidden),
            _ => Payload::new(entry.stored_seq, vouched.note).encode(),
        };
        let cause = Cause::Disagrees;
        let detail = Detail { cause, is_sealed: true, payload: Some(payload), partner: None };
        push(faults, Half { fault, detail }, &mut self.counts);
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
            (Cause::Unpaired, "the entry's key has the ending of metadata")
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
            detail: Vec::new(),
        };
        let payload = (!is_data).then(|| entry.value.to_vec());
        let half =
            Half { fault, detail: Detail { cause, is_sealed: true, payload, partner: None } };
        if is_data { &mut self.unpaired } else { &mut self.orphans }.push(half);
    }

    /// At the end of the job: reports the halves, those that belong together in one another's
    /// words.
    pub(super) fn report(&mut self, faults: &mut Faults) {
        let mut orphans = std::mem::take(&mut self.orphans);
        // First, so that metadata of a repaired entry does not become the other half of a damaged
        // one.
        for (key, seq, file) in self.settled.drain(..) {
            orphans.retain(|Half { fault, .. }| {
                let is_its_own = entry_key(&fault.key) == Some(&key[..]) && fault.seq == seq;
                !is_its_own || fault.at.file != file
            });
        }
        join(&mut self.unpaired, &mut orphans);
        for half in self.unpaired.drain(..) {
            push(faults, half, &mut self.counts);
        }
        for orphan in orphans {
            push(faults, orphan, &mut self.counts);
        }
        for (fault, _) in self.metadata_faults.drain(..) {
            // No fault of the job: the output has new metadata, and the run need not be repeated.
            faults.mended(fault, "made anew from its entry");
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
