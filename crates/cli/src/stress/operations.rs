//! The operations of `stress` by seed and number of a commit, and the state that they lead to.
//!
//! Invariant: operations have the same effect twice, because a commit that fails is tried again, and it is unknown whether
//! it had an effect. So the merges set bits, and append nothing.

use std::collections::BTreeMap;

use siltstone::{Durability, Partition};
use testkit::Rng;
use testkit::rng::mix64;

use crate::bytes::Bytes;
use crate::output::Failure;

/// The partitions: without and with metadata, with large values, with a merge operator, and with a rule of expiry.
pub(super) const PARTITIONS: [&str; 5] = ["plain", "metahive", "large", "merged", "expiring"];
/// Values from this length on go to chunk files.
pub(super) const LARGE_BYTES: usize = 32 << 10;
/// The times of entries that expire, in seconds since 1970: one that is over, and one that is far away.
const TIMES: [u64; 2] = [1, 1 << 40];

/// An operation; the number is that of a partition.
pub(super) enum Operation {
    Put(usize, Vec<u8>, Vec<u8>),
    Merge(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    DeleteRange(usize, Vec<u8>, Vec<u8>),
    Clear(usize),
}

/// The work of a commit.
pub(super) struct Work {
    pub(super) operations: Vec<Operation>,
    /// By a transaction, and not by a batch.
    pub(super) is_transaction: bool,
    pub(super) durability: Durability,
}

/// The work of the commit with the number `commit`.
pub(super) fn work(seed: u64, commit: u64, keys: u64) -> Work {
    let mut rng = Rng::new(mix64(seed) ^ commit);
    let count = rng.range(1..9);
    let operations = (0..count).map(|_| operation(&mut rng, keys)).collect();
    let durability = if rng.chance(1, 50) { Durability::Sync } else { Durability::Os };
    Work { operations, is_transaction: rng.chance(1, 4), durability }
}

fn operation(rng: &mut Rng, keys: u64) -> Operation {
    let partition = rng.index(PARTITIONS.len());
    let name = PARTITIONS[partition];
    let key = rng.below(keys);
    match rng.below(2000) {
        0 => Operation::Clear(partition),
        1..20 => {
            let end = key + rng.range(1..100);
            Operation::DeleteRange(partition, key_bytes(key), key_bytes(end))
        }
        20..400 => Operation::Delete(partition, key_bytes(key)),
        400..1600 if name == "merged" => {
            let len = rng.index(300);
            Operation::Merge(partition, key_bytes(key), rng.bytes(len))
        }
        _ => {
            let is_large = name == "large" && rng.chance(1, 50);
            let len = if is_large { LARGE_BYTES + rng.index(LARGE_BYTES) } else { rng.index(300) };
            let mut value = rng.bytes(len);
            if name == "expiring" {
                value.splice(..0, TIMES[rng.index(2)].to_be_bytes());
            }
            Operation::Put(partition, key_bytes(key), value)
        }
    }
}

fn key_bytes(key: u64) -> Vec<u8> {
    format!("key {key:08}").into_bytes()
}

/// The state that the database must have.
pub(super) struct ExpectedState {
    pub(super) partitions: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    pub(super) commit: u64,
}

impl ExpectedState {
    pub(super) fn new() -> ExpectedState {
        ExpectedState { partitions: vec![BTreeMap::new(); PARTITIONS.len()], commit: 0 }
    }

    pub(super) fn advance(&mut self, seed: u64, keys: u64, to: u64) {
        while self.commit < to {
            self.commit += 1;
            work(seed, self.commit, keys).operations.into_iter().for_each(|it| self.apply(it));
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            // No read sees it, nor the value before it.
            Operation::Put(at, key, value)
                if PARTITIONS[at] == "expiring" && value.starts_with(&TIMES[0].to_be_bytes()) =>
            {
                self.partitions[at].remove(&key);
            }
            Operation::Put(at, key, value) => _ = self.partitions[at].insert(key, value),
            Operation::Merge(at, key, operand) => {
                let value = self.partitions[at].entry(key).or_default();
                value.resize(value.len().max(operand.len()), 0);
                value.iter_mut().zip(operand).for_each(|(byte, bits)| *byte |= bits);
            }
            Operation::Delete(at, key) => _ = self.partitions[at].remove(&key),
            Operation::DeleteRange(at, from, to) => {
                self.partitions[at].retain(|key, _| *key < from || *key >= to);
            }
            Operation::Clear(at) => self.partitions[at].clear(),
        }
    }

    /// The first difference of a partition, as a sentence.
    pub(super) fn difference(
        &self,
        at: usize,
        partition: &Partition,
    ) -> Result<Option<String>, Failure> {
        let mut expected = self.partitions[at].iter();
        let mut stored = partition.iter();
        loop {
            let found = stored.next().transpose()?;
            let (key, what) = match (expected.next(), &found) {
                (None, None) => return Ok(None),
                (Some((key, value)), Some((stored, content))) if key[..] == stored[..] => {
                    if value[..] == content[..] {
                        continue;
                    }
                    (&key[..], "has another value")
                }
                (Some((key, _)), Some((stored, _))) if key[..] > stored[..] => {
                    (&stored[..], "was deleted and is there")
                }
                (Some((key, _)), _) => (&key[..], "is lost"),
                (None, Some((stored, _))) => (&stored[..], "was deleted and is there"),
            };
            let key = Bytes::Text.text(key);
            return Ok(Some(format!("partition {:?}, key {key:?}: {what}", partition.name())));
        }
    }
}
