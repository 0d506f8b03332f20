//! The data blocks of a table that a job walks, also of a table with a damaged index, and their order.

use super::JudgedIter;
use crate::error::Result;
use crate::hooks::{Fault, Origin};
use crate::sstable::salvage::blocks_between;
use crate::sstable::stored::{Access, Extent};
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};

impl JudgedIter {
    /// Takes in where the blocks are; behind a damage of the index the blocks tell themselves.
    pub(super) fn list_blocks(&mut self) -> Result<()> {
        self.is_cut_short = self.reader.is_cut_short();
        let mut is_damaged = false;
        for block in self.reader.blocks() {
            match block {
                Ok((offset, len)) => self.blocks.push(Extent { offset, len }),
                // The list ends there by itself: the iterator returns nothing behind an error.
                Err(error) if error.is_corruption() && self.by.is_repair => is_damaged = true,
                Err(error) => return Err(error),
            }
        }
        if !is_damaged {
            return Ok(());
        }
        // The blocks that the index named before its damage stand: the search goes on behind them.
        let start = self.blocks.last().map_or(0, |last| last.end());
        let data_end = self.reader.properties().data_bytes;
        self.blocks.extend(blocks_between(self.reader.source(), start, data_end)?);
        self.is_cut_short = self.blocks.last().is_none_or(|last| last.end() < data_end);
        if !self.is_cut_short {
            let fault = self.fault_of_table("the index is damaged".to_owned());
            let source = "the data blocks".to_owned();
            self.by.findings.add(|findings| findings.repaired.push((fault, source)));
        }
        Ok(())
    }

    /// Reads the block of the present entry again, past every cache and into other memory. Returns `false` if
    /// it cannot be read or decoded: then the walk is of no use any more.
    #[cold]
    pub fn read_again(&mut self) -> Result<bool> {
        let Some(extent) = self.block() else { return Ok(false) };
        let source = self.reader.source();
        self.bytes = Vec::new();
        let read = source.read_stored(Access::Uncached, extent);
        let read =
            read.and_then(|stored| source.open_into(extent.offset, &stored, &mut self.bytes));
        let len = match read {
            Err(error) if error.is_corruption() => return Ok(false),
            read => read?,
        };
        // The judge has judged the block: its notes stay.
        let notes = std::mem::take(&mut self.decoder.notes);
        let is_whole = self.decoder.decode(&self.bytes[..len], &self.reader);
        let is_same = is_whole && notes.len() == self.decoder.slots.len();
        self.decoder.notes = notes;
        Ok(is_same)
    }

    /// Returns `true` if the entries ascend, from the last sound one on, within what the manifest
    /// says of the table.
    pub(super) fn is_in_place(&self) -> bool {
        let table = &self.by.table;
        let mut last: Option<KeyRef<'_>> = None;
        let mut last_word = None;
        if let Some(seq) = self.before.seq {
            // No other entry of the table has its key and its sequence.
            last = Some(KeyRef::new(&self.before.key, Trailer::new(seq, EntryKind::Tombstone)));
        }
        for at in 0..self.decoder.slots.len() {
            let slot = &self.decoder.slots[at];
            let key = KeyRef::new(self.decoder.key(at), slot.trailer);
            let word = key.user.first_chunk().map(|word| u64::from_be_bytes(*word));
            // Most keys differ there, which takes a comparison of slices five times as long.
            let is_behind = last_word.is_some() && last_word < word;
            if !is_behind && last.is_some_and(|last| last >= key) {
                return false;
            }
            last_word = word;
            let seq = slot.trailer.seq();
            // With a global number the manifest's range is of that one, and stored numbers are any.
            if table.global_seq.is_none() && !(table.seqs.0..=table.seqs.1).contains(&seq) {
                return false;
            }
            last = Some(key);
        }
        let slots = self.decoder.slots.len();
        slots == 0
            || (self.decoder.key(0) >= &*table.keys.0
                && self.decoder.key(slots - 1) <= &*table.keys.1)
    }

    /// Returns the fault that listeners are told of where the index is damaged, or the table as a
    /// whole.
    #[cold]
    pub(super) fn fault_of_table(&self, what: String) -> Fault {
        Fault {
            key: self.before.key.clone(),
            seq: SeqNo::ZERO,
            kind: EntryKind::Poison,
            value: Vec::new(),
            at: Origin {
                file: Some(self.by.table.file),
                level: self.by.table.level,
                block_offset: self.offset,
                entry: 0,
                block_verified: false,
            },
            what,
        }
    }
}
