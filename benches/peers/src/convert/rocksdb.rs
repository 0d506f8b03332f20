//! RocksDB as `convert` uses it: one column family of a database.

use std::path::Path;

use ::rocksdb::{ColumnFamily, DB, Options, WriteBatch};

use super::{Foreign, Purpose, Visit};
use crate::engines::Fault;

/// A column family of a database.
pub struct Database {
    db: DB,
    family: String,
}

impl Database {
    pub fn open(folder: &Path, family: &str, purpose: Purpose) -> Result<Database, Fault> {
        let mut options = Options::default();
        let db = match purpose {
            // Nothing is written to the database, and other processes may have it open.
            Purpose::Export => DB::open_cf_for_read_only(&options, folder, [family], false)?,
            Purpose::Import => {
                options.create_if_missing(true);
                options.create_missing_column_families(true);
                // A database opens with all of its families.
                let found = DB::list_cf(&options, folder).unwrap_or_default();
                let mut families: Vec<&str> = found.iter().map(String::as_str).collect();
                for needed in ["default", family] {
                    if !families.contains(&needed) {
                        families.push(needed);
                    }
                }
                DB::open_cf(&options, folder, families)?
            }
        };
        Ok(Database { db, family: family.to_owned() })
    }

    fn family(&self) -> Result<&ColumnFamily, Fault> {
        let family = self.db.cf_handle(&self.family);
        family.ok_or_else(|| format!("no column family {}", self.family).into())
    }
}

impl Foreign for Database {
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault> {
        let mut iter = self.db.raw_iterator_cf(self.family()?);
        iter.seek(from);
        while let Some((key, value)) = iter.item() {
            visit(key, value)?;
            iter.next();
        }
        Ok(iter.status()?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.db.get_cf(self.family()?, key)?)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Fault> {
        let family = self.family()?;
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put_cf(family, key, value);
        }
        Ok(self.db.write(batch)?)
    }

    fn sync(&self) -> Result<(), Fault> {
        Ok(self.db.flush_wal(true)?)
    }
}
