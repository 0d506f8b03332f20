//! [`View`]: one partition, as one command sees it and changes it.
//!
//! The commands on data (`strings.rs`, `keys.rs`) are written once, for a primary, for a transaction and for a reader.
//!
//! Invariants:
//! 1. A command that changes a key because of its value requires, at its commit, that the value is still that one.
//! 2. In a partition with expiry a stored value begins with the time of its expiry in milliseconds since 1970, 8 bytes
//!    big-endian, 0 for never (the rule of `expiry.rs`). No read of the engine returns it from this time on.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::large_values::ReadBlobs;
use siltstone::secondary::Reading;
use siltstone::{Batch, Cursor, Partition, PartitionSnapshot, Readable, SeqNo, Slice, Transaction};

use crate::blob::{Blob, LONG_BYTES};
use crate::failure::Failure;
use crate::shards::record::Record;

/// Bytes of the time before a value.
const TIME_BYTES: usize = 8;

/// A value, and the time of its expiry.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) value: Slice,
    /// Milliseconds since 1970; 0 for never.
    pub(crate) expires: u64,
}

/// The changes of one command outside of a transaction.
pub(crate) struct Change<'a> {
    pub(crate) partition: &'a Partition,
    pub(crate) batch: Batch,
    /// Before each read: the read may be newer, and the commit is then refused without need.
    pub(crate) read_at: SeqNo,
    pub(crate) read_count: usize,
    deleted: HashSet<Vec<u8>>,
    /// The value that is put came as a stream, and is in its file already.
    has_stream: bool,
    /// It is to be put.
    pub(crate) puts_stream: bool,
}

impl<'a> Change<'a> {
    pub(crate) fn new(
        partition: &'a Partition,
        batch: Batch,
        read_at: SeqNo,
        has_stream: bool,
    ) -> Change<'a> {
        let deleted = HashSet::new();
        let puts_stream = false;
        Change { partition, batch, read_at, read_count: 0, deleted, has_stream, puts_stream }
    }
}

/// The source of a view.
pub(crate) enum Source<'a> {
    /// Nothing: the partition does not exist.
    Nothing,
    /// The newest state, for commands that look once.
    Live(&'a Partition),
    /// One state, for commands that look several times.
    Snapshot(PartitionSnapshot),
    /// The state of a reader.
    Reading(&'a Reading),
    Change(Change<'a>),
    Transaction(&'a mut Transaction, &'a Partition),
}

/// One partition, as one command sees it.
pub(crate) struct View<'a> {
    pub(crate) source: Source<'a>,
    /// The time now, if the entries of the partition expire.
    pub(crate) expiry: Option<u64>,
    /// The slots of a shard, to which a walk keeps.
    pub(crate) owned: Option<Arc<Record>>,
    /// The reply may be a [`Blob`].
    pub(crate) may_stream: bool,
    /// The longest value that may be in memory as a whole, in bytes.
    pub(crate) value_bytes_max: usize,
}

impl View<'_> {
    /// Returns the value of `key` as it is stored.
    fn stored(&mut self, key: &[u8]) -> Result<Option<Slice>, Failure> {
        self.check_stored(key)?;
        Ok(match &mut self.source {
            Source::Nothing => None,
            Source::Live(partition) => partition.get(key)?,
            Source::Snapshot(snapshot) => snapshot.get(key)?,
            Source::Reading(reading) => reading.get(key)?,
            Source::Change(change) => {
                if change.deleted.contains(key) {
                    return Ok(None);
                }
                change.read_count += 1;
                let Change { partition, batch, read_at, .. } = change;
                batch.of(partition).require(key, *read_at);
                partition.get(key)?
            }
            Source::Transaction(transaction, partition) => transaction.get(partition, key)?,
        })
    }

    /// Refuses a value in a chunk file that is too long, before it is read.
    fn check_stored(&self, key: &[u8]) -> Result<(), Failure> {
        // Then [`View::blob`] has found it short.
        if self.may_stream && self.value_bytes_max as u64 >= LONG_BYTES {
            return Ok(());
        }
        let stat = match &self.source {
            Source::Live(partition) | Source::Change(Change { partition, .. })
                if partition.has_large_values() =>
            {
                partition.stat_blob(key)?
            }
            Source::Transaction(transaction, partition)
                if partition.has_large_values() && !transaction.has_write(partition, key) =>
            {
                transaction.snapshot().of(partition).stat_blob(key)?
            }
            Source::Snapshot(snapshot) if snapshot.point()?.value_store().is_some() => {
                snapshot.stat_blob(key)?
            }
            Source::Reading(reading) if reading.point()?.value_store().is_some() => {
                reading.stat_blob(key)?
            }
            _ => None,
        };
        let skipped = if self.expiry.is_some() { TIME_BYTES as u64 } else { 0 };
        stat.map_or(Ok(()), |stat| self.check_len(stat.len.saturating_sub(skipped)))
    }

    fn check_len(&self, len: u64) -> Result<(), Failure> {
        let most = self.value_bytes_max;
        if len <= most as u64 {
            return Ok(());
        }
        let text = format!("LIMIT the value has {len} bytes, the limit of this command is {most}");
        Err(Failure::Refused(text.into()))
    }

    fn found(&self, stored: Slice) -> Found {
        let parts = stored.split_first_chunk::<TIME_BYTES>().filter(|_| self.expiry.is_some());
        // Too short for a time: another program wrote it.
        let Some((time, value)) = parts else { return Found { value: stored, expires: 0 } };
        Found { value: Slice::from(value), expires: u64::from_be_bytes(*time) }
    }

    /// Returns the value of `key` with its time.
    pub(crate) fn entry(&mut self, key: &[u8]) -> Result<Option<Found>, Failure> {
        let stored = self.stored(key)?;
        Ok(stored.map(|stored| self.found(stored)))
    }

    /// Returns the value of `key`.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Slice>, Failure> {
        Ok(self.entry(key)?.map(|found| found.value))
    }

    /// Gives `visit` the values of `keys`, at most 64, in their order, until it returns `false`. The values of a partition with large values
    /// are not given in this way: the failure is `MayWait` then.
    pub(crate) fn each(
        &self,
        keys: &[Bytes],
        mut visit: impl FnMut(Option<Slice>) -> bool,
    ) -> Result<(), Failure> {
        match &self.source {
            Source::Nothing => {
                let _ = keys.iter().all(|_| visit(None));
            }
            Source::Live(partition) if !partition.has_large_values() => {
                let mut next = 0;
                partition.multi_get_each(keys, |at, stored| {
                    debug_assert_eq!(at, next, "the values come in the order of the keys");
                    next += 1;
                    visit(self.value_of(stored))
                })?;
            }
            Source::Reading(reading) if reading.point()?.value_store().is_none() => {
                for key in keys {
                    if !visit(self.value_of(reading.get(key)?)) {
                        break;
                    }
                }
            }
            _ => return Err(Failure::MayWait),
        }
        Ok(())
    }

    fn value_of(&self, stored: Option<Slice>) -> Option<Slice> {
        stored.map(|stored| self.found(stored).value)
    }

    /// Opens the value of `key` if it is long and need not be in memory.
    pub(crate) fn blob(&self, key: &[u8]) -> Result<Option<Blob>, Failure> {
        if !self.may_stream {
            return Ok(None);
        }
        let skipped = if self.expiry.is_some() { TIME_BYTES as u64 } else { 0 };
        Ok(match &self.source {
            Source::Live(partition) if partition.has_large_values() => {
                Blob::open(*partition, key, skipped)?
            }
            Source::Reading(reading) if reading.point()?.value_store().is_some() => {
                Blob::open(*reading, key, skipped)?
            }
            _ => None,
        })
    }

    /// Returns whether `key` exists.
    pub(crate) fn contains(&mut self, key: &[u8]) -> Result<bool, Failure> {
        match &mut self.source {
            // The place of a large value is enough.
            Source::Live(partition) => Ok(partition.contains(key)?),
            Source::Snapshot(snapshot) => Ok(snapshot.contains(key)?),
            Source::Reading(reading) => Ok(reading.contains(key)?),
            Source::Change(change) if !change.deleted.contains(key) => {
                change.read_count += 1;
                let Change { partition, batch, read_at, .. } = change;
                batch.of(partition).require(key, *read_at);
                Ok(partition.contains(key)?)
            }
            Source::Transaction(transaction, partition) => {
                Ok(transaction.contains(partition, key)?)
            }
            Source::Nothing | Source::Change(_) => Ok(false),
        }
    }

    /// Sets `key` to `value`, which expires at `expires`, or never if that is 0.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], expires: u64) -> Result<(), Failure> {
        self.check_len(value.len() as u64)?;
        if self.expiry.is_none() {
            if expires > 0 {
                let text = "ERR the entries of this partition do not expire: start the primary with --expire";
                return Err(Failure::fixed(text));
            }
            return self.put_stored(key, value);
        }
        let mut stored = Vec::with_capacity(TIME_BYTES + value.len());
        stored.extend_from_slice(&expires.to_be_bytes());
        stored.extend_from_slice(value);
        self.put_stored(key, &stored)
    }

    fn put_stored(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        match &mut self.source {
            Source::Change(change) if change.has_stream => {
                change.puts_stream = true;
                Ok(())
            }
            Source::Change(change) => {
                change.batch.of(change.partition).put(key, value);
                Ok(())
            }
            Source::Transaction(transaction, partition) => {
                transaction.put(partition, key, value);
                Ok(())
            }
            _ => Err(Failure::fixed("READONLY the command writes, and reads only were prepared")),
        }
    }

    /// Deletes `key`.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<(), Failure> {
        match &mut self.source {
            Source::Change(change) => {
                change.batch.of(change.partition).delete(key);
                change.deleted.insert(key.to_vec());
                Ok(())
            }
            Source::Transaction(transaction, partition) => {
                transaction.delete(partition, key);
                Ok(())
            }
            _ => Err(Failure::fixed("READONLY the command writes, and reads only were prepared")),
        }
    }

    /// Returns whether a walk shows `key`.
    pub(crate) fn shows(&self, key: &[u8]) -> bool {
        self.owned.as_ref().is_none_or(|record| record.owned.has(key))
    }

    /// Returns a cursor over all keys; `None` if there is no partition.
    pub(crate) fn cursor(&self) -> Result<Option<Cursor>, Failure> {
        match &self.source {
            Source::Nothing => Ok(None),
            Source::Live(partition) => Ok(Some(partition.cursor())),
            Source::Snapshot(snapshot) => Ok(Some(snapshot.cursor())),
            Source::Reading(reading) => Ok(Some(reading.cursor())),
            Source::Change(_) | Source::Transaction(..) => {
                Err(Failure::error("a command over many keys is not supported here"))
            }
        }
    }
}
