//! Levels as a person draws them: for tests of what looks at levels alone.

use crate::options::PartitionOptions;
use crate::types::{DbId, EntryKind, Epoch, FileNo, InternalKey, PartitionId, SeqNo, Trailer};
use crate::version::{Bounds, Change, DbVersion, PartitionVersion, SstMeta, VersionEdit, apply};

const WELL_FORMED: &str = "the drawing is well formed";

/// A sequence number.
pub fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).expect(WELL_FORMED)
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
pub fn empty() -> DbVersion {
    let created = Change::PartitionCreated {
        id: PartitionId(0),
        name: "default".into(),
        options: options(),
        hooks: Vec::new(),
        created_at_edit: 1,
    };
    let edit = VersionEdit { number: 1, changes: vec![created] };
    apply(&DbVersion::empty(DbId(1)), &edit).expect(WELL_FORMED)
}

/// The key `user` in the table `file`.
fn key(file: u64, user: &str) -> InternalKey {
    InternalKey {
        user: user.as_bytes().into(),
        trailer: Trailer::new(seq(file * 10), EntryKind::Value),
    }
}

/// `file:first-last`, then `*bytes` (else 100) and `!tombstones` (else 0) of 100 entries, or of as many as
/// there are tombstones.
pub fn table(text: &str) -> SstMeta {
    let (text, tombstones) = text.split_once('!').unwrap_or((text, "0"));
    let (text, bytes) = text.split_once('*').unwrap_or((text, "100"));
    let (file, range) = text.split_once(':').expect(WELL_FORMED);
    let (first, last) = range.split_once('-').expect(WELL_FORMED);
    let file: u64 = file.parse().expect(WELL_FORMED);
    let tombstones: u64 = tombstones.parse().expect(WELL_FORMED);
    SstMeta {
        file: FileNo(file),
        epoch: Epoch(1),
        bytes: bytes.parse().expect(WELL_FORMED),
        hash: 0,
        smallest: key(file, first),
        largest: key(file, last),
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
pub fn draw(text: &str) -> PartitionVersion {
    let mut changes = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (level, tables) = line.split_once(':').expect(WELL_FORMED);
        let level = level[1..].parse().expect(WELL_FORMED);
        changes.extend(tables.split_whitespace().map(|text| Change::TableAdded {
            partition: PartitionId(0),
            level,
            meta: table(text),
        }));
    }
    let version = apply(&empty(), &VersionEdit { number: 2, changes }).expect(WELL_FORMED);
    (*version.partitions[&PartitionId(0)]).clone()
}
