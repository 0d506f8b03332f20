//! A batch on its way: encoded and hashed by `write.rs` without a lock, logged and applied by
//! `commit.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use super::require::Requirements;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Durability, WriteOptions};
use crate::partition::PartitionState;
use crate::types::{EntryKind, Operation, OperationSum, SectionBytes};
use crate::wal::Section;

/// The operations of a batch on one partition, encoded and hashed outside any lock.
#[derive(Clone)]
pub(super) struct PreparedSection<'a> {
    pub(super) partition: Cow<'a, Arc<PartitionState>>,
    pub(super) operations: u32,
    pub(super) checksum: u64,
    pub(super) bytes: SectionBytes<'a>,
    /// The bytes that the memtable is given, if a test wants others there.
    pub(super) injected: Option<SectionBytes<'a>>,
    pub(super) sums: OperationSums<'a>,
    /// Found when the section was checked. No later step decodes `bytes` again: a bit that flips in a length
    /// since then would have it fail, or read another operation, when the batch can no more be refused.
    pub(super) places: OperationPlaces<'a>,
    /// The rules that the keys were checked against.
    pub(super) rules_epoch: u32,
}

/// The checksums of each operation of a section, of the caller's own bytes. The usual section has
/// one, and allocates no list for it.
#[derive(Clone)]
pub(super) enum OperationSums<'a> {
    One(OperationSum),
    Many(Cow<'a, [OperationSum]>),
}

impl OperationSums<'_> {
    pub(super) fn as_slice(&self) -> &[OperationSum] {
        match self {
            OperationSums::One(sum) => std::slice::from_ref(sum),
            OperationSums::Many(sums) => sums,
        }
    }
}

/// The operations of a section as ranges of its bytes; again without a list for one.
#[derive(Clone)]
pub(super) enum OperationPlaces<'a> {
    One(Operation),
    Many(Cow<'a, [Operation]>),
}

impl OperationPlaces<'_> {
    pub(super) fn as_slice(&self) -> &[Operation] {
        match self {
            OperationPlaces::One(place) => std::slice::from_ref(place),
            OperationPlaces::Many(places) => places,
        }
    }
}

impl PreparedSection<'_> {
    /// The same, for a batch that outlives the buffers of its writer's call.
    fn into_owned(self) -> PreparedSection<'static> {
        let PreparedSection { operations, checksum, rules_epoch, .. } = self;
        let sums = match self.sums {
            OperationSums::One(one) => OperationSums::One(one),
            OperationSums::Many(many) => OperationSums::Many(Cow::Owned(many.into_owned())),
        };
        let places = match self.places {
            OperationPlaces::One(one) => OperationPlaces::One(one),
            OperationPlaces::Many(many) => OperationPlaces::Many(Cow::Owned(many.into_owned())),
        };
        let partition = Cow::Owned(self.partition.into_owned());
        let bytes = self.bytes.into_shared();
        let injected = self.injected.map(SectionBytes::into_shared);
        PreparedSection {
            partition,
            operations,
            checksum,
            bytes,
            injected,
            sums,
            places,
            rules_epoch,
        }
    }

    /// Looks again at the rules, if they changed since the keys were checked.
    pub(super) fn check_rules(&self) -> Result<()> {
        // The usual case costs one load. Checking all keys under the lock of the log would
        // serialise the work of all writers.
        if self.partition.rules_epoch() == self.rules_epoch {
            return Ok(());
        }
        let mut keys = self.places.as_slice().iter().map(|place| &self.bytes[place.key.clone()]);
        keys.try_for_each(|key| self.partition.check_key(key))
    }

    /// Looks at the handles, if a sync of values has failed.
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
                let message = "a sync failed behind the value; it has to be written again";
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
            operations: self.operations,
            checksum: self.checksum,
            bytes: &self.bytes,
        }
    }
}

/// See the module. It borrows the buffers of the call that writes it.
#[derive(Clone)]
pub(super) struct Prepared<'a> {
    pub(super) sections: Sections<'a>,
    pub(super) options: WriteOptions,
    /// Absent in the usual batch, which pays a word and a branch for it.
    pub(super) requirements: Option<Box<Requirements>>,
}

/// The sections of a batch; the usual batch has one and allocates no list for it.
#[derive(Clone)]
pub(super) enum Sections<'a> {
    One(PreparedSection<'a>),
    Many(Vec<PreparedSection<'a>>),
}

impl<'a> Sections<'a> {
    fn as_slice(&self) -> &[PreparedSection<'a>] {
        match self {
            Sections::One(section) => std::slice::from_ref(section),
            Sections::Many(sections) => sections,
        }
    }
}

impl<'a> Prepared<'a> {
    pub(super) fn sections(&self) -> &[PreparedSection<'a>] {
        self.sections.as_slice()
    }

    /// The same, for a batch that waits in a queue: a leader of another thread cannot borrow from it.
    pub(super) fn into_owned(self) -> Prepared<'static> {
        let sections = match self.sections {
            Sections::One(section) => Sections::One(section.into_owned()),
            Sections::Many(sections) => {
                Sections::Many(sections.into_iter().map(PreparedSection::into_owned).collect())
            }
        };
        Prepared { sections, options: self.options, requirements: self.requirements }
    }

    /// A batch never mixes logged and unlogged partitions: `db/batch.rs` sees to it.
    pub(super) fn is_logged(&self) -> bool {
        self.sections()[0].partition.logged
    }

    /// Returns whether a sync of the log is owed to it. None is to a batch without a log: a sync
    /// would make it no more durable, and delay it by the log of others.
    pub(super) fn asks_sync(&self) -> bool {
        self.options.durability == Durability::Sync && self.is_logged()
    }

    pub(super) fn operations(&self) -> u64 {
        self.sections().iter().map(|section| u64::from(section.operations)).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        self.sections().iter().map(|section| section.bytes.len()).sum()
    }

    /// The sections of its frame.
    pub(super) fn frame(&self) -> FrameSections<'_> {
        match &self.sections {
            Sections::One(section) => FrameSections::One([section.as_section()]),
            Sections::Many(sections) => {
                FrameSections::Many(sections.iter().map(PreparedSection::as_section).collect())
            }
        }
    }
}

/// The sections of a batch as a frame takes them; again without a list for one.
pub(super) enum FrameSections<'a> {
    One([Section<'a>; 1]),
    Many(Vec<Section<'a>>),
}

impl<'a> FrameSections<'a> {
    pub(super) fn as_slice(&self) -> &[Section<'a>] {
        match self {
            FrameSections::One(section) => section,
            FrameSections::Many(sections) => sections,
        }
    }
}
