//! [`Db`]: an open database, and the functions that open one.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use siltstone::{Builder, Error, TransactOptions, VerifyOptions};

use crate::batch::Batch;
use crate::bytes::Bytes;
use crate::changes::{Begin, Changes};
use crate::commit::{durability, seq_no};
use crate::error::{Result, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::liveness::Liveness;
use crate::options::{open_options, partition_options};
use crate::partition::Partition;
use crate::report::{salvage_report, to_python, verify_report};
use crate::snapshot::Snapshot;
use crate::transaction::{Transaction, transact};
use crate::waiting::in_pieces;

/// An open database.
#[pyclass(frozen, module = "siltstone")]
pub struct Db {
    pub(crate) inner: Held<siltstone::Db>,
    pub(crate) liveness: Liveness,
    path: PathBuf,
}

/// Opens the database in a folder.
#[pyfunction]
#[pyo3(signature = (path, **options))]
pub fn open(py: Python<'_>, path: PathBuf, options: Option<&Bound<'_, PyDict>>) -> Result<Db> {
    let mut builder = siltstone::Db::builder(&path);
    if let Some(options) = options {
        builder = open_options(builder, options)?;
    }
    Db::open(py, builder, path)
}

/// Writes what can be read of a database to a new one.
#[pyfunction]
#[pyo3(signature = (path, into, **options))]
pub fn repair<'py>(
    py: Python<'py>,
    path: PathBuf,
    into: PathBuf,
    options: Option<&Bound<'py, PyDict>>,
) -> Result<Bound<'py, PyDict>> {
    let mut builder = siltstone::Db::builder(path);
    if let Some(options) = options {
        builder = open_options(builder, options)?;
    }
    let report = py.outside(|| builder.repair_into(into))??;
    salvage_report(py, &report)
}

impl Db {
    /// Opens what `builder` describes.
    pub fn open(py: Python<'_>, builder: Builder, path: PathBuf) -> Result<Db> {
        let inner = py.outside(|| builder.open())??;
        Ok(Db { inner: Held::new(inner), liveness: Liveness::new(), path })
    }

    /// The handle of Python for `inner`.
    fn partition_of(&self, inner: siltstone::Partition) -> Partition {
        Partition {
            db: Held::new(self.inner.clone()),
            inner: Held::new(inner),
            liveness: self.liveness.clone(),
        }
    }
}

/// Partitions, batches, transactions and snapshots.
#[pymethods]
impl Db {
    /// The folder.
    #[getter]
    fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Opens a partition.
    #[pyo3(signature = (name = "default", *, create = true, **options))]
    fn partition(
        &self,
        py: Python<'_>,
        name: &str,
        create: bool,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Partition> {
        let Some(options) = options.filter(|options| !options.is_empty()) else {
            let opened = py.outside(|| match create {
                true => self.inner.partition(name),
                false => self.inner.open_partition(name),
            })??;
            return Ok(self.partition_of(opened));
        };
        // Over those that are stored, so that an option that the call does not name stays.
        let stored = py.outside(|| match create && !self.inner.has_partition(name) {
            true => Ok(siltstone::PartitionOptions::new()),
            false => self.inner.open_partition(name).map(|opened| opened.options()),
        })??;
        let options = partition_options(stored, options)?;
        let opened = py.outside(|| self.inner.partition_with(name, options))??;
        Ok(self.partition_of(opened))
    }

    /// Returns whether there is a partition of this name.
    fn has_partition(&self, py: Python<'_>, name: &str) -> Result<bool> {
        self.liveness.check_process()?;
        py.outside(|| self.inner.has_partition(name))
    }

    /// Returns the names of all partitions.
    fn partition_names(&self, py: Python<'_>) -> Result<Vec<String>> {
        self.liveness.check_process()?;
        py.outside(|| self.inner.partition_names())
    }

    /// Drops a partition with its data.
    fn drop_partition(&self, py: Python<'_>, name: &str) -> Result<()> {
        Ok(py.outside(|| self.inner.drop_partition(name))??)
    }

    /// Returns an empty batch.
    #[pyo3(signature = (*, sync = false))]
    fn batch(&self, sync: bool) -> Result<Batch> {
        self.liveness.check_process()?;
        Ok(Batch::new(self.liveness.clone(), self.inner.batch(), sync))
    }

    /// Begins a transaction.
    #[pyo3(signature = (*, sync = false))]
    fn transaction(&self, py: Python<'_>, sync: bool) -> Result<Transaction> {
        self.liveness.check_process()?;
        let transaction = py.outside(|| self.inner.transaction())?;
        Ok(Transaction::new(self.liveness.clone(), transaction, sync))
    }

    /// Runs a function in a transaction, again after each conflict.
    #[pyo3(signature = (work, *, sync = false, attempts_max = None))]
    fn transact(
        &self,
        py: Python<'_>,
        work: Py<PyAny>,
        sync: bool,
        attempts_max: Option<u32>,
    ) -> Result<Py<PyAny>> {
        self.liveness.check_process()?;
        let options = TransactOptions::new()
            .durability(durability(sync))
            .attempts_max(attempts_max.unwrap_or(u32::MAX));
        transact(py, &self.inner, &self.liveness, &work, options)
    }

    /// Takes a snapshot.
    fn snapshot(&self, py: Python<'_>) -> Result<Snapshot> {
        self.liveness.check_process()?;
        Ok(Snapshot::new(self.liveness.clone(), py.outside(|| self.inner.snapshot())?))
    }
}

/// Durability, maintenance and the close.
#[pymethods]
impl Db {
    /// The number of the newest operation that readers see.
    #[getter]
    fn visible_seq(&self) -> Result<u64> {
        self.liveness.check_process()?;
        Ok(self.inner.visible_seq().get())
    }

    /// The number through which all commits are durable.
    #[getter]
    fn durable_seq(&self) -> Result<u64> {
        self.liveness.check_process()?;
        Ok(self.inner.durable_seq().get())
    }

    /// Waits until a commit is durable.
    fn wait_durable(&self, py: Python<'_>, seq: u64) -> Result<()> {
        let seq = seq_no(seq)?;
        let (send, durable) = sync_channel(1);
        py.outside(|| {
            self.inner.on_durable(seq, move |outcome| {
                // A wait that was interrupted takes it no more.
                let _ = send.try_send(outcome);
            })
        })??;
        let durable = Mutex::new(durable);
        in_pieces(py, Duration::MAX, |piece| match lock(&durable).recv_timeout(piece) {
            Ok(outcome) => outcome.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::closed()),
        })?;
        Ok(())
    }

    /// Follows the changes after a position.
    #[pyo3(signature = (position = None, *, partition = None, prefix = None))]
    fn changes(
        &self,
        py: Python<'_>,
        position: Option<&Bound<'_, PyAny>>,
        partition: Option<&str>,
        prefix: Option<Bytes<'_>>,
    ) -> Result<Changes> {
        let begin = Begin::of(position)?;
        let changes = py.outside(|| match begin {
            Begin::Seq(seq) => self.inner.changes(seq),
            Begin::Position(position) => self.inner.changes_from(position),
        })??;
        Ok(Changes::new(self.liveness.clone(), changes, partition, prefix))
    }

    /// Whether another process has taken the database over.
    #[getter]
    fn is_fenced(&self) -> Result<bool> {
        self.liveness.check_process()?;
        Ok(self.inner.is_fenced())
    }

    /// Changes the rate of flushes and compactions.
    fn set_background_bytes_per_second(&self, py: Python<'_>, bytes: u64) -> Result<()> {
        Ok(py.outside(|| self.inner.set_background_bytes_per_second(bytes))??)
    }

    /// Writes the memtables to tables.
    fn flush(&self, py: Python<'_>) -> Result<()> {
        Ok(py.outside(|| self.inner.flush())??)
    }

    /// Waits until no background work is left.
    fn wait_idle(&self, py: Python<'_>) -> Result<()> {
        Ok(py.outside(|| self.inner.wait_idle())??)
    }

    /// Copies the database to a folder.
    fn checkpoint(&self, py: Python<'_>, dir: PathBuf) -> Result<u64> {
        Ok(py.outside(|| self.inner.checkpoint(dir))??.get())
    }

    /// Returns the statistics.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        self.liveness.check_process()?;
        to_python(py, &py.outside(|| self.inner.stats())?)
    }

    /// Returns failures, stalls and the distance to limits.
    fn health<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        self.liveness.check_process()?;
        to_python(py, &py.outside(|| self.inner.health())?)
    }

    /// Reads every file and reports all damage.
    #[pyo3(signature = (*, bytes_per_second = 0))]
    fn verify<'py>(&self, py: Python<'py>, bytes_per_second: u64) -> Result<Bound<'py, PyDict>> {
        let report = py.outside(|| {
            self.inner.verify(VerifyOptions::new().bytes_per_second(bytes_per_second))
        })??;
        verify_report(py, &report)
    }

    /// Closes the database. Later calls on it, and on all that came of it, are errors.
    fn close(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(self.liveness.check_process()?);
        }
        Ok(py.outside(|| {
            // First, so that iterators stop before the engine gives up the lock of the folder.
            if self.liveness.close() { self.inner.clone().close() } else { Ok(()) }
        })??)
    }

    fn __repr__(&self) -> String {
        format!("<siltstone.Db {:?}>", self.path)
    }
}

closed_at_exit!(Db);
