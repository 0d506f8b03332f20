//! An embeddable key-value store: a log-structured merge-tree with partitions (column families),
//! atomic batches, snapshots, and a checksum on every stored byte.
//!
//! ```
//! use siltstone::{Db, Durability};
//!
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! # let path = dir.path();
//! let db = Db::open(path)?;
//! let users = db.partition("users")?;
//! users.put("alice", "admin")?;
//! db.batch().put(&users, "bob", "ops").delete(&users, "alice").commit(Durability::Sync)?;
//! assert_eq!(users.get("bob")?.as_deref(), Some(&b"ops"[..]));
//! for entry in users.range("a".."n").rev() {
//!     let (key, value) = entry?;
//!     println!("{key:?} = {value:?}");
//! }
//! db.close()
//! # }
//! ```
//!
//! Keys and values are byte strings. Keys are ordered bytewise. The handles [`Db`], [`Partition`] and
//! [`Snapshot`] are `Clone + Send + Sync + 'static`. Iterators own what they need, so they may outlive
//! the handle.
//!
//! Every call blocks. In async code, run a unit of work on a thread that may block. With the feature
//! `async`, `Async` of the module `asynchronous` does so on tokio's threads, for handles of databases and
//! secondaries alike.
//!
//! # Durability
//!
//! When a write returns, the kernel has its data ([`Durability::Os`]) or the device has it
//! ([`Durability::Sync`]). Recovery restores a prefix of the commit history: every batch is present
//! whole or not at all, and no commit is present unless every earlier commit is. Three calls make an
//! earlier commit durable: [`Db::wait_durable`] blocks, [`Db::on_durable`] calls a function, and
//! [`Db::durable`] returns a future:
//!
//! ```
//! # use siltstone::Db;
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let commit = db.partition("events")?.put("now", "it happened")?;
//! db.wait_durable(commit.seq)?;
//! assert!(db.durable_seq() >= commit.seq);
//! # Ok(())
//! # }
//! ```
//!
//! # Snapshots and cursors
//!
//! A [`Snapshot`] shows the whole database at one moment. A [`Cursor`] lends keys and values and copies
//! nothing. A [`Range`] is an iterator over two cursors, one for each end.
//!
//! ```
//! # use siltstone::Db;
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let users = db.partition("users")?;
//! users.put("bob", "author")?;
//! let before = db.snapshot();
//! users.delete("bob")?;
//! assert!(users.get("bob")?.is_none());
//!
//! let mut cursor = before.cursor(&users);
//! cursor.seek("a")?;
//! assert_eq!((cursor.key(), cursor.value()?), (&b"bob"[..], &b"author"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Read, modify, write
//!
//! [`Partition::update`] applies a function to the value of a key, loses no concurrent update, and returns the
//! old and the new value.
//! [`Partition::compare_and_set`] replaces a value if it equals the expected value. A [`Transaction`]
//! reads and writes any keys of any partitions; its commit returns [`ErrorKind::Conflict`] if another
//! writer changed what it read. [`Db::transact`] runs one and repeats it after conflicts. Both use
//! [`Batch::require`], which refuses a batch if a key was written after a given sequence number.
//! [`Transaction::get_for_update`] locks a key that many threads change.
//!
//! ```
//! # use siltstone::Db;
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let page = db.partition("page")?;
//! let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
//! for _ in 0..3 {
//!     page.update("visits", |old| Some((old.map_or(0, number) + 1).to_be_bytes()))?;
//! }
//! assert_eq!(page.get("visits")?.as_deref().map(number), Some(3));
//! # db.close()
//! # }
//! ```
//!
//! # Errors
//!
//! There is one error type, [`Error`], with a [`kind`](Error::kind) to branch on. Damaged bytes lead to
//! [`ErrorKind::Corruption`], never to a panic. [`Error::damage`] names the file, the offset and, if
//! known, the key. A call that exceeds a limit ([`limits`], [`Options`]) returns an error and writes
//! nothing:
//!
//! ```
//! # use siltstone::{Db, ErrorKind};
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let refused = db.partition("users")?.put([0; 65_535], "a long key").expect_err("65,534 bytes at most");
//! assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! Options of the database hold for one open ([`Db::builder`], [`Options`]). Options of a partition are
//! stored with the partition ([`Db::partition_with`], [`PartitionOptions`]).
//!
//! ```
//! # use siltstone::{Compression, Db, PartitionOptions};
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::builder(dir.path()).cache_bytes(64 << 20).write_buffer_bytes(16 << 20).open()?;
//! let options = PartitionOptions::new().compression(Compression::None);
//! let photos = db.partition_with("photos", options)?;
//! assert_eq!(photos.options().get_compression(), Compression::None);
//! # Ok(())
//! # }
//! ```
//!
//! # MetaHive
//!
//! A partition with [`PartitionOptions::metahive`] stores a checksum with every entry. The flush
//! creates the checksum when it writes the entry to its first table. Every compaction verifies its
//! input before it writes a new table, and repairs damaged entries if it has a source for them. So
//! the partition detects faults in memory between a read and a write, which block checksums cannot
//! detect. The page of [`metahive`] lists the detected faults and the costs.
//!
//! ```
//! # use siltstone::{Db, MetaHiveOptions, PartitionOptions};
//! # fn main() -> siltstone::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! let db = Db::open(dir.path())?;
//! let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
//! db.partition_with("ledger", options)?.put("alice", "12")?;
//! db.close()?;
//!
//! // The setting is stored with the partition, so the name is enough.
//! let ledger = Db::open(dir.path())?.partition("ledger")?;
//! assert_eq!(ledger.get("alice")?.as_deref(), Some(&b"12"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Hooks
//!
//! MetaHive is one hook. An application can write others, for example a compaction filter that selects
//! the entries to keep ([`PartitionOptions::filter`], [`hooks`]). A partition stores the names of its
//! hooks. Every open finds the hooks of this crate by name; [`Builder::hooks`] supplies the hooks of
//! the application.
//!
//! # Features
//!
//! All features of the crate are off by default.
//!
//! | feature | adds |
//! | --- | --- |
//! | `async` | `siltstone::asynchronous`: handles for async code on tokio |
//! | `bytes` | conversion of a `Slice` to `bytes::Bytes` without a copy |
//! | `metrics` | `metrics::publish`: the figures of `Db::stats` and `Db::health` for the recorder of the crate `metrics` |
//! | `mmap` | `Partition::get_ref` maps large values, and `Options::tables_mapped` tables, on Linux and local file systems |
//! | `serde` | serialization of statistics, health, errors and damage |
//! | `zstd` | `Compression::Zstd` for tables, with a dictionary for each, and for large values; it compiles C |
//!
//! The pages in `docs/` describe operations (backup, monitoring, error messages, damage), tuning, and the terms
//! and calls of other engines.

#[cfg(feature = "async")]
pub mod asynchronous;
pub mod backup;
mod batch;
mod builder;
mod db;
mod following;
// A feature and not `cfg(test)`: the tests of this repository link the crate as users do, and then
// `cfg(test)` is off in it.
#[cfg(feature = "internals")]
mod internals;
mod large;
pub mod metrics;
mod options;
mod partition;
mod provided;
mod readable;
mod salvage;
pub mod simulate;
mod snapshot;
mod transaction;

// The names that an application writes are at the root. Names that only implementors of hooks, file
// systems and tools need are in modules, so that they do not hide the others. The colons name
// crates: two modules of this crate have the names of crates.
pub use ::largeval::LargeValueOptions;
pub use ::metahive::{MetaHive, MetaHiveOptions};
pub use batch::{Batch, PartitionBatch};
pub use builder::Builder;
pub use db::{Db, TransactOptions};
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use lsm_core::db::BackgroundMode;
pub use lsm_core::db::{
    BackgroundFailure, BulkLoad, Class, Commit, DoubtfulKeys, Durable, ExportOptions,
    ExportSummary, Gauge, Health, IngestSummary, LeaseHolder, PartitionHealth, Reason, Resume,
    SalvageReport, SalvagedPartition, Severity, StallHealth, Swap, TransactionCursor,
    TransactionKeys, TransactionRange, Updated, VerifyMark, VerifyOptions, VerifyProgress,
    VerifyReport,
};
pub use lsm_core::error::{Damage, Error, ErrorKind, Result};
pub use lsm_core::filters::{PrefixDropFilter, TimeUnit, TimeWidth, TtlFilter, TtlRule};
pub use lsm_core::hooks::{ChunkChange, Event, EventListener, Hooks};
pub use lsm_core::options::{
    CompactionStyle, Compression, Durability, Options, PrefixExtractor, ResourceOptions,
    WriteOptions,
};
pub use lsm_core::read::{Cursor, KeyRange, Keys, Range, ReadCursor, RemainingTime};
pub use lsm_core::stats::{LevelStats, PartitionStats, Stats, ValueStoreStats};
pub use lsm_core::types::{Epoch, Gap, SeqNo, Slice};
pub use lsm_core::{ResourceUsage, Resources};
pub use options::PartitionOptions;
pub use partition::Partition;
pub use readable::Readable;
pub use snapshot::{PartitionSnapshot, Snapshot};
pub use transaction::{PartitionTransaction, Transaction};

/// The commits of a database in their order: [`Db::changes`].
pub mod changes {
    pub use lsm_core::changes::{
        ChangedPartition, Changes, CommittedBatch, FeedItem, KeyChange, LoggedValue,
    };
}

/// The clock of a database: [`Builder::clock`].
pub mod clock {
    pub use lsm_core::clock::{Clock, SystemClock};
}

/// The file system under a database: [`Builder::fs`].
///
/// [`OsFs`](fs::OsFs) is the operating system's. [`MemFs`](fs::MemFs) is in memory and can show the
/// states that a power cut may leave, for tests of an application. An application may implement
/// [`Fs`](fs::Fs) and [`File`](fs::File) for another medium; their pages state the obligations.
pub mod fs {
    pub use lsm_core::fs::{
        AppendMode, Caps, CrashOutcome, DirEntry, File, FolderLook, FolderState, Fs, HeldDir,
        HeldNames, LockGuard, MapMode, MappedBytes, MappedFile, MemFs, NameHolder, OsFs,
        SharedWords, SyncLoss,
    };
}

/// Compaction filters, value stores and listeners: the parts that an application may write.
///
/// A job over a partition with filters treats each entry of its inputs in this order:
///
/// ```text
/// input (Pass | Take) -> survival rules -> decide (Keep | Remove | Replace) -> boundary -> output
/// ```
///
/// The engine holds no lock when it calls a hook, unless the page of the hook says so. An error fails
/// the job: nothing is installed, and the inputs stay. A panic counts as an error of the call.
pub mod hooks {
    pub use lsm_core::hooks::{
        AddedValue, ChunkChange, ChunkId, CompactionFilter, CompactionFilterFactory, Cut, Decision,
        Dropped, Emitter, EndedBlock, Entry, Event, EventListener, EventQueue, Expiry, Fault,
        Faults, HiddenSink, HookProvider, Hooks, Input, InputTable, Job, JobKind, KeySpan,
        MovePlan, MoveRequest, MovesEnded, NOTED_BYTES_MAX, NamedChunk, NoteForm, Origin, Output,
        OwnedEntry, PartitionHooks, PendingHandle, Properties, Relocation, RelocationJob, Rules,
        Sealer, StoreContext, StoreEdit, StoreFigures, StoreSection, StoreSnapshot, StoreWishes,
        StoredValue, ValueStore, ValueStoreFactory, WhenAbsent,
    };
    pub use lsm_core::types::{EntryKind, FileNo, KeyForm, PartitionId, VALUE_SEED};
}

/// Large values in chunk files: streams, statistics and options. [`PartitionOptions::large_values`]
/// turns them on for a partition; `docs/large-values.md` describes how they work.
pub mod large_values {
    pub use largeval::{
        BlobReader, BlobRef, BlobStat, ChunkInfo, LargeValueOptions, Parallelism, Space,
    };

    pub use crate::large::{BlobWriter, PendingBlob, ReadBlobs, UnkeyedBlobWriter};
}

/// Merge operators: what a partition makes of a value and the operands that are merged into it.
///
/// [`PartitionOptions::merge_operator`] gives a partition one, and [`Partition::merge`] writes an operand. A merge reads
/// nothing, so it costs what a put costs. Reads fold the operands; flushes and compactions write the folded value.
pub mod operators {
    pub use lsm_core::hooks::MergeOperator;
    pub use lsm_core::operators::{AppendOperator, IntegerOperator, SetBitsOperator, ready_made};
}

/// Limits of keys, values, names and counts, as constants.
pub mod limits {
    pub use lsm_core::limits::{
        BACKGROUND_BYTES_PER_SECOND_MIN, FORMAT_BATCH_BYTES_MAX, FORMAT_VALUE_BYTES_MAX,
        LEVEL_COUNT, OPERAND_BYTES_MAX, PARTITION_NAME_BYTES_MAX, PARTITIONS_MAX, SEQNO_MAX,
        USER_KEY_BYTES_MAX,
    };
}

/// Integrity metadata of every entry: options, metadata providers of the application, and the
/// reports of [`Partition::scrub`], [`Partition::explain`] and verified reads.
///
/// The page of the crate [`metahive`](::metahive) lists the detected damage and the costs.
pub mod metahive {
    pub use ::metahive::{
        Counts, EntryFault, ErrorHandler, ExplainedMetadata, ExplainedVersion, Explanation,
        GROUP_BYTES_MAX, GROUP_OTHER_BYTES_MAX, Integrity, MetaHive, MetaHiveOptions,
        MetadataProvider, RepairOptions, Replica, ScrubCounts, ScrubMark, ScrubOptions,
        ScrubProgress, ScrubReport, Sealing, Statistics, TableReport, Unflushed, Verdict, Verified,
        VerifiedBy, VerifiedRange, checksum, judge, payload, table_seal,
    };
}

/// Entries as they are stored, for exports and tools: [`Partition::walk`], [`Partition::versions`]
/// and [`describe_path`](raw::describe_path).
///
/// Ordinary reads return the newest version of a key. This module returns all versions, with
/// tombstones, handles, poisons and hidden entries, and with the place of each. Keys are in their
/// stored form: in a partition with a [`Rules::key_form`](hooks::Rules::key_form), some or all keys end
/// in an additional zero byte.
///
/// ```
/// use siltstone::Db;
/// use siltstone::raw::RawMode;
///
/// # fn main() -> siltstone::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// # let db = Db::open(dir.path())?;
/// let users = db.partition("users")?;
/// users.put("alice", "admin")?;
/// db.flush()?;
/// users.delete("alice")?;
/// assert_eq!(users.versions("alice")?.len(), 2);
/// for table in users.walk()?.tables() {
///     let mut entries = table.walk(RawMode::default())?;
///     while let Some(entry) = entries.next()? {
///         println!("level {}: {:?} {:?}", entry.at.level, entry.key, entry.kind);
///     }
/// }
/// # db.close()
/// # }
/// ```
pub mod raw {
    pub use lsm_core::raw::{
        Description, EntryKind, FileFormat, Hidden, MemtableWalk, Origin, OwnedEntry, RawDamage,
        RawEntry, RawMode, RawTable, RawVersion, SstMeta, SstProperties, TableWalk, Walk, describe,
        describe_path,
    };
    pub use lsm_core::types::{DbId, FileNo, PartitionId};
}

/// Streams of entries for pipes and other engines: [`Db::export_stream`], [`Db::import_stream`].
/// `docs/portability.md` describes them.
pub mod stream {
    pub use ::streams::{
        EntryReader, EntryWriter, StreamEntry, StreamExport, StreamFormat, StreamImport,
        StreamPartition, StreamSummary,
    };
}

/// Read-only instances that follow a database which another process writes: [`Db::secondary`].
///
/// The page of the crate [`secondary`](::secondary) states what each level of consistency
/// guarantees, and `docs/secondary.md` how it works.
pub mod secondary {
    pub use ::secondary::{
        Builder, Follow, FollowedStats, Lag, Level, OnUnmet, ReadOptions, Reading, Secondary,
        SecondaryCut, SecondaryPartition, SecondaryStats, Target,
    };

    pub use crate::following::ReadVerified;
}

/// Compiles the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles the programs of the pages.
#[cfg(doctest)]
#[doc = include_str!("../docs/operations.md")]
#[doc = include_str!("../docs/migration.md")]
mod pages {}
