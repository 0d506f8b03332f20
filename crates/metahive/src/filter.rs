//! The compaction filter: in one pass over the entries of a job it verifies the input and seals the
//! output.
//!
//! [`MetaHive`](crate::MetaHive) makes one filter for each job, and the executor of the engine
//! calls it. `inspect.rs` uses it for one table, to verify the table without writing.
//!
//! The filter passes an entry on before it has read the metadata of the entry, because metadata
//! sorts after all versions of its key. This is safe: when the metadata arrives and disagrees, the
//! filter reports a fault, and a job with a fault installs nothing. The filter emits the metadata of
//! the output at `boundary`, after the metadata of the input. It uses the checksums that it
//! computed when the entries came in.
//!
//! In a compaction the filter alone compares entries with their metadata: the verifier of the input tables
//! hands on what the metadata says. So a compaction hashes each entry once. In a repair the judge compares and
//! in an export the verifier does, and the filter compares again, because memory may change in between.
//!
//! Invariants:
//! 1. The checksum of an untouched survivor is the one that was compared with its metadata: it is
//!    never computed again from bytes that may have changed since.
//! 2. Metadata is emitted in key order, before the first key that sorts after it.
//! 3. Between an entry and its metadata no cut is allowed within the bounds of a group.
//! 4. In a table that is sealed, nothing is made again and nothing is dropped without a fault.

mod output;
mod spans;
mod verify;

use std::sync::Arc;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{
    CompactionFilter, Cut, Emitter, EndedBlock, Entry, Fault, Faults, Input, Job, JobKind, Origin,
    Output, Properties, VerifiedEntry,
};
use lsm_core::types::{KeyRef, SeqNo};

use crate::checksum;
use crate::cluster::{Cluster, Made, SURVIVES};
use crate::counts::Counts;
use crate::payload::{Payload, metadata_key_precedes};
use crate::shared::{NOT_SEALED, Shared};
use crate::table_seal::{PROPERTY, TableSeal};
use crate::verdict::Verdict;

use output::{payloads_of, provided};
use spans::Spans;
use verify::Judge;

pub(crate) use verify::{Cause, NotedFault};

/// Most bytes of other keys that may lie between an entry and its metadata in one block.
pub const GROUP_OTHER_BYTES_MAX: u64 = 64 << 10;

/// Most bytes that a group may have in all, from its first entry to its metadata.
pub const GROUP_BYTES_MAX: u64 = 1 << 20;

/// An input that may be written next.
#[derive(Clone, Copy, Debug)]
enum LastInput {
    /// There is none.
    None,
    /// The last slot of the top cluster, with this stored sequence number.
    InCluster(SeqNo),
    /// An entry that its judge has vouched for, which no cluster has: stored sequence number, checksum,
    /// and the address of its key, which is compared and never followed.
    Verified(SeqNo, u64, usize),
}

/// Boxed, because each of them moves through all three lists.
type Clusters = Vec<Box<Cluster>>;

/// The compaction filter that verifies, makes and carries metadata in one job.
pub(crate) struct HiveFilter {
    // Fixed after the start.
    shared: Arc<Shared>,
    is_flush: bool,
    /// All input tables are sealed.
    are_all_sealed: bool,

    judge: Judge,
    /// Clusters whose metadata sorts after the entry that came last, the innermost on top.
    open: Clusters,
    /// Clusters whose metadata is due, in its order.
    ready: Clusters,
    /// Empty ones, for their room.
    free: Clusters,
    /// The last input, while its survival may still be reported.
    last_input: LastInput,

    /// Bytes of the output so far, without entries that were noted.
    written: u64,
    /// Of the table that is being written.
    table_sealed: u64,
    table_split: u64,
    table_keys: u64,
    spans: Spans,
    /// Survivors whose metadata was emitted at the last boundary, until the next entry is written.
    emitted: u64,
    /// The metadata that the last input had, of a provider that may carry it on.
    carried: Option<Vec<u8>>,
    /// The sums of the inputs, block by block: offset and low bits. Of one table that is looked at by
    /// itself, whose blocks no judge has seen.
    pub(crate) block_sums: Option<Vec<(u64, u32)>>,
}

impl HiveFilter {
    pub(crate) fn start(shared: Arc<Shared>, job: &Job<'_>) -> Result<HiveFilter> {
        let judge = Judge::start(shared.clone(), job)?;
        Ok(HiveFilter {
            shared,
            is_flush: job.kind == JobKind::Flush,
            are_all_sealed: judge.are_all_sealed(),
            judge,
            open: Vec::new(),
            ready: Vec::new(),
            free: Vec::new(),
            last_input: LastInput::None,
            written: 0,
            table_sealed: 0,
            table_split: 0,
            table_keys: 0,
            spans: Spans::default(),
            emitted: 0,
            carried: None,
            block_sums: is_table_alone(job).then(Vec::new),
        })
    }

    /// Returns `true` if it takes an input for metadata.
    pub(crate) fn may_be_metadata(&self, entry: &Entry<'_>, at: Origin) -> bool {
        self.judge.may_be_metadata(entry, at)
    }

    /// After the last input: the number of entries, what else was counted, the faults, and which metadata
    /// is damaged while its entry is not.
    pub(crate) fn finish_verifying(mut self) -> VerifiedEntries {
        self.close_until(None);
        VerifiedEntries {
            entries: self.judge.entries(),
            counts: self.judge.counts,
            faults: std::mem::take(&mut self.judge.faults),
            of_metadata: std::mem::take(&mut self.judge.metadata_faults),
        }
    }

    /// Takes an entry of a table whose blocks no judge has seen, a hidden one too.
    pub(crate) fn take(&mut self, entry: &Entry<'_>, at: Origin) -> Input {
        // Metadata is taken and never written, so no output may follow it.
        self.last_input = LastInput::None;
        // That of an entry before, which was dropped, is not this one's.
        self.carried = None;
        if self.judge.may_be_metadata(entry, at) {
            self.judge.take_metadata(entry, at, &mut self.open);
            return Input::Take;
        }
        // After the metadata: the seal of a table counts entries alone.
        self.judge.count(at);
        self.close_until(Some(entry.key));
        let sum = checksum::of_entry(entry.key, entry.value, entry.stored_seq, entry.kind);
        if self.block_sums.is_some() {
            self.add_to_block(at.block_offset, sum);
        }
        let is_integrity = self.shared.is_integrity;
        let cluster = self.open_cluster(entry.key);
        cluster.push(entry, sum, at);
        if !is_integrity {
            cluster.values.push(entry.value.to_vec());
            cluster.made.push(Made::default());
        }
        self.last_input = LastInput::InCluster(entry.stored_seq);
        Input::Pass
    }

    /// Notes blocks of the output that have ended.
    fn blocks_ended(&mut self, blocks: &[EndedBlock]) {
        for block in blocks {
            self.table_sealed += block.notes;
            self.table_keys += block.notes;
            self.judge.counts.sealed += block.notes;
            self.spans.block_ended(block.sum_of_notes, block.is_forced);
            if block.is_forced {
                self.count_forced_cut();
            }
        }
    }

    fn take_ended(&mut self, out: &mut Emitter<'_>) {
        if let Some(ended) = out.ended_blocks() {
            self.blocks_ended(ended);
            ended.clear();
        }
    }

    /// Puts the cluster of `key` on top, unless it is there.
    #[inline]
    fn open_cluster(&mut self, key: &[u8]) -> &mut Cluster {
        if self.open.last().is_none_or(|top| top.key != key) {
            // Used again with its room: a job of small keys would otherwise call the allocator for
            // each.
            let mut cluster = self.free.pop().unwrap_or_default();
            cluster.reset(key);
            self.open.push(cluster);
        }
        self.open.last_mut().expect("just pushed")
    }

    /// Ends the clusters whose metadata sorts before `next`; all of them for `None`.
    #[inline]
    fn close_until(&mut self, next: Option<&[u8]>) {
        // From the top: the innermost cluster's metadata sorts first.
        while let Some(mut cluster) = self.open.pop_if(|top: &mut Box<Cluster>| {
            next.is_none_or(|next| metadata_key_precedes(&top.key, next))
        }) {
            // No metadata can come any more: all of it sorts before `next`.
            if cluster.unjudged > 0 {
                self.judge.judge_rest(&mut cluster);
            }
            if cluster.survivors > 0 {
                self.ready.push(cluster);
            } else {
                self.free.push(cluster);
            }
        }
    }

    fn add_to_block(&mut self, offset: u64, sum: u64) {
        let Some(sums) = &mut self.block_sums else { return };
        match sums.last_mut() {
            // Blocks come one after the other, so the sum of a block is the last in the list.
            Some((last, block)) if *last == offset => *block = block.wrapping_add(sum as u32),
            _ => sums.push((offset, sum as u32)),
        }
    }
}

/// The result of the verification of a table.
pub(crate) struct VerifiedEntries {
    /// The number of its entries.
    pub(crate) entries: u64,
    pub(crate) counts: Counts,
    pub(crate) faults: Vec<NotedFault>,
    /// Metadata that is damaged while its entry is not.
    pub(crate) of_metadata: Vec<(Fault, Verdict)>,
}

/// Returns `true` if the blocks of one table come as they are.
fn is_table_alone(job: &Job<'_>) -> bool {
    job.kind == JobKind::Compaction && !job.partial && job.inputs.len() == 1
}

impl CompactionFilter for HiveFilter {
    fn input(
        &mut self,
        entry: &Entry<'_>,
        at: &Origin,
        verified: Option<&VerifiedEntry<'_>>,
        faults: &mut Faults,
    ) -> Result<Input> {
        let Some(verified) = verified else {
            let taken = self.take(entry, *at);
            self.judge.report(faults);
            return Ok(taken);
        };
        // Its judge has counted, and what comes here in addition is a part of the table.
        self.judge.is_whole = false;
        if verified.note == NOT_SEALED && !self.are_all_sealed {
            let taken = self.take(entry, *at);
            self.judge.report(faults);
            return Ok(taken);
        }
        // The judge saw the bytes as they lay in their block; what came since is damage in memory.
        let sum = checksum::of_entry(entry.key, entry.value, entry.stored_seq, entry.kind);
        if sum != verified.note {
            self.judge.push_changed(entry, *at, faults);
        }
        if !self.shared.is_integrity {
            self.carried = verified.hidden.map(<[u8]>::to_vec);
        }
        self.last_input =
            LastInput::Verified(entry.stored_seq, verified.note, entry.key.as_ptr().addr());
        Ok(Input::Pass)
    }

    fn output(&mut self, output: &Output<'_>) -> Result<u64> {
        let Output { entry, untouched_from, value_sum, is_noted, is_held, .. } = output;
        if *is_held {
            return Ok(self.write_held(output));
        }
        if *is_noted {
            return self.sum_of_output(entry, *untouched_from, *value_sum);
        }
        let bytes = (entry.key.len() + entry.value.len()) as u64;
        if let LastInput::InCluster(stored) = self.last_input {
            self.last_input = LastInput::None;
            let sum = self.changed_in_cluster(entry, *untouched_from, stored)?;
            self.survive(bytes, sum);
            self.make(entry, *untouched_from);
            return Ok(sum);
        }
        let sum = self.sum_of_output(entry, *untouched_from, *value_sum)?;
        let is_integrity = self.shared.is_integrity;
        let cluster = self.open_cluster(entry.key);
        cluster.push_judged(entry.seq, entry.kind, sum);
        if !is_integrity {
            cluster.made.push(Made::default());
        }
        self.survive(bytes, sum);
        self.make(entry, *untouched_from);
        Ok(sum)
    }

    fn take_back(&mut self, key: KeyRef<'_>, bytes: u64, note: u64) -> Result<()> {
        debug_assert!(self.open.is_empty(), "nothing was opened after the entry");
        let kind = key.trailer.kind().ok_or_else(out_of_step)?;
        self.open_cluster(key.user).push_judged(key.trailer.seq(), kind, note);
        self.survive(bytes, note);
        Ok(())
    }

    fn boundary(
        &mut self,
        next: Option<&[u8]>,
        out: &mut Emitter<'_>,
        faults: &mut Faults,
    ) -> Result<Cut> {
        // Those in front of what is written here: such a block ends in front of `next`.
        self.take_ended(out);
        self.spans.boundary();
        self.close_until(next);
        self.emit_ready(out)?;
        self.judge.report(faults);
        if next.is_none() && faults.first().is_none() {
            self.judge.check_counts()?;
            if let Some(sums) = &self.block_sums {
                self.judge.check_digests(sums)?;
            }
        }
        let cut = if next.is_some() { self.cut() } else { Cut::Allowed };
        // And those that the metadata itself ended.
        self.take_ended(out);
        Ok(cut)
    }

    fn finish_table(&mut self, blocks: &[EndedBlock], properties: &mut Properties) -> Result<()> {
        self.blocks_ended(blocks);
        let mut seal = TableSeal {
            provider: self.shared.provider.name().to_owned(),
            sealed: std::mem::take(&mut self.table_sealed),
            split_pairs: std::mem::take(&mut self.table_split),
            open: Vec::new(),
            keys: Some(std::mem::take(&mut self.table_keys)),
            spans: self.spans.finish(),
        };
        // Pairs that the end of the table comes between keep their metadata in its properties:
        // see `table_seal.rs`.
        for cluster in self.open.iter_mut().filter(|cluster| cluster.survivors > 0) {
            if !cluster.held.is_empty() {
                let payloads = payloads_of(cluster, self.shared.is_integrity);
                let open = payloads.into_iter().map(|(_, payload)| (cluster.key.clone(), payload));
                seal.open.extend(open);
                cluster.forget_survivors();
                continue;
            }
            for (at, slot) in cluster.slots.iter().enumerate() {
                if slot.is(SURVIVES) {
                    let (seq, sum) = cluster.written_as(at);
                    let payload = match cluster.made.get(at) {
                        None => Payload::new(seq, sum).encode(),
                        Some(made) => provided(seq, &made.bytes),
                    };
                    seal.open.push((cluster.key.clone(), payload));
                }
            }
            // Told here. The table that comes next must not get their metadata as well.
            cluster.forget_survivors();
        }
        properties.0.insert(PROPERTY.to_owned(), seal.encode());
        Ok(())
    }
}

fn sum_of(entry: &Entry<'_>) -> u64 {
    checksum::of_entry(entry.key, entry.value, entry.seq, entry.kind)
}

fn out_of_step() -> Error {
    let what = "an entry was written that is not the one that came in last";
    Error::new(ErrorKind::InvalidArgument, what)
}
