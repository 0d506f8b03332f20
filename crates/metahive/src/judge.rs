//! [`HiveJudge`]: it judges each block of an input table by the metadata of the block, before the
//! job uses an entry of it.
//!
//! [`MetaHive`](crate::MetaHive) makes one judge for each table, and the walk of the engine calls
//! it. `mend.rs` repairs the damaged blocks.
//!
//! Invariants:
//! 1. Each entry of a sealed table agrees with its metadata, and a block has all entries that were
//!    written to it, as far as the seal of the table can tell.
//! 2. Damage of metadata alone is reported once, when the entries of its block are known to be
//!    correct.

use std::sync::Arc;

use lsm_core::hooks::{
    BlockVerdict, DamagedBlock, Entry, Fault, JudgeSources, JudgedTable, Mended, Origin,
    TableJudge, TableVerdict,
};
use lsm_core::types::SeqNo;

use crate::checksum;
use crate::counts::Counts;
use crate::mend::{self, SEARCHES_IN_VAIN_MAX};
use crate::metahive::Shared;
use crate::payload::{HEAD_BYTES, METADATA_BYTES, Payload};
use crate::repair::RepairOptions;
use crate::table_seal::TableSeal;
use crate::verdict::{Verdict, judge};

/// The note of an entry of a table without a seal: no checksum but by a chance of 1 in 2^64.
pub(crate) const NOT_SEALED: u64 = 0;

/// See the module.
#[expect(clippy::struct_excessive_bools, reason = "each says a thing of its own")]
pub(crate) struct HiveJudge {
    // Fixed after construction.
    pub(crate) shared: Arc<Shared>,
    /// `None` for a table that is not sealed.
    pub(crate) seal: Option<TableSeal>,
    pub(crate) table: JudgedTable,
    pub(crate) options: RepairOptions,
    pub(crate) sources: Arc<dyn JudgeSources>,
    /// Sound metadata is believed, because the filter compares entries: see `told`.
    is_told: bool,

    /// Damaged blocks of which a second reading was the same.
    pub(crate) read_in_vain: u64,
    /// Searches for a flipped bit that found none.
    searched_in_vain: u64,
    /// The span that the next block belongs to, how many of its blocks have come, their digest, and
    /// whether some of it is lost.
    span: usize,
    span_blocks: u64,
    span_digest: u32,
    is_span_broken: bool,
    /// The walk began in its midst.
    is_span_partial: bool,
    /// Entries were lost, and their gap is told.
    has_lost: bool,
    /// Entries in blocks behind those that the seal counts.
    surplus: u64,
    /// Entries of the present block, and of all before.
    block_entries: u64,
    entries: u64,
    /// Damaged metadata of the present block.
    pending: Vec<(Fault, String)>,
    findings: Vec<(Fault, String)>,
    pub(crate) counts: Counts,
}

impl HiveJudge {
    pub(crate) fn new(
        shared: Arc<Shared>,
        seal: Option<TableSeal>,
        table: JudgedTable,
        options: RepairOptions,
        sources: Arc<dyn JudgeSources>,
    ) -> HiveJudge {
        let is_told = table.is_compared_later && shared.is_integrity && seal.is_some();
        HiveJudge {
            shared,
            seal,
            table,
            options,
            sources,
            is_told,
            read_in_vain: 0,
            searched_in_vain: 0,
            span: 0,
            span_blocks: 0,
            span_digest: 0,
            is_span_broken: false,
            is_span_partial: false,
            has_lost: false,
            surplus: 0,
            block_entries: 0,
            entries: 0,
            pending: Vec::new(),
            findings: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Returns `true` if a search for a flipped bit may begin.
    pub(crate) fn may_search(&self) -> bool {
        self.searched_in_vain < SEARCHES_IN_VAIN_MAX
    }

    /// Counts a search for a flipped bit.
    pub(crate) fn searched(&mut self, has_found: bool) {
        self.searched_in_vain += u64::from(!has_found);
    }

    /// The checksum of an entry, and what its metadata says of it. In a table that is not sealed
    /// every entry is what its block says.
    pub(crate) fn compare(&self, entry: &Entry<'_>, hidden: Option<&[u8]>) -> (u64, Verdict) {
        let sum = checksum::of_entry(entry.key, entry.value, entry.stored_seq, entry.kind);
        let Some(seal) = &self.seal else { return (NOT_SEALED, Verdict::Valid) };
        // The list in the seal is searched only where the block has nothing: it holds the few pairs
        // that the end of the table came between.
        let kept = match hidden {
            Some(_) => None,
            None => seal.open_payload(entry.key, entry.stored_seq.get()),
        };
        let kept = kept.and_then(|payload| payload.get(HEAD_BYTES..));
        // In a sealed table every entry was written with metadata, so one without it is damaged or
        // misplaced.
        let Some(metadata) = hidden.or(kept) else { return (sum, Verdict::DataCorrupt) };
        if !self.shared.is_integrity {
            return (sum, self.shared.provider.check(entry, metadata));
        }
        match Payload::behind_seq(entry.stored_seq, metadata) {
            Some(metadata) => (sum, judge(sum, &metadata)),
            None => (sum, Verdict::DataCorrupt),
        }
    }

    /// The digest of block `index`, if the seal has one of it alone.
    pub(crate) fn digest_of(&self, index: u64) -> Option<u32> {
        self.seal.as_ref()?.digest_of(index)
    }

    /// A place in the present table.
    pub(crate) fn origin(&self, block_offset: u64, entry: u32) -> Origin {
        Origin {
            file: Some(self.table.file),
            level: self.table.level,
            block_offset,
            entry,
            block_verified: false,
        }
    }

    /// Goes on behind a block that was mended, with the sum and the number of its entries. Returns the
    /// verdict on the span of the block.
    pub(crate) fn pass_mended(&mut self, is_whole: bool, notes: u64, entries: u64) -> BlockVerdict {
        self.pending.clear();
        self.block_entries = 0;
        self.entries += entries;
        // The digest of the span cannot agree any more, and the loss is told already.
        // Kept until the span ends. Its other blocks are judged by a sum that this one was a part
        // of.
        self.is_span_broken |= !is_whole;
        self.has_lost |= !is_whole;
        let (digest, blocks) = self.step(notes, entries);
        if self.span_blocks < blocks {
            return BlockVerdict::Later;
        }
        // A span of one block has told its losses. In a longer one a loss leaves the other blocks
        // without a digest, and nothing else shows whether they have all of their entries.
        let is_sound = blocks == 1 || self.is_span_sound(digest);
        self.next_span();
        if is_sound {
            return BlockVerdict::Sound;
        }
        self.has_lost = true;
        BlockVerdict::AllDamaged
    }

    /// Returns `true` if the blocks of the span, which ends here, are what was written.
    fn is_span_sound(&self, digest: Option<u32>) -> bool {
        let agrees = digest.is_none_or(|digest| digest == self.span_digest);
        // Of a span in whose midst the walk began, the digest covers blocks that were not read.
        (self.is_span_partial || agrees) && !self.is_span_broken
    }

    /// Takes a block into its span: the span's digest and its blocks, if it has one.
    fn step(&mut self, notes: u64, entries: u64) -> (Option<u32>, u64) {
        self.span_blocks += 1;
        self.span_digest = self.span_digest.wrapping_add(notes as u32);
        let span = self.seal.as_ref().and_then(|seal| seal.spans.get(self.span));
        // Blocks behind the last span hold metadata alone. An entry in one of them was put there.
        self.surplus += if span.is_none() { entries } else { 0 };
        span.map_or((None, 1), |span| (Some(span.digest), span.blocks))
    }

    fn next_span(&mut self) {
        self.span += 1;
        self.span_blocks = 0;
        self.span_digest = 0;
        self.is_span_broken = false;
        self.is_span_partial = false;
    }

    #[cold]
    fn note_metadata(&mut self, entry: &Entry<'_>, verdict: Verdict) {
        let what = match verdict {
            Verdict::SecondCopyDamaged => "the metadata's second checksum is damaged",
            _ => "the metadata is damaged, the entry is not",
        };
        let fault = Fault {
            key: entry.key.to_vec(),
            seq: entry.stored_seq,
            kind: entry.kind,
            value: Vec::new(),
            at: self.origin(0, 0),
            what: what.to_owned(),
        };
        self.pending.push((fault, "made anew from its entry".to_owned()));
    }
}

impl TableJudge for HiveJudge {
    /// The checksum of an entry according to its metadata, if both copies in it agree and the filter
    /// compares the entry with it. A damaged entry then fails the job, and the repair compares here.
    #[inline]
    fn told(&mut self, hidden: &[u8]) -> Option<u64> {
        if !self.is_told {
            return None;
        }
        let payload = Payload::behind_seq(SeqNo::ZERO, hidden)?;
        let sum = payload.sum;
        // Damaged metadata is looked at in `entry`, because the filter does not see it. And a checksum that
        // happens to be this number would pass for an entry of a table without a seal.
        let is_sound = payload.is_sound() && sum != NOT_SEALED;
        self.block_entries += u64::from(is_sound);
        is_sound.then_some(sum)
    }

    fn told_all(&mut self, hidden: &[u8], width: usize, notes: &mut [u64]) -> Option<u64> {
        let (all, []) = hidden.as_chunks::<METADATA_BYTES>() else { return None };
        if !self.is_told || width != METADATA_BYTES || all.len() != notes.len() {
            return None;
        }
        let mut total = 0u64;
        let mut are_sound = true;
        for (metadata, note) in all.iter().zip(notes) {
            let (sum, is_sound) = Payload::short_sum(metadata);
            are_sound &= is_sound && sum != NOT_SEALED;
            total = total.wrapping_add(sum);
            *note = sum;
        }
        self.block_entries += if are_sound { all.len() as u64 } else { 0 };
        are_sound.then_some(total)
    }

    #[inline]
    fn entry(&mut self, entry: &Entry<'_>, hidden: Option<&[u8]>) -> Option<u64> {
        let (sum, verdict) = self.compare(entry, hidden);
        match verdict {
            Verdict::Valid => {}
            Verdict::DataCorrupt => return None,
            damaged => self.note_metadata(entry, damaged),
        }
        self.block_entries += 1;
        Some(sum)
    }

    fn block(&mut self, _index: u64, notes: u64) -> BlockVerdict {
        let entries = std::mem::take(&mut self.block_entries);
        let (digest, blocks) = self.step(notes, entries);
        let is_end = self.span_blocks >= blocks;
        if is_end && !self.is_span_sound(digest) {
            if blocks == 1 {
                // It comes again, mended.
                self.span_blocks -= 1;
                self.span_digest = self.span_digest.wrapping_sub(notes as u32);
                return BlockVerdict::Damaged;
            }
            self.next_span();
            // Metadata of blocks that are lost is no finding of its own.
            self.pending.clear();
            self.has_lost = true;
            self.entries += entries;
            return BlockVerdict::AllDamaged;
        }
        self.entries += entries;
        self.counts.verified += if self.seal.is_some() { entries } else { 0 };
        self.counts.metadata_rebuilt += self.pending.len() as u64;
        // Only now: metadata of a block that turns out damaged is no finding of its own.
        self.findings.append(&mut self.pending);
        if is_end {
            self.next_span();
            return BlockVerdict::Sound;
        }
        BlockVerdict::Later
    }

    fn mend(&mut self, block: &mut dyn DamagedBlock) -> Mended {
        self.block_entries = 0;
        self.pending.clear();
        mend::mend(self, block)
    }

    fn end(&mut self, blocks: u64) -> TableVerdict {
        let Some(seal) = &self.seal else { return TableVerdict::Whole };
        let entries = self.entries;
        let sealed = seal.sealed;
        if seal.spans.is_empty() {
            // Nothing but their number tells whether entries are missing.
            return if entries < sealed { TableVerdict::Lost } else { TableVerdict::Whole };
        }
        let sealed_blocks: u64 = seal.spans.iter().map(|span| span.blocks).sum();
        // The seal counts the blocks before the last metadata is written. If the last entry has a block
        // of its own, its metadata lies in blocks behind those.
        if blocks < sealed_blocks || (blocks > sealed_blocks && self.surplus > 0) {
            return TableVerdict::Lost;
        }
        // After a loss the count is short for a reason that is told.
        if entries == sealed || self.has_lost {
            return TableVerdict::Whole;
        }
        let what = format!("the seal of the table counts {sealed} entries, it has {entries}");
        TableVerdict::Miscounted(what)
    }

    fn must_walk_all(&self) -> bool {
        // Without digests the number of entries is the only proof, and a part of a table cannot be
        // counted.
        self.seal.as_ref().is_some_and(|seal| seal.spans.is_empty() && seal.sealed > 0)
    }

    fn skip(&mut self, blocks: u64) {
        let mut first = 0;
        self.span = 0;
        while let Some(span) = self.seal.as_ref().and_then(|seal| seal.spans.get(self.span)) {
            if first + span.blocks > blocks {
                // The walk begins in its midst: what it has is not to be known.
                self.span_blocks = blocks - first;
                self.is_span_partial = first < blocks;
                return;
            }
            first += span.blocks;
            self.span += 1;
        }
    }

    fn has_versions(&self) -> bool {
        let has_versions = self.seal.as_ref().is_none_or(TableSeal::has_versions);
        // An ingest refuses a table with several versions of a key, because all would have one
        // number.
        has_versions && self.table.global_seq.is_none()
    }

    fn take_findings(&mut self) -> Vec<(Fault, String)> {
        std::mem::take(&mut self.findings)
    }
}

impl Drop for HiveJudge {
    fn drop(&mut self) {
        self.shared.add(self.counts);
    }
}
