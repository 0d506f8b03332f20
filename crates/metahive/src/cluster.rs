//! The versions of one key that a job has read, until the metadata of the key arrives.
//!
//! The filter keeps a stack of clusters. The stack is nearly always one deep. It is deeper only
//! where a key continues another key with a zero byte, so that it sorts between that key and its
//! metadata.
//!
//! Invariants:
//! 1. An entry takes 16 bytes ([`Slot`]), and each stretch of one block one [`Run`].
//! 2. Slots descend by sequence number, in the order in which the entries came.
//! 3. `values` and `made` stay empty for the integrity provider.

use lsm_core::hooks::{Entry, Origin};
use lsm_core::types::{EntryKind, FileNo, SeqNo};

/// An entry of a cluster: sequence number, kind and state in one word, and its checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// `seq << 8 | state << 4 | kind`.
    word: u64,
    /// Over the sequence number that is stored next to the entry.
    pub(crate) sum: u64,
}

const _: () = assert!(size_of::<Slot>() == 16, "the memory bound of the paper");

/// Judged: agreed with its metadata, or was reported.
pub(crate) const JUDGED: u64 = 0x10;
/// Goes into the output.
pub(crate) const SURVIVES: u64 = 0x20;
/// Goes into the output with another sequence number or checksum: see [`Changed`].
pub(crate) const CHANGED: u64 = 0x40;

impl Slot {
    pub(crate) fn seq(&self) -> SeqNo {
        SeqNo::new(self.word >> 8).expect("56 bits")
    }

    pub(crate) fn kind(&self) -> EntryKind {
        EntryKind::from_u8((self.word & 0x0f) as u8).expect("made from a kind")
    }

    pub(crate) fn is(&self, state: u64) -> bool {
        self.word & state != 0
    }

    pub(crate) fn set(&mut self, state: u64) {
        self.word |= state;
    }
}

/// Consecutive slots whose entries are consecutive in one block.
#[derive(Clone, Copy, Debug)]
struct Run {
    first_slot: usize,
    at: Origin,
    /// Of the first slot. Where it is not the one that counts, the run has no other slot.
    stored_seq: SeqNo,
}

/// A survivor that differs from the input.
#[derive(Clone, Copy, Debug)]
struct Changed {
    slot: usize,
    seq: SeqNo,
    sum: u64,
}

/// The metadata that a provider made for a survivor.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    /// `true` if the entry is as it was, so that its old metadata may be carried on.
    pub(crate) is_untouched: bool,
}

/// An entry without a slot that goes into the output.
#[derive(Debug)]
pub(crate) struct HeldEntry {
    pub(crate) seq: SeqNo,
    pub(crate) sum: u64,
    /// The metadata that a provider made for it.
    pub(crate) made: Vec<u8>,
}

/// The versions of one key that a job has read, until the metadata of the key arrives.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) key: Vec<u8>,
    pub(crate) slots: Vec<Slot>,
    runs: Vec<Run>,
    changed: Vec<Changed>,
    /// Copies of the values, for a provider's check.
    pub(crate) values: Vec<Vec<u8>>,
    pub(crate) made: Vec<Made>,
    /// Entries that were written after a later version was read, or that were made of several: they have no slot.
    pub(crate) held: Vec<HeldEntry>,
    /// The slot to which the next metadata entry is expected to belong.
    expected: usize,
    pub(crate) unjudged: usize,
    pub(crate) survivors: u64,
    /// `true` if a cut was allowed between its entries and their metadata.
    pub(crate) is_split: bool,
    /// Bytes that were written before its first survivor, and up to after its last one.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Cluster {
    /// Makes it the cluster of `key`, keeping its room.
    pub(crate) fn reset(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.slots.clear();
        self.runs.clear();
        self.changed.clear();
        self.values.clear();
        self.made.clear();
        self.held.clear();
        self.expected = 0;
        self.unjudged = 0;
        self.survivors = 0;
        self.is_split = false;
    }

    /// Adds an entry that has to be judged.
    #[inline]
    pub(crate) fn push(&mut self, entry: &Entry<'_>, sum: u64, at: Origin) {
        let slot = self.slots.len();
        // A place for each slot would take more than twice its 16 bytes, and nearly all follow from
        // the one before.
        if !self.runs.last().is_some_and(|run: &Run| {
            let expected = Origin { entry: at.entry, ..run.at };
            entry.seq == entry.stored_seq
                && run.stored_seq == self.slots[run.first_slot].seq()
                && at == expected
                // A run has no gaps, so the place of each slot follows from the first one.
                && u64::from(at.entry) == u64::from(run.at.entry) + (slot - run.first_slot) as u64
        }) {
            self.runs.push(Run { first_slot: slot, at, stored_seq: entry.stored_seq });
        }
        self.slots.push(Slot { word: entry.seq.get() << 8 | entry.kind as u64, sum });
        self.unjudged += 1;
    }

    /// Adds an entry that there is nothing to judge by: one out of a memtable, or one that its judge has
    /// vouched for.
    #[inline]
    pub(crate) fn push_judged(&mut self, seq: SeqNo, kind: EntryKind, sum: u64) {
        // No run: no one asks where an entry lies that is judged already.
        let word = seq.get() << 8 | JUDGED | kind as u64;
        self.slots.push(Slot { word, sum });
    }

    fn run_of(&self, slot: usize) -> &Run {
        let after = self.runs.partition_point(|run| run.first_slot <= slot);
        &self.runs[after - 1]
    }

    /// The place of the entry of a slot.
    pub(crate) fn origin(&self, slot: usize) -> Origin {
        let run = self.run_of(slot);
        let steps = u32::try_from(slot - run.first_slot).unwrap_or(u32::MAX);
        Origin { entry: run.at.entry.saturating_add(steps), ..run.at }
    }

    /// The sequence number that is stored next to the entry of a slot.
    pub(crate) fn stored_seq(&self, slot: usize) -> SeqNo {
        let run = self.run_of(slot);
        if run.first_slot == slot { run.stored_seq } else { self.slots[slot].seq() }
    }

    /// The slot of the entry with this sequence number from this file.
    #[inline]
    pub(crate) fn find(&mut self, seq: SeqNo, file: Option<FileNo>) -> Option<usize> {
        let is_it = |slot: usize| {
            self.slots.get(slot).is_some_and(|s| s.seq() == seq)
                && self.run_of(slot).at.file == file
        };
        // Metadata comes in the order of its entries: the expected slot is nearly always the one.
        let slot = if is_it(self.expected) {
            self.expected
        } else {
            // Invariant 2 allows the search. A key with a million versions would otherwise take the
            // square of that.
            let first = self.slots.partition_point(|slot| slot.seq() > seq);
            // Two files may hold the same entry, so the number alone does not name one.
            let equal = self.slots[first..].iter().take_while(|slot| slot.seq() == seq).count();
            (first..first + equal).find(|slot| is_it(*slot))?
        };
        self.expected = slot + 1;
        Some(slot)
    }

    /// Marks a slot as judged.
    pub(crate) fn judged(&mut self, slot: usize) {
        if !self.slots[slot].is(JUDGED) {
            self.slots[slot].set(JUDGED);
            self.unjudged -= 1;
        }
    }

    /// Adds a survivor without a slot, which takes `bytes` from `written` on.
    pub(crate) fn add_held(&mut self, held: HeldEntry, written: u64, bytes: u64) {
        self.count_survivor(written, bytes);
        self.held.push(held);
    }

    fn count_survivor(&mut self, written: u64, bytes: u64) {
        if self.survivors == 0 {
            self.start = written;
        }
        self.end = written + bytes;
        self.survivors += 1;
    }

    /// Marks the newest slot as a survivor, which takes `bytes` from `written` on.
    pub(crate) fn survive(&mut self, written: u64, bytes: u64) {
        self.count_survivor(written, bytes);
        self.slots.last_mut().expect("an entry came before its survival").set(SURVIVES);
    }

    /// Notes that the newest slot goes on under this sequence number and checksum.
    pub(crate) fn change(&mut self, seq: SeqNo, sum: u64) {
        let slot = self.slots.len() - 1;
        // Beside the slot, because few survivors change and each slot would grow by 16 bytes.
        self.slots[slot].set(CHANGED);
        self.changed.push(Changed { slot, seq, sum });
    }

    /// Sequence number and checksum of a survivor as it was written.
    pub(crate) fn written_as(&self, slot: usize) -> (SeqNo, u64) {
        let entry = &self.slots[slot];
        if !entry.is(CHANGED) {
            return (entry.seq(), entry.sum);
        }
        let at = self.changed.binary_search_by_key(&slot, |changed| changed.slot);
        let changed = self.changed[at.expect("a changed slot was noted")];
        (changed.seq, changed.sum)
    }

    /// Forgets the survivors: their metadata lies elsewhere.
    pub(crate) fn forget_survivors(&mut self) {
        for slot in &mut self.slots {
            // `CHANGED` stays. It is asked for survivors alone.
            slot.word &= !SURVIVES;
        }
        self.held.clear();
        self.survivors = 0;
    }
}
