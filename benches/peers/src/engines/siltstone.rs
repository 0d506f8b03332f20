//! Siltstone, as `siltstone bench` uses it.
//!
//! Everything beyond [`Settings`] is at its default. Large values are on where they are measured.
//! `siltstone-mapped` reads tables through mappings, as LMDB and LevelDB do.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::siltstone::backup::BackupEngine;
use ::siltstone::changes::{FeedItem, KeyChange};
use ::siltstone::large_values::Parallelism;
use ::siltstone::operators::IntegerOperator;
use ::siltstone::{
    CompactionStyle, Compression, Cursor, Db, Durability, LargeValueOptions, Options, Partition,
    PartitionOptions, PrefixExtractor, Result, SeqNo,
};
use testkit::bench::{Ack, Engine, ScanDirection};

use super::{Fault, Peer, incremented, locked_version};
use crate::settings::{Features, Settings};

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

fn walk(
    cursor: &mut Cursor,
    direction: ScanDirection,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
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

    fn multi_get(&self, keys: &[Vec<u8>]) -> Result<usize, Fault> {
        Ok(self.partition.multi_get(keys)?.iter().flatten().count())
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

    fn scan(
        &self,
        direction: ScanDirection,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Fault> {
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

fn with_features(mut options: PartitionOptions, features: &Features) -> PartitionOptions {
    if features.counters {
        options = options.merge_operator(Arc::new(IntegerOperator::Add));
    }
    if let Some(bytes) = features.prefix_bytes {
        options = options.prefix_extractor(PrefixExtractor::Fixed(bytes));
    }
    if let Some(bytes_max) = features.fifo_bytes {
        options =
            options.compaction_style(CompactionStyle::Fifo { bytes_max, seconds_max: u64::MAX });
    }
    if let Some(bytes) = features.level_base_bytes {
        options = options.table_bytes(bytes).level_base_bytes(bytes);
        options = options.level_multiplier(3).level0_tables(2);
    }
    options
}

impl<const MAPPED: bool> Peer for Siltstone<MAPPED> {
    fn open(folder: &Path, settings: &Settings) -> Result<Self, Fault> {
        let options = Options::new()
            .cache_bytes(settings.cache_bytes as u64)
            .write_buffer_bytes(settings.write_buffer_bytes as u64)
            .sync_interval_ms(settings.sync_interval_ms)
            .tables_mapped(MAPPED)
            .log_retained_bytes(if settings.features.keeps_log { u64::MAX } else { 0 })
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
        let options = with_features(options, &settings.features);
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

    fn flush(&self) -> Result<Option<()>, Fault> {
        self.partition.flush()?;
        Ok(Some(self.db.wait_idle()?))
    }

    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<Option<()>, Fault> {
        self.partition.delete_range(start..end)?;
        Ok(Some(()))
    }

    fn merge(&self, key: &[u8]) -> Result<Option<()>, Fault> {
        self.partition.merge(key, 1i64.to_le_bytes())?;
        Ok(Some(()))
    }

    fn update(&self, key: &[u8]) -> Result<Option<()>, Fault> {
        self.partition.update(key, |old| incremented(old).ok())?;
        Ok(Some(()))
    }

    fn count_prefix(&self, prefix: &[u8]) -> Result<Option<u64>, Fault> {
        let mut count = 0;
        for entry in self.partition.prefix(prefix) {
            entry?;
            count += 1;
        }
        Ok(Some(count))
    }

    fn back_up(&self, folder: &Path) -> Result<Option<()>, Fault> {
        BackupEngine::open(folder).create_backup(&self.db)?;
        Ok(Some(()))
    }

    fn follow(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<()>, Fault> {
        let mut changes = self.db.changes(SeqNo::ZERO)?;
        while let Some(FeedItem::Commit(batch)) = changes.try_next()? {
            for (_, change) in &batch.changes {
                if let KeyChange::Put { key, value } = change {
                    visit(key, value);
                }
            }
        }
        Ok(Some(()))
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
