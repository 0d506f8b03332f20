//! [`VersionEdit`]: a numbered list of changes, and its bytes.
//!
//! Made by flush, compaction, open and the calls that create and drop partitions; read by recovery,
//! secondaries and tools. `apply` decides if an edit fits a version. The changes themselves, with
//! their tags and bodies, are in `change.rs`.
//!
//! An edit is a sequence of changes; its number is in the manifest's frame. A change:
//!
//! ```text
//! varint  tag     number << 1 | may be skipped by a reader that does not know the number
//! varint  length  of the body
//! body            by tag (all numbers varints unless said):
//!   1 partition created   id, name bytes, created-at edit, hooks, options
//!   2 options changed     id, hooks, options
//!   3 partition dropped   id
//!   4 table added         partition, level, table
//!   5 table removed       partition, level, file
//!   6 flushed through     partition, sequence, memtables through
//!   7 segment added       file, epoch
//!   8 segment removed     file
//!   9 epoch began         epoch, then nothing or a place in the log
//!  10 log closed          place in the log
//!  11 superseded          file, epoch
//!  12 next file           file
//!  13 last sequence       sequence
//!  14 next partition      id
//!  15 store section       partition, number of the edit that it belongs to, bytes of the store
//!  16 gap added           partition, gap; a reader that skipped it would answer by older entries
//!  17 gap removed         partition, gap
//!  18 clear added         partition, sequence; a reader that skipped it would show what was cleared
//!  19 clear removed       partition, sequence
//!  20 replay from         place in the log; with the skip bit: without it a reader walks more
//!  21 flushed ahead       two sequences: through the first, every operation is in tables or in the part of
//!                         the log that was durable then, through the second; a reader that skipped it would
//!                         take the log for one that has lost its end
//!  22 range deleted       partition, range; a reader that skipped it would show what was deleted
//!  23 range settled       partition, range: nothing older lies in it any more
//!  24 segment retained    file, epoch, bytes, seconds since 1970; with the skip bit, as the next two: everything
//!                         in these segments is in tables, and a writer that skips them deletes the files
//!  25 segment forgotten   file
//!  26 retained end        epoch, place in the log
//!  27 as 1, 28 as 2        with a merge operator among the hooks: a reader that skipped it would take its operands
//!                         for damage
//! name bytes, hook name, hook parameters, user keys: varint length, bytes
//! hooks            count, then of each: kind (1 byte: 1 filter, 2 value store, 3 merge operator), name, parameters,
//!                  reserved suffix, form of keys (1 byte: `KeyForm`), when absent (1 byte: 0 open plainly, 1 refuse)
//! place in the log segment, offset, last sequence
//! table            file, epoch, bytes, hash (u128), smallest, largest (each: user key, sequence,
//!                  kind u8), bounds u8, smallest sequence, largest sequence, entries,
//!                  tombstones, hidden (these and bytes: at most 2^44), then fields: 1 global
//!                  sequence; of a file that was ingested what it says of itself, all or none:
//!                  2 database id, high half, 3 low half, 4 file, 5 epoch; with the skip bit:
//!                  6 compression of its blocks, 7 entries kept for snapshots: of each
//!                  snapshot, ascending, its sequence and the number of entries, 8 when
//!                  entries expire: the rule's mark (u64), 1 byte (bit 0: an earliest
//!                  moment, bit 1: a moment at which expired ones were left for a
//!                  snapshot), these moments, then of each group of entries, ascending, the
//!                  latest moment and the number of entries
//! gap              first key, below: older versions of it are lost as well, last key, whether
//!                  versions of that are lost as well (1 byte), through: the newest lost
//!                  sequence, closed at: the sequence of the acceptance, 0 without one
//! range            first key, first key after it (empty: it has no end), sequence of the deletion
//! options          fields: 1 logged, 2 compression, 3 block bytes, 4 bloom bits per key,
//!                  5 table bytes, 6 level-0 tables, 7 level base bytes, 8 level multiplier;
//!                  with the skip bit: 9 prefix extractor (`sstable/bloom.rs` has its number),
//!                  10 the most bytes of a FIFO (absent: leveled), 11 its most seconds
//! fields           until the body ends: tag as above, length, value (one varint unless said);
//!                  ascending; an absent one has its default
//! ```
//!
//! Invariants:
//! 1. Tags are never renumbered and never reused; an unknown one without the skip bit is refused.
//! 2. Decoding ends in an edit or an error whatever the bytes are, and allocates no more than a
//!    small multiple of them.

use super::change::{Change, Tag};
use super::record::EditFault;
use crate::codec::{Reader, put_bytes, put_varint};

/// A numbered set of changes that become true together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionEdit {
    /// One above the edit before.
    pub number: u64,
    /// The changes, in the order in which they apply.
    pub changes: Vec<Change>,
}

impl VersionEdit {
    /// Returns `true` if it lists segments of the log, or removes them, and does nothing else. Writers may wait for it, and
    /// nothing of it is acknowledged.
    pub fn is_of_segments(&self) -> bool {
        self.changes.iter().all(|change| {
            matches!(change, Change::SegmentAdded { .. } | Change::SegmentRemoved { .. })
        })
    }

    /// Appends the bytes of the changes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        for change in &self.changes {
            body.clear();
            change.put(&mut body);
            // Bit 0 lets older readers skip it. Changes of the set of live files must not be
            // skipped.
            let tag = change.tag();
            put_varint(out, tag.number() << 1 | u64::from(tag.may_be_skipped()));
            put_bytes(out, &body);
        }
    }

    /// The edit of these bytes.
    ///
    /// # Errors
    /// If they are damaged, or contain a change of newer code that must not be skipped.
    pub fn decode(number: u64, bytes: &[u8]) -> Result<VersionEdit, EditFault> {
        let mut reader = Reader::new(bytes);
        let mut changes = Vec::new();
        while !reader.is_empty() {
            let tag = reader.varint()?;
            let mut body = Reader::new(reader.bytes()?);
            if let Some(known) = Tag::from_number(tag >> 1) {
                changes.push(Change::read(known, &mut body)?);
                body.finish()?;
            } else if tag & 1 == 0 {
                return Err(EditFault::Unsupported(format!("change {}", tag >> 1)));
            }
        }
        Ok(VersionEdit { number, changes })
    }
}
