//! [`HiveRepair`]: the repair of one damaged table by the metadata of its blocks.
//!
//! [`MetaHive`](crate::MetaHive) makes one for each repair, and the walk of the engine calls it for each block, on the
//! thread of the job, without a lock. `mend.rs` repairs the blocks that are damaged.
//!
//! Invariants:
//! 1. Each entry of a sealed table that goes on agrees with its metadata, and a block has all entries that were
//!    written to it, as far as the seal of the table can tell, or the loss is reported.
//! 2. Damage of metadata alone is reported once, when the entries of its block are known to be
//!    correct.

use std::sync::Arc;

use lsm_core::hooks::{
    BlockVerdict, DamagedBlock, DamagedTable, DecodedEntry, Entry, Fault, Origin, RepairSources,
    RepairedBlock, TableRepair, TableVerdict,
};
use lsm_core::types::{EntryKind, SeqNo};

use crate::block_digests::{BlockDigests, SpanState};
use crate::counts::Counts;
use crate::mend::{self, SEARCHES_IN_VAIN_MAX};
use crate::repair::RepairOptions;
use crate::shared::Shared;
use crate::table_seal::TableSeal;
use crate::verdict::Verdict;

/// Repairs the blocks of one table. Its counts go to the shared ones when it is dropped.
pub(crate) struct HiveRepair {
    // Fixed after construction.
    pub(crate) shared: Arc<Shared>,
    /// `None` for a table that is not sealed.
    pub(crate) seal: Option<TableSeal>,
    pub(crate) table: DamagedTable,
    pub(crate) options: RepairOptions,
    pub(crate) sources: Arc<dyn RepairSources>,

    /// Damaged blocks whose second reading was the same.
    pub(crate) read_in_vain: u64,
    /// Searches for a flipped bit that found none.
    searched_in_vain: u64,
    digests: BlockDigests,
    pub(crate) counts: Counts,
}

impl HiveRepair {
    pub(crate) fn new(
        shared: Arc<Shared>,
        seal: Option<TableSeal>,
        table: DamagedTable,
        options: RepairOptions,
        sources: Arc<dyn RepairSources>,
    ) -> HiveRepair {
        HiveRepair {
            shared,
            seal,
            table,
            options,
            sources,
            read_in_vain: 0,
            searched_in_vain: 0,
            digests: BlockDigests::default(),
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

    /// The checksum of an entry, and what its metadata says of it.
    pub(crate) fn compare(&self, entry: &Entry<'_>, hidden: Option<&[u8]>) -> (u64, Verdict) {
        self.shared.compare(self.seal.as_ref(), entry, hidden)
    }

    /// The digest of the present block, if the seal has one of it alone.
    pub(crate) fn digest(&self) -> Option<u32> {
        self.seal.as_ref()?.digest_of(self.digests.blocks())
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

    /// The fault of an entry, or of the block, that is reported.
    pub(crate) fn fault(
        &self,
        block: &dyn DamagedBlock,
        of: Option<&DecodedEntry>,
        what: &str,
    ) -> Fault {
        let at = self.origin(block.offset(), of.map_or(0, |entry| entry.index));
        let (key, seq, kind, value) = match of {
            Some(DecodedEntry { entry, .. }) => {
                (entry.key.clone(), entry.seq, entry.kind, entry.value.clone())
            }
            None => {
                let key =
                    block.before().map_or_else(|| self.table.keys.0.to_vec(), |it| it.0.to_vec());
                (key, SeqNo::ZERO, EntryKind::Poison, Vec::new())
            }
        };
        let mut what = what.to_owned();
        if !self.may_search() {
            // Otherwise this would read like a search that found nothing.
            what +=
                "; no bit was searched for, because too many searches in this table were in vain";
        }
        Fault { key, seq, kind, value, at, what }
    }

    /// Goes on after the present block, with the sum and the number of its entries. `is_whole` is `false` if
    /// some of its entries are lost, and that is reported already. Returns the verdict on the span of the block.
    pub(crate) fn pass(&mut self, is_whole: bool, notes: u64, entries: u64) -> BlockVerdict {
        match self.digests.add(self.seal.as_ref(), notes, entries, is_whole) {
            SpanState::Open => BlockVerdict::Later,
            SpanState::Sound => BlockVerdict::Sound,
            SpanState::Unsound => BlockVerdict::AllDamaged,
        }
    }
}

impl TableRepair for HiveRepair {
    fn block(&mut self, block: &mut dyn DamagedBlock) -> RepairedBlock {
        // The engine fails the job.
        let Ok(stored) = block.read(false) else { return RepairedBlock::default() };
        mend::sound(self, block, &stored).unwrap_or_else(|| mend::mend(self, block))
    }

    fn end(&mut self) -> TableVerdict {
        self.digests.end(self.seal.as_ref())
    }

    fn has_versions(&self) -> bool {
        let has_versions = self.seal.as_ref().is_none_or(TableSeal::has_versions);
        // An ingest refuses a table with several versions of a key, because all would have one
        // number.
        has_versions && self.table.global_seq.is_none()
    }
}

impl Drop for HiveRepair {
    fn drop(&mut self) {
        self.shared.add(self.counts);
    }
}
