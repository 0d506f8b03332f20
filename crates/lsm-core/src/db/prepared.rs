//! A prepared batch: encoded and hashed by `write.rs` without a lock, logged and applied by
//! `commit.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use super::require::Requirements;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Durability, WriteOptions};
use crate::partition::PartitionState;
use crate::types::{EntryKind, Operation, OperationChecksum, SectionBytes};
use crate::wal::Section;

/// The operations of a batch on one partition, encoded and hashed outside any lock.
#[derive(Clone)]
pub(super) struct PreparedSection<'a> {
    pub(super) partition: Cow<'a, Arc<PartitionState>>,
    pub(super) checksum: u64,
    pub(super) bytes: SectionBytes<'a>,
    /// The bytes for the memtable, if a test injects others.
    pub(super) injected: Option<SectionBytes<'a>>,
    /// The checksum of each operation, computed over the caller's own bytes.
    pub(super) sums: PerOperation<'a, OperationChecksum>,
    /// The operations as ranges of `bytes`, found when the section was checked. No later step decodes `bytes`
    /// again: if a bit flips in a length since then, a step would fail or read another operation, when the batch
    /// can no longer be refused.
    pub(super) places: PerOperation<'a, Operation>,
    /// The rules that the keys were checked against.
    pub(super) rules_epoch: u32,
}

/// One item per operation of a section. The usual section has one operation, and allocates no list for it.
#[derive(Clone)]
pub(super) enum PerOperation<'a, T: Clone> {
    One(T),
    Many(Cow<'a, [T]>),
}

impl<'a, T: Clone> PerOperation<'a, T> {
    pub(super) fn new(all: &'a [T]) -> PerOperation<'a, T> {
        match all {
            [one] => PerOperation::One(one.clone()),
            many => PerOperation::Many(Cow::Borrowed(many)),
        }
    }

    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            PerOperation::One(one) => std::slice::from_ref(one),
            PerOperation::Many(many) => many,
        }
    }

    fn into_owned(self) -> PerOperation<'static, T> {
        match self {
            PerOperation::One(one) => PerOperation::One(one),
            PerOperation::Many(many) => PerOperation::Many(Cow::Owned(many.into_owned())),
        }
    }
}

/// One item per section of a batch. The usual batch has one section, and allocates no list for it.
#[derive(Clone)]
pub(super) enum PerSection<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> PerSection<T> {
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            PerSection::One(one) => std::slice::from_ref(one),
            PerSection::Many(many) => many,
        }
    }
}

impl PreparedSection<'_> {
    /// The same, for a batch that outlives the buffers of its writer's call.
    fn into_owned(self) -> PreparedSection<'static> {
        PreparedSection {
            partition: Cow::Owned(self.partition.into_owned()),
            checksum: self.checksum,
            bytes: self.bytes.into_shared(),
            injected: self.injected.map(SectionBytes::into_shared),
            sums: self.sums.into_owned(),
            places: self.places.into_owned(),
            rules_epoch: self.rules_epoch,
        }
    }

    /// The number of its operations.
    fn operations(&self) -> u32 {
        self.places.as_slice().len() as u32
    }

    /// Checks the keys again, if the rules changed since they were checked.
    pub(super) fn check_rules(&self) -> Result<()> {
        // The usual case costs one load. Checking all keys under the lock of the log would
        // serialise the work of all writers.
        if self.partition.rules_epoch() == self.rules_epoch {
            return Ok(());
        }
        // The ends of a deleted range are no keys.
        let places = self.places.as_slice().iter().filter(|place| place.kind.is_of_entry());
        let mut keys = places.map(|place| &self.bytes[place.key.clone()]);
        keys.try_for_each(|key| self.partition.check_key(key))
    }

    /// Checks the handles, if a sync of values has failed.
    ///
    /// # Errors
    /// For a value that may not be on the device. A frame with its handle would end the log there after
    /// a crash, for all partitions.
    pub(super) fn check_values(&self) -> Result<()> {
        // Without a failed sync no value is in doubt, and no operation has to be decoded again
        // under the lock of the log.
        let Some(store) = self.partition.store().filter(|_| self.partition.has_failed_sync())
        else {
            return Ok(());
        };
        for place in self.places.as_slice() {
            let is_handle = place.kind == EntryKind::Handle;
            if is_handle && store.is_in_doubt(&self.bytes[place.value.clone()]) {
                let message = "a sync failed after the value was written; write it again";
                let error =
                    Error::new(ErrorKind::Io, message).at_key(&self.bytes[place.key.clone()]);
                return Err(error.in_partition(&self.partition.name));
            }
        }
        Ok(())
    }

    fn as_section(&self) -> Section<'_> {
        Section {
            partition: self.partition.id,
            operations: self.operations(),
            checksum: self.checksum,
            bytes: &self.bytes,
        }
    }
}

/// A batch ready for the commit path. It borrows the buffers of the call that writes it.
#[derive(Clone)]
pub(super) struct Prepared<'a> {
    pub(super) sections: PerSection<PreparedSection<'a>>,
    pub(super) options: WriteOptions,
    /// Absent in the usual batch, which pays a word and a branch for it.
    pub(super) requirements: Option<Box<Requirements>>,
}

impl<'a> Prepared<'a> {
    pub(super) fn sections(&self) -> &[PreparedSection<'a>] {
        self.sections.as_slice()
    }

    /// The same, for a batch that waits in a queue: a leader of another thread cannot borrow from it.
    pub(super) fn into_owned(self) -> Prepared<'static> {
        let sections = match self.sections {
            PerSection::One(section) => PerSection::One(section.into_owned()),
            PerSection::Many(sections) => {
                PerSection::Many(sections.into_iter().map(PreparedSection::into_owned).collect())
            }
        };
        Prepared { sections, options: self.options, requirements: self.requirements }
    }

    /// A batch never mixes logged and unlogged partitions: `db/batch.rs` sees to it.
    pub(super) fn is_logged(&self) -> bool {
        self.sections()[0].partition.logged
    }

    /// Returns whether it needs a sync of the log. A batch without a log does not: a sync would not
    /// make it more durable, and would delay it by the log of others.
    pub(super) fn asks_sync(&self) -> bool {
        self.options.durability == Durability::Sync && self.is_logged()
    }

    pub(super) fn operations(&self) -> u64 {
        self.sections().iter().map(|section| u64::from(section.operations())).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        self.sections().iter().map(|section| section.bytes.len()).sum()
    }

    /// The sections of its frame.
    pub(super) fn frame(&self) -> PerSection<Section<'_>> {
        match &self.sections {
            PerSection::One(section) => PerSection::One(section.as_section()),
            PerSection::Many(sections) => {
                PerSection::Many(sections.iter().map(PreparedSection::as_section).collect())
            }
        }
    }
}
