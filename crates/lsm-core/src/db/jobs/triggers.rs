//! [`JobsState`]: the partitions in which a compaction may be due, and the claims of running ones.
//!
//! Used by `jobs.rs` under its lock. A partition that has not changed since nothing was due there is
//! not looked at, so a pick costs the same with one partition and with 65,536. Compactions that become
//! due by time, or when a snapshot is released, are looked for from time to time.
//!
//! Invariant: a partition with a due compaction is a candidate, has changed since the last look, or
//! waits for time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{JobsEnv, RangeGoal};
use crate::compaction::{Busy, CompactPointers, Compaction, Picker, RangePick};
use crate::error::{Error, Result};
use crate::hooks::{Ageing, catch};
use crate::options::CompactionStyle;
use crate::partition::PartitionState;
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::{PartitionVersion, SstMeta};

/// The state under the lock of `Jobs`.
#[derive(Default)]
pub(super) struct JobsState {
    pub(super) claims: HashMap<PartitionId, Claims>,
    /// Running compactions and ingests, over all partitions.
    pub(super) running: usize,
    /// Partitions in which a compaction may be due.
    pub(super) candidates: BTreeSet<PartitionId>,
    /// Partitions in which one may become due by time, or when a snapshot is released.
    pub(super) waiting: BTreeSet<PartitionId>,
    /// The time of the last look at those, and the live snapshots then.
    looked: Option<(Duration, Vec<SeqNo>)>,
}

/// The claims of the compactions of one partition.
#[derive(Default)]
pub(super) struct Claims {
    pub(super) busy: Busy,
    pub(super) pointers: CompactPointers,
    /// Compactions and ingests under way.
    pub(super) running: usize,
    /// The error of the last one, if it failed: other partitions come first.
    pub(super) failure: Option<Error>,
    /// The compactions that met damage, as far as their inputs stay claimed.
    pub(super) damaged: Vec<(Compaction, Error)>,
    /// Tables that repairs made, or could not repair, and how many repairs in a row led to each.
    pub(super) repairs: HashMap<FileNo, u32>,
    /// `true` if a table keeps entries for snapshots, held or released, has some that expire, or
    /// tombstones that a snapshot keeps.
    waits_for_time: bool,
    /// The times since which a large part of a table could be dropped.
    released_since: HashMap<FileNo, Duration>,
}

/// The state of the database at the time of a pick.
pub(super) struct PickContext {
    oldest_snapshot: SeqNo,
    pub(super) held: Vec<SeqNo>,
    now: Duration,
    unix_time: Duration,
}

impl PickContext {
    pub(super) fn of(env: &dyn JobsEnv) -> PickContext {
        PickContext {
            oldest_snapshot: env.oldest_snapshot(),
            held: env.held_snapshots(),
            now: env.now(),
            unix_time: env.unix_time(),
        }
    }
}

/// Tables with many droppable entries wait for so long after the release of their snapshots: others
/// may be released soon, and one rewrite serves them as well.
pub(super) const RELEASE_DELAY: Duration = Duration::from_secs(5);
/// A table is rewritten when more than one of so many of its entries could be dropped.
const RELEASED_SHARE: u64 = 10;

/// With more deleted ranges than this, every table that may have entries of the oldest ones is rewritten, however
/// few these are: scans and jobs look at all ranges.
const SPANS_MAX: usize = 1000;
/// A table is rewritten if deleted ranges reach one of so many of its blocks.
const ERASED_SHARE: usize = 10;

/// The reason to rewrite a table that deleted ranges hide a part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::db) enum ErasedShare {
    /// The ranges reach many of its blocks.
    Large,
    /// They may reach an entry: the user asked for the space.
    Any,
}

/// The tables that are worth a rewrite, because deleted ranges hide a part of them and no snapshot needs it.
pub(in crate::db) fn erasable(
    version: &PartitionVersion,
    held: &[SeqNo],
    share: ErasedShare,
) -> BTreeSet<FileNo> {
    let mut due = BTreeSet::new();
    if version.spans.is_empty() {
        return due;
    }
    let mut hidden: BTreeMap<FileNo, usize> = BTreeMap::new();
    let spans = version.spans.list();
    // By number: the oldest ones are first.
    let excess = spans.len().saturating_sub(SPANS_MAX);
    for (number, span) in spans.iter().enumerate() {
        version.tables_below(span, |_, table| {
            let meta = &table.meta;
            // A snapshot from before the range may see all that it hides.
            let first = held.partition_point(|snapshot| *snapshot < meta.oldest());
            if held.get(first).is_some_and(|snapshot| *snapshot < span.seq) {
                return true;
            }
            let (reached, count) = match table.opened() {
                Some(reader) => reader.blocks_within(&span.start, span.end.as_deref()),
                // Nothing is read here. A rewrite shows what a range hides, and is not repeated.
                None if share == ErasedShare::Any => (1, 1),
                // A range over an end of the table is likely a long one.
                None if span.contains(&meta.smallest.user) || span.contains(&meta.largest.user) => {
                    (1, 1)
                }
                None => (0, 1),
            };
            let all = hidden.entry(meta.file).or_default();
            *all += reached;
            let is_due = match share {
                ErasedShare::Large => *all * ERASED_SHARE >= count,
                ErasedShare::Any => *all > 0,
            };
            if is_due || number < excess {
                due.insert(meta.file);
            }
            true
        });
    }
    due
}

/// Partitions that wait for time are looked at again this often.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl JobsState {
    /// Takes the partitions to look at: each must be passed to [`JobsState::look_at`].
    pub(super) fn take_candidates(
        &mut self,
        env: &dyn JobsEnv,
        context: &PickContext,
    ) -> Vec<Arc<PartitionState>> {
        let mut ids = std::mem::take(&mut self.candidates);
        ids.extend(env.take_changed());
        // The distance of the two times, because a clock may go back. A different list of snapshots
        // changes the droppable entries, too.
        let is_due = self.looked.as_ref().is_none_or(|(at, held)| {
            context.now.abs_diff(*at) >= LOOK_AGAIN || *held != context.held
        });
        if is_due {
            ids.append(&mut self.waiting);
            self.looked = Some((context.now, context.held.clone()));
        }
        // Dropped partitions are not found here, and so are removed from the candidates.
        ids.into_iter().filter_map(|id| env.partition(id)).collect()
    }

    /// The compaction that is due in a partition, which stays a candidate if there is one.
    pub(super) fn look_at(
        &mut self,
        partition: &PartitionState,
        context: &PickContext,
    ) -> Result<Option<(Compaction, Arc<PartitionVersion>)>> {
        let claim = self.claims.entry(partition.id).or_default();
        let picked = claim.pick(partition, context);
        if claim.waits_for_time {
            self.waiting.insert(partition.id);
        }
        // Also after an error, which is reported at each attempt until it ends.
        if !matches!(picked, Ok(None)) {
            self.candidates.insert(partition.id);
        }
        picked
    }

    /// The due merges of level 0, in partitions whose last compaction did not fail. Everything else that
    /// may be due stays a candidate.
    pub(super) fn level0_due(
        &mut self,
        env: &dyn JobsEnv,
    ) -> Vec<(Arc<PartitionState>, Compaction, Arc<PartitionVersion>)> {
        let context = PickContext::of(env);
        self.candidates.extend(env.take_changed());
        let partitions = self.candidates.iter().filter_map(|id| env.partition(*id));
        let due = partitions.filter_map(|partition| {
            let (job, version) = self.claims.get(&partition.id).map_or_else(
                || Claims::default().pick_level0(&partition, &context),
                |claim| claim.pick_level0(&partition, &context),
            )?;
            Some((partition, job, version))
        });
        due.collect()
    }

    pub(super) fn claim(&mut self, partition: PartitionId, compaction: &Compaction) {
        self.enter(partition);
        let claim = self.claims.entry(partition).or_default();
        claim.busy.claim(compaction);
        // At the pick, not at the end: meanwhile the next pick on this level continues after it.
        claim.pointers.advance(compaction);
    }

    pub(super) fn enter(&mut self, partition: PartitionId) {
        self.running += 1;
        self.claims.entry(partition).or_default().running += 1;
    }

    /// Ends work in a partition: compactions that it blocked may be due.
    pub(super) fn leave(&mut self, partition: PartitionId) -> &mut Claims {
        self.running -= 1;
        // A job that ends may free the range in which another one was blocked.
        self.candidates.insert(partition);
        let claim = self.claims.entry(partition).or_default();
        claim.running -= 1;
        claim
    }

    pub(super) fn forget_if_dropped(&mut self, partition: &PartitionState) {
        let is_idle = self.claims.get(&partition.id).is_some_and(|claim| claim.running == 0);
        if partition.is_dropped() && is_idle {
            self.claims.remove(&partition.id);
        }
    }
}

impl Claims {
    /// Forgets the repairs of tables that are no more in the view.
    pub(super) fn forget_repairs(&mut self, partition: &PartitionState) {
        if !self.repairs.is_empty() {
            let version = partition.view().version.clone();
            let live: HashSet<FileNo> = version.tables().map(|(_, it)| it.meta.file).collect();
            self.repairs.retain(|file, _| live.contains(file));
        }
    }

    /// The first damage that keeps tables claimed.
    pub(super) fn damage(&self) -> Option<Error> {
        self.damaged.first().map(|(_, error)| error.clone())
    }

    /// Releases the damaged tables that no reader sees since a clear or a deletion of ranges: they are dropped
    /// unread. With a value store they would be read, and fail again.
    pub(super) fn release_unseen(&mut self, partition: &PartitionState, held: &[SeqNo]) {
        if self.damaged.is_empty() || partition.store().is_some() {
            return;
        }
        let version = partition.view().version.clone();
        self.damaged.retain(|(job, _)| {
            let is_seen = !job.tables().all(|(_, table)| version.is_unseen(&table.meta, held));
            if !is_seen {
                self.busy.release(job);
            }
            is_seen
        });
    }

    /// The compaction that is due, with the version that it was picked from.
    fn pick(
        &mut self,
        partition: &PartitionState,
        context: &PickContext,
    ) -> Result<Option<(Compaction, Arc<PartitionVersion>)>> {
        // A partition without the code of its store is not compacted: the store could not be
        // notified of dropped values.
        if partition.load_hooks().missing.is_some() {
            return Ok(None);
        }
        let version = partition.view().version.clone();
        self.release_unseen(partition, &context.held);
        // Below a clear sequence a table may wait for a snapshot to be released.
        let newest_clear = version.clear_seqs.all().last();
        self.waits_for_time =
            newest_clear.is_some_and(|clear_seq| version.reaches_below(*clear_seq));
        self.waits_for_time |= !version.spans.is_empty();
        // A FIFO loses tables by their age, and when snapshots are released.
        let style = version.options.compaction_style;
        self.waits_for_time |=
            style.has_age() || (style != CompactionStyle::Leveled && !context.held.is_empty());
        let mut outdated = self.released(&version, context);
        outdated.extend(erasable(&version, &context.held, ErasedShare::Large));
        if let Some(ageing) = ageing_of(partition, context)? {
            outdated.extend(catch("a hook", || self.expired(&version, &context.held, &ageing))?);
        }
        let (picked, waits) =
            self.with_picker(partition, &version, context, None, &outdated, |picker| {
                (picker.pick(), picker.waits_for_snapshots())
            })?;
        self.waits_for_time |= waits;
        Ok(picked.map(|compaction| (compaction, version)))
    }

    /// The merge of level 0, if it is due and the last compaction did not fail.
    fn pick_level0(
        &self,
        partition: &PartitionState,
        context: &PickContext,
    ) -> Option<(Compaction, Arc<PartitionVersion>)> {
        if self.failure.is_some() || partition.load_hooks().missing.is_some() {
            return None;
        }
        let version = partition.view().version.clone();
        let none = BTreeSet::new();
        let picked = self.with_picker(partition, &version, context, None, &none, |picker| {
            picker.pick_level0().map(|job| (job, version.clone()))
        });
        // A hook that panics here also does in the next full pick, which reports it.
        picked.ok().flatten()
    }

    /// The tables with many entries that no snapshot has held for [`RELEASE_DELAY`] or longer.
    fn released(&mut self, version: &PartitionVersion, context: &PickContext) -> BTreeSet<FileNo> {
        let mut since = HashMap::new();
        let mut due = BTreeSet::new();
        for (_, table) in version.tables().filter(|(_, table)| !table.meta.kept.is_empty()) {
            let SstMeta { file, entries, .. } = table.meta;
            self.waits_for_time = true;
            // Not noted in `since`, so that the wait starts again when more entries can be dropped.
            if table.meta.droppable(&context.held).saturating_mul(RELEASED_SHARE) <= entries {
                continue;
            }
            let seen = self.released_since.get(&file).copied().unwrap_or(context.now);
            since.insert(file, seen);
            if context.now.saturating_sub(seen) >= RELEASE_DELAY {
                due.insert(file);
            }
        }
        self.released_since = since;
        due
    }

    /// The tables in which enough has expired, and those in which that is unknown.
    fn expired(
        &mut self,
        version: &PartitionVersion,
        held: &[SeqNo],
        (ageing, now): &(Ageing, u64),
    ) -> BTreeSet<FileNo> {
        let mut due = BTreeSet::new();
        for (_, table) in version.tables() {
            let meta = &table.meta;
            let Some(expiries) = meta.expiries_by(ageing) else {
                due.insert(meta.file);
                continue;
            };
            self.waits_for_time |= expiries.can_expire();
            // While the snapshots are held, a rewrite keeps the same entries again.
            let left_can_go = meta.droppable(held) > 0;
            if expiries.is_due(meta.entries, ageing, *now)
                || (left_can_go && expiries.is_left_due(ageing, *now))
            {
                due.insert(meta.file);
            }
        }
        due
    }

    /// The next step towards a goal that the user requested.
    pub(super) fn pick_range(
        &self,
        partition: &PartitionState,
        version: &PartitionVersion,
        context: &PickContext,
        goal: &RangeGoal<'_>,
        outdated: &BTreeSet<FileNo>,
    ) -> Result<RangePick> {
        let before = goal.rewrite_before;
        self.with_picker(partition, version, context, before, outdated, |picker| {
            picker.pick_range(goal.range, goal.through, goal.finish)
        })
    }

    fn with_picker<T>(
        &self,
        partition: &PartitionState,
        version: &PartitionVersion,
        context: &PickContext,
        rewrite_before: Option<FileNo>,
        outdated: &BTreeSet<FileNo>,
        use_it: impl FnOnce(&Picker<'_>) -> T,
    ) -> Result<T> {
        let hooks = partition.hooks();
        let picker = Picker {
            version,
            busy: &self.busy,
            pointers: &self.pointers,
            oldest_snapshot: context.oldest_snapshot,
            joined: &|left, right| hooks.sealer().is_some_and(|sealer| sealer.joined(left, right)),
            rewrite_before,
            held: &context.held,
            outdated,
            unix_seconds: context.unix_time.as_secs(),
        };
        // It changes nothing, so nothing is half done if a hook panics.
        catch("a hook", || use_it(&picker))
    }
}

/// The rule by which entries of the partition expire, and the present time by its clock.
fn ageing_of(partition: &PartitionState, context: &PickContext) -> Result<Option<(Ageing, u64)>> {
    let Some(ageing) = partition.load_hooks().ageing().cloned() else { return Ok(None) };
    let now = catch("a hook", || ageing.expiry.now(context.unix_time))?;
    Ok(Some((ageing, now)))
}
