//! Groups of writers over a log of their own, and the answer of each.

mod ranges;
use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::queue::Queue;
use super::{CommitPath, Committed, Refusal};
use crate::batch::damaged_key;
use crate::db::prepared::{PerOperation, PerSection, Prepared, PreparedSection};
use crate::db::require::{Requirement, Requirements, Subject};
use crate::db::testing::{EPOCH, TestLog, batches_in, partition};
use crate::error::{ErrorKind, Result};
use crate::fs::{CrashOutcome, FaultAction, FaultAt, FaultRule, OpKind};
use crate::options::Durability;
use crate::partition::PartitionState;
use crate::shared::CommitCursorWriter;
use crate::sstable::bloom_hash;
use crate::types::{EntryKind, SectionBytes, SeqNo};
use crate::wal::section_checksum;

/// A commit path over a log of its own and one partition.
struct Store {
    test: TestLog,
    path: CommitPath,
    partition: Arc<PartitionState>,
}

impl Store {
    fn new(segment_bytes: u64) -> Arc<Store> {
        Store::with_queue(segment_bytes, Queue::new())
    }

    fn with_queue(segment_bytes: u64, queue: Queue) -> Arc<Store> {
        let cursor = Arc::new(CommitCursorWriter::none());
        let test = TestLog::new(segment_bytes);
        let counters = test.env.counters.clone();
        Arc::new(Store {
            test,
            path: CommitPath { queue, ..CommitPath::new(SeqNo::ZERO, cursor, counters) },
            partition: partition(true),
        })
    }

    fn put(&self, key: &'static str, value: &[u8], durability: Durability) -> Result<Committed> {
        self.commit(&Batch { value: value.into(), ..batch(key, 0, durability) })
    }

    /// Puts with a sync each fifth time; returns the number that the batch got.
    fn put_either(&self, n: u64) -> u64 {
        let durability = if n.is_multiple_of(5) { Durability::Sync } else { Durability::Os };
        self.put("key", b"value", durability).unwrap().commit.seq.get()
    }

    fn commit(&self, batch: &Batch) -> Result<Committed> {
        self.try_commit(batch).map_err(Refusal::known)
    }

    /// The fate of a batch that requires that no one wrote `key` after `at_most`.
    fn verdict(&self, key: &str, at_most: u64) -> &'static str {
        match self.try_commit(&batch("x", 1, Durability::Os).requiring(key, at_most)) {
            Ok(_) => "holds",
            Err(Refusal::Unproven) => "unproven",
            Err(Refusal::Failed(error)) => {
                assert_eq!(error.kind(), ErrorKind::Conflict);
                "conflict"
            }
        }
    }

    fn try_commit(&self, batch: &Batch) -> Result<Committed, Refusal> {
        let mut prepared = prepare(&self.partition, batch.key, &batch.value, batch.durability);
        prepared.requirements = batch.requires.as_ref().map(|(subject, at_most)| {
            let requirement = Requirement {
                partition: self.partition.clone(),
                subject: subject.clone(),
                at_most: SeqNo::new(*at_most).unwrap(),
                is_held: true,
            };
            Box::new(Requirements::new(vec![requirement]))
        });
        self.path.commit(&self.test.log, &*self.test.env, prepared)
    }

    /// Returns `true` if a reader finds `key`.
    fn sees(&self, key: &str) -> bool {
        let view = self.partition.view();
        view.active
            .get(key.as_bytes(), bloom_hash(key.as_bytes()), self.path.visible_seq())
            .is_some()
    }

    /// Commits `batches` as one group, led by the first; returns the answer of each.
    fn commit_group(self: &Arc<Store>, batches: Vec<Batch>) -> Vec<Result<Committed>> {
        // The leader waits for the writer, and the others for the leader.
        let writer = self.test.log.lock();
        let mut writers: Vec<JoinHandle<Result<Committed>>> = Vec::new();
        for (count, batch) in batches.into_iter().enumerate() {
            let path = self.clone();
            writers.push(thread::spawn(move || path.commit(&batch)));
            while !self.path.queue.has_waiting(count) {
                thread::yield_now();
            }
        }
        drop(writer);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    }
}

/// The keys of batches that clear the partition, and delete the keys from "d" to before "p".
const CLEAR: &str = "";
const DELETE_RANGE: &str = "d..p";

pub(super) struct Batch {
    pub(super) key: &'static str,
    pub(super) value: Vec<u8>,
    durability: Durability,
    requires: Option<(Subject, u64)>,
}

impl Batch {
    /// The same, if no one wrote `key` after `at_most`.
    fn requiring(self, key: &str, at_most: u64) -> Batch {
        Batch { requires: Some((Subject::key(key.into()), at_most)), ..self }
    }
}

pub(super) fn batch(key: &'static str, len: usize, durability: Durability) -> Batch {
    Batch { key, value: vec![b'v'; len], durability, requires: None }
}

pub(super) fn prepare(
    partition: &Arc<PartitionState>,
    key: &str,
    value: &[u8],
    durability: Durability,
) -> Prepared<'static> {
    let mut section = crate::batch::SectionBuilder::default();
    match key {
        CLEAR => section.push(EntryKind::Clear, &[], &[]),
        DELETE_RANGE => section.push(EntryKind::DeleteRange, b"d", b"p"),
        _ => section.push(EntryKind::Value, key.as_bytes(), value),
    }
    let mut places = Vec::new();
    damaged_key(section.bytes(), section.sums(), &mut places).unwrap();
    let section = PreparedSection {
        partition: Cow::Owned(partition.clone()),
        checksum: section_checksum(section.bytes()),
        bytes: SectionBytes::Lent(section.bytes()).into_shared(),
        injected: None,
        sums: PerOperation::One(section.sums()[0]),
        places: PerOperation::One(places.remove(0)),
        rules_epoch: partition.rules_epoch(),
    };
    Prepared { sections: PerSection::One(section), options: durability.into(), requirements: None }
}

fn fail_append(nth: u64) -> FaultRule {
    let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".wal".into(), nth };
    FaultRule::once(at, FaultAction::Eio)
}

#[test]
fn a_commit_is_visible_when_it_returns_and_in_the_log() {
    let path = Store::new(1 << 16);
    let committed = path.put("a", b"1", Durability::Os).unwrap();
    assert_eq!((committed.commit.seq.get(), committed.commit.epoch), (1, EPOCH));
    assert!(path.sees("a"));
    assert_eq!(path.path.visible_seq().get(), 1);
    assert_eq!(path.path.applied_lsn(), path.test.log.lock().lsn());
    assert_eq!(batches_in(&path.test.mem, &path.test.env.listed()).unwrap(), [1]);
    assert_eq!(path.test.env.groups.load(Ordering::Relaxed), 1);
}

#[test]
fn writers_that_wait_go_into_one_group_and_one_write() {
    let path = Store::new(1 << 16);
    path.put("first", b"", Durability::Os).unwrap();
    path.test.faults.start_log();
    let keys = ["a", "b", "c", "d"];
    let answers =
        path.commit_group(keys.map(|key| batch(key, 10, Durability::Os)).into_iter().collect());
    let seqs: Vec<u64> =
        answers.into_iter().map(|answer| answer.unwrap().commit.seq.get()).collect();
    assert_eq!(seqs, [2, 3, 4, 5]);
    let appends = path.test.faults.take_log();
    assert_eq!(appends.iter().filter(|op| op.kind == OpKind::Append).count(), 1);
    assert!(keys.iter().all(|key| path.sees(key)));
    assert_eq!(path.test.env.groups.load(Ordering::Relaxed), 2);
}

/// Writers that spin, that park at once and that wait for syncs, all at the same time.
#[test]
fn every_writer_is_answered_and_each_number_is_given_once() {
    const WRITERS: u64 = 6;
    const BATCHES: u64 = 300;
    for patience in [[0, 0], [5, 0], [0, 2], [64, 32]] {
        let path = Store::with_queue(1 << 16, Queue::with_patience(patience));
        let writers: Vec<JoinHandle<Vec<u64>>> = (0..WRITERS)
            .map(|writer| {
                let path = path.clone();
                thread::spawn(move || (0..BATCHES).map(|n| path.put_either(writer + n)).collect())
            })
            .collect();
        let seqs: Vec<Vec<u64>> =
            writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!(seqs.iter().all(|own| own.is_sorted()), "each writer's in their order");
        let mut all = seqs.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=WRITERS * BATCHES), "{patience:?}");
        assert_eq!(path.path.visible_seq().get(), WRITERS * BATCHES);
    }
}

/// Followers get the failure as the leader does: no member of the failed write gets a success.
#[test]
fn a_failed_append_fails_every_member_of_the_group() {
    let path = Store::new(1 << 16);
    path.put("first", b"", Durability::Sync).unwrap();
    path.test.faults.add_rule(fail_append(0));
    let keys = ["a", "b", "c", "d"];
    let answers =
        path.commit_group(keys.map(|key| batch(key, 10, Durability::Sync)).into_iter().collect());
    for (key, answer) in keys.iter().zip(answers) {
        assert!(answer.is_err(), "{key}");
        assert!(!path.sees(key), "{key}");
    }
    // Their numbers stay unused, and none of them appears after a cut.
    let next = path.put("next", b"", Durability::Sync).unwrap();
    assert_eq!(next.commit.seq.get(), 6);
    let after = path.test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &path.test.env.listed()).unwrap(), [1, 6]);
}

/// A group that does not fit into its segment takes two writes. If the second fails, exactly those
/// are refused whose frames were in it.
#[test]
fn a_failed_append_fails_only_the_members_whose_frames_were_in_it() {
    let path = Store::new(4096);
    path.put("first", b"", Durability::Os).unwrap();
    // After the frames that fill the segment, and after the header of the next one.
    path.test.faults.add_rule(fail_append(2));
    let answers = path.commit_group(vec![
        batch("a", 1200, Durability::Os),
        batch("b", 1200, Durability::Os),
        batch("c", 1200, Durability::Os),
        batch("d", 1200, Durability::Os),
        batch("e", 1200, Durability::Os),
    ]);
    let fine: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(fine, [true, true, true, false, false]);
    assert_eq!(
        ["a", "b", "c", "d", "e"].map(|key| path.sees(key)),
        [true, true, true, false, false]
    );
    path.test.log.sync_all().unwrap();
    let after = path.test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &path.test.env.listed()).unwrap(), [1, 2, 3, 4]);
}

/// A large batch goes to the file in pieces. Whichever of them fails, exactly the members whose frames
/// are whole are fine, and nothing else appears after a cut.
#[test]
fn a_large_batch_counts_whole_or_not_at_all() {
    let mut refusals = 0;
    for (nth, len) in (0..9).flat_map(|nth| [(nth, 1 << 20), (nth, (1 << 20) + 3)]) {
        let path = Store::new(4 << 20);
        path.put("first", b"", Durability::Sync).unwrap();
        path.test.faults.add_rule(fail_append(nth));
        let answers = path.commit_group(vec![
            batch("a", 10, Durability::Os),
            batch("large", len, Durability::Os),
            batch("b", 10, Durability::Os),
            batch("larger", 2 * len, Durability::Os),
        ]);
        let mut expected = vec![1];
        for (key, answer) in ["a", "large", "b", "larger"].iter().zip(answers) {
            assert_eq!(path.sees(key), answer.is_ok(), "{key}, append {nth} fails");
            match answer {
                Ok(done) => expected.push(done.commit.seq.get()),
                Err(_) => refusals += 1,
            }
        }
        // An append that the group did not reach fails now.
        let next = path.put("next", b"", Durability::Sync);
        let next = next.or_else(|_| path.put("next", b"", Durability::Sync)).unwrap();
        expected.push(next.commit.seq.get());
        let after = path.test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
        let found = batches_in(&after, &path.test.env.listed()).unwrap();
        // The large batch fills its group, and either of the later ones may lead the next one.
        expected.sort_unstable();
        assert_eq!(found, expected, "append {nth} fails");
    }
    assert!(refusals > 8, "{refusals}");
}

#[test]
fn a_refused_member_costs_no_sequence_number_and_harms_no_one() {
    let path = Store::new(1 << 16);
    *path.test.env.refused_key.lock() = Some("b".into());
    let keys = ["a", "b", "c"];
    let answers =
        path.commit_group(keys.map(|key| batch(key, 10, Durability::Os)).into_iter().collect());
    let seqs: Vec<Option<u64>> =
        answers.into_iter().map(|answer| answer.ok().map(|done| done.commit.seq.get())).collect();
    assert_eq!(seqs, [Some(1), None, Some(2)]);
    assert_eq!(keys.map(|key| path.sees(key)), [true, false, true]);
}

#[test]
fn one_sync_serves_all_of_a_group_that_asked_for_it() {
    let path = Store::new(1 << 16);
    let before = path.test.env.syncs();
    let answers = path.commit_group(vec![
        batch("a", 10, Durability::Sync),
        batch("b", 10, Durability::Os),
        batch("c", 10, Durability::Sync),
    ]);
    for answer in answers {
        answer.unwrap().synced.unwrap();
    }
    assert_eq!(path.test.env.syncs(), before + 1);
    assert_eq!(path.test.log.durable_seq().get(), 3);
}

#[test]
fn a_failed_sync_is_reported_to_those_who_asked_and_their_batches_are_visible() {
    let path = Store::new(1 << 16);
    path.put("first", b"", Durability::Sync).unwrap();
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".into(), nth: 0 };
    path.test.faults.add_rule(FaultRule::once(at, FaultAction::SyncLost));
    let answers = path.commit_group(vec![
        batch("a", 10, Durability::Sync),
        batch("b", 10, Durability::Os),
        batch("c", 10, Durability::Sync),
    ]);
    let synced: Vec<Option<ErrorKind>> =
        answers.into_iter().map(|answer| answer.unwrap().synced.err().map(|e| e.kind())).collect();
    assert_eq!(synced, [Some(ErrorKind::ReadOnly), None, Some(ErrorKind::ReadOnly)]);
    assert!(["a", "b", "c"].iter().all(|key| path.sees(key)));
    assert_eq!(path.test.env.failures.lock().len(), 1);
}

#[test]
fn a_batch_without_a_log_is_visible_and_in_no_segment() {
    let path = Store::new(1 << 16);
    let unlogged = partition(false);
    let batch = prepare(&unlogged, "a", b"1", Durability::Os);
    path.path.commit(&path.test.log, &*path.test.env, batch).unwrap();
    assert_eq!(unlogged.view().active.first_lsn(), None);
    assert_eq!(unlogged.view().active.entry_count(), 1);
    assert!(path.test.segment_files().is_empty());
}

/// The log does not make a batch without a log durable, so the batch needs no sync of it.
#[test]
fn a_batch_without_a_log_asks_for_no_sync_of_it() {
    let path = Store::new(1 << 16);
    path.put("logged", b"1", Durability::Os).unwrap();
    let before = path.test.env.syncs();
    let batch = prepare(&partition(false), "a", b"1", Durability::Sync);
    path.path.commit(&path.test.log, &*path.test.env, batch).unwrap().synced.unwrap();
    assert_eq!(path.test.env.syncs(), before);
    assert_eq!(path.test.log.durable_seq().get(), 0, "the frame before it is not synced either");
}

/// A later member of the group sees the writes of earlier members, although no memtable has them yet;
/// a refused batch is in no log.
#[test]
fn requirements_see_earlier_members_of_the_group() {
    let path = Store::new(1 << 16);
    path.put("first", b"", Durability::Os).unwrap();
    let answers = path.commit_group(vec![
        batch("a", 10, Durability::Sync).requiring("first", 1),
        batch("b", 10, Durability::Sync).requiring("a", 1),
        batch("c", 10, Durability::Sync).requiring("b", 1),
        Batch {
            requires: Some((Subject::Range((Bound::Unbounded, Bound::Excluded(b"c".into()))), 1)),
            ..batch("d", 10, Durability::Sync)
        },
        Batch {
            requires: Some((Subject::Range((Bound::Excluded(b"c".into()), Bound::Unbounded)), 1)),
            ..batch("e", 10, Durability::Sync)
        },
        batch("first", 10, Durability::Sync).requiring("d", 0),
        batch("f", 10, Durability::Sync).requiring("first", 1),
    ]);
    let outcomes: Vec<Result<u64, ErrorKind>> = answers
        .into_iter()
        .map(|answer| answer.map(|done| done.commit.seq.get()).map_err(|error| error.kind()))
        .collect();
    let conflict = Err(ErrorKind::Conflict);
    // No one wrote "b", so "c" may rely on that; a range sees "a" alone, another one nothing.
    assert_eq!(outcomes, [Ok(2), conflict, Ok(3), conflict, Ok(4), Ok(5), conflict]);
    let keys = ["a", "b", "c", "d", "e", "f"].map(|key| path.sees(key));
    assert_eq!(keys, [true, false, true, false, true, false]);
    let after = path.test.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(batches_in(&after, &path.test.env.listed()).unwrap(), [1, 2, 3, 4, 5]);
}

/// A clear writes to every key and to every range.
#[test]
fn requirements_see_that_an_earlier_member_of_the_group_clears() {
    let path = Store::new(1 << 16);
    path.put("first", b"", Durability::Os).unwrap();
    let answers = path.commit_group(vec![
        batch("a", 10, Durability::Os).requiring("first", 1),
        batch(CLEAR, 0, Durability::Os),
        batch("b", 10, Durability::Os).requiring("first", 1),
        Batch {
            requires: Some((Subject::Range((Bound::Excluded(b"x".into()), Bound::Unbounded)), 1)),
            ..batch("c", 10, Durability::Os)
        },
        batch("d", 10, Durability::Os),
    ]);
    let kinds: Vec<Option<ErrorKind>> =
        answers.into_iter().map(|answer| answer.err().map(|error| error.kind())).collect();
    let conflict = Some(ErrorKind::Conflict);
    assert_eq!(kinds, [None, None, conflict, conflict, None]);
    assert_eq!(path.verdict("first", 2), "conflict");
    assert_eq!(path.verdict("first", 3), "holds");
}

/// The memtables decide if they reach back far enough, and never guess if they do not.
#[test]
fn requirements_are_unproven_where_a_table_may_hold_the_answer() {
    let path = Store::new(1 << 16);
    for key in ["a", "b", "c"] {
        path.put(key, b"", Durability::Os).unwrap();
    }
    let mut version = (*path.partition.view().version).clone();
    version.flushed_through = SeqNo::new(2).unwrap();
    let newest = path.partition.seal().unwrap();
    path.put("d", b"", Durability::Os).unwrap();
    path.partition.install(Arc::new(version), None);
    assert_eq!(
        (path.verdict("c", 2), path.verdict("c", 1), path.verdict("c", 3)),
        ("conflict", "conflict", "holds")
    );
    assert_eq!((path.verdict("z", 2), path.verdict("z", 1)), ("holds", "unproven"));
    // The newest entry of a key in memory is newer than any in a table.
    assert_eq!((path.verdict("a", 1), path.verdict("a", 0)), ("holds", "conflict"));
    let mut version = (*path.partition.view().version).clone();
    version.flushed_through = SeqNo::new(3).unwrap();
    path.partition.install(Arc::new(version), Some(newest));
    assert_eq!(
        (path.verdict("a", 1), path.verdict("a", 2), path.verdict("a", 3)),
        ("unproven", "unproven", "holds")
    );
    assert_eq!((path.verdict("d", 3), path.verdict("d", 4)), ("conflict", "holds"));
}

#[test]
fn sealing_releases_the_memory_of_what_it_seals_and_nothing_of_what_is_dropped() {
    let path = Store::new(1 << 16);
    path.put("a", b"value", Durability::Os).unwrap();
    assert!(path.path.active_bytes() > 0);
    let mut writer = path.test.log.lock();
    assert!(path.path.seal(&mut writer, &path.partition));
    assert_eq!(path.path.active_bytes(), 0);
    assert!(!path.path.seal(&mut writer, &path.partition), "it is empty");
    drop(writer);
    path.put("b", b"value", Durability::Os).unwrap();
    let mut writer = path.test.log.lock();
    path.partition.mark_dropped(0);
    assert!(!path.path.seal(&mut writer, &path.partition));
    assert!(path.path.active_bytes() > 0, "who drops it releases it");
}

#[test]
fn a_number_that_is_no_batch_is_seen_from_its_publishing_on() {
    let path = Store::new(1 << 16);
    path.put("a", b"", Durability::Os).unwrap();
    let mut writer = path.test.log.lock();
    assert_eq!(writer.take_seqs(1).get(), 2);
    assert_eq!(path.path.visible_seq().get(), 1);
    path.path.publish_unlogged(&writer);
    assert_eq!(path.path.visible_seq().get(), 2);
}

#[test]
fn batches_of_all_lengths_are_in_the_log_alone_and_in_groups() {
    let path = Store::new(1 << 22);
    let mut expected = 0;
    for len in [0, 2000, 2040, 2048, 2060, 8000, 9000, 65_500, 65_536, 1 << 20] {
        path.put("alone", &vec![7; len], Durability::Os).unwrap();
        let group = vec![
            batch("a", 10, Durability::Os),
            batch("b", len, Durability::Os),
            batch("c", 3000, Durability::Os),
        ];
        path.commit_group(group).into_iter().for_each(|answer| assert!(answer.is_ok()));
        expected += 4;
    }
    let logged = batches_in(&path.test.mem, &path.test.env.listed()).unwrap();
    assert!(logged.into_iter().eq(1..=expected));
}
