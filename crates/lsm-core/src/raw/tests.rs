//! Walks over a small store: nothing is left out, and each place is where it says.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::db::{BackgroundMode, Db, Partition};
use crate::follow::{FollowOptions, SyncExtent};
use crate::fs::{Fs, MemFs};
use crate::hooks::VerifiedBlock;
use crate::options::PartitionOptions;
use crate::read::{KeyRange, ReadPoint};

fn open(fs: &MemFs) -> Db {
    let mut word = 0;
    let builder = Db::builder("/db").fs(Arc::new(fs.clone())).random(move || {
        word += 1;
        word
    });
    builder.background(BackgroundMode::Stepped).open().unwrap()
}

/// Three versions of `b` in two tables and the memtable, among others.
fn store(fs: &MemFs) -> (Db, Partition) {
    let db = open(fs);
    let partition = db.partition_with("p", PartitionOptions::new().level0_tables(8), None).unwrap();
    partition.put("a", "1").unwrap();
    partition.put("b", "2").unwrap();
    db.flush().unwrap();
    partition.delete("b").unwrap();
    partition.put("c", "4").unwrap();
    db.flush().unwrap();
    partition.put("b", "5").unwrap();
    (db, partition)
}

#[test]
fn every_version_of_a_key_is_found_newest_first() {
    let fs = MemFs::new();
    let (_db, partition) = store(&fs);
    let found = versions(&partition, b"b").unwrap();
    let rows: Vec<_> = found.iter().map(|v| (v.seq.get(), v.kind, &v.value[..])).collect();
    let expected = [
        (5, EntryKind::Value, &b"5"[..]),
        (3, EntryKind::Tombstone, b""),
        (2, EntryKind::Value, b"2"),
    ];
    assert_eq!(rows, expected);
    assert_eq!((found[0].at, &found[0].path), (Origin::MEMTABLE, &None));
    assert!(fs.paths().contains(found[2].path.as_ref().unwrap()));
    assert_eq!(versions(&partition, b"bb").unwrap(), []);
}

#[test]
fn a_walk_shows_what_is_stored_and_where() {
    let fs = MemFs::new();
    let (db, partition) = store(&fs);
    let walk = Walk::open(&partition).unwrap();
    let mut seen = Vec::new();
    for mut memtable in walk.memtables() {
        while let Some(entry) = memtable.next().unwrap() {
            seen.push((entry.at.level, entry.key.to_vec(), entry.seq.get()));
        }
    }
    // What comes later is not seen, and what the walk holds does not go.
    partition.compact(..).unwrap();
    for table in walk.tables() {
        let mut entries = table.walk(RawMode::default()).unwrap();
        let mut count = 0;
        while let Some(entry) = entries.next().unwrap() {
            assert_eq!(entry.at.file, Some(table.meta().file));
            assert!(entry.at.block_verified && !entry.hidden);
            seen.push((entry.at.level, entry.key.to_vec(), entry.seq.get()));
            count += 1;
        }
        assert_eq!(count, table.meta().entries);
        assert_eq!(table.properties().unwrap().entries(), count);
        assert!(entries.next().unwrap().is_none());
        entries.seek(b"b").unwrap();
        assert_eq!(entries.next().unwrap().unwrap().key, b"b");
    }
    let expected = [(0, "b", 5), (0, "b", 3), (0, "c", 4), (0, "a", 1), (0, "b", 2)]
        .map(|(level, key, seq)| (level, key.as_bytes().to_vec(), seq));
    assert_eq!(seen, expected);
    drop(walk);
    assert_eq!(Walk::open(&partition).unwrap().tables().count(), 1);
    drop(partition);
    let other = db.clone();
    db.close().unwrap();
    assert!(other.partition("p").is_err());
}

/// Tells of each table whether its file exists.
fn exist(fs: &MemFs, tables: &[RawTable]) -> Vec<bool> {
    tables.iter().map(|table| fs.paths().contains(&table.path())).collect()
}

#[test]
fn a_table_outlives_its_walk_and_holds_its_own_file_alone() {
    let fs = MemFs::new();
    let (db, partition) = store(&fs);
    let walk = Walk::open(&partition).unwrap();
    let mut tables: Vec<_> = walk.tables().collect();
    assert_eq!((walk.partition(), tables[0].partition()), ("p", "p"));
    drop(walk);
    partition.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(exist(&fs, &tables), [true, true]);
    let gone = tables.remove(0).path();
    db.wait_idle().unwrap();
    assert_eq!((exist(&fs, &tables), fs.paths().contains(&gone)), (vec![true], false));
    let mut entries = tables[0].walk(RawMode::default()).unwrap();
    assert_eq!(entries.next().unwrap().unwrap().key, b"a");
}

#[test]
fn of_a_damaged_block_suspect_entries_are_shown() {
    let fs = MemFs::new();
    let (_db, partition) = store(&fs);
    let found = versions(&partition, b"b").unwrap();
    let path = found[2].path.clone().unwrap();
    let bytes = fs.read_raw(&path).unwrap();
    let at = bytes.iter().position(|byte| *byte == b'2').unwrap();
    drop((found, partition));
    for (mask, value) in [(1, b"3"), (3, b"1")] {
        fs.corrupt(&path, at as u64, mask).unwrap();
        let found = versions(&open_again(&fs), b"b").unwrap();
        let suspect = found.last().unwrap();
        assert_eq!((suspect.at.block_verified, &suspect.value[..]), (false, &value[..]));
        fs.corrupt(&path, at as u64, mask).unwrap();
    }
    // Where entries are lost, a version might be among them.
    fs.corrupt(&path, 0, 0xff).unwrap();
    let error = versions(&open_again(&fs), b"b").unwrap_err();
    let damage = error.damage().unwrap();
    assert_eq!((&damage.file, damage.partition.as_deref()), (&path, Some("p")));
}

fn open_again(fs: &MemFs) -> Partition {
    let copy = fs.crash_clone(crate::fs::CrashOutcome::Everything, &mut || 0);
    open(&copy).partition("p").unwrap()
}

#[test]
fn every_byte_of_every_file_is_described() {
    let fs = MemFs::new();
    let (db, partition) = store(&fs);
    drop(partition);
    // The claim and the fork stay, until the next promotion.
    let builder = Db::builder("/db").fs(Arc::new(fs.clone())).take_over(true);
    let new = builder.background(BackgroundMode::Stepped).open().unwrap();
    new.partition("p").unwrap().put("in the log", "x").unwrap();
    new.partition("p").unwrap().delete("b").unwrap();
    new.close().unwrap();
    drop(db);
    let mut formats = Vec::new();
    for path in fs.paths() {
        if path.ends_with("LOCK") {
            continue;
        }
        for inside in [false, true] {
            let description = describe(fs.open_read(&path).unwrap(), &path, inside).unwrap();
            formats.push(description.format);
            let mut covered = 0;
            let mut from = 0;
            for (range, text) in &description.lines {
                assert!(range.start <= covered && range.start < range.end, "{range:?} {text}");
                assert!(from <= range.start, "{range:?} {text}");
                from = range.start;
                covered = covered.max(range.end);
                assert!(!text.contains("damaged"), "{range:?} {text}");
            }
            assert_eq!(covered, description.bytes, "{}", path.display());
            let expected: &[&str] = match description.format {
                FileFormat::Segment if inside => {
                    &["put \"in the log\"", "delete \"b\"", "clean close"]
                }
                FileFormat::Manifest if inside => &["table added", "LogClosed"],
                FileFormat::Claim => &["claim of epoch 2", "claim: database id"],
                FileFormat::Fork if inside => &["epoch 2 begins", "table added", "fork: segment"],
                FileFormat::Fork => &["epoch 2 begins", "state at edit"],
                _ => &[],
            };
            for text in expected {
                assert!(description.lines.iter().any(|line| line.1.contains(text)), "{text}");
            }
        }
    }
    use FileFormat::{Claim, Fork, Manifest, Segment, Table};
    for format in [Table, Segment, Manifest, Claim, Fork] {
        assert!(formats.contains(&format), "{format:?}");
    }
    fs.write_raw(Path::new("/db/notes.txt"), b"notes").unwrap();
    let notes = Path::new("/db/notes.txt");
    assert!(describe(fs.open_read(notes).unwrap(), notes, false).unwrap_err().is_corruption());
}

/// Cursors and leases are there while a database is open.
#[test]
#[expect(clippy::disallowed_methods, reason = "the file system in memory has no bytes of a cursor")]
fn the_files_of_secondaries_are_described() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder(dir.path()).open().unwrap();
    db.partition("p").unwrap().put("k", "v").unwrap();
    let follower = FollowOptions::new(dir.path()).open().unwrap();
    follower.sync(SyncExtent::All).unwrap();
    let damaged = tempfile::tempdir().unwrap();
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("cursor-") || name.starts_with("reader-") {
            let description = describe_path(&path, true).unwrap();
            assert_eq!(description.lines[0].0, 0..description.bytes);
            // By its name alone, and as nothing under another name.
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[3] ^= 1;
            let copy = damaged.path().join(name);
            std::fs::write(&copy, &bytes).unwrap();
            assert_eq!(describe_path(&copy, true).unwrap().format, description.format);
            let renamed = damaged.path().join(format!("{name}0"));
            std::fs::rename(&copy, &renamed).unwrap();
            describe_path(&renamed, true).unwrap_err();
            texts.extend(description.lines.into_iter().map(|line| line.1));
        }
    }
    for said in [
        "commit cursor: Live",
        "cursor: slot 1, last sequence 1",
        "lease: holds the files that edits",
    ] {
        assert!(texts.iter().any(|text| text.contains(said)), "{said}: {texts:?}");
    }
}

/// Notes what a read shows.
#[derive(Default)]
struct Shown {
    passed: Vec<u64>,
    found: Option<(SeqNo, EntryKind, Vec<u8>, Origin)>,
    refuses: bool,
}

impl Witness for Shown {
    fn passed(&mut self, block: &TableBlock<'_>) -> Result<()> {
        self.passed.push(block.offset());
        Ok(())
    }

    fn found(&mut self, found: &Found<'_>) -> Result<()> {
        assert_eq!(found.seq, found.stored_seq);
        self.found = Some((found.seq, found.kind, found.value.to_vec(), found.origin()));
        match (self.refuses, &found.place) {
            (true, Some(place)) => Err(place.block.corruption("refused")),
            _ => Ok(()),
        }
    }
}

fn shown(of: &impl ReadAt, key: &[u8], refuses: bool) -> (Result<Option<Vec<u8>>>, Shown) {
    let mut shown = Shown { refuses, ..Shown::default() };
    let read = of.with_view(key, |pinned, key| read(pinned, key, false, &mut shown));
    (read.map(|value| value.map(|value| value.to_vec())), shown)
}

/// The newest of `versions` that a reader at `seq` sees.
fn newest_at(versions: &[RawVersion], seq: SeqNo) -> Option<(SeqNo, EntryKind, Vec<u8>, Origin)> {
    let found = versions.iter().find(|version| version.seq <= seq)?;
    Some((found.seq, found.kind, found.value.clone(), found.at))
}

#[test]
fn a_read_answers_as_a_get_and_shows_the_version_that_it_answers_by() {
    let fs = MemFs::new();
    let (db, partition) = store(&fs);
    let snapshot = db.snapshot();
    partition.compact(..).unwrap();
    partition.put("a", "6").unwrap();
    partition.delete("c").unwrap();
    db.flush().unwrap();
    partition.put("b", "8").unwrap();
    for key in [&b"a"[..], b"b", b"c", b"none", b"bb"] {
        let all = versions(&partition, key).unwrap();
        let (value, now) = shown(&partition, key, false);
        assert_eq!(value.unwrap().as_deref(), partition.get(key).unwrap().as_deref());
        assert_eq!(now.found, newest_at(&all, SeqNo::MAX), "{key:?}");
        let (value, then) = shown(&(&snapshot, &partition), key, false);
        assert_eq!(value.unwrap().as_deref(), snapshot.get(&partition, key).unwrap().as_deref());
        assert_eq!(then.found, newest_at(&all, snapshot.seq()), "{key:?}");
    }
    // A table that a reader at the snapshot finds too new.
    assert_eq!(shown(&(&snapshot, &partition), b"c", false).1.passed.len(), 1);
    let error = shown(&partition, b"a", true).0.unwrap_err();
    let damage = error.damage().unwrap();
    assert_eq!((damage.partition.as_deref(), damage.offset), (Some("p"), Some(0)));
    drop(snapshot);
    let other = open(&MemFs::new()).snapshot();
    assert!(shown(&(&other, &partition), b"a", false).0.is_err(), "of another database");
    db.drop_partition("p").unwrap();
    assert!(shown(&partition, b"a", false).0.is_err());
}

/// Damages the search word of an entry that is found, and notes if a block that is passed has `key`.
struct Damaging<'a> {
    key: &'a [u8],
    holds: Vec<bool>,
}

impl Witness for Damaging<'_> {
    fn passed(&mut self, block: &TableBlock<'_>) -> Result<()> {
        self.holds.push(block.holds(self.key, SeqNo::MAX));
        Ok(())
    }

    fn found(&mut self, found: &Found<'_>) -> Result<()> {
        let place = found.place.expect("the entry is in a table");
        place.block.damage_word(place.at.index())
    }
}

#[test]
fn a_block_in_which_damage_of_memory_hides_a_key_is_shown_as_passed() {
    let fs = MemFs::new();
    let (_db, partition) = store(&fs);
    partition.compact(..).unwrap();
    for key in [&b"a"[..], b"b", b"c"] {
        let mut witness = Damaging { key, holds: Vec::new() };
        for expected in [&[][..], &[true]] {
            let found = partition
                .with_view(key, |pinned, key| read(pinned, key, false, &mut witness))
                .unwrap();
            assert_eq!((found.is_some(), &witness.holds[..]), (expected.is_empty(), expected));
        }
        // Past the cache, which has the sound block then.
        witness.holds.clear();
        let read = partition.with_view(key, |pinned, key| read(pinned, key, true, &mut witness));
        assert!(read.unwrap().is_some() && witness.holds.is_empty());
    }
}

/// Counts blocks, and refuses one.
struct Counted(Arc<parking_lot::Mutex<Vec<usize>>>, usize);

impl BlockCheck for Counted {
    fn check(&self, block: &mut TableBlock<'_>, _: &mut VerifiedBlock) -> Result<()> {
        let mut seen = self.0.lock();
        seen.push(block.len());
        if seen.len() == self.1 { Err(block.corruption("refused")) } else { Ok(()) }
    }
}

/// The outcome of a scan whose check refuses a block.
struct Scanned {
    keys: usize,
    blocks: usize,
    entries: usize,
    moved: Result<()>,
}

/// Scans the partition; the check refuses the `refused`th block.
fn scan_checked(partition: &Partition, refused: usize) -> Scanned {
    let seen = Arc::default();
    let (point, _) = partition.read_point().unwrap();
    let check: Arc<dyn BlockCheck> = Arc::new(Counted(Arc::clone(&seen), refused));
    let point = ReadPoint { check: Some(check), ..point };
    let mut cursor = crate::read::Cursor::open(&(..).bounds(), Ok(point));
    let mut keys = 0;
    let mut moved = cursor.seek_to_first();
    while moved.is_ok() && cursor.valid() {
        let is_in_memory = cursor.key() == b"in memory";
        assert_eq!(cursor.table().is_none(), is_in_memory);
        keys += 1;
        moved = cursor.next();
    }
    let seen = seen.lock();
    Scanned { keys, blocks: seen.len(), entries: seen.iter().sum(), moved }
}

#[test]
fn a_checked_scan_shows_every_block_before_anything_of_it() {
    let fs = MemFs::new();
    let db = open(&fs);
    let options = PartitionOptions::new().block_bytes(256).level0_tables(8);
    let partition = db.partition_with("p", options, None).unwrap();
    for round in 0..3u32 {
        for n in 0..50u32 {
            partition.put((3 * n + round).to_be_bytes(), [7; 20]).unwrap();
        }
        if round == 1 {
            partition.compact(..).unwrap();
        }
    }
    db.flush().unwrap();
    partition.put("in memory", "").unwrap();
    let whole = scan_checked(&partition, usize::MAX);
    assert!(whole.moved.is_ok() && whole.blocks > 10);
    assert_eq!((whole.keys, whole.entries), (151, 150));
    let part = scan_checked(&partition, 5);
    assert!(part.keys < 150 && part.blocks == 5);
    assert_eq!(part.moved.unwrap_err().damage().unwrap().partition.as_deref(), Some("p"));
}
