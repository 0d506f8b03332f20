//! The Version and its manifest: round trips, refused edits, damage of every bit.

mod chain;
mod crash;
mod damage;
mod flush_beyond_sync;
mod golden;
mod replay;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::apply::{VersionBuilder, snapshot_edit};
use super::expiries::Expiring;
use super::manifest::put_frame;
use super::*;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, Caps, DirEntry, File, Fs, LockGuard, MemFs};
use crate::hooks::Rules;
use crate::hooks::WhenAbsent;
use crate::options::{CompactionStyle, Compression, PrefixExtractor};
use crate::sstable::SstIdentity;
use crate::types::{DeletedRange, EntryKind, Gap, InternalKey, KeyForm, MemtableId, Trailer};

const DB: DbId = DbId(0x1234_5678_9abc_def0);

/// Files in memory; enough of an `Fs` for manifests. A sync fails on demand.
#[derive(Clone, Default)]
struct TestFs {
    files: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
    fail_sync: Arc<Mutex<bool>>,
}

struct TestFile(TestFs, PathBuf);

impl Fs for TestFs {
    fn caps(&self) -> Caps {
        Caps { link: false, punch: false, process_lock: false, is_encrypted: false, is_far: false }
    }
    fn create_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn open_append(&self, path: &Path, _: AppendMode) -> Result<Arc<dyn File>> {
        self.open_read(path)
    }
    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        if !self.files.lock().contains_key(path) {
            return Err(Error::io("open", path, std::io::ErrorKind::NotFound.into()));
        }
        Ok(Arc::new(TestFile(self.clone(), path.into())))
    }
    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        let mut files = self.files.lock();
        let free = !files.contains_key(path);
        if free {
            files.insert(path.into(), content.into());
        }
        Ok(free)
    }
    fn list(&self, _: &Path, _: &str) -> Result<Vec<DirEntry>> {
        Ok(Vec::new())
    }
    fn delete(&self, path: &Path) -> Result<()> {
        self.files.lock().remove(path);
        Ok(())
    }
    fn link(&self, _: &Path, _: &Path) -> Result<()> {
        Ok(())
    }
    fn sync_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn try_lock(&self, _: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        Ok(None)
    }
    fn try_lock_shared(&self, _: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        Ok(None)
    }
    fn free_bytes(&self, _: &Path) -> Result<u64> {
        Ok(0)
    }
}

impl File for TestFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.0.files.lock().get_mut(&self.1).unwrap().extend_from_slice(bytes);
        Ok(())
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let files = self.0.files.lock();
        let bytes = &files[&self.1];
        let rest = &bytes[bytes.len().min(offset as usize)..];
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }
    fn sync(&self) -> Result<()> {
        let fails = *self.0.fail_sync.lock();
        if fails {
            return Err(Error::io("sync", &self.1, std::io::Error::other("EIO")));
        }
        Ok(())
    }
    fn len(&self) -> Result<u64> {
        Ok(self.0.files.lock()[&self.1].len() as u64)
    }
    fn preallocate(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn punch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

fn dir() -> &'static Path {
    Path::new("db")
}

fn generation(n: u64) -> FileName {
    FileName::new(FileKind::Manifest, FileNo(n), Epoch(1))
}

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

fn internal_key(user: &str, n: u64) -> InternalKey {
    let trailer = Trailer::new(seq(n), EntryKind::Value);
    InternalKey { user: user.as_bytes().into(), trailer }
}

fn meta(file: u64, smallest: &str, largest: &str) -> SstMeta {
    SstMeta {
        file: FileNo(file),
        epoch: Epoch(1),
        bytes: 1000 + file,
        hash: u128::from(file) << 64 | 7,
        smallest: internal_key(smallest, file * 10 + 9),
        largest: internal_key(largest, file * 10),
        bounds: Bounds::INCLUSIVE,
        min_seq: seq(file * 10),
        max_seq: seq(file * 10 + 9),
        entries: 10,
        tombstones: 1,
        hidden: 2,
        global_seq: None,
        foreign: None,
        compression: None,
        kept: Arc::new([]),
        expiries: None,
        written_at: None,
    }
}

fn expiries() -> Expiries {
    let groups = [Expiring { latest: 300, entries: 5 }, Expiring { latest: 70_000, entries: 2 }];
    let earliest = Some(300);
    Expiries { rule: 0x0102_0304_0506_0708, earliest, left_at: None, groups: groups.into() }
}

fn added(level: u8, meta: SstMeta) -> Change {
    Change::TableAdded { partition: PartitionId(0), level, meta }
}

fn removed(level: u8, file: u64) -> Change {
    Change::TableRemoved { partition: PartitionId(0), level, file: FileNo(file) }
}

fn flushed_through(n: u64) -> Change {
    Change::FlushedThrough {
        partition: PartitionId(0),
        seq: seq(n),
        memtables_through: MemtableId(1),
    }
}

fn created(id: u32, name: &str, edit: u64) -> Change {
    Change::PartitionCreated {
        id: PartitionId(id),
        name: name.into(),
        options: PartitionOptions::default(),
        hooks: Vec::new(),
        created_at_edit: edit,
    }
}

fn next(version: &DbVersion, changes: Vec<Change>) -> VersionEdit {
    VersionEdit { number: version.edit_number + 1, changes }
}

fn with(version: &DbVersion, changes: Vec<Change>) -> DbVersion {
    apply(version, &next(version, changes)).unwrap()
}

/// One partition with tables a-c and d-f on level 1.
fn base() -> DbVersion {
    let changes = vec![
        created(0, "default", 1),
        added(1, meta(4, "d", "f")),
        added(1, meta(3, "a", "c")),
        Change::SegmentAdded { file: FileNo(9), epoch: Epoch(1) },
    ];
    with(&DbVersion::empty(DB), changes)
}

fn refusal(changes: Vec<Change>) -> String {
    let version = base();
    apply(&version, &next(&version, changes)).expect_err("the edit breaks a rule").0
}

#[test]
fn an_edit_that_breaks_a_rule_is_refused_with_the_rule() {
    assert_eq!(refusal(vec![added(2, meta(3, "x", "y"))]), "table 3 is added twice");
    let twice = vec![added(0, meta(5, "x", "y")), added(2, meta(5, "x", "y"))];
    assert_eq!(refusal(twice), "table 5 is added twice");
    assert_eq!(refusal(vec![removed(2, 3)]), "a table of level 2 is removed but absent");
    assert_eq!(refusal(vec![removed(1, 3), removed(1, 3)]), "table 3 is removed twice");
    assert_eq!(refusal(vec![added(1, meta(5, "c", "cc"))]), "tables 3 and 5 overlap on level 1");
    assert_eq!(refusal(vec![added(7, meta(5, "x", "y"))]), "there is no level 7");
    assert_eq!(refusal(vec![added(0, meta(9, "x", "y"))]), "file 9 is a table and a log segment");
    let turned = "table 5 is impossible: its smallest key is after its largest";
    assert_eq!(refusal(vec![added(0, meta(5, "y", "x"))]), turned);
    assert_eq!(refusal(vec![created(0, "other", 2)]), "partition id 0 is used again");
    assert_eq!(refusal(vec![created(1, "default", 2)]), "two partitions are named \"default\"");
    assert!(refusal(vec![created(1, "", 2)]).contains("name has 0 bytes"));
    let id = PartitionId(5);
    assert_eq!(
        refusal(vec![Change::PartitionDropped { id }]),
        "partition 5 is dropped but unknown"
    );
    let back = vec![flushed_through(9), flushed_through(8)];
    assert_eq!(refusal(back), "partition 0 is flushed back to 8");
    let mut edit = next(&base(), Vec::new());
    edit.number += 1;
    assert_eq!(apply(&base(), &edit).unwrap_err().0, "edit 3 does not follow edit 1");
}

#[test]
fn a_dropped_partition_frees_its_name_but_not_its_id() {
    let version = with(&base(), vec![Change::PartitionDropped { id: PartitionId(0) }]);
    let again = with(&version, vec![created(1, "default", 3)]);
    assert_eq!(again.partition_named("default").map(|p| p.id), Some(PartitionId(1)));
    assert!(apply(&again, &next(&again, vec![created(0, "x", 4)])).is_err());
}

#[test]
fn an_edit_shares_what_it_does_not_touch() {
    let before = with(&base(), vec![created(1, "other", 2)]);
    let after = with(&before, vec![removed(1, 3), added(2, meta(3, "a", "c"))]);
    let other = PartitionId(1);
    assert!(Arc::ptr_eq(&before.partitions[&other], &after.partitions[&other]));
    let left = &before.partitions[&PartitionId(0)].levels[1].tables()[0];
    let right = &after.partitions[&PartitionId(0)].levels[2].tables()[0];
    assert!(Arc::ptr_eq(left, right), "a moved table stays open");
}

#[test]
fn level_0_is_newest_first_and_an_ingested_table_counts_by_its_global_sequence() {
    let ingested = SstMeta { global_seq: Some(seq(62)), ..meta(8, "a", "z") };
    let tables = vec![added(0, meta(5, "a", "z")), added(0, meta(6, "a", "z")), added(0, ingested)];
    let version = with(&base(), tables);
    let level = &version.partitions[&PartitionId(0)].levels[0];
    let files: Vec<_> = level.tables().iter().map(|t| t.meta.file.0).collect();
    assert_eq!(files, [6, 8, 5]);
}

proptest! {
    #[test]
    fn fences_find_what_a_linear_search_finds(
        mut ends in proptest::collection::btree_set("(aaaaaaaaaa)?[ab]{1,3}(aaaaaaaaa)?[ab]?", 2..40),
        probes in proptest::collection::vec("(aaaaaaaaaa)?[abc]{0,3}(aaaaaaaaa)?[ab]?", 40),
        excluded: bool,
        cut: (usize, usize),
    ) {
        if ends.len() % 2 == 1 {
            ends.pop_last();
        }
        let ends: Vec<_> = ends.into_iter().collect();
        let tables: Vec<_> = ends
            .chunks(2)
            .zip(1..)
            .map(|(pair, file)| {
                let bounds = Bounds { largest_excluded: excluded, ..Bounds::INCLUSIVE };
                Arc::new(Table::new(SstMeta { bounds, ..meta(file, &pair[0], &pair[1]) }))
            })
            .collect();
        // Tables that leave and come back, at an end or not.
        let whole = Level::sorted(tables.clone()).unwrap();
        let mut level = whole.clone();
        let from = cut.0 % tables.len();
        let to = from + cut.1 % (tables.len() - from + 1);
        level.replace(from..to, Vec::new());
        prop_assert_eq!(level.tables().len(), tables.len() - (to - from));
        level.replace(from..from, tables[from..to].to_vec());
        prop_assert_eq!((level.bytes(), level.newest()), (whole.bytes(), whole.newest()));
        for probe in probes.iter().chain(&ends) {
            let probe = probe.as_bytes();
            let linear = level
                .tables()
                .iter()
                .find(|t| !t.meta.ends_before(probe) && !t.meta.starts_after(probe));
            prop_assert_eq!(level.find(probe), linear);
            let range = UserRange::new(probe, b"ab");
            let linear: Vec<_> = level.tables().iter().filter(|t| t.meta.overlaps(range)).collect();
            if range.start <= range.end {
                prop_assert_eq!(level.overlapping(range).iter().collect::<Vec<_>>(), linear);
            }
        }
    }

    #[test]
    fn random_edits_survive_encoding_snapshot_and_recovery(
        steps in proptest::collection::vec((0..16u8, 0..8u64, 0..7u8, any::<u32>()), 1..60),
    ) {
        let fs = TestFs::default();
        let mut version = base();
        let mut manifest = Manifest::create(&fs, dir(), generation(100), &version).unwrap();
        for (deed, pick, level, word) in steps {
            let Some(changes) = random_changes(&version, deed, pick, level, word) else { continue };
            let edit = next(&version, changes);
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            let decoded = VersionEdit::decode(edit.number, &bytes);
            prop_assert_eq!(decoded.as_ref(), Ok(&edit));
            let Ok(after) = apply(&version, &edit) else { continue };
            manifest.append(&edit).unwrap();
            version = after;
            let built = VersionBuilder::from_snapshot(DB, &snapshot_edit(&version)).unwrap().finish();
            prop_assert_eq!(built.as_ref(), Ok(&version));
        }
        let found = recover(&fs, dir(), &[generation(100)]).unwrap().unwrap();
        version.next_file = version.next_file.max(FileNo(101));
        prop_assert_eq!(found.version, version);
        prop_assert!(!found.torn && found.end == manifest.bytes());
    }

    #[test]
    fn decoding_any_bytes_ends_in_an_edit_or_an_error(bytes: Vec<u8>) {
        let _ = VersionEdit::decode(1, &bytes);
    }
}

fn gap(pick: u64, word: u32) -> Gap {
    Gap {
        from: format!("{:04x}", word & 0xffff).as_bytes().into(),
        from_below: seq(pick),
        to: format!("{:04x}z", word & 0xffff).as_bytes().into(),
        to_included: word >> 16 & 1 == 1,
        through: seq(word.into()),
        closed_at: (word >> 17 & 1 == 1).then(|| seq(pick + 1)),
    }
}

fn random_changes(v: &DbVersion, deed: u8, pick: u64, level: u8, word: u32) -> Option<Vec<Change>> {
    let partition = v.partitions.values().nth(pick as usize % v.partitions.count().max(1));
    let file = v.next_file.0;
    let cut = LogCut { segment: FileNo(pick), offset: word.into(), last_seq: v.last_seq };
    Some(match deed {
        0 => vec![created(v.next_partition.0, &format!("p{word}"), v.edit_number + 1)],
        1 => vec![Change::PartitionDropped { id: partition?.id }],
        2 | 3 => {
            let start = format!("{:04x}", word & 0xffff);
            let mut meta = meta(file, &start, &format!("{start}z"));
            meta.global_seq = (word >> 16 & 1 == 1).then(|| seq(word.into()));
            meta.foreign = (word >> 18 & 1 == 1).then(|| SstIdentity {
                db_id: DbId(u128::from(word) << 70 | 5),
                file: FileNo(pick),
                epoch: Epoch(word),
            });
            meta.bounds.largest_excluded = word >> 17 & 1 == 1;
            meta.compression = (word >> 19 & 1 == 1).then_some(Compression::Lz4);
            if word >> 20 & 1 == 1 {
                meta.kept = [Kept { snapshot: seq(pick), entries: word.into() }].into();
            }
            meta.expiries = (word >> 21 & 1 == 1).then(expiries);
            meta.written_at = (word >> 22 & 1 == 1).then_some(pick);
            vec![Change::TableAdded { partition: partition?.id, level, meta }]
        }
        4 => {
            let partition = partition?;
            let (from, table) = partition.tables().nth(pick as usize)?;
            let id = partition.id;
            let meta = table.meta.clone();
            vec![
                Change::TableRemoved { partition: id, level: from as u8, file: meta.file },
                Change::TableAdded { partition: id, level, meta },
            ]
        }
        5 => vec![Change::FlushedThrough {
            partition: partition?.id,
            seq: partition?.flushed_through.plus(pick),
            memtables_through: MemtableId(pick),
        }],
        6 => vec![
            Change::SegmentAdded { file: FileNo(file), epoch: v.epoch },
            Change::LogClosed(cut),
            Change::ReplayFrom(LogCut { segment: FileNo(file), ..cut }),
        ],
        7 => vec![Change::EpochBegan {
            epoch: Epoch(v.epoch.0 + 1),
            cut: pick.is_multiple_of(2).then_some(cut),
        }],
        8 => vec![Change::GapAdded { partition: partition?.id, gap: gap(pick, word) }],
        9 => {
            let id = partition?.id;
            let gap = partition?.gaps.iter().nth(pick as usize)?.clone();
            vec![Change::GapRemoved { partition: id, gap }]
        }
        10 => vec![Change::ClearSeqAdded { partition: partition?.id, seq: seq(pick + 1) }],
        11 => {
            let clear_seq = *partition?.clear_seqs.all().first()?;
            vec![Change::ClearSeqRemoved { partition: partition?.id, seq: clear_seq }]
        }
        13 => {
            let ends = [None, Some(&b"bb"[..]), Some(&[0xff])];
            let span = span(&vec![b'a'; word as usize % 3], ends[pick as usize % 3], pick + 1);
            vec![Change::SpanAdded { partition: partition?.id, span }]
        }
        14 => {
            let span = partition?.spans.list().into_iter().nth(pick as usize % 2)?;
            vec![Change::SpanRemoved { partition: partition?.id, span }]
        }
        12 => {
            let before = v.flush_beyond_sync.unwrap_or(FlushBeyondSync {
                flushed: v.last_seq.max(seq(1)),
                durable: SeqNo::ZERO,
            });
            let FlushBeyondSync { flushed, durable } = before;
            let ahead = FlushBeyondSync { flushed: flushed.plus(pick), durable };
            vec![Change::FlushBeyondSync(ahead)]
        }
        _ => {
            let options = PartitionOptions {
                compression: Compression::None,
                level_multiplier: 2 + word % 90,
                table_bytes: 1024 + u64::from(word),
                prefix_extractor: PrefixExtractor::from_number(word),
                compaction_style: match word % 3 {
                    0 => CompactionStyle::Leveled,
                    1 => CompactionStyle::Fifo { bytes_max: 1 + pick, seconds_max: u64::MAX },
                    _ => CompactionStyle::Fifo { bytes_max: 1, seconds_max: pick },
                },
                ..PartitionOptions::default()
            };
            vec![Change::PartitionOptionsChanged {
                id: partition?.id,
                options,
                hooks: vec![seal()],
            }]
        }
    })
}

fn span(start: &[u8], end: Option<&[u8]>, n: u64) -> DeletedRange {
    DeletedRange { start: start.into(), end: end.map(Into::into), seq: seq(n) }
}

fn add_operator() -> HookRecord {
    let rules = Rules::default();
    HookRecord { kind: HookKind::MergeOperator, name: "add".into(), params: Vec::new(), rules }
}

/// A hook with rules, among them that keys are stored in form 2.
fn seal() -> HookRecord {
    let rules = Rules {
        reserved_suffix: vec![1],
        key_form: KeyForm::Escaped,
        when_absent: WhenAbsent::Refuse,
    };
    HookRecord { kind: HookKind::Filter, name: "seal".into(), params: vec![1, 2], rules }
}
