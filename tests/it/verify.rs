//! `Db::verify` over whole stores: it finds damage and its place, it never reports an intact store,
//! also while the store is in use, and it can be stopped, resumed and slowed down.

mod figures;
mod runs;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lsm_core::clock::Clock;
use lsm_core::fs::{
    AppendMode, CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, File, Fs, MemFs, OpKind,
    is_out_of_handles,
};
use lsm_core::internals::names::{FileKind, FileName};
use siltstone::{
    Compression, Damage, Db, ErrorKind, Options, PartitionOptions, Result, VerifyMark,
    VerifyOptions,
};
use testkit::Rng;

use crate::forward::{forward_file, forward_fs};
use crate::store::stepped;

const DIR: &str = "/db";

fn options() -> Options {
    Options::new()
        .cache_bytes(64 << 10)
        .write_buffer_bytes(1 << 20)
        .wal_segment_bytes(4 << 10)
        .wal_bytes_max(1 << 20)
        .compaction_threads(1)
}

fn partition_options(compression: Compression) -> PartitionOptions {
    PartitionOptions::new()
        .compression(compression)
        .block_bytes(256)
        .table_bytes(2 << 10)
        .level0_tables(2)
        .level_base_bytes(2 << 10)
        .level_multiplier(2)
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

/// An open idle store: tables on several levels of two partitions, a log of several segments.
fn build(fs: &MemFs) -> Db {
    build_on(Arc::new(fs.clone()))
}

fn build_on(fs: Arc<dyn Fs>) -> Db {
    let db = stepped(fs, DIR, 1).options(options()).open().unwrap();
    db.partition_with("packed", partition_options(Compression::Lz4)).unwrap();
    db.partition_with("plain", partition_options(Compression::None)).unwrap();
    let mut rng = Rng::new(2);
    for round in 0..4 {
        let count = if round < 3 { 60 } else { 130 };
        for number in 0..count {
            for name in ["packed", "plain"] {
                let partition = db.partition(name).unwrap();
                let key = key(rng.next_u64() % 300);
                if number % 7 == 0 {
                    partition.delete(&key).unwrap();
                } else {
                    partition.put(&key, format!("{round}-{number}").repeat(4)).unwrap();
                }
            }
        }
        if round < 3 {
            db.flush().unwrap();
            db.wait_idle().unwrap();
        }
    }
    db.wait_idle().unwrap();
    db
}

fn kind(path: &Path) -> Option<FileKind> {
    FileName::parse(path.file_name()?.to_str()?).map(|name| name.kind)
}

fn files(fs: &MemFs, wanted: FileKind) -> Vec<PathBuf> {
    fs.paths().into_iter().filter(|path| kind(path) == Some(wanted)).collect()
}

fn damage(db: &Db) -> Vec<Damage> {
    db.verify(VerifyOptions::default()).unwrap().damage().to_vec()
}

#[test]
fn no_flipped_bit_of_a_live_file_is_missed_or_blamed_on_another() {
    let fs = MemFs::new();
    let db = build(&fs);
    let report = db.verify(VerifyOptions::new()).unwrap();
    assert!(report.is_sound(), "{report}");
    assert!(report.entries > 300, "{report}");
    let counts =
        [FileKind::Sst, FileKind::Wal, FileKind::Manifest].map(|kind| files(&fs, kind).len());
    assert!(counts[0] >= 6 && counts[1] >= 3 && counts[2] == 1, "{counts:?}");
    assert_eq!(report.files, counts.iter().sum::<usize>() as u64);
    let mut rng = Rng::new(3);
    let mut found = 0;
    let mut idle = 0;
    for path in fs.paths() {
        let Some(kind) = kind(&path) else { continue };
        let bytes = fs.read_raw(&path).unwrap();
        // After the last frame there are zeros, which the next frame overwrites.
        let end = match kind {
            FileKind::Wal => {
                let last = bytes.iter().rposition(|byte| *byte != 0);
                last.map_or(0, |at| (at + 1).next_multiple_of(8))
            }
            _ => bytes.len(),
        };
        let mut at = (rng.next_u64() % 16) as usize;
        while at < bytes.len() {
            let mask = 1 << (rng.next_u64() % 8);
            fs.corrupt(&path, at as u64, mask).unwrap();
            let damage = damage(&db);
            fs.corrupt(&path, at as u64, mask).unwrap();
            let what = format!("byte {at} of {end} of {}: {damage:?}", path.display());
            if at < end {
                found += 1;
                assert!(!damage.is_empty(), "{what}");
                assert!(damage.iter().all(|damage| damage.file == path), "{what}");
                if kind == FileKind::Sst {
                    assert!(damage.iter().all(|damage| damage.level.is_some()), "{what}");
                    assert!(damage.iter().all(|damage| damage.partition.is_some()), "{what}");
                }
                if kind == FileKind::Wal {
                    let offset = damage[0].offset.unwrap();
                    assert!(offset <= at as u64, "{what}");
                }
            } else {
                idle += 1;
                assert!(damage.is_empty(), "{what}");
            }
            at += 1 + (rng.next_u64() % if at < end { 70 } else { 1024 }) as usize;
        }
    }
    assert!(found > 500 && idle > 5, "{found} {idle}");
    assert!(damage(&db).is_empty());
}

#[test]
fn every_damaged_place_is_named_and_all_other_keys_read() {
    let fs = MemFs::new();
    let db = build(&fs);
    let content = |db: &Db| -> Vec<_> {
        let plain = db.partition("plain").unwrap();
        (0..300).map(|number| plain.get(key(number))).collect()
    };
    let before = content(&db);
    // A block at the front of each table, and one further on.
    let tables = files(&fs, FileKind::Sst);
    let len = |path: &PathBuf| fs.read_raw(path).unwrap().len();
    let harmed: Vec<_> = tables.iter().filter(|path| len(path) > 1600).collect();
    assert!(harmed.len() > 3, "{}", harmed.len());
    for path in &harmed {
        fs.corrupt(path, 3, 0x10).unwrap();
        fs.corrupt(path, 700, 0x10).unwrap();
    }
    let found = damage(&db);
    for path in harmed {
        let there: Vec<_> = found.iter().filter(|damage| damage.file == *path).collect();
        assert_eq!(there.len(), 2, "{there:?}");
        assert!(there[0].offset == Some(0) && there[1].offset < Some(700), "{there:?}");
    }
    // Closed, and opened with an empty cache: keys that no damage names read as before.
    db.close().unwrap();
    let db = stepped(Arc::new(fs), DIR, 1).open().unwrap();
    let mut lost = 0;
    for (number, (now, before)) in (0..).zip(content(&db).into_iter().zip(before)) {
        let key = key(number);
        match now {
            Ok(value) => assert_eq!(value, before.unwrap()),
            Err(_) => {
                lost += 1;
                assert!(
                    found.iter().any(|damage: &Damage| {
                        let (first, last) = damage.keys.as_ref().unwrap();
                        damage.partition.as_deref() == Some("plain")
                            && (first..=last).contains(&&key)
                    }),
                    "{}",
                    key.escape_ascii()
                );
            }
        }
    }
    assert!(lost > 0);
}

/// A file system with a page cache: its files are those of `cache`; reads past the cache go to the
/// `device`, once there is one.
#[derive(Clone)]
struct Paged {
    cache: MemFs,
    device: Arc<OnceLock<MemFs>>,
}

struct PagedFile {
    file: Arc<dyn File>,
    path: PathBuf,
    device: Arc<OnceLock<MemFs>>,
}

impl Paged {
    fn file(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(PagedFile { file, path: path.to_owned(), device: self.device.clone() })
    }
}

impl Fs for Paged {
    forward_fs!(cache);

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.cache.open_append(path, mode)?))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.cache.open_read(path)?))
    }
}

impl File for PagedFile {
    forward_file!();

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self.device.get() {
            Some(device) => device.open_read(&self.path)?.read_at(offset, buf),
            None => self.file.read_at(offset, buf),
        }
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }
}

#[test]
fn rot_below_the_page_cache_is_found_in_every_kind_of_file() {
    let cache = MemFs::new();
    let device = Arc::default();
    let paged = Paged { cache: cache.clone(), device };
    let db = build_on(Arc::new(paged.clone()));
    let device = cache.crash_clone(CrashOutcome::Everything, &mut || 0);
    assert!(paged.device.set(device.clone()).is_ok());
    assert!(damage(&db).is_empty());
    for wanted in [FileKind::Sst, FileKind::Wal, FileKind::Manifest] {
        for path in files(&device, wanted) {
            // In the header of a segment, a block, the snapshot; and further on, in a frame.
            for at in [20, 300] {
                device.corrupt(&path, at, 4).unwrap();
                let found = damage(&db);
                device.corrupt(&path, at, 4).unwrap();
                let is_reserve = wanted == FileKind::Wal && cache.read_raw(&path).unwrap()[0] == 0;
                assert!(is_reserve || !found.is_empty(), "{} at {at}", path.display());
                assert!(found.iter().all(|damage| damage.file == path), "{found:?}");
            }
        }
    }
    assert!(damage(&db).is_empty());
}

#[test]
fn a_damaged_log_is_read_to_its_end() {
    let fs = MemFs::new();
    let db = build(&fs);
    let segments = files(&fs, FileKind::Wal);
    for at in [200, 1500, 2600] {
        fs.corrupt(&segments[0], at, 0xff).unwrap();
    }
    fs.remove_raw(&segments[1]).unwrap();
    let damage = damage(&db);
    let places: Vec<_> = damage.iter().map(|damage| (&damage.file, damage.offset)).collect();
    assert_eq!(places.len(), 4, "{damage:?}");
    for (at, (file, offset)) in [200, 1500, 2600].into_iter().zip(&places) {
        assert_eq!(*file, &segments[0]);
        assert!(offset.is_some_and(|offset| offset <= at && at < offset + 100), "{places:?}");
    }
    assert_eq!(places[3], (&segments[1], None));
    assert!(damage[3].what.contains("missing"), "{damage:?}");
}

#[test]
fn an_intact_store_in_use_is_never_reported() {
    let fs = MemFs::new();
    let db = Db::builder(DIR)
        .fs(Arc::new(fs))
        .options(options().write_buffer_bytes(64 << 10))
        .open()
        .unwrap();
    for name in ["a", "b"] {
        db.partition_with(name, partition_options(Compression::Lz4)).unwrap();
    }
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (seed, name) in [(1, "a"), (2, "b"), (3, "a")] {
            let db = db.clone();
            let stop = &stop;
            let written = &written;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let partition = db.partition(name).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let key = key(rng.next_u64() % 2000);
                    match rng.next_u64() % 2000 {
                        0 => db.flush().unwrap(),
                        1 => partition.compact(..).unwrap(),
                        2 => {
                            // Another writer may drop it in between.
                            let put = db.partition("passing").unwrap().put(&key, "x");
                            let kind = put.err().map(|error| error.kind());
                            assert!(kind.is_none_or(|k| k == ErrorKind::PartitionNotFound));
                            let _ = db.drop_partition("passing");
                        }
                        n if n % 5 == 0 => drop(partition.delete(&key).unwrap()),
                        n => drop(partition.put(&key, "v".repeat(n as usize % 200)).unwrap()),
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut rounds = 0;
        while rounds < 150 || written.load(Ordering::Relaxed) < 40_000 {
            let report = db.verify(VerifyOptions::new());
            let is_sound = report.as_ref().is_ok_and(siltstone::VerifyReport::is_sound);
            // Before the assertion: the writers are joined when it fails, too.
            stop.fetch_or(!is_sound, Ordering::Relaxed);
            assert!(is_sound, "round {rounds}: {report:?}");
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(db.stats().compaction_count > 0 && db.stats().flush_count > 3);
    assert!(db.verify(VerifyOptions::new()).unwrap().is_sound());
}

/// Continues by itself, a little at each call of the clock.
#[derive(Default)]
pub(crate) struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(20, Ordering::Relaxed))
    }
}

#[test]
fn ingested_tables_are_sound_and_their_damage_is_found() {
    let fs = MemFs::new();
    let db = build(&fs);
    let plain = db.partition("plain").unwrap();
    plain.export(.., "/export").unwrap();
    let taken_in = db.partition_with("taken in", partition_options(Compression::None)).unwrap();
    taken_in.put("zzz", "before").unwrap();
    let before = files(&fs, FileKind::Sst);
    taken_in.ingest("/export").unwrap();
    assert_eq!(taken_in.get(key(1)).unwrap(), plain.get(key(1)).unwrap());
    let report = db.verify(VerifyOptions::new()).unwrap();
    assert!(report.is_sound(), "{report}");
    // Versions of an ingested key have the sequence number of the ingest.
    let versions = plain.versions(key(2)).unwrap();
    let versions_taken_in = taken_in.versions(key(2)).unwrap();
    assert_eq!(versions_taken_in.len(), usize::from(plain.contains(key(2)).unwrap()));
    assert!(versions_taken_in.iter().all(|version| version.seq > versions[0].seq));
    let mut new = files(&fs, FileKind::Sst);
    new.retain(|path| path.starts_with(DIR) && !before.contains(path));
    fs.corrupt(&new[0], 9, 1).unwrap();
    let found = damage(&db);
    assert_eq!((found.len(), &found[0].file), (1, &new[0]));
}
