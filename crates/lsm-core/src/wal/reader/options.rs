//! The facts that a caller knows about a log before it is read: the segments, the place to begin,
//! the end.
//!
//! Recovery and followers fill them in from the manifest. Plain data.

use std::path::PathBuf;
use std::sync::Arc;

use crate::fs::File;
use crate::types::{DbId, Epoch, FileNo, LogPosition, PartitionId};
use crate::wal::{LogPlace, Lsn, MustReach};

/// A segment that the manifest lists as live.
#[derive(Clone)]
pub struct SegmentSource {
    /// Its file number.
    pub number: FileNo,
    /// The epoch in its name.
    pub epoch: Epoch,
    /// Its path, for errors.
    pub path: PathBuf,
    /// The file, open for reading.
    pub file: Arc<dyn File>,
}

/// The part of the log to read, and what must be there.
#[derive(Clone, Debug)]
pub struct LogReaderOptions {
    /// The database that every segment must name.
    pub db: DbId,
    /// The place to begin at; `None`: `replay_from`, or the front of the first listed segment.
    pub start: Option<LogPosition>,
    /// Everything before this place is known to be durable and is not needed: reading begins here
    /// unless `start` is given. An earlier end of the log is `Corruption`.
    pub replay_from: Option<LogPosition>,
    /// Nothing at or after this place may be read: an epoch that is over ends here.
    pub cut: Option<LogPlace>,
    /// The ends that the log is known to reach: an earlier one is `Corruption`.
    pub must_reach: MustReach,
    /// Read and verify the sections of this partition alone; the others are left out.
    pub only: Option<PartitionId>,
    /// Read no body at all: [`BatchRef::places`](super::BatchRef::places) returns where the
    /// sections lie. The header checksum of the frame covers the places; the sections are not read.
    pub headers_only: bool,
    /// Nothing at or after this place may be read: it is not known to count.
    pub reach: Lsn,
    /// The salts of the segments are derived by [`salt_of`](crate::wal::salt_of), so a segment
    /// whose header is lost has a known salt. `false` for a log that was written in the first
    /// format version, as its manifest says.
    pub has_derived_salts: bool,
}

impl LogReaderOptions {
    /// All of the log of `db`, with nothing known about its end.
    pub fn new(db: DbId) -> LogReaderOptions {
        LogReaderOptions {
            db,
            start: None,
            replay_from: None,
            cut: None,
            must_reach: MustReach::default(),
            only: None,
            headers_only: false,
            reach: Lsn(u64::MAX),
            has_derived_salts: true,
        }
    }
}
