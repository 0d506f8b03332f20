//! Siltstone, as `siltstone bench` uses it.
//!
//! Everything beyond [`Settings`] is at its default. Large values are on where they are measured.
//! `siltstone-mapped` reads tables through mappings, as LMDB and LevelDB do.

use std::path::Path;
use std::time::Duration;

use ::siltstone::large_values::Parallelism;
use ::siltstone::{
    Compression, Cursor, Db, Durability, LargeValueOptions, Options, Partition, PartitionOptions,
    Result,
};
use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, locked_version};
use crate::settings::Settings;

/// No reader is left when space is reclaimed.
const RECLAIM_MAX: Duration = Duration::from_secs(60);

/// One partition of a database, whose tables are read through mappings if it is `MAPPED`.
#[derive(Clone, Debug)]
pub struct Siltstone<const MAPPED: bool> {
    db: Db,
    partition: Partition,
}

impl<const MAPPED: bool> Siltstone<MAPPED> {
    fn put_with(&self, key: &[u8], value: &[u8], when: Ack) -> Result<()> {
        match when {
            Ack::Os => self.partition.put(key, value)?,
            Ack::Sync => {
                self.db.batch().put(&self.partition, key, value).commit(Durability::Sync)?
            }
        };
        Ok(())
    }

    fn delete_with(&self, key: &[u8], when: Ack) -> Result<()> {
        match when {
            Ack::Os => self.partition.delete(key)?,
            Ack::Sync => self.db.batch().delete(&self.partition, key).commit(Durability::Sync)?,
        };
        Ok(())
    }
}

fn walk(cursor: &mut Cursor, direction: ScanDirection, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
    while cursor.valid() && visit(cursor.key(), cursor.value()?) {
        match direction {
            ScanDirection::Up => cursor.next()?,
            ScanDirection::Down => cursor.prev()?,
        }
    }
    Ok(())
}

impl<const MAPPED: bool> Engine for Siltstone<MAPPED> {
    type Error = Fault;

    #[inline]
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        Ok(self.put_with(key, value, when)?)
    }

    #[inline]
    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        Ok(self.delete_with(key, when)?)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        let mut batch = self.db.batch();
        for (key, value) in entries {
            batch = batch.put(&self.partition, key, value);
        }
        let durability = match when {
            Ack::Os => Durability::Os,
            Ack::Sync => Durability::Sync,
        };
        batch.commit(durability)?;
        Ok(())
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        Ok(self.partition.get(key)?.map(|value| value.len()))
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        let mut cursor = self.partition.cursor();
        cursor.seek(key)?;
        let mut left = entries;
        while left > 0 && cursor.valid() {
            visit(cursor.key(), cursor.value()?);
            left -= 1;
            // No move after the last requested entry.
            if left > 0 {
                cursor.next()?;
            }
        }
        Ok(())
    }

    fn scan(&self, direction: ScanDirection, visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
        let mut cursor = self.partition.cursor();
        match direction {
            ScanDirection::Up => cursor.seek_to_first()?,
            ScanDirection::Down => cursor.seek_to_last()?,
        }
        Ok(walk(&mut cursor, direction, visit)?)
    }

    fn settle(&self) -> Result<(), Fault> {
        self.partition.compact(..)?;
        Ok(self.db.wait_idle()?)
    }
}

impl<const MAPPED: bool> Peer for Siltstone<MAPPED> {
    fn open(folder: &Path, settings: &Settings) -> Result<Self, Fault> {
        let options = Options::new()
            .cache_bytes(settings.cache_bytes as u64)
            .write_buffer_bytes(settings.write_buffer_bytes as u64)
            .sync_interval_ms(settings.sync_interval_ms)
            .tables_mapped(MAPPED)
            // One thread flushes in addition to those that compact.
            .compaction_threads(usize::from(settings.background_threads).max(2) - 1);
        let db = Db::builder(folder).options(options).open()?;
        let options = PartitionOptions::new()
            .compression(if settings.lz4 { Compression::Lz4 } else { Compression::None })
            .block_bytes(u32::try_from(settings.block_bytes)?)
            .bloom_bits_per_key(settings.bloom_bits.into());
        let options = match settings.large_values {
            true => options.large_values(LargeValueOptions::default()),
            false => options,
        };
        let partition = db.partition_with("bench", options)?;
        Ok(Siltstone { db, partition })
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        let len = self.partition.get_into(key, buf, Parallelism::Auto)?;
        Ok(len.map(usize::try_from).transpose()?)
    }

    fn lend(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<Option<bool>, Fault> {
        let value = self.partition.get_ref(key)?;
        Ok(Some(value.inspect(|value| visit(value)).is_some()))
    }

    fn reclaim(&self) -> Result<(), Fault> {
        self.settle()?;
        if self.partition.wait_reclaimed(RECLAIM_MAX)? {
            return Ok(());
        }
        Err("a reader holds deleted values".into())
    }

    fn close(self) -> Result<(), Fault> {
        let Siltstone { db, partition } = self;
        drop(partition);
        Ok(db.close()?)
    }

    fn version() -> String {
        locked_version("siltstone")
    }
}
