//! The data blocks of a table that is repaired, also of a table with a damaged index, in their order.

use super::TolerantIter;
use crate::error::Result;
use crate::hooks::Fault;
use crate::sstable::salvage::blocks_between;
use crate::sstable::stored::Extent;
use crate::types::{EntryKind, SeqNo};

impl TolerantIter {
    /// Lists the blocks. After a damage of the index, the blocks themselves show where they are.
    pub(super) fn list_blocks(&mut self) -> Result<()> {
        self.is_cut_short = self.reader.is_cut_short();
        let mut is_damaged = false;
        for block in self.reader.blocks() {
            match block {
                Ok((offset, len)) => self.blocks.push(Extent { offset, len }),
                // The list ends there by itself: the iterator returns nothing after an error.
                Err(error) if error.is_corruption() => is_damaged = true,
                Err(error) => return Err(error),
            }
        }
        if !is_damaged {
            return Ok(());
        }
        // The blocks that the index named before its damage are used; the search begins after them.
        let start = self.blocks.last().map_or(0, |last| last.end());
        let data_end = self.reader.properties().data_bytes;
        self.blocks.extend(blocks_between(self.reader.source(), start, data_end)?);
        self.is_cut_short = self.blocks.last().is_none_or(|last| last.end() < data_end);
        if !self.is_cut_short {
            let fault = self.fault_of_table("the index is damaged".to_owned());
            let source = "the data blocks".to_owned();
            self.findings.add(|findings| findings.repaired.push((fault, source)));
        }
        Ok(())
    }

    /// Returns the fault that is reported where the index is damaged, or the table as a whole.
    #[cold]
    pub(super) fn fault_of_table(&self, what: String) -> Fault {
        Fault {
            key: self.before.key.clone(),
            seq: SeqNo::ZERO,
            kind: EntryKind::Poison,
            value: Vec::new(),
            at: self.origin(0),
            what,
        }
    }
}
