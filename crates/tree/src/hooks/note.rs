//! Notes on entries, from which hidden entries are made block by block.
//!
//! A hidden entry that lies right after its owner has no key of its own. A note of 8 bytes on the owner is
//! enough to make it. The loop of a job collects the notes on the entries of a block, and [`NoteForm`] makes
//! all payloads of the block in one call.

use crate::error::Result;

/// The form of the hidden entries that are made of notes.
pub trait NoteForm: Send + Sync {
    /// The length of every payload without the sequence number of its owner in front, which is implied:
    /// 1 to [`NOTED_BYTES_MAX`].
    fn payload_bytes(&self) -> usize;

    /// Appends to `out` the payload of a hidden entry for each note.
    ///
    /// # Errors
    /// An error fails the job.
    fn put_payloads(&self, notes: &[u64], out: &mut Vec<u8>) -> Result<()>;
}

/// The longest payload that is made of a note, in bytes.
pub const NOTED_BYTES_MAX: usize = 15;

/// A block of the output that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedBlock {
    /// The number of its entries with a note.
    pub notes: u64,
    /// The sum of those notes, which wraps around.
    pub sum_of_notes: u64,
    /// It ended where a cut was forbidden: after a value that has a block of its own, or between versions
    /// of one key beyond a bound.
    pub is_forced: bool,
}
