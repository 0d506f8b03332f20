//! The options of repairs, and the code that an application supplies for them.
//!
//! `mend.rs` repairs the damaged blocks of a table with them.

use std::fmt;
use std::sync::Arc;

use lsm_core::error::Result;
use lsm_core::hooks::{Fault, OwnedEntry};
use lsm_core::types::SeqNo;

/// Another copy of the data, which the application provides.
pub trait Replica: Send + Sync + 'static {
    /// Returns the entry with this stored key and sequence number, if the replica has it. `verified` of
    /// the entry says whether the replica has verified it. If there is intact metadata, the repair also
    /// compares the entry with it.
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>>;

    /// Returns the entries of a gap: for every stored key from `from` to `to` (both included), the newest
    /// entry that is not newer than `through`. A key without an entry counts as absent. An answer with an
    /// entry that is not `verified` is ignored. Returns `None` if the replica does not know, or is older
    /// than the gap. Default: `None`.
    fn fetch_range(
        &self,
        from: &[u8],
        to: &[u8],
        through: SeqNo,
    ) -> Result<Option<Vec<OwnedEntry>>> {
        let _ = (from, to, through);
        Ok(None)
    }
}

/// A handler of damage that no source repairs.
pub trait ErrorHandler: Send + Sync + 'static {
    /// Receives a fault whose entry is in a gap from now on. `found` is the content of its place at the
    /// last read.
    fn on_unrepaired(&self, fault: &Fault, found: Option<&OwnedEntry>);
}

/// Options of repairs.
#[derive(Clone)]
pub struct RepairOptions {
    /// Maximum number of reads of the device. Default 3: if three reads agree, the bytes are on the
    /// medium.
    pub retries_max: u32,
    /// Maximum length of an entry (key and value) for the search of one bit. Default 65,536 bytes,
    /// about 2 s; 0 turns the search off.
    pub one_bit_bytes_max: usize,
    /// `true` if repairs read the log. Default: `true`.
    pub log: bool,
    /// The replica. Default: none.
    pub replica: Option<Arc<dyn Replica>>,
    /// The handler of damage that could not be repaired. Default: none.
    pub error_handler: Option<Arc<dyn ErrorHandler>>,
}

impl Default for RepairOptions {
    fn default() -> RepairOptions {
        RepairOptions {
            retries_max: 3,
            one_bit_bytes_max: 64 << 10,
            log: true,
            replica: None,
            error_handler: None,
        }
    }
}

impl fmt::Debug for RepairOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepairOptions")
            .field("retries_max", &self.retries_max)
            .field("one_bit_bytes_max", &self.one_bit_bytes_max)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
