//! [`EntryIterator`]: a walk over the entries, keys or values of a range.
//!
//! Entries are taken from the engine in small groups, so that Python is released and taken again once for a
//! group and not for each entry. The first group is one entry: who takes only the first pays for no other.

use std::collections::VecDeque;
use std::sync::{Mutex, TryLockError};

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siltstone::{Range, Readable, Slice, TransactionRange};

use crate::bytes::{Bytes, KeyBounds, range};
use crate::error::{Result, invalid_argument, lock};
use crate::held::Held;
use crate::hooks::Outside;
use crate::liveness::Liveness;

/// The most entries, and the most bytes, of a group. Both keep what a stopped loop has read for nothing small.
const GROUP_ENTRIES_MAX: usize = 64;
const GROUP_BYTES_MAX: usize = 64 << 10;

/// The parts of an entry that an iterator returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Key and value, as a tuple.
    Entry,
    /// The key; values are not read.
    Key,
    /// The value.
    Value,
}

/// What an iterator returns for one entry.
pub enum Item {
    /// Key and value.
    Entry(Slice, Slice),
    /// A key or a value.
    One(Slice),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Item::Entry(key, value) => key.len() + value.len(),
            Item::One(bytes) => bytes.len(),
        }
    }

    fn to_python(&self, py: Python<'_>) -> Result<Py<PyAny>> {
        Ok(match self {
            Item::Entry(key, value) => {
                (PyBytes::new(py, key), PyBytes::new(py, value)).into_py_any(py)?
            }
            Item::One(bytes) => PyBytes::new(py, bytes).into_any().unbind(),
        })
    }
}

/// The items of a scan.
pub type Items = Box<dyn Iterator<Item = siltstone::Result<Item>> + Send>;

/// The range of a scan as Python gives it, and its direction.
pub struct Scan<'py> {
    /// The first key.
    pub start: Option<Bytes<'py>>,
    /// The key before which it ends.
    pub stop: Option<Bytes<'py>>,
    /// In the place of both.
    pub prefix: Option<Bytes<'py>>,
    /// From the last key to the first.
    pub reverse: bool,
}

/// A range of entries that has an iterator over its keys alone, which reads no large value.
pub trait IntoKeys: DoubleEndedIterator<Item = siltstone::Result<(Slice, Slice)>> {
    /// The iterator over the keys.
    fn into_keys(
        self,
    ) -> impl DoubleEndedIterator<Item = siltstone::Result<Slice>> + Send + 'static;
}

impl IntoKeys for Range {
    fn into_keys(
        self,
    ) -> impl DoubleEndedIterator<Item = siltstone::Result<Slice>> + Send + 'static {
        self.keys()
    }
}

impl IntoKeys for TransactionRange {
    fn into_keys(
        self,
    ) -> impl DoubleEndedIterator<Item = siltstone::Result<Slice>> + Send + 'static {
        self.keys()
    }
}

/// The bytes of a [`Scan`], which are read while Python is released.
pub struct ScanBytes<'a> {
    bounds: KeyBounds<'a>,
    prefix: Option<&'a [u8]>,
    reverse: bool,
    part: Part,
}

impl<'a> ScanBytes<'a> {
    /// Those of `scan`.
    ///
    /// # Errors
    /// A prefix together with a range: which of both is narrower is not for this crate to guess.
    pub fn of(scan: &'a Scan<'_>, part: Part) -> Result<ScanBytes<'a>> {
        if scan.prefix.is_some() && (scan.start.is_some() || scan.stop.is_some()) {
            return Err(invalid_argument("a scan takes prefix, or start and stop, but not both"));
        }
        Ok(ScanBytes {
            bounds: range(scan.start.as_ref(), scan.stop.as_ref()),
            prefix: scan.prefix.as_ref().map(AsRef::as_ref),
            reverse: scan.reverse,
            part,
        })
    }

    /// The items of the scan in `source`.
    pub fn items<R: Readable>(&self, source: &R) -> Items
    where
        R::Range: IntoKeys + Send + 'static,
    {
        let entries = match self.prefix {
            Some(prefix) => source.prefix(prefix),
            None => source.range(self.bounds),
        };
        match self.part {
            Part::Key => directed(entries.into_keys().map(|key| Ok(Item::One(key?))), self.reverse),
            Part::Value => directed(entries.map(|entry| Ok(Item::One(entry?.1))), self.reverse),
            Part::Entry => directed(
                entries.map(|entry| entry.map(|(key, value)| Item::Entry(key, value))),
                self.reverse,
            ),
        }
    }
}

fn directed(
    items: impl DoubleEndedIterator<Item = siltstone::Result<Item>> + Send + 'static,
    reverse: bool,
) -> Items {
    if reverse { Box::new(items.rev()) } else { Box::new(items) }
}

/// An iterator over a range. It shows the state of the moment at which it was made.
#[pyclass(frozen, generic, module = "siltstone")]
pub struct EntryIterator {
    liveness: Liveness,
    group_max: usize,
    walk: Held<Mutex<Walk>>,
}

struct Walk {
    /// `None` once it has ended: what it held is free then.
    items: Option<Items>,
    group: VecDeque<siltstone::Result<Item>>,
    /// The length of the next group.
    group_len: usize,
}

impl EntryIterator {
    /// Walks over `items`, in groups.
    pub fn new(liveness: Liveness, items: Items) -> EntryIterator {
        EntryIterator::grouped(liveness, items, GROUP_ENTRIES_MAX)
    }

    /// Walks over `items`, one by one: what a transaction passes counts as read.
    pub fn one_by_one(liveness: Liveness, items: Items) -> EntryIterator {
        EntryIterator::grouped(liveness, items, 1)
    }

    fn grouped(liveness: Liveness, items: Items, group_max: usize) -> EntryIterator {
        let walk = Walk { items: Some(items), group: VecDeque::new(), group_len: 1 };
        EntryIterator { liveness, group_max, walk: Held::new(Mutex::new(walk)) }
    }

    /// The next item of the present group, if there is one and no other thread uses the iterator.
    fn ready(&self) -> Option<siltstone::Result<Item>> {
        match self.walk.try_lock() {
            Ok(mut walk) => walk.group.pop_front(),
            Err(TryLockError::Poisoned(walk)) => walk.into_inner().group.pop_front(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Walk {
    /// The next item, and a new group after the present one.
    fn next(&mut self, group_max: usize) -> Option<siltstone::Result<Item>> {
        if self.group.is_empty() {
            self.fill(group_max);
        }
        self.group.pop_front()
    }

    fn fill(&mut self, group_max: usize) {
        let mut bytes = 0;
        while self.group.len() < self.group_len && bytes < GROUP_BYTES_MAX {
            let Some(item) = self.items.as_mut().and_then(Iterator::next) else {
                self.items = None;
                return;
            };
            let is_over = item.is_err();
            bytes += item.as_ref().map_or(0, Item::len);
            self.group.push_back(item);
            if is_over {
                self.items = None;
                return;
            }
        }
        self.group_len = (self.group_len * 2).min(group_max);
    }
}

#[pymethods]
impl EntryIterator {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> Result<Option<Py<PyAny>>> {
        self.liveness.check()?;
        let item = match self.ready() {
            Some(item) => Some(item),
            None => {
                self.liveness.check_process()?;
                py.outside(|| lock(&self.walk).next(self.group_max))?
            }
        };
        item.map(|item| item?.to_python(py)).transpose()
    }

    /// Ends the iterator, and frees what it holds. Later calls of next end the loop.
    fn close(&self, py: Python<'_>) -> Result<()> {
        if self.liveness.is_of_parent() {
            return Ok(());
        }
        py.outside(|| {
            let mut walk = lock(&self.walk);
            walk.items = None;
            walk.group.clear();
        })
    }
}

closed_at_exit!(EntryIterator);
