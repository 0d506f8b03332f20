//! The partitions of a followed database, and their hooks, as the edits of the manifest change them.
//!
//! Called by a round that has a newer version, before it shows any of it. It must never change the
//! hooks of an existing view.

use std::sync::Arc;

use super::partition::{Followed, FollowedHooks, PublishedView};
use super::{FollowedPartitions, Inner};
use crate::db::Commit;
use crate::db::hook_binding::resolve;
use crate::error::Result;
use crate::hooks::{
    AttachedStore, EventQueue, PartitionHooks, StoreContext, StoreWishes, ValueStoreFactory,
};
use crate::partition::ReadView;
use crate::types::FileNumbers;
use crate::version::{DbVersion, PartitionVersion};

impl Inner {
    /// Updates the partitions to those of `version`. Rounds call it, one at a time.
    ///
    /// # Errors
    /// Those of a value store that refuses the section of an edit.
    pub(super) fn take_partitions(&self, version: &DbVersion) -> Result<()> {
        let mut new = Vec::new();
        for partition in version.partitions.values() {
            // Value stores and hooks are code of the application. No lock is held while they are
            // called, so that a lookup of another partition does not wait for them.
            let known = self.partitions.read().by_id.get(&partition.id).cloned();
            let followed = known.unwrap_or_else(|| {
                let followed = Arc::new(self.begin_following(partition, version));
                new.push((partition, followed.clone()));
                followed
            });
            if followed.has_other_hooks(partition) {
                followed.change_hooks(self.resolve_hooks(partition, version));
            }
            // Also for a known partition: its store gets each edit once.
            followed.apply_to_store(partition)?;
        }
        let mut partitions = self.partitions.write();
        let FollowedPartitions { by_id, by_name } = &mut *partitions;
        by_id.retain(|id, followed| {
            let is_there = version.partitions.contains_key(*id);
            if !is_there {
                followed.mark_dropped();
                // Before the new partitions are added: the name may belong to another partition by now.
                by_name.remove(&followed.name);
            }
            is_there
        });
        for (partition, followed) in new {
            by_name.insert(partition.name.clone(), partition.id);
            by_id.insert(partition.id, followed);
        }
        Ok(())
    }

    fn begin_following(&self, partition: &Arc<PartitionVersion>, version: &DbVersion) -> Followed {
        let active = self.empty.clone();
        let view = ReadView::new(active, Vec::new(), partition.clone());
        let flushed = Commit { seq: partition.flushed_through, epoch: version.epoch };
        let pin = self.pins.pin(version.edit_number);
        let hooks = self.resolve_hooks(partition, version);
        let shown = PublishedView::of(Arc::new(view), hooks.resolved(), flushed.seq, flushed, pin);
        Followed::new(shown, hooks)
    }

    /// The hooks that `partition` names, with a value store of its own.
    fn resolve_hooks(&self, partition: &PartitionVersion, version: &DbVersion) -> FollowedHooks {
        let context = StoreContext {
            partition: partition.id,
            partition_name: partition.name.clone(),
            db_id: version.db_id,
            epoch: version.epoch,
            dir: self.dir.clone(),
            fs: self.fs.clone(),
            files: self.files.clone(),
            clock: self.clock.clone(),
            // It makes no files.
            numbers: Arc::new(FileNumbers::new(version.next_file)),
            is_read_only: true,
            is_following: true,
            other: None,
            events: EventQueue::default(),
            // It syncs nothing.
            wishes: StoreWishes::default(),
        };
        let provider = self.provider.as_deref();
        let resolved = resolve(
            &partition.name,
            &partition.hooks,
            provider,
            Some(&|factory: &dyn ValueStoreFactory| {
                AttachedStore::open(factory, context.clone(), &[])
            }),
        );
        // Not an error here: a partition whose hook is missing must not prevent the others from
        // being followed. Its own handle reports it.
        let hooks = resolved.unwrap_or_else(|error| PartitionHooks {
            missing: Some(error.to_string()),
            ..PartitionHooks::default()
        });
        FollowedHooks::new(partition.hooks.clone(), hooks)
    }
}
