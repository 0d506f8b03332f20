//! [`ReplicaMemtables`]: the memtables of one partition that a secondary fills from the log.
//!
//! Invariants:
//! 1. No memtable of a view holds an operation that the view's tables hold too. A memtable is
//!    searched before the tables and hides their entries, and a flushed operation may since have
//!    been replaced in the tables by a newer entry that was never in the log.
//! 2. Memtables end where the primary's do, so that a flush covers whole ones.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::log::{Indexed, LogTail, PendingSection, ends_of_runs};
use crate::db::FollowedMemory;
use crate::error::{Error, Result};
use crate::memtable::{Memtable, SlabPool};
use crate::replay::insert_section;
use crate::types::{MemtableId, SeqNo};
use crate::version::PartitionVersion;
use crate::wal::{IndexedItem, Lsn, SectionLoader, SectionPlace, SectionRef, SegmentSource};

/// A memtable, and the first operation in it.
struct Layer {
    memtable: Arc<Memtable>,
    first: Option<SeqNo>,
}

/// The memtables of one followed partition.
pub(super) struct ReplicaMemtables {
    slabs: Arc<SlabPool>,
    /// Their count in the memory that databases share.
    memory: FollowedMemory,
    /// Newest first; the first one grows.
    layers: Vec<Layer>,
    next_id: u64,
    /// The last operation that was inserted.
    applied: SeqNo,
    /// The tables of the last view. Weak, so that it holds no file.
    version: Weak<PartitionVersion>,
}

impl ReplicaMemtables {
    /// Empty memtables, which take their memory from `slabs`, and are counted in `memory`.
    pub(super) fn new(slabs: &Arc<SlabPool>, memory: FollowedMemory) -> ReplicaMemtables {
        let mut memtables = ReplicaMemtables {
            slabs: slabs.clone(),
            memory,
            layers: Vec::new(),
            next_id: 1,
            applied: SeqNo::ZERO,
            version: Weak::new(),
        };
        memtables.begin_layer();
        memtables
    }

    fn begin_layer(&mut self) {
        let id = MemtableId(self.next_id);
        self.next_id += 1;
        let memtable = match self.layers.first() {
            Some(layer) => layer.memtable.successor(id),
            None => Memtable::new(id, &self.slabs),
        };
        memtable.begin();
        self.layers.insert(0, Layer { memtable: Arc::new(memtable), first: None });
    }

    /// The last operation that was inserted; 0 for none.
    pub(super) fn applied(&self) -> SeqNo {
        self.applied
    }

    /// As [`ReplicaMemtables::memtables`], for a view with the tables of `version`.
    pub(super) fn memtables_over(
        &mut self,
        version: &Arc<PartitionVersion>,
    ) -> (Arc<Memtable>, Vec<Arc<Memtable>>) {
        let (active, sealed) = self.memtables();
        // Tables may have entries that were never in the log, so dead ranges found over other
        // tables are invalid. Before the view is made.
        if !std::ptr::eq(self.version.as_ptr(), &raw const **version) {
            active.dead().forget();
            self.version = Arc::downgrade(version);
        }
        (active, sealed)
    }

    /// The memtable that grows, and the others, newest first.
    pub(super) fn memtables(&self) -> (Arc<Memtable>, Vec<Arc<Memtable>>) {
        let mut memtables = self.layers.iter().map(|layer| layer.memtable.clone());
        let active = memtables.next().expect("there is always one that grows");
        (active, memtables.collect())
    }

    /// Continues in another memtable, as the primary did.
    pub(super) fn switch(&mut self) {
        // An empty memtable does as well as a new one.
        if self.layers[0].first.is_some() {
            self.begin_layer();
        }
    }

    /// Drops memtables that a flush through `flushed` covers. Returns `false` if one is covered in
    /// part: then all must be built again, see invariant 1.
    #[must_use]
    pub(super) fn drop_flushed(&mut self, flushed: SeqNo) -> bool {
        // A layer without operations stays: it may be the one that grows.
        self.layers.retain(|layer| layer.first.is_none() || layer.memtable.last_seq() > flushed);
        if self.layers.is_empty() {
            self.begin_layer();
        }
        // The covered operations of a layer cannot be removed from it, and with them it would hide
        // newer entries of the tables.
        self.layers.iter().all(|layer| layer.first.is_none_or(|first| first > flushed))
    }

    /// Inserts the operations that the log has for the partition; everything through `flushed` is
    /// in tables. Returns `true` if anything was new.
    ///
    /// # Errors
    /// Those of reading; corruption of the log. Some operations may be inserted then, so that the
    /// memtables must not be used any more.
    pub(super) fn take_in(
        &mut self,
        log: &LogTail,
        pending: VecDeque<PendingSection>,
        flushed: SeqNo,
    ) -> Result<bool> {
        let before = self.applied;
        let ends = ends_of_runs(&pending);
        let mut loader = SectionLoader::default();
        for (next, end) in pending.into_iter().zip(ends) {
            match next {
                PendingSection::Switch => self.switch(),
                PendingSection::Section { segment, lsn, place } => {
                    // After a failed round the log is scanned from its front again, including operations that
                    // tables already have.
                    if place.last_seq() <= flushed.max(self.applied) {
                        continue;
                    }
                    let source = log.source(segment)?;
                    let SectionPlace { partition, first_seq, operations, offset, .. } = place;
                    let bytes = loader.load(source, &place, end)?;
                    let section = SectionRef { partition, first_seq, operations, bytes };
                    self.insert(&section, flushed, Lsn(lsn), source, offset)?;
                }
                PendingSection::Indexed(Indexed { header, sections }) => {
                    let source = log.source(header.number)?;
                    sections.read(source, &header, &mut |item| match item {
                        IndexedItem::Section { lsn, offset, section } => {
                            self.insert(&section, flushed, lsn, source, offset)
                        }
                        IndexedItem::Switch => {
                            self.switch();
                            Ok(())
                        }
                    })?;
                }
            }
        }
        Ok(self.applied > before)
    }

    /// Notes how much memory they have now.
    pub(super) fn note_memory(&self) {
        self.memory.note(self.layers.iter().map(|layer| layer.memtable.bytes()).sum());
    }

    /// Inserts a section, at `offset` of `source`, whose frame is at `lsn` of the log, unless it
    /// was inserted or flushed before.
    fn insert(
        &mut self,
        section: &SectionRef<'_>,
        flushed: SeqNo,
        lsn: Lsn,
        source: &SegmentSource,
        offset: u64,
    ) -> Result<()> {
        if section.last_seq() <= flushed.max(self.applied) {
            return Ok(());
        }
        // A section goes into one memtable, and a flush takes whole memtables, so this is damage.
        // The half of a batch that no table has must not be shown alone.
        if section.first_seq <= flushed {
            let what = format!("a section is flushed in part, through {flushed}");
            return Err(Error::corruption(&source.path, offset, what));
        }
        let layer = &mut self.layers[0];
        layer.first.get_or_insert(section.first_seq);
        insert_section(&layer.memtable, lsn.0, section)
            .map_err(|fault| Error::corruption(&source.path, offset, fault.to_string()))?;
        // Only after the whole section. After an error the memtables are discarded.
        self.applied = section.last_seq();
        Ok(())
    }
}
