//! [`Commits`]: the fate of each commit of a simulation, by its number; [`try_commits`]: those that a reader sees.

use std::collections::{BTreeMap, BTreeSet};

use siltstone::{ErrorKind, Readable, Result};

#[derive(Default)]
pub struct Commits {
    pub next: u64,
    pub acknowledged: BTreeSet<u64>,
    /// Acknowledged by the local disk alone.
    pub local: BTreeSet<u64>,
    pub refused: BTreeSet<u64>,
    /// Its call failed: it may be there or not.
    pub unknown: BTreeSet<u64>,
}

impl Commits {
    pub fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Notes the outcome of a synced commit of a primary that may be fenced.
    pub fn note(&mut self, number: u64, committed: Result<()>, is_local: bool) {
        match committed {
            Ok(()) if is_local => self.local.insert(number),
            Ok(()) => self.acknowledged.insert(number),
            Err(error) if error.kind() == ErrorKind::Fenced => self.refused.insert(number),
            Err(_) => self.unknown.insert(number),
        };
    }

    /// All that the local disk has acknowledged is stored, or must come back with it.
    pub fn store_local(&mut self) {
        self.acknowledged.append(&mut self.local);
    }

    /// A notice has said that the bucket has the commit.
    pub fn note_stored(&mut self, number: u64) {
        assert!(!self.refused.contains(&number), "a notice of {number}, which was refused");
        self.local.remove(&number);
        self.unknown.remove(&number);
        self.acknowledged.insert(number);
    }

    /// Checks what a reader sees. With `is_all` it must see every acknowledged commit.
    pub fn check(&mut self, seen: &BTreeSet<u64>, is_all: bool, whence: &str) {
        let wrong: Vec<_> = seen.intersection(&self.refused).collect();
        assert!(wrong.is_empty(), "{whence}: refused commits appear: {wrong:?}");
        let last = if is_all { u64::MAX } else { seen.last().copied().unwrap_or(0) };
        let lost: Vec<_> =
            self.acknowledged.iter().filter(|n| **n <= last && !seen.contains(n)).collect();
        assert!(lost.is_empty(), "{whence}: acknowledged commits are lost: {lost:?}");
        // A takeover may lose them, and goes on with later numbers.
        let newest = if is_all { 0 } else { last };
        let holes: Vec<_> =
            self.local.iter().filter(|n| **n <= newest && !seen.contains(n)).collect();
        assert!(holes.is_empty(), "{whence}: no prefix of the history, without {holes:?}");
        // What was seen is in the journal, and no takeover removes it.
        for set in [&mut self.unknown, &mut self.local] {
            let known: Vec<u64> = set.intersection(seen).copied().collect();
            for number in known {
                set.remove(&number);
                self.acknowledged.insert(number);
            }
        }
    }

    /// After a takeover, or an open of the own folder: what is not there never appears.
    pub fn settle(&mut self, seen: &BTreeSet<u64>, whence: &str) {
        self.check(seen, true, whence);
        self.refused.append(&mut self.unknown);
        self.refused.append(&mut self.local);
    }
}

/// The first byte of a key that marks a commit as the last one. No number is so large.
pub const MARK: u8 = 0xff;

pub fn mark_of(number: u64) -> Vec<u8> {
    [&[MARK][..], &number.to_be_bytes()].concat()
}

/// The commits that a reader of one partition sees, with their values: a time in seconds. The deletion of a range came
/// with each of them.
pub fn try_commits(reader: &impl Readable) -> Result<BTreeMap<u64, u64>> {
    let mut entries = reader.iter().collect::<Result<Vec<_>>>()?;
    let marks = entries.split_off(entries.partition_point(|(key, _)| key[0] != MARK));
    let commits: BTreeMap<u64, u64> =
        entries.iter().map(|(key, value)| (number_of(key), number_of(value))).collect();
    let last = commits.keys().last().map(|last| mark_of(*last));
    assert!(marks.iter().map(|(mark, _)| &mark[..]).eq(last.as_deref()), "{last:?}, {marks:?}");
    Ok(commits)
}

/// Eight bytes of a key or a value.
pub fn number_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("it is a number"))
}
