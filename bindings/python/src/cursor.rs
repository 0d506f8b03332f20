//! [`Cursor`]: a place among the entries of a range that is moved by hand.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siltstone::{Error, ErrorKind, Readable};

use crate::bytes::{Bytes, range};
use crate::error::{Result, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::liveness::Liveness;
use crate::partition::PythonEntry;

/// A cursor over a range. It shows the state of the moment at which it was made.
#[pyclass(frozen, module = "siltstone")]
pub struct Cursor {
    liveness: Liveness,
    /// `None` once it is closed.
    inner: Held<Mutex<Option<siltstone::Cursor>>>,
}

impl Cursor {
    /// Over a range of `source`, which is made while Python is released.
    pub fn over<R>(
        py: Python<'_>,
        liveness: &Liveness,
        source: &R,
        start: Option<&Bytes<'_>>,
        stop: Option<&Bytes<'_>>,
    ) -> Result<Cursor>
    where
        R: Readable<Cursor = siltstone::Cursor> + Sync,
    {
        liveness.check_process()?;
        let bounds = range(start, stop);
        let cursor = py.outside(|| source.cursor_in(bounds))?;
        Ok(Cursor { liveness: liveness.clone(), inner: Held::new(Mutex::new(Some(cursor))) })
    }

    /// Moves the cursor, and returns whether it is on an entry.
    fn moved(
        &self,
        py: Python<'_>,
        to: impl FnOnce(&mut siltstone::Cursor) -> siltstone::Result<()> + Send,
    ) -> Result<bool> {
        self.liveness.check_process()?;
        let moved = py.outside(|| {
            let mut cursor = lock(&self.inner);
            let cursor = cursor.as_mut().ok_or_else(closed)?;
            to(cursor)?;
            Ok::<_, Error>(cursor.valid())
        })?;
        Ok(moved?)
    }

    /// What `read` returns of the entry.
    fn entry<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&siltstone::Cursor) -> siltstone::Result<T> + Send,
    ) -> Result<T> {
        self.liveness.check_process()?;
        let found = py.outside(|| {
            let cursor = lock(&self.inner);
            read(on_entry(cursor.as_ref().ok_or_else(closed)?)?)
        })?;
        Ok(found?)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the cursor is closed")
}

/// `cursor`, if it is on an entry.
fn on_entry(cursor: &siltstone::Cursor) -> siltstone::Result<&siltstone::Cursor> {
    match cursor.valid() {
        true => Ok(cursor),
        false => Err(Error::new(ErrorKind::InvalidArgument, "the cursor is on no entry")),
    }
}

#[pymethods]
impl Cursor {
    /// Whether the cursor is on an entry.
    #[getter]
    fn valid(&self, py: Python<'_>) -> Result<bool> {
        self.moved(py, |_| Ok(()))
    }

    /// Moves to the first entry.
    fn seek_to_first(&self, py: Python<'_>) -> Result<bool> {
        self.moved(py, siltstone::Cursor::seek_to_first)
    }

    /// Moves to the last entry.
    fn seek_to_last(&self, py: Python<'_>) -> Result<bool> {
        self.moved(py, siltstone::Cursor::seek_to_last)
    }

    /// Moves to the first entry whose key is `key` or after it.
    fn seek(&self, py: Python<'_>, key: Bytes<'_>) -> Result<bool> {
        let key = key.as_ref();
        self.moved(py, |cursor| cursor.seek(key))
    }

    /// Moves to the last entry whose key is before `key`.
    fn seek_before(&self, py: Python<'_>, key: Bytes<'_>) -> Result<bool> {
        let key = key.as_ref();
        self.moved(py, |cursor| cursor.seek_before(key))
    }

    /// Moves to the next entry.
    fn next(&self, py: Python<'_>) -> Result<bool> {
        self.moved(py, |cursor| on_entry(cursor).map(drop).and_then(|()| cursor.next()))
    }

    /// Moves to the previous entry.
    fn prev(&self, py: Python<'_>) -> Result<bool> {
        self.moved(py, |cursor| on_entry(cursor).map(drop).and_then(|()| cursor.prev()))
    }

    /// The key of the entry.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        let key = self.entry(py, |cursor| Ok(cursor.key_slice()))?;
        Ok(PyBytes::new(py, &key))
    }

    /// The value of the entry.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        let value = self.entry(py, siltstone::Cursor::value_slice)?;
        Ok(PyBytes::new(py, &value))
    }

    /// Returns the key and the value of the entry.
    fn item<'py>(&self, py: Python<'py>) -> Result<PythonEntry<'py>> {
        let (key, value) =
            self.entry(py, |cursor| Ok((cursor.key_slice(), cursor.value_slice()?)))?;
        Ok((PyBytes::new(py, &key), PyBytes::new(py, &value)))
    }

    /// Frees what the cursor holds.
    fn close(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| drop(lock(&self.inner).take()))
    }
}

closed_at_exit!(Cursor);
