//! [`PartitionOptions`]: how a partition is stored, and which hooks it has.
//!
//! Given to [`Db::partition_with`](crate::Db::partition_with), which takes them apart again.
//!
//! Invariant: each partition gets a `MetaHive` of its own, so options that are used twice never
//! make two partitions share one.

mod getters;
mod hooks;

use std::fmt;
use std::sync::Arc;

use largeval::{LargeValueOptions, LargeValues};
use lsm_core::error::Result;
use lsm_core::hooks::{Hooks, MergeOperator, ValueStoreFactory};
use lsm_core::options::{
    CompactionStyle, Compression, PartitionOptions as StoredOptions, PrefixExtractor,
};
use metahive::{MetaHive, MetaHiveOptions};

use crate::{TtlFilter, TtlRule};

/// Options of a partition: how it is stored, and its hooks.
///
/// They are stored with the partition. A later [`Db::partition_with`](crate::Db::partition_with)
/// with other values changes them, except for [`logged`](PartitionOptions::logged), which is fixed
/// at creation. Existing tables keep their form until a compaction rewrites them.
///
/// A setter has the name of its option, a getter has the prefix `get_`, as in
/// [`std::process::Command`].
///
/// If the options name hooks by [`hooks`](PartitionOptions::hooks) or [`filter`](PartitionOptions::filter), these
/// replace all filters of the partition; otherwise it keeps them, but for those that
/// [`without_filter`](PartitionOptions::without_filter) names. This example turns MetaHive on and off for an existing partition:
///
/// ```
/// use siltstone::{Db, MetaHiveOptions};
///
/// # fn main() -> siltstone::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// # let db = Db::open(dir.path())?;
/// let ledger = db.partition("ledger")?;
/// db.partition_with("ledger", ledger.options().metahive(MetaHiveOptions::default()))?;
/// // ...
/// db.partition_with("ledger", ledger.options().without_metahive())?;
/// # db.close()
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct PartitionOptions {
    pub(crate) stored: StoredOptions,
    /// `None` leaves the hooks as they are.
    hooks: Option<Hooks>,
    /// Filters that the partition does not keep.
    dropped: Vec<String>,
    /// Replaces the store of `hooks`.
    value_store: Option<Arc<dyn ValueStoreFactory>>,
    /// Comes after the filters of `hooks`.
    ttl: Option<TtlRule>,
    /// Comes after all other filters.
    metahive: Option<MetaHiveOptions>,
    /// Replaces `value_store`.
    large_values: Option<LargeValueOptions>,
    /// Replaces the operator of `hooks`.
    merge_operator: Option<Arc<dyn MergeOperator>>,
}

impl PartitionOptions {
    /// Returns the defaults, which name no hooks.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// assert_eq!(PartitionOptions::new().get_block_bytes(), 4096);
    /// ```
    pub fn new() -> PartitionOptions {
        PartitionOptions::default()
    }

    /// Sets whether writes go to the log.
    ///
    /// Without the log, a write costs less and is durable only after a flush. A batch cannot contain
    /// both logged and unlogged partitions. Default `true`, because a crash then loses no commit that
    /// was synced. Fixed when the partition is created.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// // A cache that may be lost in a crash.
    /// let cache = db.partition_with("cache", PartitionOptions::new().logged(false))?;
    /// assert!(!cache.options().get_logged());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn logged(mut self, logged: bool) -> PartitionOptions {
        self.stored.logged = logged;
        self
    }

    /// Sets the compression of tables in level 2 and deeper.
    ///
    /// Tables in levels 0 and 1 are never compressed, because compactions rewrite them soon. Default
    /// [`Compression::Lz4`]. In effect for tables written from then on.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Compression, PartitionOptions};
    ///
    /// // Photos are compressed already.
    /// let options = PartitionOptions::new().compression(Compression::None);
    /// assert_eq!(options.get_compression(), Compression::None);
    /// ```
    pub fn compression(mut self, compression: Compression) -> PartitionOptions {
        self.stored.compression = compression;
        self
    }

    /// Sets the size, in bytes, beyond which a data block is closed.
    ///
    /// A point read takes one block from the device. Small blocks make point reads cheaper; large
    /// blocks make scans faster, compression better and the index smaller. Default 4096, a page of the
    /// device; from 64 bytes to 1 MiB. In effect for tables written from then on.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// let options = PartitionOptions::new().block_bytes(16 << 10);
    /// assert_eq!(options.get_block_bytes(), 16 << 10);
    /// ```
    pub fn block_bytes(mut self, bytes: u32) -> PartitionOptions {
        self.stored.block_bytes = bytes;
        self
    }

    /// Sets the size of the Bloom filter in bits per key.
    ///
    /// The filter avoids reads of tables that do not hold a key. Default 10, which gives a false
    /// positive rate of about 1 %; at most 32; 0 turns the filter off. In effect for tables written
    /// from then on.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// let options = PartitionOptions::new().bloom_bits_per_key(14);
    /// assert_eq!(options.get_bloom_bits_per_key(), 14);
    /// ```
    pub fn bloom_bits_per_key(mut self, bits: u32) -> PartitionOptions {
        self.stored.bloom_bits_per_key = bits;
        self
    }

    /// Sets the size, in bytes, beyond which a table is closed.
    ///
    /// A compaction takes whole tables: small tables give smaller compactions, large tables give fewer
    /// files. Default 64 MiB, at least 1 KiB. In effect for tables written from then on.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// let options = PartitionOptions::new().table_bytes(32 << 20);
    /// assert_eq!(options.get_table_bytes(), 32 << 20);
    /// ```
    pub fn table_bytes(mut self, bytes: u64) -> PartitionOptions {
        self.stored.table_bytes = bytes;
        self
    }

    /// Sets the number of tables that triggers a compaction of level 0.
    ///
    /// A read searches each table of level 0, so a small number makes reads cheaper; a large number
    /// gives fewer compactions. Default 4, at least 2. In effect at once.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// let options = PartitionOptions::new().level0_tables(8);
    /// assert_eq!(options.get_level0_tables(), 8);
    /// ```
    pub fn level0_tables(mut self, tables: u32) -> PartitionOptions {
        self.stored.level0_tables = tables;
        self
    }

    /// Sets the target size, in bytes, of the first level below level 0.
    ///
    /// Default 256 MiB, which is four tables of level 0 with the default write buffer; at least 1
    /// KiB. In effect at once: levels above their target are compacted.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// let options = PartitionOptions::new().level_base_bytes(64 << 20);
    /// assert_eq!(options.get_level_base_bytes(), 64 << 20);
    /// ```
    pub fn level_base_bytes(mut self, bytes: u64) -> PartitionOptions {
        self.stored.level_base_bytes = bytes;
        self
    }

    /// Sets the ratio between the target sizes of two adjacent levels.
    ///
    /// A large ratio gives fewer levels and higher write amplification in each level. Default 10,
    /// from 2 to 100. In effect at once: levels above their target are compacted.
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// let options = PartitionOptions::new().level_multiplier(8);
    /// assert_eq!(options.get_level_multiplier(), 8);
    /// ```
    pub fn level_multiplier(mut self, multiplier: u32) -> PartitionOptions {
        self.stored.level_multiplier = multiplier;
        self
    }

    /// Sets the prefix of keys that the Bloom filters of tables have as well, or none.
    ///
    /// A range or prefix whose keys all have one prefix by the extractor asks each table for it, and does not
    /// search the tables that do not have it. All other reads are as without the option, and no read returns
    /// fewer entries than without it. A bloom takes `bloom_bits_per_key` more for each prefix in its table.
    /// Default `None`. In effect for tables written from then on; tables that were written with another
    /// extractor are searched. No effect with `bloom_bits_per_key(0)`. See `docs/prefixes.md`.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, PrefixExtractor};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().prefix_extractor(PrefixExtractor::Through(b'/'));
    /// let mails = db.partition_with("mails", options)?;
    /// mails.put("ann/1", "Hello")?;
    /// mails.put("cleo/1", "Hi")?;
    /// mails.flush()?;
    /// assert_eq!(mails.prefix("bob/").count(), 0);
    /// assert_eq!(db.stats().prefix_spared_count, 1); // its only table
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn prefix_extractor(
        mut self,
        extractor: impl Into<Option<PrefixExtractor>>,
    ) -> PartitionOptions {
        self.stored.prefix_extractor = extractor.into();
        self
    }

    /// Sets the rule by which tables are merged, or removed.
    ///
    /// [`CompactionStyle::Fifo`] keeps the newest tables and removes the oldest ones with all their entries, beyond a
    /// number of bytes or an age. No table is merged: a get asks the filter of each table, and a scan reads all of them.
    /// Default [`CompactionStyle::Leveled`]. In effect at once; tables stay where they are. See
    /// `docs/compaction-styles.md`.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{CompactionStyle, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let fifo = CompactionStyle::Fifo { bytes_max: 3000, seconds_max: u64::MAX };
    /// let options = PartitionOptions::new().compaction_style(fifo);
    /// let events = db.partition_with("events", options)?;
    /// for n in 0..20 {
    ///     events.put(format!("event {n:02}"), "it happened")?;
    ///     events.flush()?; // a table
    /// }
    /// db.wait_idle()?;
    /// assert!(!events.contains("event 00")?);
    /// assert!(events.contains("event 19")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn compaction_style(mut self, style: CompactionStyle) -> PartitionOptions {
        self.stored.compaction_style = style;
        self
    }

    /// Returns the options that the engine stores, and the hooks if any were named.
    ///
    /// # Errors
    /// A limit, for options of large values out of their range.
    pub(crate) fn into_parts(self) -> Result<(StoredOptions, Option<Hooks>)> {
        let are_named = self.hooks.is_some();
        // Without this, options of large values alone, or a merge operator, would end the MetaHive of a partition, and
        // MetaHive its rule of expiry.
        let kept = Hooks { keeps_filters: true, ..Hooks::default() };
        let mut hooks = self.hooks.unwrap_or(kept);
        if let Some(rule) = self.ttl {
            hooks = hooks.filter(Arc::new(TtlFilter::stored(&rule)));
        }
        if let Some(options) = self.metahive {
            // Made here, for each partition that the options are given to: it counts, and remembers
            // by file numbers what it has repaired. After the filters of the application, so that
            // it seals the entries that they leave.
            hooks = hooks.filter(Arc::new(MetaHive::new(options)));
        }
        if let Some(store) = self.value_store {
            hooks = hooks.value_store(store);
        }
        if let Some(options) = self.large_values {
            hooks = hooks.value_store(Arc::new(LargeValues::new(options)?));
        }
        if let Some(operator) = self.merge_operator {
            hooks = hooks.merge_operator(operator);
        }
        hooks.dropped.extend(self.dropped);
        let names_any = are_named
            || hooks.store.is_some()
            || hooks.merge_operator.is_some()
            || !(hooks.filters.is_empty() && hooks.dropped.is_empty());
        Ok((self.stored, names_any.then_some(hooks)))
    }
}

impl From<StoredOptions> for PartitionOptions {
    fn from(stored: StoredOptions) -> PartitionOptions {
        PartitionOptions { stored, ..PartitionOptions::default() }
    }
}

impl fmt::Debug for PartitionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks = self.hooks.as_ref();
        f.debug_struct("PartitionOptions")
            .field("stored", &self.stored)
            // By name: hooks of an application need not implement `Debug`.
            .field("filters", &hooks.map(filter_names))
            .field("dropped", &self.dropped)
            .field("value_store", &self.value_store.as_ref().map(|it| it.name().to_owned()))
            .field("ttl", &self.ttl)
            .field("metahive", &self.metahive)
            .field("large_values", &self.large_values)
            .field("merge_operator", &self.merge_operator.as_ref().map(|it| it.name().to_owned()))
            .finish()
    }
}

fn filter_names(hooks: &Hooks) -> Vec<String> {
    hooks.filters.iter().map(|filter| filter.name().to_owned()).collect()
}

#[cfg(test)]
mod tests;
