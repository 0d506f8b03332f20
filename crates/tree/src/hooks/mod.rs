//! Hooks, the extension points for sister crates and applications: compaction filters, value stores,
//! merge operators and listeners.
//!
//! The manifest stores the names of the hooks of a partition, with their parameters and rules. The
//! engine enforces the rules even if the code of a hook is missing. A rule also says whether a
//! partition opens without the code of a hook. The engine depends on no specific hook.
//!
//! A job over a partition with filters runs in this order, for each entry of its inputs:
//!
//! ```text
//! input (Pass | Take) -> survival rules -> decide (Keep | Remove | Replace) -> boundary -> output
//! ```
//!
//! Invariants:
//! 1. No hook is called under a lock of the engine, unless its doc says so.
//! 2. An `Err` fails the job: nothing is installed, the inputs stay. So does a fault: no other hook is
//!    called for the entry, or for one after it. If the filter verifies blocks, the table is repaired, and the
//!    job runs again.
//! 3. A panic of a hook is an `Err` of the call that it happened in, or of the job where that call
//!    has none to return: see `guarded.rs`.

mod attached_store;
mod catch;
mod event;
mod expiry;
mod fault;
mod filter;
mod guarded;
mod merge_operator;
mod note;
mod repair;
mod sealer;
mod store;
mod store_context;
mod store_stats;
mod trace;
mod verify;

use std::sync::Arc;

pub use attached_store::AttachedStore;
pub use event::{ChunkChange, Event, EventListener};
pub use expiry::{Ageing, Expiry};
pub use fault::{Fault, Faults, OwnedEntry};
pub use filter::{
    CompactionFilter, CompactionFilterFactory, Cut, Decision, Emitter, HiddenSink, Input,
    InputTable, Job, JobKind, Output, Properties,
};
pub use guarded::as_any;
pub use merge_operator::{AttachedOperator, MergeOperator, SuppliedOperator};
pub use note::{EndedBlock, NOTED_BYTES_MAX, NoteForm};
pub use repair::{
    BlockVerdict, DamagedBlock, DamagedTable, DecodedBlock, DecodedEntry, Piece, RepairSources,
    RepairedBlock, RepairedEntry, TableRepair, TableVerdict,
};
pub use sealer::Sealer;
pub use store::{
    AddedValue, Dropped, JobValues, KeySpan, MovePlan, MoveRequest, MovesEnded, NamedChunk,
    PendingHandle, Relocation, RelocationJob, StoreEdit, StoreFigures, StoreSnapshot, StoredValue,
    ValueStore, ValueStoreFactory,
};
pub use store_context::{
    ChunkId, EventQueue, OtherWriter, StoreContext, StoreSection, StoreWishes,
};
pub use store_stats::ValueStoreStats;
pub use trace::trace;
pub use verify::{BlockVerifier, EachEntry, InputBlock, VerifiedBlock, VerifiedEntry, Verifier};

pub use catch::{catch, catch_blamed, catch_engine};
pub use expiry::KnownAgeing;
pub use guarded::{JobFilter, guarded_filter};
pub use repair::{Findings, Inject, JobFindings};
pub use store_context::OpenWishes;

use crate::types::{EntryKind, FileNo, KeyForm, SeqNo};

/// The rules that the engine enforces for a hook, present or not. Stored with the partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// User keys with this ending are refused on every write and ingest, as
    /// [`ErrorKind::ReservedKey`](crate::error::ErrorKind::ReservedKey): keys of hidden entries end so.
    pub reserved_suffix: Vec<u8>,
    /// The form in which keys are stored, which readers do not see. In a form that accepts any key, no
    /// stored key ends in the reserved suffix, whose last byte must be `0x01`. Fixed when the partition
    /// is created.
    pub key_form: KeyForm,
    /// The effect of an open without the code of the hook.
    pub when_absent: WhenAbsent,
}

/// The effect of opening a partition without the code of one of its hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenAbsent {
    /// The partition opens for reading and writing; compactions drop hidden entries.
    #[default]
    OpenPlainly,
    /// The partition does not open, because its data has no meaning without the hook.
    Refuse,
}

/// A source of the code of hooks, by their stored names.
pub trait HookProvider: Send + Sync + 'static {
    /// Returns the compaction filter `name` with these stored parameters, if this provider has it.
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>>;

    /// The same for the partition `partition`, where that makes a difference.
    fn compaction_filter_of(
        &self,
        partition: &str,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        let _ = partition;
        self.compaction_filter(name, params)
    }

    /// Returns the value store `name` with these stored parameters, if this provider has it.
    fn value_store(&self, name: &str, params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        let _ = (name, params);
        None
    }

    /// Returns the merge operator `name` with these stored parameters, if this provider has it.
    fn merge_operator(&self, name: &str, params: &[u8]) -> Option<Arc<dyn MergeOperator>> {
        let _ = (name, params);
        None
    }
}

/// Two sources of hooks, asked one after the other.
pub struct HookSources {
    /// Asked first.
    first: Arc<dyn HookProvider>,
    /// Asked for what the first one does not have.
    then: Arc<dyn HookProvider>,
}

impl HookSources {
    /// Returns `first`, which is asked before `then` if there is one.
    pub fn before(
        first: Arc<dyn HookProvider>,
        then: Option<Arc<dyn HookProvider>>,
    ) -> Arc<dyn HookProvider> {
        match then {
            Some(then) => Arc::new(HookSources { first, then }),
            None => first,
        }
    }
}

impl HookProvider for HookSources {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        let found = self.first.compaction_filter(name, params);
        found.or_else(|| self.then.compaction_filter(name, params))
    }

    fn compaction_filter_of(
        &self,
        partition: &str,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        let found = self.first.compaction_filter_of(partition, name, params);
        found.or_else(|| self.then.compaction_filter_of(partition, name, params))
    }

    fn value_store(&self, name: &str, params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        self.first.value_store(name, params).or_else(|| self.then.value_store(name, params))
    }

    fn merge_operator(&self, name: &str, params: &[u8]) -> Option<Arc<dyn MergeOperator>> {
        self.first.merge_operator(name, params).or_else(|| self.then.merge_operator(name, params))
    }
}

/// An entry as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The stored key: the user key in the form of [`Rules::key_form`].
    pub key: &'a [u8],
    /// The effective sequence number.
    pub seq: SeqNo,
    /// The sequence number in the file, which differs in an ingested file.
    pub stored_seq: SeqNo,
    /// Its kind.
    pub kind: EntryKind,
    /// Its value, payload or handle.
    pub value: &'a [u8],
    /// `true` if a compaction filter added it.
    pub hidden: bool,
}

/// The place of an entry. It identifies the entry as long as the file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The table; `None` for a memtable.
    pub file: Option<FileNo>,
    /// The level of the table.
    pub level: usize,
    /// Offset of the block in the file, in bytes.
    pub block_offset: u64,
    /// The index of the entry in the block, with hidden entries counted.
    pub entry: u32,
    /// `true` if the block's checksum agreed. If not, the entry is suspect.
    pub block_verified: bool,
}

impl Origin {
    /// An entry of a memtable.
    pub const MEMTABLE: Origin =
        Origin { file: None, level: 0, block_offset: 0, entry: 0, block_verified: true };
}

/// The hooks that a partition should have.
#[derive(Clone, Default)]
#[must_use]
pub struct Hooks {
    /// Filters in the order in which they run.
    pub filters: Vec<Arc<dyn CompactionFilterFactory>>,
    /// The store of large values. If it is `None`, a partition keeps the store that it has.
    pub store: Option<Arc<dyn ValueStoreFactory>>,
    /// The merge operator. If it is `None`, a partition keeps the operator that it has.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// `true` if an existing partition keeps its filters; those of `filters` come in addition, or in the
    /// place of filters of the same name.
    pub keeps_filters: bool,
    /// Names of filters that an existing partition does not keep.
    pub dropped: Vec<String>,
}

impl Hooks {
    /// None.
    pub fn new() -> Hooks {
        Hooks::default()
    }

    /// Adds a compaction filter after the existing ones.
    pub fn filter(mut self, filter: Arc<dyn CompactionFilterFactory>) -> Hooks {
        self.filters.push(filter);
        self
    }

    /// Sets the store of large values.
    pub fn value_store(mut self, store: Arc<dyn ValueStoreFactory>) -> Hooks {
        self.store = Some(store);
        self
    }

    /// Returns `true` if it has, or drops, a filter of this name.
    pub fn names_filter(&self, name: &str) -> bool {
        self.filters.iter().any(|filter| filter.name() == name)
            || self.dropped.iter().any(|it| it == name)
    }

    /// Sets the merge operator.
    pub fn merge_operator(mut self, operator: Arc<dyn MergeOperator>) -> Hooks {
        self.merge_operator = Some(operator);
        self
    }
}

/// The hooks of a partition whose code is present, and the rules of all of them.
#[derive(Clone, Default)]
pub struct PartitionHooks {
    /// Filters in the order in which they run; at most one of them seals.
    pub filters: Vec<Arc<dyn CompactionFilterFactory>>,
    /// The store of large values.
    pub store: Option<Arc<AttachedStore>>,
    /// The merge operator.
    pub operator: Option<Arc<AttachedOperator>>,
    /// The store from which a job reads the values below operands, if it gives the partition's store none: of an
    /// export.
    pub base_values: Option<Arc<AttachedStore>>,
    /// The rules that the engine enforces, also for hooks whose code is missing.
    pub rules: Rules,
    /// A hook that the partition cannot do without and whose code is missing.
    pub missing: Option<String>,
    /// The names of filters whose code is missing and that the partition can do without.
    pub absent: Vec<String>,
    /// See [`PartitionHooks::ageing`].
    pub ageing: KnownAgeing,
}

impl PartitionHooks {
    /// Returns `true` if a filter adds hidden entries.
    pub fn seals(&self) -> bool {
        self.sealing().is_some()
    }

    /// Returns `true` if a filter may remove or replace entries.
    pub fn decides(&self) -> bool {
        self.filters.iter().any(|filter| filter.decides())
    }

    /// The filter that adds hidden entries.
    pub fn sealing(&self) -> Option<&Arc<dyn CompactionFilterFactory>> {
        self.filters.iter().find(|filter| filter.sealer().is_some())
    }

    /// Its contract about tables and gaps.
    pub fn sealer(&self) -> Option<&dyn Sealer> {
        self.filters.iter().find_map(|filter| filter.sealer())
    }

    /// The same, if it verifies and repairs blocks.
    pub fn verifying(&self) -> Option<&dyn Sealer> {
        self.sealer().filter(|sealer| sealer.verifies())
    }
}
