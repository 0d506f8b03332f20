//! [`BlobWriter`]: a value that is written a piece at a time; [`PendingBlob`], a complete one.

use std::fmt;
use std::io;
use std::sync::Arc;

use lsm_core::db::{Batch, Commit, Partition, Transaction};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::PendingHandle;
use lsm_core::limits::FORMAT_VALUE_BYTES_MAX;
use lsm_core::options::WriteOptions;

use crate::shared::Shared;
use crate::store::LargeStore;
use crate::writing::BlockWriter;

/// A writer that streams the value of a key. Earlier pieces go to the device while later ones are
/// produced. The value is not visible before [`BlobWriter::commit`]. Dropping the writer discards the value.
///
/// # Cost
/// Memory for one sub-block, and two more if the value is compressed, independent of its length; a
/// value below the threshold is held in memory as a whole. A value of unknown length, or of a
/// quarter of a chunk or more, begins a chunk file. A value whose stored length is a quarter of a
/// chunk or more ends its file; after others the file takes further values.
pub struct BlobWriter {
    partition: Partition,
    shared: Arc<Shared>,
    /// `None` until [`BlobWriter::set_key`], if the key comes last.
    key: Option<Vec<u8>>,
    /// The key in its block: nothing, if the key comes last.
    stored_key: Vec<u8>,
    expected: Option<u64>,
    value: WrittenValue,
}

enum WrittenValue {
    /// Perhaps a small one.
    Buffered(Vec<u8>),
    Streamed(Box<BlockWriter>),
    /// A write of it failed.
    Failed,
}

impl WrittenValue {
    fn written(&self) -> u64 {
        match self {
            WrittenValue::Buffered(bytes) => bytes.len() as u64,
            WrittenValue::Streamed(block) => block.len(),
            WrittenValue::Failed => 0,
        }
    }
}

impl BlobWriter {
    pub(crate) fn new(
        partition: &Partition,
        store: &LargeStore,
        key: Option<&[u8]>,
        expected: Option<u64>,
    ) -> Result<BlobWriter> {
        store.0.process.check()?;
        // What the partition does not take is reported now, not after the last byte of a film.
        let stored_key = partition.stored_key(key.unwrap_or_default())?;
        Ok(BlobWriter {
            partition: partition.clone(),
            shared: store.0.clone(),
            key: key.map(<[u8]>::to_vec),
            stored_key: if key.is_some() { stored_key } else { Vec::new() },
            expected,
            value: WrittenValue::Buffered(Vec::new()),
        })
    }

    /// Sets the key of a value that was begun without one.
    ///
    /// # Errors
    /// A limit of the key, or an ending that the partition reserves; the writer is as before.
    pub fn set_key(&mut self, key: &[u8]) -> Result<()> {
        self.partition.stored_key(key)?;
        self.key = Some(key.to_vec());
        Ok(())
    }

    /// Returns the bytes that were written so far.
    pub fn written(&self) -> u64 {
        self.value.written()
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.shared.process.check()?;
        // Failed until the write has worked, so that every error leaves it so.
        let mut value = std::mem::replace(&mut self.value, WrittenValue::Failed);
        match &mut value {
            WrittenValue::Failed => {
                return Err(Error::new(ErrorKind::Io, "an earlier write of this value failed"));
            }
            WrittenValue::Streamed(block) => {
                let pushed = block.push(bytes);
                if pushed.is_err() {
                    self.shared.note_put_outcome(block.len(), &pushed);
                }
                pushed?;
            }
            WrittenValue::Buffered(buffer) => {
                let len = (buffer.len() + bytes.len()) as u64;
                let threshold = self.shared.options().threshold_bytes;
                // A caller may promise less than it writes, so both lengths count.
                if self.expected.unwrap_or(len).max(len) < threshold {
                    // Large values may be off, and then this is all memory.
                    if len > FORMAT_VALUE_BYTES_MAX {
                        return Err(Error::limit("value length", len, FORMAT_VALUE_BYTES_MAX));
                    }
                    buffer.extend_from_slice(bytes);
                } else {
                    let block = self.begin(buffer, bytes);
                    self.shared.note_put_outcome(self.expected.unwrap_or(len), &block);
                    value = WrittenValue::Streamed(Box::new(block?));
                }
            }
        }
        self.value = value;
        Ok(())
    }

    /// Begins the block of a value with these bytes.
    fn begin(&self, first: &[u8], after: &[u8]) -> Result<BlockWriter> {
        let mut block = self.shared.begin(&self.stored_key, self.expected)?;
        block.push(first)?;
        block.push(after)?;
        Ok(block)
    }

    /// Ends the value; it can be committed with others.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if its length is not the expected one, or it has no key; those of the
    /// file. The value is discarded then.
    pub fn finish(self) -> Result<PendingBlob> {
        self.shared.process.check()?;
        let Some(key) = self.key else {
            return Err(Error::new(ErrorKind::InvalidArgument, "a streamed value has no key yet"));
        };
        let written = self.value.written();
        // A value whose write failed has no valid length. The failure is the cause, and is returned
        // below.
        let is_failed = matches!(self.value, WrittenValue::Failed);
        let expected = self.expected.filter(|expected| !is_failed && *expected != written);
        if let Some(expected) = expected {
            let message = format!("{written} bytes were written of a value of {expected}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let value = match self.value {
            WrittenValue::Failed => {
                return Err(Error::new(ErrorKind::Io, "an earlier write of this value failed"));
            }
            WrittenValue::Buffered(bytes) => PendingValue::Small(bytes),
            WrittenValue::Streamed(block) => {
                let finished = block.finish();
                self.shared.note_put_outcome(written, &finished);
                let finished = finished?;
                // Here and not at the commit, which may come much later or never.
                self.shared.give_back(finished.writer, finished.stored_len);
                self.shared.note_put(finished.stored_len);
                PendingValue::Large(finished.pending)
            }
        };
        Ok(PendingBlob { partition: self.partition, key, len: written, value })
    }

    /// Ends the value and sets the key to it.
    ///
    /// # Errors
    /// Those of [`BlobWriter::finish`] and of a batch's commit.
    ///
    /// # Durability
    /// That of `options`: with [`Durability::Sync`](lsm_core::options::Durability::Sync), value and
    /// key are on the device once this returns.
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        let mut batch = self.partition.batch();
        self.finish()?.add_to(&mut batch);
        batch.commit(options)
    }
}

impl io::Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes)?;
        Ok(bytes.len())
    }

    /// Does nothing: a value becomes visible when it is committed.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobWriter").field("written", &self.written()).finish_non_exhaustive()
    }
}

/// A complete value that no key has yet. Dropping it discards it.
pub struct PendingBlob {
    partition: Partition,
    key: Vec<u8>,
    len: u64,
    value: PendingValue,
}

enum PendingValue {
    Small(Vec<u8>),
    Large(PendingHandle),
}

impl PendingBlob {
    /// Returns the length of the value, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Adds to a batch: its key is set to the value.
    pub fn add_to(self, batch: &mut Batch) {
        match self.value {
            PendingValue::Small(bytes) => batch.add_put(&self.partition, &self.key, &bytes),
            PendingValue::Large(handle) => batch.add_pending(&self.partition, &self.key, handle),
        }
    }

    /// Adds to a transaction: its key is set to the value.
    pub fn add_to_transaction(self, transaction: &mut Transaction) {
        match self.value {
            PendingValue::Small(bytes) => transaction.put(&self.partition, &self.key, bytes),
            PendingValue::Large(handle) => {
                transaction.put_pending(&self.partition, &self.key, handle);
            }
        }
    }
}

impl fmt::Debug for PendingBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingBlob").field("len", &self.len).finish_non_exhaustive()
    }
}
