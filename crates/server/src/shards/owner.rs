//! [`Owner`]: the slots of a primary, and the turns of its writes and of the changes of its slots.
//!
//! Invariants:
//! 1. A write has a turn from the check of its slots to the end of its commit. A change of the slots waits for all
//!    turns, and is durable before it shows.
//! 2. A key is noted as changed after the commit that changed it, within its turn. So who takes the note sees the change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use siltstone::{Db, Durability, Partition};

use super::record::Record;
use super::slots::SlotSet;
use crate::failure::{Failure, Patience};

/// The entry of the partition of notes that has the record.
pub(crate) const ENTRY: &str = "shard";
/// Keys that changed while a mover does not ask for them take at most so many bytes.
const CHANGED_BYTES_MAX: usize = 64 << 20;
/// Bytes of a key besides its own.
const KEY_BYTES: usize = 64;

/// A key, with its partition.
pub(crate) type ChangedKey = (Arc<str>, Bytes);

/// The keys that were changed while a mover copies their slots.
struct Changed {
    attempt: u64,
    slots: SlotSet,
    /// Not a hash table: it would search for its next key from its begin on, and be slower the emptier it is.
    keys: BTreeSet<ChangedKey>,
    bytes: usize,
    /// There were too many, and some are forgotten.
    is_lost: bool,
}

/// The slots of a primary.
pub(crate) struct Owner {
    notes: Partition,
    turn: RwLock<()>,
    /// Changes under the turn alone.
    record: ArcSwap<Record>,
    changed: Mutex<Option<Changed>>,
    /// `changed` is some. It changes under the turn alone.
    is_noting: AtomicBool,
}

impl Owner {
    /// Reads the record of a database. `None` if it is no shard, and `name` is none.
    pub(crate) fn open(notes: Partition, name: Option<&str>) -> siltstone::Result<Option<Owner>> {
        let stored = notes.get(ENTRY)?.map(|bytes| Record::decode(&bytes)).transpose()?;
        let Some(record) = named(stored, name)? else { return Ok(None) };
        Ok(Some(Owner {
            notes,
            turn: RwLock::new(()),
            record: ArcSwap::from_pointee(record),
            changed: Mutex::new(None),
            is_noting: AtomicBool::new(false),
        }))
    }

    pub(crate) fn record(&self) -> Arc<Record> {
        self.record.load_full()
    }

    /// Begins a write. It ends with what is returned.
    pub(crate) fn turn(&self, patience: Patience) -> Result<Turn<'_>, Failure> {
        let guard = match patience {
            Patience::MustNotWait => self.turn.try_read().ok_or(Failure::MayWait)?,
            // Not after a change that waits: the turn of a stalled write may be long.
            Patience::MayWait => self.turn.read(),
        };
        Ok(Turn { owner: self, _guard: guard })
    }

    /// Changes the record, and makes it durable. The mover of an older attempt is refused. Blocks.
    pub(crate) fn change(
        &self,
        attempt: u64,
        change: impl FnOnce(&mut Record) -> Result<(), Failure>,
    ) -> Result<Arc<Record>, Failure> {
        let _turn = self.turn.write();
        self.change_in_turn(attempt, change)
    }

    fn change_in_turn(
        &self,
        attempt: u64,
        change: impl FnOnce(&mut Record) -> Result<(), Failure>,
    ) -> Result<Arc<Record>, Failure> {
        let mut record = Record::clone(&self.record.load());
        newer_than(&record, attempt)?;
        record.attempt = attempt;
        change(&mut record)?;
        if record != **self.record.load() {
            self.notes.put_with(ENTRY, record.encode(), Durability::Sync)?;
            self.record.store(Arc::new(record));
        }
        Ok(self.record())
    }

    /// Changes the record, and notes from now on which keys of `slots` change. Blocks.
    pub(crate) fn note_changes(
        &self,
        attempt: u64,
        slots: &SlotSet,
        change: impl FnOnce(&mut Record) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let _turn = self.turn.write();
        self.change_in_turn(attempt, change)?;
        let keys = BTreeSet::new();
        let changed = Changed { attempt, slots: slots.clone(), keys, bytes: 0, is_lost: false };
        *self.changed.lock() = Some(changed);
        self.is_noting.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes a key that was changed; `None` if there is none.
    pub(crate) fn take_changed(&self, attempt: u64) -> Result<Option<ChangedKey>, Failure> {
        let mut changed = self.changed.lock();
        let changed = changed.as_mut().filter(|it| it.attempt == attempt).ok_or_else(not_noted)?;
        if changed.is_lost {
            let text = "LIMIT the keys that changed while their slots are copied have more than 64 MiB: move fewer \
                        slots, or with fewer writes";
            return Err(Failure::fixed(text));
        }
        let Some(key) = changed.keys.pop_first() else { return Ok(None) };
        changed.bytes -= key.1.len() + KEY_BYTES;
        Ok(Some(key))
    }

    /// Keys that were changed and not taken.
    pub(crate) fn changed_count(&self) -> usize {
        self.changed.lock().as_ref().map_or(0, |changed| changed.keys.len())
    }

    /// The slots whose changes are noted for this attempt.
    pub(crate) fn noted(&self, attempt: u64) -> Result<SlotSet, Failure> {
        let changed = self.changed.lock();
        let slots = changed.as_ref().filter(|it| it.attempt == attempt).map(|it| it.slots.clone());
        slots.ok_or_else(not_noted)
    }

    /// Ends the notes of changes.
    pub(crate) fn forget_changes(&self) {
        let _turn = self.turn.write();
        self.is_noting.store(false, Ordering::Release);
        *self.changed.lock() = None;
    }
}

/// The primary was taken over meanwhile, or it never heard of this attempt.
fn not_noted() -> Failure {
    Failure::error("the changes of this attempt are not known here: try it again")
}

/// Refuses a mover that was replaced.
pub(crate) fn newer_than(record: &Record, attempt: u64) -> Result<(), Failure> {
    if attempt >= record.attempt {
        return Ok(());
    }
    let newer = record.attempt;
    let text = format!("another mover has taken over: attempt {attempt}, and there is {newer}");
    Err(Failure::error(text))
}

/// The record of a shard: the stored one, or an empty one for `name`.
pub(crate) fn named(
    stored: Option<Record>,
    name: Option<&str>,
) -> siltstone::Result<Option<Record>> {
    match (stored, name) {
        (Some(record), Some(name)) if record.name != name => {
            let message = format!("this database is shard {}, and not {name}", record.name);
            Err(siltstone::Error::new(siltstone::ErrorKind::InvalidArgument, message))
        }
        (None, Some(name)) => Ok(Some(Record::new(name))),
        (stored, _) => Ok(stored),
    }
}

/// The time in which a write may rely on the slots.
pub(crate) struct Turn<'a> {
    owner: &'a Owner,
    _guard: RwLockReadGuard<'a, ()>,
}

impl Turn<'_> {
    pub(crate) fn record(&self) -> Arc<Record> {
        self.owner.record()
    }

    /// Notes keys that were changed, after their commit, whatever its outcome was.
    pub(crate) fn changed<'k>(&self, partition: &Arc<str>, keys: impl Iterator<Item = &'k Bytes>) {
        if !self.owner.is_noting.load(Ordering::Acquire) {
            return;
        }
        let mut changed = self.owner.changed.lock();
        let Some(changed) = changed.as_mut() else { return };
        for key in keys.filter(|key| changed.slots.has(key)) {
            // A copy: a part of a request would keep all of it.
            let new = (partition.clone(), Bytes::copy_from_slice(key));
            if !changed.is_lost && changed.keys.insert(new) {
                changed.bytes += key.len() + KEY_BYTES;
            }
        }
        if changed.bytes > CHANGED_BYTES_MAX {
            changed.is_lost = true;
            changed.keys = BTreeSet::new();
            changed.bytes = 0;
        }
    }
}

/// Removes entries of `slots` from a partition, from the key after `after` on. Returns the key at which it goes on, or
/// `None` at the end. The caller has a turn, in which no one reads these slots.
pub(crate) fn remove_page(
    db: &Db,
    partition: &Partition,
    slots: &SlotSet,
    after: Option<&[u8]>,
) -> siltstone::Result<Option<Vec<u8>>> {
    let mut batch = db.batch();
    let mut cursor = siltstone::Readable::cursor(partition);
    match after {
        Some(after) => cursor.seek_after(after)?,
        None => cursor.seek_to_first()?,
    }
    let mut bytes = 0;
    let mut last = None;
    for _ in 0..PAGE_ENTRIES {
        if !cursor.valid() || bytes > PAGE_BYTES {
            break;
        }
        if slots.has(cursor.key()) {
            bytes += cursor.key().len();
            batch.of(partition).delete(cursor.key());
        }
        last = Some(cursor.key().to_vec());
        cursor.next()?;
    }
    let next = if cursor.valid() { last } else { None };
    if !batch.is_empty() {
        batch.commit(Durability::Os)?;
    }
    Ok(next)
}

/// Entries that one page of a copy or a removal looks at, and the bytes of those that it has, about.
pub(crate) const PAGE_ENTRIES: usize = 10_000;
pub(crate) const PAGE_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use siltstone::fs::MemFs;

    use super::*;

    #[test]
    fn a_change_of_slots_waits_for_writes_and_is_durable_before_it_shows() {
        let db = Db::builder("/db").fs(Arc::new(MemFs::new())).open().unwrap();
        let notes = db.partition("scid").unwrap();
        let owner = Owner::open(notes.clone(), Some("a")).unwrap().unwrap();
        let slots = SlotSet::parse("0-9").unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let turn = owner.turn(Patience::MayWait).unwrap();
            scope.spawn(|| {
                let changed = owner.change(1, |record| {
                    record.owned = slots.clone();
                    Ok(())
                });
                is_done.store(true, Ordering::SeqCst);
                assert_eq!(changed.unwrap().owned, slots);
            });
            for _ in 0..300 {
                std::thread::yield_now();
            }
            assert!(!is_done.load(Ordering::SeqCst) && turn.record().owned.is_empty());
            // A write that may not wait goes to a thread that may.
            drop(turn);
        });
        let stored = Record::decode(&notes.get(ENTRY).unwrap().unwrap()).unwrap();
        assert_eq!(stored, *owner.record());
        let refused = owner.change(0, |_| Ok(())).unwrap_err();
        assert!(format!("{refused:?}").contains("another mover has taken over"), "{refused:?}");
    }

    #[test]
    fn changed_keys_are_taken_once_and_bounded() {
        let db = Db::builder("/db").fs(Arc::new(MemFs::new())).open().unwrap();
        let owner = Owner::open(db.partition("scid").unwrap(), Some("a")).unwrap().unwrap();
        let slots = SlotSet::parse("12182").unwrap();
        let partition: Arc<str> = Arc::from("p");
        let keys = ["foo", "bar", "{foo}2", "foo"].map(Bytes::from);
        owner.turn(Patience::MayWait).unwrap().changed(&partition, keys.iter());
        assert!(owner.take_changed(1).is_err() && owner.noted(1).is_err());
        owner.note_changes(1, &slots, |_| Ok(())).unwrap();
        owner.turn(Patience::MayWait).unwrap().changed(&partition, keys.iter());
        assert_eq!((owner.changed_count(), owner.noted(1).unwrap()), (2, slots.clone()));
        let mut taken = Vec::new();
        while let Some((_, key)) = owner.take_changed(1).unwrap() {
            taken.push(key);
        }
        taken.sort_unstable();
        assert_eq!(taken, ["foo", "{foo}2"]);
        // Of an attempt that this primary does not know.
        assert!(owner.take_changed(2).is_err());
        let many: Vec<Bytes> = (0..1100).map(|at| format!("{{foo}}{at:065000}").into()).collect();
        owner.turn(Patience::MayWait).unwrap().changed(&partition, many.iter());
        let lost = owner.take_changed(1).unwrap_err();
        assert!(format!("{lost:?}").contains("more than 64 MiB"), "{lost:?}");
        owner.forget_changes();
        assert_eq!(owner.changed_count(), 0);
    }
}
