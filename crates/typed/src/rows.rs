//! [`TableRows`]: the reads of a table, at present, in a snapshot, in a transaction or on a secondary.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use siltstone::secondary::{Reading, SecondaryCut, SecondaryPartition};
use siltstone::{
    Partition, PartitionSnapshot, PartitionTransaction, Readable, Slice, Snapshot, Transaction,
};

use crate::codec::{Codec, Postcard};
use crate::error::{Result, TypedError};
use crate::key::{self, Key, KeyPrefix};

/// Made and taken by value, so that a table may go to any thread.
type Types<K, V, C> = fn() -> (K, V, C);

/// The rows of a table in the source `R`: a partition, a snapshot, a transaction or a secondary.
#[derive(Debug)]
pub struct TableRows<K, V, R, C = Postcard> {
    pub(crate) source: R,
    pub(crate) table: Arc<str>,
    types: PhantomData<Types<K, V, C>>,
}

impl<K, V, R: Clone, C> Clone for TableRows<K, V, R, C> {
    fn clone(&self) -> Self {
        TableRows::new(self.source.clone(), self.table.clone())
    }
}

impl<K, V, R, C> TableRows<K, V, R, C> {
    pub(crate) fn new(source: R, table: Arc<str>) -> Self {
        TableRows { source, table, types: PhantomData }
    }

    /// Returns the untyped source: [`Partition`] for a table that was opened for writing.
    pub fn source(&self) -> &R {
        &self.source
    }
}

impl<K: Key, V: DeserializeOwned, R, C: Codec> TableRows<K, V, R, C> {
    pub(crate) fn value(&self, bytes: &[u8]) -> Result<V> {
        C::decode(bytes).map_err(|what| TypedError::Codec {
            table: self.table.to_string(),
            what: format!("a value is no {}: {what}", std::any::type_name::<V>()),
        })
    }
}

impl<K: Key, V: DeserializeOwned, R: Readable, C: Codec> TableRows<K, V, R, C> {
    /// Returns the value of `key`.
    pub fn get(&self, key: K::View<'_>) -> Result<Option<V>> {
        let found = self.source.get(key::encode::<K>(key))?;
        found.map(|bytes| self.value(&bytes)).transpose()
    }

    /// Returns the values of `keys` at one moment, in their order.
    pub fn multi_get(&self, keys: &[K::View<'_>]) -> Result<Vec<Option<V>>> {
        let keys: Vec<_> = keys.iter().map(|key| key::encode::<K>(*key)).collect();
        let found = self.source.multi_get(&keys)?.into_iter();
        found.map(|bytes| bytes.map(|bytes| self.value(&bytes)).transpose()).collect()
    }

    /// Returns whether `key` exists.
    pub fn contains(&self, key: K::View<'_>) -> Result<bool> {
        Ok(self.source.contains(key::encode::<K>(key))?)
    }

    /// Returns the rows whose keys are in `range`, from either end. Errors are items.
    pub fn range<'a>(&self, range: impl RangeBounds<K::View<'a>>) -> TypedRange<K, V, R::Range, C> {
        self.typed(self.source.range(key::bounds::<K>(&range, false)))
    }

    /// Returns all rows, as [`TableRows::range`] does.
    pub fn iter(&self) -> TypedRange<K, V, R::Range, C> {
        self.typed(self.source.iter())
    }

    /// Returns the rows whose tuple keys begin with `parts`, as [`TableRows::range`] does: `prefix((a,))` for those whose
    /// first part is `a`.
    pub fn prefix(&self, parts: impl KeyPrefix<K>) -> TypedRange<K, V, R::Range, C> {
        let mut prefix = Vec::new();
        parts.write(&mut prefix);
        self.typed(self.source.prefix(prefix))
    }

    /// Returns the first row.
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.iter().next().transpose()
    }

    /// Returns the last row.
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.iter().next_back().transpose()
    }

    fn typed(&self, entries: R::Range) -> TypedRange<K, V, R::Range, C> {
        TypedRange { entries, rows: TableRows::new((), self.table.clone()) }
    }
}

/// An iterator over rows, from either end: [`TableRows::range`].
#[derive(Debug)]
pub struct TypedRange<K, V, I, C = Postcard> {
    entries: I,
    rows: TableRows<K, V, (), C>,
}

impl<K: Key, V: DeserializeOwned, I, C: Codec> TypedRange<K, V, I, C> {
    fn row(&self, entry: siltstone::Result<(Slice, Slice)>) -> Result<(K, V)> {
        let (key, value) = entry?;
        let key = key::decode(&key).ok_or_else(|| no_key::<K>(&self.rows.table, &key))?;
        Ok((key, self.rows.value(&value)?))
    }
}

pub(crate) fn no_key<K: Key>(table: &str, key: &[u8]) -> TypedError {
    let what = format!("the key \"{}\" is no {}", key.escape_ascii(), K::name());
    TypedError::Codec { table: table.to_owned(), what }
}

impl<K: Key, V: DeserializeOwned, I, C: Codec> Iterator for TypedRange<K, V, I, C>
where
    I: Iterator<Item = siltstone::Result<(Slice, Slice)>>,
{
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Result<(K, V)>> {
        let entry = self.entries.next()?;
        Some(self.row(entry))
    }
}

impl<K: Key, V: DeserializeOwned, I, C: Codec> DoubleEndedIterator for TypedRange<K, V, I, C>
where
    I: DoubleEndedIterator<Item = siltstone::Result<(Slice, Slice)>>,
{
    fn next_back(&mut self) -> Option<Result<(K, V)>> {
        let entry = self.entries.next_back()?;
        Some(self.row(entry))
    }
}

/// A source that reads any partition `P` at one moment: a [`Snapshot`], a [`Transaction`] or the
/// [`SecondaryCut`] of a secondary.
pub trait ReadsPartitions<P> {
    /// One partition as the source sees it.
    type Source<'a>: Readable
    where
        Self: 'a,
        P: 'a;

    /// Returns `partition` as the source sees it.
    fn source<'a>(&'a self, partition: &'a P) -> Result<Self::Source<'a>>;
}

impl ReadsPartitions<Partition> for Snapshot {
    type Source<'a> = PartitionSnapshot;

    fn source<'a>(&'a self, partition: &'a Partition) -> Result<PartitionSnapshot> {
        Ok(self.of(partition))
    }
}

impl ReadsPartitions<Partition> for Transaction {
    type Source<'a> = PartitionTransaction<'a>;

    fn source<'a>(&'a self, partition: &'a Partition) -> Result<PartitionTransaction<'a>> {
        Ok(self.of(partition))
    }
}

impl ReadsPartitions<SecondaryPartition> for SecondaryCut {
    type Source<'a> = Reading;

    fn source<'a>(&'a self, partition: &'a SecondaryPartition) -> Result<Reading> {
        if let Some(reading) = self.partition(partition) {
            return Ok(reading);
        }
        let what = format!("the cut is older than partition {:?}", partition.name());
        Err(siltstone::Error::new(siltstone::ErrorKind::PartitionNotFound, what).into())
    }
}
