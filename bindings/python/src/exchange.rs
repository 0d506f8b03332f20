//! Streams of entries, out to a file of Python and in from one.
//!
//! The engine writes and reads while Python is released; each piece takes Python again for its call.

use std::io::{self, BufReader, BufWriter, Read, Write};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use siltstone::stream::{StreamExport, StreamFormat, StreamImport, StreamSummary};

use crate::bytes::{Bytes, range};
use crate::db::Db;
use crate::error::{Failure, Result, invalid_argument};
use crate::hooks::Outside;

/// The bytes that one call of the file moves.
const PIECE_BYTES: usize = 1 << 18;

/// A file of Python for the engine. An exception ends the stream, and is raised in the place of the engine's error.
struct PythonFile<'a> {
    file: &'a Py<PyAny>,
    raised: &'a mut Option<PyErr>,
}

impl PythonFile<'_> {
    fn call<T>(
        &mut self,
        call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> io::Result<T> {
        Python::attach(|py| call(py, self.file.bind(py))).map_err(|raised| {
            *self.raised = Some(raised);
            io::Error::other("the file of Python raised an exception")
        })
    }
}

impl Write for PythonFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A file without a count, as some have, has taken everything.
        let written: Option<usize> = self
            .call(|py, file| file.call_method1("write", (PyBytes::new(py, bytes),))?.extract())?;
        Ok(written.unwrap_or(bytes.len()).min(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for PythonFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(|_, file| {
            let piece = file.call_method1("read", (buffer.len(),))?;
            let piece: Bytes<'_> = piece.extract()?;
            let piece = piece.as_ref();
            if piece.len() > buffer.len() {
                let message = "the file of Python returned more bytes than were asked for";
                return Err(PyErr::from(invalid_argument(message)));
            }
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        })
    }
}

/// The outcome of the engine, unless an exception of Python was the reason.
fn outcome<'py>(
    py: Python<'py>,
    made: siltstone::Result<StreamSummary>,
    raised: Option<PyErr>,
) -> Result<Bound<'py, PyDict>> {
    if let (Err(_), Some(raised)) = (&made, raised) {
        return Err(Failure::Python(raised));
    }
    let summary = made?;
    let dict = PyDict::new(py);
    dict.set_item("entries", summary.entries)?;
    dict.set_item("bytes", summary.bytes)?;
    dict.set_item("skipped", summary.skipped)?;
    Ok(dict)
}

#[pymethods]
impl Db {
    /// Writes the entries of partitions to a file.
    #[pyo3(signature = (file, *, partitions = None, start = None, stop = None, format = "checked"))]
    fn export_stream<'py>(
        &self,
        py: Python<'py>,
        file: Py<PyAny>,
        partitions: Option<Vec<String>>,
        start: Option<Bytes<'py>>,
        stop: Option<Bytes<'py>>,
        format: &str,
    ) -> Result<Bound<'py, PyDict>> {
        let mut options = StreamExport::new().range(range(start.as_ref(), stop.as_ref()));
        options = options.format(match format {
            "checked" => StreamFormat::Checked,
            "berkeley_text" => StreamFormat::BerkeleyText,
            _ => return Err(invalid_argument(format!("there is no format {format:?}"))),
        });
        if let Some(names) = partitions {
            options = options.partitions(names);
        }
        let mut raised = None;
        let made = py.outside(|| {
            let file = PythonFile { file: &file, raised: &mut raised };
            let mut file = BufWriter::with_capacity(PIECE_BYTES, file);
            let made = self.inner.export_stream(&mut file, &options);
            let made = made.and_then(|made| Ok(file.flush().map(|()| made)?));
            // Its drop would write what is left to a file that has raised.
            drop(file.into_parts());
            made
        })?;
        outcome(py, made, raised)
    }

    /// Puts the entries of a file.
    #[pyo3(signature = (file, *, partition = None, resume = false, large_values = false))]
    fn import_stream<'py>(
        &self,
        py: Python<'py>,
        file: Py<PyAny>,
        partition: Option<String>,
        resume: bool,
        large_values: bool,
    ) -> Result<Bound<'py, PyDict>> {
        let mut options = StreamImport::new().resume(resume).large_values(large_values);
        if let Some(name) = partition {
            options = options.partition(name);
        }
        let mut raised = None;
        let made = py.outside(|| {
            let file = PythonFile { file: &file, raised: &mut raised };
            self.inner.import_stream(BufReader::with_capacity(PIECE_BYTES, file), &options)
        })?;
        outcome(py, made, raised)
    }
}
