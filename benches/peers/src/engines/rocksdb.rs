//! RocksDB, with all data in its tables or with large values in blob files.
//!
//! Beyond [`Settings`]: as many write buffers as siltstone lets wait before writes stop (one active
//! and three sealed). Sizes of levels and tables are RocksDB's defaults, which are siltstone's,
//! too. Blob files are collected as garbage, and their values go through the same cache.

use std::path::Path;
use std::sync::Arc;

use ::rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, Options, WaitForCompactOptions,
    WriteBatch, WriteOptions,
};
use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, filled, locked_version};
use crate::settings::Settings;

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

    fn scan(&self, direction: ScanDirection, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
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
        let db = DB::open(&options, folder)?;

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
