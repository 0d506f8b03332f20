//! [`Log`]: the write-ahead log of an open database. Segments, syncs, markers, and the removal of
//! segments.
//!
//! The commit path appends to it as [`LogWriter`]; all other parts only ask for durability. It
//! knows the rest of the database only as a [`LogEnv`], so its tests need no database.
//!
//! ```text
//! state.rs     the data that the locks guard
//! writer.rs    frames into the buffer, the buffer into the segment
//! segments.rs  new segments, the reserve, and removal; their lengths: lengths.rs
//! handles.rs   syncs for want of handles: segments are open until they are synced
//! marks.rs     places at which a replay may begin
//! sealed.rs    the index of sections after the last frame of a sealed segment
//! retained.rs  the segments that stay for those who follow the changes
//! flush_admission.rs the question of a flush: may the manifest record it?
//! sync.rs      shared syncs, and the latch after a failed one
//! notices.rs   functions to be called when something is durable
//! feeds.rs     waits of feeds of changes
//! files.rs     the space of the segments on the disk
//! maintenance.rs the work of the log thread: syncs after the interval, marks, the reserve
//! ```
//!
//! Invariants:
//! 1. A segment is registered in the manifest, and its name durable, before a frame goes into it;
//!    a live segment that is missing at the next open is therefore `Corruption`.
//! 2. Segments are synced in order, so the durable part is a prefix of the log. Headers may be synced before
//!    that, also in order, and make no place durable. Removed segments are not synced any more.
//! 3. After a failed append the segment is closed at its last good frame; the header of the next
//!    one, durable before anything in it is acknowledged, names that end.
//! 4. After a failed sync nothing that was written before is synced again. The log, and so the
//!    store, takes no writes until `flush/resume.rs` has written the memtables to tables and begun a new
//!    log.
//! 5. Segments are begun in the order of their numbers, because replay follows the numbers. A
//!    segment is spoiled if one with a greater number was begun before it, or if it could not be
//!    begun. It leaves the manifest when the next segment is begun at the latest, so before the
//!    segment that its header may name as the previous one is removed.
//!
//! Lock order: `writer`, then the locks of the environment to install an edit, then `sync`.

mod env;
mod feeds;
mod files;
mod flush_admission;
mod handles;
mod lengths;
mod maintenance;
mod marks;
mod notices;
mod retained;
mod sealed;
mod segments;
mod state;
mod sync;
#[cfg(test)]
mod tests;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::context::DbContext;
use super::events::Notice;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::FileName;
use crate::fs::{Fs, OpenFiles};
use crate::options::Options;
use crate::stats::Counters;
use crate::types::{DbId, Epoch, FileNo, FileNumbers, SeqNo};
use crate::version::Change;
use crate::wal::Lsn;

pub(super) use env::DbLogEnv;
pub(super) use flush_admission::{ReleasedLog, SegmentRelease, WrittenFlush};
pub(super) use retained::{RetentionDecision, RetentionLimits};
pub(super) use state::BegunSegment;
pub(super) use writer::LogWriter;

use files::SegmentFiles;
use lengths::SEGMENT_BYTES_MIN;
use state::{SyncState, TaskAge, WriterState};

/// The calls of the log to the rest of the database.
pub(super) trait LogEnv: Send + Sync {
    /// Makes a manifest edit of `changes` durable.
    fn install_edit(&self, changes: Vec<Change>) -> Result<()>;

    /// Settles the log through `end`: see `CommitCursorWriter::settle_end`. After the append, and before
    /// anything follows from it.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::error::ErrorKind::Fenced): the append does not count.
    fn settle_log(&self, end: Lsn) -> Result<()>;

    /// Takes over files, with their lengths in bytes, to delete them: each was dropped by a durable edit, or
    /// named by one that is known to have failed. Deletes nothing itself, so it may be called under any
    /// lock.
    fn make_obsolete(&self, files: Vec<(FileName, u64)>);

    /// The number of the last manifest edit that is durable.
    fn durable_edit(&self) -> u64;

    /// Returns `true` if the manifest lists segment `number`.
    fn is_segment_listed(&self, number: FileNo) -> Result<bool>;

    /// Starts to write the values to the device that handles in the log point to.
    fn begin_sync_of_values(&self);

    /// Makes the values durable that handles in the log point to.
    fn sync_values(&self) -> Result<()>;

    /// Returns an error if the database takes no writes, for another reason than the log.
    fn check_writable(&self) -> Result<()>;

    /// Called when a sync failed and the log takes no more writes.
    fn log_failed(&self, error: &Error);

    /// Queues these notices, to be called soon and under no lock.
    fn answer(&self, notices: Vec<Notice>, outcome: Result<()>);

    /// Wakes the log thread, which calls [`Log::tend`].
    fn wake_log_thread(&self);

    /// The counters of the log's bytes and syncs.
    fn counters(&self) -> &Counters;
}

/// With so many free bytes, a batch that found no space before may find some: the longest window that is
/// mapped for appends of the usual length.
const ROOM_BYTES: u64 = 256 << 10;

/// The settings of a log, fixed for its life.
pub(super) struct LogSettings {
    pub(super) fs: Arc<dyn Fs>,
    /// The open files of the database, with which segments share the handles of the process.
    pub(super) files: Arc<OpenFiles>,
    pub(super) dir: PathBuf,
    pub(super) db_id: DbId,
    pub(super) epoch: Epoch,
    pub(super) numbers: Arc<FileNumbers>,
    /// The greatest length of a segment, in bytes.
    pub(super) segment_bytes_max: u64,
    /// `true` if appends may go through a mapping.
    pub(super) is_mapped: bool,
    /// The part of the log that stays when nothing needs it.
    pub(super) kept: RetentionLimits,
}

impl LogSettings {
    /// For an epoch of the database in `context`.
    pub(super) fn new(context: &DbContext, options: &Options) -> LogSettings {
        LogSettings {
            fs: context.fs.clone(),
            files: context.files.clone(),
            dir: context.dir.clone(),
            db_id: context.db_id,
            epoch: context.epoch,
            numbers: context.numbers.clone(),
            // A segment is released as a whole, when all memtables with frames in it are in tables.
            // One that is longer than the memtables together would keep flushed entries for long.
            segment_bytes_max: options
                .wal_segment_bytes
                .min(options.write_buffer_bytes.max(SEGMENT_BYTES_MIN)),
            is_mapped: options.wal_mapped,
            kept: RetentionLimits::of(options),
        }
    }
}

/// The write-ahead log of an open database.
pub(super) struct Log {
    // Fixed after construction.
    settings: LogSettings,
    env: Arc<dyn LogEnv>,
    /// Held by the leader of the commit path, and by work between two groups.
    writer: Mutex<WriterState>,
    /// A leaf: the ends of the appended and of the durable part of the log.
    sync: Mutex<SyncState>,
    // Copies of two fields of `sync` for each append, which would otherwise wait for its lock twice.
    // Stored under that lock, with release; acquire for readers that act on a failure.
    durable_lsn: AtomicU64,
    has_failed: AtomicBool,
    /// A sync ended, well or not.
    synced: Condvar,
    /// All for whom a sync gathers have asked, or the log has failed.
    asked: Condvar,
    /// `true` if the log thread knows of work. Saves a wake-up per append; acquire and release: the
    /// thread clears it, and then sees each append that did not wake it.
    reported: AtomicBool,
    /// The error of the last batch, if it found no space. A leaf.
    refusal: Mutex<Option<Error>>,
    /// There is one. Relaxed: both are written under `writer`.
    has_refused: AtomicBool,
    /// A leaf, of the log thread alone.
    ages: Mutex<TaskAge>,
    /// A leaf inside: the space of the segments on the disk.
    files: SegmentFiles,
}

impl Log {
    /// A log without a segment; everything through `last_seq` is in tables.
    pub(super) fn new(settings: LogSettings, last_seq: SeqNo, env: Arc<dyn LogEnv>) -> Log {
        Log {
            writer: Mutex::new(WriterState::new(last_seq, settings.segment_bytes_max)),
            settings,
            env,
            sync: Mutex::new(SyncState::new(last_seq)),
            durable_lsn: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            synced: Condvar::new(),
            asked: Condvar::new(),
            reported: AtomicBool::new(false),
            refusal: Mutex::default(),
            has_refused: AtomicBool::new(false),
            ages: Mutex::default(),
            files: SegmentFiles::default(),
        }
    }

    /// The error of the last batch that found no space, until one is appended, or until there is space.
    pub(super) fn refusal(&self) -> Option<Error> {
        let error = self.refusal.lock().clone()?;
        let LogSettings { fs, dir, .. } = &self.settings;
        fs.free_bytes(dir).is_ok_and(|bytes| bytes < ROOM_BYTES).then_some(error)
    }

    /// Notes that a batch could not be appended. Failures other than a lack of space begin a new segment, and
    /// the next batch goes there.
    fn note_refusal(&self, error: &Error) {
        if error.kind() == ErrorKind::NoSpace {
            *self.refusal.lock() = Some(error.clone());
            self.has_refused.store(true, Ordering::Relaxed);
        }
    }

    fn note_accepted(&self) {
        // Loaded first: every append comes here.
        if self.has_refused.load(Ordering::Relaxed) {
            self.has_refused.store(false, Ordering::Relaxed);
            *self.refusal.lock() = None;
        }
    }

    /// The epoch of its frames.
    pub(super) fn epoch(&self) -> Epoch {
        self.settings.epoch
    }

    /// The bytes that all segments take on the disk, including those reserved for appends.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Notes an existing segment that is not appended to.
    pub(super) fn note_segment(&self, number: FileNo, bytes: u64) {
        self.files.note_made(number, bytes);
    }
}
