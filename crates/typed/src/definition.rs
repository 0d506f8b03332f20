//! [`TableDefinition`]: name, types and indexes of a table, and its open.
//!
//! Invariants:
//! 1. An entry of the catalog is durable before the first row of its table can be.
//! 2. An index is `ready` only if it has all rows. The commit that makes it so requires that no other handle has begun to
//!    build it since.
//! 3. A partition becomes an index only if it is empty and nothing else in the catalog has its name. An index whose partition
//!    is gone is marked as building before the partition is made again.
//! 4. After a commit to the entry of a table, no handle that was opened before writes to the table.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use siltstone::secondary::{Secondary, SecondaryPartition, Target};
use siltstone::{Db, Durability, Partition, PartitionOptions, Readable, SeqNo, Transaction};

use crate::catalog::{self, CATALOG, TableEntry};
use crate::codec::{Codec, Postcard};
use crate::error::{Result, TypedError};
use crate::index::{IndexDefinition, IndexRule, OpenIndex, index_partition};
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
    /// [`TypedError::OtherTypes`] if the table has other types or more indexes, or if the partition of the table or of a new
    /// index has entries of an untyped program or belongs to another table. [`TypedError::Taken`] if a unique index is to be built, and two rows have one key.
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
        let catalog = db.has_partition(CATALOG).then(|| db.open_partition(CATALOG)).transpose()?;
        let written = catalog.as_ref().map(|it| self.stored(it)).transpose()?.flatten();
        let mut stored = written.clone().map(|entry| self.without_lost(db, entry));
        if let Some(stored) = &stored {
            stored.check(self.name, &wanted)?;
        }
        // Before anything is created; the next one again in the transaction that decides.
        self.check_logged(db, &options)?;
        self.check_free(stored.as_ref(), catalog.as_ref(), &mut |name| {
            Ok(db.has_partition(name) && db.open_partition(name)?.first()?.is_some())
        })?;
        if let Some(catalog) = catalog.filter(|_| stored != written) {
            stored = self.mark_lost(db, &catalog)?;
        }
        let table = open_or_create(db, self.name, options)?;
        let mut indexes = Vec::new();
        for rule in &self.indexes {
            let name = index_partition(self.name, rule.name());
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
    /// As [`TableDefinition::open`]; [`TypedError::OtherTypes`] also if an index of the definition is not built, or not built
    /// to its end. [`PartitionNotFound`](siltstone::ErrorKind::PartitionNotFound) if the primary has no tables.
    pub fn follow(&self, secondary: &Secondary) -> Result<TypedTable<K, V, Secondary, C>> {
        secondary.sync(Target::Latest)?;
        let cut = secondary.cut();
        let catalog = secondary.partition(CATALOG)?;
        let reading = cut.partition(&catalog);
        let stored = reading.map(|reading| self.stored(&reading)).transpose()?.flatten();
        let wanted = self.entry();
        let stored = stored.ok_or_else(|| self.not_created())?;
        stored.check(self.name, &wanted)?;
        for index in &wanted.indexes {
            if !stored.index(&index.name).is_some_and(|stored| stored.is_ready) {
                return Err(self.other(format!("the index {:?} is not built", index.name)));
            }
        }
        let mut indexes = Vec::new();
        for rule in &self.indexes {
            let partition = secondary.partition(&index_partition(self.name, rule.name()))?;
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
    ///
    /// # Errors
    /// [`TypedError::OtherTypes`] if the catalog has no such index of the table; no partition is dropped.
    ///
    /// # Durability
    /// After a crash in the middle the index is not ready: an open builds it again, one without it succeeds, and a repeated
    /// call ends the drop.
    pub fn drop_index(&self, db: &Db, name: &str) -> Result<()> {
        let catalog = self.catalog(db)?;
        let partition = index_partition(self.name, name);
        self.change(db, &catalog, |transaction, entry| {
            let index = entry.indexes.iter_mut().find(|index| index.name == name);
            let index = index.ok_or_else(|| self.other(format!("it has no index {name:?}")))?;
            // The name stays until the partition is gone: it says whose partition it is.
            index.is_ready = false;
            clear_if_there(db, transaction, &partition)
        })?;
        drop_if_there(db, &partition)?;
        self.change(db, &catalog, |_, entry| {
            // An open on another thread may have made the partition again: then the index stays, not ready.
            entry.indexes.retain(|index| index.name != name || db.has_partition(&partition));
            Ok(())
        })
    }

    /// Drops the table with its indexes.
    ///
    /// # Errors
    /// [`TypedError::OtherTypes`] if the catalog has no such table; no partition is dropped.
    ///
    /// # Durability
    /// After a crash in the middle the table is empty, and a repeated call ends the drop.
    pub fn drop_table(&self, db: &Db) -> Result<()> {
        let catalog = self.catalog(db)?;
        let mut names = Vec::new();
        // All of it at once. The entry stays until the partitions are gone: it says whose partitions they are.
        self.change(db, &catalog, |transaction, entry| {
            names = vec![self.name.to_owned()];
            for index in &mut entry.indexes {
                index.is_ready = false;
                names.push(index_partition(self.name, &index.name));
            }
            names.iter().try_for_each(|name| clear_if_there(db, transaction, name))
        })?;
        names.iter().try_for_each(|name| drop_if_there(db, name))?;
        let dropped = db.transact_with(Durability::Sync, |transaction| {
            // Read, so that an open on another thread is a conflict. One that has made a partition again keeps the table.
            let stored = self.stored(&transaction.of(&catalog))?;
            if stored.is_some() && !names.iter().any(|name| db.has_partition(name)) {
                transaction.delete(&catalog, self.name);
            }
            Ok::<_, TypedError>(())
        });
        dropped.map(drop)
    }

    fn catalog(&self, db: &Db) -> Result<Partition> {
        match db.has_partition(CATALOG) {
            true => Ok(db.open_partition(CATALOG)?),
            false => Err(self.not_created()),
        }
    }

    /// Changes the entry of the table, if it has one, in one durable commit with what `change` writes.
    fn change(
        &self,
        db: &Db,
        catalog: &Partition,
        mut change: impl FnMut(&mut Transaction, &mut TableEntry) -> Result<()>,
    ) -> Result<()> {
        let changed = db.transact_with(Durability::Sync, |transaction| {
            let stored = self.stored(&transaction.of(catalog))?;
            let mut entry = stored.ok_or_else(|| self.not_created())?;
            change(transaction, &mut entry)?;
            transaction.put(catalog, self.name, entry.to_text());
            Ok::<_, TypedError>(())
        });
        changed.map(drop)
    }

    fn not_created(&self) -> TypedError {
        self.other("it was not created".to_owned())
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

    /// `entry`, in which an index without its partition or its table is not ready.
    fn without_lost(&self, db: &Db, mut entry: TableEntry) -> TableEntry {
        for index in &mut entry.indexes {
            index.is_ready &= db.has_partition(self.name)
                && db.has_partition(&index_partition(self.name, &index.name));
        }
        entry
    }

    /// Writes that the indexes without partitions are not ready. Once the partitions are made again, empty, nothing else
    /// distinguishes them from built ones.
    fn mark_lost(&self, db: &Db, catalog: &Partition) -> Result<Option<TableEntry>> {
        let marked = db.transact_with(Durability::Sync, |transaction| {
            let stored = self.stored(&transaction.of(catalog))?;
            let now = stored.map(|entry| self.without_lost(db, entry));
            if let Some(now) = &now {
                transaction.put(catalog, self.name, now.to_text());
            }
            Ok::<_, TypedError>(now)
        });
        Ok(marked?.0)
    }

    /// Refuses indexes of a partition without a log, or in one.
    fn check_logged(&self, db: &Db, options: &PartitionOptions) -> Result<()> {
        if self.indexes.is_empty() {
            return Ok(());
        }
        let indexes = self.indexes.iter().map(|rule| index_partition(self.name, rule.name()));
        for name in indexes.chain([self.name.to_owned()]).filter(|name| db.has_partition(name)) {
            if !db.open_partition(&name)?.options().get_logged() {
                return Err(self.other(format!("an index needs a log, and {name:?} has none")));
            }
        }
        if !db.has_partition(self.name) && !options.get_logged() {
            return Err(self.other("a partition without a log can have no index".to_owned()));
        }
        Ok(())
    }

    /// Refuses partitions that are not in the entry and have entries, or that another entry of the catalog names.
    fn check_free(
        &self,
        stored: Option<&TableEntry>,
        catalog: Option<&impl Readable>,
        has_entries: &mut dyn FnMut(&str) -> Result<bool>,
    ) -> Result<()> {
        let mut names = Vec::new();
        if stored.is_none() {
            names.push((self.name.to_owned(), "the partition".to_owned()));
        }
        for rule in &self.indexes {
            let index = rule.name();
            if stored.is_none_or(|stored| stored.index(index).is_none()) {
                let name = index_partition(self.name, index);
                let what = format!("the partition {name:?} of the index {index:?}");
                names.push((name, what));
            }
        }
        for (name, what) in names {
            let owner = catalog.map(|catalog| catalog::owner(catalog, &name)).transpose()?;
            if let Some(owner) = owner.flatten() {
                return Err(self.other(format!("{what} is {owner}")));
            }
            if name == CATALOG || has_entries(&name)? {
                return Err(self.other(format!("{what} has entries of an untyped program")));
            }
        }
        Ok(())
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
            let catalog = transaction.of(&opened.catalog);
            self.check_free(stored.as_ref(), Some(&catalog), &mut |name| {
                let indexes = opened.indexes.iter().map(|open| &open.partition);
                let mut all = indexes.chain([opened.rows.source()]);
                let partition = all.find(|it| it.name() == name).expect("each is open");
                Ok(transaction.iter(partition).next().transpose()?.is_some())
            })?;
            // Seen by the transaction, so that a row of another writer is a conflict.
            let is_empty = transaction.iter(opened.rows.source()).next().is_none();
            let mut entry = wanted.clone();
            for index in &mut entry.indexes {
                let before = stored.as_ref().and_then(|stored| stored.index(&index.name));
                if before.is_some_and(|before| before.is_ready) {
                    continue;
                }
                index.is_ready = is_empty;
                let open = opened.indexes.iter().find(|open| open.rule.name() == index.name);
                transaction.clear(&open.expect("each index of the definition is open").partition);
            }
            // Builds that ended early: without their names, nothing says whose entries these are.
            for index in stored.iter().flat_map(|stored| &stored.indexes) {
                if wanted.index(&index.name).is_none() {
                    clear_if_there(&db, transaction, &index_partition(self.name, &index.name))?;
                }
            }
            transaction.put(&opened.catalog, self.name, entry.to_text());
            Ok::<_, TypedError>(entry)
        })?;
        opened.seq = commit.seq;
        if claimed == *wanted {
            return Ok(());
        }
        let mut fresh: Vec<_> = opened.indexes.iter().collect();
        fresh.retain(|open| claimed.index(open.rule.name()).is_some_and(|index| !index.is_ready));
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

fn clear_if_there(db: &Db, transaction: &mut Transaction, name: &str) -> Result<()> {
    if db.has_partition(name) {
        transaction.clear(&db.open_partition(name)?);
    }
    Ok(())
}

fn drop_if_there(db: &Db, name: &str) -> Result<()> {
    if db.has_partition(name) {
        db.drop_partition(name)?;
    }
    Ok(())
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
