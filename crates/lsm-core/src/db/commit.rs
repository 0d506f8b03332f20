//! The commit path: the only code that assigns a sequence number, appends a batch to the WAL,
//! applies it to the memtables and makes it visible.
//!
//! ```text
//! commit -> queue (join, or lead) -> leader: number, encode, write(2) once for the group
//!        -> apply in order -> publish visible_seq -> hand the lead over -> sync if asked -> answer
//! ```
//!
//! A writer that finds nobody leading leads: it takes whatever waits behind it into its group.
//! The others park until they are answered or promoted. Leading is holding `pipeline`; flush,
//! drop and close take the same lock to stand between two groups.
//!
//! Invariants:
//! 1. A group is written, applied and published before the next one begins. So sequence numbers
//!    become visible in order, and a memtable that is sealed between two groups is complete.
//! 2. A batch whose frame was not wholly appended is refused, never applied, and never comes back:
//!    its segment is closed before it, see `log.rs`. Its sequence numbers stay unused.
//! 3. No sync runs under `queue` or `pipeline`, except when a failed segment is replaced.
//! 4. The failure latch is read under `pipeline`, so no writer slips in behind a failure.
//!
//! Lock order: pipeline, then queue, versions, a partition's change lock, sync.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::DbInner;
use super::log::{Pipeline, SyncState, Written};
use crate::batch::SectionReader;
use crate::error::Result;
use crate::options::Durability;
use crate::partition::PartitionState;
use crate::sstable::bloom_hash;
use crate::types::{EntrySum, Epoch, SeqNo};
use crate::wal::{FramePlace, Lsn, Section, frame};

/// Frames of followers beyond this many bytes wait for the next group.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// What a commit returns: a token for reading one's own writes elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The last sequence number of the batch.
    pub seq: SeqNo,
    /// The term of the writer that made it.
    pub epoch: Epoch,
}

/// The operations of a batch on one partition, encoded and hashed outside any lock.
#[derive(Clone)]
pub(super) struct PreparedSection {
    pub(super) partition: Arc<PartitionState>,
    pub(super) operations: u32,
    pub(super) checksum: u64,
    pub(super) bytes: Arc<[u8]>,
    /// The rules that the keys were checked against.
    pub(super) rules_epoch: u32,
}

impl PreparedSection {
    /// Looks again at the rules, if they changed since the keys were checked.
    fn check_rules(&self) -> Result<()> {
        if self.partition.rules_epoch() == self.rules_epoch {
            return Ok(());
        }
        let mut operations = SectionReader::new(&self.bytes);
        while let Some(operation) =
            operations.next_operation().expect("db/write.rs encoded this section")
        {
            self.partition.check_key(&self.bytes[operation.key])?;
        }
        Ok(())
    }

    fn as_section(&self) -> Section<'_> {
        Section {
            partition: self.partition.id,
            operations: self.operations,
            checksum: self.checksum,
            bytes: &self.bytes,
        }
    }
}

/// A batch on its way.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) sections: Sections,
    pub(super) durability: Durability,
}

/// The sections of a batch; the usual batch has one and allocates no list for it.
#[derive(Clone)]
pub(super) enum Sections {
    One(PreparedSection),
    Many(Vec<PreparedSection>),
}

impl Sections {
    fn as_slice(&self) -> &[PreparedSection] {
        match self {
            Sections::One(section) => std::slice::from_ref(section),
            Sections::Many(sections) => sections,
        }
    }
}

impl Prepared {
    fn sections(&self) -> &[PreparedSection] {
        self.sections.as_slice()
    }

    /// A batch never mixes logged and unlogged partitions: `db/write.rs` sees to it.
    fn is_logged(&self) -> bool {
        self.sections()[0].partition.logged
    }

    fn operations(&self) -> u64 {
        self.sections().iter().map(|section| u64::from(section.operations)).sum()
    }

    fn bytes(&self) -> usize {
        self.sections().iter().map(|section| section.bytes.len()).sum()
    }
}

/// What became of a member of a group.
#[derive(Clone)]
pub(super) struct Member {
    first_seq: SeqNo,
    last_seq: SeqNo,
    lsn: Lsn,
    fate: Result<()>,
}

enum Answer {
    Waiting,
    Lead,
    /// The commit, and how far the log must be durable for it.
    Done(Result<(Commit, Lsn)>),
}

struct Request {
    batch: Prepared,
    answer: Mutex<Answer>,
    changed: Condvar,
}

impl Request {
    fn answer(&self, answer: Answer) {
        *self.answer.lock() = answer;
        self.changed.notify_one();
    }
}

#[derive(Default)]
struct Queue {
    leading: bool,
    waiting: VecDeque<Arc<Request>>,
}

/// The state of the commit path.
pub(super) struct CommitPath {
    queue: Mutex<Queue>,
    pub(super) pipeline: Mutex<Pipeline>,
    pub(super) written: Mutex<Written>,
    pub(super) sync: Mutex<SyncState>,
    pub(super) synced: Condvar,
    // Stored by the leader alone with release, loaded by readers with acquire: who sees a number
    // sees every memtable entry up to it.
    visible_seq: AtomicU64,
    /// Every frame below is in the memtables. Release and acquire as above.
    applied_lsn: AtomicU64,
    /// Memory of the active memtables: a sum that decides when to seal. Relaxed.
    active_bytes: AtomicU64,
}

impl CommitPath {
    /// Begins behind `last_seq`.
    pub(super) fn new(last_seq: SeqNo) -> CommitPath {
        CommitPath {
            queue: Mutex::default(),
            pipeline: Mutex::new(Pipeline::new(last_seq)),
            written: Mutex::default(),
            sync: Mutex::new(SyncState::new(last_seq)),
            synced: Condvar::new(),
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
}

impl DbInner {
    /// Commits a batch. Returns once it is visible and as durable as it asked for; with what became
    /// of the sync, if it asked for one.
    ///
    /// # Errors
    /// Then it is not visible, and never will be.
    pub(super) fn commit(&self, batch: Prepared) -> Result<(Commit, Result<()>)> {
        let durability = batch.durability;
        let mut queue = self.commit.queue.lock();
        if !queue.leading {
            queue.leading = true;
            drop(queue);
            return self.lead(&batch);
        }
        let request = Arc::new(Request {
            batch,
            answer: Mutex::new(Answer::Waiting),
            changed: Condvar::new(),
        });
        queue.waiting.push_back(request.clone());
        drop(queue);
        let mut answer = request.answer.lock();
        loop {
            match std::mem::replace(&mut *answer, Answer::Waiting) {
                Answer::Waiting => request.changed.wait(&mut answer),
                Answer::Lead => {
                    drop(answer);
                    return self.lead(&request.batch);
                }
                Answer::Done(done) => {
                    let (commit, lsn) = done?;
                    let asks = durability == Durability::Sync;
                    let synced = if asks { self.sync_through(lsn) } else { Ok(()) };
                    return Ok((commit, synced));
                }
            }
        }
    }

    /// Leads a group: `own` and what waits behind it.
    fn lead(&self, own: &Prepared) -> Result<(Commit, Result<()>)> {
        let mut pipeline = self.commit.pipeline.lock();
        let followers = self.take_followers(own);
        let members = self.run_group(&mut pipeline, own, &followers);
        let lsn = pipeline.lsn();
        self.after_group(&mut pipeline);
        drop(pipeline);
        self.hand_over();
        let done = |member: &Member| {
            let commit = Commit { seq: member.last_seq, epoch: self.epoch };
            member.fate.clone().map(|()| (commit, lsn))
        };
        // Who asked for a sync waits for the leader's, if the leader does one: one wake-up each.
        let synced = own.durability == Durability::Sync;
        let asks = |request: &Request| request.batch.durability == Durability::Sync;
        for (request, member) in followers.iter().zip(&members[1..]) {
            if !synced || !asks(request) {
                request.answer(Answer::Done(done(member)));
            }
        }
        let sync = if synced && members.iter().any(|m| m.fate.is_ok()) && own.is_logged() {
            self.sync_through(lsn)
        } else {
            Ok(())
        };
        for (request, member) in followers.iter().zip(&members[1..]) {
            // What became of the sync they see by themselves.
            if synced && asks(request) {
                request.answer(Answer::Done(done(member)));
            }
        }
        let (commit, _) = done(&members[0])?;
        Ok((commit, sync))
    }

    fn take_followers(&self, own: &Prepared) -> Vec<Arc<Request>> {
        let mut queue = self.commit.queue.lock();
        let mut bytes = own.bytes();
        let mut followers = Vec::new();
        while bytes < GROUP_BYTES_MAX
            && let Some(request) = queue.waiting.pop_front()
        {
            bytes += request.batch.bytes();
            followers.push(request);
        }
        followers
    }

    fn hand_over(&self) {
        let mut queue = self.commit.queue.lock();
        match queue.waiting.pop_front() {
            Some(next) => next.answer(Answer::Lead),
            None => queue.leading = false,
        }
    }

    /// Writes, applies and publishes a group; says what became of each member, `own` first.
    fn run_group(
        &self,
        pipeline: &mut Pipeline,
        own: &Prepared,
        followers: &[Arc<Request>],
    ) -> Vec<Member> {
        let batches = || std::iter::once(own).chain(followers.iter().map(|r| &r.batch));
        let mut members: Vec<Member> = Vec::with_capacity(1 + followers.len());
        let mut unwritten = 0;
        for batch in batches() {
            let first_seq = pipeline.next_seq;
            let operations = batch.operations();
            let mut member = Member {
                first_seq,
                last_seq: first_seq.plus(operations - 1),
                lsn: Lsn(u64::MAX),
                fate: self.check_writable(batch),
            };
            if member.fate.is_ok() {
                if batch.is_logged() {
                    member.fate = self.encode(pipeline, &mut members, &mut unwritten, batch);
                    member.lsn = pipeline.frame_lsn;
                }
                if member.fate.is_ok() {
                    pipeline.next_seq = first_seq.plus(operations);
                }
            }
            members.push(member);
        }
        self.write_buffer(pipeline, &mut members, &mut unwritten);
        let lsn = pipeline.lsn();
        for (batch, member) in batches().zip(&members) {
            if member.fate.is_ok() {
                self.apply(batch, member);
            }
        }
        self.publish(pipeline);
        self.commit.applied_lsn.store(lsn.0, Ordering::Release);
        members
    }

    fn check_writable(&self, batch: &Prepared) -> Result<()> {
        self.check_open()?;
        batch.sections().iter().try_for_each(|section| {
            section.partition.check_live()?;
            if section.partition.is_doubtful() {
                self.settle(&section.partition)?;
            }
            section.check_rules()
        })
    }

    /// Encodes a frame into the buffer; writes out what is there first if it does not fit.
    fn encode(
        &self,
        pipeline: &mut Pipeline,
        members: &mut [Member],
        unwritten: &mut usize,
        batch: &Prepared,
    ) -> Result<()> {
        let one;
        let many: Vec<Section<'_>>;
        let sections: &[Section<'_>] = match batch.sections() {
            [section] => {
                one = [section.as_section()];
                &one
            }
            sections => {
                many = sections.iter().map(PreparedSection::as_section).collect();
                &many
            }
        };
        let len = frame::batch_frame_len_max(sections) + pipeline.switches_len_max();
        if !pipeline.fits(len) {
            self.write_buffer(pipeline, members, unwritten);
        }
        // A failed write has begun the next segment already, and perhaps put frames for it into
        // the buffer.
        if !pipeline.fits(len) {
            self.next_segment(pipeline, len as u64)?;
        }
        self.encode_switches(pipeline);
        let place: FramePlace = pipeline.place(self.durable_lsn());
        let previous = pipeline.encoded_seq;
        pipeline.frame_lsn = place.lsn;
        frame::encode_batch(&mut pipeline.buffer, &place, pipeline.next_seq, previous, sections);
        pipeline.encoded_seq = pipeline.next_seq.plus(batch.operations() - 1);
        Ok(())
    }

    /// Appends the buffer to the segment. If that fails, the members whose frames were in it get
    /// the error.
    fn write_buffer(&self, pipeline: &mut Pipeline, members: &mut [Member], unwritten: &mut usize) {
        if let Err(error) = self.append_buffer(pipeline) {
            for member in &mut members[*unwritten..] {
                if member.fate.is_ok() && member.lsn != Lsn(u64::MAX) {
                    member.fate = Err(error.clone());
                }
            }
        }
        *unwritten = members.len();
    }

    fn apply(&self, batch: &Prepared, member: &Member) {
        let mut seq = member.first_seq;
        let (mut memory, mut user_bytes) = (0, 0);
        for section in batch.sections() {
            let view = section.partition.view();
            let mut writer = view.active.writer();
            let mut operations = SectionReader::new(&section.bytes);
            while let Some(operation) =
                operations.next_operation().expect("db/write.rs encoded this section")
            {
                user_bytes += (operation.key.len() + operation.value.len()) as u64;
                let hash = bloom_hash(&section.bytes[operation.key.clone()]);
                let lsn = member.lsn.0;
                let value = &section.bytes[operation.value.clone()];
                let sum = EntrySum::new(hash, operation.kind, value);
                memory += writer
                    .insert(seq, lsn, hash, sum, &section.bytes, &operation)
                    .expect("the commit path alone gives out sequence numbers, and they ascend");
                seq = seq.plus(1);
            }
        }
        self.counters.user_bytes.add(user_bytes);
        self.counters.batches.add(1);
        self.commit.active_bytes.fetch_add(memory, Ordering::Relaxed);
    }

    /// Seals what has grown too large, between this group and the next.
    fn after_group(&self, pipeline: &mut Pipeline) {
        let full = self.options.write_buffer_bytes;
        if self.commit.active_bytes.load(Ordering::Relaxed) >= full {
            let active = |p: &Arc<PartitionState>| p.view().active.bytes();
            if let Some(largest) = self.live_partitions().into_iter().max_by_key(active) {
                self.seal(pipeline, &largest);
            }
        }
        if std::mem::take(&mut pipeline.segment_switched) {
            self.seal_for_log_size(pipeline);
        }
    }

    /// Seals every partition whose active memtable pins more of the log than it may grow to.
    fn seal_for_log_size(&self, pipeline: &mut Pipeline) {
        let end = pipeline.lsn().0;
        for partition in self.live_partitions() {
            let first = partition.view().active.first_lsn();
            if first.is_some_and(|lsn| end.saturating_sub(lsn) > self.options.wal_bytes_max) {
                self.seal(pipeline, &partition);
            }
        }
    }

    /// Seals a partition's active memtable, unless it is empty, and has it flushed. The caller
    /// holds the pipeline, so no group is under way.
    pub(super) fn seal(&self, pipeline: &mut Pipeline, partition: &PartitionState) {
        let Some(memtable) = partition.seal() else { return };
        if partition.logged {
            pipeline.note_switch(partition.id, memtable);
        }
        let active = self.live_partitions().iter().map(|p| p.view().active.bytes()).sum();
        self.commit.active_bytes.store(active, Ordering::Relaxed);
        self.update_pressure(partition);
        self.background.flush_due();
    }

    /// Takes the next sequence number, for what is no batch. Readers see it from the next
    /// [`DbInner::publish`] on; it is used up even if nothing comes of it.
    pub(super) fn take_seq(&self, pipeline: &mut Pipeline) -> SeqNo {
        let seq = pipeline.next_seq;
        pipeline.next_seq = seq.plus(1);
        seq
    }

    /// Lets readers see everything up to the last sequence number that was taken.
    pub(super) fn publish(&self, pipeline: &Pipeline) {
        let visible = pipeline.next_seq.get() - 1;
        self.commit.visible_seq.store(visible, Ordering::Release);
    }

    /// Stands between two groups: nothing is under way while the guard lives.
    pub(super) fn between_groups(&self) -> MutexGuard<'_, Pipeline> {
        self.commit.pipeline.lock()
    }
}
