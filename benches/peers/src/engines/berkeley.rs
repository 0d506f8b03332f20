//! Berkeley DB, the system's library: a B-tree with transactions. `berkeley.c` calls its header.
//!
//! Beyond [`Settings`]: a private environment with log, locks and transactions; a cache as large as
//! the block cache of the others; pages as large as their blocks; log files as large as their write
//! buffers, which are removed when a checkpoint made them useless; deadlocks are found at once.
//! It has no bloom and no thread of its own. Each write is a transaction, which either syncs the
//! log or writes it (`DB_TXN_SYNC`, `DB_TXN_WRITE_NOSYNC`). Reads are outside of transactions.
//! Dirty pages stay in the cache until it is full or `settle` makes a checkpoint.
//!
//! Invariants, which every `SAFETY` below relies on:
//! 1. The pointer in [`Handle`] comes from `bdb_open`, which succeeded, and lives until it is
//!    dropped; with `DB_THREAD` any thread may use it.
//! 2. Keys and values go in as pointer and length of a living slice, and are copied before a call
//!    returns.
//! 3. What a cursor shows is valid until it moves or is closed.

#![expect(unsafe_code, reason = "the C library Berkeley DB")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer};
use crate::settings::Settings;

type Opaque = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
struct Slice {
    bytes: *const c_void,
    len: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    key: Slice,
    value: Slice,
}

unsafe extern "C" {
    fn bdb_error(code: c_int) -> *const c_char;
    fn bdb_version(numbers: *mut c_int);
    fn bdb_open(
        out: *mut Opaque,
        folder: *const c_char,
        cache_bytes: u32,
        page_bytes: u32,
        log_bytes: u32,
    ) -> c_int;
    fn bdb_close(bdb: Opaque);
    fn bdb_write(bdb: Opaque, entries: *const Entry, count: usize, synced: c_int) -> c_int;
    fn bdb_get(bdb: Opaque, key: Slice, buf: *mut c_void, buf_len: u32, len: *mut u32) -> c_int;
    fn bdb_is_small(code: c_int) -> c_int;
    fn bdb_cursor(bdb: Opaque, out: *mut Opaque) -> c_int;
    fn bdb_cursor_close(cursor: Opaque);
    fn bdb_move(cursor: Opaque, step: c_int, entry: *mut Entry) -> c_int;
    fn bdb_checkpoint(bdb: Opaque) -> c_int;
    fn bdb_compact(bdb: Opaque) -> c_int;
}

const NOT_FOUND: c_int = 1;
const MOVE_FIRST: c_int = 0;
const MOVE_LAST: c_int = 1;
const MOVE_NEXT: c_int = 2;
const MOVE_PREVIOUS: c_int = 3;
const MOVE_SEEK: c_int = 4;

const NO_BYTES: Slice = Slice { bytes: null(), len: 0 };

/// The environment with its database.
struct Handle(NonNull<c_void>);

// SAFETY: invariant 1.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: invariant 1; no cursor outlives the handle.
        unsafe { bdb_close(self.0.as_ptr()) };
    }
}

/// Berkeley DB.
#[derive(Clone)]
pub struct Berkeley {
    handle: Arc<Handle>,
    /// Values are copied to this buffer.
    buf: RefCell<Vec<u8>>,
}

fn check(code: c_int) -> Result<(), Fault> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: it returns a text with an end for every number.
    let text = unsafe { CStr::from_ptr(bdb_error(code)) };
    Err(format!("Berkeley DB: {}", text.to_string_lossy()).into())
}

fn is_found(code: c_int) -> Result<bool, Fault> {
    if code == NOT_FOUND {
        return Ok(false);
    }
    check(code).map(|()| true)
}

fn slice_of(bytes: &[u8]) -> Result<Slice, Fault> {
    Ok(Slice { bytes: bytes.as_ptr().cast(), len: u32::try_from(bytes.len())? })
}

/// A key and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// A position in the database.
struct Cursor<'a> {
    cursor: Opaque,
    _handle: PhantomData<&'a Handle>,
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: it was opened in `cursor`.
        unsafe { bdb_cursor_close(self.cursor) };
    }
}

impl Cursor<'_> {
    /// Moves to the entry that `step` names and passes it on; a seek goes to `key`.
    fn step(&mut self, step: c_int, key: &[u8]) -> Result<Option<Pair<'_>>, Fault> {
        let mut entry = Entry { key: slice_of(key)?, value: NO_BYTES };
        // SAFETY: the cursor is open; invariant 2.
        if !is_found(unsafe { bdb_move(self.cursor, step, &mut entry) })? {
            return Ok(None);
        }
        // SAFETY: it was found; invariant 3, which the borrow of the cursor upholds.
        Ok(Some(unsafe { (bytes_of(entry.key), bytes_of(entry.value)) }))
    }
}

/// # Safety
/// The slice is an entry, and invariant 3 holds for `'a`.
unsafe fn bytes_of<'a>(slice: Slice) -> &'a [u8] {
    if slice.len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(slice.bytes.cast(), slice.len as usize) }
}

impl Berkeley {
    fn raw(&self) -> Opaque {
        self.handle.0.as_ptr()
    }

    fn write(&self, entries: &[Entry], when: Ack) -> Result<(), Fault> {
        let synced = c_int::from(when == Ack::Sync);
        // SAFETY: invariants 1 and 2.
        check(unsafe { bdb_write(self.raw(), entries.as_ptr(), entries.len(), synced) })
    }

    fn cursor(&self) -> Result<Cursor<'_>, Fault> {
        let mut cursor = null_mut();
        // SAFETY: invariant 1.
        check(unsafe { bdb_cursor(self.raw(), &mut cursor) })?;
        Ok(Cursor { cursor, _handle: PhantomData })
    }

    /// Copies the value of `key` to `buf`. Returns the length of the value and whether it fitted.
    fn copy_value(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<(usize, bool)>, Fault> {
        let key = slice_of(key)?;
        let buf_len = u32::try_from(buf.len())?;
        let mut len = 0;
        // SAFETY: invariants 1 and 2; it writes no more than the length of the buffer.
        let code = unsafe { bdb_get(self.raw(), key, buf.as_mut_ptr().cast(), buf_len, &mut len) };
        // SAFETY: it compares numbers.
        if unsafe { bdb_is_small(code) } != 0 {
            return Ok(Some((len as usize, false)));
        }
        Ok(is_found(code)?.then_some((len as usize, true)))
    }
}

impl Engine for Berkeley {
    type Error = Fault;

    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        self.write(&[Entry { key: slice_of(key)?, value: slice_of(value)? }], when)
    }

    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        self.write(&[Entry { key: slice_of(key)?, value: NO_BYTES }], when)
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        let mut list = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            list.push(Entry { key: slice_of(key)?, value: slice_of(value)? });
        }
        self.write(&list, when)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        let mut buf = self.buf.borrow_mut();
        loop {
            match self.copy_value(key, &mut buf)? {
                None => return Ok(None),
                Some((len, true)) => return Ok(Some(len)),
                Some((len, false)) => buf.resize(len, 0),
            }
        }
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        let mut cursor = self.cursor()?;
        let mut step = MOVE_SEEK;
        for _ in 0..entries {
            let Some((key, value)) = cursor.step(step, key)? else { break };
            visit(key, value);
            step = MOVE_NEXT;
        }
        Ok(())
    }

    fn scan(&self, direction: ScanDirection, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
        let mut cursor = self.cursor()?;
        let mut step = if direction == ScanDirection::Up { MOVE_FIRST } else { MOVE_LAST };
        while let Some((key, value)) = cursor.step(step, &[])? {
            if !visit(key, value) {
                break;
            }
            step = if direction == ScanDirection::Up { MOVE_NEXT } else { MOVE_PREVIOUS };
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), Fault> {
        // SAFETY: invariant 1.
        check(unsafe { bdb_checkpoint(self.raw()) })
    }
}

impl Peer for Berkeley {
    fn open(folder: &Path, settings: &Settings) -> Result<Berkeley, Fault> {
        let name = CString::new(folder.as_os_str().as_encoded_bytes())?;
        let cache = u32::try_from(settings.cache_bytes)?;
        let page = u32::try_from(settings.block_bytes)?;
        let log = u32::try_from(settings.write_buffer_bytes)?;
        let mut bdb = null_mut();
        // SAFETY: the name has an end; a handle of a failed open goes with the process.
        check(unsafe { bdb_open(&mut bdb, name.as_ptr(), cache, page, log) })?;
        let bdb = NonNull::new(bdb).ok_or("Berkeley DB: no handle")?;
        Ok(Berkeley { handle: Arc::new(Handle(bdb)), buf: RefCell::new(Vec::new()) })
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self.copy_value(key, buf)? {
            Some((_, false)) => Err("the buffer is too small".into()),
            found => Ok(found.map(|(len, _)| len)),
        }
    }

    fn reclaim(&self) -> Result<(), Fault> {
        // SAFETY: invariant 1.
        check(unsafe { bdb_compact(self.raw()) })
    }

    fn close(self) -> Result<(), Fault> {
        drop(self);
        Ok(())
    }

    fn version() -> String {
        let mut numbers = [0; 3];
        // SAFETY: it writes three numbers.
        unsafe { bdb_version(numbers.as_mut_ptr()) };
        numbers.map(|number| number.to_string()).join(".")
    }
}
