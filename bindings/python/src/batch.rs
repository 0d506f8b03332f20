//! [`Batch`]: operations that are committed together.

use std::sync::Mutex;

use pyo3::prelude::*;
use siltstone::{Error, ErrorKind};

use crate::bytes::{Bytes, range};
use crate::commit::{Commit, durability, seq_no};
use crate::error::{Result, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::liveness::Liveness;
use crate::partition::Partition;
use crate::stream::ValueWriter;

/// A batch. As a context manager it is committed at the end of the block, and discarded after an exception.
#[pyclass(frozen, module = "siltstone")]
pub struct Batch {
    liveness: Liveness,
    sync: bool,
    /// `None` once it is committed or discarded. Held for an operation in memory only.
    inner: Held<Mutex<Option<siltstone::Batch>>>,
}

fn ended() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the batch was committed or discarded")
}

impl Batch {
    /// Of `batch`.
    pub fn new(liveness: Liveness, batch: siltstone::Batch, sync: bool) -> Batch {
        Batch { liveness, sync, inner: Held::new(Mutex::new(Some(batch))) }
    }

    /// Changes the batch.
    fn with(
        &self,
        py: Python<'_>,
        change: impl FnOnce(siltstone::Batch) -> siltstone::Batch + Send,
    ) -> Result<()> {
        self.liveness.check_process()?;
        py.outside(|| {
            let mut inner = lock(&self.inner);
            let batch = inner.take().ok_or_else(ended)?;
            *inner = Some(change(batch));
            Ok(())
        })?
    }

    fn take(&self) -> siltstone::Result<siltstone::Batch> {
        lock(&self.inner).take().ok_or_else(ended)
    }
}

#[pymethods]
impl Batch {
    /// Adds a put.
    fn put(
        &self,
        py: Python<'_>,
        partition: &Partition,
        key: Bytes<'_>,
        value: Bytes<'_>,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.with(py, |batch| batch.put(&partition.inner, key, value))
    }

    /// Adds a deletion.
    fn delete(&self, py: Python<'_>, partition: &Partition, key: Bytes<'_>) -> Result<()> {
        let key = key.as_ref();
        self.with(py, |batch| batch.delete(&partition.inner, key))
    }

    /// Adds a merge.
    fn merge(
        &self,
        py: Python<'_>,
        partition: &Partition,
        key: Bytes<'_>,
        operand: Bytes<'_>,
    ) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.with(py, |batch| batch.merge(&partition.inner, key, operand))
    }

    /// Adds the deletion of a range.
    #[pyo3(signature = (partition, start = None, stop = None))]
    fn delete_range(
        &self,
        py: Python<'_>,
        partition: &Partition,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
    ) -> Result<()> {
        let bounds = range(start.as_ref(), stop.as_ref());
        self.with(py, |batch| batch.delete_range(&partition.inner, bounds))
    }

    /// Adds the deletion of all keys with a prefix.
    fn delete_prefix(
        &self,
        py: Python<'_>,
        partition: &Partition,
        prefix: Bytes<'_>,
    ) -> Result<()> {
        let prefix = prefix.as_ref();
        self.with(py, |batch| batch.delete_prefix(&partition.inner, prefix))
    }

    /// Adds the deletion of all keys.
    fn clear(&self, py: Python<'_>, partition: &Partition) -> Result<()> {
        self.with(py, |batch| batch.clear(&partition.inner))
    }

    /// Adds a value that was written as a stream.
    #[pyo3(signature = (writer, key = None))]
    fn put_value(
        &self,
        py: Python<'_>,
        writer: &ValueWriter,
        key: Option<Bytes<'_>>,
    ) -> Result<()> {
        let pending = writer.finish(py, key.as_ref().map(AsRef::as_ref))?;
        self.with(py, |batch| batch.put_blob(pending))
    }

    /// Requires that no one has written to a key after a sequence number.
    fn require(
        &self,
        py: Python<'_>,
        partition: &Partition,
        key: Bytes<'_>,
        at_most: u64,
    ) -> Result<()> {
        let key = key.as_ref();
        let at_most = seq_no(at_most)?;
        self.with(py, |batch| batch.require(&partition.inner, key, at_most))
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize> {
        self.liveness.check_process()?;
        py.outside(|| lock(&self.inner).as_ref().map_or(0, siltstone::Batch::len))
    }

    // Or an empty batch would be false, as no one expects of an object.
    fn __bool__(&self) -> bool {
        true
    }

    /// Commits the operations.
    #[pyo3(signature = (*, sync = None))]
    fn commit(&self, py: Python<'_>, sync: Option<bool>) -> Result<Commit> {
        self.liveness.check_process()?;
        let durability = durability(sync.unwrap_or(self.sync));
        Ok(py.outside(|| self.take()?.commit(durability))??.into())
    }

    /// Commits the operations, or fails where it would have to wait for compactions.
    #[pyo3(signature = (*, sync = None))]
    fn try_commit(&self, py: Python<'_>, sync: Option<bool>) -> Result<Commit> {
        self.liveness.check_process()?;
        let durability = durability(sync.unwrap_or(self.sync));
        Ok(py.outside(|| self.take()?.try_commit(durability))??.into())
    }

    /// Discards the operations.
    fn discard(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| drop(lock(&self.inner).take()))
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
        // A batch that the block has committed or discarded itself is done.
        py.outside(|| {
            let batch = lock(&self.inner).take();
            batch.map(|batch| batch.commit(durability(self.sync))).transpose()
        })??;
        Ok(())
    }
}
