//! The setters of hooks of [`PartitionOptions`].

use std::sync::Arc;

use largeval::LargeValueOptions;
use lsm_core::hooks::{CompactionFilterFactory, Hooks, MergeOperator, ValueStoreFactory};
use metahive::{MetaHive, MetaHiveOptions};

use super::PartitionOptions;
use crate::{TtlFilter, TtlRule};

impl PartitionOptions {
    /// Gives the partition metadata for every entry: checksums that a flush creates, that every
    /// compaction verifies, and that confirm the repair of damaged entries. See
    /// [`metahive`](crate::metahive). Default: none.
    ///
    /// A partition that is created with MetaHive accepts every key ([`MetaHiveOptions::any_key`]). A
    /// partition that was created without MetaHive refuses keys that end in `0x01` after MetaHive is
    /// turned on. It refuses MetaHive if it has such keys; delete them and compact the partition
    /// first. Entries in existing tables get their metadata in their next compaction. The other filters of the
    /// partition stay, unless the options name filters. [`without_metahive`](Self::without_metahive) turns it off.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{MetaHiveOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    /// ledger.flush()?;
    /// assert!(ledger.verified_get("alice")?.is_some());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn metahive(mut self, options: MetaHiveOptions) -> PartitionOptions {
        self.metahive = Some(options);
        self
    }

    /// Turns MetaHive off: the next compactions remove the metadata. The other filters of the partition stay.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{MetaHiveOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// db.partition_with("ledger", ledger.options().without_metahive())?;
    /// assert!(ledger.filters().is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn without_metahive(self) -> PartitionOptions {
        self.without_filter(MetaHive::NAME)
    }

    /// Removes the filter of this name from the options and from the partition, whose other filters stay.
    /// [`TtlFilter::NAME`] is that of the rule of expiry; expired entries that no compaction has removed are read again
    /// then.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, TtlFilter, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    /// let sessions = db.partition_with("sessions", options)?;
    /// sessions.put("ann", 1u64.to_be_bytes())?; // in 1970
    /// db.partition_with("sessions", sessions.options().without_filter(TtlFilter::NAME))?;
    /// assert!(sessions.contains("ann")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn without_filter(mut self, name: &str) -> PartitionOptions {
        self.metahive = self.metahive.filter(|_| name != MetaHive::NAME);
        self.ttl = self.ttl.filter(|_| name != TtlFilter::NAME);
        if let Some(hooks) = &mut self.hooks {
            hooks.filters.retain(|filter| filter.name() != name);
        }
        self.dropped.push(name.to_owned());
        self
    }

    /// Stores values at or above a threshold in chunk files instead of tables. Each is written once. See
    /// [`large_values`](crate::large_values). Default: all values are in tables.
    ///
    /// In a partition with data, new values follow the options at once; existing values move when
    /// their tables are compacted. [`LargeValueOptions::off`] moves them back in the same way. The
    /// filters of the partition stay, unless the options name other filters.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{LargeValueOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    /// let photos = db.partition_with("photos", options)?;
    /// photos.put("cat", vec![7; 1 << 20])?;
    /// assert_eq!(photos.stat_blob("cat")?.expect("it is there").len, 1 << 20);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn large_values(mut self, options: LargeValueOptions) -> PartitionOptions {
        self.large_values = Some(options);
        self
    }

    /// Sets the merge operator: what [`Partition::merge`](crate::Partition::merge) makes of a value and an operand. See
    /// [`operators`](crate::operators) for those that are ready-made. Default: none.
    ///
    /// Its name and parameters are stored with the partition, and cannot change from then on: stored operands need
    /// them. A partition with data may get one. Later opens find an operator of the application by
    /// [`Builder::merge_operator`](crate::Builder::merge_operator). The filters of the partition stay, unless the
    /// options name other filters.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::PartitionOptions;
    /// use siltstone::operators::IntegerOperator;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
    /// let counters = db.partition_with("counters", options)?;
    /// counters.merge("visits", 1i64.to_le_bytes())?;
    /// counters.merge("visits", 2i64.to_le_bytes())?;
    /// assert_eq!(counters.get("visits")?.as_deref(), Some(&3i64.to_le_bytes()[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn merge_operator(mut self, operator: Arc<dyn MergeOperator>) -> PartitionOptions {
        self.merge_operator = Some(operator);
        self
    }

    /// Sets the rule of expiry: entries whose time has come are not there for reads, and flushes and compactions remove
    /// them. See `docs/expiry.md`. Default: none.
    ///
    /// It is stored, and replaces the rule that the partition has. The other filters of the partition stay, unless the
    /// options name filters. Existing entries are judged by it at once: the bytes of each that the rule names are
    /// taken for its time.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// // Values begin with the second of their expiry.
    /// let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    /// let sessions = db.partition_with("sessions", options)?;
    /// sessions.put("ann", 1u64.to_be_bytes())?; // in 1970
    /// assert!(!sessions.contains("ann")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn ttl(mut self, rule: &TtlRule) -> PartitionOptions {
        self.ttl = Some(rule.clone());
        self
    }

    /// Adds a compaction filter after the filters that these options name already. The filters of the options replace
    /// all those of an existing partition, also its rule of expiry and MetaHive: name these again to keep them. Later
    /// opens find a filter of the application through [`Builder::hooks`](crate::Builder::hooks).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::{PartitionOptions, PrefixDropFilter};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let filter = PrefixDropFilter::new(["tenant-7/"]);
    /// let tenants = db.partition_with("tenants", PartitionOptions::new().filter(Arc::new(filter)))?;
    /// tenants.put("tenant-7/key", "value")?;
    /// tenants.compact(..)?;
    /// assert!(tenants.get("tenant-7/key")?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn filter(mut self, filter: Arc<dyn CompactionFilterFactory>) -> PartitionOptions {
        self.hooks.get_or_insert_default().filters.push(filter);
        self
    }

    /// Sets the store for values that are stored outside of tables. Later opens find it through
    /// [`Builder::hooks`](crate::Builder::hooks). A partition that has a store keeps it. The filters of the partition
    /// stay, unless the options name filters.
    pub fn value_store(mut self, store: Arc<dyn ValueStoreFactory>) -> PartitionOptions {
        self.value_store = Some(store);
        self
    }

    /// Sets the hooks and replaces all hooks that are named already, including MetaHive. Options of
    /// [large values](Self::large_values) stay. [`Hooks::new`] turns all hooks off, but for a value store that
    /// the partition has.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Hooks, MetaHiveOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// db.partition_with("ledger", ledger.options().hooks(Hooks::new()))?;
    /// assert!(ledger.filters().is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn hooks(mut self, hooks: Hooks) -> PartitionOptions {
        self.hooks = Some(hooks);
        // Large values stay. A partition that has a store keeps it, so nothing here could take it
        // away.
        self.ttl = None;
        self.metahive = None;
        self.value_store = None;
        self
    }
}
