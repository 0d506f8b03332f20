//! LevelDB, the system's library, through its C header.
//!
//! Beyond [`Settings`]: it may hold as many files open as there can be. Its levels and tables are
//! small by default and stay so, because they belong together. It maps tables into memory and
//! caches no block of a mapped one, flushes and compacts in one thread, and stops writing at one
//! sealed write buffer; none of that can be set. Reads verify no checksum, its default: without a
//! cache in between they would verify at each read, which no other engine does. The converter, which is
//! not measured, opens it with [`LevelDb::verifying`].
//!
//! Invariants, which every `SAFETY` below relies on:
//! 1. The pointers in [`Handle`] come from the library's constructors, are not null, and live
//!    until [`Handle`] is dropped; LevelDB lets any thread use them.
//! 2. Keys and values go in as pointer and length of a living slice, and are copied before a call
//!    returns.
//! 3. What an iterator shows is valid until it moves.

#![expect(unsafe_code, reason = "the C header of LevelDB")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use testkit::bench::{Engine, ScanDirection, Ack};

use super::{Fault, Peer, filled};
use crate::settings::Settings;

/// A type of LevelDB; only its address is known.
type Opaque = *mut c_void;

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_open(options: Opaque, name: *const c_char, error: *mut *mut c_char) -> Opaque;
    fn leveldb_close(db: Opaque);
    fn leveldb_put(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_delete(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_write(db: Opaque, options: Opaque, batch: Opaque, error: *mut *mut c_char);
    fn leveldb_get(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_compact_range(
        db: Opaque,
        start: *const c_char,
        start_len: usize,
        limit: *const c_char,
        limit_len: usize,
    );
    fn leveldb_free(memory: *mut c_void);

    fn leveldb_create_iterator(db: Opaque, options: Opaque) -> Opaque;
    fn leveldb_iter_destroy(iter: Opaque);
    fn leveldb_iter_valid(iter: Opaque) -> u8;
    fn leveldb_iter_seek_to_first(iter: Opaque);
    fn leveldb_iter_seek_to_last(iter: Opaque);
    fn leveldb_iter_seek(iter: Opaque, key: *const c_char, key_len: usize);
    fn leveldb_iter_next(iter: Opaque);
    fn leveldb_iter_prev(iter: Opaque);
    fn leveldb_iter_key(iter: Opaque, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iter: Opaque, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iter: Opaque, error: *mut *mut c_char);

    fn leveldb_writebatch_create() -> Opaque;
    fn leveldb_writebatch_destroy(batch: Opaque);
    fn leveldb_writebatch_put(
        batch: Opaque,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );

    fn leveldb_options_create() -> Opaque;
    fn leveldb_options_destroy(options: Opaque);
    fn leveldb_options_set_create_if_missing(options: Opaque, yes: u8);
    fn leveldb_options_set_paranoid_checks(options: Opaque, yes: u8);
    fn leveldb_options_set_write_buffer_size(options: Opaque, bytes: usize);
    fn leveldb_options_set_max_open_files(options: Opaque, count: c_int);
    fn leveldb_options_set_cache(options: Opaque, cache: Opaque);
    fn leveldb_options_set_block_size(options: Opaque, bytes: usize);
    fn leveldb_options_set_compression(options: Opaque, kind: c_int);
    fn leveldb_options_set_filter_policy(options: Opaque, policy: Opaque);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> Opaque;
    fn leveldb_filterpolicy_destroy(policy: Opaque);
    fn leveldb_cache_create_lru(bytes: usize) -> Opaque;
    fn leveldb_cache_destroy(cache: Opaque);
    fn leveldb_readoptions_create() -> Opaque;
    fn leveldb_readoptions_destroy(options: Opaque);
    fn leveldb_readoptions_set_verify_checksums(options: Opaque, yes: u8);
    fn leveldb_writeoptions_create() -> Opaque;
    fn leveldb_writeoptions_destroy(options: Opaque);
    fn leveldb_writeoptions_set_sync(options: Opaque, yes: u8);

    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

const NO_COMPRESSION: c_int = 0;
const MAX_OPEN_FILES: c_int = 50_000;

/// The database and its objects.
struct Handle {
    db: Opaque,
    cache: Opaque,
    policy: Opaque,
    read: Opaque,
    to_kernel: Opaque,
    to_device: Opaque,
}

// SAFETY: invariant 1; nothing here is changed before the last handle is gone.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: each came from its constructor and is freed once; the database, which refers to
        // the others, is the first to go.
        unsafe {
            leveldb_close(self.db);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.policy);
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.to_kernel);
            leveldb_writeoptions_destroy(self.to_device);
        }
    }
}

/// A database.
#[derive(Clone)]
pub struct LevelDb(Arc<Handle>);

/// Runs a call that may leave a message, and takes the message.
#[inline]
fn try_call<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, Fault> {
    let mut error: *mut c_char = null_mut();
    let result = call(&mut error);
    if error.is_null() {
        return Ok(result);
    }
    // SAFETY: a message is a string that ends in a zero and was allocated for the caller.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above; nothing refers to it any more.
    unsafe { leveldb_free(error.cast()) };
    Err(message.into())
}

#[inline]
fn parts(bytes: &[u8]) -> (*const c_char, usize) {
    (bytes.as_ptr().cast(), bytes.len())
}

/// An iterator, which lives as long as its database is held.
struct Iter<'a> {
    iter: NonNull<c_void>,
    _handle: &'a Handle,
}

impl Drop for Iter<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from its constructor and is freed once, before the database.
        unsafe { leveldb_iter_destroy(self.iter.as_ptr()) }
    }
}

impl Iter<'_> {
    /// The current entry.
    #[inline]
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let iter = self.iter.as_ptr();
        let mut key_len = 0;
        let mut value_len = 0;
        // SAFETY: key and value are read only while the iterator is on an entry. They have so many
        // bytes, and are valid until the iterator moves, for which it must be borrowed again.
        unsafe {
            if leveldb_iter_valid(iter) == 0 {
                return None;
            }
            let key = leveldb_iter_key(iter, &mut key_len);
            let value = leveldb_iter_value(iter, &mut value_len);
            Some((
                std::slice::from_raw_parts(key.cast(), key_len),
                std::slice::from_raw_parts(value.cast(), value_len),
            ))
        }
    }

    /// Moves by one; must be on an entry.
    #[inline]
    fn step(&mut self, direction: ScanDirection) {
        // SAFETY: all callers have just seen an entry.
        match direction {
            ScanDirection::Up => unsafe { leveldb_iter_next(self.iter.as_ptr()) },
            ScanDirection::Down => unsafe { leveldb_iter_prev(self.iter.as_ptr()) },
        }
    }

    fn status(&self) -> Result<(), Fault> {
        // SAFETY: the iterator lives.
        try_call(|error| unsafe { leveldb_iter_get_error(self.iter.as_ptr(), error) })
    }
}

impl LevelDb {
    fn write_options(&self, when: Ack) -> Opaque {
        match when {
            Ack::Os => self.0.to_kernel,
            Ack::Sync => self.0.to_device,
        }
    }

    /// Passes the value of `key` to `work`.
    fn look_up<T>(&self, key: &[u8], work: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Fault> {
        let (key, key_len) = parts(key);
        let mut len = 0;
        // SAFETY: invariants 1 and 2.
        let value = try_call(|error| unsafe {
            leveldb_get(self.0.db, self.0.read, key, key_len, &mut len, error)
        })?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: a value of that length was allocated for the caller, who frees it.
        unsafe {
            let result = work(std::slice::from_raw_parts(value.cast(), len));
            leveldb_free(value.cast());
            Ok(Some(result))
        }
    }

    /// The value of `key`.
    pub fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.look_up(key, <[u8]>::to_vec)
    }

    fn iter(&self) -> Iter<'_> {
        // SAFETY: invariant 1.
        let iter = unsafe { leveldb_create_iterator(self.0.db, self.0.read) };
        Iter { iter: NonNull::new(iter).expect("it is made with new"), _handle: &self.0 }
    }

    /// An iterator on the first entry from `key` on.
    fn iter_from(&self, key: &[u8]) -> Iter<'_> {
        let iter = self.iter();
        let (key, key_len) = parts(key);
        // SAFETY: the iterator lives; invariant 2.
        unsafe { leveldb_iter_seek(iter.iter.as_ptr(), key, key_len) };
        iter
    }

    /// Passes the entries from `from` on to `visit`, until it fails.
    pub fn each(
        &self,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut iter = self.iter_from(from);
        while let Some((key, value)) = iter.entry() {
            visit(key, value)?;
            iter.step(ScanDirection::Up);
        }
        iter.status()
    }

    /// Opens a database without reading a damaged byte: every read verifies checksums, and damage
    /// in the log or in an index, which LevelDB skips by default, is an error. Only a wrong length
    /// in the last block of the log, and zeros, are still taken for the end that a crash left.
    pub fn verifying(folder: &Path, settings: &Settings) -> Result<LevelDb, Fault> {
        LevelDb::open_with(folder, settings, true)
    }

    fn open_with(folder: &Path, settings: &Settings, verifies: bool) -> Result<LevelDb, Fault> {
        let name = CString::new(folder.as_os_str().as_encoded_bytes())?;
        // SAFETY: every pointer comes from its constructor, which does not return null; what the
        // options refer to outlives the database (see `Handle::drop`), they themselves need not.
        unsafe {
            let options = leveldb_options_create();
            let cache = leveldb_cache_create_lru(settings.cache_bytes);
            let policy = leveldb_filterpolicy_create_bloom(settings.bloom_bits.into());
            leveldb_options_set_create_if_missing(options, 1);
            leveldb_options_set_paranoid_checks(options, verifies.into());
            leveldb_options_set_write_buffer_size(options, settings.write_buffer_bytes);
            leveldb_options_set_max_open_files(options, MAX_OPEN_FILES);
            leveldb_options_set_cache(options, cache);
            leveldb_options_set_block_size(options, settings.block_bytes);
            leveldb_options_set_compression(options, NO_COMPRESSION);
            leveldb_options_set_filter_policy(options, policy);
            let db = try_call(|error| leveldb_open(options, name.as_ptr(), error));
            leveldb_options_destroy(options);
            // A failure leaks the cache and the policy; the process ends then.
            let db = db?;
            let read = leveldb_readoptions_create();
            leveldb_readoptions_set_verify_checksums(read, verifies.into());
            let to_kernel = leveldb_writeoptions_create();
            let to_device = leveldb_writeoptions_create();
            leveldb_writeoptions_set_sync(to_device, 1);
            Ok(LevelDb(Arc::new(Handle { db, cache, policy, read, to_kernel, to_device })))
        }
    }
}

impl Engine for LevelDb {
    type Error = Fault;

    #[inline]
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        let (key, key_len) = parts(key);
        let (value, value_len) = parts(value);
        let options = self.write_options(when);
        // SAFETY: invariants 1 and 2.
        try_call(|error| unsafe {
            leveldb_put(self.0.db, options, key, key_len, value, value_len, error);
        })
    }

    #[inline]
    fn delete(&self, key: &[u8], when: Ack) -> Result<(), Fault> {
        let (key, key_len) = parts(key);
        let options = self.write_options(when);
        // SAFETY: invariants 1 and 2.
        try_call(|error| unsafe { leveldb_delete(self.0.db, options, key, key_len, error) })
    }

    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)], when: Ack) -> Result<(), Fault> {
        let options = self.write_options(when);
        // SAFETY: invariants 1 and 2; the batch is made here and freed here.
        unsafe {
            let batch = leveldb_writebatch_create();
            for (key, value) in entries {
                let (key, key_len) = parts(key);
                let (value, value_len) = parts(value);
                leveldb_writebatch_put(batch, key, key_len, value, value_len);
            }
            let written = try_call(|error| leveldb_write(self.0.db, options, batch, error));
            leveldb_writebatch_destroy(batch);
            written
        }
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<usize>, Fault> {
        self.look_up(key, <[u8]>::len)
    }

    fn seek(
        &self,
        key: &[u8],
        entries: u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        let mut iter = self.iter_from(key);
        let mut left = entries;
        while left > 0
            && let Some((key, value)) = iter.entry()
        {
            visit(key, value);
            left -= 1;
            // No move after the last requested entry.
            if left > 0 {
                iter.step(ScanDirection::Up);
            }
        }
        iter.status()
    }

    fn scan(&self, direction: ScanDirection, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Fault> {
        let mut iter = self.iter();
        // SAFETY: the iterator lives.
        match direction {
            ScanDirection::Up => unsafe { leveldb_iter_seek_to_first(iter.iter.as_ptr()) },
            ScanDirection::Down => unsafe { leveldb_iter_seek_to_last(iter.iter.as_ptr()) },
        }
        while let Some((key, value)) = iter.entry() {
            if !visit(key, value) {
                break;
            }
            iter.step(direction);
        }
        iter.status()
    }

    fn settle(&self) -> Result<(), Fault> {
        // SAFETY: invariant 1; null bounds mean everything. It flushes first, and waits.
        unsafe { leveldb_compact_range(self.0.db, null(), 0, null(), 0) };
        Ok(())
    }
}

impl Peer for LevelDb {
    fn open(folder: &Path, settings: &Settings) -> Result<LevelDb, Fault> {
        LevelDb::open_with(folder, settings, false)
    }

    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.look_up(key, |value| filled(buf, value))?.transpose()
    }

    fn close(self) -> Result<(), Fault> {
        drop(self);
        Ok(())
    }

    fn version() -> String {
        // SAFETY: they read two constants.
        let (major, minor) = unsafe { (leveldb_major_version(), leveldb_minor_version()) };
        format!("{major}.{minor}")
    }
}
