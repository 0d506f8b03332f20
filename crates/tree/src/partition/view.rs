//! [`ReadView`]: the memtables and tables that a reader pins.

use std::ops::Bound;
use std::sync::Arc;

use crate::hooks::Expiry;
use crate::iter::DeadRange;
use crate::memtable::{Memtable, clear_seqs_of, spans_of};
use crate::types::{ClearSeqs, DeletedRange, DeletedRanges, Gap, SeqNo, SpanLayers};
use crate::version::{PartitionVersion, SstMeta, UserRange};

/// Memtables and tables of a partition at one moment. With a sequence number it is all that the
/// read path needs: `Db`, snapshots and secondaries read through the same functions.
pub struct ReadView {
    /// Takes writes.
    pub active: Arc<Memtable>,
    /// Wait for their flush, newest first.
    pub sealed: Vec<Arc<Memtable>>,
    /// The tables.
    pub version: Arc<PartitionVersion>,
    /// The rule by which readers do not see expired entries.
    pub expiry: Option<Arc<dyn Expiry>>,
    /// The clear sequences of everything but the active memtable.
    fixed: ClearSeqs,
    /// The newest of these, or zero.
    newest_fixed: SeqNo,
    /// The deleted ranges of the sealed memtables. Not joined with those of the version: a seal, which writers wait for,
    /// would copy all of them.
    sealed_spans: DeletedRanges,
    /// The number of the newest deleted range of version and sealed memtables, or zero.
    newest_fixed_span: SeqNo,
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
        let fixed = version.clear_seqs.and(&clear_seqs_of(&sealed));
        let newest_fixed = fixed.all().last().copied().unwrap_or(SeqNo::ZERO);
        let sealed_spans = spans_of(&sealed);
        let newest_fixed_span = version.spans.newest().max(sealed_spans.newest());
        let dead_epoch = active.dead().epoch();
        ReadView {
            active,
            sealed,
            version,
            expiry: None,
            fixed,
            newest_fixed,
            sealed_spans,
            newest_fixed_span,
            dead_epoch,
        }
    }

    /// The same view; its readers do not see what has expired by this rule.
    #[must_use]
    pub fn with_expiry(self, expiry: Option<&Arc<dyn Expiry>>) -> ReadView {
        ReadView { expiry: expiry.cloned(), ..self }
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
        self.active.newest_clear().max(self.newest_fixed)
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
        own.or_else(|| self.fixed.at(seq)).unwrap_or(SeqNo::ZERO)
    }

    /// The number of the newest deleted range, or zero.
    #[inline]
    pub fn newest_span(&self) -> SeqNo {
        self.active.newest_span().max(self.newest_fixed_span)
    }

    /// The newest clear sequence or deleted range over `key` that a reader at `seq` sees, or zero: an entry of
    /// the key below it is absent.
    pub fn deleted_at(&self, key: &[u8], seq: SeqNo) -> SeqNo {
        let clear_seq = self.clear_at(seq);
        if self.newest_span() == SeqNo::ZERO {
            clear_seq
        } else {
            clear_seq.max(self.span_at(key, seq))
        }
    }

    /// The newest deleted range over `key` that a reader at `seq` sees, or zero.
    pub fn span_at(&self, key: &[u8], seq: SeqNo) -> SeqNo {
        let fixed = self.version.spans.at(key, seq).max(self.sealed_spans.at(key, seq));
        fixed.max(self.active.span_at(key, seq))
    }

    /// Returns `true` if a reader at `at` does not see an entry of `key` with the number `entry`, since the
    /// partition was cleared or a range with the key was deleted in between.
    #[inline]
    pub fn hides(&self, key: &[u8], entry: SeqNo, at: SeqNo) -> bool {
        self.newest_clear().max(self.newest_span()) > entry && self.deleted_at(key, at) > entry
    }

    /// The newest clear sequence that a reader at `seq` sees, and the deleted ranges.
    pub fn deletions(&self, seq: SeqNo) -> (SeqNo, SpanLayers) {
        (self.clear_at(seq), self.span_layers())
    }

    /// The newest deleted range over a key within the bounds, or zero.
    pub fn newest_span_within(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> SeqNo {
        let active = self.active.span_layers();
        let layers = active.iter().chain([&self.version.spans, &self.sealed_spans]);
        layers.map(|layer| layer.newest_within(lower, upper)).max().unwrap_or_default()
    }

    /// The deleted ranges.
    pub fn span_layers(&self) -> SpanLayers {
        if self.newest_span() == SeqNo::ZERO {
            return SpanLayers::default();
        }
        let active = self.active.span_layers();
        let fixed = [self.version.spans.clone(), self.sealed_spans.clone()];
        SpanLayers::of(fixed.into_iter().chain(active))
    }

    /// Returns `true` if a table lies below `span` of the active memtable, in all of its keys, and below nothing
    /// older: as [`ReadView::frees_tables`].
    pub fn frees_tables_in(&self, span: &DeletedRange) -> bool {
        let range = UserRange { start: Some(&span.start), end: span.end.as_deref() };
        self.version.levels.iter().enumerate().any(|(number, level)| {
            let tables = if number == 0 { level.tables() } else { level.overlapping(range) };
            tables.iter().any(|table| self.is_freed(&table.meta, span))
        })
    }

    fn is_freed(&self, meta: &SstMeta, span: &DeletedRange) -> bool {
        meta.newest() < span.seq
            && span.contains(&meta.smallest.user)
            && span.contains(&meta.largest.user)
            && meta.newest() >= self.newest_fixed
            && [&self.version.spans, &self.sealed_spans].iter().all(|spans| {
                spans.above_all(&meta.smallest.user, &meta.largest.user, meta.newest()).is_none()
            })
    }

    /// The first gap that a walk at `seq` over the keys between `lower` and `upper` may not pass.
    pub fn gap_refusing(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        seq: SeqNo,
    ) -> Option<&Gap> {
        let clear_seq = self.clear_at(seq);
        if self.newest_span() == SeqNo::ZERO {
            return self.version.gaps.refusing(lower, upper, seq, clear_seq, |_| false);
        }
        let spans = self.span_layers().joined();
        self.version.gaps.refusing(lower, upper, seq, clear_seq, |gap| {
            // What was lost is deleted, where the walk comes to it.
            let first = match lower {
                Bound::Included(first) | Bound::Excluded(first) if *first > *gap.from => first,
                _ => &gap.from,
            };
            let last = match upper {
                Bound::Included(last) | Bound::Excluded(last) if *last < *gap.to => last,
                _ => &gap.to,
            };
            first <= last && spans.hide_all(first, last, seq, gap.through)
        })
    }

    /// Returns `true` if tables lie below the clear sequences of the active memtable and below no older one:
    /// they take space until one of these clear sequences is durable. Tables below an older clear sequence
    /// are deleted anyway, so a partition that is cleared again and again need not be flushed each time.
    pub fn frees_tables(&self) -> bool {
        let mut levels = self.version.levels.iter().filter(|level| !level.is_empty());
        levels.any(|level| level.newest() >= self.newest_fixed)
    }

    /// All clear sequences.
    pub fn clear_seqs(&self) -> ClearSeqs {
        self.fixed.and(&clear_seqs_of(std::slice::from_ref(&self.active)))
    }

    /// Memory of all memtables, in bytes.
    pub fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|memtable| memtable.bytes() + memtable.bloom_bytes()).sum()
    }
}
