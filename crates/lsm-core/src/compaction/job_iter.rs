//! [`JobIter`]: a cursor over the inputs of a job, for the loop of `survivors.rs`.

use crate::error::Result;
use crate::hooks::{Entry, Origin, Vouched};
use crate::iter::{InternalIter, MergeIter};
use crate::types::SeqNo;

/// An entry of a job, with all that its cursor knows of it.
#[derive(Clone, Copy)]
pub struct JobEntry<'a> {
    /// The entry.
    pub entry: Entry<'a>,
    /// Its place.
    pub at: Origin,
    /// The note of the judge of its block, if there is one.
    pub vouched: Option<Vouched<'a>>,
    /// The checksum of the value under [`VALUE_SEED`](crate::types::VALUE_SEED), if a check of the entry has
    /// confirmed it.
    pub value_sum: Option<u64>,
}

/// A cursor over the inputs of a job.
pub trait JobIter: InternalIter {
    /// The present entry, asked for at once: each single question goes through every layer of
    /// cursors. Its place only if that is wanted.
    #[inline]
    fn present(&self, wants_place: bool) -> JobEntry<'_> {
        asked_one_by_one(self, wants_place)
    }

    /// Returns `true` if the entry is hidden.
    fn is_hidden(&self) -> bool {
        false
    }

    /// The note of the judge of its block on the entry, if there is one.
    fn vouched(&self) -> Option<Vouched<'_>> {
        None
    }

    /// The place of the entry.
    fn origin(&self) -> Origin {
        Origin::MEMTABLE
    }

    /// The entry's sequence number in its file.
    fn stored_seq(&self) -> SeqNo {
        self.key().trailer.seq()
    }

    /// Reads the block of the present entry again, from the device. Returns `false` if that is not possible:
    /// the cursor is then of no use any more.
    fn read_again(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Returns `true` if nothing but the end of an input shows whether it has all that was written
    /// to it, and that is not reached.
    fn must_walk_all(&self) -> bool {
        false
    }
}

/// The present entry of a cursor that has no faster answer.
#[inline]
pub(super) fn asked_one_by_one<I: JobIter + ?Sized>(iter: &I, wants_place: bool) -> JobEntry<'_> {
    let key = iter.key();
    let entry = Entry {
        key: key.user,
        seq: key.trailer.seq(),
        stored_seq: iter.stored_seq(),
        // Memtables take known kinds alone, and tables check the kind when they parse an entry.
        kind: key.trailer.kind().expect("a stored entry has a kind"),
        value: iter.value(),
        hidden: iter.is_hidden(),
    };
    let at = if wants_place { iter.origin() } else { Origin::MEMTABLE };
    JobEntry { entry, at, vouched: iter.vouched(), value_sum: None }
}

impl<I: JobIter> JobIter for MergeIter<I> {
    #[inline]
    fn present(&self, wants_place: bool) -> JobEntry<'_> {
        self.current().present(wants_place)
    }

    fn is_hidden(&self) -> bool {
        self.current().is_hidden()
    }

    fn vouched(&self) -> Option<Vouched<'_>> {
        self.current().vouched()
    }

    fn origin(&self) -> Origin {
        self.current().origin()
    }

    fn stored_seq(&self) -> SeqNo {
        self.current().stored_seq()
    }

    fn read_again(&mut self) -> Result<bool> {
        self.current_mut().read_again()
    }

    fn must_walk_all(&self) -> bool {
        // Any source: the merge ends for all of them at once.
        self.valid_sources().any(JobIter::must_walk_all)
    }
}
