//! Workloads: the next key, the operation on it, and the bytes to write.
//!
//! The command's `bench`, the criterion benches and the comparison with other engines draw from
//! here, so that all of them do the same work. A [`Stream`] belongs to one thread and is
//! determined by its seed; only the count of inserted records is shared.
//!
//! Keys. Record `n` is the `n`-th that was inserted. Its key is 8 big-endian bytes and padding:
//! the upper 56 bits are a slot, the lower 8 a generation. The first `records` records fill the
//! slots in a scattered order; later ones fall between them. So an insertion order is never a
//! key order (as with YCSB's hashed keys), a fill in key order makes the same keys, and a key
//! that certainly does not exist lies between two that do.
//!
//! Invariants:
//! 1. Records and keys correspond one to one.
//! 2. [`KeySpace::missing`] never makes the key of a record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rng::{Rng, mix64};

/// Skew of the zipfian choice, as in YCSB.
pub const ZIPFIAN_THETA: f64 = 0.99;
/// Longest scan of YCSB-E, in entries.
pub const SCAN_ENTRIES_MAX: u64 = 100;
const GENERATIONS: u64 = 255;

/// A one-to-one mapping of the numbers below `count` onto themselves that looks random.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    bits: u32,
}

impl Permutation {
    /// The permutation of the numbers below `count`.
    ///
    /// # Panics
    /// If `count` is 0 or above 2^56.
    pub fn new(count: u64) -> Permutation {
        assert!((1..=1 << 56).contains(&count), "{count} items cannot be permuted");
        Permutation { count, bits: (u64::BITS - (count - 1).leading_zeros()).max(2) }
    }

    /// The image of `n`. Each step is a bijection of the next power of two; a result beyond the
    /// count is sent round again, on average less than once.
    #[inline]
    pub fn apply(&self, n: u64) -> u64 {
        debug_assert!(n < self.count);
        let mask = (1u64 << self.bits) - 1;
        let mut word = n;
        loop {
            for odd in [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9u64] {
                word = word.wrapping_add(odd >> 7).wrapping_mul(odd) & mask;
                word ^= word >> self.bits.div_ceil(2);
            }
            if word < self.count {
                return word;
            }
        }
    }
}

/// The keys of a data set.
#[derive(Clone, Copy, Debug)]
pub struct KeySpace {
    slots: Permutation,
    key_bytes: usize,
}

impl KeySpace {
    /// Shortest key in bytes.
    pub const KEY_BYTES_MIN: usize = 8;

    /// The keys of a data set that begins with `records` records.
    ///
    /// # Panics
    /// If `key_bytes` is below [`KeySpace::KEY_BYTES_MIN`] or `records` is 0.
    pub fn new(records: u64, key_bytes: usize) -> KeySpace {
        assert!(key_bytes >= Self::KEY_BYTES_MIN, "keys of {key_bytes} bytes are too short");
        KeySpace { slots: Permutation::new(records), key_bytes }
    }

    /// Records at the beginning.
    pub fn records(&self) -> u64 {
        self.slots.count
    }

    /// Writes the key of record `n` to `key`. Keys repeat beyond 255 times the first records.
    #[inline]
    pub fn record(&self, n: u64, key: &mut Vec<u8>) {
        let generation = (n / self.slots.count) % GENERATIONS;
        self.write(self.slots.apply(n % self.slots.count) << 8 | generation, key);
    }

    /// Writes the `n`-th of the first records' keys in key order to `key`.
    #[inline]
    pub fn in_order(&self, n: u64, key: &mut Vec<u8>) {
        self.write(n << 8, key);
    }

    /// Writes a key that no record has, right after the `n`-th in key order, to `key`.
    #[inline]
    pub fn missing(&self, n: u64, key: &mut Vec<u8>) {
        self.write(n << 8 | GENERATIONS, key);
    }

    #[inline]
    fn write(&self, word: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&word.to_be_bytes());
        key.resize(self.key_bytes, b'0');
    }
}

/// Values that compress to about half: each 100 bytes are 50 random ones, twice.
#[derive(Clone, Debug)]
pub struct Values {
    pool: Arc<[u8]>,
    at: usize,
}

impl Values {
    const POOL_BYTES: usize = 1 << 20;
    const PIECE_BYTES: usize = 100;

    /// Values of up to `bytes_max` bytes.
    pub fn new(seed: u64, bytes_max: usize) -> Values {
        let mut rng = Rng::new(seed);
        let mut pool = Vec::with_capacity(Self::POOL_BYTES.max(2 * bytes_max) + Self::PIECE_BYTES);
        while pool.len() < Self::POOL_BYTES.max(2 * bytes_max) {
            let half = rng.bytes(Self::PIECE_BYTES / 2);
            pool.extend_from_slice(&half);
            pool.extend_from_slice(&half);
        }
        let at = rng.index(pool.len());
        Values { pool: pool.into(), at }
    }

    /// The same bytes from another offset, for example for another thread.
    #[must_use]
    pub fn fork(&self, seed: u64) -> Values {
        Values { pool: self.pool.clone(), at: Rng::new(seed).index(self.pool.len()) }
    }

    /// A value of `len` bytes; costs no copy.
    ///
    /// # Panics
    /// If `len` is beyond what the generator was made for.
    #[inline]
    pub fn next(&mut self, len: usize) -> &[u8] {
        if self.at + len > self.pool.len() {
            self.at = (self.at + len) % Self::PIECE_BYTES;
        }
        let value = &self.pool[self.at..self.at + len];
        self.at += len;
        value
    }
}

/// Numbers below a count, the small ones far more often (Gray et al., "Quickly generating
/// billion-record synthetic databases", as YCSB has it).
#[derive(Clone, Copy, Debug)]
pub struct Zipfian {
    count: u64,
    zeta_count: f64,
    zeta_two: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Numbers below `count`, which is at least 1.
    pub fn new(count: u64) -> Zipfian {
        assert!(count > 0, "no number is below 0");
        let zeta_two = zeta(2);
        let mut zipfian = Zipfian {
            count,
            zeta_count: zeta(count),
            zeta_two,
            alpha: 1.0 / (1.0 - ZIPFIAN_THETA),
            eta: 0.0,
        };
        zipfian.eta = zipfian.eta_now();
        zipfian
    }

    fn eta_now(&self) -> f64 {
        (1.0 - (2.0 / self.count as f64).powf(1.0 - ZIPFIAN_THETA))
            / (1.0 - self.zeta_two / self.zeta_count)
    }

    /// Continues with a larger count.
    pub fn grow(&mut self, count: u64) {
        if count > self.count {
            for n in self.count + 1..=count {
                self.zeta_count += (n as f64).powf(-ZIPFIAN_THETA);
            }
            self.count = count;
            self.eta = self.eta_now();
        }
    }

    /// The next number.
    #[inline]
    pub fn next(&self, rng: &mut Rng) -> u64 {
        let unit = rng.unit();
        let scaled = unit * self.zeta_count;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_two {
            return 1.min(self.count - 1);
        }
        let rank = self.count as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

/// The sum of `n^-theta` up to `count`: term by term at first, then by the integral with its
/// first correction, which is exact to far more digits than a benchmark needs.
fn zeta(count: u64) -> f64 {
    const EXACT: u64 = 100_000;
    let term = |n: u64| (n as f64).powf(-ZIPFIAN_THETA);
    let head: f64 = (1..=count.min(EXACT)).map(term).sum();
    if count <= EXACT {
        return head;
    }
    let power = 1.0 - ZIPFIAN_THETA;
    let integral = ((count as f64).powf(power) - (EXACT as f64).powf(power)) / power;
    head + integral + (term(count) - term(EXACT)) / 2.0
}

/// A way of choosing records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Each as often as any other.
    Uniform,
    /// A few far more often, scattered over ages and keys.
    Zipfian,
    /// The youngest far more often.
    Latest,
}

/// The next operation. Numbers are records, see [`KeySpace::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read one value.
    Read(u64),
    /// Write a new value over an old one.
    Update(u64),
    /// Write a record that did not exist.
    Insert(u64),
    /// Read a record, then write it.
    ReadModifyWrite(u64),
    /// Seek a record's key and read so many entries from there.
    Scan(u64, u64),
}

/// Shares of the operations in percent, and how records are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Share of reads.
    pub reads: u8,
    /// Share of updates.
    pub updates: u8,
    /// Share of insertions.
    pub inserts: u8,
    /// Share of reads that are followed by a write.
    pub read_modify_writes: u8,
    /// Share of scans.
    pub scans: u8,
    /// The way in which records are chosen.
    pub choice: Choice,
}

impl Mix {
    /// A YCSB core workload by its letter, `a` to `f`, or `w`: updates only.
    pub fn ycsb(letter: char) -> Option<Mix> {
        let zipfian = |reads, updates, inserts, read_modify_writes, scans| Mix {
            reads,
            updates,
            inserts,
            read_modify_writes,
            scans,
            choice: Choice::Zipfian,
        };
        Some(match letter {
            'a' => zipfian(50, 50, 0, 0, 0),
            'b' => zipfian(95, 5, 0, 0, 0),
            'c' => zipfian(100, 0, 0, 0, 0),
            'd' => Mix { choice: Choice::Latest, ..zipfian(95, 0, 5, 0, 0) },
            'e' => zipfian(0, 0, 5, 0, 95),
            'f' => zipfian(50, 0, 0, 50, 0),
            'w' => zipfian(0, 100, 0, 0, 0),
            _ => return None,
        })
    }
}

/// The operations of one thread.
#[derive(Debug)]
pub struct Stream {
    mix: Mix,
    rng: Rng,
    zipfian: Zipfian,
    records: u64,
    inserted: Arc<AtomicU64>,
}

impl Stream {
    /// The operations of `mix` by `seed` over a data set that began with `records` records.
    /// `inserted` counts all records and is shared by all threads.
    pub fn new(mix: Mix, records: u64, inserted: Arc<AtomicU64>, seed: u64) -> Stream {
        let shares = [mix.reads, mix.updates, mix.inserts, mix.read_modify_writes, mix.scans];
        assert_eq!(shares.into_iter().map(u32::from).sum::<u32>(), 100, "shares are percent");
        Stream { mix, rng: Rng::new(seed), zipfian: Zipfian::new(records), records, inserted }
    }

    /// A record by the mix's choice. The skewed choices know the first records (zipfian) or all
    /// that were inserted up to now (latest).
    fn choose(&mut self) -> u64 {
        match self.mix.choice {
            Choice::Uniform => self.rng.below(self.records),
            Choice::Zipfian => mix64(1 + self.zipfian.next(&mut self.rng)) % self.records,
            Choice::Latest => {
                // Only a count; nothing else depends on it.
                let count = self.inserted.load(Ordering::Relaxed);
                self.zipfian.grow(count);
                count - 1 - self.zipfian.next(&mut self.rng).min(count - 1)
            }
        }
    }

    /// The next operation.
    pub fn draw(&mut self) -> Operation {
        let mut percent = self.rng.below(100);
        let mut falls_to = |share: u8| {
            let hit = percent < u64::from(share);
            percent = percent.wrapping_sub(u64::from(share));
            hit
        };
        if falls_to(self.mix.reads) {
            Operation::Read(self.choose())
        } else if falls_to(self.mix.updates) {
            Operation::Update(self.choose())
        } else if falls_to(self.mix.inserts) {
            Operation::Insert(self.inserted.fetch_add(1, Ordering::Relaxed))
        } else if falls_to(self.mix.read_modify_writes) {
            Operation::ReadModifyWrite(self.choose())
        } else {
            Operation::Scan(self.choose(), 1 + self.rng.below(SCAN_ENTRIES_MAX))
        }
    }
}

#[cfg(test)]
mod tests;
