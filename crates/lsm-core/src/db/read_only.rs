//! Opening without writing: on a full disk, a read-only medium, without permission to write.
//!
//! Nothing is created, changed or removed, in the folder or elsewhere. The log is replayed into
//! memtables and stays there; a torn end of the log is skipped as recovery would cut it. So readers
//! see the same as after an open for writing.
//!
//! Invariants:
//! 1. Only calls of the file system are used that read, see [`Fs::try_lock_shared`].
//! 2. Damage that recovery refuses is refused here: a read-only open is no reason to believe
//!    damage.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::concurrent_reader::CommittedPart;
use super::context::DbContext;
use super::hook_binding::HooksOf;
use super::ownership::claims::{is_absent, lock_path, locked, newest_claim};
use super::recovery::{LogFiles, OpenPlan, OrphanFiles, RecoveredState};
use crate::error::{Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{Fs, LockGuard};
use crate::memtable::{Memtable, SlabPool};
use crate::options::Options;
use crate::replay::Replay;
use crate::shared::CommitCursorWriter;
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::{Manifest, Missing, VersionSet, is_named};

/// Stands for the lock of a folder in which no process could have taken one.
struct NoLock;

impl LockGuard for NoLock {}

/// The lock of writers, taken shared.
pub(super) struct ReadLock {
    pub(super) guard: Box<dyn LockGuard>,
    /// The meaning of a table that is not there. Without a lock another process may write meanwhile.
    pub(super) missing: Missing,
}

/// Takes the lock of writers shared. Without a lock file there is no writer, and one that may not be opened
/// belongs to another user: then no writer is excluded.
///
/// # Errors
/// [`Locked`](crate::ErrorKind::Locked) if a writer holds it; those of the file system.
pub(super) fn lock_for_reading(fs: &dyn Fs, dir: &Path) -> Result<ReadLock> {
    let claim = newest_claim(fs, dir)?;
    let taken = match fs.try_lock_shared(&lock_path(dir, claim)) {
        Err(error) if is_absent(&error) => {
            Some(ReadLock { guard: Box::new(NoLock), missing: Missing::DamageIf(is_named) })
        }
        taken => taken?.map(|guard| ReadLock { guard, missing: Missing::Damage }),
    };
    // After a concurrent claim another lock counts, and its holder writes.
    let is_newest = newest_claim(fs, dir)? == claim;
    taken.filter(|_| is_newest).ok_or_else(|| locked(dir, "is already open"))
}

fn too_large(replay: &Replay, bytes_max: u64) -> Error {
    let what =
        "the memory that the log takes without being flushed (three times write_buffer_bytes)";
    Error::limit(what, replay.bytes(), bytes_max)
}

impl OpenPlan {
    /// Replays the log into memtables, and begins no epoch. Next to a writer, only the committed
    /// part.
    ///
    /// # Errors
    /// [`LimitExceeded`](crate::ErrorKind::LimitExceeded) if they take more than memtables may; otherwise those of
    /// recovery.
    pub(super) fn replay_into_memory(
        self,
        context: &DbContext,
        options: &Options,
        hooks: &HooksOf,
        committed: Option<&CommittedPart>,
    ) -> Result<RecoveredState> {
        // Nothing can be flushed here, so the log must fit into memory, or the open is refused.
        let bytes_max = options.memtable_bytes_max();
        let files = LogFiles::of(context);
        let (replayed, mut replay) = match committed {
            None => {
                let (end, replay) =
                    self.replay(&files, bytes_max, hooks, |full| Err(too_large(full, bytes_max)))?;
                (end.last_seq, replay)
            }
            Some(committed) => {
                let mut replay = Replay::new(Arc::new(SlabPool::new(bytes_max)));
                let last_seq =
                    self.replay_committed(context, committed, &mut replay, |replay| {
                        let is_full = replay.bytes() >= bytes_max;
                        if is_full { Err(too_large(replay, bytes_max)) } else { Ok(()) }
                    })?;
                (last_seq, replay)
            }
        };
        Ok(self.without_epoch(context, options, replayed, replay.take()))
    }

    /// Begins no epoch, and reads nothing of the log.
    pub(super) fn without_log(self, context: &DbContext, options: &Options) -> RecoveredState {
        self.without_epoch(context, options, SeqNo::ZERO, BTreeMap::new())
    }

    /// The state of the manifest, with memtables of what was replayed of the log, through `replayed`.
    fn without_epoch(
        self,
        context: &DbContext,
        options: &Options,
        replayed: SeqNo,
        memtables: BTreeMap<PartitionId, Arc<Memtable>>,
    ) -> RecoveredState {
        let DbContext { fs, dir, numbers, .. } = context;
        let segments = self.segment_lengths();
        let recovered = self.recovered.as_ref();
        let recovered = recovered.expect("without a database nothing is opened read-only");
        let generation = recovered.generation;
        let manifest = Manifest::read_only(dir, generation, recovered.end, &self.version);
        // Partitions without a log use numbers that no frame has.
        let last_seq = replayed.max(self.last_known_seq());
        let cursor = Arc::new(CommitCursorWriter::none());
        let versions = VersionSet::new(
            fs.clone(),
            dir.to_owned(),
            numbers.clone(),
            options.manifest_bytes_max,
            self.version,
            manifest,
            cursor.clone(),
        );
        let orphans = OrphanFiles::default();
        RecoveredState { versions, last_seq, memtables, segments, orphans, cursor }
    }

    /// The live segments, with their lengths in bytes in the folder.
    fn segment_lengths(&self) -> Vec<(FileNo, u64)> {
        let segments = self.version.log_segments.iter();
        let named = segments
            .map(|(number, epoch)| (*number, FileName::new(FileKind::Wal, *number, *epoch)));
        named.map(|(number, name)| (number, self.len_of(&name))).collect()
    }
}
