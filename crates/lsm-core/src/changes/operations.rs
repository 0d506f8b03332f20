//! From the sections of a batch to changes of keys.
//!
//! Called by `log.rs` for each frame. Keys are those of the caller again, and hidden entries do not exist here:
//! compactions make them, and the log has none.

use std::sync::Arc;

use super::log::Operations;
use super::{ChangeFilter, ChangedPartition, KeyChange};
use crate::batch::SectionReader;
use crate::codec::Malformed;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::AttachedStore;
use crate::types::{EntryKind, KeyForm, Operation, PartitionId, Slice};
use crate::version::{DbVersion, PartitionVersion};
use crate::wal::{BatchRef, SectionRef};

/// A value in a chunk file, as a commit named it.
#[derive(Clone)]
pub struct LoggedValue {
    handle: Slice,
    store: LoggedStore,
}

/// The value store of a partition that the log names.
#[derive(Clone)]
pub(crate) enum LoggedStore {
    Attached(Arc<AttachedStore>),
    /// The open did not supply its code.
    Missing,
    /// The partition was dropped after the last look.
    Dropped,
}

impl From<Option<Arc<AttachedStore>>> for LoggedStore {
    fn from(store: Option<Arc<AttachedStore>>) -> LoggedStore {
        store.map_or(LoggedStore::Missing, LoggedStore::Attached)
    }
}

impl LoggedValue {
    /// Reads the value. `None` if it is not in its place any more: the key was written again and the space
    /// reclaimed, the value was moved, it is damaged, or the partition was dropped. Then get the key: it has the same value or one of a later
    /// commit, or reports the damage. The retention of the log keeps no chunk files.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] without the code of the value store; those of the file system.
    pub fn read(&self) -> Result<Option<Slice>> {
        let store = match &self.store {
            LoggedStore::Attached(store) => store,
            LoggedStore::Dropped => return Ok(None),
            LoggedStore::Missing => {
                let message = "the partition needs a value store that was not supplied at the open";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        let read = store.call("value", |store| {
            let value = store.value(&self.handle)?;
            let len = usize::try_from(value.len()).map_err(|_| {
                Error::new(ErrorKind::LimitExceeded, "the value is longer than the memory")
            })?;
            let mut bytes = vec![0; len];
            value.read_into(&mut bytes).map(|()| bytes)
        });
        match read {
            Ok(bytes) => Ok(Some(Slice::from(bytes))),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for LoggedValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoggedValue").finish_non_exhaustive()
    }
}

fn is_gone(error: &Error) -> bool {
    error.is_missing() || matches!(error.kind(), ErrorKind::FileGone | ErrorKind::Corruption)
}

/// The operations of `batch` that pass `filter`. Those of partitions that `version` does not have any more are left out.
///
/// # Errors
/// Corruption; [`ErrorKind::NeedsManifest`] for a partition that `version` does not know yet.
pub(super) fn decode(
    batch: &BatchRef<'_>,
    version: &DbVersion,
    filter: &ChangeFilter,
    store: &dyn Fn(PartitionId) -> LoggedStore,
) -> Result<Operations> {
    let mut changes = Operations::new();
    for section in batch.sections() {
        let id = section.partition;
        let Some(partition) = version.partitions.get(id) else {
            if id < version.next_partition {
                continue;
            }
            let message = format!("the log names partition {id}, which was created since");
            return Err(Error::new(ErrorKind::NeedsManifest, message));
        };
        if filter.takes_partition(&partition.name) {
            decode_section(&section, partition, filter, store, &mut changes).map_err(|fault| {
                // The checksum was right: bytes that a writer of another version made.
                let message = format!("an operation of the log is malformed: {fault}");
                Error::new(ErrorKind::Unsupported, message)
            })?;
        }
    }
    Ok(changes)
}

fn decode_section(
    section: &SectionRef<'_>,
    partition: &PartitionVersion,
    filter: &ChangeFilter,
    store: &dyn Fn(PartitionId) -> LoggedStore,
    changes: &mut Operations,
) -> Result<(), Malformed> {
    let (buffer, range) = section.bytes.keep();
    let form = key_form_of(partition);
    let named = ChangedPartition { id: partition.id, name: partition.name.clone() };
    let mut operations = SectionReader::new(&buffer[range.clone()]);
    while let Some(operation) = operations.next_operation()? {
        let operation = operation.moved_by(range.start);
        let change = change_of(&buffer, &operation, form, || store(partition.id));
        if filter.prefix.is_empty() || change.touches(&filter.prefix) {
            changes.push((named.clone(), change));
        }
    }
    Ok(())
}

fn change_of(
    buffer: &Arc<[u8]>,
    operation: &Operation,
    form: KeyForm,
    store: impl FnOnce() -> LoggedStore,
) -> KeyChange {
    let stored = &buffer[operation.key.clone()];
    let key = Slice::copy_from(form.user(stored));
    let value = operation.value.clone();
    match operation.kind {
        EntryKind::Value => {
            KeyChange::Put { key, value: Slice::share(buffer, value.start, value.len()) }
        }
        EntryKind::Handle => {
            let handle = Slice::copy_from(&buffer[value]);
            KeyChange::PutLarge { key, value: LoggedValue { handle, store: store() } }
        }
        EntryKind::Operand => {
            KeyChange::Merge { key, operand: Slice::share(buffer, value.start, value.len()) }
        }
        EntryKind::Tombstone => KeyChange::Delete { key },
        EntryKind::DeleteRange => {
            let end = &buffer[value];
            KeyChange::DeleteRange {
                start: bound_of(form, stored),
                end: (!end.is_empty()).then(|| bound_of(form, end)),
            }
        }
        EntryKind::Clear => KeyChange::Clear,
        EntryKind::Poison => KeyChange::Damaged { key },
    }
}

/// The first key of the caller whose stored form is not below `stored`.
fn bound_of(form: KeyForm, stored: &[u8]) -> Slice {
    // A bound between two stored keys sorts among the keys of the caller as among the stored ones.
    Slice::copy_from(if form.is_stored(stored) { form.user(stored) } else { stored })
}

/// The form in which the partition stores keys.
fn key_form_of(partition: &PartitionVersion) -> KeyForm {
    let forms = partition.hooks.iter().map(|hook| hook.rules.key_form);
    forms.into_iter().find(|form| *form != KeyForm::AsGiven).unwrap_or_default()
}
