//! [`Snapshot`]: the database at one moment.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use siltstone::large_values::ReadBlobs;
use siltstone::{Error, ErrorKind};

use crate::bytes::Bytes;
use crate::cursor::Cursor;
use crate::error::{Result, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::iterator::{EntryIterator, Part, Scan, ScanBytes};
use crate::liveness::Liveness;
use crate::partition::{Partition, values};
use crate::stream::BlobSource;
use crate::value::Value;

/// A snapshot of the whole database.
#[pyclass(frozen, module = "siltstone")]
pub struct Snapshot {
    liveness: Liveness,
    seq: u64,
    /// `None` once it is closed.
    inner: Held<Mutex<Option<siltstone::Snapshot>>>,
}

impl Snapshot {
    /// Of `snapshot`.
    pub fn new(liveness: Liveness, snapshot: siltstone::Snapshot) -> Snapshot {
        Snapshot {
            liveness,
            seq: snapshot.seq().get(),
            inner: Held::new(Mutex::new(Some(snapshot))),
        }
    }

    /// Reads from the snapshot while Python is released.
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&siltstone::Snapshot) -> siltstone::Result<T> + Send,
    ) -> Result<T> {
        self.liveness.check_process()?;
        Ok(py.outside(|| {
            // A clone, so that readers do not wait for each other.
            let snapshot = lock(&self.inner).clone();
            read(&snapshot.ok_or_else(|| Error::new(ErrorKind::Closed, "the snapshot is closed"))?)
        })??)
    }

    fn walk(
        &self,
        py: Python<'_>,
        partition: &Partition,
        scan: &Scan<'_>,
        part: Part,
    ) -> Result<EntryIterator> {
        let scan = ScanBytes::of(scan, part)?;
        let items = self.read(py, |snapshot| Ok(scan.items(&snapshot.of(&partition.inner))))?;
        Ok(EntryIterator::new(self.liveness.clone(), items))
    }
}

#[pymethods]
impl Snapshot {
    /// The sequence number of the last operation that it shows.
    #[getter]
    fn seq(&self) -> u64 {
        self.seq
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
        let found = self.read(py, |snapshot| snapshot.get(&partition.inner, key))?;
        Ok(found.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    /// Returns the value of a key as a memoryview.
    fn get_ref<'py>(
        &self,
        py: Python<'py>,
        partition: &Partition,
        key: Bytes<'py>,
    ) -> Result<Option<Bound<'py, PyMemoryView>>> {
        let key = key.as_ref();
        let found = self.read(py, |snapshot| snapshot.of(&partition.inner).get_ref(key))?;
        found.map(|value| Value::view(py, value)).transpose()
    }

    /// Returns the values of several keys.
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        partition: &Partition,
        keys: Vec<Bytes<'py>>,
    ) -> Result<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        Ok(values(py, self.read(py, |snapshot| snapshot.multi_get(&partition.inner, &keys))?))
    }

    /// Returns whether a key exists.
    fn contains(&self, py: Python<'_>, partition: &Partition, key: Bytes<'_>) -> Result<bool> {
        let key = key.as_ref();
        self.read(py, |snapshot| snapshot.contains(&partition.inner, key))
    }

    /// Returns a cursor over a range.
    #[pyo3(signature = (partition, start = None, stop = None))]
    fn cursor(
        &self,
        py: Python<'_>,
        partition: &Partition,
        start: Option<Bytes<'_>>,
        stop: Option<Bytes<'_>>,
    ) -> Result<Cursor> {
        let snapshot = self.read(py, |snapshot| Ok(snapshot.clone()))?;
        let of = snapshot.of(&partition.inner);
        Cursor::over(py, &self.liveness, &of, start.as_ref(), stop.as_ref())
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

    /// Opens a value as a file.
    fn open_value(
        &self,
        py: Python<'_>,
        partition: &Partition,
        key: Bytes<'_>,
    ) -> Result<Option<Py<PyAny>>> {
        let key = key.as_ref();
        let found = self.read(py, |snapshot| snapshot.of(&partition.inner).open_blob(key))?;
        let blob = found.map(|reader| BlobSource::new(self.liveness.clone(), reader));
        blob.map(|blob| BlobSource::into_file(py, blob)).transpose()
    }

    /// Ends the snapshot: compactions may remove what only it shows.
    fn close(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| drop(lock(&self.inner).take()))
    }
}

closed_at_exit!(Snapshot);
