//! Scripts: the operations of a simulated application on its store, and its options.
//!
//! Its variant and a seed determine a script. Tiny limits make a few dozen steps pass through
//! flushes, compactions, segment switches and manifest generations.

use std::sync::Arc;

use encryption::KeyRing;
#[cfg(feature = "zstd")]
use siltstone::Compression;
use siltstone::operators::AppendOperator;
use siltstone::{Options, PartitionOptions, ResourceOptions, Resources};
use testkit::Rng;

#[cfg(feature = "zstd")]
use super::documents::DOCUMENTS;
use crate::clock::ManualClock;
use crate::store;

/// The partition without a log.
pub const UNLOGGED: &str = "u";
/// Partitions that a script may create and drop.
const LOGGED: [&str; 2] = ["p", "q"];

/// One step of the application.
#[derive(Clone, Debug)]
pub enum ScriptStep {
    /// Operations that commit together; `None` deletes, a number is a length.
    Commit {
        ops: Vec<(&'static str, u32, Option<usize>)>,
        sync: bool,
    },
    /// The same after an operation that clears a partition.
    Clear {
        partition: &'static str,
        ops: Vec<(&'static str, u32, Option<usize>)>,
        sync: bool,
    },
    /// The same after an operation that deletes the keys from the first number to before the last.
    DeleteRange {
        partition: &'static str,
        keys: (u32, u32),
        ops: Vec<(&'static str, u32, Option<usize>)>,
        sync: bool,
    },
    /// Waits until the newest commit is durable.
    WaitDurable,
    Flush,
    Compact(&'static str),
    /// So many steps of background work.
    Step(u32),
    /// Background work until there is none.
    Settle,
    /// The same as a transaction, which also reads a key, and takes back the last `undone` operations. If it is late,
    /// another one has written to the key that was read, and it has no effect.
    Transact {
        ops: Vec<(&'static str, u32, Option<usize>)>,
        undone: usize,
        is_late: bool,
        sync: bool,
    },
    /// Time passes, and entries are put that expire.
    Expire {
        seconds: u64,
        keys: Vec<u32>,
        sync: bool,
    },
    /// New keys for the FIFO.
    FillFifo {
        sync: bool,
    },
    /// The entries of a partition are exported, and ingested into another one, or into itself.
    Ingest {
        from: &'static str,
        to: &'static str,
    },
    /// A large value is streamed whose key comes last.
    Stream {
        key: u32,
        bytes: usize,
        sync: bool,
    },
    /// Takes a snapshot that is held from now on, or drops it.
    Hold,
    Create(&'static str),
    Drop(&'static str),
    Reopen,
}

/// The weights of the actions of a script.
#[derive(Clone, Copy, Default)]
struct Weights {
    put: u64,
    batch: u64,
    delete: u64,
    wait: u64,
    flush: u64,
    compact: u64,
    step: u64,
    settle: u64,
    partition: u64,
    reopen: u64,
    clear: u64,
    erase: u64,
    hold: u64,
    unlogged: u64,
    features: u64,
}

/// A kind of script.
#[derive(Clone)]
pub struct Variant {
    pub name: &'static str,
    pub options: Options,
    pub partition_options: PartitionOptions,
    pub has_unlogged: bool,
    /// It begins with so many documents that have much in common, for tables with dictionaries.
    pub documents: u32,
    /// A failed sync or a limit may take a part of the log that is kept.
    pub may_lose_log: bool,
    /// Every file is encrypted by these.
    pub keys: Option<KeyRing>,
    /// All databases of a run share these: the store, its images, and another one.
    pub resources: Option<Resources>,
    /// Its entries of one partition expire by this clock, and it has the other partitions of `features.rs`.
    pub clock: Option<ManualClock>,
    weights: Weights,
    /// Largest value in bytes, and one in how many is as large as three segments.
    value_bytes: u64,
    huge: u64,
    /// Keys that only grow, so that tables do not overlap.
    is_ascending: bool,
}

impl Variant {
    /// The same on an encrypted store.
    pub fn encrypted(&self) -> Variant {
        Variant { keys: Some(store::keys()), ..self.clone() }
    }

    /// The same at the begin of its time.
    pub fn at_the_begin(&self) -> Variant {
        Variant { clock: self.clock.as_ref().map(|_| ManualClock::default()), ..self.clone() }
    }

    /// The same with little of everything, which the databases of a run share.
    pub fn shared(&self) -> Variant {
        let options = ResourceOptions::new().cache_bytes(64 << 10).write_buffer_bytes(12 << 10);
        // Steps wait for no rate.
        let options = options.open_files_max(4).background_bytes_per_second(64 << 10);
        let resources = Some(Resources::new(options).unwrap());
        Variant { resources, ..self.clone() }
    }

    /// The same with tables that are long enough for a dictionary of zstd.
    #[cfg(feature = "zstd")]
    pub fn with_dictionaries(&self) -> Variant {
        let options = self.options.clone().write_buffer_bytes(4 << 20).wal_segment_bytes(1 << 20);
        let partition_options = self.partition_options.clone().compression(Compression::Zstd);
        Variant {
            documents: DOCUMENTS,
            options: options.wal_bytes_max(16 << 20),
            partition_options: partition_options.block_bytes(4 << 10).table_bytes(4 << 20),
            ..self.clone()
        }
    }
}

/// All variants.
pub fn variants() -> Vec<Variant> {
    let options = Options::new()
        .cache_bytes(32 << 10)
        .write_buffer_bytes(8 << 10)
        .wal_segment_bytes(64 << 10)
        .wal_bytes_max(256 << 10)
        .manifest_bytes_max(64 << 10)
        .compaction_threads(1);
    let partition_options = PartitionOptions::new()
        .block_bytes(256)
        .table_bytes(1 << 10)
        .level0_tables(2)
        .level_base_bytes(2 << 10)
        .level_multiplier(2);
    let plain = Variant {
        name: "",
        options,
        partition_options,
        has_unlogged: false,
        documents: 0,
        may_lose_log: false,
        keys: None,
        resources: None,
        clock: None,
        weights: Weights { put: 20, delete: 3, step: 2, wait: 1, ..Weights::default() },
        value_bytes: 60,
        huge: 0,
        is_ascending: false,
    };
    let weights = plain.weights;
    let with = |name, weights| Variant { name, weights, ..plain.clone() };
    let mut segments =
        with("segments", Weights { put: 20, batch: 4, step: 8, flush: 1, settle: 1, ..weights });
    segments.options = segments.options.wal_segment_bytes(4 << 10).wal_bytes_max(12 << 10);
    segments.value_bytes = 1200;
    segments.huge = 12;
    let mut manifest =
        with("manifest", Weights { flush: 4, partition: 3, settle: 1, reopen: 1, ..weights });
    manifest.options = manifest.options.manifest_bytes_max(600);
    let mut compactions = with(
        "compactions",
        Weights { flush: 4, settle: 2, compact: 1, step: 6, clear: 1, ..weights },
    );
    compactions.value_bytes = 300;
    let mut moves =
        with("moves", Weights { delete: 0, flush: 4, settle: 2, compact: 1, ..weights });
    moves.is_ascending = true;
    moves.value_bytes = 300;
    let mut unlogged = with(
        "unlogged",
        Weights { put: 8, unlogged: 12, flush: 2, settle: 1, reopen: 1, ..weights },
    );
    unlogged.has_unlogged = true;
    let mut mixed = with(
        "mixed",
        Weights {
            put: 20,
            batch: 8,
            delete: 4,
            flush: 2,
            compact: 1,
            step: 8,
            settle: 1,
            partition: 2,
            reopen: 1,
            clear: 2,
            erase: 3,
            unlogged: 3,
            ..weights
        },
    );
    mixed.has_unlogged = true;
    mixed.options = mixed
        .options
        .wal_segment_bytes(4 << 10)
        .wal_bytes_max(16 << 10)
        .manifest_bytes_max(2 << 10);
    mixed.value_bytes = 400;
    mixed.huge = 40;
    let followed = following(&mixed, "followed", u64::MAX);
    let trimmed = following(&mixed, "trimmed", 10 << 10);
    vec![
        with("puts", Weights { put: 30, ..weights }),
        with("batches", Weights { put: 4, batch: 16, flush: 1, ..weights }),
        with("flushes", Weights { batch: 6, flush: 4, settle: 1, clear: 1, ..weights }),
        compactions,
        moves,
        segments,
        manifest,
        with("partitions", Weights { batch: 6, partition: 6, flush: 1, step: 3, ..weights }),
        unlogged,
        with("reopens", Weights { batch: 4, flush: 1, reopen: 3, ..weights }),
        mixed,
        // After the others, whose positions determine their seeds.
        with("clears", Weights { batch: 3, flush: 2, settle: 1, clear: 5, reopen: 1, ..weights }),
        ranging(&plain),
        merging(plain),
        followed,
        trimmed,
    ]
}

/// All that the mixed one has, and transactions, expiry, a FIFO, ingests, and streams. Not among [`variants`]: these have
/// their seeds by their number.
pub fn with_features() -> Variant {
    let mixed = variants().into_iter().find(|variant| variant.name == "mixed");
    let mixed = mixed.expect("a variant has this name");
    Variant {
        name: "features",
        clock: Some(ManualClock::default()),
        weights: Weights { features: 30, hold: 2, ..mixed.weights },
        ..mixed
    }
}

/// The log is kept for those who follow the changes, so many bytes of it. Half of the puts are operands.
fn following(mixed: &Variant, name: &'static str, bytes: u64) -> Variant {
    let append = Arc::new(AppendOperator::default());
    Variant {
        name,
        options: mixed.options.clone().log_retained_bytes(bytes),
        partition_options: mixed.partition_options.clone().merge_operator(append),
        may_lose_log: bytes < u64::MAX,
        ..mixed.clone()
    }
}

/// Ranges of keys are deleted, while snapshots are held.
fn ranging(plain: &Variant) -> Variant {
    let weights = Weights {
        put: 8,
        batch: 3,
        flush: 4,
        settle: 1,
        erase: 8,
        hold: 2,
        reopen: 1,
        ..plain.weights
    };
    Variant { name: "ranges", weights, ..plain.clone() }
}

/// Half of the puts are operands that are appended.
fn merging(plain: Variant) -> Variant {
    let weights = Weights {
        batch: 5,
        flush: 4,
        settle: 1,
        compact: 1,
        erase: 2,
        clear: 1,
        hold: 2,
        reopen: 1,
        ..plain.weights
    };
    let append = Arc::new(AppendOperator::default());
    let partition_options = plain.partition_options.merge_operator(append);
    Variant { name: "merges", weights, partition_options, ..plain }
}

/// Writes a script.
pub struct Writer<'a> {
    variant: &'a Variant,
    live: Vec<&'static str>,
    ascending: u32,
    rng: Rng,
}

impl<'a> Writer<'a> {
    /// For a store in which `live` exist in addition to the default partition.
    pub fn new(variant: &'a Variant, live: &[&'static str], rng: Rng) -> Writer<'a> {
        let mut live: Vec<_> = live.iter().copied().filter(|name| LOGGED.contains(name)).collect();
        live.push("default");
        Writer { variant, live, ascending: 0, rng }
    }

    /// So many steps.
    pub fn script(&mut self, len: usize) -> Vec<ScriptStep> {
        (0..len).map(|_| self.step()).collect()
    }

    fn op(&mut self, deletes: bool) -> (&'static str, u32, Option<usize>) {
        let partition = *self.rng.pick(&self.live);
        let key = if self.variant.is_ascending && !deletes {
            self.ascending += 1;
            self.ascending
        } else {
            self.rng.below(40) as u32
        };
        let bytes = if self.variant.huge > 0 && self.rng.chance(1, self.variant.huge) {
            3 * self.variant.options.wal_segment_bytes
        } else {
            self.rng.below(self.variant.value_bytes)
        };
        (partition, key, (!deletes).then_some(bytes as usize))
    }

    fn step(&mut self) -> ScriptStep {
        let w = self.variant.weights;
        let sync = self.rng.chance(1, 4);
        let kinds = [
            w.put,
            w.batch,
            w.delete,
            w.wait,
            w.flush,
            w.compact,
            w.step,
            w.settle,
            w.partition,
            w.reopen,
            w.clear,
            w.erase,
            w.hold,
            w.unlogged,
            w.features,
        ];
        let mut left = self.rng.below(kinds.iter().sum());
        let kind = kinds.iter().position(|weight| {
            let hit = left < *weight;
            left = left.saturating_sub(*weight);
            hit
        });
        match kind.expect("the number is below the sum") {
            0 => ScriptStep::Commit { ops: vec![self.op(false)], sync },
            1 => {
                let count = self.rng.range(2..7);
                let op = |w: &mut Self| {
                    let deletes = w.rng.chance(1, 5);
                    w.op(deletes)
                };
                ScriptStep::Commit { ops: (0..count).map(|_| op(self)).collect(), sync }
            }
            2 => ScriptStep::Commit { ops: vec![self.op(true)], sync },
            3 => ScriptStep::WaitDurable,
            4 => ScriptStep::Flush,
            5 => {
                let partition: &&str = self.rng.pick(&self.live);
                ScriptStep::Compact(partition)
            }
            6 => ScriptStep::Step(self.rng.range(1..4) as u32),
            7 => ScriptStep::Settle,
            8 => self.create_or_drop(),
            9 => ScriptStep::Reopen,
            10 => {
                let partition = *self.rng.pick(&self.live);
                let ops = (0..self.rng.below(3)).map(|_| self.op(false)).collect();
                ScriptStep::Clear { partition, ops, sync }
            }
            11 => {
                let partition = *self.rng.pick(&self.live);
                let (_, first, _) = self.op(true);
                let last = first + self.rng.range(1..30) as u32;
                let ops = (0..self.rng.below(3)).map(|_| self.op(false)).collect();
                ScriptStep::DeleteRange { partition, keys: (first, last), ops, sync }
            }
            12 => ScriptStep::Hold,
            13 => {
                let (_, key, bytes) = self.op(sync);
                ScriptStep::Commit { ops: vec![(UNLOGGED, key, bytes)], sync: false }
            }
            _ => self.feature(sync),
        }
    }

    fn feature(&mut self, sync: bool) -> ScriptStep {
        match self.rng.below(7) {
            0 | 1 => {
                let count = self.rng.range(1..6);
                let ops = (0..count).map(|_| {
                    let deletes = self.rng.chance(1, 5);
                    self.op(deletes)
                });
                let ops: Vec<_> = ops.collect();
                let undone = self.rng.index(ops.len());
                ScriptStep::Transact { ops, undone, is_late: self.rng.chance(1, 4), sync }
            }
            2 => {
                let count = self.rng.range(1..4);
                let keys = (0..count).map(|_| self.rng.below(8) as u32).collect();
                ScriptStep::Expire { seconds: self.rng.below(12), keys, sync }
            }
            3 | 4 => ScriptStep::FillFifo { sync },
            5 => {
                let ends = [(); 2].map(|()| *self.rng.pick(&self.live));
                ScriptStep::Ingest { from: ends[0], to: ends[1] }
            }
            _ => {
                let key = self.rng.below(8) as u32;
                ScriptStep::Stream { key, bytes: self.rng.range(1..3000) as usize, sync }
            }
        }
    }

    fn create_or_drop(&mut self) -> ScriptStep {
        let name = *self.rng.pick(&LOGGED);
        match self.live.iter().position(|live| *live == name) {
            Some(at) => {
                self.live.remove(at);
                ScriptStep::Drop(name)
            }
            None => {
                self.live.push(name);
                ScriptStep::Create(name)
            }
        }
    }
}
