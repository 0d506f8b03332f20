//! [`PartitionOptions`]: the engine's options of a partition, and the hooks that it should have.
//!
//! Given to [`Db::partition_with`](crate::Db::partition_with), which takes them apart again.
//!
//! Invariant: each partition gets a `MetaHive` of its own, so options that are used twice never
//! make two partitions share one.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use lsm_core::hooks::{CompactionFilterFactory, Hooks, ValueStore};
use lsm_core::options::{Compression, PartitionOptions as StoredOptions};
use metahive::{MetaHive, MetaHiveOptions};

/// Options of a partition: how it is stored, and its hooks.
///
/// They are stored with the partition. The fields of [`StoredOptions`], with their units, ranges
/// and defaults, are read through this: `options.block_bytes`. An open that names others changes
/// them for the tables written from then on, except for what is fixed at creation.
///
/// Hooks that are named here are all that the partition has from then on; if none is named, it
/// keeps its own. So MetaHive is turned on for a partition that exists, and off again, like this:
///
/// ```
/// use siltstone::{Db, Hooks, MetaHiveOptions};
///
/// # fn main() -> siltstone::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// # let db = Db::open(dir.path())?;
/// let ledger = db.partition("ledger")?;
/// db.partition_with("ledger", ledger.options().metahive(MetaHiveOptions::default()))?;
/// // ...
/// db.partition_with("ledger", ledger.options().hooks(Hooks::new()))?;
/// # db.close()
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct PartitionOptions {
    stored: StoredOptions,
    /// `None` leaves the hooks as they are.
    hooks: Option<Hooks>,
    /// Comes behind the filters of `hooks`.
    metahive: Option<MetaHiveOptions>,
}

macro_rules! setters {
    ($($name:ident: $type:ty,)*) => {
        $(
            #[doc = concat!("Sets [`", stringify!($name), "`](StoredOptions::", stringify!($name), ").")]
            pub fn $name(mut self, $name: $type) -> PartitionOptions {
                self.stored.$name = $name;
                self
            }
        )*
    };
}

impl PartitionOptions {
    setters! {
        logged: bool,
        compression: Compression,
        block_bytes: u32,
        bloom_bits_per_key: u32,
        table_bytes: u64,
        level0_tables: u32,
        level_base_bytes: u64,
        level_multiplier: u32,
    }

    /// The defaults, and no word about hooks.
    pub fn new() -> PartitionOptions {
        PartitionOptions::default()
    }

    /// Metadata for every entry: checksums that are made when a memtable is flushed, verified by
    /// every compaction, and by which damaged entries are repaired. See [`metahive`].
    ///
    /// Keys that end in `0x01` are refused from then on, and a partition that has such keys refuses
    /// metadata until they are deleted and the partition is compacted. One that is made with
    /// [`MetaHiveOptions::any_key`] takes every key. Entries that lie
    /// in tables get theirs when they are compacted. It is turned off by naming hooks without it
    /// ([`hooks`](Self::hooks)): the metadata that there is goes with the next compactions.
    pub fn metahive(mut self, options: MetaHiveOptions) -> PartitionOptions {
        self.metahive = Some(options);
        self
    }

    /// A compaction filter, behind those named before. Unless it comes with this crate, later
    /// opens find it through [`Builder::hooks`](crate::Builder::hooks).
    pub fn filter(mut self, filter: Arc<dyn CompactionFilterFactory>) -> PartitionOptions {
        self.hooks.get_or_insert_default().filters.push(filter);
        self
    }

    /// A store for values that are kept outside of tables. Later opens find it through
    /// [`Builder::hooks`](crate::Builder::hooks). Fixed once the partition has data.
    pub fn value_store(mut self, store: Arc<dyn ValueStore>) -> PartitionOptions {
        self.hooks.get_or_insert_default().store = Some(store);
        self
    }

    /// Exactly these hooks, whatever was named before, MetaHive included. [`Hooks::new`] turns
    /// all of them off.
    pub fn hooks(mut self, hooks: Hooks) -> PartitionOptions {
        self.hooks = Some(hooks);
        self.metahive = None;
        self
    }

    /// What the engine takes: the options, and the hooks if any word was said about them.
    pub(crate) fn into_parts(self) -> (StoredOptions, Option<Hooks>) {
        let PartitionOptions { stored, hooks, metahive } = self;
        let hooks = match metahive {
            None => hooks,
            Some(options) => {
                Some(hooks.unwrap_or_default().filter(Arc::new(MetaHive::new(options))))
            }
        };
        (stored, hooks)
    }
}

impl From<StoredOptions> for PartitionOptions {
    fn from(stored: StoredOptions) -> PartitionOptions {
        PartitionOptions { stored, ..PartitionOptions::default() }
    }
}

impl Deref for PartitionOptions {
    type Target = StoredOptions;

    fn deref(&self) -> &StoredOptions {
        &self.stored
    }
}

impl fmt::Debug for PartitionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filters = |hooks: &Hooks| -> Vec<_> {
            hooks.filters.iter().map(|filter| filter.name().to_owned()).collect()
        };
        let store = |hooks: &Hooks| hooks.store.as_ref().map(|store| store.name().to_owned());
        f.debug_struct("PartitionOptions")
            .field("stored", &self.stored)
            .field("filters", &self.hooks.as_ref().map(filters))
            .field("value_store", &self.hooks.as_ref().and_then(store))
            .field("metahive", &self.metahive)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_gets_a_metahive_of_its_own() {
        let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
        let made = |options: PartitionOptions| options.into_parts().1.expect("hooks are named");
        let (one, two) = (made(options.clone()), made(options));
        assert_eq!((one.filters.len(), two.filters.len()), (1, 1));
        assert!(!Arc::ptr_eq(&one.filters[0], &two.filters[0]));
    }

    #[test]
    fn hooks_are_left_alone_unless_one_is_named() {
        assert!(PartitionOptions::new().logged(false).into_parts().1.is_none());
        let off = PartitionOptions::new().metahive(MetaHiveOptions::default()).hooks(Hooks::new());
        assert!(off.into_parts().1.is_some_and(|hooks| hooks.filters.is_empty()));
    }
}
