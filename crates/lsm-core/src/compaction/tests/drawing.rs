//! Levels as a person draws them: for tests of what looks at levels alone.

use crate::options::PartitionOptions;
use crate::types::{DbId, EntryKind, Epoch, FileNo, InternalKey, PartitionId, SeqNo, Trailer};
use crate::version::{Bounds, Change, DbVersion, PartitionVersion, SstMeta, VersionEdit, apply};

/// A sequence number.
pub(crate) fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

/// Small levels: 100 bytes a table, 1000 the first level.
fn options() -> PartitionOptions {
    PartitionOptions {
        table_bytes: 100,
        level0_tables: 2,
        level_base_bytes: 1000,
        level_multiplier: 10,
        ..PartitionOptions::default()
    }
}

/// A partition without tables.
pub(crate) fn empty() -> DbVersion {
    let created = Change::PartitionCreated {
        id: PartitionId(0),
        name: "default".into(),
        options: options(),
        hooks: Vec::new(),
        created_at_edit: 1,
    };
    let edit = VersionEdit { number: 1, changes: vec![created] };
    apply(&DbVersion::empty(DbId(1)), &edit).unwrap()
}

/// `file:first-last`, then `*bytes` (else 100) and `!tombstones` (else 0) of 100 entries, or of as many as
/// there are tombstones.
pub(crate) fn table(text: &str) -> SstMeta {
    let (text, tombstones) = text.split_once('!').unwrap_or((text, "0"));
    let (text, bytes) = text.split_once('*').unwrap_or((text, "100"));
    let (file, range) = text.split_once(':').unwrap();
    let (first, last) = range.split_once('-').unwrap();
    let file: u64 = file.parse().unwrap();
    let tombstones: u64 = tombstones.parse().unwrap();
    let key = |user: &str| InternalKey {
        user: user.as_bytes().into(),
        trailer: Trailer::new(seq(file * 10), EntryKind::Value),
    };
    SstMeta {
        file: FileNo(file),
        epoch: Epoch(1),
        bytes: bytes.parse().unwrap(),
        hash: 0,
        smallest: key(first),
        largest: key(last),
        bounds: Bounds::INCLUSIVE,
        min_seq: seq(file * 10),
        max_seq: seq(file * 10),
        entries: tombstones.max(100),
        tombstones,
        hidden: 0,
        global_seq: None,
        foreign: None,
        compression: Some(options().compression),
        kept: [].into(),
        expiries: None,
        written_at: None,
    }
}

/// The partition of a drawing: lines of `L<level>:` and tables as [`table`] reads them.
pub(crate) fn draw(text: &str) -> PartitionVersion {
    let mut changes = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (level, tables) = line.split_once(':').unwrap();
        let level = level[1..].parse().unwrap();
        changes.extend(tables.split_whitespace().map(|text| Change::TableAdded {
            partition: PartitionId(0),
            level,
            meta: table(text),
        }));
    }
    let version = apply(&empty(), &VersionEdit { number: 2, changes }).unwrap();
    (*version.partitions[&PartitionId(0)]).clone()
}
