//! Reading and writing large values of a partition: the implementation of the public calls.

use std::ops::Range;
use std::time::Duration;

use lsm_core::db::Partition;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::limits::FORMAT_VALUE_BYTES_MAX;
use lsm_core::read::{Located, ReadPoint};
use lsm_core::types::Slice;

use crate::blob_reader::BlobReader;
use crate::blob_ref::BlobRef;
use crate::blob_writer::BlobWriter;
use crate::block::{Block, ByteSource, Parallelism};
use crate::store::LargeStore;

/// The lengths of a value and the time at which it was stored, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobStat {
    /// Length in bytes.
    pub len: u64,
    /// Length as it is stored, in bytes: less than `len` if it is compressed in its chunk file. A value in a
    /// table counts in full.
    pub stored_len: u64,
    /// The time since 1970 at which it was stored; `None` for a value in a table, which does not
    /// record it.
    pub stored: Option<Duration>,
}

/// The store of the large values of a partition, if it has one.
pub fn store_of(partition: &Partition) -> Option<LargeStore> {
    let store = partition.value_store()?;
    store.downcast_ref::<LargeStore>().cloned()
}

/// As [`store_of`].
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if there is none.
pub fn existing_store_of(partition: &Partition) -> Result<LargeStore> {
    store_of(partition).ok_or_else(|| without_store(partition.name()))
}

/// Begins to write the value of `key`, of `len` bytes if that is known.
///
/// # Errors
/// A limit of the key; a partition that has no large values.
pub fn put_stream(partition: &Partition, key: &[u8], len: Option<u64>) -> Result<BlobWriter> {
    BlobWriter::new(partition, &existing_store_of(partition)?, Some(key), len)
}

/// As [`put_stream`], of a value whose key comes last, by [`BlobWriter::set_key`].
///
/// # Errors
/// A partition that has no large values, or takes no writes.
pub fn put_stream_unkeyed(partition: &Partition, len: Option<u64>) -> Result<BlobWriter> {
    BlobWriter::new(partition, &existing_store_of(partition)?, None, len)
}

/// The place of a value, with the point that keeps it there: of [`ReadPoint::locate_kept`], or of a key that a
/// transaction wrote.
pub type Found = Option<(Located, ReadPoint)>;

/// A value where it lies.
enum FoundValue {
    Small(Slice),
    Large(Block, ReadPoint),
}

fn find(found: Found, key: &[u8]) -> Result<Option<FoundValue>> {
    let found = match found {
        None => return Ok(None),
        Some((Located::Here(value), _)) => FoundValue::Small(value),
        Some((Located::Apart(handle), point)) => {
            let block = store_at(&point)?.0.block(&handle, ByteSource::Cached);
            // With the point, which keeps the version that names the handle, and so the file.
            FoundValue::Large(block.map_err(|error| named(error, point.partition(), key))?, point)
        }
    };
    Ok(Some(found))
}

/// The store that has the large values of a point.
fn store_at(point: &ReadPoint) -> Result<&LargeStore> {
    let store = point.value_store();
    let store = store.and_then(|store| store.downcast_ref::<LargeStore>());
    store.ok_or_else(|| without_store(point.partition()))
}

fn without_store(partition: &str) -> Error {
    let message = format!("partition {partition:?} has no large values");
    Error::new(ErrorKind::InvalidArgument, message)
}

fn named(error: Error, partition: &str, key: &[u8]) -> Error {
    error.at_key(key).in_partition(partition)
}

/// Opens the value of `key` for reading in pieces.
///
/// # Errors
/// Corruption of the checksums of the value.
pub fn open_blob(found: Found, key: &[u8]) -> Result<Option<BlobReader>> {
    Ok(match find(found, key)? {
        None => None,
        Some(FoundValue::Small(value)) => Some(BlobReader::small(value)),
        Some(FoundValue::Large(block, point)) => {
            let partition = point.partition().clone();
            let reader = BlobReader::large(block, point);
            Some(reader.map_err(|error| named(error, &partition, key))?)
        }
    })
}

/// Reads the value of `key` into the front of `buf`; returns its length.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] if `buf` is shorter; those of a get.
pub fn get_into(
    found: Found,
    key: &[u8],
    buf: &mut [u8],
    parallelism: Parallelism,
) -> Result<Option<u64>> {
    let room = buf.len() as u64;
    let fits = |len: u64| match len <= room {
        true => Ok(len),
        false => Err(Error::limit("length of the value for the buffer", len, room)),
    };
    Ok(match find(found, key)? {
        None => None,
        Some(FoundValue::Small(value)) => {
            let len = fits(value.len() as u64)?;
            buf[..len as usize].copy_from_slice(&value);
            Some(len)
        }
        Some(FoundValue::Large(block, point)) => {
            // Before anything is read: the buffer of the caller stays as it was.
            let len = fits(block.handle.len)?;
            let read = block.read_whole(&mut buf[..len as usize], parallelism);
            read.map_err(|error| named(error, point.partition(), key))?;
            Some(len)
        }
    })
}

/// The value of `key`, mapped if that is possible.
///
/// # Errors
/// Those of a get.
pub fn get_ref(found: Found, key: &[u8]) -> Result<Option<BlobRef>> {
    Ok(match find(found, key)? {
        None => None,
        Some(FoundValue::Small(value)) => Some(BlobRef::small(value)),
        Some(FoundValue::Large(block, point)) => {
            let partition = point.partition().clone();
            let mapped = store_at(&point)?.0.mapped_chunk(block.handle.chunk);
            let value = BlobRef::large(&block, &mapped, point);
            Some(value.map_err(|error| named(error, &partition, key))?)
        }
    })
}

/// Reads the bytes `range` of the value of `key`; fewer if the value ends earlier.
///
/// # Errors
/// Those of a get; a limit for a range that is too long to be held in memory.
pub fn get_range(found: Found, key: &[u8], range: Range<u64>) -> Result<Option<Slice>> {
    let Some(found) = find(found, key)? else { return Ok(None) };
    let len = match &found {
        FoundValue::Small(value) => value.len() as u64,
        FoundValue::Large(block, _) => block.handle.len,
    };
    let end = range.end.min(len);
    let start = range.start.min(end);
    if end - start > FORMAT_VALUE_BYTES_MAX {
        return Err(Error::limit("length of a range", end - start, FORMAT_VALUE_BYTES_MAX));
    }
    let bytes = match found {
        FoundValue::Small(value) => Slice::copy_from(&value[start as usize..end as usize]),
        FoundValue::Large(block, point) => {
            let mut buf = vec![0; (end - start) as usize];
            let read =
                block.sub_blocks().and_then(|table| block.read_range(start, &mut buf, &table));
            read.map_err(|error| named(error, point.partition(), key))?;
            buf.into()
        }
    };
    Ok(Some(bytes))
}

/// The length of the value of `key` and the time at which it was stored. The value is not read.
///
/// # Errors
/// Those of a get.
pub fn stat_blob(found: Found, key: &[u8]) -> Result<Option<BlobStat>> {
    // Not by `find`, which would open the chunk file: the answer is in the handle.
    Ok(match found {
        None => None,
        Some((Located::Here(value), _)) => {
            let len = value.len() as u64;
            Some(BlobStat { len, stored_len: len, stored: None })
        }
        Some((Located::Apart(handle), point)) => {
            let handle = store_at(&point)?.0.handle(&handle);
            let handle = handle.map_err(|error| named(error, point.partition(), key))?;
            Some(BlobStat {
                len: handle.len,
                stored_len: handle.stored_len(),
                stored: Some(Duration::from_micros(handle.stored_us)),
            })
        }
    })
}
