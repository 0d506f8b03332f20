//! [`TolerantIter`]: a walk over the visible entries of a damaged table, for its repair. It goes on after damage.
//!
//! A [`TableRepair`] gets each block, sound or damaged, and returns the entries that take its place. A block is decoded
//! from its entries alone ([`block`]). Restarts and counts after the entries serve searches; a walk that rewrites
//! the table does not need them.
//!
//! Invariants:
//! 1. Entries come in strictly ascending internal order, and the repair vouches for each of them.
//! 2. Where entries are lost, the findings of the job have a gap between the sound ones.
//! 3. `Io` ends the walk; damage does not.

pub(super) mod block;
mod blocks;
mod plain;
mod stored_block;

use std::sync::Arc;

use super::read_ahead::{READ_AHEAD_BYTES, ReadAhead};
use super::reader::SstReader;
use super::stored::{Access, Extent};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{
    BlockVerdict, DamagedTable, Entry, JobFindings, Origin, Piece, RepairedBlock, RepairedEntry,
    TableRepair, TableVerdict, VerifiedEntry, catch,
};
use crate::iter::InternalIter;
use crate::types::{Gap, KeyRef, SeqNo, Trailer};

use block::TolerantBlock;
pub use plain::PlainRepair;
use stored_block::StoredBlock;

/// The sound entry that a gap begins after.
struct Before {
    key: Vec<u8>,
    /// The sequence number of an entry; `None` for a bound that is no entry.
    seq: Option<SeqNo>,
}

/// A cursor over a damaged table: what its [`TableRepair`] accepts, and gaps for the rest.
pub struct TolerantIter {
    reader: Arc<SstReader>,
    repair: Box<dyn TableRepair>,
    /// The manifest's description of the table.
    table: DamagedTable,
    /// Those of the job.
    findings: JobFindings,
    ahead: ReadAhead,
    /// Kept for its buffers.
    decoder: TolerantBlock,
    /// The data blocks in their order.
    blocks: Vec<Extent>,
    /// Blocks are missing after them.
    is_cut_short: bool,
    /// The number and the offset of the present block.
    number: usize,
    offset: u64,
    /// The entries that take the place of the present block, and the present one of them.
    entries: Vec<RepairedEntry>,
    at: usize,
    /// The last sound entry so far.
    before: Before,
    /// The key before the first block of the span that is verified as one.
    span_before: Option<Vec<u8>>,
    /// `true` if entries are lost after `before`.
    is_lost: bool,
}

impl TolerantIter {
    /// A walk over the table of `reader`, before the first entry.
    pub fn new(
        reader: Arc<SstReader>,
        repair: Box<dyn TableRepair>,
        table: DamagedTable,
        findings: JobFindings,
    ) -> TolerantIter {
        TolerantIter {
            reader,
            repair,
            before: Before { key: table.keys.0.to_vec(), seq: None },
            table,
            findings,
            ahead: ReadAhead::new(Access::Plain, READ_AHEAD_BYTES),
            decoder: TolerantBlock::default(),
            blocks: Vec::new(),
            is_cut_short: false,
            number: 0,
            offset: 0,
            entries: Vec::new(),
            at: 0,
            span_before: None,
            is_lost: false,
        }
    }

    /// The present entry, what its repair says of it, and its place. Only while valid.
    pub fn present(&self) -> (Entry<'_>, VerifiedEntry<'_>, Origin) {
        let RepairedEntry { entry: of, note, hidden, index } = &self.entries[self.at];
        let entry = Entry {
            key: &of.key,
            seq: self.table.global_seq.unwrap_or(of.seq),
            stored_seq: of.seq,
            kind: of.kind,
            value: &of.value,
            hidden: false,
        };
        let at = Origin { block_verified: true, ..self.origin(*index) };
        (entry, VerifiedEntry { note: *note, hidden: hidden.as_deref() }, at)
    }

    fn origin(&self, entry: u32) -> Origin {
        Origin {
            file: Some(self.table.file),
            level: self.table.level,
            block_offset: self.offset,
            entry,
            block_verified: false,
        }
    }

    /// Goes to the first entry from the present block on.
    fn enter(&mut self) -> Result<()> {
        self.entries.clear();
        self.at = 0;
        while let Some(extent) = self.blocks.get(self.number).copied() {
            self.load(extent)?;
            if !self.entries.is_empty() {
                return Ok(());
            }
            self.number += 1;
        }
        self.end()
    }

    /// Ends the walk after the last block.
    fn end(&mut self) -> Result<()> {
        let end = self.table.keys.1.clone();
        if self.is_cut_short {
            self.is_lost = true;
            let fault = self.fault_of_table("the index is damaged, and blocks with it".to_owned());
            self.findings.add(|findings| findings.lost.push(fault));
        }
        if self.is_lost {
            self.add_gap(&end, true);
        }
        // The totals of the repair are those of all blocks.
        if self.is_cut_short {
            return Ok(());
        }
        match catch("a filter's repair", || self.repair.end())? {
            TableVerdict::Whole => {}
            TableVerdict::Lost => {
                let first = self.table.keys.0.clone();
                self.add_gap_between(&first, SeqNo::MAX, &end, true);
            }
            TableVerdict::Miscounted(what) => {
                let fault = self.fault_of_table(what);
                self.findings.add(|findings| findings.miscounted.push(fault));
            }
        }
        Ok(())
    }

    /// Takes in what takes the place of the block at `extent`.
    fn load(&mut self, extent: Extent) -> Result<()> {
        self.offset = extent.offset;
        let mut block = StoredBlock {
            reader: &self.reader,
            extent,
            before: self.before.seq.map(|seq| (&self.before.key[..], seq)),
            global_seq: self.table.global_seq,
            ahead: &mut self.ahead,
            decoder: &mut self.decoder,
            failed: None,
        };
        let repair = &mut self.repair;
        let repaired = catch("a filter's repair", || repair.block(&mut block))?;
        // Before the findings: an error of the device may pass, and must not become a loss.
        if let Some(error) = block.failed {
            return Err(error);
        }
        let RepairedBlock { pieces, repaired, lost, verdict } = repaired;
        self.findings.add(|findings| {
            findings.repaired.extend(repaired);
            findings.lost.extend(lost);
        });
        // Before the pieces: they move the key that a loss would begin after.
        match verdict {
            BlockVerdict::AllDamaged => {
                self.lose_span();
                return Ok(());
            }
            BlockVerdict::Later => {
                self.span_before.get_or_insert_with(|| self.before.key.clone());
            }
            BlockVerdict::Sound => self.span_before = None,
        }
        for piece in pieces {
            let Piece::Sound(sound) = piece else {
                self.is_lost = true;
                continue;
            };
            if self.is_lost {
                let has_versions = self.repair.has_versions();
                self.add_gap(&sound.entry.key, has_versions);
            }
            self.before.key.clone_from(&sound.entry.key);
            self.before.seq = Some(sound.entry.seq);
            self.entries.push(sound);
        }
        Ok(())
    }

    /// Nothing of the blocks that are verified together is trusted.
    #[cold]
    fn lose_span(&mut self) {
        // Entries of the span may be handed over already: the gap is above them.
        let from = self.span_before.take().unwrap_or_else(|| self.before.key.clone());
        self.before = Before { key: from, seq: None };
        self.is_lost = true;
    }

    /// Entries are lost between the last sound one and `to`.
    #[cold]
    fn add_gap(&mut self, to: &[u8], to_included: bool) {
        self.is_lost = false;
        let from = self.before.key.clone();
        let from_below = match self.before.seq {
            // A bound that is no entry: every version of its key may be lost.
            None => SeqNo::MAX,
            // Older versions of the key that the gap begins after may be among what is lost.
            Some(seq) if self.repair.has_versions() => seq,
            Some(_) => SeqNo::ZERO,
        };
        self.add_gap_between(&from, from_below, to, to_included);
    }

    #[cold]
    fn add_gap_between(&mut self, from: &[u8], from_below: SeqNo, to: &[u8], to_included: bool) {
        let from = from.into();
        let to = to.into();
        let through = self.table.seqs.1;
        let gap = Gap { from, from_below, to, to_included, through, closed_at: None };
        self.findings.add(|findings| findings.add_gap(gap));
    }
}

impl InternalIter for TolerantIter {
    fn valid(&self) -> bool {
        self.at < self.entries.len()
    }

    fn key(&self) -> KeyRef<'_> {
        let of = &self.entries[self.at].entry;
        KeyRef::new(&of.key, Trailer::new(self.table.global_seq.unwrap_or(of.seq), of.kind))
    }

    fn value(&self) -> &[u8] {
        &self.entries[self.at].entry.value
    }

    /// Only once, to the first entry, before any other move.
    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        if target.is_some() {
            return Err(forwards_only());
        }
        self.list_blocks()?;
        self.enter()
    }

    fn next(&mut self) -> Result<()> {
        self.at += 1;
        if self.valid() {
            return Ok(());
        }
        self.number += 1;
        self.enter()
    }

    fn seek_before(&mut self, _: Option<KeyRef<'_>>) -> Result<()> {
        Err(forwards_only())
    }

    fn prev(&mut self) -> Result<()> {
        Err(forwards_only())
    }
}

fn forwards_only() -> Error {
    let what = "the walk of a repair goes from the first entry to the last";
    Error::new(ErrorKind::InvalidArgument, what)
}
