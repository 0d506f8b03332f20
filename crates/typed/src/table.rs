//! [`TypedTable`]: an open table. Its reads are those of [`TableRows`]; its writes also write to the indexes.
//!
//! Invariant: a write is refused unless the catalog has the entry with which the table was opened. A handle that lacks an
//! index would leave it without the entries of the row.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use siltstone::{
    Batch, Commit, Db, Durability, Error, ErrorKind, Partition, PartitionBatch, SeqNo, Transaction,
};

use crate::codec::{Codec, Postcard};
use crate::definition::TableHost;
use crate::error::{Result, TypedError};
use crate::index::{IndexDefinition, IndexReport, OpenIndex, TypedIndex, index_partition};
use crate::key::{self, Key};
use crate::rows::{ReadsPartitions, TableRows};

/// A table of a database or, for reads, of a secondary: [`TableDefinition::open`](crate::TableDefinition::open),
/// [`TableDefinition::follow`](crate::TableDefinition::follow). Cheap to clone; it may be used by many threads.
///
/// The reads of a table of a database are the methods of [`TableRows`], at present; [`TypedTable::at`] returns the same
/// methods in a snapshot or a transaction.
pub struct TypedTable<K, V, S: TableHost = Db, C = Postcard> {
    pub(crate) host: S,
    pub(crate) rows: TableRows<K, V, S::Partition, C>,
    pub(crate) catalog: S::Partition,
    pub(crate) indexes: Vec<OpenIndex<K, V, S::Partition>>,
    /// The text in the catalog.
    pub(crate) entry: Arc<str>,
    /// The catalog was not changed between the commit of `entry` and this number.
    pub(crate) seq: SeqNo,
}

impl<K, V, S: TableHost, C> TypedTable<K, V, S, C> {
    /// Returns the rows as a snapshot, a transaction or a cut of a secondary sees them.
    pub fn at<'a, M: ReadsPartitions<S::Partition>>(
        &'a self,
        moment: &'a M,
    ) -> Result<TableRows<K, V, M::Source<'a>, C>> {
        Ok(TableRows::new(moment.source(&self.rows.source)?, self.rows.table.clone()))
    }

    /// Returns an index of the table.
    ///
    /// # Errors
    /// [`TypedError::OtherTypes`] if the table was not opened with this index.
    pub fn by<I>(&self, index: &IndexDefinition<I, K, V>) -> Result<TypedIndex<I, K, V, S, C>>
    where
        IndexDefinition<I, K, V>: crate::index::IndexRule<K, V>,
    {
        let wanted = crate::index::IndexRule::entry(index);
        let found = self.indexes.iter().find(|open| open.rule.entry() == wanted);
        let found = found.ok_or_else(|| TypedError::OtherTypes {
            table: self.rows.table.to_string(),
            what: format!("it was opened without the index {:?}", index.name()),
        })?;
        Ok(TypedIndex {
            host: self.host.clone(),
            name: index_partition(&self.rows.table, index.name()).into(),
            partition: found.partition.clone(),
            rows: TableRows::new(self.rows.source.clone(), self.rows.table.clone()),
            catalog: self.catalog.clone(),
            entry: wanted,
            keys: PhantomData,
        })
    }
}

impl<K: Key, V: Serialize + DeserializeOwned, C: Codec> TypedTable<K, V, Db, C> {
    /// Sets `key` to `value`, and returns the commit, with [`Durability::Os`]. For several rows or for reads in the same
    /// commit, see [`TypedTable::put_in`] and [`TypedTable::batch`].
    ///
    /// # Errors
    /// [`TypedError::Taken`], [`TypedError::Stale`], [`TypedError::Codec`], and those of the store.
    ///
    /// # Cost
    /// Without indexes a put with one requirement. With indexes a transaction: it reads the old value, and is repeated
    /// after conflicts.
    pub fn put(&self, key: K::View<'_>, value: &V) -> Result<Commit> {
        self.put_with(key, value, Durability::Os)
    }

    /// Sets `key` to `value` as [`TypedTable::put`] does, with the given durability.
    pub fn put_with(&self, key: K::View<'_>, value: &V, durability: Durability) -> Result<Commit> {
        self.write(key, Some(value), durability)
    }

    /// Deletes `key`, as [`TypedTable::put`] sets it. A key that does not exist is no error.
    pub fn delete(&self, key: K::View<'_>) -> Result<Commit> {
        self.delete_with(key, Durability::Os)
    }

    /// Deletes `key` as [`TypedTable::delete`] does, with the given durability.
    pub fn delete_with(&self, key: K::View<'_>, durability: Durability) -> Result<Commit> {
        self.write(key, None, durability)
    }

    /// Sets `key` to `value` in `transaction`. A unique index is compared at this call, not at the commit.
    ///
    /// # Errors
    /// As [`TypedTable::put`]. After [`TypedError::Taken`], drop the transaction or roll it back to a savepoint: some
    /// entries of indexes may be changed in it.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::{Db, Durability};
    /// # use typed::{TableDefinition, TypedError};
    /// # fn main() -> typed::Result<()> {
    /// # let db = Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let balances = TableDefinition::<String, u64>::new("balances").open(&db)?;
    /// balances.put("anna", &100)?;
    /// db.transact_with(Durability::Sync, |transaction| {
    ///     let anna = balances.at(transaction)?.get("anna")?.unwrap_or(0);
    ///     balances.put_in(transaction, "anna", &(anna - 30))?;
    ///     balances.put_in(transaction, "ben", &30)?;
    ///     Ok::<_, TypedError>(())
    /// })?;
    /// assert_eq!(balances.get("anna")?, Some(70));
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_in(&self, transaction: &mut Transaction, key: K::View<'_>, value: &V) -> Result<()> {
        self.write_in(transaction, &key::encode::<K>(key), Some(value))
    }

    /// Deletes `key` in `transaction`, as [`TypedTable::put_in`] sets it.
    pub fn delete_in(&self, transaction: &mut Transaction, key: K::View<'_>) -> Result<()> {
        self.write_in(transaction, &key::encode::<K>(key), None)
    }

    /// Returns the part of `batch` for this table.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a table with indexes: a batch does not read the old values. Use a transaction.
    pub fn batch<'a>(&'a self, batch: &'a mut Batch) -> Result<TableBatch<'a, K, V, C>> {
        if !self.indexes.is_empty() {
            let what = format!(
                "table {:?} has indexes: use a transaction instead of a batch",
                self.rows.table
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what).into());
        }
        batch.of(&self.catalog).require(&*self.rows.table, self.seq);
        Ok(TableBatch { batch: batch.of(self.rows.source()), table: self })
    }

    /// Deletes all rows and all entries of indexes, in one commit.
    pub fn clear(&self) -> Result<Commit> {
        self.clear_with(Durability::Os)
    }

    /// Deletes all rows as [`TypedTable::clear`] does, with the given durability.
    pub fn clear_with(&self, durability: Durability) -> Result<Commit> {
        let mut batch = self.host.batch().clear(self.rows.source());
        for index in &self.indexes {
            batch = batch.clear(&index.partition);
        }
        batch.of(&self.catalog).require(&*self.rows.table, self.seq);
        batch.commit(durability).map_err(|error| self.stale_or(error))
    }

    /// Compares all indexes with the rows, in one snapshot. Reads the table once for each index.
    pub fn verify(&self) -> Result<Vec<IndexReport>> {
        let snapshot = self.host.snapshot();
        self.indexes.iter().map(|index| index.verify(&snapshot, &self.rows)).collect()
    }

    fn write(&self, key: K::View<'_>, value: Option<&V>, durability: Durability) -> Result<Commit> {
        let key = key::encode::<K>(key);
        if !self.indexes.is_empty() {
            let written = self
                .host
                .transact_with(durability, |transaction| self.write_in(transaction, &key, value));
            return written.map(|((), commit)| commit);
        }
        let mut batch = self.host.batch();
        match value {
            Some(value) => _ = batch.of(self.rows.source()).put(&key, self.encode(value)?),
            None => _ = batch.of(self.rows.source()).delete(&key),
        }
        batch.of(&self.catalog).require(&*self.rows.table, self.seq);
        batch.commit(durability).map_err(|error| self.stale_or(error))
    }

    fn write_in(&self, transaction: &mut Transaction, key: &[u8], value: Option<&V>) -> Result<()> {
        // By a read, which the commit validates. A requirement would be a conflict again in each repetition.
        let entry = transaction.get(&self.catalog, &*self.rows.table)?;
        if entry.as_deref() != Some(self.entry.as_bytes()) {
            return Err(self.stale());
        }
        if !self.indexes.is_empty() {
            let old = transaction.get(self.rows.source(), key)?;
            let old = old.map(|old| self.rows.value(&old)).transpose()?;
            for index in &self.indexes {
                index.replace(transaction, key, old.as_ref(), value)?;
            }
        }
        match value {
            Some(value) => transaction.put(self.rows.source(), key, self.encode(value)?),
            None => transaction.delete(self.rows.source(), key),
        }
        Ok(())
    }

    fn encode(&self, value: &V) -> Result<Vec<u8>> {
        C::encode(value)
            .map_err(|what| TypedError::Codec { table: self.rows.table.to_string(), what })
    }

    fn stale(&self) -> TypedError {
        TypedError::Stale { table: self.rows.table.to_string() }
    }

    /// The error of a commit that requires the entry of the catalog, and nothing else.
    pub(crate) fn stale_or(&self, error: Error) -> TypedError {
        if error.kind() == ErrorKind::Conflict { self.stale() } else { error.into() }
    }
}

impl<K, V, C> Deref for TypedTable<K, V, Db, C> {
    type Target = TableRows<K, V, Partition, C>;

    fn deref(&self) -> &Self::Target {
        &self.rows
    }
}

impl<K, V, S: TableHost, C> Clone for TypedTable<K, V, S, C> {
    fn clone(&self) -> Self {
        TypedTable {
            host: self.host.clone(),
            rows: self.rows.clone(),
            catalog: self.catalog.clone(),
            indexes: self.indexes.clone(),
            entry: self.entry.clone(),
            seq: self.seq,
        }
    }
}

impl<K, V, S: TableHost, C> fmt::Debug for TypedTable<K, V, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedTable").field("name", &self.rows.table).finish_non_exhaustive()
    }
}

/// The part of a batch for one table without indexes: [`TypedTable::batch`].
pub struct TableBatch<'a, K, V, C = Postcard> {
    batch: PartitionBatch<'a>,
    table: &'a TypedTable<K, V, Db, C>,
}

impl<K: Key, V: Serialize + DeserializeOwned, C: Codec> TableBatch<'_, K, V, C> {
    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// [`TypedError::Codec`]. If the indexes of the table have changed, the commit is a
    /// [`Conflict`](ErrorKind::Conflict).
    pub fn put(&mut self, key: K::View<'_>, value: &V) -> Result<&mut Self> {
        self.batch.put(key::encode::<K>(key), self.table.encode(value)?);
        Ok(self)
    }

    /// Deletes `key`.
    pub fn delete(&mut self, key: K::View<'_>) -> &mut Self {
        self.batch.delete(key::encode::<K>(key));
        self
    }
}
