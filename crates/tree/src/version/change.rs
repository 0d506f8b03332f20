//! [`Change`]: one change of the set of live files, with its tag and its body.
//!
//! Called by `edit.rs`, whose table describes the bytes. A tag is one case of [`Tag`]. Its number,
//! its encoder and its decoder are in this file and nowhere else, and the compiler asks for all
//! three when a change is added.
//!
//! Invariants:
//! 1. Numbers of tags are on disk: never renumbered, never reused.
//! 2. [`Change::read`] accepts what [`Change::put`] wrote, and refuses everything else.

use super::record::{
    EditFault, FlushBeyondSync, HookKind, HookRecord, LogCut, put_all, put_cut, put_gap, put_hooks,
    put_meta, put_options, put_span, read_cut, read_gap, read_hooks, read_level, read_meta,
    read_options, read_partition, read_seq, read_span, read_text,
};
use super::retained::RetainedSegment;
use super::table::SstMeta;
use crate::codec::{Reader, put_bytes, put_varint};
use crate::options::PartitionOptions;
use crate::types::{DeletedRange, Epoch, FileNo, Gap, MemtableId, PartitionId, SeqNo};

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
    /// A table is live. One that moves is removed first and added later in the same edit.
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
    /// The partition's log up to `seq` is in tables.
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
    /// A writer began an epoch.
    EpochBegan {
        /// The epoch.
        epoch: Epoch,
        /// The end of the log of the previous epochs.
        cut: Option<LogCut>,
    },
    /// The log was closed cleanly.
    LogClosed(LogCut),
    /// Everything in the log before this place is durable, and in tables or of a dropped partition: a replay
    /// begins here.
    ReplayFrom(LogCut),
    /// A flush made everything through a number durable before the log was.
    FlushBeyondSync(FlushBeyondSync),
    /// The manifest continues in another generation. Alone in its edit, last in its file.
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
    /// Entries between two keys are lost, until the gap is closed or removed.
    GapAdded {
        /// The partition.
        partition: PartitionId,
        /// The gap.
        gap: Gap,
    },
    /// The entries of a gap were restored, or another gap replaces it.
    GapRemoved {
        /// The partition.
        partition: PartitionId,
        /// The gap as it was added.
        gap: Gap,
    },
    /// The partition was cleared: entries below are absent.
    ClearSeqAdded {
        /// The partition.
        partition: PartitionId,
        /// The sequence number of the clear.
        seq: SeqNo,
    },
    /// Nothing lies below a clear sequence any more.
    ClearSeqRemoved {
        /// The partition.
        partition: PartitionId,
        /// The clear sequence that was added.
        seq: SeqNo,
    },
    /// A range of keys was deleted: older entries inside are absent.
    SpanAdded {
        /// The partition.
        partition: PartitionId,
        /// The range, and the sequence number of the deletion.
        span: DeletedRange,
    },
    /// Nothing lies below a deleted range any more.
    SpanRemoved {
        /// The partition.
        partition: PartitionId,
        /// A range that was added, or a part of it.
        span: DeletedRange,
    },
    /// A log segment that was removed stays for those who follow the changes. After its removal.
    SegmentRetained {
        /// The segment.
        file: FileNo,
        /// The rest that is known of it.
        segment: RetainedSegment,
    },
    /// A segment is not retained any more.
    SegmentForgotten {
        /// The segment.
        file: FileNo,
    },
    /// The log of an epoch that has retained segments ended here.
    RetainedEnd {
        /// The epoch.
        epoch: Epoch,
        /// Its end.
        end: LogCut,
    },
    /// A section of an edit for the partition's value store.
    StoreSection {
        /// The partition.
        partition: PartitionId,
        /// The edit: this one's number, except in a snapshot.
        number: u64,
        /// In the store's own encoding.
        bytes: Vec<u8>,
    },
}

/// The kind of a change on disk. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    PartitionCreated = 1,
    PartitionOptionsChanged = 2,
    PartitionDropped = 3,
    TableAdded = 4,
    TableRemoved = 5,
    FlushedThrough = 6,
    SegmentAdded = 7,
    SegmentRemoved = 8,
    EpochBegan = 9,
    LogClosed = 10,
    Superseded = 11,
    NextFile = 12,
    LastSeq = 13,
    NextPartition = 14,
    StoreSection = 15,
    GapAdded = 16,
    GapRemoved = 17,
    ClearSeqAdded = 18,
    ClearSeqRemoved = 19,
    ReplayFrom = 20,
    FlushBeyondSync = 21,
    SpanAdded = 22,
    SpanRemoved = 23,
    SegmentRetained = 24,
    SegmentForgotten = 25,
    RetainedEnd = 26,
    /// A partition with a merge operator is created: older code would read its operands as damage.
    MergingPartitionCreated = 27,
    /// As [`Tag::PartitionOptionsChanged`], with a merge operator.
    MergingPartitionChanged = 28,
}

impl Tag {
    const ALL: [Tag; 28] = [
        Tag::PartitionCreated,
        Tag::PartitionOptionsChanged,
        Tag::PartitionDropped,
        Tag::TableAdded,
        Tag::TableRemoved,
        Tag::FlushedThrough,
        Tag::SegmentAdded,
        Tag::SegmentRemoved,
        Tag::EpochBegan,
        Tag::LogClosed,
        Tag::Superseded,
        Tag::NextFile,
        Tag::LastSeq,
        Tag::NextPartition,
        Tag::StoreSection,
        Tag::GapAdded,
        Tag::GapRemoved,
        Tag::ClearSeqAdded,
        Tag::ClearSeqRemoved,
        Tag::ReplayFrom,
        Tag::FlushBeyondSync,
        Tag::SpanAdded,
        Tag::SpanRemoved,
        Tag::SegmentRetained,
        Tag::SegmentForgotten,
        Tag::RetainedEnd,
        Tag::MergingPartitionCreated,
        Tag::MergingPartitionChanged,
    ];

    /// The tag with the on-disk number `n`, if this version knows it.
    pub(super) fn from_number(n: u64) -> Option<Tag> {
        Tag::ALL.into_iter().find(|tag| tag.number() == n)
    }

    pub(super) fn number(self) -> u64 {
        self as u64
    }

    /// Returns `true` if a reader that does not know the tag reads the same state without the change.
    pub(super) fn may_be_skipped(self) -> bool {
        match self {
            // Such a reader walks more of the log, which still exists.
            Tag::ReplayFrom => true,
            // Such a reader does not need these segments, and such a writer deletes them.
            Tag::SegmentRetained | Tag::SegmentForgotten | Tag::RetainedEnd => true,
            _ => false,
        }
    }
}

fn read_created(r: &mut Reader<'_>) -> Result<Change, EditFault> {
    let id = read_partition(r)?;
    let name = read_text(r)?;
    let created_at_edit = r.varint()?;
    let hooks = read_hooks(r)?;
    let options = read_options(r)?;
    Ok(Change::PartitionCreated { id, name, options, hooks, created_at_edit })
}

/// Returns `true` if a merge operator is among the hooks.
fn merges(hooks: &[HookRecord]) -> bool {
    hooks.iter().any(|hook| hook.kind == HookKind::MergeOperator)
}

impl Change {
    /// Returns the tag that the change has on disk.
    pub(super) fn tag(&self) -> Tag {
        match self {
            Change::PartitionCreated { hooks, .. } if merges(hooks) => Tag::MergingPartitionCreated,
            Change::PartitionOptionsChanged { hooks, .. } if merges(hooks) => {
                Tag::MergingPartitionChanged
            }
            Change::PartitionCreated { .. } => Tag::PartitionCreated,
            Change::PartitionOptionsChanged { .. } => Tag::PartitionOptionsChanged,
            Change::PartitionDropped { .. } => Tag::PartitionDropped,
            Change::TableAdded { .. } => Tag::TableAdded,
            Change::TableRemoved { .. } => Tag::TableRemoved,
            Change::FlushedThrough { .. } => Tag::FlushedThrough,
            Change::SegmentAdded { .. } => Tag::SegmentAdded,
            Change::SegmentRemoved { .. } => Tag::SegmentRemoved,
            Change::EpochBegan { .. } => Tag::EpochBegan,
            Change::LogClosed(_) => Tag::LogClosed,
            Change::ReplayFrom(_) => Tag::ReplayFrom,
            Change::FlushBeyondSync(_) => Tag::FlushBeyondSync,
            Change::Superseded { .. } => Tag::Superseded,
            Change::NextFile(_) => Tag::NextFile,
            Change::LastSeq(_) => Tag::LastSeq,
            Change::NextPartition(_) => Tag::NextPartition,
            Change::StoreSection { .. } => Tag::StoreSection,
            Change::GapAdded { .. } => Tag::GapAdded,
            Change::GapRemoved { .. } => Tag::GapRemoved,
            Change::ClearSeqAdded { .. } => Tag::ClearSeqAdded,
            Change::ClearSeqRemoved { .. } => Tag::ClearSeqRemoved,
            Change::SpanAdded { .. } => Tag::SpanAdded,
            Change::SpanRemoved { .. } => Tag::SpanRemoved,
            Change::SegmentRetained { .. } => Tag::SegmentRetained,
            Change::SegmentForgotten { .. } => Tag::SegmentForgotten,
            Change::RetainedEnd { .. } => Tag::RetainedEnd,
        }
    }

    /// Appends the body.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Change::PartitionCreated { id, name, options, hooks, created_at_edit } => {
                put_varint(out, id.0.into());
                put_bytes(out, name.as_bytes());
                put_varint(out, *created_at_edit);
                put_hooks(out, hooks);
                // Last: the options have no length of their own and reach to the end of the body.
                put_options(out, options);
            }
            Change::PartitionOptionsChanged { id, options, hooks } => {
                put_varint(out, id.0.into());
                put_hooks(out, hooks);
                put_options(out, options);
            }
            Change::PartitionDropped { id } => put_varint(out, id.0.into()),
            Change::TableAdded { partition, level, meta } => {
                put_all(out, &[partition.0.into(), (*level).into()]);
                put_meta(out, meta);
            }
            Change::TableRemoved { partition, level, file } => {
                put_all(out, &[partition.0.into(), (*level).into(), file.0]);
            }
            Change::FlushedThrough { partition, seq, memtables_through } => {
                put_all(out, &[partition.0.into(), seq.get(), memtables_through.0]);
            }
            Change::SegmentAdded { file, epoch } => put_all(out, &[file.0, epoch.0.into()]),
            Change::SegmentRemoved { file } | Change::SegmentForgotten { file } => {
                put_varint(out, file.0);
            }
            Change::SegmentRetained { file, segment: RetainedSegment { epoch, bytes, since } } => {
                put_all(out, &[file.0, epoch.0.into(), *bytes, *since]);
            }
            Change::RetainedEnd { epoch, end } => {
                put_varint(out, epoch.0.into());
                put_cut(out, end);
            }
            Change::EpochBegan { epoch, cut } => {
                put_varint(out, epoch.0.into());
                // The cut is absent in the first epoch; then the body ends here.
                if let Some(cut) = cut {
                    put_cut(out, cut);
                }
            }
            Change::LogClosed(place) | Change::ReplayFrom(place) => put_cut(out, place),
            Change::FlushBeyondSync(FlushBeyondSync { flushed, durable }) => {
                put_all(out, &[flushed.get(), durable.get()]);
            }
            Change::Superseded { by, epoch } => put_all(out, &[by.0, epoch.0.into()]),
            Change::NextFile(file) => put_varint(out, file.0),
            Change::LastSeq(seq) => put_varint(out, seq.get()),
            Change::NextPartition(id) => put_varint(out, id.0.into()),
            Change::StoreSection { partition, number, bytes } => {
                put_all(out, &[partition.0.into(), *number]);
                put_bytes(out, bytes);
            }
            Change::ClearSeqAdded { partition, seq }
            | Change::ClearSeqRemoved { partition, seq } => {
                put_all(out, &[partition.0.into(), seq.get()]);
            }
            Change::SpanAdded { partition, span } | Change::SpanRemoved { partition, span } => {
                put_varint(out, partition.0.into());
                put_span(out, span);
            }
            Change::GapAdded { partition, gap } | Change::GapRemoved { partition, gap } => {
                put_varint(out, partition.0.into());
                put_gap(out, gap);
            }
        }
    }

    /// Reads the body of a change with this tag.
    pub(super) fn read(tag: Tag, r: &mut Reader<'_>) -> Result<Change, EditFault> {
        // Fields are read in the order in which they are listed here: a struct literal evaluates
        // its fields in this order.
        Ok(match tag {
            Tag::PartitionCreated | Tag::MergingPartitionCreated => read_created(r)?,
            Tag::PartitionOptionsChanged | Tag::MergingPartitionChanged => {
                Change::PartitionOptionsChanged {
                    id: read_partition(r)?,
                    hooks: read_hooks(r)?,
                    options: read_options(r)?,
                }
            }
            Tag::PartitionDropped => Change::PartitionDropped { id: read_partition(r)? },
            Tag::TableAdded => Change::TableAdded {
                partition: read_partition(r)?,
                level: read_level(r)?,
                meta: read_meta(r)?,
            },
            Tag::TableRemoved => Change::TableRemoved {
                partition: read_partition(r)?,
                level: read_level(r)?,
                file: FileNo(r.varint()?),
            },
            Tag::FlushedThrough => Change::FlushedThrough {
                partition: read_partition(r)?,
                seq: read_seq(r)?,
                memtables_through: MemtableId(r.varint()?),
            },
            Tag::SegmentAdded => read_segment_added(r)?,
            Tag::SegmentRemoved => Change::SegmentRemoved { file: FileNo(r.varint()?) },
            Tag::SegmentRetained => read_segment_retained(r)?,
            Tag::SegmentForgotten => Change::SegmentForgotten { file: FileNo(r.varint()?) },
            Tag::RetainedEnd => read_retained_end(r)?,
            Tag::EpochBegan => {
                let epoch = Epoch(r.varint_u32()?);
                let cut = if r.is_empty() { None } else { Some(read_cut(r)?) };
                Change::EpochBegan { epoch, cut }
            }
            Tag::LogClosed => Change::LogClosed(read_cut(r)?),
            Tag::ReplayFrom => Change::ReplayFrom(read_cut(r)?),
            Tag::FlushBeyondSync => Change::FlushBeyondSync(read_flush_beyond_sync(r)?),
            Tag::Superseded => read_superseded(r)?,
            Tag::NextFile => Change::NextFile(FileNo(r.varint()?)),
            Tag::LastSeq => Change::LastSeq(read_seq(r)?),
            Tag::NextPartition => Change::NextPartition(read_partition(r)?),
            Tag::StoreSection => Change::StoreSection {
                partition: read_partition(r)?,
                number: r.varint()?,
                bytes: r.bytes()?.to_vec(),
            },
            Tag::ClearSeqAdded => {
                Change::ClearSeqAdded { partition: read_partition(r)?, seq: read_seq(r)? }
            }
            Tag::ClearSeqRemoved => {
                Change::ClearSeqRemoved { partition: read_partition(r)?, seq: read_seq(r)? }
            }
            Tag::SpanAdded => {
                Change::SpanAdded { partition: read_partition(r)?, span: read_span(r)? }
            }
            Tag::SpanRemoved => read_span_removed(r)?,
            Tag::GapAdded => Change::GapAdded { partition: read_partition(r)?, gap: read_gap(r)? },
            Tag::GapRemoved => read_gap_removed(r)?,
        })
    }
}

fn read_segment_added(r: &mut Reader<'_>) -> Result<Change, EditFault> {
    Ok(Change::SegmentAdded { file: FileNo(r.varint()?), epoch: Epoch(r.varint_u32()?) })
}

fn read_segment_retained(r: &mut Reader<'_>) -> Result<Change, EditFault> {
    let file = FileNo(r.varint()?);
    let epoch = Epoch(r.varint_u32()?);
    let segment = RetainedSegment { epoch, bytes: r.varint()?, since: r.varint()? };
    Ok(Change::SegmentRetained { file, segment })
}

fn read_retained_end(r: &mut Reader<'_>) -> Result<Change, EditFault> {
    Ok(Change::RetainedEnd { epoch: Epoch(r.varint_u32()?), end: read_cut(r)? })
}

fn read_gap_removed(r: &mut Reader<'_>) -> Result<Change, EditFault> {
    Ok(Change::GapRemoved { partition: read_partition(r)?, gap: read_gap(r)? })
}

fn read_span_removed(r: &mut Reader<'_>) -> Result<Change, EditFault> {
    Ok(Change::SpanRemoved { partition: read_partition(r)?, span: read_span(r)? })
}

fn read_superseded(r: &mut Reader<'_>) -> Result<Change, EditFault> {
    Ok(Change::Superseded { by: FileNo(r.varint()?), epoch: Epoch(r.varint_u32()?) })
}

fn read_flush_beyond_sync(r: &mut Reader<'_>) -> Result<FlushBeyondSync, EditFault> {
    let flushed = read_seq(r)?;
    Ok(FlushBeyondSync { flushed, durable: read_seq(r)? })
}
