//! Fjall: one keyspace, without key-value separation.
//!
//! Beyond [`Settings`]: nothing. Its default Bloom filters are larger in the first level; here all
//! levels have the same bits, as in the other engines. Flushing and compacting everything on
//! demand, and waiting for it, goes through calls that fjall keeps for its own tests.

use std::path::Path;
use std::sync::Arc;

use ::fjall::compaction::Fifo;
use ::fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use ::fjall::{
    CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch,
    PersistMode, Result,
};
use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, filled, locked_version};
use crate::settings::Settings;

/// One keyspace of a database.
#[derive(Clone)]
pub struct Fjall {
    db: Database,
    keyspace: Keyspace,
}

impl Fjall {
    /// A batch that is on the device when its commit returns, or in the kernel.
    fn batch(&self, when: Ack) -> OwnedWriteBatch {
        self.db.batch().durability(match when {
            Ack::Os => Some(PersistMode::Buffer),
            Ack::Sync => Some(PersistMode::SyncData),
        })
    }
}

fn walk(
    entries: impl Iterator<Item = Guard>,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
    for entry in entries {
        let (key, value) = entry.into_inner()?;
        if !visit(&key, &value) {
            break;
        }
    }
    Ok(())
}

impl Engine for Fjall {
    type Error = Fault;

    #[inline]
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> std::result::Result<(), Fault> {
        match when {
            Ack::Os => self.keyspace.insert(key, value)?,
            Ack::Sync => {
                let mut batch = self.batch(when);
                batch.insert(&self.keyspace, key, value);
                batch.commit()?;
            }
        }
        Ok(())
    }

    #[inline]
    fn delete(&self, key: &[u8], when: Ack) -> std::result::Result<(), Fault> {
        match when {
            Ack::Os => self.keyspace.remove(key)?,
            Ack::Sync => {
                let mut batch = self.batch(when);
                batch.remove(&self.keyspace, key);
                batch.commit()?;
            }
        }
        Ok(())
    }

    fn put_all(
        &self,
        entries: &[(Vec<u8>, Vec<u8>)],
        when: Ack,
    ) -> std::result::Result<(), Fault> {
        let mut batch = self.batch(when);
        for (key, value) in entries {
            batch.insert(&self.keyspace, key.as_slice(), value.as_slice());
        }
        Ok(batch.commit()?)
    }

    #[inline]
    fn get(&self, key: &[u8]) -> std::result::Result<Option<usize>, Fault> {
        Ok(self.keyspace.get(key)?.map(|value| value.len()))
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> std::result::Result<(), Fault> {
        let range = self.keyspace.range(key..).take(usize::try_from(entries)?);
        let show = |key: &[u8], value: &[u8]| {
            visit(key, value);
            true
        };
        Ok(walk(range, show)?)
    }

    fn scan(
        &self,
        direction: ScanDirection,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> std::result::Result<(), Fault> {
        match direction {
            ScanDirection::Up => walk(self.keyspace.iter(), visit)?,
            ScanDirection::Down => walk(self.keyspace.iter().rev(), visit)?,
        }
        Ok(())
    }

    fn settle(&self) -> std::result::Result<(), Fault> {
        self.keyspace.rotate_memtable_and_wait()?;
        self.keyspace.major_compact()?;
        while self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0 {
            // fjall offers nothing to wait on. Nothing is measured here.
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Peer for Fjall {
    fn open(folder: &Path, settings: &Settings) -> std::result::Result<Fjall, Fault> {
        let db = Database::builder(folder)
            .cache_size(settings.cache_bytes as u64)
            .worker_threads(settings.background_threads.into())
            .journal_compression(CompressionType::None)
            .open()?;
        let compression = match settings.lz4 {
            false => CompressionPolicy::disabled(),
            #[cfg(feature = "lz4")]
            true => CompressionPolicy::all(CompressionType::Lz4),
            #[cfg(not(feature = "lz4"))]
            true => return Err("fjall is compiled without LZ4".into()),
        };
        let bloom = BloomConstructionPolicy::BitsPerKey(settings.bloom_bits.into());
        let block_bytes = u32::try_from(settings.block_bytes)?;
        let options = || {
            let options = KeyspaceCreateOptions::default();
            let options = match settings.features.fifo_bytes {
                None => options,
                Some(bytes) => options.compaction_strategy(Arc::new(Fifo::new(bytes, None))),
            };
            options
                .max_memtable_size(settings.write_buffer_bytes as u64)
                .data_block_size_policy(BlockSizePolicy::all(block_bytes))
                .data_block_compression_policy(compression.clone())
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)))
        };
        let keyspace = db.keyspace("bench", options)?;
        Ok(Fjall { db, keyspace })
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> std::result::Result<Option<usize>, Fault> {
        self.keyspace.get(key)?.map(|value| filled(buf, &value)).transpose()
    }

    fn close(self) -> std::result::Result<(), Fault> {
        drop(self);
        Ok(())
    }

    fn version() -> String {
        locked_version("fjall")
    }
}
