//! Streams of entries, out to a function of the application and in from one.

use std::ffi::{c_char, c_void};
use std::io::{self, BufReader, BufWriter, Read, Write};

use engine::stream::{StreamExport, StreamFormat, StreamImport};
use engine::{Error, ErrorKind};

use crate::db::Db;
use crate::error::Failure;
use crate::raw::{guard, object, set, text};

/// The bytes that one call of a function moves, at most.
const PIECE_BYTES: usize = 1 << 18;

/// The form of a stream of entries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFormat {
    /// With checksums.
    SiltstoneStreamChecked = 0,
    /// The text of Berkeley DB.
    SiltstoneStreamBerkeleyText = 1,
}

/// Takes `len` bytes, and returns true; or false for a failure, which ends the stream. Called by the thread of the call.
pub type WriteFn =
    Option<unsafe extern "C" fn(context: *mut c_void, data: *const c_void, len: usize) -> bool>;

/// Fills `buffer` with up to `len` bytes, and sets `count` to their number, which is 0 at the end only. Returns false for a
/// failure, which ends the stream. Called by the thread of the call.
pub type ReadFn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        buffer: *mut c_void,
        len: usize,
        count: *mut usize,
    ) -> bool,
>;

struct Sink {
    write: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> bool,
    context: *mut c_void,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: contract 5 of `raw`; the bytes are lent for the call.
        let taken = unsafe { (self.write)(self.context, bytes.as_ptr().cast(), bytes.len()) };
        match taken {
            true => Ok(bytes.len()),
            false => Err(io::Error::other("the function that writes has failed")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Source {
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut usize) -> bool,
    context: *mut c_void,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        // SAFETY: contract 5 of `raw`; the buffer has values, and is lent for the call.
        let filled = unsafe {
            (self.read)(self.context, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut count)
        };
        match filled {
            true if count <= buffer.len() => Ok(count),
            true => Err(io::Error::other("the function that reads has returned too many bytes")),
            false => Err(io::Error::other("the function that reads has failed")),
        }
    }
}

/// Writes the entries of the partition `partition`, or of all if it is NULL, as they are now. Sets `entries` to their
/// number. `format` is a siltstone_entry_format_t. docs/portability.md describes both forms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_export_stream(
    db: *const Db,
    partition: *const c_char,
    format: u32,
    write: WriteFn,
    context: *mut c_void,
    entries: *mut u64,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 5 of `raw`.
    unsafe {
        guard(error, false, || {
            let mut options = StreamExport::new().format(match format {
                0 => StreamFormat::Checked,
                1 => StreamFormat::BerkeleyText,
                other => {
                    let message = format!("there is no format {other}");
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
            });
            if !partition.is_null() {
                options = options.partitions([text(partition, "partition")?]);
            }
            let write = write.ok_or_else(|| crate::raw::null("write"))?;
            let mut file = BufWriter::with_capacity(PIECE_BYTES, Sink { write, context });
            let summary = object(db, "db")?.0.export_stream(&mut file, &options);
            let summary = summary.and_then(|summary| Ok(file.flush().map(|()| summary)?));
            // Its drop would write what is left by a function that has failed.
            drop(file.into_parts());
            set(entries, summary?.entries);
            Ok(true)
        })
    }
}

/// Puts the entries of a stream, in either form, into the partition `partition`, or into those that it names if it is NULL.
/// With `resume` only what differs from what is there is written. Sets `entries` to the number of entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_import_stream(
    db: *const Db,
    partition: *const c_char,
    resume: bool,
    read: ReadFn,
    context: *mut c_void,
    entries: *mut u64,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 5 of `raw`.
    unsafe {
        guard(error, false, || {
            let mut options = StreamImport::new().resume(resume);
            if !partition.is_null() {
                options = options.partition(text(partition, "partition")?);
            }
            let read = read.ok_or_else(|| crate::raw::null("read"))?;
            let file = BufReader::with_capacity(PIECE_BYTES, Source { read, context });
            let summary = object(db, "db")?.0.import_stream(file, &options)?;
            set(entries, summary.entries);
            Ok(true)
        })
    }
}
