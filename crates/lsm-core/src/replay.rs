//! From log records to memtables: recovery does it once, a follower for ever.
//!
//! Invariants:
//! 1. An operation that the manifest says is flushed is passed over, so replaying is idempotent.
//! 2. A section of a partition that was dropped is passed over; one of a partition that never
//!    existed is `Corruption`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::batch::SectionReader;
use crate::codec::Malformed;
use crate::error::{Error, Result};
use crate::memtable::{Memtable, MemtableWriter, NotNewer, SlabPool};
use crate::types::{MemtableId, OperationChecksum, PartitionId, SectionBytes};
use crate::version::DbVersion;
use crate::wal::{FrameRef, Record, SectionRef};

/// Memtables of replayed operations, by partition.
pub struct Replay {
    slabs: Arc<SlabPool>,
    memtables: BTreeMap<PartitionId, Arc<Memtable>>,
    bytes: u64,
}

impl Replay {
    /// Returns an empty replay. Its memtables take their memory from `slabs`.
    pub fn new(slabs: Arc<SlabPool>) -> Replay {
        Replay { slabs, memtables: BTreeMap::new(), bytes: 0 }
    }

    /// Applies one record of the log that lies in `segment`.
    pub fn apply(
        &mut self,
        version: &DbVersion,
        frame: &FrameRef<'_>,
        segment: &Path,
    ) -> Result<()> {
        let Record::Batch(batch) = &frame.record else { return Ok(()) };
        for section in batch.sections() {
            let id = section.partition;
            let Some(partition) = version.partitions.get(id) else {
                // Ids are never reused, so a smaller unknown id is that of a dropped partition.
                if id < version.next_partition {
                    continue;
                }
                let what = format!("the log names partition {id}, which never existed");
                return Err(Error::corruption(segment, frame.place.offset, what));
            };
            // A section goes into one memtable, so a flush has covered all of it or none of it.
            if section.last_seq() <= partition.flushed_through {
                continue;
            }
            self.insert(frame.lsn.0, &section).map_err(|fault| {
                Error::corruption(segment, frame.place.offset, fault.to_string())
                    .in_partition(&partition.name)
            })?;
        }
        Ok(())
    }

    fn insert(&mut self, lsn: u64, section: &SectionRef<'_>) -> Result<(), Malformed> {
        let memtable = self
            .memtables
            .entry(section.partition)
            .or_insert_with(|| Arc::new(Memtable::new(MemtableId(1), &self.slabs)));
        self.bytes += insert_section(memtable, lsn, section)?;
        Ok(())
    }

    /// Memory of the memtables, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the memtables out, to be flushed.
    pub fn take(&mut self) -> BTreeMap<PartitionId, Arc<Memtable>> {
        self.bytes = 0;
        std::mem::take(&mut self.memtables)
    }
}

/// Inserts the operations of a section, whose frame lies at `lsn`, into `memtable`; returns the memory
/// that they took, in bytes. After an error some of them may be in it.
pub fn insert_section(
    memtable: &Memtable,
    lsn: u64,
    section: &SectionRef<'_>,
) -> Result<u64, Malformed> {
    // Large values are shared with this buffer, so it must outlive the reader's next frame.
    let (buffer, range) = section.bytes.keep();
    let buffer = SectionBytes::Shared(buffer);
    let mut operations = SectionReader::new(&buffer[range.clone()]);
    let mut writer = memtable.writer();
    let mut memory = 0;
    for number in 0..u64::from(section.operations) {
        if section.operations > 1 && number.is_multiple_of(MemtableWriter::PREFETCH_MAX as u64) {
            writer.prefetch_for(operations.keys_ahead(&buffer[range.clone()]), &[]);
        }
        let operation = operations.next_operation()?;
        let operation =
            operation.ok_or(Malformed { what: "a section lacks operations", at: range.len() })?;
        let operation = operation.moved_by(range.start);
        let seq = section.first_seq.plus(number);
        let key = &buffer[operation.key.clone()];
        let value = &buffer[operation.value.clone()];
        // Made of the bytes in the log, whose checksum was just verified. The checksums of the
        // caller are not in the log.
        let sums = OperationChecksum::new(operation.kind, key, value);
        memory += writer
            .insert(seq, lsn, sums, &buffer, &operation)
            .map_err(|NotNewer| Malformed { what: "sequence numbers go back", at: 0 })?;
    }
    match operations.next_operation()? {
        None => Ok(memory),
        // The directory counts operations, and the numbers of later sections follow from that
        // count. One more or less would give all of them wrong sequence numbers.
        Some(_) => Err(Malformed { what: "a section has operations left over", at: 0 }),
    }
}
