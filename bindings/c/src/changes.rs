//! Feeds of changes: the commits of a database in their order.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::time::Duration;

use engine::changes::{CommittedBatch, KeyChange};
use engine::{Epoch, Error, ErrorKind, Result, SeqNo};

use crate::db::Db;
use crate::error::Failure;
use crate::raw::{bytes, free, give, guard, object, object_mut, quietly, set, text};
use crate::secondary::Secondary;
use crate::value::{Commit, Value};

/// A feed: the commits of a database in their order, each once, as far as they are durable.
pub struct Changes(engine::changes::Changes);

/// What a feed returns.
pub struct FeedItem {
    item: engine::changes::FeedItem,
    /// The names of the partitions of the changes, or of the dropped one, each with a zero at its end.
    partitions: Vec<Box<[u8]>>,
}

/// The kind of what a feed returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedItemKind {
    /// A kind that is newer than this header.
    SiltstoneFeedUnknown = 0,
    /// A commit.
    SiltstoneFeedCommit = 1,
    /// Sequence numbers that the log lacks: of ingested tables, or of partitions without a log.
    SiltstoneFeedUnlogged = 2,
    /// A partition was dropped. This is no commit and has no number.
    SiltstoneFeedDropped = 3,
}

/// The kind of a change.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A kind that is newer than this header.
    SiltstoneChangeUnknown = 0,
    /// The key has the value.
    SiltstoneChangePut = 1,
    /// The value is an operand that is merged into that of the key.
    SiltstoneChangeMerge = 2,
    /// The key is deleted.
    SiltstoneChangeDelete = 3,
    /// The keys from `key` on and before `stop` are deleted; `stop` is NULL for a range without an end.
    SiltstoneChangeDeleteRange = 4,
    /// All keys of the partition are deleted.
    SiltstoneChangeClear = 5,
    /// The value of the key is known to be damaged.
    SiltstoneChangeDamaged = 6,
}

/// One change of a commit. Its bytes live as long as the item.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Its kind.
    pub kind: ChangeKind,
    /// The name of the partition, which ends with a zero.
    pub partition: *const c_char,
    /// Its length without that. Programs in other languages can make names that contain zeros.
    pub partition_len: usize,
    /// The key, or the first key of a range; NULL if it has none.
    pub key: *const c_void,
    /// Its length.
    pub key_len: usize,
    /// The key before which a range ends, or NULL.
    pub stop: *const c_void,
    /// Its length.
    pub stop_len: usize,
    /// The value or operand; NULL if there is none, and for a large value: siltstone_feed_item_value reads it.
    pub value: *const c_void,
    /// Its length.
    pub value_len: usize,
    /// Whether the value is a large value.
    pub is_large: bool,
}

/// Makes a feed of a database by its calls for a number and for a position, of one partition and prefix alone if they are
/// given.
///
/// # Safety
/// Contract 1 of `raw`.
unsafe fn feed(
    by_seq: impl FnOnce(SeqNo) -> Result<engine::changes::Changes>,
    by_position: impl FnOnce(engine::Commit) -> Result<engine::changes::Changes>,
    from: *const Commit,
    partition: *const c_char,
    prefix: *const c_void,
    prefix_len: usize,
) -> Result<*mut Changes> {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        let Commit { seq, epoch } = from.as_ref().copied().unwrap_or(Commit { seq: 0, epoch: 0 });
        let seq = SeqNo::new(seq).ok_or_else(|| {
            let message = format!("{seq} is no sequence number");
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        let prefix = bytes(prefix, prefix_len, "prefix")?;
        let name = if partition.is_null() { None } else { Some(text(partition, "partition")?) };
        let mut changes = match epoch {
            0 => by_seq(seq)?,
            epoch => by_position(engine::Commit { seq, epoch: Epoch(epoch) })?,
        };
        if let Some(name) = name {
            changes = changes.in_partition(name);
        }
        if !prefix.is_empty() {
            changes = changes.with_prefix(prefix);
        }
        Ok(give(Changes(changes)))
    }
}

/// Returns a feed of the commits after `from`: of all partitions, or of `partition` if it is not NULL; of all keys, or of
/// those with a prefix. NULL is before the first commit, and a commit with the epoch 0 a number alone, as that of a
/// snapshot. Another one that is not in the history fails with SILTSTONE_SESSION_LOST. docs/changes.md says how long the
/// log keeps commits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_changes_create(
    db: *const Db,
    from: *const Commit,
    partition: *const c_char,
    prefix: *const c_void,
    prefix_len: usize,
    error: *mut *mut Failure,
) -> *mut Changes {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let db = &object(db, "db")?.0;
            feed(|it| db.changes(it), |it| db.changes_from(it), from, partition, prefix, prefix_len)
        })
    }
}

/// Returns a feed as siltstone_changes_create does, of the database that a secondary follows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_changes_create(
    secondary: *const Secondary,
    from: *const Commit,
    partition: *const c_char,
    prefix: *const c_void,
    prefix_len: usize,
    error: *mut *mut Failure,
) -> *mut Changes {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let secondary = &object(secondary, "secondary")?.0;
            feed(
                |it| secondary.changes(it),
                |it| secondary.changes_from(it),
                from,
                partition,
                prefix,
                prefix_len,
            )
        })
    }
}

/// Frees a feed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_changes_free(changes: *mut Changes) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(changes) };
}

/// Returns the position from which another feed goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_changes_position(changes: *const Changes) -> Commit {
    let mut position = Commit { seq: 0, epoch: 0 };
    // SAFETY: contract 1 of `raw`.
    if let Some(changes) = unsafe { changes.as_ref() } {
        quietly(|| position = changes.0.position().into());
    }
    position
}

/// Sets `item` to what comes next, or to NULL if nothing has become durable within `wait_ms`; 0 does not wait. After a
/// failure the next call tries again from the same place. Fails with SILTSTONE_TOO_OLD if the log does not reach back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_changes_next(
    changes: *mut Changes,
    wait_ms: u64,
    item: *mut *mut FeedItem,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let changes = &mut object_mut(changes, "changes")?.0;
            let found = match wait_ms {
                0 => changes.try_next()?,
                wait_ms => changes.wait_next(Duration::from_millis(wait_ms))?,
            };
            set(item, found.map_or(ptr::null_mut(), |found| give(FeedItem::of(found))));
            Ok(true)
        })
    }
}

impl FeedItem {
    fn of(item: engine::changes::FeedItem) -> FeedItem {
        let partitions = match &item {
            engine::changes::FeedItem::Commit(batch) => {
                batch.changes.iter().map(|(partition, _)| with_zero(&partition.name)).collect()
            }
            engine::changes::FeedItem::Dropped(partition) => vec![with_zero(&partition.name)],
            _ => Vec::new(),
        };
        FeedItem { item, partitions }
    }

    /// The changes of a commit.
    fn changes(&self) -> &[(engine::changes::ChangedPartition, KeyChange)] {
        match &self.item {
            engine::changes::FeedItem::Commit(batch) => &batch.changes,
            _ => &[],
        }
    }

    /// The first and the last sequence number.
    fn seqs(&self) -> (u64, u64) {
        match &self.item {
            engine::changes::FeedItem::Commit(CommittedBatch { first_seq, seq, .. })
            | engine::changes::FeedItem::Unlogged { first_seq, seq } => {
                (first_seq.get(), seq.get())
            }
            _ => (0, 0),
        }
    }
}

/// Frees an item, and what it lends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_free(item: *mut FeedItem) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(item) };
}

/// Returns the kind of an item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_kind(item: *const FeedItem) -> FeedItemKind {
    // SAFETY: contract 1 of `raw`.
    match unsafe { item.as_ref() }.map(|item| &item.item) {
        Some(engine::changes::FeedItem::Commit(_)) => FeedItemKind::SiltstoneFeedCommit,
        Some(engine::changes::FeedItem::Unlogged { .. }) => FeedItemKind::SiltstoneFeedUnlogged,
        Some(engine::changes::FeedItem::Dropped(_)) => FeedItemKind::SiltstoneFeedDropped,
        _ => FeedItemKind::SiltstoneFeedUnknown,
    }
}

/// Returns the first sequence number of an item; 0 if it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_first_seq(item: *const FeedItem) -> u64 {
    // SAFETY: contract 1 of `raw`.
    unsafe { item.as_ref() }.map_or(0, |item| item.seqs().0)
}

/// Returns the last sequence number of an item; 0 if it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_seq(item: *const FeedItem) -> u64 {
    // SAFETY: contract 1 of `raw`.
    unsafe { item.as_ref() }.map_or(0, |item| item.seqs().1)
}

/// Returns the name of a dropped partition, and sets `len` to its length without the zero at its end; NULL for other kinds. It
/// lives as long as the item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_partition(
    item: *const FeedItem,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: contract 1 of `raw`.
    let Some(item) = (unsafe { item.as_ref() }) else { return ptr::null() };
    match (&item.item, item.partitions.first()) {
        (engine::changes::FeedItem::Dropped(_), Some(name)) => {
            // SAFETY: contract 1 of `raw`.
            unsafe { set(len, name.len() - 1) };
            name.as_ptr().cast()
        }
        _ => ptr::null(),
    }
}

/// Returns the number of changes of a commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_count(item: *const FeedItem) -> usize {
    // SAFETY: contract 1 of `raw`.
    unsafe { item.as_ref() }.map_or(0, |item| item.changes().len())
}

/// Sets `change` to the change `index` of a commit. Returns false if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_change(
    item: *const FeedItem,
    index: usize,
    change: *mut Change,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    let Some(item) = (unsafe { item.as_ref() }) else { return false };
    let (Some((_, of)), Some(name)) = (item.changes().get(index), item.partitions.get(index))
    else {
        return false;
    };
    // SAFETY: contract 1 of `raw`. The bytes are those of the item, by contract 4.
    unsafe { set(change, described(name, of)) };
    true
}

/// A name for C.
fn with_zero(name: &str) -> Box<[u8]> {
    [name.as_bytes(), b"\0"].concat().into()
}

fn described(partition: &[u8], change: &KeyChange) -> Change {
    let mut made = Change {
        kind: ChangeKind::SiltstoneChangeUnknown,
        partition: partition.as_ptr().cast(),
        partition_len: partition.len() - 1,
        key: ptr::null(),
        key_len: 0,
        stop: ptr::null(),
        stop_len: 0,
        value: ptr::null(),
        value_len: 0,
        is_large: false,
    };
    let (kind, key, value) = match change {
        KeyChange::Put { key, value } => (ChangeKind::SiltstoneChangePut, Some(key), Some(value)),
        KeyChange::PutLarge { key, .. } => {
            made.is_large = true;
            (ChangeKind::SiltstoneChangePut, Some(key), None)
        }
        KeyChange::Merge { key, operand } => {
            (ChangeKind::SiltstoneChangeMerge, Some(key), Some(operand))
        }
        KeyChange::Delete { key } => (ChangeKind::SiltstoneChangeDelete, Some(key), None),
        KeyChange::DeleteRange { start, end } => {
            if let Some(end) = end {
                (made.stop, made.stop_len) = (end.as_ptr().cast(), end.len());
            }
            (ChangeKind::SiltstoneChangeDeleteRange, Some(start), None)
        }
        KeyChange::Clear => (ChangeKind::SiltstoneChangeClear, None, None),
        KeyChange::Damaged { key } => (ChangeKind::SiltstoneChangeDamaged, Some(key), None),
        _ => (ChangeKind::SiltstoneChangeUnknown, None, None),
    };
    made.kind = kind;
    if let Some(key) = key {
        (made.key, made.key_len) = (key.as_ptr().cast(), key.len());
    }
    if let Some(value) = value {
        (made.value, made.value_len) = (value.as_ptr().cast(), value.len());
    }
    made
}

/// Sets `value` to the value or operand of the change `index`; a large value is read now. NULL if there is none, or if a
/// large value is gone: then get the key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_feed_item_value(
    item: *const FeedItem,
    index: usize,
    value: *mut *mut Value,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let found = match object(item, "item")?.changes().get(index) {
                None => {
                    let message = format!("the item has no change {index}");
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                Some((_, KeyChange::Put { value, .. })) => Some(value.clone()),
                Some((_, KeyChange::Merge { operand, .. })) => Some(operand.clone()),
                Some((_, KeyChange::PutLarge { value, .. })) => value.read()?,
                Some(_) => None,
            };
            set(value, found.map_or(ptr::null_mut(), |found| give(Value::from(found))));
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[test]
    fn a_name_with_a_zero_is_whole() -> engine::Result<()> {
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let db = engine::Db::open(scratch.path())?;
        let mut changes = db.changes(SeqNo::new(0).expect("a number"))?;
        let partition = db.partition("a\0b")?;
        partition.put(b"k", b"v")?;
        db.flush()?;
        let put = changes.wait_next(Duration::from_secs(10))?.expect("the put");
        let put = FeedItem::of(put);
        let (named, of) = (&put.partitions[0], &put.changes()[0].1);
        let change = described(named, of);
        drop(partition);
        db.drop_partition("a\0b")?;
        let dropped = FeedItem::of(changes.wait_next(Duration::from_secs(10))?.expect("the drop"));
        let mut len = 0;
        // SAFETY: the item lives, and the length is a variable.
        let name = unsafe { siltstone_feed_item_partition(&raw const dropped, &raw mut len) };
        for (name, len) in [(change.partition, change.partition_len), (name, len)] {
            // SAFETY: the items live.
            let name = unsafe { slice::from_raw_parts(name.cast::<u8>(), len + 1) };
            assert_eq!(name, b"a\0b\0");
        }
        Ok(())
    }
}
