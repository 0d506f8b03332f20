//! Siltstone as the workloads see it: one partition of a database.

use siltstone::{Db, Durability, Partition, Result};
use testkit::bench::{Ack, Engine, ScanDirection};

use crate::engine;

/// The partition that is measured.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) db: Db,
    pub(crate) partition: Partition,
    /// `true` if point reads and upward scans compare each entry with its metadata.
    pub(crate) is_verified: bool,
}

fn durability(when: Ack) -> Durability {
    match when {
        Ack::Os => Durability::Os,
        Ack::Sync => Durability::Sync,
    }
}

impl Engine for Measured {
    type Error = siltstone::Error;

    #[inline]
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<()> {
        self.partition.put_with(key, value, durability(when)).map(drop)
    }

    #[inline]
    fn delete(&self, key: &[u8], when: Ack) -> Result<()> {
        self.partition.delete_with(key, durability(when)).map(drop)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<()> {
        let entries = entries.iter().map(|(key, value)| (key, value));
        engine::put_all(&self.db, &self.partition, entries, durability(when))
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        if self.is_verified {
            return Ok(self.partition.verified_get(key)?.map(|found| found.value.len()));
        }
        Ok(self.partition.get(key)?.map(|value| value.len()))
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> Result<usize> {
        let values = self.partition.multi_get(keys)?;
        Ok(values.iter().flatten().count())
    }

    fn seek(&self, key: &[u8], entries: u64, mut visit: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cursor = self.partition.cursor();
        cursor.seek(key)?;
        let mut left = entries;
        while left > 0 && cursor.valid() {
            visit(cursor.key(), cursor.value()?);
            left -= 1;
            // No move after the last wanted entry.
            if left > 0 {
                cursor.next()?;
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        direction: ScanDirection,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if self.is_verified && direction == ScanDirection::Up {
            for item in self.partition.verified_range(..) {
                let (key, found) = item?;
                if !visit(&key, &found.value) {
                    break;
                }
            }
            return Ok(());
        }
        let mut cursor = self.partition.cursor();
        match direction {
            ScanDirection::Up => cursor.seek_to_first()?,
            ScanDirection::Down => cursor.seek_to_last()?,
        }
        while cursor.valid() && visit(cursor.key(), cursor.value()?) {
            match direction {
                ScanDirection::Up => cursor.next()?,
                ScanDirection::Down => cursor.prev()?,
            }
        }
        Ok(())
    }

    fn count(&self) -> Result<u64> {
        engine::count(&self.partition)
    }

    /// Log, flushes, compactions and chunk files, as the engine itself counts them.
    fn written_bytes(&self) -> Option<u64> {
        let stats = self.db.stats();
        let values = self.partition.stats().value_store.map_or(0, |values| values.written_bytes);
        Some(stats.wal_bytes + stats.flush_bytes + stats.compaction_written_bytes + values)
    }

    fn settle(&self) -> Result<()> {
        self.partition.compact(..)?;
        self.db.wait_idle()
    }
}
