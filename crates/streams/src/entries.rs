//! [`EntryWriter`] and [`EntryReader`]: a stream of entries as a converter writes and reads it, without a
//! database.

use std::io::{Read, Write};
use std::path::PathBuf;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::limits::{PARTITIONS_MAX, check_key, check_partition_name};

use crate::format::{MAGIC, PIECE_BYTES, RecordHead, StreamReader, StreamWriter};
use crate::options::{StreamPartition, StreamSummary};

/// Writes a stream in [`StreamFormat::Checked`](super::StreamFormat::Checked) of entries that come from
/// elsewhere, for example from another engine. `Db::import_stream` reads it. A
/// stream without its [end](EntryWriter::end) is refused as cut off.
///
/// # Examples
/// ```
/// use siltstone::stream::{EntryReader, EntryWriter, StreamPartition};
///
/// # fn main() -> siltstone::Result<()> {
/// let users = StreamPartition { name: "users".to_owned(), has_large_values: false };
/// let mut stream = Vec::new();
/// let mut writer = EntryWriter::new(&mut stream, &[users])?;
/// writer.put(0, b"alice", b"admin")?;
/// writer.end()?;
/// let mut from = &stream[..];
/// let mut reader = EntryReader::new(&mut from, "memory")?;
/// let entry = reader.next_entry()?.expect("there is one");
/// assert_eq!((entry.key.as_slice(), entry.value_len), (&b"alice"[..], 5));
/// assert_eq!(reader.next_piece()?, Some(&b"admin"[..]));
/// assert!(reader.next_entry()?.is_none());
/// # Ok(())
/// # }
/// ```
pub struct EntryWriter<'w> {
    writer: StreamWriter<'w>,
    partition_count: usize,
    summary: StreamSummary,
}

impl<'w> EntryWriter<'w> {
    /// Writes the header of a stream with these partitions.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for more partitions than a database may have, or a name that no partition
    /// may have; the errors of `out`.
    pub fn new(out: &'w mut dyn Write, partitions: &[StreamPartition]) -> Result<EntryWriter<'w>> {
        let count = partitions.len();
        if count > PARTITIONS_MAX {
            return Err(Error::limit(
                "partitions of a stream",
                count as u64,
                PARTITIONS_MAX as u64,
            ));
        }
        // The length of a name has one byte in the header. A longer one would be cut off in
        // silence.
        partitions.iter().try_for_each(|partition| check_partition_name(&partition.name))?;
        let writer = StreamWriter::begin(out, partitions)?;
        Ok(EntryWriter { writer, partition_count: count, summary: StreamSummary::default() })
    }

    /// Writes an entry of the partition with this number in the header, from 0. Entries may come in any
    /// order; of two with one key the later counts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a partition that the header does not name; a limit of the key; the
    /// errors of the writer.
    pub fn put(&mut self, partition: usize, key: &[u8], value: &[u8]) -> Result<()> {
        if partition >= self.partition_count {
            let message = format!("partition {partition} of {}", self.partition_count);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // Checked although a database never exports such a key: a converter may write one, and
        // every reader would refuse the stream only at this place.
        check_key(key)?;
        self.writer.entry(partition as u32, key, value.len() as u64)?;
        value.chunks(PIECE_BYTES as usize).try_for_each(|piece| self.writer.piece(piece))?;
        self.summary.count(key, value.len() as u64);
        Ok(())
    }

    /// Ends the stream and flushes the writer.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end(self) -> Result<StreamSummary> {
        self.writer.end(self.summary.entries)?;
        Ok(self.summary)
    }
}

/// An entry of a stream; its value comes in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamEntry {
    /// The number of its partition in the header, from 0.
    pub partition: usize,
    /// Its key.
    pub key: Vec<u8>,
    /// Length of its value, in bytes.
    pub value_len: u64,
}

/// Reads a stream in [`StreamFormat::Checked`](super::StreamFormat::Checked) entry by entry, and verifies each
/// part before it returns it.
pub struct EntryReader<'r> {
    reader: StreamReader<'r>,
    partitions: Vec<StreamPartition>,
    entries: u64,
    /// Bytes of the value of the present entry that are not read yet.
    left: u64,
    is_at_end: bool,
}

impl<'r> EntryReader<'r> {
    /// Reads the header of a stream; `source` names it in errors.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if the bytes are no stream, or damaged; [`ErrorKind::Unsupported`] for a newer
    /// version; the errors of `from`.
    pub fn new(from: &'r mut dyn Read, source: impl Into<PathBuf>) -> Result<EntryReader<'r>> {
        let source = source.into();
        let mut magic = Vec::new();
        // Not `read_exact`. A source that is shorter is no stream, and its end is no error of the
        // device.
        let read = (&mut *from).take(MAGIC.len() as u64).read_to_end(&mut magic);
        read.map_err(|e| Error::io("read", &source, e))?;
        if magic != MAGIC {
            return Err(Error::corruption(&source, 0, "no stream of entries"));
        }
        EntryReader::after_magic(from, source)
    }

    /// As [`EntryReader::new`], if the magic was read already.
    pub(crate) fn after_magic(from: &'r mut dyn Read, source: PathBuf) -> Result<EntryReader<'r>> {
        let mut reader = StreamReader::after_magic(from, source);
        let partitions = reader.header()?;
        Ok(EntryReader { reader, partitions, entries: 0, left: 0, is_at_end: false })
    }

    /// Returns the partitions that the header names.
    pub fn partitions(&self) -> &[StreamPartition] {
        &self.partitions
    }

    /// Returns the next entry; `None` after the last. The rest of the value before it is read and
    /// verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] that names the offset; the errors of the source.
    pub fn next_entry(&mut self) -> Result<Option<StreamEntry>> {
        // Read and not skipped: each checksum is seeded with the one before, so no later part could
        // be verified.
        while self.next_piece()?.is_some() {}
        if self.is_at_end {
            return Ok(None);
        }
        let (head, key) = self.reader.record()?;
        let key = key.to_vec();
        let RecordHead::Entry { partition, value_len, .. } = head else {
            self.reader.check_end(head, self.entries)?;
            self.is_at_end = true;
            return Ok(None);
        };
        let partition = partition as usize;
        if partition >= self.partitions.len() {
            let what = "a partition that the header does not name";
            return Err(self.reader.damage(what).at_key(&key));
        }
        // Compared at the end with the count of the writer. Checksums show that a stream is as it
        // was written, and not that a writer has left nothing out.
        self.entries += 1;
        self.left = value_len;
        Ok(Some(StreamEntry { partition, key, value_len }))
    }

    /// Returns the next piece of the value of the present entry, of at most 256 KiB; `None` after
    /// the last.
    ///
    /// # Errors
    /// As [`EntryReader::next_entry`].
    pub fn next_piece(&mut self) -> Result<Option<&[u8]>> {
        if self.left == 0 {
            return Ok(None);
        }
        let len = self.left.min(PIECE_BYTES);
        let piece = self.reader.piece(len)?;
        self.left -= len;
        Ok(Some(piece))
    }
}
