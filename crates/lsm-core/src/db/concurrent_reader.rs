//! Opening while another process writes: the state that it has committed by now, as a read-only
//! database.
//!
//! For a program that looks at a whole database once, for example the reading subcommands of the
//! command. A secondary (`follow/`) continues to follow. No lock is taken and no recovery runs: a
//! lease holds the files, and only the committed part of the log is replayed into memory.
//!
//! Invariants:
//! 1. The lease exists before the manifest is read.
//! 2. Only operations that are committed according to the commit cursor, or without one the log, are
//!    replayed.
//! 3. A file that disappeared or is about to change is a reason to start again. It is damage only if
//!    the lease still exists, or if the newest manifest names it.
//! 4. An open for reading that finds no lock to take excludes no writer, so it does the same.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::context::DbContext;
use super::recovery::{LogFiles, OpenPlan};
use super::retries::Retries;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Fs, LockGuard, names};
use crate::hooks::OtherWriter;
use crate::replay::Replay;
use crate::shared::{CommitCursorReader, CommitCursorState, Lease};
use crate::types::SeqNo;
use crate::version::{Missing, is_named, recover};
use crate::wal::{LogReader, Lsn};

/// Attempts while the writer changes the files.
const LOOKS: usize = 200;

/// Holds the files that are read, instead of the folder's lock.
pub(super) struct HeldByLease {
    lease: Option<Mutex<Lease>>,
}

impl LockGuard for HeldByLease {}

impl HeldByLease {
    /// The meaning of a missing table.
    pub(super) fn missing(&self) -> Missing {
        match &self.lease {
            Some(lease) => Missing::DamageUnder(lease.lock().path().to_owned()),
            None => Missing::DamageIf(is_named),
        }
    }
}

/// The process that may write the folder `dir`, by the meaning of a table that is not there; `None` if none
/// may.
pub(super) fn other_writer(fs: &Arc<dyn Fs>, dir: &Path, missing: &Missing) -> Option<OtherWriter> {
    let lease = match missing {
        Missing::DamageUnder(lease) => Some(lease.clone()),
        Missing::DamageIf(_) => None,
        _ => return None,
    };
    let fs = fs.clone();
    let dir = dir.to_owned();
    Some(OtherWriter::new(lease, move |partition| {
        let names = names::in_dir(&*fs, &dir).ok()?;
        let recovered = recover(&*fs, &dir, &names).ok()??;
        let partition = recovered.version.partitions.get(partition)?;
        Some(partition.store_sections.clone())
    }))
}

/// The commits of the writer at one moment.
pub(super) struct CommittedPart {
    /// The last sequence that its readers see; `None` without a cursor.
    visible: Option<SeqNo>,
    /// Everything before this place of the log is committed.
    reach: Option<Lsn>,
}

/// Takes a lease; none on a medium that cannot be written, because there is no writer.
///
/// # Errors
/// Those of the file system.
pub(super) fn hold(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    random: Box<dyn FnMut() -> u64 + Send>,
) -> Result<HeldByLease> {
    let lease = Lease::take_if_writable(fs, dir, random)?;
    Ok(HeldByLease { lease: lease.map(Mutex::new) })
}

/// Calls `begin` until the writer does not change the files meanwhile.
///
/// # Errors
/// The last one of `begin`.
pub(super) fn until_unchanged<T>(mut begin: impl FnMut() -> Result<T>) -> Result<T> {
    let mut retries = Retries::new(LOOKS);
    loop {
        match begin() {
            Ok(begun) => return Ok(begun),
            Err(error) => retries.again(error)?,
        }
    }
}

fn changed(what: &str) -> Error {
    Error::new(ErrorKind::NeedsManifest, format!("{what} while the database was opened"))
}

impl OpenPlan {
    /// The commits of the writer, if the manifest includes them.
    ///
    /// # Errors
    /// [`ErrorKind::NeedsManifest`] if the manifest must be read again.
    pub(super) fn committed(&self, fs: &dyn Fs, dir: &Path) -> Result<CommittedPart> {
        let version = &self.version;
        let cursor = CommitCursorReader::open(fs, dir, version.db_id, version.epoch)?;
        let state = cursor.as_ref().map(CommitCursorReader::state);
        let cursor = match (cursor, state) {
            (Some(cursor), Some(CommitCursorState::Live)) => cursor,
            // A writer that closed the database may not have been able to delete its cursor. The
            // rest is in the manifest, once it is the last one.
            (Some(cursor), Some(CommitCursorState::Closed))
                if cursor.edit() > version.edit_number =>
            {
                return Err(changed("the writer ended"));
            }
            // A writer that died before its epoch began has written only the manifest.
            (Some(cursor), Some(CommitCursorState::Opening))
                if cursor.is_writer_dead(fs, dir, version.epoch) =>
            {
                return Ok(CommittedPart { visible: None, reach: None });
            }
            (None, _) | (_, Some(CommitCursorState::Closed)) => {
                return Ok(CommittedPart { visible: None, reach: None });
            }
            _ => return Err(changed("the writer began or ended")),
        };
        // In this order, see `follow/round.rs`.
        let visible = cursor.visible()?;
        let reach = Lsn(cursor.end());
        let is_current = cursor.edit() <= version.edit_number;
        if !is_current || version.flushed_through() > visible {
            return Err(changed("the manifest grew"));
        }
        Ok(CommittedPart { visible: Some(visible), reach: Some(reach) })
    }

    /// Replays the committed operations; returns their last sequence as well. Fails with the error
    /// of `is_full` once that takes `bytes_max` of memory.
    ///
    /// # Errors
    /// Those of reading; corruption.
    pub(super) fn replay_committed(
        &self,
        context: &DbContext,
        committed: &CommittedPart,
        replay: &mut Replay,
        mut check_room: impl FnMut(&Replay) -> Result<()>,
    ) -> Result<SeqNo> {
        let sources = self.log_sources(&LogFiles::of(context))?;
        let mut reading = self.log_reading();
        let mut must = self.version.log_must_reach();
        if let Some(reach) = committed.reach {
            reading.reach = reach;
            must.committed = reach;
        } else if must.closed.is_none() {
            let reader = LogReader::new(sources.clone(), reading.clone())?;
            // Without a cursor only the durable operations, which the log attests, are known to
            // count: the write of a whole frame may have been refused.
            reading.reach = reader.attested(self.version.log_durable_through(), None)?.durable;
            must.committed = reading.reach;
        }
        let mut reader = LogReader::new(sources, reading)?;
        while let Some(frame) = reader.next_frame()? {
            let path = self.segment_path(frame.place.segment, &context.dir);
            replay.apply(&self.version, &frame, &path)?;
            check_room(replay)?;
        }
        // The log is committed or durable up to there, so an earlier end is damage and no torn tail.
        reader.check_reaches(&must)?;
        if committed.visible.is_none() {
            // A cursor names the edit that the manifest must have. Without one the log attests it.
            self.check_manifest_reaches(reader.manifest_edit(), &context.dir)?;
        }
        let last_seq = reader.position().last_seq;
        Ok(last_seq.max(committed.visible.unwrap_or_default()))
    }
}
