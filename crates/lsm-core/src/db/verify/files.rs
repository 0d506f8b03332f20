//! The live files, and the expected content of each.
//!
//! Called by `verify.rs`. A table is read by its own reader, a segment of the log up to its length
//! at the call, the manifest as a whole, with the result of a recovery. Each is read past the page
//! cache. In memory is a piece of a table or of a segment, as large as its largest block or frame,
//! or the manifest, which is replaced when it is long.
//!
//! Invariant: damage of a segment counts only if the segment is live after it was found.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::VerifyRun;
use crate::batch::SectionReader;
use crate::codec::Malformed;
use crate::db::DbInner;
use crate::db::log::BegunSegment;
use crate::db::ownership::claims::pending_claim;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{File, Fs, is_out_of_handles};
use crate::sstable::{Expected, SstReader, TableDamage, TableFindings};
use crate::types::{Epoch, FileNo, PartitionId};
use crate::version::{Bounds, DbVersion, Fork, Table, check_generation, recover};
use crate::wal::{
    Record, SEGMENT_HEADER_BYTES, SectionIndex, SectionRef, SegmentHeader, SegmentPiece, survey,
};

/// The part of a segment that a run reads.
#[derive(Clone, Copy)]
pub(super) enum SegmentPart {
    /// All that was written.
    RecoveredState(BegunSegment),
    /// The bytes before this offset, where the replay of a read-only open began: it has read the rest.
    Before(u64),
    /// Nothing: it is a reserve, or will never be used, or a read-only open has read all of it.
    Nothing,
    /// All, up to the end that `retained.rs` finds: it is kept for those who follow the changes.
    Retained,
}

impl SegmentPart {
    fn bytes(self) -> u64 {
        match self {
            SegmentPart::RecoveredState(begun) => begun.end + begun.index_bytes,
            SegmentPart::Before(offset) => offset,
            SegmentPart::Nothing | SegmentPart::Retained => 0,
        }
    }
}

/// A live file.
pub(super) struct Unit {
    pub(super) number: FileNo,
    /// The bytes of it that are read.
    pub(super) bytes: u64,
    path: PathBuf,
    kind: UnitKind,
}

impl Unit {
    /// The finding that it cannot be read.
    pub(super) fn unreadable(&self, error: &Error) -> Damage {
        let mut damage = Damage::of(error, &self.path);
        if let UnitKind::Table { partition, .. } = &self.kind {
            damage.partition.get_or_insert_with(|| partition.to_string());
        }
        damage
    }
}

enum UnitKind {
    Table { partition: Arc<str>, level: usize, table: Arc<Table> },
    Segment { epoch: Epoch, part: SegmentPart },
    Manifest,
}

impl DbInner {
    /// The live files in the order of their numbers. Tables stay until their unit is dropped.
    pub(super) fn plan_verify(&self) -> Result<Vec<Unit>> {
        let mut units = Vec::new();
        for partition in self.catalog.partitions() {
            let view = partition.pin();
            units.extend(view.version.tables().map(|(level, table)| Unit {
                number: table.meta.file,
                bytes: table.meta.bytes,
                path: table.path(&self.setup.tables),
                kind: UnitKind::Table {
                    partition: partition.name.clone(),
                    level,
                    table: table.clone(),
                },
            }));
        }
        // Between two groups, so that no frame is half way into the file.
        let between = self.log.lock();
        let versions = self.catalog.edit()?;
        let begun = between.begun();
        let replay_from = versions.current().replay_from;
        for (number, epoch) in &versions.current().log_segments {
            let begun = begun.iter().find(|begun| begun.header.number == *number);
            let passed = replay_from.filter(|from| from.segment == *number);
            let part = match (begun, passed) {
                (Some(begun), _) => SegmentPart::RecoveredState(*begun),
                (None, Some(from)) => SegmentPart::Before(from.offset),
                (None, None) => SegmentPart::Nothing,
            };
            let kind = UnitKind::Segment { epoch: *epoch, part };
            let path = FileName::new(FileKind::Wal, *number, *epoch).path(&self.context.dir);
            units.push(Unit { number: *number, bytes: part.bytes(), path, kind });
        }
        for (number, kept) in &versions.current().retained.segments {
            let kind = UnitKind::Segment { epoch: kept.epoch, part: SegmentPart::Retained };
            let path = FileName::new(FileKind::Wal, *number, kept.epoch).path(&self.context.dir);
            units.push(Unit { number: *number, bytes: kept.bytes, path, kind });
        }
        let (name, bytes) = versions.generation();
        units.push(Unit {
            number: name.number,
            bytes: bytes.unwrap_or_default(),
            path: name.path(&self.context.dir),
            kind: UnitKind::Manifest,
        });
        drop(versions);
        drop(between);
        units.sort_by_key(|unit| unit.number);
        Ok(units)
    }
}

/// Damage of the index of sections of a segment. Nothing depends on it, but a device that damages it
/// will damage other things.
fn index_damage(file: &dyn File, path: &Path, begun: &BegunSegment) -> Option<Error> {
    let is_missing =
        begun.index_bytes > 0 && SectionIndex::read(file, &begun.header, begun.end).is_none();
    is_missing.then(|| Error::corruption(path, begun.end, "index of sections is damaged"))
}

/// The part of a segment that has frames to be read, if there is one. Damage of its header goes to
/// `found`.
fn begun_part(
    file: &dyn File,
    path: &Path,
    part: SegmentPart,
    found: &mut Vec<Error>,
) -> Option<BegunSegment> {
    let expected = match part {
        SegmentPart::RecoveredState(begun) => Some(begun),
        SegmentPart::Before(_) => None,
        SegmentPart::Nothing | SegmentPart::Retained => return None,
    };
    let read = match SegmentHeader::read(file, path) {
        Ok(Some(read)) => Some(read),
        Ok(None) => {
            found.push(Error::corruption(path, 0, "segment header is damaged"));
            None
        }
        Err(error) => {
            found.push(error);
            None
        }
    };
    if expected.is_some_and(|begun| read.is_some_and(|read| read != begun.header)) {
        found.push(Error::corruption(path, 0, "segment has another header"));
    }
    // Without a known or valid header frames cannot be recognised.
    expected
        .or_else(|| read.map(|header| BegunSegment { header, end: part.bytes(), index_bytes: 0 }))
}

impl VerifyRun<'_> {
    /// Reads a file; `false` if there is none to be read.
    pub(super) fn check_unit(&mut self, unit: &Unit) -> Result<bool> {
        match &unit.kind {
            UnitKind::Table { partition, level, table } => {
                self.check_table(partition, *level, table)
            }
            UnitKind::Segment { epoch, part } => {
                let found = self.damage.len();
                let part = match part {
                    SegmentPart::Retained => self.retained_part(unit.number, *epoch),
                    part => *part,
                };
                let is_read = self.check_segment(unit.number, *epoch, part)?;
                // Deleted segments leave the version before they leave the folder.
                if self.damage.len() > found && !self.is_live(unit.number)? {
                    self.damage.truncate(found);
                }
                Ok(is_read)
            }
            UnitKind::Manifest => self.check_manifest(unit.bytes),
        }
    }

    fn check_table(&mut self, partition: &str, level: usize, table: &Table) -> Result<bool> {
        // First the file as it is now. If it does not open, the reader that was opened earlier:
        // with its index, damage of the index on the disk does not hide other damage. A file whose
        // name is deleted is not read through an old handle.
        let refused = match table.open_apart(&self.db.setup.tables) {
            Ok(reader) => {
                let found = self.read_table(&reader, table)?;
                let is_sound = found.damage.is_empty();
                self.take_table(found, partition, level, table);
                if is_sound {
                    self.check_values(partition, table, reader)?;
                }
                return Ok(true);
            }
            Err(refused) => refused,
        };
        // No damage: the primary may delete files that this secondary has planned to read, and the
        // run ends.
        if refused.kind() == ErrorKind::LeaseLost || is_out_of_handles(&refused) {
            return Err(refused);
        }
        // A sound table of another program, which nothing can be said about.
        if refused.kind() == ErrorKind::Unsupported {
            return Err(refused.in_partition(partition));
        }
        // Without a lease. The manifest does not name it any more, so it is live no longer.
        if self.is_deleted_elsewhere(&refused) {
            return Ok(false);
        }
        let opened = table.opened().filter(|_| !self.is_gone(&table.path(&self.db.setup.tables)));
        let mut found = match opened {
            Some(reader) => self.read_table(reader, table)?,
            None => TableFindings::default(),
        };
        // The old reader finds every block intact, so the damage that prevents the open is in none
        // of them. Without this only the next open would report it.
        if found.damage.is_empty() {
            found.damage.push(whole_table(refused));
        }
        self.take_table(found, partition, level, table);
        Ok(opened.is_some())
    }

    fn read_table(&mut self, reader: &SstReader, table: &Table) -> Result<TableFindings> {
        let meta = &table.meta;
        // A bound that is no entry of the table cannot be compared with the entries.
        let expected = (meta.bounds == Bounds::INCLUSIVE).then(|| Expected {
            smallest: meta.smallest.clone(),
            largest: meta.largest.clone(),
            min_seq: meta.min_seq,
            max_seq: meta.max_seq,
            entries: meta.entries,
            tombstones: meta.tombstones,
            hidden: meta.hidden,
        });
        reader.verify(expected.as_ref(), &mut |bytes| self.advance(bytes))
    }

    fn is_gone(&self, path: &Path) -> bool {
        let opened = self.fs.open_read(path);
        opened.is_err_and(|error| error.is_missing())
    }

    /// Notes what was found in a table.
    fn take_table(&mut self, found: TableFindings, partition: &str, level: usize, table: &Table) {
        let meta = &table.meta;
        let path = table.path(&self.db.setup.tables);
        self.read.entries += found.entries;
        self.read.hidden += found.hidden;
        let all = found.damage.into_iter().chain(found.poisons);
        self.damage.extend(all.map(|found| {
            let mut damage = Damage::of(&found.error, &path);
            damage.partition.get_or_insert_with(|| partition.to_owned());
            damage.level = Some(level);
            damage.offset = damage.offset.or(found.offset);
            let first = &meta.smallest.user;
            let last = &meta.largest.user;
            let begins = found.first_key.unwrap_or_else(|| first.to_vec());
            let ends = found.last_key.unwrap_or_else(|| last.to_vec());
            // A separator may lie after the last key of its block.
            damage.keys = Some((begins, ends.min(last.to_vec())));
            damage
        }));
    }

    fn is_live(&self, segment: FileNo) -> Result<bool> {
        let versions = self.db.catalog.edit()?;
        let version = versions.current();
        Ok(version.log_segments.contains_key(&segment)
            || version.retained.segments.contains_key(&segment))
    }

    fn check_segment(&mut self, number: FileNo, epoch: Epoch, part: SegmentPart) -> Result<bool> {
        let path = FileName::new(FileKind::Wal, number, epoch).path(&self.db.context.dir);
        let opened = self.fs.open_read(&path);
        let file = match opened {
            Ok(file) => file,
            // The writer has flushed the segment and deleted it.
            Err(error) if self.db.ownership.has_live_writer() && error.is_missing() => {
                return Ok(false);
            }
            Err(error) if is_out_of_handles(&error) => return Err(error),
            Err(error) => {
                self.damage.push(missing(&error, &path, "a segment of the log is missing"));
                return Ok(false);
            }
        };
        let mut found = Vec::new();
        let Some(begun) = begun_part(&*file, &path, part, &mut found) else {
            self.damage.extend(found.iter().map(|error| Damage::of(error, &path)));
            return Ok(true);
        };
        let BegunSegment { header, end, index_bytes } = begun;
        let mut operations = 0;
        self.advance(SEGMENT_HEADER_BYTES)?;
        let walk = survey(&*file, &header, SEGMENT_HEADER_BYTES..end, &mut |piece| {
            let (range, bad) = match piece {
                SegmentPiece::Damaged { range, what } => (range, Some(what.to_owned())),
                // There can be no zeros before the end of the written part: preallocated space
                // comes after it.
                SegmentPiece::Zeros(range) => (range, Some("frames are lost: zeros".to_owned())),
                // Its place is after the last frame, which is not read here.
                SegmentPiece::Index { range, .. } => {
                    (range, Some("frames are lost: an index of sections".to_owned()))
                }
                SegmentPiece::Frame { range, record: Record::Batch(batch), .. } => {
                    for section in batch.sections() {
                        match count_operations(&section) {
                            Ok(count) => operations += count,
                            Err(fault) => {
                                let what = format!("a section is malformed: {fault}");
                                let error = Error::corruption(&path, range.start, what);
                                found.push(match self.partition_name(section.partition) {
                                    Some(name) => error.in_partition(&name),
                                    None => error,
                                });
                            }
                        }
                    }
                    (range, None)
                }
                SegmentPiece::Frame { range, .. } => (range, None),
            };
            found.extend(bad.map(|what| Error::corruption(&path, range.start, what)));
            self.advance(range.end - range.start)
        });
        if let Err(error) = walk {
            if self.is_stopped || self.db.check_not_closed().is_err() {
                return Err(error);
            }
            found.push(error);
        }
        found.extend(index_damage(&*file, &path, &begun));
        self.advance(index_bytes)?;
        self.read.entries += operations;
        self.damage.extend(found.iter().map(|error| Damage::of(error, &path)));
        Ok(true)
    }

    fn partition_name(&self, id: PartitionId) -> Option<Arc<str>> {
        let partitions = self.db.catalog.partitions();
        partitions.iter().find(|partition| partition.id == id).map(|found| found.name.clone())
    }

    /// Reads the present generation, and the result of a recovery from all generations.
    fn check_manifest(&mut self, bytes: u64) -> Result<bool> {
        let fs = &self.fs;
        let dir = &self.db.context.dir;
        // I/O under this lock, as in every append of an edit. Only flushes and compactions that
        // install something wait, and a writer that needs a new segment.
        let versions = self.db.catalog.edit()?;
        let (name, written) = versions.generation();
        // There is an unfinished promotion, and the state was that of its fork.
        if written == Some(0) {
            let Some(claim) = pending_claim(fs, dir)? else { return Ok(false) };
            let current = versions.current().clone();
            drop(versions);
            return self.check_fork(claim, &current);
        }
        let path = name.path(dir);
        let mut is_read = true;
        let is_growing = self.db.ownership.has_live_writer();
        let mut found = match check_generation(fs, dir, name, written, is_growing) {
            Ok(found) => found.iter().map(|error| Damage::of(error, &path)).collect(),
            // Its writer goes on in another generation.
            Err(error) if self.db.ownership.has_live_writer() && error.is_missing() => {
                return Ok(false);
            }
            Err(error) if is_out_of_handles(&error) => return Err(error),
            Err(error) => {
                is_read = false;
                vec![missing(&error, &path, "the manifest is missing")]
            }
        };
        // Next to a writer the listed generations may be deleted when they are read, and the open has
        // recovered them just now.
        if found.is_empty() && !self.db.ownership.has_live_writer() {
            let names = fs.list(dir, "")?;
            let names: Vec<_> = names.iter().filter_map(|e| FileName::parse(&e.name)).collect();
            match recover(fs, dir, &names) {
                Err(error) if is_out_of_handles(&error) => return Err(error),
                Err(error) => found.push(Damage::of(&error, &path)),
                Ok(None) => found.push(missing_manifest(&path)),
                // After a failed write the last edit may be there or not.
                Ok(Some(_)) if written.is_none() => {}
                Ok(Some(mut recovered)) => {
                    let current = versions.current();
                    // Recovery also skips the numbers of all files in the folder, which an intact
                    // database need not have named.
                    recovered.version.next_file = current.next_file;
                    if recovered.version != **current {
                        let what = format!(
                            "the manifest ends in another state at edit {} than the database at {}",
                            recovered.version.edit_number, current.edit_number
                        );
                        let error = Error::corruption(&path, recovered.end, what);
                        found.push(Damage::of(&error, &path));
                    }
                }
            }
        }
        drop(versions);
        self.damage.extend(found);
        if is_read {
            self.advance(bytes)?;
        }
        Ok(is_read)
    }
}

impl VerifyRun<'_> {
    /// Checks the fork of an unfinished promotion, with which a read-only open has begun. If there is none, the
    /// open found its state in files that the next open for writing verifies.
    fn check_fork(&mut self, claim: Epoch, current: &DbVersion) -> Result<bool> {
        let path = self.db.context.dir.join(names::fork(claim));
        let damage = match Fork::read(&self.fs, &self.db.context.dir, claim) {
            Err(error) if is_out_of_handles(&error) => return Err(error),
            Err(error) => error,
            Ok(None) => return Ok(false),
            Ok(Some(mut fork)) => {
                // An open skips the numbers of all files in the folder.
                fork.version.next_file = current.next_file;
                if fork.version == *current {
                    return Ok(true);
                }
                Error::corruption(&path, None, "the fork holds another state than the database")
            }
        };
        self.damage.push(Damage::of(&damage, &path));
        Ok(true)
    }
}

/// Damage that prevents a table from being opened.
fn whole_table(error: Error) -> TableDamage {
    let offset = error.damage().and_then(|damage| damage.offset);
    TableDamage { offset, first_key: None, last_key: None, error }
}

fn missing_manifest(path: &Path) -> Damage {
    Damage::of(&Error::corruption(path, None, "the manifest is missing"), path)
}

/// The damage of a file that cannot be opened or read; `what` describes a missing one.
fn missing(error: &Error, path: &Path, what: &str) -> Damage {
    match error.is_missing() {
        true => Damage::of(&Error::corruption(path, None, what), path),
        false => Damage::of(error, path),
    }
}

/// The number of operations in a section, if it matches its frame.
fn count_operations(section: &SectionRef<'_>) -> Result<u64, Malformed> {
    let mut reader = SectionReader::new(&section.bytes);
    let mut count = 0;
    while reader.next_operation()?.is_some() {
        count += 1;
    }
    match count == u64::from(section.operations) {
        true => Ok(count),
        false => Err(Malformed { what: "another number of operations than its frame says", at: 0 }),
    }
}
