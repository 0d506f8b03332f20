//! [`Tail`]: the places in manifest and log that a follower has come to, and how they move on.
//!
//! Used by `round.rs`, under its lock. It must never go back within an epoch, and never take for
//! committed what the cursor or the log does not say.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::attach::open_manifest;
use super::growing::Growing;
use super::log::LogTail;
use super::{Inner, SyncExtent, SyncReach};
use crate::db::term::newest_claim;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::shared::{CursorReader, CursorState, Lease};
use crate::types::{Epoch, PartitionId, SeqNo};
use crate::version::{DbVersion, ManifestTail, PartitionVersion, TailNews, age_of, has_begun};
use crate::wal::{Attested, Lsn};

/// Looks at a cursor that changes all the time.
const LOOKS: usize = 1000;

/// The places in manifest and log that a follower has come to.
pub(super) struct Tail {
    manifest: ManifestTail,
    pub(super) cursor: Option<Arc<CursorReader>>,
    /// The primary of this epoch has ended without closing the database. What it was about to publish is
    /// in its files: it counts as published, because a reader of the primary may have seen it.
    is_primary_dead: bool,
    /// `None`: to be begun anew from its front.
    pub(super) log: Option<LogTail>,
    /// A round failed and none succeeded since: an index of sections may have misled it, so the log is
    /// walked.
    pub(super) distrusts_indexes: bool,
    pub(super) growing: HashMap<PartitionId, Growing>,
    pub(super) lease: Option<Lease>,
    /// Views of this edit and of earlier ones lost their files with a lease that was taken away.
    pub(super) lost_edit: u64,
    /// The place that the rounds of this epoch have come to. A later round may know less of the log
    /// than a cursor or an earlier look said, and must not show less.
    noted: ShownThrough,
    /// Memory of all memtables that are shown, once the present round has asked for it: to ask all
    /// partitions for each of them would take the square of their number.
    memtable_bytes: Option<u64>,
    /// The last sequence of epochs before the present one, as far as it was seen.
    ends: BTreeMap<Epoch, SeqNo>,
    /// The version whose partitions were taken in.
    pub(super) taken: Option<Arc<DbVersion>>,
}

/// A place in the log before which a round has noted everything.
#[derive(Clone, Copy, Default)]
struct ShownThrough {
    reach: Lsn,
    /// Every operation through this one is noted, or in tables.
    seq: SeqNo,
}

/// The end of a round.
pub(super) struct Bound {
    /// Every operation through this one is committed and lies before `reach`, if it was logged.
    pub(super) visible: Option<SeqNo>,
    pub(super) reach: Lsn,
    /// Only what is durable was asked for.
    pub(super) is_durable: bool,
}

impl Tail {
    pub(super) fn new(manifest: ManifestTail, lease: Option<Lease>) -> Tail {
        let mut tail = Tail {
            manifest,
            cursor: None,
            is_primary_dead: false,
            log: None,
            distrusts_indexes: false,
            growing: HashMap::new(),
            lease,
            lost_edit: 0,
            noted: ShownThrough::default(),
            memtable_bytes: None,
            ends: BTreeMap::new(),
            taken: None,
        };
        tail.note_epoch();
        tail
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

    /// Begins anew from the folder's listing.
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
            // was there before the manifest was read.
            let is_past = version.edit_number > known.edit_number;
            self.lost_edit = known.edit_number.saturating_sub(u64::from(!is_past));
        }
        let epoch = version.epoch;
        if epoch != known.epoch {
            // A new epoch has everything of the old log in tables. What follows holds places in that
            // log.
            self.growing.clear();
            self.log = None;
            self.noted = ShownThrough::default();
            self.is_primary_dead = false;
            // Commits that did not survive the end of their epoch have no part in this history, and
            // their sequence numbers are given out again. If several epochs began unseen, the end
            // of this one is not known.
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
        self.cursor = CursorReader::open(&*inner.fs, &inner.dir, known.db_id, epoch)?.map(Arc::new);
        self.note_epoch();
        Ok(())
    }

    /// Begins a round: memory is counted anew.
    pub(super) fn begin_round(&mut self) {
        self.memtable_bytes = None;
    }

    /// Notes that a partition shows memtables of so many bytes now, and showed `before`.
    pub(super) fn note_memtable_bytes(&mut self, before: u64, now: u64) {
        if let Some(bytes) = &mut self.memtable_bytes {
            *bytes = bytes.saturating_sub(before).saturating_add(now);
        }
    }

    /// Brings the manifest to the present, and says how far the log counts.
    pub(super) fn look(
        &mut self,
        inner: &Inner,
        extent: SyncExtent<'_>,
        reach: SyncReach,
    ) -> Result<Bound> {
        for _ in 0..LOOKS {
            let cursor = self.cursor.clone();
            // Asked again in each turn: once the primary has closed the database, or another has
            // opened it, the numbers in the mapping stand still and no longer say what is
            // committed.
            let cursor = cursor.filter(|cursor| cursor.state() == CursorState::Live);
            let bound = match cursor {
                Some(cursor) => self.look_at_cursor(inner, &cursor, extent)?,
                None => self.look_at_files(inner)?,
            };
            match bound {
                None => {}
                Some(bound) if reach == SyncReach::Durable && bound.visible.is_some() => {
                    // The manifest is at the present now.
                    if let Some(durable) = self.look_at_log(inner, Some(bound.reach))? {
                        return Ok(Bound { is_durable: true, ..durable });
                    }
                }
                Some(bound) if reach == SyncReach::Durable => {
                    return Ok(Bound { is_durable: true, ..bound });
                }
                Some(bound) => return Ok(bound),
            }
        }
        let message = "the manifest changed all the time while it was read";
        Err(Error::new(ErrorKind::NeedsManifest, message))
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

    /// Returns `true` if partitions hold nothing besides their tables and the log: the primary has closed
    /// the database, or its memory is gone.
    pub(super) fn is_memory_gone(&self, bound: &Bound) -> bool {
        match bound.visible {
            Some(_) => self.is_primary_dead,
            None => self.version().log_closed.is_some(),
        }
    }

    fn look_at_cursor(
        &mut self,
        inner: &Inner,
        cursor: &CursorReader,
        extent: SyncExtent<'_>,
    ) -> Result<Option<Bound>> {
        let edit = cursor.edit();
        // A generation that is named but has no edit yet is newer than the one of the cursor.
        if cursor.generation() > self.manifest.generation() {
            self.reattach(inner)?;
            return Ok(None);
        }
        if self.version().edit_number < edit {
            let news = self.manifest.poll(Some(edit))?;
            if news == TailNews::Rotated {
                self.reattach(inner)?;
                return Ok(None);
            }
            if self.version().edit_number < edit {
                let message = format!("the manifest lacks edit {edit}, which is durable");
                return Err(Error::new(ErrorKind::NeedsManifest, message));
            }
        }
        // In this order, see the module.
        let (visible, reach) = if self.is_primary_dead {
            self.last_written(inner, cursor)?
        } else {
            let visible = cursor.visible()?;
            (visible, Lsn(cursor.end()))
        };
        let is_current = cursor.edit() <= self.version().edit_number;
        // One commit for all partitions: no table may be ahead of it. A flush never is of what is
        // visible, so that looking again helps.
        let is_ahead = extent.is_cut()
            && !inner.follows_tables_only
            && self.version().flushed_through() > visible;
        let visible = Some(visible);
        Ok((is_current && !is_ahead).then_some(Bound { visible, reach, is_durable: false }))
    }

    /// The end of what a dead primary has written, published or about to be.
    fn last_written(&mut self, inner: &Inner, cursor: &CursorReader) -> Result<(SeqNo, Lsn)> {
        // The writer stored a slot only behind the append of its frame, and it can refuse that
        // frame no more. Its readers may have seen the commit, so to stop at `visible` could take
        // back what somebody has read.
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
        self.cursor.as_ref().is_some_and(|cursor| cursor.state() == CursorState::Live)
    }

    /// Without a cursor: what the log attests. A primary may write on another machine, or nowhere.
    fn look_at_files(&mut self, inner: &Inner) -> Result<Option<Bound>> {
        // One listing tells of claims and of generations.
        let listed = inner.fs.list_names(&inner.dir, "")?;
        let names: Vec<_> = listed.iter().filter_map(|name| FileName::parse(name)).collect();
        // Not by their names alone: see `claims`.
        let has_claims = listed.iter().any(|name| names::epoch_of_claim(name).is_some());
        let claim = if has_claims { newest_claim(&*inner.fs, &inner.dir)? } else { None };
        if self.is_taken_over(claim) {
            let next = Epoch(self.version().epoch.0.saturating_add(1));
            if has_begun(&*inner.fs, &inner.dir, &names, next)? {
                self.reattach(inner)?;
                return Ok(None);
            }
            // What the old primary still writes does not count, and of the next one there is nothing.
            return Ok(Some(Bound { visible: None, reach: self.noted.reach, is_durable: false }));
        }
        let newest = names.into_iter().filter(|name| name.kind == FileKind::Manifest);
        let newest = newest.map(age_of).max();
        let is_last = newest.is_none_or(|newest| newest <= age_of(self.manifest.name()));
        if !is_last || self.manifest.poll(None)? == TailNews::Rotated {
            let before = self.manifest.generation();
            self.reattach(inner)?;
            let is_news = self.manifest.generation() != before;
            if is_news || self.has_live_cursor() {
                return Ok(None);
            }
        } else {
            let version = self.version();
            let db = version.db_id;
            let epoch = version.epoch;
            self.cursor = CursorReader::open(&*inner.fs, &inner.dir, db, epoch)?.map(Arc::new);
            if self.has_live_cursor() {
                return Ok(None);
            }
        }
        self.look_at_log(inner, None)
    }

    /// Returns `true` if another process takes the database over from the primary of this epoch, or has.
    /// `claim` is the newest one.
    fn is_taken_over(&self, claim: Option<Epoch>) -> bool {
        let is_fenced =
            self.cursor.as_ref().is_some_and(|it| it.state() == CursorState::Superseded);
        // Without a cursor the claim is all that tells.
        is_fenced || claim.is_some_and(|claim| claim > self.version().epoch)
    }

    /// The end of what the log attests, which must reach `committed` if that is known; `None` if the
    /// manifest has come to a newer edit meanwhile.
    fn look_at_log(&mut self, inner: &Inner, committed: Option<Lsn>) -> Result<Option<Bound>> {
        if inner.follows_tables_only {
            let reach = Lsn::default();
            return Ok(Some(Bound { visible: None, reach, is_durable: false }));
        }
        self.ensure_log(inner)?;
        let is_closed = self.version().log_closed.is_some();
        let reach = match (&self.log, is_closed) {
            (Some(log), false) => {
                let Attested { durable, manifest_edit } =
                    log.attested(self.version(), committed)?;
                if manifest_edit > self.version().edit_number {
                    self.reach_edit(inner, manifest_edit)?;
                    return Ok(None);
                }
                durable
            }
            // Its end is durable, and nothing comes behind it.
            _ => Lsn(u64::MAX),
        };
        let reach = reach.max(self.noted.reach);
        Ok(Some(Bound { visible: None, reach, is_durable: false }))
    }

    /// Brings the manifest to `edit`, which the log says is durable.
    fn reach_edit(&mut self, inner: &Inner, edit: u64) -> Result<()> {
        if self.manifest.poll(None)? == TailNews::Rotated {
            return self.reattach(inner);
        }
        let last = self.version().edit_number;
        if last >= edit {
            return Ok(());
        }
        // It was durable before the log could attest it, so its bytes are lost.
        let what = format!("the manifest ends at edit {last}, but the log attests edit {edit}");
        Err(Error::corruption(self.manifest.name().path(&inner.dir), None, what))
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

    /// Notes what the log has before `bound`; the sequence through which everything is noted.
    pub(super) fn scan(&mut self, inner: &Inner, bound: &Bound) -> Result<SeqNo> {
        self.ensure_log(inner)?;
        let Tail { log, growing, manifest, noted, .. } = self;
        let log = log.as_mut().expect("opened above");
        let version = manifest.version();
        if log.lsn().is_none_or(|lsn| lsn < bound.reach) {
            log.scan(bound.reach, version, |id| {
                growing.get(&id).map_or(SeqNo::ZERO, Growing::applied)
            })?;
        }
        log.prune(version);
        let reach = log.lsn().unwrap_or_default();
        if reach < bound.reach {
            let mut must = version.log_must_reach();
            must.committed = match bound.visible {
                Some(_) => bound.reach,
                // The manifest says where a closed log ends. What was read of it before is there, too.
                None if must.closed.is_some() => noted.reach,
                // A log whose segments were all removed has no place.
                None => log.lsn().map_or(reach, |_| bound.reach),
            };
            // Commits that were told or shown before must be in the log. A shorter log was cut, or
            // belongs to another listing: the error sends the caller back to the folder. To stop here
            // without one would show an older state as the newest.
            log.check_reaches(&must)?;
        }
        let logged = log.last_seq().max(version.log_cut.map_or(SeqNo::ZERO, |cut| cut.last_seq));
        let is_ended = version.log_closed.is_some() || version.log_segments.is_empty();
        let unlogged = match bound.visible {
            // Nothing is committed that the log or a table has not.
            None if is_ended => version.last_seq.max(version.flushed_through()),
            // Nor has the log anything before this that no table has.
            None => version.flushed_ahead.map_or(SeqNo::ZERO, |ahead| ahead.flushed),
            Some(_) => SeqNo::ZERO,
        };
        let seq = logged.max(unlogged).max(bound.visible.unwrap_or_default()).max(noted.seq);
        *noted = ShownThrough { reach: reach.max(noted.reach), seq };
        Ok(seq)
    }

    /// Brings the memtables of a partition to where the log was scanned. Returns `true` if they
    /// changed.
    pub(super) fn grow(&mut self, inner: &Inner, partition: &PartitionVersion) -> Result<bool> {
        let id = partition.id;
        let flushed = partition.flushed_through;
        let log = self.log.as_mut().expect("it was scanned");
        let mut is_changed = !self.growing.contains_key(&id);
        let growing = self.growing.entry(id).or_insert_with(|| Growing::new(&inner.slabs));
        if !growing.let_go_of_flushed(flushed) {
            let message = "a flush covers a part of a memtable";
            return Err(Error::new(ErrorKind::NeedsManifest, message));
        }
        // Asked before anything is taken out, so that the next round can go on from here.
        let wanted = log.noted_bytes(id);
        if wanted > 0 {
            let taken = *self.memtable_bytes.get_or_insert_with(|| inner.memtable_bytes());
            if taken.saturating_add(wanted) > inner.memtable_bytes_max {
                let what = "memory of what the primary has not flushed";
                return Err(Error::limit(what, taken + wanted, inner.memtable_bytes_max));
            }
        }
        let parked = log.take(id);
        is_changed |= growing.take_in(log, parked, flushed)?;
        Ok(is_changed)
    }
}
