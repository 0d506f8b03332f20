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

/// Options of [`MetaHive`](crate::MetaHive). The defaults keep integrity metadata and repair with
/// every source that needs nothing from the application.
///
/// `any_key` and the provider are stored with the partition, and fixed: by them a database that is
/// opened again finds it. Repair options, replica and error handler are not: unless the builder gives
/// them to the partition, repairs do without until it is asked for with them again.
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
    /// The defaults.
    pub fn new() -> MetaHiveOptions {
        MetaHiveOptions::default()
    }

    /// Sets whether keys that end in `0x01` are welcome, which are the endings of metadata: keys that end
    /// in `0x00` or `0x01` are then stored with a zero byte more, and all others as they are. Fixed
    /// when the partition is made. Default: yes for a partition that is made with MetaHive; one that
    /// exists stays as it is, and if it was made without MetaHive refuses such keys from then on.
    ///
    /// `true` is refused for a partition that was made otherwise. `false` is for tables that go to
    /// nodes of older versions, and without effect on a partition that takes any key.
    pub fn any_key(mut self, any_key: bool) -> MetaHiveOptions {
        self.any_key = Some(any_key);
        self
    }

    /// Another provider in the place of integrity. One provider does not go on with the tables of
    /// another: a partition that has such tables is refused as `Unsupported` at once, until it was
    /// compacted without MetaHive.
    ///
    /// A database that is opened again does not know the provider's code. The builder gives it to
    /// the partition, or an application's `HookProvider`: for the filter
    /// [`MetaHive::NAME`](crate::MetaHive::NAME) with the parameters of a
    /// [`MetaHive`](crate::MetaHive) of these options. Without it the partition
    /// opens plainly, and everything reads as before; tables that are written then hold no
    /// metadata, and compactions drop what they meet of it. A later open with it has
    /// compactions make metadata anew; what the old one said of those entries is gone.
    pub fn provider(mut self, provider: Arc<dyn MetadataProvider>) -> MetaHiveOptions {
        self.provider = Some(provider);
        self
    }

    /// Sets how repairs look for the good bytes. Takes the place of replica and error handler, too.
    pub fn repair_options(mut self, options: RepairOptions) -> MetaHiveOptions {
        self.repair = options;
        self
    }

    /// A copy of the data elsewhere, asked when no other source of repair has the entry. Default:
    /// none.
    pub fn replica(mut self, replica: Arc<dyn Replica>) -> MetaHiveOptions {
        self.repair.replica = Some(replica);
        self
    }

    /// Sets the handler of damage that no source repairs. Default: nobody.
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
