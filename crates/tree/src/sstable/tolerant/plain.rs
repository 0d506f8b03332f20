//! [`PlainRepair`]: keeps the blocks of a damaged table that verify, or verify with one bit turned, and no others.
//!
//! For the salvage of a database, in partitions whose filters repair nothing. The blocks vouch for their entries
//! alone: nothing else is known of the entries.

use crate::error::Result;
use crate::hooks::{
    DamagedBlock, DamagedTable, Fault, Origin, Piece, RepairedBlock, RepairedEntry, TableRepair,
    TableVerdict,
};
use crate::types::{EntryKind, SeqNo};

/// Searches for a bit that find none, in a table, before no more begin: each takes milliseconds.
const SEARCHES_IN_VAIN_MAX: u32 = 64;

/// See the page of the file.
pub struct PlainRepair {
    table: DamagedTable,
    searches_left: u32,
}

impl PlainRepair {
    /// The repair of a table.
    pub fn new(table: DamagedTable) -> PlainRepair {
        PlainRepair { table, searches_left: SEARCHES_IN_VAIN_MAX }
    }

    /// The stored block as it was written, and whether a bit of it had to be turned.
    fn sound(&mut self, block: &mut dyn DamagedBlock) -> Result<Option<(Vec<u8>, bool)>> {
        let mut stored = block.read(false)?;
        if !block.is_verified(&stored) {
            stored = block.read(true)?;
        }
        if block.is_verified(&stored) {
            return Ok(Some((stored, false)));
        }
        if self.searches_left == 0 {
            return Ok(None);
        }
        let turned = block.with_one_bit_turned(&stored);
        self.searches_left -= u32::from(turned.is_none());
        Ok(turned.map(|stored| (stored, true)))
    }

    fn fault(&self, block: &dyn DamagedBlock) -> Fault {
        let key = block.before().map_or(&*self.table.keys.0, |(key, _)| key).to_vec();
        let at = Origin {
            file: Some(self.table.file),
            level: self.table.level,
            block_offset: block.offset(),
            ..Origin::MEMTABLE
        };
        let what = "the block does not verify".to_owned();
        Fault { key, seq: SeqNo::ZERO, kind: EntryKind::Poison, value: Vec::new(), at, what }
    }
}

impl TableRepair for PlainRepair {
    fn block(&mut self, block: &mut dyn DamagedBlock) -> RepairedBlock {
        // The walk has the error of a read, and ends with it.
        let Ok(sound) = self.sound(block) else { return RepairedBlock::default() };
        let mut result = RepairedBlock::default();
        let decoded = sound.and_then(|(stored, is_turned)| {
            let decoded = block.decode(&block.unpack(&stored)?);
            decoded.is_whole.then_some((decoded, is_turned))
        });
        let Some((decoded, is_turned)) = decoded else {
            result.lost.push(self.fault(block));
            result.pieces.push(Piece::Lost);
            return result;
        };
        if is_turned {
            result.repaired.push((self.fault(block), "one-bit search".to_owned()));
        }
        result.pieces.extend(decoded.entries.into_iter().map(|it| {
            Piece::Sound(RepairedEntry {
                entry: it.entry,
                note: 0,
                hidden: it.hidden,
                index: it.index,
            })
        }));
        result
    }

    fn end(&mut self) -> TableVerdict {
        TableVerdict::Whole
    }

    fn has_versions(&self) -> bool {
        true
    }
}
