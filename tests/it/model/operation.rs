//! The parts of a case of the model test: plain data that prints and shrinks and does not depend on
//! the state of the store. Numbers that choose (a partition, a cursor) count modulo what exists, so
//! that a shrunken list stays meaningful.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use lsm_core::fs::CrashOutcome;
use proptest::collection::vec;
use proptest::prelude::*;
use siltstone::operators::AppendOperator;
use siltstone::{
    CompactionStyle, Compression, LargeValueOptions, MetaHiveOptions, Options, PartitionOptions,
    PrefixExtractor,
};

/// Names under which partitions are created.
pub const NAMES: [&str; 4] = ["default", "p", "q", "r"];

/// The n-th of few keys: short ones, unusual ones, long ones, the empty one. They are not in order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(u8);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0)
    }
}

const SHORT: u8 = 16;
const AWKWARD: u8 = 40;
const LONG: u8 = 46;
const EMPTY: u8 = 46;

impl Key {
    pub fn bytes(self) -> Vec<u8> {
        match self.0 {
            n @ 0..SHORT => format!("k{:02}", n.wrapping_mul(7) % SHORT).into_bytes(),
            n @ SHORT..AWKWARD => {
                // A stem followed by zeros or by bytes of the largest value.
                let stems: [&[u8]; 4] = [b"", b"k03", b"\xff", b"\x00k"];
                let n = usize::from(n - SHORT);
                let stem = stems[n % 4];
                let tail = n / 4;
                let tail =
                    [&[0][..], &[0, 0], &[0xff], &[0xff, 0xff], &[0, 0xff], &[0xff, 0]][tail];
                [stem, tail].concat()
            }
            40 => vec![0xff; 600],
            41 => vec![0; 601],
            42 => [&[b'k'; 3000][..], b"1"].concat(),
            43 => [&[b'k'; 3000][..], b"2"].concat(),
            44 => vec![0xff; 20_000],
            EMPTY => Vec::new(),
            _ => vec![b'k'; siltstone::limits::USER_KEY_BYTES_MAX],
        }
    }

    pub fn all() -> impl Iterator<Item = Key> {
        (0..=EMPTY).map(Key)
    }
}

/// Length of a value; its content is made when it is written.
pub type ValueLen = u16;

#[derive(Clone, Copy, Debug)]
pub enum Move {
    First,
    Last,
    Seek(Key),
    SeekBefore(Key),
    Next,
    Prev,
}

/// A read through a snapshot uses the n-th.
pub type Through = Option<u8>;

/// Puts, and deletions without a length.
pub type Writes = Vec<(u8, Key, Option<ValueLen>)>;

#[derive(Clone, Debug)]
pub enum Operation {
    Put(u8, Key, ValueLen),
    Delete(u8, Key),
    Batch {
        operations: Vec<(u8, Key, Option<ValueLen>)>,
        sync: bool,
    },
    /// Clears a partition, between operations of the same batch.
    Clear(u8, Writes, Writes),
    /// Deletes a range of keys, between operations of the same batch.
    DeleteRange(u8, Bound<Key>, Bound<Key>, Writes, Writes),
    /// Deletes the keys that begin with so many bytes of a key.
    DeletePrefix(u8, Key, u8),
    Get(u8, Key, Through),
    /// The bits choose the end from which the next entry is taken.
    Scan(u8, Bound<Key>, Bound<Key>, u32, Through),
    Prefix(u8, Key, u8, u32, Through),
    OpenCursor(u8, Through),
    MoveCursor(u8, Vec<Move>),
    DropCursor(u8),
    OpenRange(u8, Bound<Key>, Bound<Key>, Through),
    /// Takes the given number of entries.
    TakeFromRange(u8, u8, u32),
    DropRange(u8),
    TakeSnapshot,
    DropSnapshot(u8),
    Flush,
    Compact(u8, Bound<Key>, Bound<Key>),
    Step(u8),
    WaitIdle,
    WaitDurable,
    /// Creates the partition or changes its options; gives it a rule of expiry, which it keeps.
    Configure(u8, Box<PartitionOptions>, bool),
    /// Moves the clock to so many seconds after the time of the last value.
    Pass(u8),
    DropPartition(u8),
    /// Makes a backup: of the open database, or of its folder while it is open.
    BackUp(bool),
    /// Restores the n-th backup and compares it.
    Restore(u8),
    CheckAll,
    Reopen(Options),
    Crash(CrashOutcome, Options),
}

pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(), 1..200)
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let n = any::<u8>;
    let read = prop_oneof![
        4 => (n(), key(), through()).prop_map(|(p, k, s)| Get(p, k, s)),
        3 => (n(), bound(), bound(), ends(), through())
            .prop_map(|(p, from, to, ends, s)| Scan(p, from, to, ends, s)),
        1 => (n(), key(), 0..4u8, ends(), through())
            .prop_map(|(p, k, len, ends, s)| Prefix(p, k, len, ends, s)),
        1 => (n(), through()).prop_map(|(p, s)| OpenCursor(p, s)),
        4 => (n(), vec(movement(), 1..12)).prop_map(|(c, moves)| MoveCursor(c, moves)),
        1 => n().prop_map(DropCursor),
        1 => (n(), bound(), bound(), through()).prop_map(|(p, from, to, s)| OpenRange(p, from, to, s)),
        2 => (n(), 1..6u8, ends()).prop_map(|(r, count, ends)| TakeFromRange(r, count, ends)),
        1 => n().prop_map(DropRange),
        2 => Just(TakeSnapshot),
        1 => n().prop_map(DropSnapshot),
    ];
    let work = prop_oneof![
        3 => Just(Flush),
        2 => (n(), bound(), bound()).prop_map(|(p, from, to)| Compact(p, from, to)),
        4 => (1..6u8).prop_map(Step),
        2 => Just(WaitIdle),
        1 => Just(WaitDurable),
        2 => configure(),
        3 => (0..60u8).prop_map(Pass),
        1 => n().prop_map(DropPartition),
        2 => any::<bool>().prop_map(BackUp),
        1 => n().prop_map(Restore),
        1 => Just(CheckAll),
        2 => options().prop_map(Reopen),
        3 => (proptest::sample::select(&CrashOutcome::ALL[..]), options())
            .prop_map(|(outcome, options)| Crash(outcome, options)),
    ];
    prop_oneof![
        30 => (n(), key(), value_len()).prop_map(|(p, k, len)| Put(p, k, len)),
        10 => (n(), key()).prop_map(|(p, k)| Delete(p, k)),
        10 => (batch(), proptest::bool::weighted(0.2))
            .prop_map(|(operations, sync)| Batch { operations, sync }),
        2 => (n(), batch(), batch()).prop_map(|(p, before, after)| Clear(p, before, after)),
        4 => (n(), bound(), bound(), batch(), batch())
            .prop_map(|(p, from, to, before, after)| DeleteRange(p, from, to, before, after)),
        2 => (n(), key(), 0..4u8).prop_map(|(p, k, len)| DeletePrefix(p, k, len)),
        25 => read,
        18 => work,
    ]
}

fn batch() -> impl Strategy<Value = Writes> {
    vec((any::<u8>(), key(), proptest::option::weighted(0.7, value_len())), 0..8)
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        24 => 0..SHORT,
        12 => SHORT..AWKWARD,
        2 => AWKWARD..44,
        1 => 44..LONG,
        3 => Just(EMPTY),
    ]
    .prop_map(Key)
}

fn value_len() -> impl Strategy<Value = ValueLen> {
    prop_oneof![2 => Just(0), 8 => 1..40u16, 4 => 40..400u16, 2 => 400..3000u16, 1 => 3000..7000u16]
}

fn bound() -> impl Strategy<Value = Bound<Key>> {
    prop_oneof![
        2 => Just(Bound::Unbounded),
        2 => key().prop_map(Bound::Included),
        1 => key().prop_map(Bound::Excluded),
    ]
}

fn ends() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), any::<u32>()]
}

fn through() -> impl Strategy<Value = Through> {
    proptest::option::weighted(0.3, any::<u8>())
}

fn movement() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        3 => key().prop_map(Move::Seek),
        3 => key().prop_map(Move::SeekBefore),
        5 => Just(Move::Next),
        5 => Just(Move::Prev),
    ]
}

/// All limits are so small that a few writes reach them.
pub fn options() -> impl Strategy<Value = Options> {
    let cache = prop_oneof![Just(0u64), Just(2 << 10), Just(1 << 20)];
    let buffer = prop_oneof![Just(4u64 << 10), Just(32 << 10)];
    let sizes = (cache, buffer, 2..8u64, 1..2000u64);
    // Mostly the whole log, so that a feed of changes is never too old.
    let retained = prop_oneof![1 => Just(0u64), 1 => Just(16 << 10), 6 => Just(u64::MAX)];
    let strategy = (sizes, any::<bool>(), retained);
    strategy.prop_map(|((cache, buffer, segments, manifest), are_mapped, retained)| {
        Options::new()
            .cache_bytes(cache)
            .tables_mapped(are_mapped)
            .write_buffer_bytes(buffer)
            .wal_segment_bytes(4 << 10)
            .wal_bytes_max(segments * (4 << 10))
            .manifest_bytes_max(manifest)
            .log_retained_bytes(retained)
    })
}

fn configure() -> impl Strategy<Value = Operation> {
    (any::<u8>(), proptest::bool::weighted(0.4)).prop_flat_map(|(n, expires)| {
        let hooks = if expires { sealed().boxed() } else { hooks().boxed() };
        partition_options(hooks)
            .prop_map(move |options| Operation::Configure(n, Box::new(options), expires))
    })
}

/// The hooks of a partition with a rule of expiry, but for the rule.
fn sealed() -> impl Strategy<Value = PartitionOptions> {
    proptest::bool::weighted(0.3).prop_map(|is_sealed| {
        let options = PartitionOptions::new();
        if is_sealed { options.metahive(MetaHiveOptions::new()) } else { options }
    })
}

/// Those that this build has.
fn compression() -> impl Strategy<Value = Compression> {
    let mut all = vec![Compression::None, Compression::Lz4, Compression::Zstd];
    all.retain(|it| it.is_built_in());
    prop::sample::select(all)
}

fn partition_options(
    hooks: BoxedStrategy<PartitionOptions>,
) -> impl Strategy<Value = PartitionOptions> {
    let bloom = prop_oneof![Just(0u32), Just(10), Just(1)];
    let bloom = (bloom, prefix_extractor());
    let sizes = (64..=128u32, 1024..=4096u64, 1024..=4096u64);
    let style = (style(), 2..4u32);
    (proptest::bool::weighted(0.7), compression(), bloom, sizes, style, hooks).prop_map(
        |(logged, compression, (bloom, prefix), (block, table, base), (style, level0), hooks)| {
            hooks
                .compaction_style(style)
                .logged(logged)
                .compression(compression)
                .bloom_bits_per_key(bloom)
                .prefix_extractor(prefix)
                .block_bytes(block)
                .table_bytes(table)
                .level_base_bytes(base)
                .level0_tables(level0)
                .level_multiplier(2)
        },
    )
}

/// A FIFO only if the partition is created with it. Its limits may change.
fn style() -> impl Strategy<Value = CompactionStyle> {
    let bytes_max = prop_oneof![1 => Just(u64::MAX), 6 => 500..6_000u64];
    let seconds_max = prop_oneof![2 => Just(u64::MAX), 1 => 5..100u64];
    let fifo = (bytes_max, seconds_max)
        .prop_map(|(bytes_max, seconds_max)| CompactionStyle::Fifo { bytes_max, seconds_max });
    prop_oneof![1 => Just(CompactionStyle::Leveled), 1 => fifo]
}

/// Some keys have none of these prefixes, some are one, and some share one.
fn prefix_extractor() -> impl Strategy<Value = Option<PrefixExtractor>> {
    let through = prop_oneof![Just(0), Just(1), Just(b'0'), Just(b'k'), Just(0xff)];
    prop_oneof![
        1 => Just(None),
        3 => (1..4u16).prop_map(|len| Some(PrefixExtractor::Fixed(len))),
        3 => through.prop_map(|byte| Some(PrefixExtractor::Through(byte))),
    ]
}

/// Switches the integrity metadata on, or leaves it; with large values as [`large`] does; gives it a merge operator,
/// which stays from then on.
fn hooks() -> impl Strategy<Value = PartitionOptions> {
    let of_values = (large(), proptest::bool::weighted(0.6));
    (proptest::bool::weighted(0.3), of_values).prop_map(|(is_sealed, (large, merges))| {
        let options = match large {
            None => PartitionOptions::new(),
            Some(large) => PartitionOptions::new().large_values(large),
        };
        let append = AppendOperator::default();
        let options = if merges { options.merge_operator(Arc::new(append)) } else { options };
        if is_sealed { options.metahive(MetaHiveOptions::new()) } else { options }
    })
}

/// Switches large values on, with limits among the lengths of the values; off; or leaves them.
fn large() -> impl Strategy<Value = Option<LargeValueOptions>> {
    let on = (256..1000u64, 8..10u32, 1..1000u16, compression());
    let on = on.prop_map(|(threshold, log2, garbage, compression)| {
        Some(
            LargeValueOptions::new()
                .threshold_bytes(threshold)
                .sub_block_bytes(1 << log2)
                .chunk_bytes(4 << 10)
                .garbage_permille(garbage)
                .compression(compression),
        )
    });
    prop_oneof![3 => Just(None), 4 => on, 1 => Just(Some(LargeValueOptions::off()))]
}
