//! [`JobIter`]: a cursor over the inputs of a job, for the loop of `survivors.rs`.

use crate::hooks::{Origin, Vouched};
use crate::iter::{InternalIter, MergeIter};
use crate::types::SeqNo;

/// A cursor over the inputs of a job.
pub trait JobIter: InternalIter {
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

    /// Returns `true` if a repair put the entry in the place of another.
    fn is_replacement(&self) -> bool {
        false
    }

    /// The entry's sequence number in its file.
    fn stored_seq(&self) -> SeqNo {
        self.key().trailer.seq()
    }
}

impl<I: JobIter> JobIter for MergeIter<I> {
    fn is_hidden(&self) -> bool {
        self.current().is_hidden()
    }

    fn vouched(&self) -> Option<Vouched<'_>> {
        self.current().vouched()
    }

    fn origin(&self) -> Origin {
        self.current().origin()
    }

    fn is_replacement(&self) -> bool {
        self.current().is_replacement()
    }

    fn stored_seq(&self) -> SeqNo {
        self.current().stored_seq()
    }
}
