//! [`ReadPoint`]: what a scan reads, and its sequence number; and the reads of single keys there.

use std::sync::Arc;

use super::fold::{fold, fold_checked};
use super::get::{GetContext, Located, locate, unreadable};
use crate::error::Result;
use crate::hooks::{AttachedOperator, AttachedStore};
use crate::partition::ReadView;
use crate::sstable::BlockCheck;
use crate::types::{EntryKind, KeyForm, SeqNo};
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
    pub(crate) view: Arc<ReadView>,
    /// Operations up to this one are seen.
    pub(crate) seq: SeqNo,
    /// Opens tables, and names the partition in errors.
    pub(crate) open: Arc<dyn OpenPartition>,
    /// The form of stored keys.
    pub(crate) key_form: KeyForm,
    /// The store of large values.
    pub(crate) store: Option<Arc<AttachedStore>>,
    /// The merge operator.
    pub(crate) operator: Option<Arc<AttachedOperator>>,
    /// Called with each block of a table before anything of the block is returned.
    pub(crate) check: Option<Arc<dyn BlockCheck>>,
}

impl ReadPoint {
    /// Returns the name of the partition.
    pub fn partition(&self) -> &Arc<str> {
        self.open.partition()
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

    fn context(&self) -> GetContext<'_> {
        GetContext {
            view: &self.view,
            tables: self.tables(),
            store: self.store.as_ref(),
            operator: self.operator.as_ref(),
            seq: self.seq,
        }
    }

    /// The value of `key`, a stored key whose newest version is an operand.
    pub(super) fn fold(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.tables().check_process()?;
        let context = self.context();
        let folded = match &self.check {
            None => fold(&context, key),
            Some(check) => fold_checked(&context, self.tables(), key, check),
        };
        folded.map_err(|error| error.in_partition(self.partition()))
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
