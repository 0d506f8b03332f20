//! [`TableDefinition`]: name, types and indexes of a table, and its open.
//!
//! Invariants:
//! 1. An entry of the catalog is durable before the first row of its table can be.
//! 2. An index is `ready` only if it has all rows. The commit that makes it so requires that no other handle has begun to
//!    build it since.
//! 3. After a commit to the entry of a table, no handle that was opened before writes to the table.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use siltstone::secondary::{Secondary, SecondaryPartition, Target};
use siltstone::{Db, Durability, Partition, PartitionOptions, Readable, SeqNo};

use crate::catalog::{CATALOG, TableEntry};
use crate::codec::{Codec, Postcard};
use crate::error::{Result, TypedError};
use crate::index::{IndexDefinition, IndexRule, OpenIndex};
use crate::key::Key;
use crate::rows::TableRows;
use crate::table::TypedTable;

/// Rows that one transaction of the build of an index reads. Tests build in several.
const BUILD_ROWS: usize = if cfg!(test) { 4 } else { 1000 };

/// A database that has tables: [`Db`], or a [`Secondary`], which only reads them.
pub trait TableHost: Clone {
    /// A partition of it.
    type Partition: Clone;
}

impl TableHost for Db {
    type Partition = Partition;
}

impl TableHost for Secondary {
    type Partition = SecondaryPartition;
}

/// The name, the types and the indexes of a table. A constant of the application, as a rule.
pub struct TableDefinition<K, V, C = Postcard> {
    name: &'static str,
    value_name: Option<&'static str>,
    indexes: Vec<Arc<dyn IndexRule<K, V>>>,
    codec: PhantomData<fn() -> C>,
}

impl<K, V> TableDefinition<K, V> {
    /// Returns the definition of the table in the partition `name`, without indexes, with the default codec.
    ///
    /// The names of the types are stored with the table, and a later open with others is an error. The name of the type
    /// of values is its last part, `User` for `app::model::User`; see [`TableDefinition::value_name`].
    pub const fn new(name: &'static str) -> TableDefinition<K, V> {
        TableDefinition::with_codec(name)
    }
}

impl<K, V, C> TableDefinition<K, V, C> {
    /// As [`TableDefinition::new`], with another codec: `TableDefinition::<u64, User, MyCodec>::with_codec("users")`.
    pub const fn with_codec(name: &'static str) -> TableDefinition<K, V, C> {
        TableDefinition { name, value_name: None, indexes: Vec::new(), codec: PhantomData }
    }

    /// Sets the name of the type of values, in the place of the name in Rust. An application that renames a type keeps its
    /// name here; one that changes a type so that old values do not decode any more gives a new one, such as `User 2`.
    #[must_use]
    pub fn value_name(self, name: &'static str) -> TableDefinition<K, V, C> {
        TableDefinition { value_name: Some(name), ..self }
    }

    /// Adds a secondary index.
    #[must_use]
    pub fn index<I>(mut self, index: IndexDefinition<I, K, V>) -> TableDefinition<K, V, C>
    where
        IndexDefinition<I, K, V>: IndexRule<K, V> + 'static,
    {
        self.indexes.push(Arc::new(index));
        self
    }
}

impl<K: Key, V: Serialize + DeserializeOwned + 'static, C: Codec> TableDefinition<K, V, C> {
    /// Opens the table, and creates it if it does not exist. An index that the table does not have yet is built from its
    /// rows; handles that were opened before are [`TypedError::Stale`] from then on.
    ///
    /// # Errors
    /// [`TypedError::OtherTypes`] if the table has other types or more indexes, or the partition has entries of an untyped
    /// program. [`TypedError::Taken`] if a unique index is to be built, and two rows have one key.
    /// [`TypedError::Stale`] if another open builds the same index.
    ///
    /// # Cost
    /// A get. The creation is a commit with a sync; the build of an index reads all rows, and writes in commits of some
    /// thousand entries. If it ends early, the next open begins it again.
    pub fn open(&self, db: &Db) -> Result<TypedTable<K, V, Db, C>> {
        self.open_with(db, PartitionOptions::new())
    }

    /// As [`TableDefinition::open`], with the options of the partition, if it is created.
    ///
    /// A partition without a log can have no index, because a crash would take other entries from the table than from the
    /// index. For the same reason a table with indexes should have no rule that lets rows expire.
    pub fn open_with(&self, db: &Db, options: PartitionOptions) -> Result<TypedTable<K, V, Db, C>> {
        let wanted = self.entry();
        // Before the read: a later change is then newer than this number.
        let seq = db.visible_seq();
        let stored = match db.has_partition(CATALOG) {
            true => self.stored(&db.open_partition(CATALOG)?)?,
            false => None,
        };
        if let Some(stored) = &stored {
            stored.check(self.name, &wanted)?;
        }
        let table = open_or_create(db, self.name, options)?;
        if !self.indexes.is_empty() && !table.options().get_logged() {
            return Err(self.other("a partition without a log can have no index".to_owned()));
        }
        if stored.is_none() && table.first()?.is_some() {
            return Err(self.other("the partition has entries of an untyped program".to_owned()));
        }
        let mut indexes = Vec::new();
        for rule in &self.indexes {
            let name = self.index_partition(&rule.entry().name);
            let partition = open_or_create(db, &name, PartitionOptions::new())?;
            indexes.push(OpenIndex { rule: rule.clone(), partition });
        }
        let catalog = open_or_create(db, CATALOG, PartitionOptions::new())?;
        let mut opened = TypedTable {
            host: db.clone(),
            rows: TableRows::new(table, self.name.into()),
            catalog,
            indexes,
            entry: wanted.to_text().into(),
            seq,
        };
        if stored.as_ref() != Some(&wanted) {
            self.claim_and_build(&mut opened, &wanted)?;
        }
        Ok(opened)
    }

    /// Opens the table of a secondary, for reads in its cuts: [`TypedTable::at`] takes a
    /// [`SecondaryCut`](siltstone::secondary::SecondaryCut). The secondary syncs first.
    ///
    /// # Errors
    /// As [`TableDefinition::open`]; [`PartitionNotFound`](siltstone::ErrorKind::PartitionNotFound) if the primary has not
    /// created the table.
    pub fn follow(&self, secondary: &Secondary) -> Result<TypedTable<K, V, Secondary, C>> {
        secondary.sync(Target::Latest)?;
        let cut = secondary.cut();
        let catalog = secondary.partition(CATALOG)?;
        let reading = cut.partition(&catalog);
        let stored = reading.map(|reading| self.stored(&reading)).transpose()?.flatten();
        let wanted = self.entry();
        match stored {
            Some(stored) => stored.check(self.name, &wanted)?,
            None => return Err(self.other("it was not created".to_owned())),
        }
        let mut indexes = Vec::new();
        for rule in &self.indexes {
            let partition = secondary.partition(&self.index_partition(&rule.entry().name))?;
            indexes.push(OpenIndex { rule: rule.clone(), partition });
        }
        let table = secondary.partition(self.name)?;
        Ok(TypedTable {
            host: secondary.clone(),
            rows: TableRows::new(table, self.name.into()),
            catalog,
            indexes,
            entry: wanted.to_text().into(),
            seq: cut.as_of().map_or(SeqNo::ZERO, |commit| commit.seq),
        })
    }

    /// Drops the index `name` with its entries. Handles that were opened before are [`TypedError::Stale`] from then on.
    pub fn drop_index(&self, db: &Db, name: &str) -> Result<()> {
        let catalog = db.open_partition(CATALOG)?;
        db.transact_with(Durability::Sync, |transaction| {
            if let Some(mut entry) = self.stored(&transaction.of(&catalog))? {
                entry.indexes.retain(|index| index.name != name);
                transaction.put(&catalog, self.name, entry.to_text());
            }
            Ok::<_, TypedError>(())
        })?;
        Ok(db.drop_partition(&self.index_partition(name))?)
    }

    /// Drops the table with its indexes.
    pub fn drop_table(&self, db: &Db) -> Result<()> {
        let catalog = db.open_partition(CATALOG)?;
        let stored = self.stored(&catalog)?;
        let names = stored
            .iter()
            .flat_map(|entry| &entry.indexes)
            .map(|index| self.index_partition(&index.name));
        let names: Vec<String> = names.chain([self.name.to_owned()]).collect();
        let mut batch = db.batch().delete(&catalog, self.name);
        for name in &names {
            batch = batch.clear(&db.open_partition(name)?);
        }
        // All of it at once: a crash between the drops leaves empty partitions, and no types.
        batch.commit(Durability::Sync)?;
        names.iter().try_for_each(|name| Ok(db.drop_partition(name)?))
    }

    fn index_partition(&self, index: &str) -> String {
        format!("{}.{index}", self.name)
    }

    fn other(&self, what: String) -> TypedError {
        TypedError::OtherTypes { table: self.name.to_owned(), what }
    }

    /// The entry of the catalog when every index is ready.
    fn entry(&self) -> TableEntry {
        let mut indexes: Vec<_> = self.indexes.iter().map(|rule| rule.entry()).collect();
        indexes.sort();
        TableEntry {
            key: K::name(),
            value: self.value_name.map_or_else(|| last_parts(type_name::<V>()), str::to_owned),
            codec: C::NAME.to_owned(),
            indexes,
        }
    }

    fn stored(&self, catalog: &impl Readable) -> Result<Option<TableEntry>> {
        let text = catalog.get(self.name)?;
        text.map(|text| TableEntry::from_text(self.name, &text)).transpose()
    }

    /// Writes the entry, and builds the indexes that are not ready.
    fn claim_and_build(
        &self,
        opened: &mut TypedTable<K, V, Db, C>,
        wanted: &TableEntry,
    ) -> Result<()> {
        let db = opened.host.clone();
        let (claimed, commit) = db.transact_with(Durability::Sync, |transaction| {
            let stored = self.stored(&transaction.of(&opened.catalog))?;
            if let Some(stored) = &stored {
                stored.check(self.name, wanted)?;
            }
            // Seen by the transaction, so that a row of another writer is a conflict.
            let is_empty = transaction.iter(opened.rows.source()).next().is_none();
            let mut entry = wanted.clone();
            for index in &mut entry.indexes {
                let before = stored.as_ref().and_then(|stored| stored.index(&index.name));
                if before.is_some_and(|before| before.is_ready) {
                    continue;
                }
                index.is_ready = is_empty;
                let open = opened.indexes.iter().find(|open| open.rule.entry().name == index.name);
                transaction.clear(&open.expect("each index of the definition is open").partition);
            }
            transaction.put(&opened.catalog, self.name, entry.to_text());
            Ok::<_, TypedError>(entry)
        })?;
        opened.seq = commit.seq;
        if claimed == *wanted {
            return Ok(());
        }
        let mut fresh: Vec<_> = opened.indexes.iter().collect();
        fresh.retain(|open| {
            claimed.index(&open.rule.entry().name).is_some_and(|index| !index.is_ready)
        });
        let seq = self.build(opened, &fresh, wanted)?;
        opened.seq = seq;
        Ok(())
    }

    /// Fills `fresh` with the entries of all rows, and makes them ready. Returns the number of that commit.
    fn build(
        &self,
        opened: &TypedTable<K, V, Db, C>,
        fresh: &[&OpenIndex<K, V, Partition>],
        wanted: &TableEntry,
    ) -> Result<SeqNo> {
        // No other handle writes rows since the claim.
        let mut rows = opened.rows.source().iter();
        loop {
            let mut transaction = opened.host.transaction();
            transaction.require(&opened.catalog, self.name, opened.seq);
            let mut count = 0;
            for entry in rows.by_ref().take(BUILD_ROWS) {
                let (key, value) = entry?;
                let value = opened.rows.value(&value)?;
                count += 1;
                for index in fresh {
                    index.replace(&mut transaction, &key, None, Some(&value))?;
                }
            }
            let is_end = count < BUILD_ROWS;
            if is_end {
                transaction.put(&opened.catalog, self.name, wanted.to_text());
            }
            let commit =
                transaction.commit(Durability::Os).map_err(|error| opened.stale_or(error))?;
            if is_end {
                return Ok(commit.seq);
            }
        }
    }
}

impl<K, V, C> fmt::Debug for TableDefinition<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableDefinition").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Opens a partition without writing, so that a read-only database opens its tables.
fn open_or_create(db: &Db, name: &str, options: PartitionOptions) -> Result<Partition> {
    match db.has_partition(name) {
        true => Ok(db.open_partition(name)?),
        false => Ok(db.partition_with(name, options)?),
    }
}

/// The name of a type without the paths of its modules: `Vec<User>` for `alloc::vec::Vec<app::User>`.
fn last_parts(name: &str) -> String {
    let mut parts = String::new();
    let mut word_at = 0;
    for c in name.chars() {
        if c == ':' {
            parts.truncate(word_at);
            continue;
        }
        parts.push(c);
        if !c.is_alphanumeric() && c != '_' {
            word_at = parts.len();
        }
    }
    parts
}
