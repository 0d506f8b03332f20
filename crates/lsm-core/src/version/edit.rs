//! [`VersionEdit`]: what happened, and its bytes.
//!
//! Made by flush, compaction, open and the calls that create and drop partitions; read by
//! recovery, secondaries and tools. It says nothing of whether it fits: `apply` does.
//!
//! An edit is its changes one after another; its number stands in the manifest's frame. A change:
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
//! name bytes, hook name, hook parameters, user keys: varint length, bytes
//! hooks            count, then of each: kind (1 byte: 1 filter, 2 value store), name, parameters,
//!                  reserved suffix, any-key (1 byte), when absent (1 byte: 0 open plainly, 1 refuse)
//! place in the log segment, offset, last sequence
//! table            file, epoch, bytes, hash (u128), smallest, largest (each: user key, sequence,
//!                  kind u8), bounds u8, smallest sequence, largest sequence, entries,
//!                  tombstones, hidden, then fields: 1 global sequence; of a file that was
//!                  ingested what it says of itself, all or none: 2 database id, high half,
//!                  3 low half, 4 file, 5 epoch
//! options          fields: 1 logged, 2 compression, 3 block bytes, 4 bloom bits per key,
//!                  5 table bytes, 6 level-0 tables, 7 level base bytes, 8 level multiplier
//! fields           until the body ends: tag as above, length, value (here always one varint);
//!                  ascending; an absent one has its default
//! ```
//!
//! Invariants:
//! 1. Tags are never renumbered and never reused; an unknown one without the skip bit is refused.
//! 2. Decoding ends in an edit or an error whatever the bytes are, and allocates no more than a
//!    small multiple of them.

use std::fmt;

use super::record::{
    put_all, put_cut, put_hooks, put_meta, put_options, read_cut, read_hooks, read_level,
    read_meta, read_options, read_partition, read_seq, read_text,
};
use super::table::SstMeta;
use super::{HookRecord, LogCut};
use crate::codec::{Malformed, Reader, put_bytes, put_varint};
use crate::options::PartitionOptions;
use crate::types::{Epoch, FileNo, MemtableId, PartitionId, SeqNo};

/// One change of the set of live files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A partition exists from now on.
    PartitionCreated {
        /// Its id, never given before.
        id: PartitionId,
        /// Its name, borne by no other living partition.
        name: String,
        /// Its options.
        options: PartitionOptions,
        /// Its hooks.
        hooks: Vec<HookRecord>,
        /// The number of the edit that created it: this one's, except in a snapshot.
        created_at_edit: u64,
    },
    /// A partition has other options and hooks from now on.
    PartitionOptionsChanged {
        /// The partition.
        id: PartitionId,
        /// All of its options.
        options: PartitionOptions,
        /// All of its hooks.
        hooks: Vec<HookRecord>,
    },
    /// A partition and its tables are gone.
    PartitionDropped {
        /// The partition.
        id: PartitionId,
    },
    /// A table is live. One that moves is removed first and added behind that, in one edit.
    TableAdded {
        /// The partition.
        partition: PartitionId,
        /// The level.
        level: u8,
        /// The table.
        meta: SstMeta,
    },
    /// A table is obsolete, at least on this level.
    TableRemoved {
        /// The partition.
        partition: PartitionId,
        /// The level.
        level: u8,
        /// The table.
        file: FileNo,
    },
    /// What the partition's log says up to `seq` is in tables.
    FlushedThrough {
        /// The partition.
        partition: PartitionId,
        /// The sequence.
        seq: SeqNo,
        /// The last memtable that is covered, for followers of the same epoch; 0 in a snapshot.
        memtables_through: MemtableId,
    },
    /// A log segment is live, perhaps as a reserve.
    SegmentAdded {
        /// The segment.
        file: FileNo,
        /// The epoch in its name.
        epoch: Epoch,
    },
    /// A log segment is obsolete.
    SegmentRemoved {
        /// The segment.
        file: FileNo,
    },
    /// A writer began its term.
    EpochBegan {
        /// Its epoch.
        epoch: Epoch,
        /// Where the log of the terms before ends.
        cut: Option<LogCut>,
    },
    /// The log was closed cleanly.
    LogClosed(LogCut),
    /// The manifest goes on in another generation. Alone in its edit, last in its file.
    Superseded {
        /// The generation's file number.
        by: FileNo,
        /// The epoch in its name.
        epoch: Epoch,
    },
    /// File numbers below this one may have been used.
    NextFile(FileNo),
    /// Sequences up to this one were used.
    LastSeq(SeqNo),
    /// Partition ids below this one were used.
    NextPartition(PartitionId),
    /// What the partition's value store has to know of an edit.
    StoreSection {
        /// The partition.
        partition: PartitionId,
        /// The edit: this one's number, except in a snapshot.
        number: u64,
        /// In the store's own encoding.
        bytes: Vec<u8>,
    },
}

/// A numbered set of changes that become true together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionEdit {
    /// One above the edit before.
    pub number: u64,
    /// In order.
    pub changes: Vec<Change>,
}

/// Bytes that are no edit of this version of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditFault {
    /// They are damaged.
    Malformed(Malformed),
    /// They need newer code; what is not known.
    Unsupported(String),
}

impl From<Malformed> for EditFault {
    fn from(fault: Malformed) -> EditFault {
        EditFault::Malformed(fault)
    }
}

impl fmt::Display for EditFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditFault::Malformed(fault) => fault.fmt(f),
            EditFault::Unsupported(what) => write!(f, "{what} is not known to this version"),
        }
    }
}

impl VersionEdit {
    /// Appends the bytes of the changes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        for change in &self.changes {
            body.clear();
            let tag = put_change(&mut body, change);
            put_varint(out, tag << 1);
            put_bytes(out, &body);
        }
    }

    /// The edit of these bytes.
    ///
    /// # Errors
    /// If they are damaged, or hold a change that newer code wrote and must not be skipped.
    pub fn decode(number: u64, bytes: &[u8]) -> Result<VersionEdit, EditFault> {
        let mut reader = Reader::new(bytes);
        let mut changes = Vec::new();
        while !reader.is_empty() {
            let tag = reader.varint()?;
            let mut body = Reader::new(reader.bytes()?);
            if let Some(change) = read_change(tag >> 1, &mut body)? {
                body.finish()?;
                changes.push(change);
            } else if tag & 1 == 0 {
                return Err(EditFault::Unsupported(format!("change {}", tag >> 1)));
            }
        }
        Ok(VersionEdit { number, changes })
    }
}

fn put_one(out: &mut Vec<u8>, n: u64, tag: u64) -> u64 {
    put_varint(out, n);
    tag
}

/// Appends the body and returns the tag's number.
fn put_change(out: &mut Vec<u8>, change: &Change) -> u64 {
    match change {
        Change::PartitionCreated { id, name, options, hooks, created_at_edit } => {
            put_varint(out, id.0.into());
            put_bytes(out, name.as_bytes());
            put_varint(out, *created_at_edit);
            put_hooks(out, hooks);
            put_options(out, options);
            1
        }
        Change::PartitionOptionsChanged { id, options, hooks } => {
            put_varint(out, id.0.into());
            put_hooks(out, hooks);
            put_options(out, options);
            2
        }
        Change::PartitionDropped { id } => put_one(out, id.0.into(), 3),
        Change::TableAdded { partition, level, meta } => {
            put_all(out, &[partition.0.into(), (*level).into()]);
            put_meta(out, meta);
            4
        }
        Change::TableRemoved { partition, level, file } => {
            put_all(out, &[partition.0.into(), (*level).into(), file.0]);
            5
        }
        Change::FlushedThrough { partition, seq, memtables_through } => {
            put_all(out, &[partition.0.into(), seq.get(), memtables_through.0]);
            6
        }
        Change::SegmentAdded { file, epoch } => {
            put_all(out, &[file.0, epoch.0.into()]);
            7
        }
        Change::SegmentRemoved { file } => put_one(out, file.0, 8),
        Change::EpochBegan { epoch, cut } => {
            put_varint(out, epoch.0.into());
            cut.iter().for_each(|cut| put_cut(out, cut));
            9
        }
        Change::LogClosed(end) => {
            put_cut(out, end);
            10
        }
        Change::Superseded { by, epoch } => {
            put_all(out, &[by.0, epoch.0.into()]);
            11
        }
        Change::NextFile(file) => put_one(out, file.0, 12),
        Change::LastSeq(seq) => put_one(out, seq.get(), 13),
        Change::NextPartition(id) => put_one(out, id.0.into(), 14),
        Change::StoreSection { partition, number, bytes } => {
            put_all(out, &[partition.0.into(), *number]);
            put_bytes(out, bytes);
            15
        }
    }
}

/// The change of a body; `None` if the tag is not known.
fn read_change(tag: u64, r: &mut Reader<'_>) -> Result<Option<Change>, EditFault> {
    Ok(Some(match tag {
        1 => {
            let id = read_partition(r)?;
            let name = read_text(r)?;
            let created_at_edit = r.varint()?;
            let hooks = read_hooks(r)?;
            let options = read_options(r)?;
            Change::PartitionCreated { id, name, options, hooks, created_at_edit }
        }
        2 => {
            let (id, hooks) = (read_partition(r)?, read_hooks(r)?);
            Change::PartitionOptionsChanged { id, hooks, options: read_options(r)? }
        }
        3 => Change::PartitionDropped { id: read_partition(r)? },
        4 => {
            let (partition, level) = (read_partition(r)?, read_level(r)?);
            Change::TableAdded { partition, level, meta: read_meta(r)? }
        }
        5 => {
            let (partition, level) = (read_partition(r)?, read_level(r)?);
            Change::TableRemoved { partition, level, file: FileNo(r.varint()?) }
        }
        6 => {
            let (partition, seq) = (read_partition(r)?, read_seq(r)?);
            let memtables_through = MemtableId(r.varint()?);
            Change::FlushedThrough { partition, seq, memtables_through }
        }
        7 => Change::SegmentAdded { file: FileNo(r.varint()?), epoch: Epoch(r.varint_u32()?) },
        8 => Change::SegmentRemoved { file: FileNo(r.varint()?) },
        9 => {
            let epoch = Epoch(r.varint_u32()?);
            let cut = if r.is_empty() { None } else { Some(read_cut(r)?) };
            Change::EpochBegan { epoch, cut }
        }
        10 => Change::LogClosed(read_cut(r)?),
        11 => Change::Superseded { by: FileNo(r.varint()?), epoch: Epoch(r.varint_u32()?) },
        12 => Change::NextFile(FileNo(r.varint()?)),
        13 => Change::LastSeq(read_seq(r)?),
        15 => Change::StoreSection {
            partition: read_partition(r)?,
            number: r.varint()?,
            bytes: r.bytes()?.to_vec(),
        },
        14 => Change::NextPartition(read_partition(r)?),
        _ => return Ok(None),
    }))
}
