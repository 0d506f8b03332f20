//! [`Blob`]: a long value, or a part of one, which is read while it is sent.
//!
//! Invariants:
//! 1. No more than [`PIECE_BYTES`] of it are in memory.
//! 2. It is the value as of its open, whatever is written since.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::large_values::{BlobReader, PendingBlob, ReadBlobs};
use siltstone::{Epoch, Partition, Result, Slice};

/// Values of so many bytes stream. Shorter ones are one read and one reply.
pub(crate) const LONG_BYTES: u64 = 1 << 20;
/// Bytes that are read at a time: two sub-blocks, which are verified as a whole.
pub(crate) const PIECE_BYTES: u64 = 512 << 10;

/// Returns whether a long value of the partition goes to a chunk file.
pub(crate) fn stores_apart(partition: &Partition) -> bool {
    partition.large_value_options().is_some_and(|options| options.is_on())
}

/// A value whose bytes are all in their file.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) value: PendingBlob,
    /// That of the primary whose file it is.
    pub(crate) epoch: Epoch,
}

/// The version of a value: its root hash, which is written as 32 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(pub(crate) u128);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A long value that a connection keeps, because it is read in parts.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) partition: Arc<str>,
    pub(crate) key: Bytes,
    pub(crate) blob: Blob,
}

/// Bytes of a long value.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    reader: BlobReader,
    /// Those that are not sent yet.
    left: Range<u64>,
}

impl PartialEq for Blob {
    /// Two are the same if they are equally long: no one compares contents that are not in memory.
    fn eq(&self, other: &Blob) -> bool {
        self.len() == other.len()
    }
}

impl Blob {
    /// Opens the value of `key` if it is long. `skipped` bytes at its begin are not of the value.
    pub(crate) fn open(source: &impl ReadBlobs, key: &[u8], skipped: u64) -> Result<Option<Blob>> {
        let stat = source.stat_blob(key)?;
        if stat.is_none_or(|stat| stat.len < LONG_BYTES + skipped) {
            return Ok(None);
        }
        // It may be another value by now.
        let reader = source.open_blob(key)?;
        Ok(reader.filter(|reader| reader.len() >= skipped).map(|reader| {
            let left = skipped..reader.len();
            Blob { reader, left }
        }))
    }

    /// Its bytes that are not sent yet.
    pub(crate) fn len(&self) -> u64 {
        self.left.end - self.left.start
    }

    /// The root hash, by which parts are known to be of one value; `None` for a value that is not in a chunk file.
    pub(crate) fn version(&self) -> Option<Version> {
        self.reader.root_hash().map(Version)
    }

    /// The place of its bytes that are not sent yet, in the stored value.
    pub(crate) fn place(&self) -> Range<u64> {
        self.left.clone()
    }

    /// The bytes at a place of the stored value, in memory; `None` if it has no such place.
    pub(crate) fn at(&self, place: Range<u64>) -> Result<Option<Slice>> {
        if place.start > place.end || place.end > self.reader.len() {
            return Ok(None);
        }
        Blob { reader: self.reader.clone(), left: place }.whole().map(Some)
    }

    /// The bytes `range` of it.
    pub(crate) fn part(mut self, range: Range<u64>) -> Blob {
        let begin = self.left.start;
        self.left = begin + range.start..begin + range.end;
        self
    }

    /// All of it, in memory.
    pub(crate) fn whole(&self) -> Result<Slice> {
        let mut bytes = vec![0; self.len() as usize];
        self.reader.read_exact_at(self.left.start, &mut bytes)?;
        Ok(bytes.into())
    }

    /// Reads the next piece into `piece`, which is empty at the end. Blocks.
    pub(crate) fn read(&mut self, piece: &mut Vec<u8>) -> Result<()> {
        // Up to the end of a sub-block, so that none is verified twice.
        let begin = self.left.start;
        let end = self.left.end.min((begin / PIECE_BYTES + 1) * PIECE_BYTES);
        piece.resize((end - begin) as usize, 0);
        self.reader.read_exact_at(begin, piece)?;
        self.left.start = end;
        Ok(())
    }
}
