//! One round of catching up: [`Inner::sync`].
//!
//! ```text
//! cursor   the end of the commits, and the edit that the manifest has for it
//! manifest edits through that one; partitions come and go
//! log      headers of new frames; each partition's sections are noted
//! requested partitions: sections into memtables, flushed memtables away, a new view
//! lease    files that no view reads any more are released
//! ```
//!
//! With a cursor, the order of the loads is essential. `visible`, then `end`, then `edit`: if the
//! manifest has `edit`, then it lists every segment that has a frame before `end`, so a header that
//! ends a segment before a refused frame is seen; and everything through `visible` lies before
//! `end` or in the manifest.
//!
//! Without the cursor of a living primary the log attests what is durable. The cursor of a fenced
//! primary has its last settled place: the next epoch begins there, so until then nothing follows.
//!
//! If a file disappears or does not match, the follower lists the folder again and retries a few
//! times. If the mismatch remains, it is an error.

use std::sync::Arc;

use super::attach::ATTEMPTS;
use super::bound::{Bound, BoundSource};
use super::partition::{Followed, PublishedView};
use super::position::FollowPosition;
use super::{CutViews, FollowerState, Inner, SyncExtent, SyncReach, SyncResult};
use crate::db::Commit;
use crate::db::retries::Retries;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::catch_engine;
use crate::partition::ReadView;
use crate::types::{PartitionId, SeqNo};
use crate::version::{DbVersion, PartitionVersion};

/// Returns `true` if `version` and its log have everything that is committed in `extent`: the log
/// was closed, or never begun, or its writer is fenced.
fn is_at_rest(version: &DbVersion, extent: SyncExtent<'_>, bound: &Bound) -> bool {
    match bound.source {
        BoundSource::Fence => return true,
        BoundSource::Cursor(_) | BoundSource::EarlierLook => return false,
        BoundSource::Log => {}
    }
    let is_unwritten = match extent {
        // Operations that are not logged may be in a primary's memory.
        SyncExtent::Only(id) => version.partitions.get(id).is_some_and(|p| p.options.logged),
        SyncExtent::All | SyncExtent::Group(_) | SyncExtent::Layout => false,
    };
    version.log_closed.is_some() || (is_unwritten && version.log_segments.is_empty())
}

/// The partitions of `version` that are in `extent`. A single one is looked up directly.
fn partitions_in<'a>(
    version: &'a DbVersion,
    extent: SyncExtent<'a>,
) -> Box<dyn Iterator<Item = &'a Arc<PartitionVersion>> + 'a> {
    match extent {
        SyncExtent::All => Box::new(version.partitions.values()),
        SyncExtent::Group(group) => {
            Box::new(group.iter().filter_map(|id| version.partitions.get(*id)))
        }
        SyncExtent::Only(id) => Box::new(version.partitions.get(id).into_iter()),
        SyncExtent::Layout => Box::new(std::iter::empty()),
    }
}

impl Inner {
    /// See [`Follower::sync`](super::Follower::sync).
    pub(super) fn sync(&self, extent: SyncExtent<'_>, reach: SyncReach) -> Result<SyncResult> {
        self.tables.check_process()?;
        self.sync_under(&mut self.position.lock(), extent, reach)
    }

    /// See [`Follower::sync_group`](super::Follower::sync_group).
    pub(super) fn sync_group(&self, group: &[PartitionId], reach: SyncReach) -> Result<CutViews> {
        if self.follows_tables_only {
            let message = "this follower reads flushed tables only, so a group has no common commit; open it \
                           without tables_only";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.tables.check_process()?;
        let mut position = self.position.lock();
        let reached = self.sync_under(&mut position, SyncExtent::Group(group), reach)?;
        // Under the lock, so that no partition of the group is ahead of the others.
        let is_durable = reach == SyncReach::Durable;
        Ok(self.cut_of(reached, is_durable, |id| group.contains(&id)))
    }

    pub(super) fn sync_under(
        &self,
        position: &mut FollowPosition,
        extent: SyncExtent<'_>,
        reach: SyncReach,
    ) -> Result<SyncResult> {
        let mut retries = Retries::new(ATTEMPTS);
        loop {
            // A panic, for example of a file system, becomes an error: the next round starts again.
            let done = catch_engine("a sync", || self.round(position, extent, reach));
            self.pins.end_round();
            let error = match done {
                Ok(reached) => {
                    position.distrusts_indexes = false;
                    return Ok(reached);
                }
                Err(error) => error,
            };
            // The memory limit is reached before anything was applied, so the next round continues
            // from here.
            if error.kind() == ErrorKind::LimitExceeded {
                return Err(error);
            }
            // A section may be applied in part. So the memtables are filled again from the front of
            // the log; readers keep their views.
            position.log = None;
            position.distrusts_indexes = true;
            position.memtables.clear();
            retries.again(error)?;
            position.reattach(self)?;
        }
    }

    fn round(
        &self,
        position: &mut FollowPosition,
        extent: SyncExtent<'_>,
        reach: SyncReach,
    ) -> Result<SyncResult> {
        position.begin_round();
        let bound = position.look(self, extent, reach)?;
        let version = position.version().clone();
        let is_news = position.taken.as_ref().is_none_or(|taken| !Arc::ptr_eq(taken, &version));
        // Before any partition catches up: one that this version created has no place yet to be
        // shown in.
        if is_news {
            self.take_partitions(&version)?;
            // A number is never given twice, so no one asks for the memtables of a dropped
            // partition again.
            position.memtables.retain(|id, _| version.partitions.contains_key(*id));
            position.taken = Some(version.clone());
        }
        let is_final = reach == SyncReach::Committed && is_at_rest(&version, extent, &bound);
        let epoch = version.epoch;
        let edit = version.edit_number;
        let seq = match extent {
            SyncExtent::Layout => bound.visible().unwrap_or_default(),
            _ if self.follows_tables_only => bound.visible().unwrap_or_default(),
            SyncExtent::Only(_) | SyncExtent::Group(_) | SyncExtent::All => {
                position.scan(self, &bound)?
            }
        };
        // The bound of this round: a cursor that a later round finds does not cover this one.
        let shows_present = bound.visible().is_some() || position.is_current(&bound);
        let is_present = is_final || (shows_present && !bound.is_durable);
        let reached = SyncResult { seq, epoch, edit, is_final, is_present };
        for partition in partitions_in(&version, extent) {
            let followed = self.partitions.read().by_id.get(&partition.id).cloned();
            let Some(followed) = followed else { continue };
            if self.follows_tables_only {
                self.show_tables(&followed, partition, &version, partition.tables_through());
            } else {
                self.advance(position, &followed, partition, seq, &bound)?;
            }
        }
        if extent == SyncExtent::All && !self.follows_tables_only {
            // After all partitions: within the loop, some of the views would be of an older commit
            // than the others.
            self.cut.store(Arc::new(self.cut_of(reached, bound.is_durable, |_| true)));
        }
        if is_news {
            self.release_others(position, extent, seq, &bound)?;
        }
        // Last. A caller that waits for a layout compares the edit in here, and must then find its
        // partitions.
        self.present.store(Arc::new(FollowerState {
            cursor: position.cursor.clone(),
            epoch: version.epoch,
            edit: version.edit_number,
        }));
        if let Some(lease) = &mut position.lease {
            // The oldest version that readers still hold, not that of this round: the primary
            // deletes every obsolete file that no lease keeps.
            let oldest = self.pins.oldest_after(position.lost_edit).unwrap_or(version.edit_number);
            lease.advance(oldest.min(version.edit_number), self.clock.now())?;
            if is_news {
                // The lease holds the files of this version from here on, or it is revoked and
                // holds nothing.
                lease.check()?;
            }
        }
        Ok(reached)
    }

    /// Shows a partition as of `seq`.
    fn advance(
        &self,
        position: &mut FollowPosition,
        followed: &Followed,
        partition: &Arc<PartitionVersion>,
        seq: SeqNo,
        bound: &Bound,
    ) -> Result<()> {
        let flushed = partition.flushed_through;
        let complete = if partition.options.logged || position.is_memory_gone(bound) {
            seq
        } else {
            // Loaded after `visible`: if nothing is newer than a flush here, the flush has
            // everything through `visible`.
            let slot = position.cursor.as_ref().map(|cursor| cursor.slot(partition.id));
            match (bound.visible(), slot) {
                (Some(visible), Some(slot)) if slot <= flushed.get() => visible,
                _ => flushed,
            }
        };
        // Before the memtables that are shown grow.
        let before = followed.pin();
        let bytes_before = before.view.memtable_bytes();
        let is_changed = position.grow(self, partition)?;
        let seq = match bound.visible() {
            Some(_) => seq.max(flushed),
            // Ingested tables were not in the log; with their edit they are durable.
            None => seq.max(partition.tables_through()),
        };
        let edit = position.version().edit_number;
        let epoch = position.version().epoch;
        followed.note_reach(bound.reach.0);
        let is_same = !is_changed && Arc::ptr_eq(&before.view.version, partition);
        let has_all = before.epoch == epoch && before.seq >= seq && before.complete >= complete;
        if is_same && has_all && before.pin.edit() == edit {
            return Ok(());
        }
        // The same view may be seen at another sequence: ingested entries are in the tables before
        // they are published.
        let view = if is_same {
            before.view.clone()
        } else {
            let memtables = position.memtables.get_mut(&partition.id).expect("grow made them");
            let (active, sealed) = memtables.memtables_over(partition);
            if let Some(operator) = &followed.hooks().operator {
                active.operator().get_or_init(|| operator.clone());
            }
            Arc::new(ReadView::new(active, sealed, partition.clone()))
        };
        position.note_memtable_bytes(bytes_before, view.memtable_bytes());
        let was_durable = before.epoch != epoch || before.is_durable;
        let complete = Commit { seq: complete, epoch };
        let mut shown =
            PublishedView::of(view, followed.hooks(), seq, complete, self.pins.pin(edit));
        shown.is_durable = bound.is_durable && was_durable;
        followed.show(shown);
        Ok(())
    }

    /// Shows only the tables of a partition, and of them the entries through `seq`.
    fn show_tables(
        &self,
        followed: &Followed,
        partition: &Arc<PartitionVersion>,
        version: &DbVersion,
        seq: SeqNo,
    ) {
        let active = self.empty.clone();
        let view = ReadView::new(active, Vec::new(), partition.clone());
        let complete = Commit { seq: partition.flushed_through, epoch: version.epoch };
        let pin = self.pins.pin(version.edit_number);
        followed.show(PublishedView::of(Arc::new(view), followed.hooks(), seq, complete, pin));
    }

    /// Releases old versions that only partitions outside of `extent` hold: a partition that no one
    /// reads, or whose tables are the same, holds the present one.
    fn release_others(
        &self,
        position: &mut FollowPosition,
        extent: SyncExtent<'_>,
        seq: SeqNo,
        bound: &Bound,
    ) -> Result<()> {
        let version = position.version().clone();
        let others: Vec<(PartitionId, bool)> = match extent {
            SyncExtent::All => Vec::new(),
            SyncExtent::Only(_) | SyncExtent::Group(_) | SyncExtent::Layout => {
                let partitions = self.partitions.read();
                let by_id = partitions.by_id.iter();
                by_id.map(|(id, followed)| (*id, Arc::strong_count(followed) > 1)).collect()
            }
        };
        for (id, is_read) in others {
            let Some(partition) = version.partitions.get(id) else { continue };
            if extent.has(id) {
                continue;
            }
            let Some(followed) = self.partitions.read().by_id.get(&id).cloned() else { continue };
            let before = followed.pin();
            // A failed round discarded its memtables. Within an epoch it does not go back.
            let flushed = partition.flushed_through;
            let is_ahead = before.epoch == version.epoch && before.seq > flushed;
            if Arc::ptr_eq(&before.view.version, partition) {
                let pin = self.pins.pin(version.edit_number);
                followed.show(before.again(before.epoch, pin));
            } else if self.follows_tables_only {
                self.show_tables(&followed, partition, &version, partition.tables_through());
            } else if !is_read && !position.memtables.contains_key(&id) && !is_ahead {
                self.show_tables(&followed, partition, &version, flushed);
            } else if !is_read && extent != SyncExtent::Layout {
                self.advance(position, &followed, partition, seq, bound)?;
            }
        }
        Ok(())
    }

    /// The partitions that `takes` selects, as they are now.
    fn cut_of(
        &self,
        reached: SyncResult,
        is_durable: bool,
        takes: impl Fn(PartitionId) -> bool,
    ) -> CutViews {
        let partitions = self.partitions.read();
        let by_id = partitions.by_id.iter().filter(|(id, _)| takes(**id));
        let partitions =
            by_id.map(|(id, followed)| (*id, (followed.clone(), followed.pin()))).collect();
        CutViews { reached: Some(reached), is_durable, partitions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::follow::FollowOptions;
    use crate::fs::{Fs, MemFs};

    /// They used to stay until the next epoch, and no limit counted them.
    #[test]
    fn memtables_of_a_dropped_partition_go() {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let db = Db::builder("/db").fs(fs.clone()).open().unwrap();
        let [p, q] = ["p", "q"].map(|name| db.partition(name).unwrap());
        let follower = FollowOptions { fs, ..FollowOptions::new("/db") }.open().unwrap();
        for partition in [&p, &q] {
            partition.put("k", "1").unwrap();
        }
        follower.sync(SyncExtent::All).unwrap();
        let kept = follower.partition("q").unwrap().id();
        let dropped = follower.partition("p").unwrap().id();
        assert!(follower.inner.position.lock().memtables.contains_key(&dropped));
        db.drop_partition("p").unwrap();
        follower.sync(SyncExtent::Only(kept)).unwrap();
        let position = follower.inner.position.lock();
        assert!(
            !position.memtables.contains_key(&dropped) && position.memtables.contains_key(&kept)
        );
    }
}
