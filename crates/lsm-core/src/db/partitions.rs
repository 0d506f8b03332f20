//! Creating, finding and dropping partitions.

use std::sync::Arc;

use super::DbInner;
use super::hook_binding::{attached, check_complete, records_of};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{Hooks, StoreEdit, catch};
use crate::limits::{PARTITIONS_MAX, check_partition_name};
use crate::options::PartitionOptions;
use crate::partition::PartitionState;
use crate::version::Change;

/// Name of the partition that always exists.
pub(super) const DEFAULT: &str = "default";

impl DbInner {
    /// The partition `name`; created with `options` (or the defaults) if there is none. `options`
    /// replace the stored ones of an existing partition.
    pub(super) fn open_partition(
        &self,
        name: &str,
        options: Option<&PartitionOptions>,
        hooks: Option<&Hooks>,
    ) -> Result<Arc<PartitionState>> {
        self.check_not_closed()?;
        check_partition_name(name)?;
        if let Some(options) = options {
            options.check()?;
        }
        if options.is_none()
            && let Some(partition) = self.catalog.named(name)
        {
            check_complete(&partition)?;
            return Ok(partition);
        }
        let _structure = self.catalog.change_structure();
        // Looked up again under the lock: another call may have created it.
        if let Some(partition) = self.catalog.named(name) {
            // Between two groups, so that no batch is checked under the old rules and applied under
            // the new ones.
            let _between = self.between_groups();
            self.change_partition(&partition, options, hooks)?;
            check_complete(&partition)?;
            return Ok(partition);
        }
        self.check_open()?;
        let hooks = hooks.cloned().unwrap_or_default();
        self.create_partition(name, options.cloned().unwrap_or_default(), hooks)
    }

    /// The partition `name`, which must exist.
    pub(super) fn existing_partition(&self, name: &str) -> Result<Arc<PartitionState>> {
        self.check_not_closed()?;
        check_partition_name(name)?;
        let partition = self.catalog.named(name).ok_or_else(|| not_found(name))?;
        check_complete(&partition)?;
        Ok(partition)
    }

    fn create_partition(
        &self,
        name: &str,
        options: PartitionOptions,
        hooks: Hooks,
    ) -> Result<Arc<PartitionState>> {
        let records = records_of(&hooks, None)?;
        let mut editing = self.catalog.edit()?;
        let current = editing.current();
        if current.partitions.count() >= PARTITIONS_MAX {
            let count = current.partitions.count() as u64 + 1;
            return Err(Error::limit("number of partitions", count, PARTITIONS_MAX as u64));
        }
        // Never that of a dropped partition: the log may still have frames that name it.
        let id = current.next_partition;
        let created_at_edit = current.edit_number + 1;
        let attached = attached(&self.context, id, &name.into(), &hooks, &records, None)?;
        let created = Change::PartitionCreated {
            id,
            name: name.to_owned(),
            options,
            hooks: records,
            created_at_edit,
        };
        let version = editing.install(vec![created])?;
        // After the edit: a secondary that learns of the number finds it in the manifest.
        self.cursor.note_layout(version.edit_number);
        let version = version.partitions[&id].clone();
        let work = self.catalog.work();
        let partition = Arc::new(PartitionState::new(version, attached, &self.slabs, work));
        // After the edit: a write to a partition whose creation a crash undoes would be lost.
        self.catalog.add(partition.clone());
        Ok(partition)
    }

    /// Drops the partition `name`: its handles return errors from then on, its files are deleted
    /// when no iterator reads them any more.
    pub(super) fn drop_partition(&self, name: &str) -> Result<()> {
        self.check_open()?;
        if name == DEFAULT {
            let message = "the partition \"default\" always exists";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let _structure = self.catalog.change_structure();
        let Some(partition) = self.catalog.named(name) else {
            return Err(not_found(name));
        };
        // Writers continue while the edit is synced. A write that is acknowledged in this time
        // comes before the drop and is dropped with the partition. Stopping the writers would make
        // every partition wait for the disk.
        let dropped = self.drop_durably(&partition);
        let between = self.between_groups();
        if let Err(error) = dropped {
            // The drop is in doubt. Until a later edit has settled it, writes to the partition wait
            // for that: a crash might drop it with them.
            partition.set_doubtful(true);
            return Err(error);
        }
        self.cursor.note_layout(self.catalog.durable_edit());
        let view = partition.pin();
        let active_bytes = view.active.bytes();
        self.snapshots.retire(&partition);
        self.catalog.remove(&partition);
        drop(between);
        let edit = self.catalog.durable_edit();
        // From the earlier view: the present one has no tables any more.
        let tables = view.version.tables().map(|(_, table)| table.clone());
        self.obsolete.add_dropped(edit, tables.collect());
        drop(view);
        self.obsolete.tell_stores();
        // The memory of its memtables counted for the stall of all partitions, and no flush will
        // report that it is free.
        self.commit.note_released(active_bytes);
        self.update_pressure(&partition);
        self.jobs.forget(partition.id);
        self.values.forget(partition.id);
        self.background.wake_all();
        Ok(())
    }

    /// Makes the drop durable, and notes that the values of the partition are dropped with it.
    fn drop_durably(&self, partition: &PartitionState) -> Result<()> {
        let mut editing = self.catalog.edit()?;
        let number = editing.next_number();
        editing.install(vec![Change::PartitionDropped { id: partition.id }])?;
        let Some(store) = partition.store() else { return Ok(()) };
        let edit = StoreEdit { number, partition_dropped: true, ..StoreEdit::default() };
        // A panic leaves the files to the next open, which finds no partition for them.
        if let Ok(section) = catch("a value store", || store.edit(&edit)) {
            let before = partition.all_versions();
            self.obsolete.add_values(number, partition, store, &section, before);
        }
        Ok(())
    }

    /// Makes durable that a partition whose drop failed still exists: an edit goes into a manifest
    /// generation that does not have the drop. Under the commit path's lock.
    #[cold]
    pub(super) fn settle(&self, partition: &PartitionState) -> Result<()> {
        self.catalog.install(vec![Change::LastSeq(self.commit.visible_seq())])?;
        partition.set_doubtful(false);
        Ok(())
    }
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::PartitionNotFound, format!("there is no partition {name:?}"))
}
