//! [`Cursor`]: the core of scanning. It lends keys and values and owns what it pins.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use super::get::unreadable;
use super::range::Bounds;
use super::source::Source;
use crate::error::{Error, Result};
use crate::iter::{MergeIter, VisibleIter};
use crate::partition::ReadView;
use crate::types::{EntryKind, SeqNo, Slice};
use crate::version::TableContext;

/// What a scan reads: a view at a sequence number.
#[derive(Clone)]
pub struct ReadPoint {
    /// Memtables and tables.
    pub view: Arc<ReadView>,
    /// Operations up to this one are seen.
    pub seq: SeqNo,
    /// How tables are opened.
    pub context: Arc<TableContext>,
    /// Names the partition in errors.
    pub partition: Arc<str>,
    /// What must live as long as the scan.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A cursor over the keys of one partition as they were at one moment, within bounds.
///
/// Before the first seek it is invalid. It pins the memtables and tables that it reads until it
/// is dropped. A move that fails leaves it invalid until the next seek, and a seek behind the
/// damage may succeed.
///
/// # Cost
/// A seek searches every memtable, every level-0 table and one table of each deeper level; a move
/// costs a few comparisons. Both read blocks that are not in the cache.
pub struct Cursor {
    entries: VisibleIter<MergeIter<Source>>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    within: bool,
    point: Option<ReadPoint>,
    /// Why the cursor cannot read at all: told by every seek.
    broken: Option<Error>,
}

#[expect(clippy::should_implement_trait, reason = "a lending cursor cannot be an `Iterator`")]
impl Cursor {
    /// A cursor over `point` for keys within `bounds`. If there is no point to read, or a table
    /// cannot be opened, every seek says why.
    pub fn open(bounds: &Bounds, point: Result<ReadPoint>) -> Cursor {
        let (lower, upper) = bounds.clone();
        let sources = point.and_then(|point| {
            let named = |error: Error| error.in_partition(&point.partition);
            let sources = Source::all(&point.view, &point.context).map_err(named)?;
            Ok((sources, point))
        });
        let (sources, point, broken) = match sources {
            Ok((sources, point)) => (sources, Some(point), None),
            Err(error) => (Vec::new(), None, Some(error)),
        };
        let seq = point.as_ref().map_or(SeqNo::ZERO, |point| point.seq);
        let entries = VisibleIter::new(MergeIter::new(sources), seq);
        Cursor { entries, lower, upper, within: false, point, broken }
    }

    /// Whether the cursor is on a key.
    #[inline]
    pub fn valid(&self) -> bool {
        self.within && self.entries.valid()
    }

    /// The key. Lives until the cursor moves.
    ///
    /// # Panics
    /// If the cursor is not valid.
    #[inline]
    pub fn key(&self) -> &[u8] {
        assert!(self.valid(), "the cursor is on no key");
        self.entries.key()
    }

    /// The sequence number of the operation that wrote the value.
    ///
    /// # Panics
    /// If the cursor is not valid.
    pub fn seq(&self) -> SeqNo {
        assert!(self.valid(), "the cursor is on no key");
        self.entries.trailer().seq()
    }

    /// The value. Lives until the cursor moves.
    ///
    /// # Errors
    /// Corruption if the record is known to be damaged.
    ///
    /// # Panics
    /// If the cursor is not valid.
    #[inline]
    pub fn value(&self) -> Result<&[u8]> {
        assert!(self.valid(), "the cursor is on no key");
        match self.entries.trailer().kind() {
            Some(EntryKind::Value) => Ok(self.entries.value()),
            kind => {
                let point = self.point.as_ref().expect("a valid cursor reads something");
                let error = unreadable(kind, None, &point.context, self.entries.key());
                Err(error.in_partition(&point.partition))
            }
        }
    }

    /// The value to keep: shares the block if the value is large.
    pub fn value_slice(&self) -> Result<Slice> {
        let value = self.value()?;
        Ok(match self.entries.on_current() {
            Some(merged) => merged.current().value_slice(),
            None => Slice::copy_from(value),
        })
    }

    /// The key to keep.
    pub fn key_slice(&self) -> Slice {
        Slice::copy_from(self.key())
    }

    /// Moves to the first key within the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.check_readable()?;
        let moved = match &self.lower {
            Bound::Unbounded => self.entries.seek_to_first(),
            Bound::Included(key) => self.entries.seek(key),
            Bound::Excluded(key) => {
                let key = key.clone();
                self.entries.seek(&key).and_then(|()| self.skip_forward(&key))
            }
        };
        self.settle_forward(moved)
    }

    /// Moves to the last key within the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.check_readable()?;
        let moved = match &self.upper {
            Bound::Unbounded => self.entries.seek_to_last(),
            Bound::Excluded(key) => self.entries.seek_before(key),
            Bound::Included(key) => self.entries.seek_before(&successor(key)),
        };
        self.settle_backward(moved)
    }

    /// Moves to the first key at or after `key`, within the bounds.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.check_readable()?;
        let key = key.as_ref();
        if !after_lower(&self.lower, key) {
            return self.seek_to_first();
        }
        let moved = self.entries.seek(key);
        self.settle_forward(moved)
    }

    /// Moves to the last key before `key`, within the bounds.
    pub fn seek_before(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.check_readable()?;
        let key = key.as_ref();
        if !before_upper(&self.upper, key) {
            return self.seek_to_last();
        }
        let moved = self.entries.seek_before(key);
        self.settle_backward(moved)
    }

    /// Moves to the next key; does nothing if the cursor is not valid.
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        if !self.valid() {
            return Ok(());
        }
        let moved = self.entries.next();
        self.settle_forward(moved)
    }

    /// Moves to the previous key; does nothing if the cursor is not valid.
    #[inline]
    pub fn prev(&mut self) -> Result<()> {
        if !self.valid() {
            return Ok(());
        }
        let moved = self.entries.prev();
        self.settle_backward(moved)
    }

    /// Narrows the range to what lies behind `key`.
    pub(super) fn set_lower_excluded(&mut self, key: &[u8]) {
        self.lower = Bound::Excluded(key.to_vec());
    }

    /// Narrows the range to what lies before `key`.
    pub(super) fn set_upper_excluded(&mut self, key: &[u8]) {
        self.upper = Bound::Excluded(key.to_vec());
    }

    fn skip_forward(&mut self, key: &[u8]) -> Result<()> {
        if self.entries.valid() && self.entries.key() == key {
            return self.entries.next();
        }
        Ok(())
    }

    /// The outcome of a move, with the partition's name.
    #[inline]
    fn told(&self, moved: Result<()>) -> Result<()> {
        match (moved, &self.point) {
            (Err(error), Some(point)) => Err(error.in_partition(&point.partition)),
            (moved, _) => moved,
        }
    }

    fn check_readable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    #[inline]
    fn settle_forward(&mut self, moved: Result<()>) -> Result<()> {
        self.within =
            moved.is_ok() && self.entries.valid() && before_upper(&self.upper, self.entries.key());
        self.told(moved)
    }

    #[inline]
    fn settle_backward(&mut self, moved: Result<()>) -> Result<()> {
        self.within =
            moved.is_ok() && self.entries.valid() && after_lower(&self.lower, self.entries.key());
        self.told(moved)
    }
}

/// The key right behind `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

#[inline]
fn before_upper(upper: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(bound) => key <= &bound[..],
        Bound::Excluded(bound) => key < &bound[..],
    }
}

#[inline]
fn after_lower(lower: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(bound) => key >= &bound[..],
        Bound::Excluded(bound) => key > &bound[..],
    }
}
