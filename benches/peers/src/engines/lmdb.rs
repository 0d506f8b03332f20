//! LMDB, the copy that its crate carries, through its C header; with a map that is written or not.
//!
//! Beyond [`Settings`]: the map may grow to [`MAP_BYTES_MAX`], which costs address space alone. LMDB
//! has no cache, no log and no thread of its own: the page cache is its cache. Each write is a
//! transaction, because the other engines make each write visible and durable by itself. A
//! reader keeps its transaction and its cursor, and resets and renews them, as the documentation
//! advises. `lmdb` writes its pages with `pwrite`, which is its default; `lmdb-map` stores them
//! through the map (`MDB_WRITEMAP`), which copies less and loses the protection from stray writes
//! of the program. A write that only the kernel must have leaves out the syncs (`MDB_NOSYNC`).
//! Freed pages are used again and are never given back to the file system.
//!
//! Invariants, which every `SAFETY` below relies on:
//! 1. The environment in [`Store`] is open until the last handle is dropped, and each handle drops
//!    its reader first. LMDB lets any thread use the environment.
//! 2. A key or a value goes in as pointer and length of a living slice, and is copied before the
//!    transaction ends. LMDB writes through neither.
//! 3. A reader is used by the thread that has its handle, in one call at a time: it belongs to the
//!    handle, which is not `Sync`. With `MDB_NOTLS` its transaction may move between threads.
//! 4. What a read shows is valid until the reader's transaction is reset, which happens after the
//!    last use of it.

#![expect(unsafe_code, reason = "the C header of LMDB")]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::hint::black_box;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lmdb_master_sys as ffi;
use testkit::bench::measure::process_written_bytes;
use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, filled};
use crate::settings::Settings;

/// Upper bound of the file in bytes.
const MAP_BYTES_MAX: usize = 1 << 40;
const READERS_MAX: c_uint = 126;
const MODE: u32 = 0o644;
const PAGE_BYTES: usize = 4096;

/// The environment and its one database.
struct Store {
    env: *mut ffi::MDB_env,
    dbi: ffi::MDB_dbi,
    /// Commits sync now. It is changed by the writer that wants it otherwise; all writers
    /// of a workload want the same.
    syncs: AtomicBool,
}

// SAFETY: invariant 1; the other fields are numbers.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: invariant 1; no transaction is left.
        unsafe { ffi::mdb_env_close(self.env) };
    }
}

/// The transaction and the cursor of the reads of one handle; null before the first.
struct Reader {
    txn: *mut ffi::MDB_txn,
    cursor: *mut ffi::MDB_cursor,
}

/// LMDB, with pages written through the map or not.
pub struct Lmdb<const MAPPED: bool> {
    // Before the store, so that it is dropped first.
    reader: Cell<Option<Reader>>,
    store: Arc<Store>,
}

// SAFETY: invariant 3.
unsafe impl<const MAPPED: bool> Send for Lmdb<MAPPED> {}

impl<const MAPPED: bool> Clone for Lmdb<MAPPED> {
    fn clone(&self) -> Self {
        Lmdb { reader: Cell::new(None), store: self.store.clone() }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: invariants 1 and 3; a cursor of a reader is closed by itself.
        unsafe {
            ffi::mdb_cursor_close(self.cursor);
            ffi::mdb_txn_abort(self.txn);
        }
    }
}

/// Reads a byte of each page of a value of a page or more, which has pages of its own, and returns its
/// length. The other engines return such a value only when it is in memory.
fn at_hand(value: &[u8]) -> usize {
    if value.len() >= PAGE_BYTES {
        value.chunks(PAGE_BYTES).for_each(|page| _ = black_box(page[0]));
    }
    value.len()
}

/// The text of a return code of a failure.
fn check(code: c_int) -> Result<(), Fault> {
    if code == ffi::MDB_SUCCESS {
        return Ok(());
    }
    // SAFETY: it returns a text with an end for every number.
    let text = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    Err(format!("LMDB: {}", text.to_string_lossy()).into())
}

/// Returns `false` for the code of a missing entry.
fn is_found(code: c_int) -> Result<bool, Fault> {
    if code == ffi::MDB_NOTFOUND {
        return Ok(false);
    }
    check(code).map(|()| true)
}

fn value_of(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast::<c_void>().cast_mut() }
}

fn no_value() -> ffi::MDB_val {
    ffi::MDB_val { mv_size: 0, mv_data: null_mut() }
}

/// Returns the bytes of `value`.
///
/// # Safety
/// LMDB filled it in, and invariant 4.
unsafe fn bytes_of<'a>(value: &ffi::MDB_val) -> &'a [u8] {
    if value.mv_size == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }
}

impl<const MAPPED: bool> Lmdb<MAPPED> {
    /// Makes commits sync, or not.
    fn set_syncs(&self, when: Ack) -> Result<(), Fault> {
        let wanted = when == Ack::Sync;
        if self.store.syncs.swap(wanted, Ordering::Relaxed) == wanted {
            return Ok(());
        }
        // SAFETY: invariant 1; this flag may be changed at any time.
        check(unsafe {
            ffi::mdb_env_set_flags(self.store.env, ffi::MDB_NOSYNC, c_int::from(!wanted))
        })
    }

    /// Runs `work` in a transaction that writes, and commits it.
    fn write(
        &self,
        when: Ack,
        work: impl FnOnce(*mut ffi::MDB_txn) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.set_syncs(when)?;
        let mut txn = null_mut();
        // SAFETY: invariant 1.
        check(unsafe { ffi::mdb_txn_begin(self.store.env, null_mut(), 0, &mut txn) })?;
        match work(txn) {
            // SAFETY: it began above, and ends here.
            Ok(()) => check(unsafe { ffi::mdb_txn_commit(txn) }),
            Err(fault) => {
                // SAFETY: as above.
                unsafe { ffi::mdb_txn_abort(txn) };
                Err(fault)
            }
        }
    }

    fn put_in(&self, txn: *mut ffi::MDB_txn, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        let mut key = value_of(key);
        let mut value = value_of(value);
        // SAFETY: the transaction is the caller's and lives; invariant 2.
        check(unsafe { ffi::mdb_put(txn, self.store.dbi, &mut key, &mut value, 0) })
    }

    /// A new reader, on the newest data.
    fn begin_reader(&self) -> Result<Reader, Fault> {
        let mut reader = Reader { txn: null_mut(), cursor: null_mut() };
        // SAFETY: invariant 1. Should the second call fail, the process ends with the transaction.
        unsafe {
            let txn = &mut reader.txn;
            check(ffi::mdb_txn_begin(self.store.env, null_mut(), ffi::MDB_RDONLY, txn))?;
            check(ffi::mdb_cursor_open(reader.txn, self.store.dbi, &mut reader.cursor))?;
        }
        Ok(reader)
    }

    /// Runs `work` with a reader on the newest data; `with_cursor` if it uses the cursor.
    fn read<T>(
        &self,
        with_cursor: bool,
        work: impl FnOnce(&Reader) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let reader = match self.reader.take() {
            None => self.begin_reader()?,
            Some(reader) => {
                // SAFETY: invariant 3; the transaction was reset.
                unsafe {
                    check(ffi::mdb_txn_renew(reader.txn))?;
                    if with_cursor {
                        check(ffi::mdb_cursor_renew(reader.txn, reader.cursor))?;
                    }
                }
                reader
            }
        };
        let result = work(&reader);
        // SAFETY: invariants 3 and 4.
        unsafe { ffi::mdb_txn_reset(reader.txn) };
        self.reader.set(Some(reader));
        result
    }

    /// Passes the value of `key` to `work`.
    fn look_up<T>(&self, key: &[u8], work: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Fault> {
        self.read(false, |reader| {
            let mut key = value_of(key);
            let mut value = no_value();
            // SAFETY: invariants 2 and 3.
            let code = unsafe { ffi::mdb_get(reader.txn, self.store.dbi, &mut key, &mut value) };
            if !is_found(code)? {
                return Ok(None);
            }
            // SAFETY: it was found; invariant 4.
            Ok(Some(work(unsafe { bytes_of(&value) })))
        })
    }

    /// Passes entries to `visit`, from where `first` finds one, until it returns false.
    fn walk(
        &self,
        key: &[u8],
        first: ffi::MDB_cursor_op,
        next: ffi::MDB_cursor_op,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Fault> {
        self.read(true, |reader| {
            let mut key = value_of(key);
            let mut value = no_value();
            let mut move_to = first;
            // SAFETY: invariants 2 and 3.
            while is_found(unsafe {
                ffi::mdb_cursor_get(reader.cursor, &mut key, &mut value, move_to)
            })? {
                // SAFETY: it was found; invariant 4.
                let (key, value) = unsafe { (bytes_of(&key), bytes_of(&value)) };
                at_hand(value);
                if !visit(key, value) {
                    break;
                }
                move_to = next;
            }
            Ok(())
        })
    }
}

impl<const MAPPED: bool> Engine for Lmdb<MAPPED> {
    type Error = Fault;

    #[inline]
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        self.write(when, |txn| self.put_in(txn, key, value))
    }

    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        self.write(when, |txn| {
            let mut key = value_of(key);
            // SAFETY: the transaction lives; invariant 2.
            is_found(unsafe { ffi::mdb_del(txn, self.store.dbi, &mut key, null_mut()) }).map(drop)
        })
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        self.write(when, |txn| {
            for (key, value) in entries {
                self.put_in(txn, key, value)?;
            }
            Ok(())
        })
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        self.look_up(key, at_hand)
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        if entries == 0 {
            return Ok(());
        }
        let mut left = entries;
        self.walk(key, ffi::MDB_SET_RANGE, ffi::MDB_NEXT, |key, value| {
            visit(key, value);
            left -= 1;
            left > 0
        })
    }

    fn scan(&self, direction: ScanDirection, visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
        match direction {
            ScanDirection::Up => self.walk(b"", ffi::MDB_FIRST, ffi::MDB_NEXT, visit),
            ScanDirection::Down => self.walk(b"", ffi::MDB_LAST, ffi::MDB_PREV, visit),
        }
    }

    /// The kernel does not report stores through the map.
    fn written_bytes(&self) -> Option<u64> {
        if MAPPED { None } else { process_written_bytes() }
    }

    fn settle(&self) -> Result<(), Fault> {
        // SAFETY: invariant 1.
        check(unsafe { ffi::mdb_env_sync(self.store.env, 1) })
    }
}

impl<const MAPPED: bool> Peer for Lmdb<MAPPED> {
    fn open(folder: &Path, _settings: &Settings) -> Result<Self, Fault> {
        let name = CString::new(folder.as_os_str().as_encoded_bytes())?;
        let map = if MAPPED { ffi::MDB_WRITEMAP } else { 0 };
        let flags = ffi::MDB_NOTLS | ffi::MDB_NOSYNC | map;
        let mut env = null_mut();
        let mut dbi = 0;
        // SAFETY: each call gets what the one before has made; invariant 1. If one fails, the
        // process ends with what was made.
        unsafe {
            check(ffi::mdb_env_create(&mut env))?;
            check(ffi::mdb_env_set_mapsize(env, MAP_BYTES_MAX))?;
            check(ffi::mdb_env_set_maxreaders(env, READERS_MAX))?;
            check(ffi::mdb_env_open(env, name.as_ptr(), flags, MODE))?;
            let mut txn = null_mut();
            check(ffi::mdb_txn_begin(env, null_mut(), 0, &mut txn))?;
            check(ffi::mdb_dbi_open(txn, std::ptr::null(), 0, &mut dbi))?;
            check(ffi::mdb_txn_commit(txn))?;
        }
        let store = Store { env, dbi, syncs: AtomicBool::new(false) };
        Ok(Lmdb { reader: Cell::new(None), store: Arc::new(store) })
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.look_up(key, |value| filled(buf, value))?.transpose()
    }

    fn lend(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<Option<bool>, Fault> {
        Ok(Some(self.look_up(key, visit)?.is_some()))
    }

    fn close(self) -> Result<(), Fault> {
        drop(self);
        Ok(())
    }

    fn version() -> String {
        let mut numbers = [0; 3];
        let [major, minor, patch] = &mut numbers;
        // SAFETY: it writes three numbers.
        unsafe { ffi::mdb_version(major, minor, patch) };
        numbers.map(|number| number.to_string()).join(".")
    }
}
