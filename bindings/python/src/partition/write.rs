//! The calls of [`Partition`] that write.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siltstone::{Gap, Swap, TransactOptions};

use super::{Partition, PythonEntry};
use crate::bytes::{Bytes, range};
use crate::commit::{Commit, durability, write_options};
use crate::error::{Failure, Result};
use crate::hooks::Outside;

/// The outcome of an update of one key.
#[pyclass(frozen, get_all, module = "siltstone")]
pub struct Updated {
    commit: Py<Commit>,
    old: Option<Py<PyBytes>>,
    new: Option<Py<PyBytes>>,
}

/// Writes.
#[pymethods]
impl Partition {
    /// Sets a key to a value.
    #[pyo3(signature = (key, value, *, sync = false, waits = true))]
    fn put(
        &self,
        py: Python<'_>,
        key: Bytes<'_>,
        value: Bytes<'_>,
        sync: bool,
        waits: bool,
    ) -> Result<Commit> {
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(py.outside(|| self.inner.put_with(key, value, write_options(sync, waits)))??.into())
    }

    fn __setitem__(&self, py: Python<'_>, key: Bytes<'_>, value: Bytes<'_>) -> Result<()> {
        self.put(py, key, value, false, true).map(drop)
    }

    /// Deletes a key.
    #[pyo3(signature = (key, *, sync = false, waits = true))]
    fn delete(&self, py: Python<'_>, key: Bytes<'_>, sync: bool, waits: bool) -> Result<Commit> {
        let key = key.as_ref();
        Ok(py.outside(|| self.inner.delete_with(key, write_options(sync, waits)))??.into())
    }

    // As `delete`, and unlike a dict: whether the key exists would cost a read.
    fn __delitem__(&self, py: Python<'_>, key: Bytes<'_>) -> Result<()> {
        self.delete(py, key, false, true).map(drop)
    }

    /// Deletes the keys of a range.
    #[pyo3(signature = (start = None, stop = None, *, sync = false))]
    fn delete_range(
        &self,
        py: Python<'_>,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
        sync: bool,
    ) -> Result<Commit> {
        let bounds = range(start.as_ref(), stop.as_ref());
        Ok(py.outside(|| self.inner.delete_range_with(bounds, durability(sync)))??.into())
    }

    /// Deletes the keys that begin with a prefix.
    #[pyo3(signature = (prefix, *, sync = false))]
    fn delete_prefix(&self, py: Python<'_>, prefix: Bytes<'_>, sync: bool) -> Result<Commit> {
        let prefix = prefix.as_ref();
        Ok(py.outside(|| self.inner.delete_prefix_with(prefix, durability(sync)))??.into())
    }

    /// Deletes all keys.
    #[pyo3(signature = (*, sync = false))]
    fn clear(&self, py: Python<'_>, sync: bool) -> Result<Commit> {
        Ok(py.outside(|| self.inner.clear_with(durability(sync)))??.into())
    }

    /// Merges an operand into the value of a key.
    #[pyo3(signature = (key, operand, *, sync = false))]
    fn merge(
        &self,
        py: Python<'_>,
        key: Bytes<'_>,
        operand: Bytes<'_>,
        sync: bool,
    ) -> Result<Commit> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        Ok(py.outside(|| self.inner.merge_with(key, operand, durability(sync)))??.into())
    }

    /// Sets a key to what a function makes of its value.
    #[pyo3(signature = (key, change, *, sync = false))]
    fn update(
        &self,
        py: Python<'_>,
        key: Bytes<'_>,
        change: Py<PyAny>,
        sync: bool,
    ) -> Result<Updated> {
        let key = key.as_ref();
        let options = TransactOptions::new().durability(durability(sync));
        // A transaction and not the engine's update, whose function cannot fail: that of Python can.
        let ((old, new), commit) = py.outside(|| {
            self.db.transact_with(options, |transaction| {
                let old = transaction.get(&self.inner, key)?;
                let changed = Python::attach(|py| {
                    let old = old.map(|old| PyBytes::new(py, &old).unbind());
                    let new = change.call1(py, (old.as_ref(),))?;
                    let new: Option<Bytes<'_>> = new.extract(py)?;
                    let new = new.map(|new| PyBytes::new(py, new.as_ref()).unbind());
                    let bytes = new.as_ref().map(|new| new.as_bytes(py).to_vec());
                    Ok::<_, Failure>(((old, new), bytes))
                });
                let (values, bytes) = changed?;
                match bytes {
                    Some(bytes) => transaction.put(&self.inner, key, bytes),
                    None => transaction.delete(&self.inner, key),
                }
                Ok::<_, Failure>(values)
            })
        })??;
        Ok(Updated { commit: Py::new(py, Commit::from(commit))?, old, new })
    }

    /// Replaces the value of a key if it is the expected one.
    #[pyo3(signature = (key, expected, new, *, sync = false))]
    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: Bytes<'_>,
        expected: Option<Bytes<'_>>,
        new: Option<Bytes<'_>>,
        sync: bool,
    ) -> Result<Option<Commit>> {
        let key = key.as_ref();
        let expected = expected.as_ref().map(AsRef::as_ref);
        let new = new.as_ref().map(AsRef::as_ref);
        let swap =
            py.outside(|| self.inner.compare_and_set_with(key, expected, new, durability(sync)))??;
        Ok(match swap {
            Swap::Done(commit) => Some(commit.into()),
            Swap::Differs(_) => None,
        })
    }

    /// Writes what is in memory to tables.
    fn flush(&self, py: Python<'_>) -> Result<()> {
        Ok(py.outside(|| self.inner.flush())??)
    }

    /// Compacts a range to the bottom level.
    #[pyo3(signature = (start = None, stop = None))]
    fn compact(
        &self,
        py: Python<'_>,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
    ) -> Result<()> {
        let bounds = range(start.as_ref(), stop.as_ref());
        Ok(py.outside(|| self.inner.compact(bounds))??)
    }

    /// Returns the ranges in which entries are lost.
    fn gaps<'py>(&self, py: Python<'py>) -> Result<Vec<PythonEntry<'py>>> {
        let gaps = py.outside(|| self.inner.gaps())?;
        Ok(around(py, &gaps))
    }

    /// Tries to repair the damage in a range.
    #[pyo3(signature = (start = None, stop = None))]
    fn repair<'py>(
        &self,
        py: Python<'py>,
        start: Option<Bytes<'py>>,
        stop: Option<Bytes<'py>>,
    ) -> Result<Vec<PythonEntry<'py>>> {
        let bounds = range(start.as_ref(), stop.as_ref());
        let gaps = py.outside(|| self.inner.repair(bounds))??;
        Ok(around(py, &gaps))
    }

    /// Accepts the loss of the entries in the gaps of a range.
    #[pyo3(signature = (start = None, stop = None))]
    fn accept_loss<'py>(
        &self,
        py: Python<'py>,
        start: Option<Bytes<'py>>,
        stop: Option<Bytes<'py>>,
    ) -> Result<Vec<PythonEntry<'py>>> {
        let bounds = range(start.as_ref(), stop.as_ref());
        let gaps = py.outside(|| self.inner.accept_loss(bounds))??;
        Ok(around(py, &gaps))
    }
}

/// The intact keys around each gap.
fn around<'py>(py: Python<'py>, gaps: &[Gap]) -> Vec<PythonEntry<'py>> {
    gaps.iter().map(|gap| (PyBytes::new(py, &gap.from), PyBytes::new(py, &gap.to))).collect()
}
