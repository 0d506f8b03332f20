//! [`MetaHiveOptions`]: what an application chooses for the metadata of one partition.
//!
//! The facade takes them for a partition and makes a [`MetaHive`](crate::MetaHive) of them.
//!
//! Invariant: of these only `any_key` and the provider's name and parameters are stored with the
//! partition; the rest is for as long as the database is open.

use std::fmt;
use std::sync::Arc;

use crate::provider::MetadataProvider;
use crate::repair::{ErrorHandler, RepairOptions, Replica};

/// Options of [`MetaHive`](crate::MetaHive). The defaults store integrity metadata, and repair from
/// every source that needs no code of the application.
///
/// The partition stores `any_key` and the name of the provider; both are fixed. It does not store
/// repair options, replica and error handler: the builder or a later `partition_with` must supply them
/// after each open.
#[derive(Clone, Default)]
#[must_use]
pub struct MetaHiveOptions {
    /// `None` is what fits: any key in a partition that is made.
    pub(crate) any_key: Option<bool>,
    /// `None` is [`Integrity`](crate::Integrity).
    pub(crate) provider: Option<Arc<dyn MetadataProvider>>,
    pub(crate) repair: RepairOptions,
}

impl MetaHiveOptions {
    /// Returns the defaults.
    pub fn new() -> MetaHiveOptions {
        MetaHiveOptions::default()
    }

    /// Sets whether the partition accepts keys that end in `0x01`, the ending of metadata keys. If it
    /// does, it stores keys that end in `0x00` or `0x01` with an additional zero byte, and all other
    /// keys unchanged. Fixed when the partition is created. Default: `true` for a partition that is
    /// created with MetaHive. An existing partition does not change; if it was created without MetaHive,
    /// it refuses such keys from then on.
    ///
    /// `true` is an error for a partition that was created without it. `false` is for tables that go to
    /// nodes of older versions; it has no effect on a partition that accepts any key.
    pub fn any_key(mut self, any_key: bool) -> MetaHiveOptions {
        self.any_key = Some(any_key);
        self
    }

    /// Sets a metadata provider instead of [`Integrity`](crate::Integrity). A provider does not accept
    /// the tables of another provider: a partition with such tables returns `Unsupported` until it has
    /// been compacted without MetaHive.
    ///
    /// After an open, the builder or a `HookProvider` of the application must supply the code of the
    /// provider. A `HookProvider` returns it as the filter [`MetaHive::NAME`](crate::MetaHive::NAME)
    /// with the parameters of a [`MetaHive`](crate::MetaHive) of these options. Without the code, the
    /// partition opens and all reads work; new tables have no metadata, and compactions drop existing
    /// metadata. After a later open with the code, compactions make new metadata; the dropped metadata
    /// is lost.
    pub fn provider(mut self, provider: Arc<dyn MetadataProvider>) -> MetaHiveOptions {
        self.provider = Some(provider);
        self
    }

    /// Sets the options of repairs. This also replaces replica and error handler.
    pub fn repair_options(mut self, options: RepairOptions) -> MetaHiveOptions {
        self.repair = options;
        self
    }

    /// Sets a replica, which is asked if no other source of repair has the entry. Default: none.
    pub fn replica(mut self, replica: Arc<dyn Replica>) -> MetaHiveOptions {
        self.repair.replica = Some(replica);
        self
    }

    /// Sets the handler of damage that no source repairs. Default: none.
    pub fn error_handler(mut self, handler: Arc<dyn ErrorHandler>) -> MetaHiveOptions {
        self.repair.error_handler = Some(handler);
        self
    }
}

impl fmt::Debug for MetaHiveOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let provider = self.provider.as_ref().map(|provider| provider.name());
        f.debug_struct("MetaHiveOptions")
            .field("any_key", &self.any_key)
            .field("provider", &provider.unwrap_or(crate::Integrity::NAME))
            .field("repair", &self.repair)
            .finish()
    }
}
