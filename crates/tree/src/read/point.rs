//! [`ReadPoint`]: what a scan reads, and its sequence number; and the reads of single keys there.

use std::sync::Arc;
use std::time::Duration;

use super::expired::{AliveAt, RemainingTime, value_of_entry};
use super::fold::{fold, fold_checked};
use super::get::{GetContext, Located, locate, unreadable};
use crate::error::Result;
use crate::hooks::{AttachedOperator, AttachedStore, PartitionHooks};
use crate::partition::ReadView;
use crate::sstable::BlockCheck;
use crate::types::{EntryKind, KeyForm, SeqNo, Trailer};
use crate::version::TableContext;

/// A partition of a database that stays open as long as this lives: a handle, a snapshot, or a view
/// of a follower. A cursor counts one reference to it in addition to its view, because threads that
/// read at once change the same counts.
pub trait OpenPartition: Send + Sync {
    /// The means to open its tables.
    fn tables(&self) -> &Arc<TableContext>;

    /// Its name.
    fn partition(&self) -> &Arc<str>;
}

/// The subject of a scan: a view at a sequence number.
#[derive(Clone)]
pub struct ReadPoint {
    /// Memtables and tables.
    pub view: Arc<ReadView>,
    /// Operations up to this one are seen.
    pub seq: SeqNo,
    /// Opens tables, and names the partition in errors.
    pub open: Arc<dyn OpenPartition>,
    /// The form of stored keys.
    pub key_form: KeyForm,
    /// The store of large values.
    pub store: Option<Arc<AttachedStore>>,
    /// The merge operator.
    pub operator: Option<Arc<AttachedOperator>>,
    /// The entries that have not expired; `None` if all are seen.
    pub alive: Option<AliveAt>,
    /// Called with each block of a table before anything of the block is returned.
    pub check: Option<Arc<dyn BlockCheck>>,
}

impl ReadPoint {
    /// Returns the name of the partition.
    pub fn partition(&self) -> &Arc<str> {
        self.open.partition()
    }

    /// Returns the form of its stored keys.
    pub fn key_form(&self) -> KeyForm {
        self.key_form
    }

    /// Returns the same point as of the operation `seq`, with the entries that have expired; `None` if it does not see
    /// that operation. Versions that newer ones have replaced may be gone: then their keys have older versions or none.
    #[must_use]
    pub fn as_of(self, seq: SeqNo) -> Option<ReadPoint> {
        (seq <= self.seq).then(|| ReadPoint { seq, alive: None, ..self })
    }

    pub(super) fn tables(&self) -> &Arc<TableContext> {
        self.open.tables()
    }

    /// Returns the value store of the partition, if it has one.
    pub fn value_store(&self) -> Option<&Arc<AttachedStore>> {
        self.store.as_ref()
    }

    /// Returns the place of the value of `key`. What lies in the value store is not touched.
    ///
    /// # Errors
    /// Those of a get.
    pub fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        self.tables().check_process()?;
        let located = self.key_form.with_stored(key, |key| locate(&self.context(), key));
        located.map_err(|error| error.in_partition(self.partition()))
    }

    /// As [`ReadPoint::locate`], with the point, which keeps the value in its place.
    ///
    /// # Errors
    /// Those of a get.
    pub fn locate_kept(self, key: &[u8]) -> Result<Option<(Located, ReadPoint)>> {
        Ok(self.locate(key)?.map(|located| (located, self)))
    }

    fn context(&self) -> GetContext<'_> {
        GetContext {
            view: &self.view,
            tables: self.tables(),
            store: self.store.as_ref(),
            operator: self.operator.as_ref(),
            seq: self.seq,
            alive: self.alive.as_ref().map(|alive| alive.of(self.key_form)),
        }
    }

    /// Returns `true` if the entry of `key`, a stored key, is the newest that is seen, and has expired.
    #[inline(never)]
    pub(super) fn is_expired(&self, key: &[u8], trailer: Trailer, value: &[u8]) -> bool {
        let Some(alive) = &self.alive else { return false };
        if trailer.kind() == Some(EntryKind::Operand) && alive.reads_values() {
            // The read of the value returns the error.
            return matches!(self.fold(key), Ok(None));
        }
        !alive.of(self.key_form).has(key, value_of_entry(trailer.kind(), value))
    }

    /// The value of `key`, a stored key whose newest version is an operand; `None` if it has expired.
    pub(super) fn fold(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.tables().check_process()?;
        let context = self.context();
        let folded = match &self.check {
            None => fold(&context, key),
            Some(check) => fold_checked(&context, self.tables(), key, check),
        };
        folded.map_err(|error| error.in_partition(self.partition()))
    }

    /// Returns the time after which the entry of `key` is not there any more, at `unix_time`, the time of this point;
    /// `None` if it is not there. `hooks` are those of the partition.
    ///
    /// # Errors
    /// Those of a get.
    pub fn remaining_time(
        &self,
        key: &[u8],
        hooks: &PartitionHooks,
        unix_time: Duration,
    ) -> Result<Option<RemainingTime>> {
        let Some(located) = self.locate(key)? else { return Ok(None) };
        let value = match &located {
            Located::Here(value) => Some(&value[..]),
            Located::Apart(_) => None,
        };
        Ok(Some(RemainingTime::of(hooks, key, value, unix_time)))
    }

    /// Returns the same point with a check: `check` sees each block of a table before anything of
    /// the block is returned.
    #[must_use]
    pub fn checked_by(self, check: Arc<dyn BlockCheck>) -> ReadPoint {
        ReadPoint { check: Some(check), ..self }
    }

    /// Reads the value of `key`, a stored key, from the value store.
    pub(super) fn read_handle(&self, key: &[u8], handle: &[u8]) -> Result<Vec<u8>> {
        self.tables().check_process()?;
        let Some(store) = &self.store else {
            return Err(unreadable(Some(EntryKind::Handle), None, self.tables(), key)
                .in_partition(self.partition()));
        };
        store.read(handle).map_err(|error| error.at_key(key).in_partition(self.partition()))
    }
}
