//! [`Jobs`]: which flushes and compactions are under way, and which comes next.
//!
//! Asked by `flush.rs` and `compaction.rs` before they work and told afterwards; by ingests, which
//! put tables into levels beside running compactions; by whoever waits for all of it to end. It
//! opens no file and installs nothing. What it has to know of the database it asks its
//! [`JobsHost`].
//!
//! Invariants:
//! 1. Who holds the [`FlushTurn`] is the only one who flushes.
//! 2. Two compactions share no input and no output range: [`Busy`], claimed and given back under
//!    one lock. A version is looked at under that lock, and a claim given back after the view took
//!    the result in, so no job sees inputs that are gone.
//! 3. A table that turned out damaged stays claimed: it is not compacted again until the next open,
//!    and the rest of the partition goes on.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::compaction::{Busy, Compaction, Cursors, Picker, RangePick, ingest_level};
use crate::error::{Error, Result};
use crate::hooks::{Ageing, catch};
use crate::partition::PartitionState;
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::{PartitionVersion, SstMeta, UserRange};

/// The questions of [`Jobs`] to the database. Called under its lock: answers take no lock above
/// that.
pub(super) trait JobsHost {
    /// The partitions that exist.
    fn partitions(&self) -> Vec<Arc<PartitionState>>;

    /// The oldest sequence number that a reader may still ask for.
    fn oldest_snapshot(&self) -> SeqNo;

    /// The snapshots that somebody holds, ascending.
    fn held_snapshots(&self) -> Vec<SeqNo>;

    /// The time by the database's clock.
    fn now(&self) -> Duration;

    /// Time since the beginning of 1970, by the same clock.
    fn unix_time(&self) -> Duration;
}

/// Tables of which much could go wait for so long after the snapshots that they kept it for were
/// released: others may be released soon, and a rewrite serves them as well.
const RELEASE_DELAY: Duration = Duration::from_secs(5);
/// A table is rewritten when more than one of so many of its entries could go.
const RELEASED_SHARE: u64 = 10;

static NONE: BTreeSet<FileNo> = BTreeSet::new();

/// See the module.
#[derive(Default)]
pub(super) struct Jobs {
    /// Held while a flush runs, and while something must stay unflushed. Taken before the commit
    /// path's lock. Partitions whose last flush failed.
    flushing: Mutex<BTreeSet<PartitionId>>,
    claims: Mutex<HashMap<PartitionId, Claims>>,
    /// `true` if some table keeps entries for snapshots, or has some that expire, as far as the last
    /// pick saw: somebody looks again from time to time. Relaxed: it is a hint.
    waits_for_time: AtomicBool,
}

/// The claims of the compactions of one partition.
#[derive(Default)]
struct Claims {
    busy: Busy,
    cursors: Cursors,
    /// Compactions and ingests under way.
    running: usize,
    /// Why the last one failed, if it did: other partitions come first.
    failure: Option<Error>,
    /// Why some tables stay claimed.
    damage: Option<Error>,
    /// `true` if a table keeps entries for snapshots, held or released, or has some that expire.
    waits_for_time: bool,
    /// Since when much of a table could go.
    released_since: HashMap<FileNo, Duration>,
}

/// The moment of a pick.
struct PickContext {
    oldest_snapshot: SeqNo,
    held: Vec<SeqNo>,
    now: Duration,
    unix_time: Duration,
}

impl PickContext {
    fn of(host: &impl JobsHost) -> PickContext {
        PickContext {
            oldest_snapshot: host.oldest_snapshot(),
            held: host.held_snapshots(),
            now: host.now(),
            unix_time: host.unix_time(),
        }
    }
}

/// A compaction whose inputs and output range nobody else touches until it is given back.
pub(super) struct Claimed {
    pub(super) partition: Arc<PartitionState>,
    pub(super) compaction: Compaction,
    /// The version that it was picked from.
    pub(super) version: Arc<PartitionVersion>,
}

/// The next step of a compaction that the user asked for.
pub(super) enum RangeStep {
    /// This compaction.
    Run(Claimed),
    /// A running job is in the way; ask again when it is done.
    Wait,
    /// The range lies in the last level.
    Done,
    /// Nothing runs and the range cannot be compacted: why, if damage is the reason.
    Stuck(Option<Error>),
}

/// The range of a compaction that the user asked for, and which tables it must reach.
#[derive(Clone, Copy)]
pub(super) struct RangeGoal<'a> {
    pub(super) range: UserRange<'a>,
    /// The last sequence that is waited for.
    pub(super) through: SeqNo,
    /// Every table with a smaller number is to be rewritten.
    pub(super) rewrite_before: Option<FileNo>,
}

/// The right to flush: while it lives, nothing is flushed but by its holder.
pub(super) struct FlushTurn<'a> {
    failing: MutexGuard<'a, BTreeSet<PartitionId>>,
}

/// Work in a partition that is no compaction: closing waits until it is dropped.
pub(super) struct Entered<'a> {
    jobs: &'a Jobs,
    partition: Arc<PartitionState>,
}

impl Jobs {
    /// Waits until nobody flushes, and takes the turn.
    pub(super) fn flush_turn(&self) -> FlushTurn<'_> {
        FlushTurn { failing: self.flushing.lock() }
    }

    /// Picks, over all partitions, the most urgent compaction, and claims it. Partitions whose last
    /// one failed come after all others.
    ///
    /// # Errors
    /// If none can be picked and hooks of a partition are why.
    pub(super) fn pick(&self, host: &impl JobsHost) -> Result<Option<Claimed>> {
        let mut claims = self.claims.lock();
        let mut best: Option<Claimed> = None;
        let mut best_rank = (false, f64::NEG_INFINITY);
        let mut refused = Ok(());
        let moment = PickContext::of(host);
        let mut waits = false;
        for partition in host.partitions() {
            let claim = claims.entry(partition.id).or_default();
            let picked = claim.pick(&partition, &moment);
            waits |= claim.waits_for_time;
            match picked {
                Err(error) => {
                    claim.failure = Some(error.clone());
                    refused = refused.and(Err(error));
                }
                Ok(None) => claim.failure = None,
                Ok(Some((compaction, version))) => {
                    let rank = (claim.failure.is_none(), compaction.score);
                    if rank > best_rank {
                        best_rank = rank;
                        best = Some(Claimed { partition, compaction, version });
                    }
                }
            }
        }
        self.waits_for_time.store(waits, Ordering::Relaxed);
        match best {
            None => refused.map(|()| None),
            Some(claimed) => {
                claims.entry(claimed.partition.id).or_default().claim(&claimed.compaction);
                Ok(Some(claimed))
            }
        }
    }

    /// Picks and claims the next step towards `goal`.
    ///
    /// # Errors
    /// If a hook of the partition panics.
    pub(super) fn pick_range(
        &self,
        host: &impl JobsHost,
        partition: &Arc<PartitionState>,
        goal: RangeGoal<'_>,
    ) -> Result<RangeStep> {
        let mut claims = self.claims.lock();
        let claim = claims.entry(partition.id).or_default();
        let version = partition.view().version.clone();
        let moment = PickContext::of(host);
        let before = goal.rewrite_before;
        let picked = claim.with_picker(partition, &version, &moment, before, &NONE, |picker| {
            picker.pick_range(goal.range, goal.through)
        })?;
        Ok(match picked {
            RangePick::Done => RangeStep::Done,
            RangePick::Due(compaction) => {
                claim.claim(&compaction);
                RangeStep::Run(Claimed { partition: partition.clone(), compaction, version })
            }
            RangePick::Blocked if claim.running > 0 => RangeStep::Wait,
            RangePick::Blocked => RangeStep::Stuck(claim.damage.clone()),
        })
    }

    /// Gives a claim back: with the tables that the compaction made, which are in the view, or with
    /// the error that it ended in. Damaged inputs stay claimed.
    pub(super) fn finish(&self, claimed: &Claimed, outcome: Result<&[SstMeta], &Error>) {
        let Claimed { partition, compaction, .. } = claimed;
        let mut claims = self.claims.lock();
        let claim = claims.entry(partition.id).or_default();
        claim.running -= 1;
        claim.failure = outcome.err().cloned();
        match outcome {
            Ok(outputs) => {
                claim.busy.release(compaction);
                claim.cursors.finished(compaction, outputs.iter().map(|meta| meta.file));
            }
            Err(error) if error.is_corruption() => {
                claim.damage.get_or_insert_with(|| error.clone());
            }
            Err(_) => claim.busy.release(compaction),
        }
        if partition.is_dropped() && claim.running == 0 {
            claims.remove(&partition.id);
        }
    }

    /// Begins work in a partition that closing waits for.
    pub(super) fn enter(&self, partition: &Arc<PartitionState>) -> Entered<'_> {
        self.claims.lock().entry(partition.id).or_default().running += 1;
        Entered { jobs: self, partition: partition.clone() }
    }

    /// Chooses a level for each finished table from elsewhere, and keeps compactions out of its
    /// range there until [`Jobs::release_levels`].
    pub(super) fn reserve_levels(
        &self,
        partition: &PartitionState,
        tables: &[SstMeta],
    ) -> Vec<usize> {
        let mut claims = self.claims.lock();
        let claim = claims.entry(partition.id).or_default();
        let version = partition.view().version.clone();
        let mut levels = Vec::with_capacity(tables.len());
        for meta in tables {
            let level = ingest_level(&version, &claim.busy, meta.range());
            claim.busy.reserve(level, meta);
            levels.push(level);
        }
        levels
    }

    /// Gives back what [`Jobs::reserve_levels`] took.
    pub(super) fn release_levels(&self, partition: &PartitionState, tables: &[SstMeta]) {
        let mut claims = self.claims.lock();
        let claim = claims.entry(partition.id).or_default();
        tables.iter().for_each(|meta| claim.busy.unreserve(meta.file));
    }

    /// Returns `true` if something runs, or could be picked.
    pub(super) fn has_work(&self, host: &impl JobsHost) -> bool {
        let mut claims = self.claims.lock();
        let moment = PickContext::of(host);
        host.partitions().iter().any(|partition| {
            let claim = claims.entry(partition.id).or_default();
            !partition.view().sealed.is_empty()
                || claim.running > 0
                // What hooks keep from being picked fails the work, and is told there.
                || !matches!(claim.pick(partition, &moment), Ok(None))
        })
    }

    /// Returns `true` if a table may become due without any call, because snapshots are released or
    /// entries expire.
    pub(super) fn waits_for_time(&self) -> bool {
        self.waits_for_time.load(Ordering::Relaxed)
    }

    /// Returns `true` if a compaction or an ingest is under way.
    pub(super) fn is_running(&self) -> bool {
        self.claims.lock().values().any(|claim| claim.running > 0)
    }

    /// Why compactions do not get on in a partition: damage that they met, or what the last one
    /// ended in.
    pub(super) fn failure_of(&self, partition: PartitionId) -> Option<Error> {
        let claims = self.claims.lock();
        let claim = claims.get(&partition)?;
        claim.damage.clone().or_else(|| claim.failure.clone())
    }

    /// Forgets what compactions met in a partition that was dropped.
    pub(super) fn forget(&self, partition: PartitionId) {
        let mut claims = self.claims.lock();
        if claims.get(&partition).is_some_and(|claim| claim.running == 0) {
            claims.remove(&partition);
        }
    }

    /// The first damage that a compaction met since the open.
    pub(super) fn damage(&self) -> Option<Error> {
        self.claims.lock().values().find_map(|claim| claim.damage.clone())
    }
}

impl Claims {
    /// The compaction that is due, with the version that it was picked from.
    fn pick(
        &mut self,
        partition: &PartitionState,
        moment: &PickContext,
    ) -> Result<Option<(Compaction, Arc<PartitionVersion>)>> {
        // A partition whose store is missing is left as it is.
        if partition.load_hooks().missing.is_some() {
            return Ok(None);
        }
        let version = partition.view().version.clone();
        self.waits_for_time = false;
        let mut outdated = self.released(&version, moment);
        if let Some(ageing) = ageing_of(partition, moment)? {
            outdated.extend(self.expired(&version, &ageing));
        }
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the method alone is not general enough over the lifetime of the picker"
        )]
        let picked =
            self.with_picker(partition, &version, moment, None, &outdated, |picker| picker.pick())?;
        Ok(picked.map(|compaction| (compaction, version)))
    }

    /// The tables of which enough could go for long enough, since snapshots are released.
    fn released(&mut self, version: &PartitionVersion, moment: &PickContext) -> BTreeSet<FileNo> {
        let mut since = HashMap::new();
        let mut due = BTreeSet::new();
        for (_, table) in version.tables().filter(|(_, table)| !table.meta.kept.is_empty()) {
            let SstMeta { file, entries, .. } = table.meta;
            self.waits_for_time = true;
            if table.meta.droppable(&moment.held).saturating_mul(RELEASED_SHARE) <= entries {
                continue;
            }
            let seen = self.released_since.get(&file).copied().unwrap_or(moment.now);
            since.insert(file, seen);
            if moment.now.saturating_sub(seen) >= RELEASE_DELAY {
                due.insert(file);
            }
        }
        self.released_since = since;
        due
    }

    /// The tables of which enough has expired, and those of which it is not known.
    fn expired(
        &mut self,
        version: &PartitionVersion,
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
            if expiries.is_due(meta.entries, ageing, *now) {
                due.insert(meta.file);
            }
        }
        due
    }

    fn with_picker<T>(
        &self,
        partition: &PartitionState,
        version: &PartitionVersion,
        moment: &PickContext,
        rewrite_before: Option<FileNo>,
        outdated: &BTreeSet<FileNo>,
        use_it: impl FnOnce(&Picker<'_>) -> T,
    ) -> Result<T> {
        let hooks = partition.hooks();
        let picker = Picker {
            version,
            busy: &self.busy,
            cursors: &self.cursors,
            oldest_snapshot: moment.oldest_snapshot,
            joined: &|left, right| hooks.filters.iter().any(|filter| filter.joined(left, right)),
            rewrite_before,
            held: &moment.held,
            outdated,
        };
        // It changes nothing, so nothing is half done if a hook panics.
        catch("a hook", || use_it(&picker))
    }

    fn claim(&mut self, compaction: &Compaction) {
        self.busy.claim(compaction);
        self.cursors.advance(compaction);
        self.running += 1;
    }
}

/// The rule by which entries of the partition expire, and the present moment by it.
fn ageing_of(partition: &PartitionState, moment: &PickContext) -> Result<Option<(Ageing, u64)>> {
    let Some(ageing) = partition.hooks().ageing() else { return Ok(None) };
    let now = catch("a hook", || ageing.expiry.now(moment.unix_time))?;
    Ok(Some((ageing, now)))
}

impl FlushTurn<'_> {
    /// The candidate to be flushed next: that with the most sealed memory. Those whose last flush
    /// failed come after all others, so that one bad disk or hook holds up its partition alone.
    pub(super) fn largest(
        &self,
        candidates: Vec<Arc<PartitionState>>,
    ) -> Option<Arc<PartitionState>> {
        candidates.into_iter().max_by_key(|partition| {
            let sealed: u64 = partition.view().sealed.iter().map(|memtable| memtable.bytes()).sum();
            (!self.failing.contains(&partition.id), sealed)
        })
    }

    /// Notes how a flush of the partition ended.
    pub(super) fn note(&mut self, partition: &PartitionState, worked: bool) {
        if worked {
            self.failing.remove(&partition.id);
        } else {
            self.failing.insert(partition.id);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut claims = self.jobs.claims.lock();
        let claim = claims.entry(self.partition.id).or_default();
        claim.running -= 1;
        if claim.running == 0 && self.partition.is_dropped() {
            claims.remove(&self.partition.id);
        }
    }
}

#[cfg(test)]
mod tests;
