//! [`Transaction`]: reads and writes that are committed together, or refused after a conflict.

use std::mem;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siltstone::{Error, ErrorKind, TransactOptions};

use crate::bytes::{Bytes, range};
use crate::commit::{Commit, durability, seq_no};
use crate::error::{Failure, Result, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::iterator::{EntryIterator, Part, Scan, ScanBytes};
use crate::liveness::Liveness;
use crate::options::seconds;
use crate::partition::{Partition, values};
use crate::snapshot::Snapshot;

/// A transaction. As a context manager it is committed at the end of the block, and rolled back after an
/// exception.
#[pyclass(frozen, module = "siltstone")]
pub struct Transaction {
    liveness: Liveness,
    sync: bool,
    state: Arc<Held<Mutex<State>>>,
}

/// The transaction of the engine, while it is one.
enum State {
    Running(siltstone::Transaction),
    /// It was committed or rolled back.
    Ended,
}

impl State {
    fn running(&mut self) -> siltstone::Result<&mut siltstone::Transaction> {
        match self {
            State::Running(transaction) => Ok(transaction),
            State::Ended => Err(ended()),
        }
    }

    fn take(&mut self) -> Option<siltstone::Transaction> {
        match mem::replace(self, State::Ended) {
            State::Running(transaction) => Some(transaction),
            State::Ended => None,
        }
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the transaction was committed or rolled back")
}

impl Transaction {
    /// Of `transaction`.
    pub fn new(liveness: Liveness, transaction: siltstone::Transaction, sync: bool) -> Transaction {
        let state = Arc::new(Held::new(Mutex::new(State::Running(transaction))));
        Transaction { liveness, sync, state }
    }

    /// Uses the transaction while Python is released.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut siltstone::Transaction) -> siltstone::Result<T> + Send,
    ) -> Result<T> {
        self.liveness.check_process()?;
        Ok(py.outside(|| call(lock(&self.state).running()?))??)
    }

    fn walk(
        &self,
        py: Python<'_>,
        partition: &Partition,
        scan: &Scan<'_>,
        part: Part,
    ) -> Result<EntryIterator> {
        let scan = ScanBytes::of(scan, part)?;
        let items = self.with(py, |running| Ok(scan.items(&running.of(&partition.inner))))?;
        Ok(EntryIterator::one_by_one(self.liveness.clone(), items))
    }
}

/// Runs `work` in a transaction of `db`, again after each conflict.
pub fn transact(
    py: Python<'_>,
    db: &siltstone::Db,
    liveness: &Liveness,
    work: &Py<PyAny>,
    options: TransactOptions,
) -> Result<Py<PyAny>> {
    let (result, _) = py.outside(|| {
        db.transact_with(options, |transaction| {
            // The engine's loop owns the transaction and lends it. Python gets it for the time of the call, and
            // an empty one stands in its place: the loop looks at the real one again.
            let own = mem::replace(transaction, db.transaction());
            let lent = Transaction::new(liveness.clone(), own, false);
            let state = lent.state.clone();
            let result = Python::attach(|py| work.call1(py, (lent,)));
            // What Python has kept of the object has ended.
            let Some(own) = lock(&state).take() else {
                result?;
                let message = "the function of transact must not end its transaction";
                return Err(Error::new(ErrorKind::InvalidArgument, message).into());
            };
            *transaction = own;
            result.map_err(Failure::from)
        })
    })??;
    Ok(result)
}

/// Reads.
#[pymethods]
impl Transaction {
    /// Returns the snapshot that the transaction reads.
    fn snapshot(&self, py: Python<'_>) -> Result<Snapshot> {
        let snapshot = self.with(py, |running| Ok(running.snapshot()))?;
        Ok(Snapshot::new(self.liveness.clone(), snapshot))
    }

    /// Returns the value of a key.
    #[pyo3(signature = (partition, key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        partition: &Partition,
        key: Bytes<'py>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let key = key.as_ref();
        let found = self.with(py, |running| running.get(&partition.inner, key))?;
        Ok(found.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    /// Locks a key, and returns its value.
    #[pyo3(signature = (partition, key, default = None))]
    fn get_for_update<'py>(
        &self,
        py: Python<'py>,
        partition: &Partition,
        key: Bytes<'py>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let key = key.as_ref();
        let found = self.with(py, |running| running.get_for_update(&partition.inner, key))?;
        Ok(found.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    /// Sets how long a lock of a key is waited for.
    fn set_lock_timeout(&self, py: Python<'_>, timeout: f64) -> Result<()> {
        let timeout = seconds(timeout)?;
        self.with(py, |running| {
            running.set_lock_timeout(timeout);
            Ok(())
        })
    }

    /// Returns the values of several keys.
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        partition: &Partition,
        keys: Vec<Bytes<'py>>,
    ) -> Result<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        Ok(values(py, self.with(py, |running| running.multi_get(&partition.inner, &keys))?))
    }

    /// Returns whether a key exists.
    fn contains(&self, py: Python<'_>, partition: &Partition, key: Bytes<'_>) -> Result<bool> {
        let key = key.as_ref();
        self.with(py, |running| running.contains(&partition.inner, key))
    }

    /// Walks over keys and values.
    #[pyo3(signature = (partition, start = None, stop = None, *, prefix = None, reverse = false))]
    fn scan(
        &self,
        py: Python<'_>,
        partition: &Partition,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
        prefix: Option<Bytes<'_>>,
        reverse: bool,
    ) -> Result<EntryIterator> {
        self.walk(py, partition, &Scan { start, stop, prefix, reverse }, Part::Entry)
    }

    /// Walks over keys.
    #[pyo3(signature = (partition, start = None, stop = None, *, prefix = None, reverse = false))]
    fn keys(
        &self,
        py: Python<'_>,
        partition: &Partition,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
        prefix: Option<Bytes<'_>>,
        reverse: bool,
    ) -> Result<EntryIterator> {
        self.walk(py, partition, &Scan { start, stop, prefix, reverse }, Part::Key)
    }

    /// Walks over values.
    #[pyo3(signature = (partition, start = None, stop = None, *, prefix = None, reverse = false))]
    fn values(
        &self,
        py: Python<'_>,
        partition: &Partition,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
        prefix: Option<Bytes<'_>>,
        reverse: bool,
    ) -> Result<EntryIterator> {
        self.walk(py, partition, &Scan { start, stop, prefix, reverse }, Part::Value)
    }
}

/// Writes, and the end.
#[pymethods]
impl Transaction {
    /// Sets a key to a value.
    fn put(
        &self,
        py: Python<'_>,
        partition: &Partition,
        key: Bytes<'_>,
        value: Bytes<'_>,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.write(py, |running| running.put(&partition.inner, key, value))
    }

    /// Deletes a key.
    fn delete(&self, py: Python<'_>, partition: &Partition, key: Bytes<'_>) -> Result<()> {
        let key = key.as_ref();
        self.write(py, |running| running.delete(&partition.inner, key))
    }

    /// Merges an operand into the value of a key.
    fn merge(
        &self,
        py: Python<'_>,
        partition: &Partition,
        key: Bytes<'_>,
        operand: Bytes<'_>,
    ) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.write(py, |running| running.merge(&partition.inner, key, operand))
    }

    /// Deletes the keys of a range.
    #[pyo3(signature = (partition, start = None, stop = None))]
    fn delete_range(
        &self,
        py: Python<'_>,
        partition: &Partition,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
    ) -> Result<()> {
        let bounds = range(start.as_ref(), stop.as_ref());
        self.write(py, |running| running.delete_range(&partition.inner, bounds))
    }

    /// Deletes the keys that begin with a prefix.
    fn delete_prefix(
        &self,
        py: Python<'_>,
        partition: &Partition,
        prefix: Bytes<'_>,
    ) -> Result<()> {
        let prefix = prefix.as_ref();
        self.write(py, |running| running.delete_prefix(&partition.inner, prefix))
    }

    /// Deletes all keys.
    fn clear(&self, py: Python<'_>, partition: &Partition) -> Result<()> {
        self.write(py, |running| running.clear(&partition.inner))
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
        self.write(py, |running| running.require(&partition.inner, key, at_most))
    }

    /// Notes a place to which the writes can be rolled back.
    fn set_savepoint(&self, py: Python<'_>) -> Result<()> {
        self.write(py, siltstone::Transaction::set_savepoint)
    }

    /// Undoes the writes since the last savepoint, and removes it.
    fn rollback_to_savepoint(&self, py: Python<'_>) -> Result<()> {
        self.with(py, siltstone::Transaction::rollback_to_savepoint)
    }

    /// Removes the last savepoint.
    fn pop_savepoint(&self, py: Python<'_>) -> Result<()> {
        self.with(py, siltstone::Transaction::pop_savepoint)
    }

    /// Commits the transaction.
    #[pyo3(signature = (*, sync = None))]
    fn commit(&self, py: Python<'_>, sync: Option<bool>) -> Result<Commit> {
        self.liveness.check_process()?;
        let durability = durability(sync.unwrap_or(self.sync));
        let commit = py.outside(|| {
            let own = lock(&self.state).take();
            own.ok_or_else(ended)?.commit(durability)
        })??;
        Ok(commit.into())
    }

    /// Discards the transaction.
    fn rollback(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| drop(lock(&self.state).take()))
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
            return self.rollback(py);
        }
        self.liveness.check_process()?;
        // A transaction that the block has ended itself is done.
        py.outside(|| {
            let own = lock(&self.state).take();
            own.map(|own| own.commit(durability(self.sync))).transpose()
        })??;
        Ok(())
    }
}

impl Transaction {
    fn write(
        &self,
        py: Python<'_>,
        write: impl FnOnce(&mut siltstone::Transaction) + Send,
    ) -> Result<()> {
        self.with(py, |running| {
            write(running);
            Ok(())
        })
    }
}
