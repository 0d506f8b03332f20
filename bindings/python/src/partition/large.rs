//! The calls of [`Partition`] for large values.

use std::io::Write;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use siltstone::Error;
use siltstone::large_values::BlobStat;

use super::Partition;
use crate::bytes::Bytes;
use crate::commit::{Commit, durability};
use crate::error::{Failure, Result};
use crate::hooks::Outside;
use crate::stream::{BlobSource, Stream, ValueWriter};

/// The bytes that one call of `read` asks for.
const PIECE_BYTES: usize = 1 << 20;

/// What is known of a value, for Python.
pub fn value_stat<'py>(py: Python<'py>, stat: &BlobStat) -> Result<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("len", stat.len)?;
    dict.set_item("stored_len", stat.stored_len)?;
    dict.set_item("stored", stat.stored.as_ref().map(Duration::as_secs_f64))?;
    Ok(dict)
}

#[pymethods]
impl Partition {
    /// Opens a value for reads by offset. `open_value` makes a file of it.
    fn open_blob(&self, py: Python<'_>, key: Bytes<'_>) -> Result<Option<BlobSource>> {
        let key = key.as_ref();
        let found = py.outside(|| self.inner.open_blob(key))??;
        Ok(found.map(|reader| BlobSource::new(self.liveness.clone(), reader)))
    }

    /// Opens a value as a file.
    fn open_value(&self, py: Python<'_>, key: Bytes<'_>) -> Result<Option<Py<PyAny>>> {
        let Some(blob) = self.open_blob(py, key)? else { return Ok(None) };
        BlobSource::into_file(py, blob).map(Some)
    }

    /// Begins a value that is written in parts.
    #[pyo3(signature = (key = None, length = None))]
    fn open_writer(
        &self,
        py: Python<'_>,
        key: Option<Bytes<'_>>,
        length: Option<u64>,
    ) -> Result<ValueWriter> {
        let key = key.as_ref().map(AsRef::as_ref);
        let writer = py.outside(|| match key {
            Some(key) => self.inner.put_stream(key, length).map(Stream::Keyed),
            None => self.inner.put_stream_unkeyed(length).map(Stream::Unkeyed),
        })??;
        Ok(ValueWriter::new(self.liveness.clone(), writer))
    }

    /// Sets a key to what a file has left.
    #[pyo3(signature = (key, source, *, length = None, sync = false))]
    fn put_stream(
        &self,
        py: Python<'_>,
        key: Bytes<'_>,
        source: Bound<'_, PyAny>,
        length: Option<u64>,
        sync: bool,
    ) -> Result<Commit> {
        let key = key.as_ref();
        let read = source.getattr("read")?;
        let mut writer = py.outside(|| self.inner.put_stream(key, length))??;
        loop {
            // Of this process still: the file may be code of the application.
            self.liveness.check_process()?;
            let piece: Bytes<'_> = read.call1((PIECE_BYTES,))?.extract()?;
            let piece = piece.as_ref();
            if piece.is_empty() {
                break;
            }
            py.outside(|| writer.write_all(piece))?
                .map_err(|error| Failure::from(Error::from(error)))?;
        }
        Ok(py.outside(|| writer.commit(durability(sync)))??.into())
    }

    /// Returns the lengths of a value, and when it was stored.
    fn stat_value<'py>(
        &self,
        py: Python<'py>,
        key: Bytes<'py>,
    ) -> Result<Option<Bound<'py, PyDict>>> {
        let key = key.as_ref();
        let stat = py.outside(|| self.inner.stat_blob(key))??;
        stat.map(|stat| value_stat(py, &stat)).transpose()
    }
}
