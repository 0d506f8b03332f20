//! [`ReadView`]: the memtables and tables that a reader pins.

use std::sync::Arc;

use crate::iter::DeadRange;
use crate::memtable::{Memtable, clear_seqs_of};
use crate::types::{ClearSeqs, SeqNo};
use crate::version::PartitionVersion;

/// Memtables and tables of a partition at one moment. With a sequence number it is all that the
/// read path needs: `Db`, snapshots and secondaries read through the same functions.
pub struct ReadView {
    /// Takes writes.
    pub active: Arc<Memtable>,
    /// Wait for their flush, newest first.
    pub sealed: Vec<Arc<Memtable>>,
    /// The tables.
    pub version: Arc<PartitionVersion>,
    /// The clear sequences of everything but the active memtable.
    settled: ClearSeqs,
    /// The newest of these, or zero.
    newest_settled: SeqNo,
    /// The epoch of [`DeadRanges`](crate::memtable::DeadRanges) that the view began in.
    dead_epoch: u64,
}

impl ReadView {
    /// A view of these; sealed memtables newest first.
    pub fn new(
        active: Arc<Memtable>,
        sealed: Vec<Arc<Memtable>>,
        version: Arc<PartitionVersion>,
    ) -> ReadView {
        // Computed once for a view: only the clear sequences of the active memtable can change while it is
        // in use.
        let settled = version.clear_seqs.and(&clear_seqs_of(&sealed));
        let newest_settled = settled.all().last().copied().unwrap_or(SeqNo::ZERO);
        let dead_epoch = active.dead().epoch();
        ReadView { active, sealed, version, settled, newest_settled, dead_epoch }
    }

    /// The range around `user` without entries for a reader at `seq`, if one is known.
    pub fn find_dead(&self, user: &[u8], seq: SeqNo) -> Option<DeadRange> {
        self.active.find_dead(self.dead_epoch, user, seq)
    }

    /// Notes that a reader at `seq` saw no entry in the range.
    pub fn remember_dead(&self, range: &DeadRange, seq: SeqNo) {
        self.active.remember_dead(self.dead_epoch, range, seq);
    }

    /// The memtables, newest first.
    pub fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> + Clone {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// The newest clear sequence, or zero.
    #[inline]
    pub fn newest_clear(&self) -> SeqNo {
        self.active.newest_clear().max(self.newest_settled)
    }

    /// The newest clear sequence that a reader at `seq` sees, or zero: an entry below it is absent.
    #[inline]
    pub fn clear_at(&self, seq: SeqNo) -> SeqNo {
        let newest = self.newest_clear();
        // Nearly every reader is newer than all clear sequences, and then one comparison is enough.
        if newest <= seq { newest } else { self.older_clear_at(seq) }
    }

    #[cold]
    fn older_clear_at(&self, seq: SeqNo) -> SeqNo {
        let own = self.active.clear_at(seq);
        own.or_else(|| self.settled.at(seq)).unwrap_or(SeqNo::ZERO)
    }

    /// Returns `true` if a reader at `at` does not see an entry with the number `entry`, since the
    /// partition was cleared in between.
    #[inline]
    pub fn hides(&self, entry: SeqNo, at: SeqNo) -> bool {
        self.newest_clear() > entry && self.clear_at(at) > entry
    }

    /// Returns `true` if tables lie below the clear sequences of the active memtable and below no older one:
    /// they take space until one of these clear sequences is durable. Tables below an older clear sequence
    /// are deleted anyway, so a partition that is cleared again and again need not be flushed each time.
    pub fn frees_tables(&self) -> bool {
        let mut levels = self.version.levels.iter().filter(|level| !level.is_empty());
        levels.any(|level| level.newest() >= self.newest_settled)
    }

    /// All clear sequences.
    pub fn clear_seqs(&self) -> ClearSeqs {
        self.settled.and(&clear_seqs_of(std::slice::from_ref(&self.active)))
    }

    /// Memory of all memtables, in bytes.
    pub fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|memtable| memtable.bytes() + memtable.bloom_bytes()).sum()
    }
}
