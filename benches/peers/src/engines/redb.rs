//! Redb: one table of bytes by bytes.
//!
//! Beyond [`Settings`]: nothing. Redb has no write buffer, no log, no bloom and no thread of its own;
//! its cache gets as many bytes as the block cache of the others. Each write is a transaction,
//! because the other engines make each write visible and durable by itself.
//!
//! Redb has no way to commit to the kernel: a commit either reaches the device
//! (`Durability::Immediate`), or stays in the process until a later commit does (`None`). Where a
//! write need only survive a killed process, it gets the latter, which is less than that. The
//! other choice would measure syncs, which no other engine makes there.

use std::path::Path;
use std::sync::{Arc, RwLock};

use ::redb::{
    Database, Durability, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction,
};
use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, filled, locked_version};
use crate::settings::Settings;

const FILE: &str = "bench.redb";
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bench");

/// The database. Compacting it needs it exclusively; all other calls share it.
#[derive(Clone)]
pub struct Redb(Arc<RwLock<Database>>);

type OpenTable<'a> = Table<'a, &'static [u8], &'static [u8]>;

impl Redb {
    fn shared(&self) -> std::sync::RwLockReadGuard<'_, Database> {
        self.0.read().expect("no thread panics with it")
    }

    fn begin(&self, when: Ack) -> Result<WriteTransaction, Fault> {
        let mut txn = self.shared().begin_write()?;
        txn.set_durability(match when {
            Ack::Os => Durability::None,
            Ack::Sync => Durability::Immediate,
        })?;
        Ok(txn)
    }

    fn write(
        &self,
        when: Ack,
        work: impl FnOnce(&mut OpenTable<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let txn = self.begin(when)?;
        work(&mut txn.open_table(TABLE)?)?;
        Ok(txn.commit()?)
    }

    fn table(&self) -> Result<::redb::ReadOnlyTable<&'static [u8], &'static [u8]>, Fault> {
        Ok(self.shared().begin_read()?.open_table(TABLE)?)
    }
}

impl Engine for Redb {
    type Error = Fault;

    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        self.write(when, |table| {
            table.insert(key, value)?;
            Ok(())
        })
    }

    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        self.write(when, |table| {
            table.remove(key)?;
            Ok(())
        })
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        self.write(when, |table| {
            for (key, value) in entries {
                table.insert(key.as_slice(), value.as_slice())?;
            }
            Ok(())
        })
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        Ok(self.table()?.get(key)?.map(|value| value.value().len()))
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        let table = self.table()?;
        for entry in ReadableTable::range::<&[u8]>(&table, key..)?.take(usize::try_from(entries)?) {
            let (key, value) = entry?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    fn scan(&self, direction: ScanDirection, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
        let table = self.table()?;
        let mut entries = table.iter()?;
        loop {
            let entry = match direction {
                ScanDirection::Up => entries.next(),
                ScanDirection::Down => entries.next_back(),
            };
            let Some(entry) = entry else { return Ok(()) };
            let (key, value) = entry?;
            if !visit(key.value(), value.value()) {
                return Ok(());
            }
        }
    }

    /// An empty commit that reaches the device also makes all earlier commits durable.
    fn settle(&self) -> Result<(), Fault> {
        Ok(self.begin(Ack::Sync)?.commit()?)
    }
}

impl Peer for Redb {
    fn open(folder: &Path, settings: &Settings) -> Result<Redb, Fault> {
        let mut builder = Database::builder();
        builder.set_cache_size(settings.cache_bytes);
        let redb = Redb(Arc::new(RwLock::new(builder.create(folder.join(FILE))?)));
        // The table is there before the first read.
        redb.write(Ack::Sync, |_| Ok(()))?;
        Ok(redb)
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        let value = self.table()?.get(key)?;
        value.map(|value| filled(buf, value.value())).transpose()
    }

    /// The file becomes as short as possible.
    fn reclaim(&self) -> Result<(), Fault> {
        self.settle()?;
        self.0.write().expect("no thread panics with it").compact()?;
        Ok(())
    }

    fn close(self) -> Result<(), Fault> {
        drop(self);
        Ok(())
    }

    fn version() -> String {
        locked_version("redb")
    }
}
