//! An in-memory [`File`] for the tests of this folder. Nothing else may use it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::fs::File;

/// A file in memory with injected failures.
#[derive(Default)]
pub(super) struct SegmentFile {
    inner: Mutex<Inner>,
}

#[derive(Default, Clone)]
struct Inner {
    bytes: Vec<u8>,
    appended: usize,
    /// The next append writes this many bytes and fails.
    short_append: Option<usize>,
    /// Reads that touch this offset fail.
    bad_read: Option<u64>,
    /// The largest buffer that a read was given.
    largest_read: usize,
}

impl SegmentFile {
    pub(super) fn new(bytes: &[u8]) -> Arc<SegmentFile> {
        let inner = Inner { bytes: bytes.to_vec(), appended: bytes.len(), ..Inner::default() };
        Arc::new(SegmentFile { inner: Mutex::new(inner) })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.inner.lock().bytes.clone()
    }

    pub(super) fn set_bytes(&self, bytes: &[u8]) {
        self.inner.lock().bytes = bytes.to_vec();
    }

    pub(super) fn fail_next_append_after(&self, len: usize) {
        self.inner.lock().short_append = Some(len);
    }

    pub(super) fn fail_reads_at(&self, offset: Option<u64>) {
        self.inner.lock().bad_read = offset;
    }

    pub(super) fn largest_read(&self) -> usize {
        self.inner.lock().largest_read
    }
}

pub(super) fn path(number: u64) -> PathBuf {
    PathBuf::from(format!("{number}.wal"))
}

fn failed(deed: &str) -> Error {
    Error::io(deed, Path::new("memory"), io::Error::other("injected"))
}

impl File for SegmentFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        let short = inner.short_append.take();
        let written = short.unwrap_or(bytes.len()).min(bytes.len());
        let from = inner.appended;
        let to = from + written;
        let len = inner.bytes.len().max(to);
        inner.bytes.resize(len, 0);
        inner.bytes[from..to].copy_from_slice(&bytes[..written]);
        inner.appended = to;
        if short.is_some() { Err(failed("append to")) } else { Ok(()) }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut inner = self.inner.lock();
        inner.largest_read = inner.largest_read.max(buf.len());
        let bad =
            inner.bad_read.is_some_and(|bad| (offset..offset + buf.len() as u64).contains(&bad));
        if bad {
            return Err(failed("read"));
        }
        let from = usize::try_from(offset).expect("it is in memory").min(inner.bytes.len());
        let len = buf.len().min(inner.bytes.len() - from);
        buf[..len].copy_from_slice(&inner.bytes[from..from + len]);
        Ok(len)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.inner.lock().bytes.len() as u64)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        let len = usize::try_from(len).expect("it is in memory").max(inner.bytes.len());
        inner.bytes.resize(len, 0);
        Ok(())
    }

    fn punch(&self, _offset: u64, _len: u64) -> Result<()> {
        unreachable!("the log punches nothing")
    }
}
