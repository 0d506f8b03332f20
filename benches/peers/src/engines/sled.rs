//! Sled: the tree that every database has.
//!
//! Beyond [`Settings`]: `Mode::HighThroughput`, and no flush by a clock (`flush_every_ms`), because
//! no other engine is measured with one. Sled has no write buffer, no bloom and no setting for its
//! threads; its cache gets as many bytes as the block cache of the others.
//!
//! A write returns when it is in the process' log buffer, which a thread writes to the file when it
//! is full. Where a write need only survive a killed process, that is less than asked; sled offers
//! nothing between this and `flush`. On Linux that waits for the written pages (`sync_file_range`) and
//! does not flush the cache of the device, which is less than the `fdatasync` of the others.

use std::path::Path;

use ::sled::{Batch, Config, Db, IVec, Mode};
use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, filled, locked_version};
use crate::settings::Settings;

/// A database.
#[derive(Clone)]
pub struct Sled(Db);

impl Sled {
    /// Makes everything written so far as durable as requested.
    fn done(&self, when: Ack) -> Result<(), Fault> {
        if when == Ack::Sync {
            self.0.flush()?;
        }
        Ok(())
    }
}

fn walk(
    entries: impl Iterator<Item = ::sled::Result<(IVec, IVec)>>,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Fault> {
    for entry in entries {
        let (key, value) = entry?;
        if !visit(&key, &value) {
            break;
        }
    }
    Ok(())
}

impl Engine for Sled {
    type Error = Fault;

    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        self.0.insert(key, value)?;
        self.done(when)
    }

    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        self.0.remove(key)?;
        self.done(when)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        let mut batch = Batch::default();
        for (key, value) in entries {
            batch.insert(key.as_slice(), value.as_slice());
        }
        self.0.apply_batch(batch)?;
        self.done(when)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        Ok(self.0.get(key)?.map(|value| value.len()))
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        walk(self.0.range(key..).take(usize::try_from(entries)?), |key, value| {
            visit(key, value);
            true
        })
    }

    fn scan(&self, direction: ScanDirection, visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
        match direction {
            ScanDirection::Up => walk(self.0.iter(), visit),
            ScanDirection::Down => walk(self.0.iter().rev(), visit),
        }
    }

    fn settle(&self) -> Result<(), Fault> {
        self.done(Ack::Sync)
    }
}

impl Peer for Sled {
    fn open(folder: &Path, settings: &Settings) -> Result<Sled, Fault> {
        let config = Config::new()
            .path(folder)
            .cache_capacity(settings.cache_bytes as u64)
            .mode(Mode::HighThroughput)
            .flush_every_ms(None);
        Ok(Sled(config.open()?))
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.0.get(key)?.map(|value| filled(buf, &value)).transpose()
    }

    fn close(self) -> Result<(), Fault> {
        drop(self);
        Ok(())
    }

    fn version() -> String {
        locked_version("sled")
    }
}
