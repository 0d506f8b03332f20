//! The records inside a change: tables, options, hooks, places in the log.
//!
//! Called by `edit.rs`, whose table describes the bytes, and by exports, which store the same
//! records. This file knows no change.
//!
//! Invariants:
//! 1. A record that was read can be trusted by its type: sequences fit 56 bits, options are in
//!    range.
//! 2. Fields ascend, so equal records have equal bytes.

mod options;

use std::fmt;

use super::expiries::Expiries;
use super::table::{Bounds, Kept, SstMeta};
use crate::codec::{Malformed, Reader, put_bytes, put_u128, put_varint};
use crate::hooks::{Rules, WhenAbsent};
use crate::limits::{INTERNAL_KEY_BYTES_MAX, TABLE_FIGURE_MAX};
use crate::options::Compression;
use crate::sstable::SstIdentity;
use crate::types::{
    DbId, DeletedRange, EntryKind, Epoch, FileNo, Gap, InternalKey, KeyForm, LogPlace, LogPosition,
    PartitionId, SeqNo, Trailer,
};

pub use options::{put_options, read_options};

/// The kind of a hook. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HookKind {
    /// A compaction filter.
    Filter = 1,
    /// A value store.
    ValueStore = 2,
    /// A merge operator. Only in changes with a tag of their own, which older code refuses.
    MergeOperator = 3,
}

impl HookKind {
    /// The kind with the on-disk number `n`, if this version knows it.
    pub fn from_u8(n: u8) -> Option<HookKind> {
        match n {
            1 => Some(HookKind::Filter),
            2 => Some(HookKind::ValueStore),
            3 => Some(HookKind::MergeOperator),
            _ => None,
        }
    }
}

/// A hook of a partition, in the order in which they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookRecord {
    /// Its kind.
    pub kind: HookKind,
    /// Its name.
    pub name: String,
    /// Its parameters, in its own encoding.
    pub params: Vec<u8>,
    /// The rules that the engine enforces for it.
    pub rules: Rules,
}

/// A place in the log, with the last sequence that counts before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCut {
    /// The segment; 0 if the log had none yet.
    pub segment: FileNo,
    /// Offset in it, in bytes.
    pub offset: u64,
    /// The last sequence before the place.
    pub last_seq: SeqNo,
}

impl LogCut {
    /// The same place, for a reader of the log to begin at.
    pub fn position(&self) -> LogPosition {
        let place = LogPlace { segment: self.segment, offset: self.offset };
        LogPosition { place, last_seq: self.last_seq }
    }
}

/// Proof that a flush needed no log sync: all operations after `durable` are in its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushBeyondSync {
    /// Every operation up to this one is in tables, or comes before `durable`.
    pub flushed: SeqNo,
    /// The log was durable through this one.
    pub durable: SeqNo,
}

impl FlushBeyondSync {
    /// The same if the log is durable through `seq` as well; `None` if the log has caught up.
    pub fn durable_through(self, seq: SeqNo) -> Option<FlushBeyondSync> {
        let durable = self.durable.max(seq);
        (durable < self.flushed).then_some(FlushBeyondSync { durable, ..self })
    }
}

/// Bytes that are not an edit of this version of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditFault {
    /// The bytes are damaged.
    Malformed(Malformed),
    /// The bytes need newer code, for this part.
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

pub(super) fn put_all(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|n| put_varint(out, *n));
}

pub(super) fn read_partition(r: &mut Reader<'_>) -> Result<PartitionId, Malformed> {
    Ok(PartitionId(r.varint_u32()?))
}

pub(super) fn read_level(r: &mut Reader<'_>) -> Result<u8, Malformed> {
    u8::try_from(r.varint()?).map_err(|_| r.malformed("level too large"))
}

pub(super) fn read_seq(r: &mut Reader<'_>) -> Result<SeqNo, Malformed> {
    SeqNo::new(r.varint()?).ok_or(r.malformed("sequence number exceeds 56 bits"))
}

pub(super) fn read_text(r: &mut Reader<'_>) -> Result<String, Malformed> {
    let text = std::str::from_utf8(r.bytes()?).map_err(|_| r.malformed("name is not UTF-8"))?;
    Ok(text.to_owned())
}

pub(super) fn put_cut(out: &mut Vec<u8>, cut: &LogCut) {
    put_all(out, &[cut.segment.0, cut.offset, cut.last_seq.get()]);
}

pub(super) fn read_cut(r: &mut Reader<'_>) -> Result<LogCut, Malformed> {
    let segment = FileNo(r.varint()?);
    let offset = r.varint()?;
    let last_seq = read_seq(r)?;
    Ok(LogCut { segment, offset, last_seq })
}

pub(super) fn put_gap(out: &mut Vec<u8>, gap: &Gap) {
    put_bytes(out, &gap.from);
    put_varint(out, gap.from_below.get());
    put_bytes(out, &gap.to);
    out.push(u8::from(gap.to_included));
    let closed_at = gap.closed_at.unwrap_or(SeqNo::ZERO);
    put_all(out, &[gap.through.get(), closed_at.get()]);
}

pub(super) fn read_gap(r: &mut Reader<'_>) -> Result<Gap, Malformed> {
    let from = read_gap_key(r)?;
    let from_below = read_seq(r)?;
    let to = read_gap_key(r)?;
    let to_included = match r.u8()? {
        0 => false,
        1 => true,
        _ => return Err(r.malformed("the end flag of a gap is neither 0 nor 1")),
    };
    let through = read_seq(r)?;
    // Zero stands for none: no operation has that number, so no loss was accepted at it.
    let closed_at = Some(read_seq(r)?).filter(|seq| *seq > SeqNo::ZERO);
    Ok(Gap { from, from_below, to, to_included, through, closed_at })
}

/// Appends a deleted range as `edit.rs` describes it.
pub(super) fn put_span(out: &mut Vec<u8>, span: &DeletedRange) {
    put_bytes(out, &span.start);
    // No range ends at the empty key: nothing is before it.
    put_bytes(out, span.end.as_deref().unwrap_or_default());
    put_varint(out, span.seq.get());
}

pub(super) fn read_span(r: &mut Reader<'_>) -> Result<DeletedRange, Malformed> {
    let start = read_gap_key(r)?;
    let end = read_gap_key(r)?;
    if !end.is_empty() && end <= start {
        return Err(r.malformed("a deleted range ends before it begins"));
    }
    let end = Some(end).filter(|end| !end.is_empty()).map(Into::into);
    let seq = read_seq(r)?;
    if seq == SeqNo::ZERO {
        return Err(r.malformed("a deleted range has no sequence number"));
    }
    Ok(DeletedRange { start: start.into(), end, seq })
}

fn read_gap_key(r: &mut Reader<'_>) -> Result<Box<[u8]>, Malformed> {
    let key = r.bytes()?;
    if key.len() > INTERNAL_KEY_BYTES_MAX {
        return Err(r.malformed("a key of a gap or range is longer than any key"));
    }
    Ok(key.into())
}

/// Appends hooks as `edit.rs` describes them.
pub fn put_hooks(out: &mut Vec<u8>, hooks: &[HookRecord]) {
    put_varint(out, hooks.len() as u64);
    for hook in hooks {
        out.push(hook.kind as u8);
        put_bytes(out, hook.name.as_bytes());
        put_bytes(out, &hook.params);
        put_bytes(out, &hook.rules.reserved_suffix);
        out.push(hook.rules.key_form as u8);
        out.push(match hook.rules.when_absent {
            WhenAbsent::OpenPlainly => 0,
            WhenAbsent::Refuse => 1,
        });
    }
}

/// Reads what [`put_hooks`] wrote.
pub fn read_hooks(r: &mut Reader<'_>) -> Result<Vec<HookRecord>, Malformed> {
    // A hook takes two bytes at least, so a count beyond the end is invalid.
    let count = r.varint()?;
    if count > r.remaining() as u64 / 2 {
        return Err(r.malformed("the number of hooks exceeds the bytes"));
    }
    let mut hooks = Vec::new();
    for _ in 0..count {
        let kind = HookKind::from_u8(r.u8()?).ok_or(r.malformed("unknown kind of hook"))?;
        let name = read_text(r)?;
        let params = r.bytes()?.to_vec();
        let reserved_suffix = r.bytes()?.to_vec();
        let key_form = KeyForm::from_u8(r.u8()?).ok_or(r.malformed("unknown rule of a hook"))?;
        let when_absent = match r.u8()? {
            0 => WhenAbsent::OpenPlainly,
            1 => WhenAbsent::Refuse,
            _ => return Err(r.malformed("unknown rule of a hook")),
        };
        let rules = Rules { reserved_suffix, key_form, when_absent };
        hooks.push(HookRecord { kind, name, params, rules });
    }
    Ok(hooks)
}

fn put_key(out: &mut Vec<u8>, key: &InternalKey) {
    put_bytes(out, &key.user);
    put_varint(out, key.trailer.seq().get());
    out.push((key.trailer.raw() & 0xff) as u8);
}

fn read_key(r: &mut Reader<'_>) -> Result<InternalKey, EditFault> {
    let user = r.bytes()?;
    let seq = read_seq(r)?;
    let kind = r.u8()?;
    let Some(kind) = EntryKind::from_u8(kind) else {
        // The frame verified, so an unknown kind comes from newer code.
        return Err(EditFault::Unsupported(format!("entry kind {kind}")));
    };
    Ok(InternalKey { user: user.into(), trailer: Trailer::new(seq, kind) })
}

/// Appends a table as `edit.rs` describes it.
pub fn put_meta(out: &mut Vec<u8>, meta: &SstMeta) {
    put_all(out, &[meta.file.0, meta.epoch.0.into(), meta.bytes]);
    put_u128(out, meta.hash);
    put_key(out, &meta.smallest);
    put_key(out, &meta.largest);
    out.push(meta.bounds.to_u8());
    put_all(out, &[meta.min_seq.get(), meta.max_seq.get()]);
    put_all(out, &[meta.entries, meta.tombstones, meta.hidden]);
    // A reader that skipped these fields would read the table wrongly, so they are required.
    meta.global_seq.iter().for_each(|seq| put_field(out, 1, seq.get()));
    if let Some(SstIdentity { db_id, file, epoch }) = meta.foreign {
        // In halves, because a field holds one varint of at most 64 bits.
        put_field(out, 2, (db_id.0 >> 64) as u64);
        put_field(out, 3, db_id.0 as u64);
        put_field(out, 4, file.0);
        put_field(out, 5, epoch.0.into());
    }
    // Hints from here on: without them the table reads the same.
    if let Some(compression) = meta.compression {
        put_number(out, 6 << 1 | 1, u64::from(compression as u8));
    }
    if !meta.kept.is_empty() {
        let mut value = Vec::new();
        for Kept { snapshot, entries } in &meta.kept[..] {
            put_all(&mut value, &[snapshot.get(), *entries]);
        }
        put_hint(out, 7, &value);
    }
    meta.expiries.iter().for_each(|expiries| put_hint(out, 8, &expiries.encode()));
    meta.written_at.iter().for_each(|seconds| put_number(out, 9 << 1 | 1, *seconds));
}

/// Reads what [`put_meta`] wrote, to the end of `r`.
pub fn read_meta(r: &mut Reader<'_>) -> Result<SstMeta, EditFault> {
    let file = FileNo(r.varint()?);
    let epoch = Epoch(r.varint_u32()?);
    let bytes = read_figure(r)?;
    let hash = r.u128()?;
    let smallest = read_key(r)?;
    let largest = read_key(r)?;
    let bounds = r.u8()?;
    let Some(bounds) = Bounds::from_u8(bounds) else {
        return Err(EditFault::Unsupported(format!("bounds {bounds:#x}")));
    };
    let min_seq = read_seq(r)?;
    let max_seq = read_seq(r)?;
    let entries = read_figure(r)?;
    let tombstones = read_figure(r)?;
    let hidden = read_figure(r)?;
    let mut global_seq = None;
    let mut foreign = [None; 4];
    let mut compression = None;
    let mut kept = Vec::new();
    let mut expiries = None;
    let mut written_at = None;
    read_fields(r, "table", |tag, value| {
        match tag {
            1 => global_seq = Some(SeqNo::new(number(value)?)?),
            2..=5 => foreign[tag as usize - 2] = Some(number(value)?),
            // An unknown number counts as absent: this version cannot use it.
            6 => compression = u8::try_from(number(value)?).ok().and_then(Compression::from_u8),
            7 => kept = read_kept(value)?,
            8 => expiries = Some(Expiries::decode(value).ok()?),
            9 => written_at = Some(number(value)?),
            _ => return Some(false),
        }
        Some(true)
    })?;
    // All or none: a part of the identity would make every block of the table fail its checksum.
    let foreign = match foreign {
        [None, None, None, None] => None,
        [Some(high), Some(low), Some(file), Some(epoch)] => Some(SstIdentity {
            db_id: DbId(u128::from(high) << 64 | u128::from(low)),
            file: FileNo(file),
            epoch: u32::try_from(epoch).map(Epoch).map_err(|_| r.malformed("epoch too large"))?,
        }),
        _ => return Err(r.malformed("the identity of an ingested file is incomplete").into()),
    };
    Ok(SstMeta {
        file,
        epoch,
        bytes,
        hash,
        smallest,
        largest,
        bounds,
        min_seq,
        max_seq,
        entries,
        tombstones,
        hidden,
        global_seq,
        foreign,
        compression,
        kept: kept.into(),
        expiries,
        written_at,
    })
}

/// Reads a number of bytes or entries of one table. It is bounded, so that the sums over a million
/// tables do not overflow.
fn read_figure(r: &mut Reader<'_>) -> Result<u64, Malformed> {
    let figure = r.varint()?;
    if figure > TABLE_FIGURE_MAX {
        Err(r.malformed("more than a table can have"))
    } else {
        Ok(figure)
    }
}

fn read_kept(value: &[u8]) -> Option<Vec<Kept>> {
    let mut r = Reader::new(value);
    let mut kept = Vec::new();
    while !r.is_empty() {
        // No order is required: these are statistics, and a wrong one costs a rewrite or delays it.
        let snapshot = SeqNo::new(r.varint().ok()?)?;
        let entries = r.varint().ok()?;
        kept.push(Kept { snapshot, entries });
    }
    Some(kept)
}

/// A field that readers who do not know it skip.
fn put_hint(out: &mut Vec<u8>, tag: u64, value: &[u8]) {
    // Bit 0 lets a reader that does not know the tag skip it.
    put_varint(out, tag << 1 | 1);
    put_bytes(out, value);
}

/// The one varint that a field holds.
fn number(value: &[u8]) -> Option<u64> {
    let mut r = Reader::new(value);
    let n = r.varint().ok()?;
    r.is_empty().then_some(n)
}

fn put_field(out: &mut Vec<u8>, tag: u64, n: u64) {
    put_number(out, tag << 1, n);
}

fn put_number(out: &mut Vec<u8>, tag: u64, n: u64) {
    put_varint(out, tag);
    let mut value = Vec::with_capacity(10);
    put_varint(&mut value, n);
    put_bytes(out, &value);
}

/// Reads fields to the end of the body. `set` returns whether it knows the tag, `None` if the value
/// is out of its range.
fn read_fields(
    r: &mut Reader<'_>,
    of: &str,
    mut set: impl FnMut(u64, &[u8]) -> Option<bool>,
) -> Result<(), EditFault> {
    let mut last = None;
    while !r.is_empty() {
        let tag = r.varint()?;
        let value = r.bytes()?;
        // Strictly, so that no field comes twice.
        if last.is_some_and(|last| last >= tag >> 1) {
            return Err(r.malformed("fields do not ascend").into());
        }
        last = Some(tag >> 1);
        let known = set(tag >> 1, value).ok_or(r.malformed("field out of range"))?;
        // A required field of newer code: the record would be misread without it.
        if !known && tag & 1 == 0 {
            return Err(EditFault::Unsupported(format!("field {} of a {of}", tag >> 1)));
        }
    }
    Ok(())
}
