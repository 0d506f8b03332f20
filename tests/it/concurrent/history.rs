//! The facts about each key while threads write: the versions that were begun and acknowledged, and
//! afterwards the sequence number of each. Each key has one writer, which gives it the versions 1,
//! 2, 3, ...; every fifth version is a deletion.

use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::SeqNo;

const DELETE_EVERY: u64 = 5;
const FILL_BYTES_MAX: u64 = 200;
/// Values of every fourth key are longer by this: they are large values in a partition that has a
/// value store.
const LONG_BYTES: u64 = 300;

/// The partitions of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the partitions `a` and `b`, always written together.
    Both,
    /// In `a` alone.
    A,
    /// In `bare`, which has no log.
    Bare,
}

/// The kind and the bytes of the n-th key; keys of one kind share their first byte.
pub fn key(n: usize) -> (Place, Vec<u8>) {
    let (place, letter) = match n % 4 {
        0 | 1 => (Place::Both, 'p'),
        2 => (Place::A, 's'),
        _ => (Place::Bare, 'u'),
    };
    (place, format!("{letter}{n:05}").into_bytes())
}

/// The number of the key with these bytes.
pub fn number(key: &[u8]) -> usize {
    std::str::from_utf8(&key[1..]).unwrap().parse().unwrap()
}

/// The value of version `version` of the n-th key; `None` for a deletion.
pub fn value(n: usize, version: u64) -> Option<Vec<u8>> {
    if version.is_multiple_of(DELETE_EVERY) {
        return None;
    }
    let mut value = version.to_be_bytes().to_vec();
    value.extend((n as u64).to_be_bytes());
    let long = if n.is_multiple_of(4) { LONG_BYTES } else { 0 };
    value.resize(16 + (version * 37 % FILL_BYTES_MAX + long) as usize, n as u8);
    Some(value)
}

/// The version that wrote `bytes`, which must be complete and of this key.
pub fn version_of(n: usize, bytes: &[u8]) -> u64 {
    let version = u64::from_be_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(value(n, version).as_deref(), Some(bytes), "version {version} of key {n}");
    version
}

#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    acknowledged: AtomicU64,
    synced: AtomicU64,
}

/// The progress of every key. Its writer writes it, all threads read it.
pub struct Board(Vec<Progress>);

impl Board {
    pub fn new(keys: usize) -> Board {
        Board((0..keys).map(|_| Progress::default()).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn begin(&self, n: usize) -> u64 {
        self.0[n].begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Takes back a write that was refused.
    pub fn refused(&self, n: usize) {
        self.0[n].begun.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn acknowledge(&self, n: usize, version: u64, synced: bool) {
        self.0[n].acknowledged.store(version, Ordering::SeqCst);
        if synced {
            self.0[n].synced.store(version, Ordering::SeqCst);
        }
    }

    /// No read that begins now may return an older version.
    pub fn acknowledged(&self, n: usize) -> u64 {
        self.0[n].acknowledged.load(Ordering::SeqCst)
    }

    /// No power cut from now on may lose this version.
    pub fn synced(&self, n: usize) -> u64 {
        self.0[n].synced.load(Ordering::SeqCst)
    }

    /// No read that has ended may have returned a newer version.
    pub fn begun(&self, n: usize) -> u64 {
        self.0[n].begun.load(Ordering::SeqCst)
    }

    pub fn total_acknowledged(&self) -> u64 {
        (0..self.len()).map(|n| self.acknowledged(n)).sum()
    }

    /// Checks the result of a read that has ended, given the version that was acknowledged before
    /// it. Returns the oldest version that it can have read.
    pub fn check(&self, n: usize, seen: Option<u64>, floor: u64) -> u64 {
        let newest = self.begun(n);
        let oldest = seen.unwrap_or_else(|| floor.next_multiple_of(DELETE_EVERY));
        assert!(
            (floor..=newest).contains(&oldest),
            "key {n}: saw {seen:?} when versions {floor} to {newest} were possible"
        );
        oldest
    }
}

/// Every write that was acknowledged, by key, in order.
pub struct History(Vec<Vec<(u64, SeqNo)>>);

impl History {
    pub fn new(keys: usize, writes: impl IntoIterator<Item = (usize, u64, SeqNo)>) -> History {
        let mut by_key = vec![Vec::new(); keys];
        for (n, version, seq) in writes {
            by_key[n].push((version, seq));
        }
        History(by_key)
    }

    /// The version of a key that a reader at `seq` must read.
    pub fn at(&self, n: usize, seq: SeqNo) -> Option<u64> {
        let writes = &self.0[n];
        let older = writes.partition_point(|(_, written)| *written <= seq);
        let (version, _) = writes[..older].last()?;
        (!version.is_multiple_of(DELETE_EVERY)).then_some(*version)
    }

    /// Checks that the values read of many keys are the state after a prefix of all writes.
    pub fn check_cut(&self, seen: impl Iterator<Item = (usize, Option<u64>)> + Clone) {
        let mut candidates: Vec<SeqNo> = self.0.iter().flatten().map(|(_, seq)| *seq).collect();
        candidates.push(SeqNo::ZERO);
        // The newest value that was read was written by then. A deletion after it may be included
        // as well.
        let newest = seen
            .clone()
            .map(|(n, version): (usize, Option<u64>)| {
                let find = |version| {
                    self.0[n].iter().find(|(v, _)| *v == version).expect("it was written")
                };
                version.map_or(SeqNo::ZERO, |version| find(version).1)
            })
            .max()
            .unwrap_or_default();
        candidates.retain(|seq| *seq >= newest);
        candidates.sort_unstable();
        // At later points some key soon has a newer value.
        assert!(
            candidates
                .iter()
                .take(2000)
                .any(|seq: &SeqNo| seen.clone().all(|(n, version)| self.at(n, *seq) == version)),
            "no first part of the writes gives this"
        );
    }
}
