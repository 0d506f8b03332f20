//! The memtable compared with crossbeam's skiplist: inserts, gets and scans of one thread, without
//! log and database. Each measurement has the throughput of single operations.
//!
//! `cargo bench --bench memtable`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]

mod store;

use std::cmp::Reverse;
use std::hint::black_box;
use std::ops::Bound;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_skiplist::SkipMap;
use lsm_core::codec::checksum64;
use lsm_core::internals::batch::{SectionBuilder, SectionReader};
use lsm_core::internals::iter::InternalIter;
use lsm_core::internals::memtable::{Memtable, SlabPool};
use lsm_core::types::{EntryKind, MemtableId, SeqNo};
use testkit::workload::{KeySpace, Values};

use store::{KEY_BYTES, VALUE_BYTES};

/// Entries of a memtable: about as many as fill one of the default size.
const ENTRIES: u64 = 250_000;

/// A list of versions, ordered by key and then from the newest on.
trait List {
    fn new() -> Self;
    fn insert(&self, seq: u64, key: &[u8], value: &[u8]);
    fn get(&self, key: &[u8]) -> bool;
    /// The bytes of all keys.
    fn scan(&self) -> usize;
}

impl List for Memtable {
    fn new() -> Memtable {
        Memtable::new(MemtableId(1), &Arc::new(SlabPool::new(0)))
    }

    fn insert(&self, seq: u64, key: &[u8], value: &[u8]) {
        let mut section = SectionBuilder::default();
        section.push(EntryKind::Value, key, value);
        let operation = SectionReader::new(section.bytes()).next_operation();
        let operation = operation.expect("it was just encoded").expect("it has one");
        let seq = SeqNo::new(seq).expect("it is small");
        let (bytes, sums, _) = section.lend();
        let inserted = self.writer().insert(seq, 0, sums[0], &bytes, &operation);
        inserted.expect("it is newer than all before");
    }

    fn get(&self, key: &[u8]) -> bool {
        Memtable::get(self, key, checksum64(key), SeqNo::MAX).is_some()
    }

    fn scan(&self) -> usize {
        let mut iter = self.iter();
        let mut bytes = 0;
        iter.seek(None).expect("memory can be read");
        while iter.valid() {
            bytes += iter.key().user.len();
            iter.next().expect("memory can be read");
        }
        bytes
    }
}

/// Keys and values in memory of their own, as crossbeam's list is commonly used for memtables.
type Crossbeam = SkipMap<(Box<[u8]>, Reverse<u64>), Box<[u8]>>;

impl List for Crossbeam {
    fn new() -> Crossbeam {
        SkipMap::new()
    }

    fn insert(&self, seq: u64, key: &[u8], value: &[u8]) {
        SkipMap::insert(self, (key.into(), Reverse(seq)), value.into());
    }

    fn get(&self, key: &[u8]) -> bool {
        let entry = self.lower_bound(Bound::Included(&(key.into(), Reverse(u64::MAX))));
        entry.is_some_and(|entry| *entry.key().0 == *key)
    }

    fn scan(&self) -> usize {
        self.iter().map(|entry| entry.key().0.len()).sum()
    }
}

/// The keys of a fill.
#[derive(Clone, Copy)]
enum Fill {
    Random,
    Ascending,
    /// The same thousand, again and again.
    Overwriting,
}

impl Fill {
    fn keys(self) -> Vec<Vec<u8>> {
        let space = KeySpace::new(
            if matches!(self, Fill::Overwriting) { 1000 } else { ENTRIES },
            KEY_BYTES,
        );
        let mut keys: Vec<Vec<u8>> = (0..ENTRIES)
            .map(|n| {
                let mut key = Vec::new();
                space.record(n % space.records(), &mut key);
                key
            })
            .collect();
        if matches!(self, Fill::Ascending) {
            keys.sort_unstable();
        }
        keys
    }
}

fn filled<L: List>(keys: &[Vec<u8>], values: &mut Values) -> L {
    let list = L::new();
    for (seq, key) in (1..).zip(keys) {
        list.insert(seq, key, values.next(VALUE_BYTES));
    }
    list
}

fn measure<L: List>(c: &mut Criterion, name: &str) {
    let mut group = c.benchmark_group(format!("memtable/{name}"));
    group.sample_size(10).throughput(Throughput::Elements(ENTRIES));
    let mut values = Values::new(1, VALUE_BYTES);
    let fills = [
        ("insert random", Fill::Random),
        ("insert ascending", Fill::Ascending),
        ("insert overwriting", Fill::Overwriting),
    ];
    for (what, fill) in fills {
        let keys = fill.keys();
        group.bench_function(what, |b| {
            // The returned value is dropped outside of the measurement.
            b.iter_batched(|| (), |()| filled::<L>(&keys, &mut values), BatchSize::PerIteration);
        });
    }
    let list: L = filled(&Fill::Random.keys(), &mut values);
    // In another order than that of the inserts.
    let mut keys = Fill::Random.keys();
    keys.sort_unstable_by_key(|key| checksum64(key));
    group.bench_function("get random", |b| {
        b.iter(|| assert!(keys.iter().all(|key| list.get(black_box(key)))));
    });
    group.bench_function("scan", |b| b.iter(|| list.scan()));
    group.finish();
}

fn both(c: &mut Criterion) {
    measure::<Memtable>(c, "siltstone");
    measure::<Crossbeam>(c, "crossbeam");
}

criterion_group! { name = benches; config = store::criterion(); targets = both }
criterion_main!(benches);
