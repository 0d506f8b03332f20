//! [`JudgedIter`]: a walk over the visible entries of a table for a job. A [`TableJudge`] judges
//! each block before the walk hands over an entry of it.
//!
//! A block is decoded from its entries alone. Restarts and counts behind the entries serve
//! searches; a walk that rewrites the table does not need them.
//!
//! Invariants:
//! 1. Entries come in strictly ascending internal order, and the judge accepted each of them.
//! 2. Where entries are lost, the findings of the job have a gap between the sound ones.
//! 3. Damage of a block or of the index ends the walk as corruption that names the block, but for the walk of
//!    a repair, which goes on after it. `Io` ends both.

mod blocks;
mod decode;
mod mend;
mod strike;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::index_cursor::IndexCursor;
use super::read_ahead::{READ_AHEAD_BYTES, ReadAhead};
use super::reader::SstReader;
use super::stored::{Access, Extent, LARGE_PAYLOAD_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{
    BlockVerdict, Entry, Inject, JobFindings, JudgedTable, Origin, TableJudge, TableVerdict,
    Vouched, catch,
};
use crate::iter::InternalIter;
use crate::types::{Gap, KeyRef, SeqNo};

use decode::{DecodedSlot, Decoder};

/// The judge of a table, and the place of its findings.
pub struct JudgedBy {
    /// Judges its blocks.
    pub judge: Box<dyn TableJudge>,
    /// The manifest's description of it.
    pub table: JudgedTable,
    /// Those of the job.
    pub findings: JobFindings,
    /// The path of its file, for errors.
    pub path: PathBuf,
    /// Faults of memory that strike hidden entries before they are judged, for tests.
    pub inject: Option<Arc<Inject>>,
    /// The walk goes on after damage, and the judge mends what it can.
    pub is_repair: bool,
}

/// The sound entry that a gap begins behind.
struct Before {
    key: Vec<u8>,
    /// The sequence number of an entry; `None` for a bound that is no entry.
    seq: Option<SeqNo>,
}

/// See the module.
#[expect(clippy::struct_excessive_bools, reason = "each says a thing of its own")]
pub struct JudgedIter {
    reader: Arc<SstReader>,
    by: JudgedBy,
    ahead: ReadAhead,
    /// The data blocks in their order.
    blocks: Vec<Extent>,
    /// Blocks are missing behind them.
    is_cut_short: bool,
    /// The number of the present block.
    number: u64,
    offset: u64,
    /// The entries of the present block; their keys are here, their values in `bytes`.
    decoder: Decoder,
    bytes: Vec<u8>,
    at: usize,
    is_valid: bool,
    /// The last sound entry before the present block.
    before: Before,
    /// The first key of the span of blocks that is judged as one.
    span_before: Option<Vec<u8>>,
    /// `true` if entries are lost behind `before`.
    is_lost_behind: bool,
    /// `true` if the walk began at the first block.
    is_from_start: bool,
}

impl JudgedIter {
    /// A walk over the table of `reader`, before the first entry.
    pub fn new(reader: Arc<SstReader>, by: JudgedBy) -> JudgedIter {
        JudgedIter {
            ahead: ReadAhead::new(Access::Plain, READ_AHEAD_BYTES),
            blocks: Vec::new(),
            is_cut_short: false,
            number: 0,
            offset: 0,
            decoder: Decoder::default(),
            bytes: Vec::new(),
            at: 0,
            is_valid: false,
            before: Before { key: by.table.keys.0.to_vec(), seq: None },
            span_before: None,
            is_lost_behind: false,
            is_from_start: false,
            reader,
            by,
        }
    }

    /// Returns `true` if the walk must come to the end of the table: nothing before shows whether
    /// entries are missing.
    pub fn must_walk_all(&self) -> bool {
        self.by.judge.must_walk_all()
    }

    /// The present entry, the judge's note on it, and its place in a table of `level`. Only while
    /// valid.
    // Into the loop of a job, through the layers of cursors: in a call, all of it goes through memory.
    #[inline(always)]
    pub fn present(&self, level: usize) -> (Entry<'_>, Vouched<'_>, Origin) {
        let slot = self.slot();
        let stored_seq = slot.trailer.seq();
        let entry = Entry {
            key: self.decoder.key(self.at),
            seq: self.by.table.global_seq.unwrap_or(stored_seq),
            stored_seq,
            kind: slot.trailer.kind().expect("a judged entry has a kind"),
            value: &self.bytes[slot.value.clone()],
            hidden: false,
        };
        let hidden = self.decoder.hidden(self.at).map(|range| &self.bytes[range]);
        let at = Origin {
            file: Some(self.by.table.file),
            level,
            block_offset: self.offset,
            entry: slot.index,
            block_verified: true,
        };
        (entry, Vouched { note: self.decoder.notes[self.at], hidden }, at)
    }

    #[inline]
    fn slot(&self) -> &DecodedSlot {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        &self.decoder.slots[self.at]
    }

    /// Goes to the first entry from the present block on.
    fn enter(&mut self) -> Result<()> {
        self.is_valid = false;
        while let Some(present) = self.block() {
            self.load(present)?;
            if !self.decoder.slots.is_empty() {
                self.at = 0;
                self.is_valid = true;
                return Ok(());
            }
            self.number += 1;
        }
        self.end()
    }

    fn block(&self) -> Option<Extent> {
        self.blocks.get(usize::try_from(self.number).ok()?).copied()
    }

    /// Ends the walk behind the last block.
    fn end(&mut self) -> Result<()> {
        let end = self.by.table.keys.1.clone();
        if self.is_cut_short {
            self.is_lost_behind = true;
            let fault = self.fault_of_table("the index is damaged, and blocks with it".to_owned());
            self.by.findings.add(|findings| findings.lost.push(fault));
        }
        if self.is_lost_behind {
            self.add_gap(&end, true);
        }
        // The judge's totals are those of a whole walk.
        if !self.is_from_start || self.is_cut_short {
            return Ok(());
        }
        match self.by.judge.end(self.number) {
            TableVerdict::Whole => {}
            TableVerdict::Lost if !self.by.is_repair => {
                return Err(self.damaged(None, "entries of the table are missing"));
            }
            TableVerdict::Miscounted(what) if !self.by.is_repair => {
                return Err(self.damaged(None, &what));
            }
            TableVerdict::Lost => {
                let first = self.by.table.keys.0.clone();
                self.add_gap_between(&first, SeqNo::MAX, &end, true);
            }
            TableVerdict::Miscounted(what) => {
                let fault = self.fault_of_table(what);
                self.by.findings.add(|findings| findings.miscounted.push(fault));
            }
        }
        Ok(())
    }

    /// The error of the table, or of the block at an offset.
    #[cold]
    fn damaged(&self, offset: Option<u64>, what: &str) -> Error {
        Error::corruption(&self.by.path, offset, what)
    }

    /// Takes in the block at `extent` as far as it is sound.
    fn load(&mut self, extent: Extent) -> Result<()> {
        self.offset = extent.offset;
        let verdict = match self.read(extent) {
            Ok(len) => catch("a filter's judge", || self.judge(len))?,
            // Bytes that cannot be read now may be there later, so other errors fail the job and
            // lose nothing.
            Err(error) if error.is_corruption() && self.by.is_repair => BlockVerdict::Damaged,
            Err(error) => return Err(error),
        };
        match verdict {
            BlockVerdict::Damaged | BlockVerdict::AllDamaged if !self.by.is_repair => {
                let what = "entries of the block are missing, or disagree with their metadata";
                let error = self.damaged(Some(extent.offset), what);
                return Err(error.between_keys(&self.before.key, &self.by.table.keys.1));
            }
            BlockVerdict::Damaged => self.mend(extent)?,
            BlockVerdict::AllDamaged => self.lose_span(),
            BlockVerdict::Sound | BlockVerdict::Later => {
                self.note_span(verdict);
                self.end_gap_at_first();
            }
        }
        self.remember_last();
        let mut repaired = self.by.judge.take_findings();
        for (fault, _) in &mut repaired {
            // The judge knows entries and counts blocks. Offsets are known here alone.
            fault.at.block_offset = self.offset;
        }
        if !repaired.is_empty() {
            self.by.findings.add(|findings| findings.repaired.extend(repaired));
        }
        Ok(())
    }

    /// Reads the block at `extent` into `bytes`; returns the length of its payload.
    fn read(&mut self, extent: Extent) -> Result<usize> {
        if extent.len >= LARGE_PAYLOAD_BYTES as u64 {
            return self.reader.source().read_into(extent, &mut self.bytes);
        }
        let stored = self.ahead.stored(&self.reader, extent)?;
        self.reader.source().open_into(extent.offset, stored, &mut self.bytes)
    }

    /// Judges the block whose payload is in `bytes`.
    fn judge(&mut self, len: usize) -> BlockVerdict {
        let is_whole = self.decoder.decode(&self.bytes[..len], &self.reader);
        if !is_whole || !self.is_in_place() {
            return BlockVerdict::Damaged;
        }
        let is_struck = self.by.inject.is_some();
        self.decoder.notes.resize(self.decoder.slots.len(), 0);
        let told = match self.decoder.whole_column().filter(|_| !is_struck) {
            Some((column, width)) => {
                let notes = &mut self.decoder.notes;
                self.by.judge.told_all(&self.bytes[column], width, notes)
            }
            None => None,
        };
        match told.or_else(|| self.judge_each(is_struck)) {
            Some(notes) => self.by.judge.block(self.number, notes),
            None => BlockVerdict::Damaged,
        }
    }

    /// Judges the entries of the block one by one; returns the sum of the notes. `None` if one is damaged.
    fn judge_each(&mut self, is_struck: bool) -> Option<u64> {
        let mut notes = 0u64;
        for at in 0..self.decoder.slots.len() {
            let hidden = self.decoder.hidden(at);
            let told = match hidden.clone().filter(|_| !is_struck) {
                Some(hidden) => self.by.judge.told(&self.bytes[hidden]),
                None => None,
            };
            let note = match told {
                Some(note) => note,
                None => self.judge_entry(at, hidden, is_struck)?,
            };
            self.decoder.notes[at] = note;
            notes = notes.wrapping_add(note);
        }
        Some(notes)
    }

    fn judge_entry(
        &mut self,
        at: usize,
        hidden: Option<Range<usize>>,
        is_struck: bool,
    ) -> Option<u64> {
        let slot = &self.decoder.slots[at];
        let key = self.decoder.key(at);
        let value = &self.bytes[slot.value.clone()];
        let kind = slot.trailer.kind()?;
        let stored_seq = slot.trailer.seq();
        let seq = self.by.table.global_seq.unwrap_or(stored_seq);
        let entry = Entry { key, seq, stored_seq, kind, value, hidden: false };
        match hidden {
            Some(hidden) if is_struck => {
                let struck = self.struck(at, &self.bytes[hidden]);
                self.by.judge.entry(&entry, Some(&struck))
            }
            Some(hidden) => self.by.judge.entry(&entry, Some(&self.bytes[hidden])),
            None => {
                let apart = hidden_apart(&self.reader, key, stored_seq);
                self.by.judge.entry(&entry, apart.as_deref())
            }
        }
    }

    /// Remembers the key before the first block of a span, where a loss of the span would begin.
    fn note_span(&mut self, verdict: BlockVerdict) {
        match verdict {
            BlockVerdict::Later => {
                self.span_before.get_or_insert_with(|| self.before.key.clone());
            }
            _ => self.span_before = None,
        }
    }

    /// Nothing of the blocks that are judged together is trusted.
    #[cold]
    fn lose_span(&mut self) {
        // Entries of the span may be handed over already: the gap is above them.
        let from = self.span_before.take().unwrap_or_else(|| self.before.key.clone());
        self.before = Before { key: from, seq: None };
        self.is_lost_behind = true;
        self.decoder.clear();
    }

    /// A gap that is open before a sound block ends with its first entry.
    fn end_gap_at_first(&mut self) {
        if self.is_lost_behind && !self.decoder.slots.is_empty() {
            let first = self.decoder.key(0).to_vec();
            let has_versions = self.by.judge.has_versions();
            self.add_gap(&first, has_versions);
        }
    }

    /// Remembers the last entry of the block, against which the next one is held.
    fn remember_last(&mut self) {
        // A block without sound entries changes nothing: a gap over it begins behind the last entry
        // before.
        let Some(last) = self.decoder.slots.len().checked_sub(1) else { return };
        self.before.key.clear();
        self.before.key.extend_from_slice(self.decoder.key(last));
        self.before.seq = Some(self.decoder.slots[last].trailer.seq());
    }

    /// Entries are lost between the last sound one and `to`.
    #[cold]
    fn add_gap(&mut self, to: &[u8], to_included: bool) {
        self.is_lost_behind = false;
        let from = self.before.key.clone();
        let from_below = match self.before.seq {
            // A bound that is no entry: every version of its key may be lost.
            None => SeqNo::MAX,
            // Older versions of the key that the gap begins behind may be among what is lost.
            Some(seq) if self.by.judge.has_versions() => seq,
            Some(_) => SeqNo::ZERO,
        };
        self.add_gap_between(&from, from_below, to, to_included);
    }

    #[cold]
    fn add_gap_between(&mut self, from: &[u8], from_below: SeqNo, to: &[u8], to_included: bool) {
        let from = from.into();
        let to = to.into();
        let through = self.by.table.seqs.1;
        let gap = Gap { from, from_below, to, to_included, through, closed_at: None };
        self.by.findings.add(|findings| findings.add_gap(gap));
    }
}

fn append(bytes: &mut Vec<u8>, part: &[u8]) -> Range<usize> {
    bytes.extend_from_slice(part);
    bytes.len() - part.len()..bytes.len()
}

/// The payload of a hidden entry that lies in another block than its owner, behind its first 8
/// bytes.
#[cold]
fn hidden_apart(reader: &SstReader, key: &[u8], seq: SeqNo) -> Option<Vec<u8>> {
    let suffix = reader.hidden_suffix().filter(|_| !reader.is_walked_only())?;
    let key = [key, suffix].concat();
    // A hidden entry that cannot be read counts as missing: the judge says what follows from that.
    let (_, block) = reader.block_of_hidden(&key, seq, true).ok()??;
    let head = block.find_hidden(&key, seq, suffix)?;
    head.behind_seq(block.bytes()).map(<[u8]>::to_vec)
}

impl InternalIter for JudgedIter {
    fn valid(&self) -> bool {
        self.is_valid
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        let trailer = self.slot().trailer;
        let trailer = match self.by.table.global_seq {
            Some(seq) => trailer.with_seq(seq),
            None => trailer,
        };
        KeyRef::new(self.decoder.key(self.at), trailer)
    }

    #[inline]
    fn value(&self) -> &[u8] {
        &self.bytes[self.slot().value.clone()]
    }

    /// Only once, before any other move.
    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        let Some(target) = target else { return self.enter_from_start() };
        if self.by.judge.must_walk_all() {
            self.enter_from_start()?;
            return self.pass_until(target);
        }
        let mut index = IndexCursor::new();
        let found = index.seek(&self.reader, target)?;
        self.is_valid = false;
        let Some(extent) = found else { return Ok(()) };
        // The entries before this block are not read. The separator before it bounds a loss at its
        // front.
        if let (Some(before), _) = index.bounds(&self.reader) {
            self.before = Before { key: before.user.to_vec(), seq: None };
        }
        self.list_blocks()?;
        self.number = self.blocks.partition_point(|block| block.offset < extent.offset) as u64;
        // Before the first block of the walk, so that the judge counts from there.
        self.by.judge.skip(self.number);
        self.enter()?;
        self.pass_until(target)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.at + 1 < self.decoder.slots.len() {
            self.at += 1;
            return Ok(());
        }
        self.number += 1;
        self.enter()
    }

    fn seek_before(&mut self, _: Option<KeyRef<'_>>) -> Result<()> {
        Err(backwards())
    }

    fn prev(&mut self) -> Result<()> {
        Err(backwards())
    }
}

impl JudgedIter {
    fn enter_from_start(&mut self) -> Result<()> {
        self.list_blocks()?;
        self.is_from_start = true;
        self.enter()
    }

    fn pass_until(&mut self, target: KeyRef<'_>) -> Result<()> {
        while self.is_valid && self.key() < target {
            self.next()?;
        }
        Ok(())
    }
}

fn backwards() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the walk of a job goes forwards")
}
