//! [`FollowPosition`]: the positions in manifest and log that a follower has reached.
//!
//! Used by `round.rs`, under its lock. It never goes back within an epoch, and takes no operation
//! for committed without the cursor or the log.

mod files;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::attach::open_manifest;
use super::bound::{Bound, BoundSource, ShownThrough};
use super::log::LogTail;
use super::memtables::ReplicaMemtables;
use super::{Inner, SyncExtent, SyncReach};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{FolderLook, FolderState};
use crate::shared::{CommitCursorReader, CommitCursorState, Lease, Settled};
use crate::types::{Epoch, PartitionId, SeqNo};
use crate::version::{DbVersion, ManifestTail, PartitionVersion, TailNews};
use crate::wal::Lsn;

/// Looks at a cursor that changes all the time.
const LOOKS: usize = 1000;

/// The places in manifest and log that a follower has reached.
pub(super) struct FollowPosition {
    manifest: ManifestTail,
    pub(super) cursor: Option<Arc<CommitCursorReader>>,
    /// The primary of this epoch has ended without a close. Its unpublished operations count as
    /// published, because a reader of the primary may have seen them.
    is_primary_dead: bool,
    /// `None`: to be read from its front again.
    pub(super) log: Option<LogTail>,
    /// The last round failed: an index of sections may have been wrong, so the log is walked.
    pub(super) distrusts_indexes: bool,
    pub(super) memtables: HashMap<PartitionId, ReplicaMemtables>,
    pub(super) lease: Option<Lease>,
    /// Views of this edit and of earlier ones lost their files with a revoked lease.
    pub(super) lost_edit: u64,
    /// The place that the rounds of this epoch have reached. A later round may see less of the log
    /// than a cursor or an earlier look, and must not show less.
    noted: ShownThrough,
    /// The last bound, and the edit of the version that it was found with.
    last_bound: Option<(u64, Bound)>,
    /// Memory of all visible memtables, once the present round has computed it: asking all
    /// partitions for each of them would take the square of their number.
    memtable_bytes: Option<u64>,
    /// The part of the folder that counts, as of the last look.
    folder: FolderState,
    /// The last sequence of epochs before the present one, as far as it is known.
    ends: BTreeMap<Epoch, SeqNo>,
    /// The version whose partitions were taken in.
    pub(super) taken: Option<Arc<DbVersion>>,
}

impl FollowPosition {
    pub(super) fn new(manifest: ManifestTail, lease: Option<Lease>) -> FollowPosition {
        let mut position = FollowPosition {
            manifest,
            cursor: None,
            is_primary_dead: false,
            log: None,
            distrusts_indexes: false,
            memtables: HashMap::new(),
            lease,
            lost_edit: 0,
            noted: ShownThrough::default(),
            last_bound: None,
            memtable_bytes: None,
            folder: FolderState::Unknown,
            ends: BTreeMap::new(),
            taken: None,
        };
        position.note_epoch();
        position
    }

    pub(super) fn version(&self) -> &Arc<DbVersion> {
        self.manifest.version()
    }

    /// Notes where the epoch before the present one ended.
    fn note_epoch(&mut self) {
        let version = self.version();
        let before = version.epoch.0.checked_sub(1).map(Epoch);
        if let (Some(before), Some(cut)) = (before, version.log_cut) {
            self.ends.insert(before, cut.last_seq);
        }
    }

    /// See [`Follower::has_commit`](super::Follower::has_commit).
    pub(super) fn has_commit(&self, epoch: Epoch, seq: SeqNo) -> Option<bool> {
        let present = self.version().epoch;
        match epoch.cmp(&present) {
            std::cmp::Ordering::Equal => Some(true),
            std::cmp::Ordering::Greater => None,
            std::cmp::Ordering::Less => self.ends.get(&epoch).map(|end| seq <= *end),
        }
    }

    /// Starts again from the folder's listing.
    pub(super) fn reattach(&mut self, inner: &Inner) -> Result<()> {
        let known = self.version().clone();
        // Before the manifest is read, as at first.
        let is_renewed = match &mut self.lease {
            Some(lease) if !lease.is_there()? => {
                lease.renew()?;
                true
            }
            _ => false,
        };
        let manifest = open_manifest(&*inner.fs, &inner.dir, Some(&known))?;
        let version = manifest.version();
        if version.db_id != known.db_id {
            let dir = inner.dir.display();
            let message = format!("{dir} holds another database than when it was opened");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // A secondary never shows an older state than before.
        if version.edit_number < known.edit_number {
            let what = format!(
                "the manifest ends at edit {}, where edit {} was read before",
                version.edit_number, known.edit_number
            );
            return Err(Error::new(ErrorKind::NeedsManifest, what));
        }
        if is_renewed {
            // A view of the edit that the manifest still ends with is held by the new lease, which
            // existed before the manifest was read.
            let is_past = version.edit_number > known.edit_number;
            self.lost_edit = known.edit_number.saturating_sub(u64::from(!is_past));
        }
        let epoch = version.epoch;
        if epoch != known.epoch {
            // A new epoch has everything of the old log in tables. The fields below hold places in that log.
            self.memtables.clear();
            self.log = None;
            self.noted = ShownThrough::default();
            self.last_bound = None;
            self.is_primary_dead = false;
            // Commits that did not survive the end of their epoch are not in this history, and their sequence
            // numbers are reused. If several epochs began unseen, the end of this one is not known.
            let end = match version.log_cut {
                Some(cut) if known.epoch.0 + 1 == epoch.0 => cut.last_seq,
                _ => SeqNo::ZERO,
            };
            for followed in inner.partitions.read().by_id.values() {
                followed.note_reach(0);
                let shown = followed.pin();
                if shown.epoch == known.epoch && shown.seq <= end {
                    followed.show(shown.again(epoch, inner.pins.pin(shown.pin.edit())));
                }
            }
        }
        self.manifest = manifest;
        self.cursor =
            CommitCursorReader::open(&*inner.fs, &inner.dir, known.db_id, epoch)?.map(Arc::new);
        self.note_epoch();
        Ok(())
    }

    /// Begins a round: memory is counted again.
    pub(super) fn begin_round(&mut self) {
        self.memtable_bytes = None;
    }

    /// Notes that a partition shows memtables of so many bytes now, and showed `before`.
    pub(super) fn note_memtable_bytes(&mut self, before: u64, now: u64) {
        if let Some(bytes) = &mut self.memtable_bytes {
            *bytes = bytes.saturating_sub(before).saturating_add(now);
        }
    }

    /// Reads the manifest to the present, and returns how far the log counts.
    pub(super) fn look(
        &mut self,
        inner: &Inner,
        extent: SyncExtent<'_>,
        reach: SyncReach,
    ) -> Result<Bound> {
        // Before anything is read: what was acknowledged before this call must be found.
        let wanted = match reach {
            SyncReach::Arrived => FolderState::Settled,
            SyncReach::Committed | SyncReach::Durable => FolderState::Current,
        };
        let FolderLook { state, names } = inner.fs.folder_state(&inner.dir, wanted)?;
        self.folder = state;
        inner.pins.begin_round(names);
        for _ in 0..LOOKS {
            let cursor = self.cursor.clone();
            // Checked again in each turn: once the primary has closed the database, or another has opened it,
            // the numbers in the mapping stand still and do not show the commits any more.
            let cursor = cursor.filter(|cursor| cursor.state() == CommitCursorState::Live);
            let bound = match cursor {
                Some(cursor) => self.look_at_cursor(inner, &cursor, extent)?,
                None => self.look_at_files(inner)?,
            };
            let Some(bound) = bound else { continue };
            let bound = match reach {
                SyncReach::Committed | SyncReach::Arrived => Some(bound),
                SyncReach::Durable => self.durable_part(inner, bound)?,
            };
            if let Some(bound) = bound {
                self.last_bound = Some((self.version().edit_number, bound));
                return Ok(bound);
            }
        }
        let message = "the manifest kept changing while it was read; try again";
        Err(Error::new(ErrorKind::NeedsManifest, message))
    }

    /// The bound that the last look has found.
    ///
    /// # Panics
    /// If there was none.
    pub(super) fn bound(&self) -> Bound {
        self.last_bound.expect("a round looks first").1
    }

    /// Returns `true` if the folder had all commits when the round began, and `bound` admits everything in it.
    pub(super) fn is_current(&self, bound: &Bound) -> bool {
        self.folder == FolderState::Current && bound.source == BoundSource::Log
    }

    /// See [`Follower::look_for_dead_primary`](super::Follower::look_for_dead_primary).
    pub(super) fn look_for_dead_primary(&mut self, inner: &Inner) -> bool {
        let Some(cursor) = self.cursor.as_ref().filter(|_| !self.is_primary_dead) else {
            return false;
        };
        let epoch = self.version().epoch;
        self.is_primary_dead = cursor.is_writer_dead(&*inner.fs, &inner.dir, epoch);
        self.is_primary_dead
    }

    /// Returns `true` if partitions hold nothing in addition to their tables and the log: the
    /// primary has closed the database, or its memory is lost.
    pub(super) fn is_memory_gone(&self, bound: &Bound) -> bool {
        match bound.source {
            BoundSource::Cursor(_) => self.is_primary_dead,
            BoundSource::Fence => true,
            BoundSource::Log | BoundSource::EarlierLook => self.version().log_closed.is_some(),
        }
    }

    fn look_at_cursor(
        &mut self,
        inner: &Inner,
        cursor: &CommitCursorReader,
        extent: SyncExtent<'_>,
    ) -> Result<Option<Bound>> {
        let edit = cursor.edit();
        // A generation that is named but has no edit yet is newer than the one of the cursor.
        if cursor.generation() > self.manifest.generation() {
            self.reattach(inner)?;
            return Ok(None);
        }
        if !self.reach_settled(inner, edit)? {
            return Ok(None);
        }
        // In this order: see the top of `round.rs`.
        let (visible, reach) = if self.is_primary_dead {
            self.last_written(inner, cursor)?
        } else {
            let visible = cursor.visible()?;
            (visible, Lsn(cursor.end()))
        };
        let is_current = cursor.edit() <= self.version().edit_number;
        // One commit for all partitions: no table may be newer. A flush contains only visible
        // operations, so looking again helps.
        let is_ahead = extent.is_cut()
            && !inner.follows_tables_only
            && self.version().flushed_through() > visible;
        let source = BoundSource::Cursor(visible);
        Ok((is_current && !is_ahead).then_some(Bound { source, reach, is_durable: false }))
    }

    /// The end of the operations that a dead primary has written, published or about to be.
    fn last_written(&mut self, inner: &Inner, cursor: &CommitCursorReader) -> Result<(SeqNo, Lsn)> {
        // The writer stored a slot only after the append of its frame, and it cannot refuse that
        // frame any more. Its readers may have seen the commit, so a stop at `visible` could undo
        // what a reader has seen.
        let last = cursor.last_taken()?;
        let mut reach = Lsn(cursor.end());
        if !inner.follows_tables_only {
            self.ensure_log(inner)?;
            let log = self.log.as_ref().expect("opened above");
            reach = reach.max(log.end_of(last, reach)?);
        }
        Ok((last, reach))
    }

    fn has_live_cursor(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.state() == CommitCursorState::Live)
    }

    /// The bound of everything that a fenced primary had settled. The next epoch begins with it.
    fn look_at_fence(&mut self, inner: &Inner, settled: Settled) -> Result<Option<Bound>> {
        let Settled { end, edit } = settled;
        let is_there = self.reach_settled(inner, edit)?;
        Ok(is_there.then_some(Bound {
            source: BoundSource::Fence,
            reach: Lsn(end),
            is_durable: false,
        }))
    }

    /// Reads the manifest to `edit`, which its writer has settled. Returns `false` if it continued
    /// in another generation, and must be looked at again.
    fn reach_settled(&mut self, inner: &Inner, edit: u64) -> Result<bool> {
        if self.version().edit_number >= edit {
            return Ok(true);
        }
        if self.manifest.poll(Some(edit))? == TailNews::Rotated {
            return self.reattach(inner).map(|()| false);
        }
        if self.version().edit_number >= edit {
            return Ok(true);
        }
        let message = format!("the manifest lacks edit {edit}, which is durable");
        Err(Error::new(ErrorKind::NeedsManifest, message))
    }

    /// The bound that an earlier look has found. Writes of a primary that may be fenced do not
    /// count, and the next one has not written yet.
    fn look_back(&self) -> Result<Bound> {
        let edit = self.version().edit_number;
        let Some((_, bound)) = self.last_bound.filter(|(found_with, _)| *found_with == edit) else {
            let message = "a promotion has begun and not ended, on another machine";
            return Err(Error::new(ErrorKind::NeedsManifest, message));
        };
        Ok(Bound { source: BoundSource::EarlierLook, is_durable: false, ..bound })
    }

    /// The part of `bound` that is durable, as far as the log attests it.
    fn durable_part(&mut self, inner: &Inner, bound: Bound) -> Result<Option<Bound>> {
        let part = match bound.source {
            BoundSource::Log | BoundSource::EarlierLook => Some(bound),
            BoundSource::Cursor(_) | BoundSource::Fence => {
                self.look_at_log(inner, Some(bound.reach))?
            }
        };
        Ok(part.map(|part| bound.durable_through(part)))
    }

    /// Opens the segments of the version.
    fn ensure_log(&mut self, inner: &Inner) -> Result<()> {
        let version = self.manifest.version().clone();
        if let Some(log) = &mut self.log
            && !log.follow(&inner.files, &inner.dir, &version)?
        {
            self.log = None;
        }
        if self.log.is_none() {
            let uses_indexes = !self.distrusts_indexes;
            self.log = Some(LogTail::open(&inner.files, &inner.dir, &version, uses_indexes)?);
        }
        Ok(())
    }

    /// Notes the sections before `bound`; returns the sequence through which all are noted.
    pub(super) fn scan(&mut self, inner: &Inner, bound: &Bound) -> Result<SeqNo> {
        self.ensure_log(inner)?;
        let FollowPosition { log, memtables, manifest, noted, .. } = self;
        let log = log.as_mut().expect("opened above");
        let version = manifest.version();
        if log.lsn().is_none_or(|lsn| lsn < bound.reach) {
            log.scan(bound.reach, version, |id| {
                memtables.get(&id).map_or(SeqNo::ZERO, ReplicaMemtables::applied)
            })?;
        }
        log.prune(version);
        let reach = log.lsn().unwrap_or_default();
        if reach < bound.reach {
            let mut must = version.log_must_reach();
            must.committed = match bound.source {
                BoundSource::Cursor(_) => bound.reach,
                // The manifest records where a closed log ends.
                BoundSource::Log | BoundSource::EarlierLook if must.closed.is_some() => noted.reach,
                // A log whose segments were all removed has no place.
                BoundSource::Fence | BoundSource::Log | BoundSource::EarlierLook => {
                    log.lsn().map_or(reach, |_| bound.reach)
                }
            };
            // Commits that were reported or shown before must be in the log. A shorter log was cut,
            // or belongs to another listing: the error makes the caller list the folder again. A
            // stop here without one would show an older state as the newest.
            log.check_reaches(&must)?;
        }
        let logged = log.last_seq().max(version.log_cut.map_or(SeqNo::ZERO, |cut| cut.last_seq));
        let is_ended = version.log_closed.is_some() || version.log_segments.is_empty();
        let in_tables = version.last_seq.max(version.flushed_through());
        let unlogged = match bound.source {
            BoundSource::Cursor(visible) => visible,
            // Every commit is in the log or in a table.
            BoundSource::Fence => in_tables,
            BoundSource::Log | BoundSource::EarlierLook if is_ended => in_tables,
            // Everything in the log before this is noted or in a table.
            BoundSource::Log | BoundSource::EarlierLook => {
                version.flush_beyond_sync.map_or(SeqNo::ZERO, |ahead| ahead.flushed)
            }
        };
        let seq = logged.max(unlogged).max(noted.seq);
        *noted = ShownThrough { reach: reach.max(noted.reach), seq };
        Ok(seq)
    }

    /// Fills the memtables of a partition up to the scanned place of the log. Returns `true` if they changed.
    pub(super) fn grow(&mut self, inner: &Inner, partition: &PartitionVersion) -> Result<bool> {
        let id = partition.id;
        let flushed = partition.flushed_through;
        let log = self.log.as_mut().expect("it was scanned");
        let mut is_changed = !self.memtables.contains_key(&id);
        let memtables = self
            .memtables
            .entry(id)
            .or_insert_with(|| ReplicaMemtables::new(&inner.slabs, inner.memory.another()));
        if !memtables.drop_flushed(flushed) {
            let message = "a flush covers a part of a memtable";
            return Err(Error::new(ErrorKind::NeedsManifest, message));
        }
        // Checked before anything is taken out, so that the next round can continue from here.
        let wanted = log.noted_bytes(id);
        if wanted > 0 {
            let taken = *self.memtable_bytes.get_or_insert_with(|| inner.memtable_bytes());
            if taken.saturating_add(wanted) > inner.memtable_bytes_max {
                let what = "memory of unflushed data of the primary";
                return Err(Error::limit(what, taken + wanted, inner.memtable_bytes_max));
            }
        }
        let pending = log.take(id);
        is_changed |= memtables.take_in(log, pending, flushed)?;
        memtables.note_memory();
        Ok(is_changed)
    }
}
