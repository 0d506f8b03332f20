//! The vocabulary: keys, sequence numbers, kinds, ids, byte strings. No I/O, no policy.

mod clear_seqs;
mod counter;
mod display_bytes;
mod entry_checksum;
mod gap;
mod gaps;
mod ids;
mod key;
mod key_form;
mod log_place;
mod operation;
#[cfg_attr(
    any(target_os = "linux", target_os = "android"),
    expect(unsafe_code, reason = "the word of the process is reached through a pointer")
)]
mod process;
mod section_bytes;
mod slice;
mod spans;

pub use clear_seqs::ClearSeqs;
pub use counter::Counter;
pub use display_bytes::DisplayBytes;
pub use gap::{Gap, InGap};
pub use gaps::Gaps;
pub use ids::{Commit, DbId, Epoch, FileNo, FileNumbers, MemtableId, PartitionId};
pub use key::{EntryKind, KeyRef, SeqNo, Trailer};
pub use key_form::KeyForm;
pub use log_place::{LogPlace, LogPosition, Lsn, MustReach};
pub use process::{Opened, Process};
pub use slice::Slice;
pub use spans::{DeletedRange, DeletedRanges, SpanLayers, SpanPart};

pub use entry_checksum::VALUE_SEED;
pub use entry_checksum::{EntryChecksum, OperationChecksum};
pub use key::{InternalKey, first_not_below, hidden_precedes, prefix8};
pub use operation::Operation;
pub use section_bytes::{COPIED_VALUE_BYTES_MAX, SectionBytes};
