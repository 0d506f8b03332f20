//! The commit path: the only code that assigns a sequence number, appends a batch to the log,
//! applies it to the memtables and makes it visible. [`CommitPath::commit`] is all of it, in order.
//!
//! ```text
//! join, or lead -> number and encode -> one write for the group -> settle -> apply in order
//!               -> publish -> hand the lead over -> sync if asked -> answer
//! ```
//!
//! A writer that finds no leader leads: it takes all waiting writers into its group. The others wait
//! until they are answered or lead themselves (`commit/queue.rs`). Leading means holding the log's
//! writer; flush, drop and close take the same lock to run between two groups.
//!
//! Invariants:
//! 1. A group is written, applied and published before the next one begins. So sequence numbers
//!    become visible in order, and a memtable that is sealed between two groups is complete.
//! 2. A batch whose frame was not wholly appended is refused, never applied, and does not appear
//!    later: its segment is closed before it, see `log/`. Its sequence numbers stay unused.
//! 3. No sync runs under the queue's or the log writer's lock, except when a failed segment is
//!    replaced, and when a new segment finds too many files that wait for a sync (`log/handles.rs`).
//! 4. Whether the store takes writes is checked under the log writer's lock, so no batch is written
//!    after a failure.
//! 5. The requirements of a batch are checked when its sequence numbers are known and nothing can
//!    come before them any more: this is the place of a transaction in the history.
//! 6. Nothing of a group is applied before the commit cursor has settled it. A process that takes the
//!    database over may fence this one at any moment: then the group is refused, and is in neither
//!    history. A check before the write would not suffice: the process may be stopped after it.
//!
//! Lock order: the log's writer, then the queue; the locks of the environment come after the writer.

mod members;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::members::{Member, MemberState, append, encode, settle};
use self::queue::{Answer, Queue, Request, WriterRole};
use super::log::{Log, LogWriter};
use super::prepared::Prepared;
use super::require::{GroupWrites, Refusal};
use crate::error::Result;
use crate::memtable::MemtableWriter;
use crate::partition::PartitionState;
use crate::shared::CommitCursorWriter;
use crate::stats::Counters;
pub use crate::types::Commit;
use crate::types::{DeletedRange, EntryKind, Epoch, Operation, SectionBytes, SeqNo};
use crate::wal::Lsn;

/// The calls of the commit path to the rest of the database.
pub(super) trait CommitEnv {
    /// Returns an error if the batch must not be written. Called by the leader, under the log
    /// writer's lock.
    fn check_batch(&self, batch: &Prepared<'_>) -> Result<()>;

    /// Seals memtables that have grown too large, and those whose clear sequences free tables: the group has
    /// made these deletions. Called between two groups.
    fn after_group(&self, writer: &mut LogWriter<'_>, deletions: Vec<Deletion>);
}

/// A batch that is visible.
pub(super) struct Committed {
    pub(super) commit: Commit,
    /// The outcome of the sync, if it asked for one.
    pub(super) synced: Result<()>,
}

/// A batch that is visible, and the place through which the log must be durable for it.
type Visible = (Commit, Lsn);

/// The state of the commit path.
pub(super) struct CommitPath {
    queue: Queue,
    /// Shows secondaries what is published.
    cursor: Arc<CommitCursorWriter>,
    counters: Arc<Counters>,
    // Stored by the leader alone with release, loaded by readers with acquire: a reader that sees a
    // number sees every memtable entry up to it.
    visible_seq: AtomicU64,
    /// Every frame below is in the memtables. Release and acquire as above.
    applied_lsn: AtomicU64,
    /// Memory of the active memtables: a sum that decides when to seal. Relaxed.
    active_bytes: AtomicU64,
}

impl CommitPath {
    /// Begins after `last_seq`, and publishes every group in `cursor`.
    pub(super) fn new(
        last_seq: SeqNo,
        cursor: Arc<CommitCursorWriter>,
        counters: Arc<Counters>,
    ) -> CommitPath {
        CommitPath {
            queue: Queue::new(),
            cursor,
            counters,
            visible_seq: AtomicU64::new(last_seq.get()),
            applied_lsn: AtomicU64::new(0),
            active_bytes: AtomicU64::new(0),
        }
    }

    /// The newest sequence number that readers see.
    #[inline]
    pub(super) fn visible_seq(&self) -> SeqNo {
        let seq = self.visible_seq.load(Ordering::Acquire);
        SeqNo::new(seq).expect("it was stored from a SeqNo")
    }

    /// Every frame below this place is in the memtables.
    pub(super) fn applied_lsn(&self) -> Lsn {
        Lsn(self.applied_lsn.load(Ordering::Acquire))
    }

    /// Memory of the active memtables, in bytes.
    pub(super) fn active_bytes(&self) -> u64 {
        self.active_bytes.load(Ordering::Relaxed)
    }

    /// Notes that `bytes` bytes of the active memtables were sealed or dropped. Between two groups.
    pub(super) fn note_released(&self, bytes: u64) {
        self.active_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Seals a partition's active memtable; `false` if it is empty, or the partition was dropped:
    /// then its memory is released already. Between two groups.
    pub(super) fn seal(&self, writer: &mut LogWriter<'_>, partition: &PartitionState) -> bool {
        if partition.is_dropped() {
            return false;
        }
        let bytes = partition.view().active.bytes();
        let Some(memtable) = partition.seal() else { return false };
        self.note_released(bytes);
        if partition.logged {
            writer.note_switch(partition.id, memtable);
        }
        true
    }

    /// Publishes sequence numbers that were assigned outside of a batch, e.g. to ingested tables.
    /// Between two groups.
    pub(super) fn publish_unlogged(&self, writer: &LogWriter<'_>) {
        // No frame of the log has that number: without this a secondary would wait for one.
        self.cursor.note_unlogged(writer.last_seq());
        self.publish(writer);
    }

    /// Publishes everything up to the last assigned sequence number.
    fn publish(&self, writer: &LogWriter<'_>) {
        let visible = writer.last_seq();
        self.visible_seq.store(visible.get(), Ordering::Release);
        // After the store for readers here, so that no secondary is ahead of them.
        self.cursor.publish(writer.lsn().0, visible);
    }

    /// Commits a batch. Returns once it is visible and as durable as requested; includes the
    /// outcome of the sync, if one was requested.
    ///
    /// # Errors
    /// Then it is not visible, and never will be.
    pub(super) fn commit(
        &self,
        log: &Log,
        env: &dyn CommitEnv,
        batch: Prepared<'_>,
    ) -> Result<Committed, Refusal> {
        // A writer that finds a leader waits until it is answered or promoted.
        let turn = self.queue.join(batch);
        if let WriterRole::Follow(request) = &turn
            && let Some(answered) = self.queue.wait(request)
        {
            let (commit, end) = answered?;
            // Returns at once if the sync of the leader covered this frame. Each follower syncs for
            // itself, so a leader that asked for no sync need not.
            let synced = if request.batch.asks_sync() { log.sync_through(end) } else { Ok(()) };
            return Ok(Committed { commit, synced });
        }

        // Followers are taken only once the log is locked. Writers queue up while the previous
        // group runs, and a group that takes all of them needs fewer appends.
        let own = turn.batch();
        let mut writer = log.lock();
        let followers = self.queue.take_followers(own);
        let mut writes = GroupWrites::default();
        let is_alone = followers.is_empty();
        // The usual group has one member, and no list is allocated for it.
        let mut lone = [encode(env, &mut writer, &mut [], &mut writes, own, is_alone)];
        let mut list = Vec::new();
        let group = if is_alone {
            &mut lone[..]
        } else {
            list.reserve(1 + followers.len());
            list.extend(lone);
            for request in &followers {
                let batch = &request.batch;
                let member = encode(env, &mut writer, &mut list, &mut writes, batch, false);
                list.push(member);
            }
            &mut list[..]
        };
        // One write for all of them, before the memtables: an entry that a reader saw and that no
        // log has would be lost after a crash of the process alone.
        append(&mut writer, group);
        let is_settled = settle(&writer, group);
        let end = writer.lsn();
        if is_settled {
            self.show(env, &mut writer, group);
        }
        drop(writer);

        // The next group may begin. A sync under the lock of the log would delay writers that did
        // not ask for one.
        self.queue.hand_over();
        let epoch = log.epoch();
        // Before the sync, because these members did not ask for it.
        answer(&followers, group, false, epoch, end);
        let leads_sync = own.asks_sync() && group.iter().any(|m| !m.is_refused());
        let synced = if leads_sync { log.sync_through(end) } else { Ok(()) };
        // Members that asked for a sync are woken once, after the sync of the leader.
        answer(&followers, group, true, epoch, end);
        let (commit, _) = group[0].outcome(epoch, end)?;
        Ok(Committed { commit, synced })
    }

    /// Applies a group and publishes it.
    fn show(&self, env: &dyn CommitEnv, writer: &mut LogWriter<'_>, group: &[Member<'_>]) {
        // In the order of the log, and only members that are in it, as in a replay. Concurrent
        // inserts, as in RocksDB, would need a memtable with several writers.
        let mut deletions = Vec::new();
        for member in group.iter().filter(|member| !member.is_refused()) {
            self.apply(member, &mut deletions);
        }
        // Published at once, so that readers see all of a batch or nothing of it.
        self.publish(writer);
        // After the memtables, because a flush removes segments below this place: a frame that is
        // below it and in no memtable yet would be lost with its segment.
        self.applied_lsn.store(writer.lsn().0, Ordering::Release);
        // Still under the lock of the log. A memtable that is sealed here has all of this group and
        // nothing of the next one, so its switch can be written before the next frame.
        env.after_group(writer, deletions);
    }

    /// Inserts a member's operations into the memtables, and adds what it deletes of whole partitions and ranges to
    /// `deletions`.
    fn apply(&self, member: &Member<'_>, deletions: &mut Vec<Deletion>) {
        let lsn = match member.state {
            MemberState::Appended(lsn) => lsn.0,
            // The value with which a memtable marks an entry that is in no log: it pins no segment.
            _ => u64::MAX,
        };
        let mut seq = member.first_seq;
        let mut memory = 0;
        let mut user_bytes = 0;
        for section in member.batch.sections() {
            let view = section.partition.view();
            let bytes = section.injected.as_ref().unwrap_or(&section.bytes);
            let before = view.active.bytes();
            let mut writer = view.active.writer();
            let places = section.places.as_slice();
            let all_sums = section.sums.as_slice();
            for (number, (sums, operation)) in all_sums.iter().zip(places).enumerate() {
                // For a single operation there is nothing to prefetch in parallel.
                if all_sums.len() > 1 && number.is_multiple_of(MemtableWriter::PREFETCH_MAX) {
                    let keys = places[number..].iter().map(|place| &bytes[place.key.clone()]);
                    writer.prefetch_for(keys, &all_sums[number..]);
                }
                user_bytes += (operation.key.len() + operation.value.len()) as u64;
                memory += writer
                    .insert(seq, lsn, *sums, bytes, operation)
                    .expect("the commit path alone gives out sequence numbers, and they ascend");
                if !operation.kind.is_of_entry() {
                    deletions.push(Deletion::of(&section.partition, bytes, operation, seq));
                }
                seq = seq.plus(1);
            }
            drop(writer);
            section.partition.note_growth(before, view.active.bytes());
            // Before the group is published: a secondary that learns of a number finds the
            // partition marked.
            self.cursor.touch(section.partition.id, seq.previous());
        }
        self.counters.user_bytes.add(user_bytes);
        self.counters.batches.add(1);
        // Once a batch: each addition takes the cache line away from the threads that read the sum.
        self.active_bytes.fetch_add(memory, Ordering::Relaxed);
    }
}

/// An operation that deletes all of a partition, or a range of it.
pub(super) struct Deletion {
    pub(super) partition: Arc<PartitionState>,
    /// The range; `None` for a clear.
    pub(super) span: Option<DeletedRange>,
}

impl Deletion {
    #[cold]
    fn of(
        partition: &Arc<PartitionState>,
        section: &SectionBytes<'_>,
        operation: &Operation,
        seq: SeqNo,
    ) -> Deletion {
        let span = (operation.kind == EntryKind::DeleteRange).then(|| {
            let end = Some(&section[operation.value.clone()]).filter(|end| !end.is_empty());
            DeletedRange {
                start: section[operation.key.clone()].into(),
                end: end.map(Into::into),
                seq,
            }
        });
        Deletion { partition: partition.clone(), span }
    }
}

/// Answers the followers that asked for a sync, or the others. The leader is first in `group`.
fn answer(
    followers: &[Arc<Request>],
    group: &[Member<'_>],
    asked_sync: bool,
    epoch: Epoch,
    end: Lsn,
) {
    for (request, member) in followers.iter().zip(&group[1..]) {
        if request.batch.asks_sync() == asked_sync {
            request.answer(Answer::Done(member.outcome(epoch, end)));
        }
    }
}

#[cfg(test)]
mod tests;
