//! The survival rules: they decide which entries of a merge some reader can still see.
//!
//! The loop in `survivors.rs` asks them for every entry, in internal order. They allocate nothing.
//!
//! Snapshots cut the sequence numbers into stripes. Of two versions of a key in one stripe, each
//! snapshot sees the newer one or neither. So each stripe needs only its newest version.
//!
//! ```text
//! sequence   1 .. 5        6 .. 9        10 ..
//! snapshot         5             9
//! stripe        0             1            2    above the last snapshot: nothing is dropped
//! ```
//!
//! Invariants:
//! 1. For every snapshot in the list, and for every later one, a read of a key returns the same
//!    before and after the job.
//! 2. An entry goes only if a newer entry of its key, a clear or a deleted range of the partition shadows it for
//!    every snapshot, or if it is a tombstone that has nothing left to delete. An operand shadows nothing: it and
//!    what it needs become one entry.

use std::sync::Arc;

use crate::hooks::JobFindings;
use crate::limits::{INTERNAL_KEY_BYTES_MAX, LEVEL_COUNT};
use crate::types::{ClearSeqs, DeletedRanges, EntryKind, Gaps, KeyRef, SeqNo};
use crate::version::{Level, PartitionVersion, Table};

/// The rules' decision on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropDecision {
    /// The entry is written.
    Keep,
    /// No one can see it any more.
    Drop,
    /// The operand before it needs it, and no snapshot lies between the two: they may become one entry.
    Fold,
    /// It has the key and sequence of the entry before. Equal kind and value: it goes; else one of
    /// the two inputs is damaged, which is a fault.
    Twin,
    /// It is newer than the version before it: an input is damaged.
    Disordered,
}

/// Returns `true` if a merge may come upon the entry. Inputs that verify block by block are not
/// trusted further than that: they may have been written from damaged memory.
#[inline]
pub(super) fn is_plausible(key: KeyRef<'_>, base_seq: SeqNo) -> bool {
    key.user.len() <= INTERNAL_KEY_BYTES_MAX && key.trailer.seq() >= base_seq
}

/// The rules as a state machine over entries in internal order.
#[derive(Debug)]
pub struct DropRules<'a> {
    snapshots: &'a [SeqNo],
    /// The clear sequences that the job may rely on: they are durable, or become so with its result.
    pub clear_seqs: ClearSeqs,
    /// The same for the deleted ranges.
    pub spans: DeletedRanges,
    /// The sequence of the entry before and its stripe; absent before the first entry.
    last: Option<(SeqNo, usize)>,
    /// The entry before is an operand that somebody sees: what lies below belongs to its value.
    is_open: bool,
    /// No one reads, and no snapshot is taken, while the job runs: operands above the last snapshot are folded, too.
    pub is_without_readers: bool,
    /// No entry survives: the tables of a FIFO go, and no snapshot sees them.
    pub drops_all: bool,
    /// See [`DropRules::kept_for`].
    kept_for: Option<SeqNo>,
}

impl<'a> DropRules<'a> {
    /// Rules for these snapshots, ascending. The sequence that was visible when the job began must
    /// be among them: a snapshot taken during the job is at that one or later.
    ///
    /// # Panics
    /// If there is no snapshot, or they do not ascend.
    pub fn new(snapshots: &'a [SeqNo]) -> DropRules<'a> {
        assert!(!snapshots.is_empty(), "the visible sequence is always a snapshot");
        assert!(snapshots.is_sorted(), "snapshots ascend");
        DropRules {
            snapshots,
            clear_seqs: ClearSeqs::default(),
            spans: DeletedRanges::default(),
            last: None,
            is_open: false,
            is_without_readers: false,
            drops_all: false,
            kept_for: None,
        }
    }

    /// The stripe of the oldest clear sequence or deleted range above an entry.
    #[inline]
    fn deletion_stripe(&self, key: KeyRef<'_>) -> Option<usize> {
        if self.clear_seqs.is_empty() && self.spans.is_empty() {
            return None;
        }
        let seq = key.trailer.seq();
        let above = match (self.clear_seqs.above(seq), self.spans.above(key.user, seq)) {
            (Some(clear_seq), Some(span)) => clear_seq.min(span),
            (clear_seq, span) => clear_seq.or(span)?,
        };
        Some(self.snapshots.partition_point(|snapshot| *snapshot < above))
    }

    /// The newest snapshot that the entry judged last was kept for, if a newer entry shadows it for
    /// everybody else: with that snapshot the entry may go.
    pub fn kept_for(&self) -> Option<SeqNo> {
        self.kept_for
    }

    /// Judges the next entry, which has the user key of the entry before if `is_version`. `below` is asked
    /// for tombstones alone: whether an older entry of the user key may lie below, outside the inputs. A
    /// payload does not save a tombstone: it is how a node without a filter cleans up what one with it has
    /// added.
    #[inline]
    pub fn keep(
        &mut self,
        key: KeyRef<'_>,
        is_version: bool,
        below: impl FnOnce() -> bool,
    ) -> DropDecision {
        let seq = key.trailer.seq();
        // Snapshots cut the sequences into stripes; a reader sees the newest entry at or under
        // its snapshot, so of each stripe only the newest entry of a key is ever seen.
        // A snapshot sees the entry with its own number, hence `<`: both lie in one stripe.
        let stripe = self.snapshots.partition_point(|snapshot| *snapshot < seq);
        let newer = self.last.filter(|_| is_version);
        if newer.is_some_and(|(newer_seq, _)| seq > newer_seq) {
            return DropDecision::Disordered;
        }
        // The entry before counts even if it was dropped: it shadows this one for the readers of
        // its stripe, and whatever let it go holds for this one as well.
        self.last = Some((seq, stripe));
        self.kept_for = None;
        if newer.is_some_and(|(newer_seq, _)| seq == newer_seq) {
            return DropDecision::Twin;
        }
        if self.drops_all {
            return DropDecision::Drop;
        }
        let was_open = std::mem::replace(&mut self.is_open, false) && is_version;
        let is_operand = key.trailer.kind() == Some(EntryKind::Operand);
        // A newer version shadows it, or a clear sequence or deleted range, whichever comes first.
        let newer_stripe = newer.map_or(usize::MAX, |(_, newer_stripe)| newer_stripe);
        let deletion_stripe = self.deletion_stripe(key).unwrap_or(usize::MAX);
        let shadow = newer_stripe.min(deletion_stripe);
        if shadow != usize::MAX {
            // Above the last snapshot every sequence may still become one: a snapshot that is taken
            // while the job runs sees the newest entry at that moment, which the job does not know.
            // Dropping all but the newest entry there would break exactly those snapshots.
            let is_seen_together = stripe < self.snapshots.len() || self.is_without_readers;
            // Otherwise a deletion in the stripe lies between the two, or above both.
            if was_open && stripe == newer_stripe && stripe != deletion_stripe && is_seen_together {
                self.is_open = is_operand;
                return DropDecision::Fold;
            }
            if stripe == shadow && stripe < self.snapshots.len() {
                return DropDecision::Drop;
            }
            if stripe < shadow {
                // The snapshots between the two see this entry; the newest of them is the last below
                // what shadows it. A smaller stripe exists, so `shadow` is not 0.
                self.kept_for = Some(self.snapshots[shadow - 1]);
            }
        }
        let tombstone = key.trailer.kind() == Some(EntryKind::Tombstone);
        // In the oldest stripe everything older of the key among the inputs goes, so only what is
        // outside them can come back to light. In a younger stripe the tombstone has entries to hide
        // that a snapshot keeps: asking only for the levels below would bring those back.
        if tombstone && stripe == 0 && !below() {
            return DropDecision::Drop;
        }
        self.is_open = is_operand;
        DropDecision::Keep
    }
}

/// A look at the levels below a job's output level for entries of a user key. Asked with ascending keys:
/// each level's cursor only moves forward.
#[derive(Debug)]
pub struct KeyBelow {
    levels: Vec<(Level, usize)>,
    /// Tables in no order.
    same_level: Vec<Arc<Table>>,
    /// The gaps, in which entries are lost: what lay there is below everything.
    gaps: Gaps,
    /// The losses that the job itself finds.
    findings: Option<JobFindings>,
    /// See [`KeyBelow::of_export`].
    reads_all: bool,
}

impl KeyBelow {
    /// Returns the look below a job that writes to `level_to`.
    pub fn new(version: &PartitionVersion, level_to: usize) -> KeyBelow {
        // An empty slice for the last level. The output level itself is not asked: its tables that
        // overlap the job are all inputs.
        let under = (level_to + 1).min(LEVEL_COUNT);
        let levels = version.levels[under..].iter();
        let levels = levels.filter(|level| !level.is_empty()).map(|level| (level.clone(), 0));
        KeyBelow {
            levels: levels.collect(),
            same_level: Vec::new(),
            gaps: version.gaps.clone(),
            findings: None,
            reads_all: false,
        }
    }

    /// The gaps in which entries of the partition are lost.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// Returns the look of an export, which reads all that a reader sees. Nothing lies below that: a gap that it comes
    /// upon lies below a clear.
    #[must_use]
    pub fn of_export(self) -> KeyBelow {
        KeyBelow { reads_all: true, ..self }
    }

    /// Adds the losses that the job finds on its way.
    #[must_use]
    pub fn and_lost(self, findings: Option<JobFindings>) -> KeyBelow {
        KeyBelow { findings, ..self }
    }

    /// Returns the look below a flush: every table of the partition is older than the memtable.
    pub fn for_flush(version: &PartitionVersion) -> KeyBelow {
        let same_level = version.levels[0].tables().to_vec();
        // Level 0 overlaps, so a cursor that only moves forward could pass a table that a later key
        // needs.
        KeyBelow { same_level, ..KeyBelow::new(version, 0) }
    }

    /// Returns `true` if the key may lie below.
    pub fn may_lie_below(&mut self, user: &[u8]) -> bool {
        if self.reads_all {
            return false;
        }
        // A lost entry may be an older version of the key. If the tombstone went, a read would meet
        // the gap and fail, although the key is known to be deleted.
        let is_lost = self.findings.as_ref().is_some_and(|findings| findings.reach(user));
        if is_lost || (!self.gaps.is_empty() && self.gaps.reach(user)) {
            return true;
        }
        // Key ranges are enough, and no table is opened: a wrong `true` keeps a tombstone until the
        // next job, a wrong `false` would bring a deleted entry back.
        for (level, at) in &mut self.levels {
            let tables = level.tables();
            while tables.get(*at).is_some_and(|table| table.meta.ends_before(user)) {
                *at += 1;
            }
            if tables.get(*at).is_some_and(|table| !table.meta.starts_after(user)) {
                return true;
            }
        }
        let mut same_level = self.same_level.iter();
        same_level.any(|table| !table.meta.ends_before(user) && !table.meta.starts_after(user))
    }
}
