//! [`Partition`]: a key space, as a class of Python.
//!
//! Here are the class and its reads; `partition/write.rs` has the calls that write, `partition/large.rs` those of
//! large values.

mod large;
mod write;

pub use write::Updated;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView};
use siltstone::RemainingTime;

use crate::bytes::{Bytes, range};
use crate::cursor::Cursor;
use crate::error::Result;
use crate::held::Held;
use crate::hooks::Outside;
use crate::iterator::{EntryIterator, Part, Scan, ScanBytes};
use crate::liveness::Liveness;
use crate::options::stored_options;
use crate::report::to_python;
use crate::value::Value;

/// A partition: a key space with its own tables and options.
#[pyclass(frozen, module = "siltstone")]
pub struct Partition {
    pub(crate) db: Held<siltstone::Db>,
    pub(crate) inner: Held<siltstone::Partition>,
    pub(crate) liveness: Liveness,
}

/// An entry as Python has it.
pub type PythonEntry<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// The values of `keys`, one for each.
pub fn values<'py>(
    py: Python<'py>,
    found: Vec<Option<siltstone::Slice>>,
) -> Vec<Option<Bound<'py, PyBytes>>> {
    found.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect()
}

impl Partition {
    fn walk(&self, py: Python<'_>, scan: &Scan<'_>, part: Part) -> Result<EntryIterator> {
        let scan = ScanBytes::of(scan, part)?;
        self.liveness.check_process()?;
        let items = py.outside(|| scan.items(&*self.inner))?;
        Ok(EntryIterator::new(self.liveness.clone(), items))
    }
}

/// Reads.
#[pymethods]
impl Partition {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the value of a key.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Bytes<'py>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let key = key.as_ref();
        let found = py.outside(|| self.inner.get(key))??;
        Ok(found.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    /// Returns the seconds until the entry of a key expires.
    fn remaining_time(&self, py: Python<'_>, key: Bytes<'_>) -> Result<Option<f64>> {
        let key = key.as_ref();
        Ok(py.outside(|| self.inner.remaining_time(key))??.map(|time| match time {
            RemainingTime::Limited(time) => time.as_secs_f64(),
            RemainingTime::Unlimited => f64::INFINITY,
        }))
    }

    /// Returns about how many bytes of tables hold the keys of a range.
    #[pyo3(signature = (start = None, stop = None))]
    fn size_approx(
        &self,
        py: Python<'_>,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
    ) -> Result<u64> {
        let bounds = range(start.as_ref(), stop.as_ref());
        Ok(py.outside(|| self.inner.size_approx(bounds))??)
    }

    /// Returns the value of a key as a memoryview, without a copy where the engine lends it.
    fn get_ref<'py>(
        &self,
        py: Python<'py>,
        key: Bytes<'py>,
    ) -> Result<Option<Bound<'py, PyMemoryView>>> {
        let key = key.as_ref();
        let found = py.outside(|| self.inner.get_ref(key))??;
        found.map(|value| Value::view(py, value)).transpose()
    }

    /// Returns the values of several keys at one moment.
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bytes<'py>>,
    ) -> Result<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        Ok(values(py, py.outside(|| self.inner.multi_get(&keys))??))
    }

    /// Returns whether a key exists.
    fn contains(&self, py: Python<'_>, key: Bytes<'_>) -> Result<bool> {
        let key = key.as_ref();
        Ok(py.outside(|| self.inner.contains(key))??)
    }

    fn __contains__(&self, py: Python<'_>, key: Bytes<'_>) -> Result<bool> {
        self.contains(py, key)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Bytes<'py>) -> Result<Bound<'py, PyBytes>> {
        let bytes = key.as_ref();
        match py.outside(|| self.inner.get(bytes))?? {
            Some(value) => Ok(PyBytes::new(py, &value)),
            None => Err(PyKeyError::new_err(PyBytes::new(py, bytes).unbind()).into()),
        }
    }

    /// Walks over keys and values.
    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false))]
    fn scan(
        &self,
        py: Python<'_>,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
        prefix: Option<Bytes<'_>>,
        reverse: bool,
    ) -> Result<EntryIterator> {
        self.walk(py, &Scan { start, stop, prefix, reverse }, Part::Entry)
    }

    /// Walks over keys.
    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false))]
    fn keys(
        &self,
        py: Python<'_>,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
        prefix: Option<Bytes<'_>>,
        reverse: bool,
    ) -> Result<EntryIterator> {
        self.walk(py, &Scan { start, stop, prefix, reverse }, Part::Key)
    }

    /// Walks over values.
    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false))]
    fn values(
        &self,
        py: Python<'_>,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
        prefix: Option<Bytes<'_>>,
        reverse: bool,
    ) -> Result<EntryIterator> {
        self.walk(py, &Scan { start, stop, prefix, reverse }, Part::Value)
    }

    /// Returns a cursor over a range.
    #[pyo3(signature = (start = None, stop = None))]
    fn cursor(
        &self,
        py: Python<'_>,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
    ) -> Result<Cursor> {
        Cursor::over(py, &self.liveness, &*self.inner, start.as_ref(), stop.as_ref())
    }

    fn __iter__(&self, py: Python<'_>) -> Result<EntryIterator> {
        self.walk(py, &Scan { start: None, stop: None, prefix: None, reverse: false }, Part::Key)
    }

    /// Returns the first entry.
    fn first<'py>(&self, py: Python<'py>) -> Result<Option<PythonEntry<'py>>> {
        let entry = py.outside(|| self.inner.first())??;
        Ok(entry.map(|(key, value)| (PyBytes::new(py, &key), PyBytes::new(py, &value))))
    }

    /// Returns the last entry.
    fn last<'py>(&self, py: Python<'py>) -> Result<Option<PythonEntry<'py>>> {
        let entry = py.outside(|| self.inner.last())??;
        Ok(entry.map(|(key, value)| (PyBytes::new(py, &key), PyBytes::new(py, &value))))
    }

    /// Returns about how many keys there are.
    fn len_approx(&self, py: Python<'_>) -> Result<u64> {
        Ok(py.outside(|| self.inner.len_approx())??)
    }

    /// Returns the stored options.
    fn options<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        stored_options(py, &py.outside(|| self.inner.options())?)
    }

    /// Returns the statistics.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        to_python(py, &py.outside(|| self.inner.stats())?)
    }

    fn __repr__(&self) -> String {
        format!("<siltstone.Partition {:?}>", self.inner.name())
    }
}
