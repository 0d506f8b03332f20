//! [`Changes`]: the commits of a database in their order.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siltstone::changes::{ChangedPartition, CommittedBatch, KeyChange, LoggedValue};
use siltstone::{SeqNo, Slice};

use crate::bytes::Bytes;
use crate::commit::{Commit, seq_no};
use crate::error::{Result, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::liveness::Liveness;
use crate::options::seconds;
use crate::waiting::in_pieces;

/// A feed of changes. As an iterator it ends where no more commits are durable, and may be asked again.
#[pyclass(frozen, module = "siltstone")]
pub struct Changes {
    liveness: Liveness,
    inner: Held<Mutex<siltstone::changes::Changes>>,
}

/// The begin of a feed: a sequence number, or a stored position.
pub enum Begin {
    /// A number alone.
    Seq(SeqNo),
    /// A commit, which must be in the history.
    Position(siltstone::Commit),
}

impl Begin {
    /// Of the argument of a call.
    pub fn of(from: Option<&Bound<'_, PyAny>>) -> Result<Begin> {
        let Some(from) = from else { return Ok(Begin::Seq(SeqNo::ZERO)) };
        if let Ok(position) = from.cast::<Commit>() {
            return Ok(Begin::Position(position.get().token()?));
        }
        Ok(Begin::Seq(seq_no(from.extract()?)?))
    }
}

impl Changes {
    /// Of `changes`, of one partition and prefix alone if they are given.
    pub fn new(
        liveness: Liveness,
        mut changes: siltstone::changes::Changes,
        partition: Option<&str>,
        prefix: Option<Bytes<'_>>,
    ) -> Changes {
        if let Some(partition) = partition {
            changes = changes.in_partition(partition);
        }
        if let Some(prefix) = prefix {
            changes = changes.with_prefix(prefix);
        }
        Changes { liveness, inner: Held::new(Mutex::new(changes)) }
    }
}

#[pymethods]
impl Changes {
    /// The position to continue from later.
    #[getter]
    fn position(&self, py: Python<'_>) -> Result<Commit> {
        self.liveness.check_process()?;
        Ok(py.outside(|| lock(&self.inner).position())?.into())
    }

    /// Returns the next item that is durable now.
    fn try_next(&self, py: Python<'_>) -> Result<Option<FeedItem>> {
        self.liveness.check_process()?;
        Ok(py.outside(|| lock(&self.inner).try_next())??.map(FeedItem::of))
    }

    /// Waits for the next item.
    fn wait_next(&self, py: Python<'_>, timeout: f64) -> Result<Option<FeedItem>> {
        self.liveness.check_process()?;
        let timeout = seconds(timeout)?;
        let item = in_pieces(py, timeout, |piece| lock(&self.inner).wait_next(piece))?;
        Ok(item.map(FeedItem::of))
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> Result<Option<FeedItem>> {
        self.try_next(py)
    }
}

/// What a feed returns.
#[pyclass(frozen, module = "siltstone")]
pub struct FeedItem(siltstone::changes::FeedItem);

impl FeedItem {
    fn of(item: siltstone::changes::FeedItem) -> FeedItem {
        FeedItem(item)
    }
}

#[pymethods]
impl FeedItem {
    /// `commit`, `unlogged` or `dropped`.
    #[getter]
    fn kind(&self) -> &str {
        match self.0 {
            siltstone::changes::FeedItem::Commit(_) => "commit",
            siltstone::changes::FeedItem::Unlogged { .. } => "unlogged",
            siltstone::changes::FeedItem::Dropped(_) => "dropped",
            _ => "unknown",
        }
    }

    /// The first number of the commit, or of what is not logged.
    #[getter]
    fn first_seq(&self) -> Option<u64> {
        match &self.0 {
            siltstone::changes::FeedItem::Commit(CommittedBatch { first_seq, .. })
            | siltstone::changes::FeedItem::Unlogged { first_seq, .. } => Some(first_seq.get()),
            _ => None,
        }
    }

    /// The last number.
    #[getter]
    fn seq(&self) -> Option<u64> {
        match &self.0 {
            siltstone::changes::FeedItem::Commit(CommittedBatch { seq, .. })
            | siltstone::changes::FeedItem::Unlogged { seq, .. } => Some(seq.get()),
            _ => None,
        }
    }

    /// The changes of a commit, in their order.
    #[getter]
    fn changes(&self) -> Vec<Change> {
        match &self.0 {
            siltstone::changes::FeedItem::Commit(batch) => batch
                .changes
                .iter()
                .map(|(partition, change)| Change::of(partition, change))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The name of a dropped partition.
    #[getter]
    fn partition(&self) -> Option<&str> {
        match &self.0 {
            siltstone::changes::FeedItem::Dropped(partition) => Some(&partition.name),
            _ => None,
        }
    }
}

/// One change of a commit.
#[pyclass(frozen, module = "siltstone")]
pub struct Change {
    partition: String,
    kind: &'static str,
    key: Option<Slice>,
    value: Option<Slice>,
    stop: Option<Slice>,
    logged: Option<LoggedValue>,
}

impl Change {
    fn of(partition: &ChangedPartition, change: &KeyChange) -> Change {
        let mut made = Change {
            partition: partition.name.to_string(),
            kind: "unknown",
            key: None,
            value: None,
            stop: None,
            logged: None,
        };
        match change.clone() {
            KeyChange::Put { key, value } => {
                (made.kind, made.key, made.value) = ("put", Some(key), Some(value));
            }
            KeyChange::PutLarge { key, value } => {
                (made.kind, made.key, made.logged) = ("put", Some(key), Some(value));
            }
            KeyChange::Merge { key, operand } => {
                (made.kind, made.key, made.value) = ("merge", Some(key), Some(operand));
            }
            KeyChange::Delete { key } => (made.kind, made.key) = ("delete", Some(key)),
            KeyChange::DeleteRange { start, end } => {
                (made.kind, made.key, made.stop) = ("delete_range", Some(start), end);
            }
            KeyChange::Clear => made.kind = "clear",
            KeyChange::Damaged { key } => (made.kind, made.key) = ("damaged", Some(key)),
            _ => {}
        }
        made
    }
}

fn bytes<'py>(py: Python<'py>, slice: Option<&Slice>) -> Option<Bound<'py, PyBytes>> {
    slice.map(|slice| PyBytes::new(py, slice))
}

#[pymethods]
impl Change {
    /// The name of the partition.
    #[getter]
    fn partition(&self) -> &str {
        &self.partition
    }

    /// `put`, `merge`, `delete`, `delete_range`, `clear` or `damaged`.
    #[getter]
    fn kind(&self) -> &str {
        self.kind
    }

    /// The key, or the first key of a range.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        bytes(py, self.key.as_ref())
    }

    /// The key before which a range ends.
    #[getter]
    fn stop<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        bytes(py, self.stop.as_ref())
    }

    /// Returns the value of a put, or the operand of a merge.
    fn value<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyBytes>>> {
        let Some(logged) = &self.logged else { return Ok(bytes(py, self.value.as_ref())) };
        Ok(bytes(py, py.outside(|| logged.read())??.as_ref()))
    }
}
