//! Secondary indexes: their definition, their entries, and reads by them.
//!
//! An index is a partition of its own, named after its table and itself (`users.by_city`).
//!
//! ```text
//! index        key of an entry                          value
//! unique       key of the index                         key of the row
//! many         key of the index, then key of the row    empty
//! ```
//!
//! Invariant: after each commit an index has exactly the entries that its function names for the rows of the table.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use siltstone::{Db, Partition, PartitionSnapshot, Readable, Transaction};

use crate::catalog::{IndexEntry, TableEntry};
use crate::codec::{Codec, Postcard};
use crate::definition::TableHost;
use crate::error::{Result, TypedError};
use crate::key::{self, Key};
use crate::rows::{ReadsPartitions, TableRows, no_key};

/// The name, the kind and the keys of a secondary index.
pub struct IndexDefinition<I, K, V> {
    name: &'static str,
    is_unique: bool,
    keys: fn(&K, &V) -> Vec<I>,
}

impl<I, K, V> IndexDefinition<I, K, V> {
    /// Returns the definition of an index in which many rows may have one key. `keys` returns the keys of a row: none, one
    /// or several. It must depend on its arguments alone. If it is changed, drop the index and build it again.
    pub const fn new(name: &'static str, keys: fn(&K, &V) -> Vec<I>) -> IndexDefinition<I, K, V> {
        IndexDefinition { name, is_unique: false, keys }
    }

    /// As [`IndexDefinition::new`], but no two rows may have the same key. A write that would make them is
    /// [`TypedError::Taken`].
    pub const fn unique(
        name: &'static str,
        keys: fn(&K, &V) -> Vec<I>,
    ) -> IndexDefinition<I, K, V> {
        IndexDefinition { name, is_unique: true, keys }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

impl<I, K, V> Clone for IndexDefinition<I, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, K, V> Copy for IndexDefinition<I, K, V> {}

impl<I, K, V> fmt::Debug for IndexDefinition<I, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexDefinition").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An index definition without the type of its keys.
pub trait IndexRule<K, V>: Send + Sync {
    /// The entry in the catalog, ready.
    #[doc(hidden)]
    fn entry(&self) -> IndexEntry;

    /// Its name.
    #[doc(hidden)]
    fn name(&self) -> &str;

    /// No two rows have the same key.
    #[doc(hidden)]
    fn is_unique(&self) -> bool;

    /// The encoded keys of a row.
    #[doc(hidden)]
    fn keys(&self, key: &K, value: &V) -> BTreeSet<Vec<u8>>;
}

impl<I: Key, K: Key, V> IndexRule<K, V> for IndexDefinition<I, K, V> {
    fn entry(&self) -> IndexEntry {
        IndexEntry {
            name: self.name.to_owned(),
            key: I::name(),
            is_unique: self.is_unique,
            is_ready: true,
        }
    }

    fn name(&self) -> &str {
        self.name
    }

    fn is_unique(&self) -> bool {
        self.is_unique
    }

    fn keys(&self, key: &K, value: &V) -> BTreeSet<Vec<u8>> {
        (self.keys)(key, value).iter().map(|key| key::encode::<I>(key.view())).collect()
    }
}

/// The name of the partition of an index.
pub(crate) fn index_partition(table: &str, index: &str) -> String {
    format!("{table}.{index}")
}

/// An index of an open table.
pub(crate) struct OpenIndex<K, V, P> {
    pub(crate) rule: Arc<dyn IndexRule<K, V>>,
    pub(crate) partition: P,
}

impl<K, V, P: Clone> Clone for OpenIndex<K, V, P> {
    fn clone(&self) -> Self {
        OpenIndex { rule: self.rule.clone(), partition: self.partition.clone() }
    }
}

impl<K: Key, V, P> OpenIndex<K, V, P> {
    /// The entry for one of the keys of the row `row`.
    fn entry(&self, key: &[u8], row: &[u8]) -> (Vec<u8>, Vec<u8>) {
        match self.rule.is_unique() {
            true => (key.to_vec(), row.to_vec()),
            false => ([key, row].concat(), Vec::new()),
        }
    }
}

impl<K: Key, V> OpenIndex<K, V, Partition> {
    /// Replaces the entries of the row with the encoded key `row`, whose value changes from `old` to `new`.
    pub(crate) fn replace(
        &self,
        transaction: &mut Transaction,
        row: &[u8],
        old: Option<&V>,
        new: Option<&V>,
    ) -> Result<()> {
        let key: K = key::decode(row).ok_or_else(|| no_key::<K>(self.partition.name(), row))?;
        let before = old.map(|value| self.rule.keys(&key, value)).unwrap_or_default();
        let now = new.map(|value| self.rule.keys(&key, value)).unwrap_or_default();
        for gone in before.difference(&now) {
            transaction.delete(&self.partition, self.entry(gone, row).0);
        }
        let is_unique = self.rule.is_unique();
        for added in now.difference(&before) {
            let (entry, value) = self.entry(added, row);
            if is_unique && transaction.contains(&self.partition, &entry)? {
                return Err(TypedError::Taken { index: self.rule.name().to_owned() });
            }
            transaction.put(&self.partition, entry, value);
        }
        Ok(())
    }

    /// Compares the index with the rows, at `snapshot`.
    pub(crate) fn verify<C: Codec>(
        &self,
        snapshot: &siltstone::Snapshot,
        rows: &TableRows<K, V, Partition, C>,
    ) -> Result<IndexReport>
    where
        V: DeserializeOwned,
    {
        let name = self.rule.name().to_owned();
        let mut report = IndexReport { name, entries: 0, missing: 0, surplus: 0 };
        let mut found = 0;
        for row in snapshot.iter(rows.source()) {
            let (row, value) = row?;
            let key: K = key::decode(&row).ok_or_else(|| no_key::<K>(&rows.table, &row))?;
            for key in self.rule.keys(&key, &rows.value(&value)?) {
                let (entry, value) = self.entry(&key, &row);
                match snapshot.get(&self.partition, entry)? {
                    Some(stored) if stored[..] == value[..] => found += 1,
                    _ => report.missing += 1,
                }
            }
        }
        for entry in snapshot.keys(&self.partition) {
            entry?;
            report.entries += 1;
        }
        // Each entry that was found is another one.
        report.surplus = report.entries - found;
        Ok(report)
    }
}

/// The result of [`TypedTable::verify`](crate::TypedTable::verify) for one index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexReport {
    /// Name of the index.
    pub name: String,
    /// Entries of the index.
    pub entries: u64,
    /// Entries that the rows need, and the index lacks.
    pub missing: u64,
    /// Entries that no row needs.
    pub surplus: u64,
}

impl IndexReport {
    /// Returns whether the index has exactly the entries of its rows.
    pub fn is_consistent(&self) -> bool {
        self.missing == 0 && self.surplus == 0
    }
}

/// A secondary index of an open table: [`TypedTable::by`](crate::TypedTable::by).
pub struct TypedIndex<I, K, V, S: TableHost = Db, C = Postcard> {
    pub(crate) host: S,
    pub(crate) name: Arc<str>,
    pub(crate) partition: S::Partition,
    pub(crate) rows: TableRows<K, V, S::Partition, C>,
    pub(crate) catalog: S::Partition,
    /// As the catalog has it when the index has all rows.
    pub(crate) entry: IndexEntry,
    pub(crate) keys: PhantomData<fn() -> I>,
}

impl<I, K, V, S: TableHost, C> TypedIndex<I, K, V, S, C> {
    /// Returns the index as a snapshot, a transaction or a cut of a secondary sees it.
    ///
    /// # Errors
    /// [`TypedError::OtherTypes`] if the index does not have all rows there: it is built later, or was dropped since the
    /// table was opened. It may be built again: open the table again.
    pub fn at<'a, M: ReadsPartitions<S::Partition>>(
        &'a self,
        moment: &'a M,
    ) -> Result<IndexRows<I, K, V, M::Source<'a>, C>> {
        let rows = TableRows::new(moment.source(&self.rows.source)?, self.rows.table.clone());
        self.check_built(&moment.source(&self.catalog)?)?;
        let index = moment.source(&self.partition)?;
        let name = self.name.clone();
        Ok(IndexRows { name, index, rows, is_unique: self.entry.is_unique, keys: PhantomData })
    }

    /// Refuses an index that does not have all rows. One that was built again in another partition is not read: this one
    /// is dropped.
    fn check_built(&self, catalog: &impl Readable) -> Result<()> {
        let table = &*self.rows.table;
        let stored = catalog.get(table)?.map(|text| TableEntry::from_text(table, &text));
        if stored.transpose()?.is_some_and(|stored| stored.indexes.contains(&self.entry)) {
            return Ok(());
        }
        let what = format!("the index {:?} is not built, or was dropped", self.entry.name);
        Err(TypedError::OtherTypes { table: table.to_owned(), what })
    }
}

impl<I, K, V, C> TypedIndex<I, K, V, Db, C> {
    /// Returns the index at present, in a snapshot of its own. Errors are those of [`TypedIndex::at`].
    pub fn now(&self) -> Result<IndexRows<I, K, V, PartitionSnapshot, C>> {
        self.at(&self.host.snapshot())
    }
}

/// An index and its table at one moment.
pub struct IndexRows<I, K, V, R, C = Postcard> {
    /// Of its partition.
    name: Arc<str>,
    index: R,
    rows: TableRows<K, V, R, C>,
    is_unique: bool,
    keys: PhantomData<fn() -> I>,
}

impl<I: Key, K: Key, V: DeserializeOwned, R: Readable, C: Codec> IndexRows<I, K, V, R, C> {
    /// Returns the rows that have `key` in the index, in the order of their keys, from either end. Errors are items.
    ///
    /// # Cost
    /// Each row costs a get of the table.
    pub fn get(&self, key: I::View<'_>) -> impl DoubleEndedIterator<Item = Result<(K, V)>> {
        let entries = self.index.prefix(key::encode::<I>(key));
        entries.map(|entry| {
            let (key, value) = entry?;
            let (_, row) = self.entry(&key, &value)?;
            match self.rows.get(row.view())? {
                Some(value) => Ok((row, value)),
                None => {
                    let index = self.name.to_string();
                    Err(TypedError::Inconsistent { index, key: key.to_vec() })
                }
            }
        })
    }

    /// Returns the keys of the index in `range`, each with the key of its row, from either end. Errors are items. It does
    /// not read the table.
    pub fn range<'a>(
        &self,
        range: impl RangeBounds<I::View<'a>>,
    ) -> impl DoubleEndedIterator<Item = Result<(I, K)>> {
        let entries = self.index.range(key::bounds::<I>(&range, true));
        entries.map(|entry| {
            let (key, value) = entry?;
            self.entry(&key, &value)
        })
    }

    fn entry(&self, entry: &[u8], value: &[u8]) -> Result<(I, K)> {
        let mut rest = entry;
        let index = I::read(&mut rest);
        let row = key::decode(if self.is_unique { value } else { rest });
        index.zip(row).ok_or_else(|| no_key::<(I, K)>(&self.name, entry))
    }
}
