//! Interleaved transactions on one thread against a model that keeps every operation: each read
//! returns what the snapshot has, a locked one the newest value, and a commit is refused exactly if another
//! write changed what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::MemFs;
use siltstone::operators::AppendOperator;
use siltstone::{
    Db, Durability, ErrorKind, LargeValueOptions, Partition, PartitionOptions, Slice, Transaction,
};
use testkit::Rng;

use super::{is_conflict, open};

type Content = BTreeMap<String, String>;

/// Every operation in order: sequence number, partition, key, value.
#[derive(Default)]
struct Model(Vec<(u64, usize, String, Option<String>)>);

impl Model {
    fn at(&self, seq: u64, partition: usize) -> Content {
        let mut content = Content::new();
        for (_, _, key, value) in self.0.iter().filter(|(at, p, ..)| *at <= seq && *p == partition)
        {
            match value {
                Some(value) => content.insert(key.clone(), value.clone()),
                None => content.remove(key),
            };
        }
        content
    }
}

/// The own state of a key.
#[derive(Clone)]
enum OwnValue {
    Set(Option<String>),
    /// An operand that is appended to the stored value.
    Merge(String),
}

impl OwnValue {
    /// The value of a key with the stored one `base`.
    fn over(&self, base: Option<String>) -> Option<String> {
        match self {
            OwnValue::Set(value) => value.clone(),
            OwnValue::Merge(operand) => Some(base.unwrap_or_default() + operand),
        }
    }
}

/// The own writes to both partitions.
type Own = [BTreeMap<String, OwnValue>; 2];

/// The reads of a transaction in a partition: from one key to another, both included.
struct Read {
    partition: usize,
    first: String,
    last: String,
}

struct Open {
    transaction: Transaction,
    at: u64,
    own: Own,
    reads: Vec<Read>,
    locks: BTreeSet<(usize, String)>,
    /// The locked keys that were read, and the number at that moment.
    locked_reads: BTreeMap<(usize, String), u64>,
    savepoints: Vec<Own>,
}

impl Open {
    /// The partition as the transaction must see it.
    fn expected(&self, model: &Model, partition: usize) -> Content {
        self.expected_at(self.at, model, partition)
    }

    fn expected_at(&self, at: u64, model: &Model, partition: usize) -> Content {
        let mut content = model.at(at, partition);
        for (key, value) in &self.own[partition] {
            match value.over(content.remove(key)) {
                Some(value) => content.insert(key.clone(), value),
                None => content.remove(key),
            };
        }
        content
    }

    /// Returns `true` if a get of the key reads what is stored.
    fn reads_stored(&self, partition: usize, key: &str) -> bool {
        !matches!(self.own[partition].get(key), Some(OwnValue::Set(_)))
    }

    fn conflicts(&self, model: &Model) -> bool {
        model.0.iter().any(|(seq, partition, key, _)| {
            let locked = self.locked_reads.get(&(*partition, key.clone()));
            let is_read = self.reads.iter().any(|read: &Read| {
                read.partition == *partition && read.first <= *key && *key <= read.last
            });
            *seq > self.at && is_read || locked.is_some_and(|at| seq > at)
        })
    }
}

fn key(rng: &mut Rng) -> String {
    format!("k{:02}", rng.below(40))
}

fn text((key, value): (Slice, Slice)) -> (String, String) {
    let text = |slice: Slice| String::from_utf8(slice.to_vec()).unwrap();
    (text(key), text(value))
}

struct Harness {
    rng: Rng,
    db: Db,
    partitions: [Partition; 2],
    model: Model,
    open: Vec<Open>,
    written: u64,
    committed: u64,
    refused: u64,
}

impl Harness {
    fn new(mut rng: Rng) -> Harness {
        let db = open(&MemFs::new());
        let large = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(4 << 10);
        let options = PartitionOptions::new().merge_operator(Arc::new(AppendOperator::default()));
        let options = options.large_values(large);
        let partitions = ["p", "q"].map(|name| db.partition_with(name, options.clone()).unwrap());
        let rng = rng.fork();
        Harness {
            rng,
            db,
            partitions,
            model: Model::default(),
            open: Vec::new(),
            written: 0,
            committed: 0,
            refused: 0,
        }
    }

    fn value(&mut self) -> Option<String> {
        self.written += 1;
        // Some are long, so that memtables are flushed and there are many blocks.
        let len = if self.rng.chance(1, 4) { 400 } else { 0 };
        let value = format!("{}{}", self.written, "-".repeat(len));
        self.rng.chance(3, 4).then_some(value)
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..3 if self.open.len() < 5 => {
                let transaction = self.db.transaction();
                let at = transaction.snapshot().seq().get();
                self.open.push(Open {
                    transaction,
                    at,
                    own: Own::default(),
                    reads: Vec::new(),
                    locks: BTreeSet::new(),
                    locked_reads: BTreeMap::new(),
                    savepoints: Vec::new(),
                });
            }
            0..5 => self.write_apart(),
            5..8 => self.get(),
            8..11 => self.scan(),
            11..15 => self.write(),
            15..18 => self.commit(),
            18 => self.partitions[self.rng.index(2)].flush().unwrap(),
            19 => self.partitions[self.rng.index(2)].compact(..).unwrap(),
            20..22 => self.lock(),
            22 => self.set_savepoint(),
            _ => self.roll_back(),
        }
    }

    /// The ends of a range that is deleted, and the keys in it.
    fn erased(&mut self) -> (String, String, Vec<String>) {
        let first = self.rng.below(40);
        let last = first + self.rng.range(1..8);
        let keys = (first..last).map(|n| format!("k{n:02}")).collect();
        (format!("k{first:02}"), format!("k{last:02}"), keys)
    }

    /// A write outside of every transaction.
    fn write_apart(&mut self) {
        let partition = self.rng.index(2);
        if self.rng.chance(1, 5) {
            let (first, last, keys) = self.erased();
            let commit = self.partitions[partition].delete_range(first..last).unwrap();
            let seq = commit.seq.get();
            self.model.0.extend(keys.into_iter().map(|key| (seq, partition, key, None)));
            return;
        }
        let key = key(&mut self.rng);
        let value = self.value();
        let handle = &self.partitions[partition];
        let is_merge = self.rng.chance(1, 3);
        let (commit, value) = match value {
            Some(operand) if is_merge => {
                let old = self.model.at(u64::MAX, partition).remove(&key);
                let commit = handle.merge(&key, &operand);
                (commit, OwnValue::Merge(operand).over(old))
            }
            Some(value) => (handle.put(&key, &value), Some(value)),
            None => (handle.delete(&key), None),
        };
        self.model.0.push((commit.unwrap().seq.get(), partition, key, value));
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.rng.index(self.open.len()))
    }

    fn get(&mut self) {
        let Some(at) = self.pick() else { return };
        let partition = self.rng.index(2);
        let [key, other] = [key(&mut self.rng), key(&mut self.rng)];
        let open = &mut self.open[at];
        let handle = &self.partitions[partition];
        let keys = if self.rng.chance(1, 2) { vec![key] } else { vec![key, other] };
        let found = match &keys[..] {
            [key] => vec![open.transaction.get(handle, key).unwrap()],
            keys => open.transaction.multi_get(handle, keys).unwrap(),
        };
        let content = open.expected(&self.model, partition);
        let newest = open.expected_at(u64::MAX, &self.model, partition);
        for (key, found) in keys.into_iter().zip(found) {
            let is_locked = open.locked_reads.contains_key(&(partition, key.clone()));
            let content = if is_locked { &newest } else { &content };
            assert_eq!(found.as_deref(), content.get(&key).map(String::as_bytes), "{key}");
            if open.reads_stored(partition, &key) && !is_locked {
                open.reads.push(Read { partition, first: key.clone(), last: key });
            }
        }
    }

    /// Locks a key, and reads it if no other transaction has it.
    fn lock(&mut self) {
        let Some(at) = self.pick() else { return };
        let partition = self.rng.index(2);
        let key = key(&mut self.rng);
        let locked = (partition, key.clone());
        let others = self.open.iter().enumerate().filter(|(other, _)| *other != at);
        let is_busy = others.into_iter().any(|(_, other)| other.locks.contains(&locked));
        let now = self.db.visible_seq().get();
        let open = &mut self.open[at];
        open.transaction.set_lock_timeout(Duration::ZERO);
        let found = open.transaction.get_for_update(&self.partitions[partition], &key);
        if is_busy {
            assert_eq!(found.unwrap_err().kind(), ErrorKind::LockTimeout);
            return;
        }
        let content = open.expected_at(u64::MAX, &self.model, partition);
        assert_eq!(found.unwrap().as_deref(), content.get(&key).map(String::as_bytes), "{key}");
        if open.reads_stored(partition, &key) {
            open.locked_reads.entry(locked.clone()).or_insert(now);
        }
        open.locks.insert(locked);
    }

    fn set_savepoint(&mut self) {
        let Some(at) = self.pick() else { return };
        let open = &mut self.open[at];
        open.transaction.set_savepoint();
        open.savepoints.push(open.own.clone());
    }

    fn roll_back(&mut self) {
        let Some(at) = self.pick() else { return };
        let open = &mut self.open[at];
        let is_popped = self.rng.chance(1, 4);
        let answer = if is_popped {
            open.transaction.pop_savepoint()
        } else {
            open.transaction.rollback_to_savepoint()
        };
        let Some(own) = open.savepoints.pop() else {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::InvalidArgument);
            return;
        };
        answer.unwrap();
        if !is_popped {
            open.own = own;
        }
    }

    /// Iterates over a part of a range, from both ends.
    fn scan(&mut self) {
        let Some(at) = self.pick() else { return };
        let partition = self.rng.index(2);
        let mut ends = [key(&mut self.rng), key(&mut self.rng)];
        ends.sort();
        let [lower, upper] = ends;
        let open = &mut self.open[at];
        let handle = &self.partitions[partition];
        let mut range = open.transaction.range(handle, lower.as_str()..=upper.as_str());
        let mut expected: Vec<(String, String)> = open
            .expected(&self.model, partition)
            .range(lower.clone()..=upper.clone())
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let mut front = None;
        let mut back = None;
        for _ in 0..self.rng.below(12) {
            let from_front = self.rng.chance(1, 2);
            let found = if from_front { range.next() } else { range.next_back() };
            let found = found.map(|entry| text(entry.unwrap()));
            let known = if from_front && !expected.is_empty() {
                Some(expected.remove(0))
            } else {
                expected.pop()
            };
            assert_eq!(found, known);
            let Some((key, _)) = found else {
                front = Some(upper.clone());
                break;
            };
            *(if from_front { &mut front } else { &mut back }) = Some(key);
        }
        let first = lower.clone();
        open.reads.extend(front.map(|last| Read { partition, first, last }));
        open.reads.extend(back.map(|first| Read { partition, first, last: upper }));
    }

    fn write(&mut self) {
        let Some(at) = self.pick() else { return };
        let partition = self.rng.index(2);
        if self.rng.chance(1, 4) {
            let (first, last, keys) = self.erased();
            let open = &mut self.open[at];
            open.transaction.delete_range(&self.partitions[partition], first..last);
            open.own[partition].extend(keys.into_iter().map(|key| (key, OwnValue::Set(None))));
            return;
        }
        let key = key(&mut self.rng);
        let value = self.value();
        let is_merge = self.rng.chance(1, 3);
        let open = &mut self.open[at];
        let handle = &self.partitions[partition];
        let own = match value {
            Some(operand) if is_merge => {
                open.transaction.merge(handle, &key, &operand);
                match open.own[partition].remove(&key) {
                    None => OwnValue::Merge(operand),
                    Some(OwnValue::Merge(older)) => OwnValue::Merge(older + &operand),
                    Some(set) => OwnValue::Set(OwnValue::Merge(operand).over(set.over(None))),
                }
            }
            // A short one is held in memory, a long one lies in a chunk file.
            Some(value) if self.rng.chance(1, 3) => {
                let mut writer = handle.put_stream(&key, None).unwrap();
                writer.write_all(value.as_bytes()).unwrap();
                open.transaction.put_blob(writer.finish().unwrap());
                OwnValue::Set(Some(value))
            }
            Some(value) => {
                open.transaction.put(handle, &key, &value);
                OwnValue::Set(Some(value))
            }
            None => {
                open.transaction.delete(handle, &key);
                OwnValue::Set(None)
            }
        };
        open.own[partition].insert(key, own);
    }

    fn commit(&mut self) {
        let Some(at) = self.pick() else { return };
        let open = self.open.swap_remove(at);
        let writes = open.own.iter().map(BTreeMap::len).sum::<usize>();
        let is_validated = writes > 0 || !open.locked_reads.is_empty();
        let conflicts = is_validated && open.conflicts(&self.model);
        let Open { transaction, own, at: began, .. } = open;
        let answer = transaction.commit(Durability::Os);
        assert_eq!(is_conflict(&answer), conflicts, "began at {began}: {answer:?}");
        if conflicts {
            self.refused += 1;
            return;
        }
        let seq = answer.unwrap().seq.get();
        self.committed += u64::from(writes > 0);
        for (partition, writes) in own.into_iter().enumerate() {
            let mut before = self.model.at(u64::MAX, partition);
            let writes = writes.into_iter().map(|(key, own)| {
                let value = own.over(before.remove(&key));
                (seq, partition, key, value)
            });
            self.model.0.extend(writes);
        }
    }

    fn check_content(&self) {
        for (number, partition) in self.partitions.iter().enumerate() {
            let found: Content = partition.iter().map(|entry| text(entry.unwrap())).collect();
            assert_eq!(found, self.model.at(u64::MAX, number));
        }
        // Each operation of the model has a number of its own where it matters.
        let seqs: BTreeSet<u64> = self.model.0.iter().map(|(seq, ..)| *seq).collect();
        assert!(seqs.len() as u64 > self.committed);
    }
}

#[test]
fn a_commit_is_refused_exactly_if_its_reads_have_changed() {
    let mut rng = Rng::from_env_or(5);
    let mut committed = 0;
    let mut refused = 0;
    for _ in 0..25 {
        let mut harness = Harness::new(rng.fork());
        for _ in 0..800 {
            harness.step();
        }
        harness.check_content();
        committed += harness.committed;
        refused += harness.refused;
    }
    println!("{committed} transactions committed, {refused} refused");
    assert!(committed > 300 && refused > 300, "{committed} and {refused}");
}
