//! [`History`]: the content of each partition after each commit, as one number; [`Counted`]: a store that counts.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remote::{Store, StoreResult};
use siltstone::Readable;

use crate::store_layer::{Layered, StoreLayer};

/// The key with the number of the last commit to its partition.
pub const LAST: &[u8] = b"last commit";

/// The content of a partition: what a scan must give.
#[derive(Clone, Default)]
pub struct Content {
    entries: BTreeMap<Vec<u8>, u64>,
    sum: u64,
}

fn hash_of(key: &[u8], value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, value).hash(&mut hasher);
    hasher.finish()
}

impl Content {
    pub fn sum(&self) -> u64 {
        self.sum
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        let hash = hash_of(key, value);
        let before = self.entries.insert(key.to_vec(), hash).unwrap_or(0);
        self.sum = self.sum.wrapping_add(hash).wrapping_sub(before);
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.sum = self.sum.wrapping_sub(self.entries.remove(key).unwrap_or(0));
    }

    pub fn delete_range(&mut self, range: Range<&[u8]>) {
        let range = range.start.to_vec()..range.end.to_vec();
        let keys: Vec<_> = self.entries.range(range).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.delete(key));
    }
}

/// The outcome of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of the last commit; 0 if there is none.
    pub number: u64,
    pub sum: u64,
}

/// Reads a partition as a whole, through its values.
pub fn scan(partition: &impl Readable) -> siltstone::Result<Seen> {
    let mut seen = Seen { number: 0, sum: 0 };
    for entry in partition.iter() {
        let (key, value) = entry?;
        seen.sum = seen.sum.wrapping_add(hash_of(&key, &value));
        if &key[..] == LAST {
            seen.number = u64::from_be_bytes(value[..].try_into().unwrap());
        }
    }
    Ok(seen)
}

/// The time of a synced commit by the clock of the machine.
struct Moment {
    number: u64,
    time: Range<Duration>,
}

/// All that has ever been in the partitions. Commits, drops and creations have numbers, which grow.
#[derive(Default)]
pub struct History {
    next: u64,
    /// The sum after each number; `None` while the partition does not exist.
    partitions: BTreeMap<String, BTreeMap<u64, Option<u64>>>,
    commits: Vec<u64>,
    /// The number through which each partition is acknowledged.
    acknowledged: BTreeMap<String, u64>,
    moments: Vec<Moment>,
}

impl History {
    pub fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A commit is about to be made: a reader may see it from now on.
    pub fn begin(&mut self, number: u64, contents: &[(&str, &Content)]) {
        for (name, content) in contents {
            self.note(name, number, Some(content.sum));
        }
        self.commits.push(number);
    }

    /// The existence of a partition changes.
    pub fn note(&mut self, name: &str, number: u64, sum: Option<u64>) {
        self.partitions.entry(name.to_owned()).or_default().insert(number, sum);
    }

    /// All through `number` is stored.
    pub fn acknowledge(&mut self, number: u64, time: Range<Duration>) {
        for (name, states) in &self.partitions {
            let Some((last, _)) = states.range(..=number).next_back() else { continue };
            self.acknowledged.insert(name.clone(), *last);
        }
        self.moments.push(Moment { number, time });
    }

    pub fn acknowledged(&self, name: &str) -> u64 {
        self.acknowledged.get(name).copied().unwrap_or(0)
    }

    /// Checks that `seen` is the content of a partition at some moment, not before `least`. `None` is a partition
    /// that does not exist.
    pub fn check(&self, name: &str, seen: Option<Seen>, least: u64, whence: &str) {
        let states = &self.partitions[name];
        let has_been = match seen {
            Some(Seen { number: 0, sum }) => {
                sum == 0 && states.range(least..).any(|(_, state)| *state == Some(0))
            }
            Some(Seen { number, sum }) => number >= least && states[&number] == Some(sum),
            None => states.range(least..).any(|(_, state)| state.is_none()),
        };
        let near: Vec<_> = states.range(least.saturating_sub(20)..).take(40).collect();
        assert!(has_been, "{whence}: {name} is {seen:?}, acknowledged is {least}: {near:?}");
    }

    /// Checks that `seen` is the whole database at one moment, and returns its last commit.
    pub fn check_cut(&self, seen: &BTreeMap<String, Seen>, whence: &str) -> u64 {
        let last = seen.values().map(|seen| seen.number).max().unwrap_or(0);
        let next = self.commits.partition_point(|number| *number <= last);
        let next = self.commits.get(next).copied().unwrap_or(u64::MAX);
        for (name, states) in &self.partitions {
            let at_last = states.range(..=last).next_back().and_then(|(_, state)| *state);
            // Creations and drops after it, which no commit shows.
            let later = states.range(last + 1..next).map(|(_, state)| *state);
            let sum = seen.get(name).map(|seen| seen.sum);
            let mut allowed = std::iter::once(at_last).chain(later);
            assert!(
                allowed.any(|state| state == sum),
                "{whence}: {name} is {sum:?} as of commit {last}, and was {at_last:?}"
            );
        }
        last
    }

    /// Checks that a state as of `time` has the commits that it must have.
    pub fn check_time(&self, last: u64, time: Duration) {
        // Stores keep the times of objects in whole seconds.
        let second = Duration::from_secs(1);
        let ended = self.moments.iter().rfind(|it| it.time.end < time);
        let ended = ended.map_or(0, |it| it.number);
        assert!(last >= ended, "{time:?}: commit {ended} had ended, and {last} is the last one");
        let begun = self.moments.iter().find(|it| it.time.start > time + second);
        if let Some(Moment { number, .. }) = begun {
            assert!(last < *number, "{time:?}: commit {number} had not begun, and {last} is there");
        }
    }
}

/// A store, and what was put and deleted by it.
pub struct Counted {
    store: Arc<dyn Store>,
    pub puts: AtomicU64,
    pub bytes: AtomicU64,
    pub deletions: AtomicU64,
}

impl Counted {
    pub fn new(store: Arc<dyn Store>) -> Arc<Layered<Counted>> {
        let [puts, bytes, deletions] = Default::default();
        Layered::new(Counted { store, puts, bytes, deletions })
    }

    fn count_put(&self, bytes: &[u8]) {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

impl StoreLayer for Counted {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.count_put(bytes);
        self.store.put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.count_put(bytes);
        self.store.put(name, bytes)
    }

    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        let mut counted = parts.inspect(|part| part.iter().for_each(|part| self.count_put(part)));
        self.store.put_parts(name, &mut counted)
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.deletions.fetch_add(1, Ordering::Relaxed);
        self.store.delete(name)
    }
}
