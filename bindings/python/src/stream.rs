//! Large values in parts: [`BlobSource`] reads, [`ValueWriter`] writes.
//!
//! `siltstone/_streams.py` makes a file of the standard library of a `BlobSource`.

use std::io::Write;
use std::sync::{Arc, Mutex};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siltstone::large_values::{BlobReader, BlobWriter, PendingBlob, UnkeyedBlobWriter};
use siltstone::{Error, ErrorKind};

use crate::bytes::Bytes;
use crate::commit::{Commit, durability};
use crate::error::{Result, invalid_argument, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::liveness::Liveness;

fn closed(what: &str) -> Error {
    Error::new(ErrorKind::Closed, format!("the {what} is closed"))
}

/// A value that is read by offset.
#[pyclass(frozen, module = "siltstone")]
pub struct BlobSource {
    liveness: Liveness,
    len: u64,
    /// `None` once it is closed.
    reader: Held<Mutex<Option<Arc<BlobReader>>>>,
}

impl BlobSource {
    /// Of `reader`.
    pub fn new(liveness: Liveness, reader: BlobReader) -> BlobSource {
        BlobSource {
            liveness,
            len: reader.len(),
            reader: Held::new(Mutex::new(Some(Arc::new(reader)))),
        }
    }

    /// The file of Python over `blob`.
    pub fn into_file(py: Python<'_>, blob: BlobSource) -> Result<Py<PyAny>> {
        let class = py.import("siltstone._streams")?.getattr("ValueReader")?;
        Ok(class.call1((blob,))?.unbind())
    }

    fn reader(&self) -> siltstone::Result<Arc<BlobReader>> {
        lock(&self.reader).clone().ok_or_else(|| closed("value"))
    }
}

#[pymethods]
impl BlobSource {
    /// The length of the value in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.len
    }

    /// Returns up to `count` bytes from `offset` on.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        count: usize,
    ) -> Result<Bound<'py, PyBytes>> {
        self.liveness.check_process()?;
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = count.min(left);
        if count == 0 {
            // Also after the end, where the engine has no range.
            return Ok(PyBytes::new(py, b""));
        }
        let bytes = PyBytes::new_with(py, count, |bytes| {
            // No other thread has the object yet, so it is filled while they run.
            let read = py.outside(|| self.reader()?.read_exact_at(offset, bytes))?;
            read.map_err(|error| crate::error::Failure::from(error).into())
        });
        Ok(bytes?)
    }

    /// Fills `buffer` with the bytes from `offset` on. They must exist.
    fn read_into(&self, py: Python<'_>, offset: u64, buffer: PyBuffer<u8>) -> Result<()> {
        self.liveness.check_process()?;
        // Not into the buffer itself: other threads may use it while the engine reads.
        let mut bytes = vec![0; buffer.len_bytes()];
        py.outside(|| self.reader()?.read_exact_at(offset, &mut bytes))??;
        Ok(buffer.copy_from_slice(py, &bytes)?)
    }

    /// Frees what the value holds.
    fn close(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| drop(lock(&self.reader).take()))
    }
}

/// A writer of the engine, whose key was given at its begin, or is at its end.
pub enum Stream {
    Keyed(BlobWriter),
    Unkeyed(UnkeyedBlobWriter),
}

impl Stream {
    fn write_all(&mut self, data: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Keyed(writer) => writer.write_all(data),
            Stream::Unkeyed(writer) => writer.write_all(data),
        }
    }

    fn written(&self) -> u64 {
        match self {
            Stream::Keyed(writer) => writer.written(),
            Stream::Unkeyed(writer) => writer.written(),
        }
    }

    /// Refuses a second key, and an end without one.
    fn check_key(&self, is_given: bool) -> Result<()> {
        match (self, is_given) {
            (Stream::Keyed(_), true) => Err(invalid_argument("the stream has a key already")),
            (Stream::Unkeyed(_), false) => Err(invalid_argument("the stream has no key")),
            _ => Ok(()),
        }
    }
}

/// A value that is written as a stream. It is in the database after the commit.
#[pyclass(frozen, module = "siltstone")]
pub struct ValueWriter {
    liveness: Liveness,
    /// `None` once it is committed, discarded or in a batch.
    writer: Held<Mutex<Option<Stream>>>,
}

impl ValueWriter {
    /// Of `writer`.
    pub fn new(liveness: Liveness, writer: Stream) -> ValueWriter {
        ValueWriter { liveness, writer: Held::new(Mutex::new(Some(writer))) }
    }

    /// Ends the stream, for a batch.
    pub fn finish(&self, py: Python<'_>, key: Option<&[u8]>) -> Result<PendingBlob> {
        self.liveness.check_process()?;
        py.outside(|| {
            Ok(match self.take(key)? {
                (Stream::Unkeyed(writer), Some(key)) => writer.finish(key)?,
                (Stream::Keyed(writer), _) => writer.finish()?,
                (Stream::Unkeyed(_), None) => return Err(closed("stream").into()),
            })
        })?
    }

    /// The stream, for an end with this key. It stays if the key is not right.
    fn take<'k>(&self, key: Option<&'k [u8]>) -> Result<(Stream, Option<&'k [u8]>)> {
        let mut writer = lock(&self.writer);
        writer.as_ref().ok_or_else(|| closed("stream"))?.check_key(key.is_some())?;
        Ok((writer.take().ok_or_else(|| closed("stream"))?, key))
    }

    fn ended(&self, key: Option<&[u8]>, sync: bool) -> Result<siltstone::Commit> {
        Ok(match self.take(key)? {
            (Stream::Unkeyed(writer), Some(key)) => writer.commit(key, durability(sync))?,
            (Stream::Keyed(writer), _) => writer.commit(durability(sync))?,
            (Stream::Unkeyed(_), None) => return Err(closed("stream").into()),
        })
    }
}

#[pymethods]
impl ValueWriter {
    /// Appends `data`; returns its length.
    fn write(&self, py: Python<'_>, data: Bytes<'_>) -> Result<usize> {
        self.liveness.check_process()?;
        let data = data.as_ref();
        py.outside(|| {
            let mut writer = lock(&self.writer);
            let writer = writer.as_mut().ok_or_else(|| closed("stream"))?;
            writer.write_all(data).map_err(Error::from)
        })??;
        Ok(data.len())
    }

    /// The number of bytes that were written.
    #[getter]
    fn written(&self, py: Python<'_>) -> Result<u64> {
        self.liveness.check_process()?;
        let written = py.outside(|| lock(&self.writer).as_ref().map(Stream::written))?;
        Ok(written.ok_or_else(|| closed("stream"))?)
    }

    /// Commits the value.
    #[pyo3(signature = (key = None, *, sync = false))]
    fn commit(&self, py: Python<'_>, key: Option<Bytes<'_>>, sync: bool) -> Result<Commit> {
        self.liveness.check_process()?;
        let key = key.as_ref().map(AsRef::as_ref);
        Ok(py.outside(|| self.ended(key, sync))??.into())
    }

    /// Discards the value.
    fn discard(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| drop(lock(&self.writer).take()))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Py<PyAny>>,
        _value: Option<Py<PyAny>>,
        _traceback: Option<Py<PyAny>>,
    ) -> Result<()> {
        if kind.is_some() {
            return self.discard(py);
        }
        self.liveness.check_process()?;
        py.outside(|| {
            // A stream that the block has committed or discarded itself is done.
            let is_open = lock(&self.writer).is_some();
            let ended = is_open.then(|| self.ended(None, false)).transpose();
            // One that lacks its key is discarded.
            drop(lock(&self.writer).take());
            ended.map(|_| ())
        })?
    }
}
