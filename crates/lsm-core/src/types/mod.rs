//! The vocabulary: keys, sequence numbers, kinds, ids, byte strings. No I/O, no policy.

mod ids;
mod key;
mod operation;
mod slice;

pub use ids::{DbId, Epoch, FileNo, MemtableId, PartitionId};
pub use key::{EntryKind, InternalKey, KeyRef, SeqNo, Trailer, prefix8};
pub use operation::Operation;
pub use slice::Slice;
