//! RocksDB, with all data in its tables or with large values in blob files.
//!
//! Beyond [`Settings`]: as many write buffers as siltstone lets wait before writes stop (one active
//! and three sealed). Sizes of levels and tables are RocksDB's defaults, which are siltstone's,
//! too. Blob files are collected as garbage, and their values go through the same cache.

use std::path::Path;
use std::sync::Arc;

use ::rocksdb::backup::{BackupEngine, BackupEngineOptions};
use ::rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompactionStyle,
    DBCompressionType, DBRawIterator, Env, FifoCompactOptions, MergeOperands, Options, ReadOptions,
    SliceTransform, WaitForCompactOptions, WriteBatch, WriteBatchIterator, WriteOptions,
};
use testkit::bench::{Ack, Engine, ScanDirection};

use super::{Fault, Peer, filled, incremented, locked_version};
use crate::settings::{Features, Settings};

/// The family of all keys. Some calls need its handle.
const FAMILY: &str = "default";

/// The database, and the two ways to write to it.
struct Store {
    db: DB,
    to_kernel: WriteOptions,
    to_device: WriteOptions,
}

/// RocksDB, with or without blob files.
#[derive(Clone)]
pub struct RocksDb<const BLOBS: bool>(Arc<Store>);

impl<const BLOBS: bool> RocksDb<BLOBS> {
    fn write_options(&self, when: Ack) -> &WriteOptions {
        match when {
            Ack::Os => &self.0.to_kernel,
            Ack::Sync => &self.0.to_device,
        }
    }

    fn iter(&self) -> DBRawIterator<'_> {
        self.0.db.raw_iterator()
    }

    fn family(&self) -> Result<&ColumnFamily, Fault> {
        Ok(self.0.db.cf_handle(FAMILY).ok_or("every database has it")?)
    }
}

impl<const BLOBS: bool> Engine for RocksDb<BLOBS> {
    type Error = Fault;

    #[inline]
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        Ok(self.0.db.put_opt(key, value, self.write_options(when))?)
    }

    #[inline]
    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        Ok(self.0.db.delete_opt(key, self.write_options(when))?)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        Ok(self.0.db.write_opt(batch, self.write_options(when))?)
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        Ok(self.0.db.get_pinned(key)?.map(|value| value.len()))
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> Result<usize, Fault> {
        let mut found = 0;
        for value in self.0.db.batched_multi_get_cf(self.family()?, keys, false) {
            found += usize::from(value?.is_some());
        }
        Ok(found)
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        let mut iter = self.iter();
        iter.seek(key);
        let mut left = entries;
        while left > 0
            && let Some((key, value)) = iter.item()
        {
            visit(key, value);
            left -= 1;
            // No move after the last requested entry.
            if left > 0 {
                iter.next();
            }
        }
        Ok(iter.status()?)
    }

    fn scan(
        &self,
        direction: ScanDirection,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Fault> {
        let mut iter = self.iter();
        match direction {
            ScanDirection::Up => iter.seek_to_first(),
            ScanDirection::Down => iter.seek_to_last(),
        }
        while let Some((key, value)) = iter.item() {
            if !visit(key, value) {
                break;
            }
            match direction {
                ScanDirection::Up => iter.next(),
                ScanDirection::Down => iter.prev(),
            }
        }
        Ok(iter.status()?)
    }

    fn settle(&self) -> Result<(), Fault> {
        self.0.db.flush()?;
        self.0.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(self.0.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }
}

fn add(_: &[u8], old: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    let old = old.map_or(Ok(0), |old| old.try_into().map(i64::from_le_bytes)).ok()?;
    let added = operands.iter().map(|one| one.try_into().map(i64::from_le_bytes));
    let sum = added.sum::<Result<i64, _>>().ok()?;
    Some((old + sum).to_le_bytes().to_vec())
}

fn set_features(options: &mut Options, features: &Features) {
    if features.counters {
        options.set_merge_operator_associative("add", add);
    }
    if let Some(bytes) = features.prefix_bytes {
        options.set_prefix_extractor(SliceTransform::create_fixed_prefix(bytes.into()));
    }
    if let Some(bytes) = features.fifo_bytes {
        let mut fifo = FifoCompactOptions::default();
        fifo.set_max_table_files_size(bytes);
        options.set_compaction_style(DBCompactionStyle::Fifo);
        options.set_fifo_compaction_options(&fifo);
    }
    if features.keeps_log {
        options.set_wal_ttl_seconds(24 * 3600);
    }
    if let Some(bytes) = features.level_base_bytes {
        options.set_target_file_size_base(bytes);
        options.set_max_bytes_for_level_base(bytes);
        options.set_max_bytes_for_level_multiplier(3.0);
        options.set_level_zero_file_num_compaction_trigger(2);
    }
}

/// The puts of batches of the log.
struct Puts<'a>(&'a mut dyn FnMut(&[u8], &[u8]));

impl WriteBatchIterator for Puts<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        (self.0)(key, value);
    }

    fn delete(&mut self, _: &[u8]) {}
}

impl<const BLOBS: bool> Peer for RocksDb<BLOBS> {
    fn open(folder: &Path, settings: &Settings) -> Result<Self, Fault> {
        let cache = Cache::new_lru_cache(settings.cache_bytes);
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&cache);
        blocks.set_block_size(settings.block_bytes);
        blocks.set_bloom_filter(settings.bloom_bits.into(), false);

        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options.set_write_buffer_size(settings.write_buffer_bytes);
        options.set_max_write_buffer_number(4);
        options.set_max_background_jobs(settings.background_threads.into());
        let compression = match settings.lz4 {
            false => DBCompressionType::None,
            true if cfg!(feature = "lz4") => DBCompressionType::Lz4,
            true => return Err("RocksDB is compiled without LZ4".into()),
        };
        options.set_compression_type(compression);
        if BLOBS {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(settings.blob_bytes_min);
            options.set_blob_compression_type(compression);
            options.set_enable_blob_gc(true);
            options.set_blob_cache(&cache);
        }
        set_features(&mut options, &settings.features);
        let family = ColumnFamilyDescriptor::new(FAMILY, options.clone());
        let db = DB::open_cf_descriptors(&options, folder, [family])?;

        // The log is written before a write returns, and synced only on demand.
        let to_kernel = WriteOptions::default();
        let mut to_device = WriteOptions::default();
        to_device.set_sync(true);
        Ok(RocksDb(Arc::new(Store { db, to_kernel, to_device })))
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.0.db.get_pinned(key)?.map(|value| filled(buf, &value)).transpose()
    }

    fn lend(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<Option<bool>, Fault> {
        Ok(Some(self.0.db.get_pinned(key)?.inspect(|value| visit(value)).is_some()))
    }

    fn flush(&self) -> Result<Option<()>, Fault> {
        self.0.db.flush()?;
        Ok(Some(self.0.db.wait_for_compact(&WaitForCompactOptions::default())?))
    }

    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<Option<()>, Fault> {
        Ok(Some(self.0.db.delete_range_cf_opt(self.family()?, start, end, &self.0.to_kernel)?))
    }

    fn merge(&self, key: &[u8]) -> Result<Option<()>, Fault> {
        Ok(Some(self.0.db.merge_opt(key, 1i64.to_le_bytes(), &self.0.to_kernel)?))
    }

    /// Not one operation: transactions, with which it would be, are another kind of database.
    fn update(&self, key: &[u8]) -> Result<Option<()>, Fault> {
        let value = incremented(self.0.db.get_pinned(key)?.as_deref())?;
        Ok(Some(self.put(key, &value, Ack::Os)?))
    }

    fn count_prefix(&self, prefix: &[u8]) -> Result<Option<u64>, Fault> {
        let mut options = ReadOptions::default();
        options.set_prefix_same_as_start(true);
        let mut iter = self.0.db.raw_iterator_opt(options);
        iter.seek(prefix);
        let mut count = 0;
        while iter.key().is_some_and(|key| key.starts_with(prefix)) {
            count += 1;
            iter.next();
        }
        iter.status()?;
        Ok(Some(count))
    }

    fn back_up(&self, folder: &Path) -> Result<Option<()>, Fault> {
        let mut engine = BackupEngine::open(&BackupEngineOptions::new(folder)?, &Env::new()?)?;
        Ok(Some(engine.create_new_backup(&self.0.db)?))
    }

    fn follow(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<()>, Fault> {
        for batch in self.0.db.get_updates_since(0)? {
            batch?.1.iterate(&mut Puts(&mut *visit));
        }
        Ok(Some(()))
    }

    fn close(self) -> Result<(), Fault> {
        drop(self);
        Ok(())
    }

    fn version() -> String {
        // The crate's version ends in that of the library that it carries.
        let version = locked_version("librocksdb-sys");
        version.split_once('+').map_or(version.clone(), |(_, library)| library.to_owned())
    }
}
