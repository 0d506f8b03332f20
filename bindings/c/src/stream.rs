//! Large values in parts.

use std::ffi::c_void;
use std::io::Write;
use std::ptr;
use std::slice;

use engine::large_values::{BlobReader, BlobWriter, PendingBlob, ReadBlobs, UnkeyedBlobWriter};
use engine::{Error, ErrorKind, Result};

use crate::db::{Snapshot, durability};
use crate::error::Failure;
use crate::partition::Partition;
use crate::raw::{bytes, free, give, guard, guard_taking, object, object_mut, set};
use crate::value::Commit;

/// A value that is written in parts. It is in the database after the commit.
pub enum ValueWriter {
    /// One whose key was given at its begin.
    Keyed(BlobWriter),
    /// One whose key is given at its end.
    Unkeyed(UnkeyedBlobWriter, Option<Vec<u8>>),
}

fn no_key() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the stream has no key")
}

impl ValueWriter {
    /// Ends the value, for a batch.
    pub fn finish(self) -> Result<PendingBlob> {
        match self {
            ValueWriter::Keyed(writer) => writer.finish(),
            ValueWriter::Unkeyed(writer, key) => writer.finish(key.ok_or_else(no_key)?),
        }
    }
}

/// A value that is read by offset.
pub struct ValueReader(BlobReader);

/// The length of a stream that is not known: UINT64_MAX.
const UNKNOWN_LEN: u64 = u64::MAX;

/// Begins a value of a partition that keeps large values. `len` is its length, or UINT64_MAX if it is not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_writer_create(
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    len: u64,
    error: *mut *mut Failure,
) -> *mut ValueWriter {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let len = Some(len).filter(|len| *len != UNKNOWN_LEN);
            let key = bytes(key, key_len, "key")?;
            let writer = object(partition, "partition")?.0.put_stream(key, len)?;
            Ok(give(ValueWriter::Keyed(writer)))
        })
    }
}

/// As siltstone_writer_create, of a value whose key is known only after its last byte: siltstone_writer_set_key gives it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_writer_create_unkeyed(
    partition: *const Partition,
    len: u64,
    error: *mut *mut Failure,
) -> *mut ValueWriter {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let len = Some(len).filter(|len| *len != UNKNOWN_LEN);
            let writer = object(partition, "partition")?.0.put_stream_unkeyed(len)?;
            Ok(give(ValueWriter::Unkeyed(writer, None)))
        })
    }
}

/// Sets the key of a writer that was made without one, before it is committed or added to a batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_writer_set_key(
    writer: *mut ValueWriter,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let given = bytes(key, key_len, "key")?;
            let ValueWriter::Unkeyed(_, key) = object_mut(writer, "writer")? else {
                let message = "the stream has a key already";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            };
            *key = Some(given.to_vec());
            Ok(true)
        })
    }
}

/// Appends bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_writer_write(
    writer: *mut ValueWriter,
    data: *const c_void,
    len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let data = bytes(data, len, "data")?;
            match object_mut(writer, "writer")? {
                ValueWriter::Keyed(writer) => writer.write_all(data)?,
                ValueWriter::Unkeyed(writer, _) => writer.write_all(data)?,
            }
            Ok(true)
        })
    }
}

/// Commits a value, and frees its writer, also after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_writer_commit(
    writer: *mut ValueWriter,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1, 2 and 3 of `raw`.
    unsafe {
        guard_taking(writer, "writer", error, false, |writer| {
            let done = match writer {
                ValueWriter::Keyed(writer) => writer.commit(durability(sync))?,
                ValueWriter::Unkeyed(writer, key) => {
                    writer.commit(key.ok_or_else(no_key)?, durability(sync))?
                }
            };
            set(commit, done.into());
            Ok(true)
        })
    }
}

/// Discards a value, and frees its writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_writer_free(writer: *mut ValueWriter) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(writer) };
}

/// Sets `reader` to a reader of the value of a key, or to NULL if there is none: now, or in a snapshot that is not NULL.
/// A reader may be used by several threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_reader_open(
    partition: *const Partition,
    snapshot: *const Snapshot,
    key: *const c_void,
    key_len: usize,
    reader: *mut *mut ValueReader,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let (partition, key) =
                (&object(partition, "partition")?.0, bytes(key, key_len, "key")?);
            let found = match snapshot.as_ref() {
                Some(snapshot) => snapshot.0.of(partition).open_blob(key)?,
                None => partition.open_blob(key)?,
            };
            set(reader, found.map_or(ptr::null_mut(), |found| give(ValueReader(found))));
            Ok(true)
        })
    }
}

/// Returns the length of the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_reader_size(reader: *const ValueReader) -> u64 {
    // SAFETY: contract 1 of `raw`.
    unsafe { reader.as_ref() }.map_or(0, |reader| reader.0.len())
}

/// Fills `buffer` with `len` bytes from `offset` on, which must exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_reader_read_at(
    reader: *const ValueReader,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`. The buffer may be without values: it is only written to, after it was made zeros.
    unsafe {
        guard(error, false, || {
            let reader = &object(reader, "reader")?.0;
            if len == 0 {
                return Ok(true);
            }
            if buffer.is_null() || isize::try_from(len).is_err() {
                return Err(Error::new(ErrorKind::InvalidArgument, "buffer is NULL"));
            }
            // Before the fill, so that a wrong range changes nothing.
            let end = offset.checked_add(len as u64);
            if end.is_none_or(|end| end > reader.len()) {
                return Err(Error::limit(
                    "end of a range",
                    offset.saturating_add(len as u64),
                    reader.len(),
                ));
            }
            buffer.cast::<u8>().write_bytes(0, len);
            reader.read_exact_at(offset, slice::from_raw_parts_mut(buffer.cast(), len))?;
            Ok(true)
        })
    }
}

/// Frees a reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_reader_free(reader: *mut ValueReader) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(reader) };
}
