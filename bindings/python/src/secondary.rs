//! [`Secondary`]: a reader that follows the database of another process.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyString};
use siltstone::large_values::ReadBlobs;
use siltstone::secondary::{Follow, Level, OnUnmet, ReadOptions, Target};
use siltstone::{Error, ErrorKind, Options, Readable, VerifyOptions};

use crate::bytes::Bytes;
use crate::changes::{Begin, Changes};
use crate::commit::Commit;
use crate::cursor::Cursor;
use crate::db::Db;
use crate::error::{Result, invalid_argument, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::iterator::{EntryIterator, Part, Scan, ScanBytes};
use crate::liveness::Liveness;
use crate::options::{engine_option, merge_operators, open_options, resources, seconds};
use crate::partition::values;
use crate::report::verify_report;
use crate::stream::BlobSource;
use crate::value::Value;
use crate::waiting::in_pieces;

/// A read-only instance of a database that another process writes.
#[pyclass(frozen, module = "siltstone")]
pub struct Secondary {
    path: PathBuf,
    liveness: Liveness,
    /// `None` once it is closed.
    inner: Held<Mutex<Option<siltstone::secondary::Secondary>>>,
}

/// Opens a secondary of the database in a folder.
#[pyfunction]
#[pyo3(signature = (path, *, lease = true, tables_only = false, memtable_bytes_max = None, **options))]
pub fn open_secondary(
    py: Python<'_>,
    path: PathBuf,
    lease: bool,
    tables_only: bool,
    memtable_bytes_max: Option<u64>,
    options: Option<&Bound<'_, PyDict>>,
) -> Result<Secondary> {
    let mut engine = Options::new();
    let mut builder = siltstone::Db::secondary_builder(&path);
    for (name, value) in options.into_iter().flatten() {
        match name.extract::<String>()?.as_str() {
            "merge_operators" => {
                for operator in merge_operators(&value)? {
                    builder = builder.merge_operator(operator);
                }
            }
            "resources" => builder = builder.resources(&resources(&value)?),
            name => engine = engine_option(engine, name, &value)?,
        }
    }
    builder = builder.options(engine).lease(lease).tables_only(tables_only);
    if let Some(bytes) = memtable_bytes_max {
        builder = builder.memtable_bytes_max(bytes);
    }
    let inner = py.outside(|| builder.open())??;
    Ok(Secondary { path, liveness: Liveness::new(), inner: Held::new(Mutex::new(Some(inner))) })
}

/// The level of a read.
fn level(level: &Bound<'_, PyAny>) -> Result<Level> {
    if let Ok(token) = level.cast::<Commit>() {
        return Ok(Level::Session(token.get().token()?));
    }
    if let Ok(bounds) = level.cast::<PyDict>() {
        let mut operations = None;
        let mut age = None;
        for (name, value) in bounds {
            match name.extract::<String>()?.as_str() {
                "operations" => operations = value.extract()?,
                "age" => age = value.extract::<Option<f64>>()?.map(seconds).transpose()?,
                name => return Err(invalid_argument(format!("a level has no bound {name:?}"))),
            }
        }
        return Ok(Level::Bounded { operations, age });
    }
    let name = level.cast::<PyString>().map_err(PyErr::from)?.to_string();
    match name.as_str() {
        "strong" => Ok(Level::Strong),
        "prefix" => Ok(Level::Prefix),
        "eventual" => Ok(Level::Eventual),
        _ => Err(invalid_argument(format!("there is no level {name:?}"))),
    }
}

/// How far a sync goes.
fn target(to: &Bound<'_, PyAny>) -> Result<Target> {
    if let Ok(token) = to.cast::<Commit>() {
        return Ok(Target::Token(token.get().token()?));
    }
    match to.extract::<String>()?.as_str() {
        "latest" => Ok(Target::Latest),
        "durable" => Ok(Target::Durable),
        name => Err(invalid_argument(format!("there is no target {name:?}"))),
    }
}

fn read_options(of: &Bound<'_, PyAny>, wait: f64, weaker: bool) -> Result<ReadOptions> {
    let on_unmet = if weaker { OnUnmet::Weaker } else { OnUnmet::Error };
    Ok(ReadOptions::new(level(of)?).wait(seconds(wait)?).on_unmet(on_unmet))
}

impl Secondary {
    fn inner(&self, py: Python<'_>) -> Result<siltstone::secondary::Secondary> {
        self.liveness.check_process()?;
        Ok(py.outside(|| lock(&self.inner).clone().ok_or_else(Error::closed))??)
    }
}

#[pymethods]
impl Secondary {
    /// Opens a partition.
    fn partition(&self, py: Python<'_>, name: &str) -> Result<SecondaryPartition> {
        let inner = self.inner(py)?;
        let inner = py.outside(|| inner.partition(name))??;
        Ok(SecondaryPartition { liveness: self.liveness.clone(), inner: Held::new(inner) })
    }

    /// Returns the names of all partitions.
    fn partition_names(&self, py: Python<'_>) -> Result<Vec<String>> {
        let inner = self.inner(py)?;
        py.outside(|| inner.partition_names())
    }

    /// Catches up.
    #[pyo3(signature = (to = None))]
    fn sync(&self, py: Python<'_>, to: Option<Bound<'_, PyAny>>) -> Result<Commit> {
        let target = to.as_ref().map_or(Ok(Target::Latest), target)?;
        let inner = self.inner(py)?;
        Ok(py.outside(|| inner.sync(target))??.into())
    }

    /// Waits until a commit is visible.
    fn wait_for(&self, py: Python<'_>, token: &Commit, timeout: f64) -> Result<()> {
        let token = token.token()?;
        let timeout = seconds(timeout)?;
        let inner = self.inner(py)?;
        let waited = in_pieces(py, timeout, |piece| match inner.wait_for(token, piece) {
            Err(error) if error.kind() == ErrorKind::Behind => Ok(None),
            outcome => outcome.map(Some),
        })?;
        match waited {
            Some(()) => Ok(()),
            // Its error says what is missing.
            None => Ok(py.outside(|| inner.wait_for(token, Duration::ZERO))??),
        }
    }

    /// Whether a process of this machine writes the database.
    fn has_live_primary(&self, py: Python<'_>) -> Result<bool> {
        let inner = self.inner(py)?;
        py.outside(|| inner.has_live_primary())
    }

    /// The memory of its memtables.
    fn memtable_bytes(&self, py: Python<'_>) -> Result<u64> {
        let inner = self.inner(py)?;
        py.outside(|| inner.memtable_bytes())
    }

    /// Reads every file and reports all damage.
    #[pyo3(signature = (*, bytes_per_second = 0))]
    fn verify<'py>(&self, py: Python<'py>, bytes_per_second: u64) -> Result<Bound<'py, PyDict>> {
        let inner = self.inner(py)?;
        let report =
            py.outside(|| inner.verify(VerifyOptions::new().bytes_per_second(bytes_per_second)))??;
        verify_report(py, &report)
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
        let inner = self.inner(py)?;
        let changes = py.outside(|| match begin {
            Begin::Seq(seq) => inner.changes(seq),
            Begin::Position(position) => inner.changes_from(position),
        })??;
        Ok(Changes::new(self.liveness.clone(), changes, partition, prefix))
    }

    /// Takes the database over, and fences its writer.
    #[pyo3(signature = (**options))]
    fn promote(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> Result<Db> {
        let inner = self.inner(py)?;
        let mut builder = siltstone::Db::promotion(&inner);
        if let Some(options) = options {
            builder = open_options(builder, options)?;
        }
        Db::open(py, builder, self.path.clone())
    }

    /// Ends the secondary. Files stay as long as partitions and readings of it are referenced.
    fn close(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| {
            self.liveness.close();
            drop(lock(&self.inner).take());
        })
    }
}

closed_at_exit!(Secondary);

/// A partition of a secondary.
#[pyclass(frozen, module = "siltstone")]
pub struct SecondaryPartition {
    liveness: Liveness,
    inner: Held<siltstone::secondary::SecondaryPartition>,
}

#[pymethods]
impl SecondaryPartition {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the value of a key.
    #[pyo3(signature = (key, default = None, *, level = None, wait = 1.0, weaker = false))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Bytes<'py>,
        default: Option<Bound<'py, PyAny>>,
        level: Option<Bound<'py, PyAny>>,
        wait: f64,
        weaker: bool,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let options = options_or_eventual(level.as_ref(), wait, weaker)?;
        let key = key.as_ref();
        self.liveness.check_process()?;
        let found = py.outside(|| self.inner.get_with(key, &options))??;
        Ok(found.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    /// Takes the present state, or one that is as new as the level asks for.
    #[pyo3(signature = (level = None, *, wait = 1.0, weaker = false))]
    fn read(
        &self,
        py: Python<'_>,
        level: Option<Bound<'_, PyAny>>,
        wait: f64,
        weaker: bool,
    ) -> Result<Reading> {
        let options = options_or_eventual(level.as_ref(), wait, weaker)?;
        self.liveness.check_process()?;
        let inner = py.outside(|| self.inner.read(&options))??;
        Ok(Reading { liveness: self.liveness.clone(), inner: Held::new(inner) })
    }

    /// Catches this partition up.
    #[pyo3(signature = (to = None))]
    fn sync(&self, py: Python<'_>, to: Option<Bound<'_, PyAny>>) -> Result<Commit> {
        let target = to.as_ref().map_or(Ok(Target::Latest), target)?;
        self.liveness.check_process()?;
        Ok(py.outside(|| self.inner.sync(target))??.into())
    }

    /// Sets when the secondary catches up by itself.
    fn follow(&self, py: Python<'_>, follow: Bound<'_, PyAny>) -> Result<()> {
        let follow = match follow.extract::<f64>() {
            Ok(interval) => Follow::Every(seconds(interval)?),
            Err(_) => match follow.extract::<String>()?.as_str() {
                "on_demand" => Follow::OnDemand,
                "eager" => Follow::Eager,
                name => return Err(invalid_argument(format!("there is no follow {name:?}"))),
            },
        };
        self.liveness.check_process()?;
        Ok(py.outside(|| self.inner.follow(follow))??)
    }

    /// Waits for a state that is newer than one that was seen.
    fn wait_for_news(&self, py: Python<'_>, seen: &Commit, timeout: f64) -> Result<Option<Commit>> {
        let seen = seen.token()?;
        let timeout = seconds(timeout)?;
        self.liveness.check_process()?;
        let news = in_pieces(py, timeout, |piece| self.inner.wait_for_news(seen, piece))?;
        Ok(news.map(Commit::from))
    }

    /// Returns how far the partition is from its primary.
    fn lag<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        self.liveness.check_process()?;
        let lag = py.outside(|| self.inner.lag())?;
        let dict = PyDict::new(py);
        dict.set_item("operations", lag.operations)?;
        dict.set_item("bytes", lag.bytes)?;
        dict.set_item("age", lag.age.as_ref().map(Duration::as_secs_f64))?;
        Ok(dict)
    }
}

fn options_or_eventual(
    level: Option<&Bound<'_, PyAny>>,
    wait: f64,
    weaker: bool,
) -> Result<ReadOptions> {
    match level {
        Some(level) => read_options(level, wait, weaker),
        None => Ok(ReadOptions::new(Level::Eventual)),
    }
}

/// One state of a partition of a secondary.
#[pyclass(frozen, module = "siltstone")]
pub struct Reading {
    liveness: Liveness,
    inner: Held<siltstone::secondary::Reading>,
}

impl Reading {
    fn walk(&self, py: Python<'_>, scan: &Scan<'_>, part: Part) -> Result<EntryIterator> {
        let scan = ScanBytes::of(scan, part)?;
        self.liveness.check_process()?;
        let items = py.outside(|| scan.items(&*self.inner))?;
        Ok(EntryIterator::new(self.liveness.clone(), items))
    }
}

#[pymethods]
impl Reading {
    /// The commit that it shows.
    #[getter]
    fn as_of(&self) -> Commit {
        self.inner.as_of().into()
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
        self.liveness.check_process()?;
        let found = py.outside(|| self.inner.get(key))??;
        Ok(found.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    /// Returns the value of a key as a memoryview.
    fn get_ref<'py>(
        &self,
        py: Python<'py>,
        key: Bytes<'py>,
    ) -> Result<Option<Bound<'py, PyMemoryView>>> {
        let key = key.as_ref();
        self.liveness.check_process()?;
        let found = py.outside(|| self.inner.get_ref(key))??;
        found.map(|value| Value::view(py, value)).transpose()
    }

    /// Returns the values of several keys.
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bytes<'py>>,
    ) -> Result<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.liveness.check_process()?;
        Ok(values(py, py.outside(|| self.inner.multi_get(&keys))??))
    }

    /// Returns whether a key exists.
    fn contains(&self, py: Python<'_>, key: Bytes<'_>) -> Result<bool> {
        let key = key.as_ref();
        self.liveness.check_process()?;
        Ok(py.outside(|| Readable::contains(&*self.inner, key))??)
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

    /// Opens a value as a file.
    fn open_value(&self, py: Python<'_>, key: Bytes<'_>) -> Result<Option<Py<PyAny>>> {
        let key = key.as_ref();
        self.liveness.check_process()?;
        let found = py.outside(|| self.inner.open_blob(key))??;
        let blob = found.map(|reader| BlobSource::new(self.liveness.clone(), reader));
        blob.map(|blob| BlobSource::into_file(py, blob)).transpose()
    }
}
