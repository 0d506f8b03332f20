//! Creating, finding and dropping partitions.

use std::sync::Arc;

use super::DbInner;
use super::catalog::DEFAULT;
use super::hook_binding::{
    Filters, attached, check_complete, check_no_reserved_key, check_tables, check_values_are_read,
    has_same_tables, invalid, is_operator, is_store, keep_operator, keep_store, records_of,
};
use super::install::Installation;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{Dropped, Hooks, PartitionHooks, StoreEdit};
use crate::limits::{PARTITIONS_MAX, check_partition_name};
use crate::options::PartitionOptions;
use crate::partition::PartitionState;
use crate::version::{Change, HookRecord};

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
            options.check_built_in(name)?;
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
            let _between = self.log.lock();
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
        let name_of_hooks: Arc<str> = name.into();
        let filters = Filters::of(&name_of_hooks, &hooks, None);
        let records = records_of(&filters, &hooks, None)?;
        let mut editing = self.catalog.edit()?;
        let current = editing.current();
        if current.partitions.count() >= PARTITIONS_MAX {
            let count = current.partitions.count() as u64 + 1;
            return Err(Error::limit("number of partitions", count, PARTITIONS_MAX as u64));
        }
        // Never that of a dropped partition: the log may still have frames that name it.
        let id = current.next_partition;
        let created_at_edit = current.edit_number + 1;
        let attached =
            attached(&self.context, id, &name_of_hooks, filters, &hooks, &records, None)?;
        let created = Change::PartitionCreated {
            id,
            name: name.to_owned(),
            options,
            hooks: records,
            created_at_edit,
        };
        let version = editing.install(vec![created])?;
        self.catalog.note_layout(version.edit_number);
        let version = version.partitions[&id].clone();
        let work = self.catalog.work();
        let partition = Arc::new(PartitionState::new(version, attached, &self.setup.slabs, work));
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
        let between = self.log.lock();
        if let Err(error) = dropped {
            // The drop is in doubt. Until a later edit has settled it, writes to the partition wait
            // for that: a crash might drop it with them.
            partition.set_doubtful(true);
            return Err(error);
        }
        self.catalog.note_layout(self.catalog.durable_edit());
        let view = partition.pin();
        let active_bytes = view.active.bytes();
        self.snapshots.retire(&partition);
        self.catalog.remove(&partition);
        drop(between);
        let edit = self.catalog.durable_edit();
        // From the earlier view: the present one has no tables any more.
        let tables = view.version.tables().map(|(_, table)| table.clone());
        self.catalog.obsolete().add_dropped(edit, tables.collect());
        drop(view);
        self.catalog.obsolete().notify_stores();
        // The memory of its memtables counted for the stall of all partitions, and no flush will
        // report that it is free.
        self.commit.note_released(active_bytes);
        self.scheduler.sealer().note_memory();
        self.scheduler.stall().update(std::iter::once(&*partition));
        self.scheduler.forget(partition.id);
        self.scheduler.background().wake_all();
        Ok(())
    }

    /// Makes the drop durable, and notes that the values of the partition are dropped with it.
    fn drop_durably(&self, partition: &PartitionState) -> Result<()> {
        let mut editing = self.catalog.edit()?;
        let number = editing.next_number();
        editing.install(vec![Change::PartitionDropped { id: partition.id }])?;
        let Some(store) = partition.store() else { return Ok(()) };
        let edit = StoreEdit::dropping(Dropped::Partition);
        // An error or a panic leaves the files to the next open, which finds no partition for them.
        if let Ok(section) = store.call("edit", |store| store.edit(edit)) {
            let before = partition.all_versions();
            self.catalog.obsolete().add_values(number, partition, store, &section, before);
        }
        Ok(())
    }
}

impl DbInner {
    /// Gives an existing partition these options and hooks, by one edit: they take effect once that is
    /// durable, and not at all if it is refused. The caller holds the commit path's lock and the turn
    /// to change partitions.
    pub(super) fn change_partition(
        &self,
        partition: &Arc<PartitionState>,
        options: Option<&PartitionOptions>,
        hooks: Option<&Hooks>,
    ) -> Result<()> {
        let name = &partition.name;
        let view = partition.pin();
        let stored = &view.version;
        let options = options.unwrap_or(&stored.options);
        if stored.options.logged != options.logged {
            let is = stored.options.logged;
            return invalid(format!(
                "partition {name:?}: `logged` is fixed at creation as {is}, and the options say {}; options that \
                 change others begin with those of the partition",
                options.logged
            ));
        }
        let (attached, records) = match hooks {
            Some(hooks) => self.planned(partition, &stored.hooks, hooks)?,
            None => ((*partition.hooks()).clone(), stored.hooks.to_vec()),
        };
        if *stored.hooks == *records && *stored.options == *options {
            if hooks.is_some() {
                partition.attach(attached);
            }
            return Ok(());
        }
        self.check_open()?;
        if attached.rules.key_form != partition.key_form {
            return invalid(format!("partition {name:?}: `any_key` is fixed at creation"));
        }
        if *stored.hooks != *records {
            let suffix = &attached.rules.reserved_suffix;
            check_no_reserved_key(&self.setup.tables, partition, &view, suffix)?;
        }
        self.install_hooks(partition, options, &attached, &records)?;
        self.catalog.note_layout(self.catalog.durable_edit());
        // Entries of the tables may be due by the new hooks.
        self.scheduler.background().wake_all();
        // After the edit: the next open applies it in any case.
        match (partition.store(), hooks.and_then(|hooks| hooks.store.as_ref())) {
            (Some(store), Some(factory)) => store.configure(&**factory),
            _ => Ok(()),
        }
    }

    /// The future hooks of a partition with these `stored` ones, and their records.
    fn planned(
        &self,
        partition: &PartitionState,
        stored: &[HookRecord],
        hooks: &Hooks,
    ) -> Result<(PartitionHooks, Vec<HookRecord>)> {
        let form = Some(partition.key_form);
        let mut filters = Filters::of(&partition.name, hooks, form);
        if hooks.keeps_filters {
            filters = filters.added_to(partition, stored, hooks);
        }
        let mut records = records_of(&filters, hooks, form)?;
        keep_store(partition, hooks, stored, &mut records)?;
        keep_operator(partition, stored, &mut records)?;
        let present = partition.store();
        let name = &partition.name;
        let mut attached =
            attached(&self.context, partition.id, name, filters, hooks, &records, present)?;
        attached.store = attached.store.or_else(|| present.cloned());
        // The one that is attached stays: memtables and readers hold it.
        attached.operator = partition.operator().cloned().or(attached.operator);
        attached.absent = absent_operator(&records, &attached);
        if hooks.keeps_filters {
            let own = partition.hooks();
            let absent = own.absent.iter().filter(|name| !hooks.names_filter(name));
            attached.absent.extend(absent.filter(|it| !is_operator_of(&records, it)).cloned());
            let missing = own.missing.as_ref().filter(|name| is_filter_of(&records, name));
            attached.missing = missing.filter(|name| !hooks.names_filter(name)).cloned();
        }
        check_values_are_read(&attached.filters, attached.store.is_some())?;
        if attached.store.is_none()
            && let Some(store) = records.iter().find(|record| is_store(record))
        {
            attached.missing = Some(store.name.clone());
        }
        Ok((attached, records))
    }

    /// Makes options and hooks durable, once the filters have seen every table.
    fn install_hooks(
        &self,
        partition: &Arc<PartitionState>,
        options: &PartitionOptions,
        attached: &PartitionHooks,
        records: &[HookRecord],
    ) -> Result<()> {
        let id = partition.id;
        loop {
            partition.check_live()?;
            let seen = partition.pin();
            check_tables(&self.setup.tables, &partition.name, attached, &seen.version)?;
            let changed = Change::PartitionOptionsChanged {
                id,
                options: options.clone(),
                hooks: records.to_vec(),
            };
            // An earlier job may have installed a table since then. Writers wait meanwhile, so this loop
            // ends.
            let installation = Installation {
                holds: &|current| has_same_tables(current, &seen.version),
                hooks: Some(attached.clone()),
                ..Installation::of(vec![changed])
            };
            if self.scheduler.installer().install(partition, installation)? {
                return Ok(());
            }
        }
    }
}

/// Returns `true` if `name` is that of the merge operator of `records`.
fn is_operator_of(records: &[HookRecord], name: &str) -> bool {
    records.iter().any(|record| is_operator(record) && record.name == name)
}

/// Returns `true` if `name` is that of a filter of `records`.
fn is_filter_of(records: &[HookRecord], name: &str) -> bool {
    records.iter().any(|it| !is_operator(it) && !is_store(it) && it.name == name)
}

/// The merge operator of `records`, if its code is missing.
fn absent_operator(records: &[HookRecord], attached: &PartitionHooks) -> Vec<String> {
    let operators = records.iter().filter(|record| is_operator(record));
    let absent = operators.filter(|_| attached.operator.is_none());
    absent.map(|record| record.name.clone()).collect()
}

pub(super) fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::PartitionNotFound, format!("there is no partition {name:?}"))
}
