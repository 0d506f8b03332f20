//! Buckets with keys: no object shows the data, every part reads it, changed objects are found, keys change.

#![expect(
    clippy::disallowed_methods,
    reason = "the tests look at the objects of a bucket, and change them"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
use lsm_core::fs::{FaultFs, OpenFiles, TableFile, Uncached};
use remote::{Remote, RestoreTarget};
use siltstone::fs::{AppendMode, CrashOutcome, File, Fs, MemFs, OsFs};
use siltstone::secondary::{Level, Target};
use siltstone::{
    BackgroundMode, Db, Durability, ErrorKind, LargeValueOptions, PartitionOptions, Readable,
    Result, VerifyOptions,
};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

const SECRET: &str = "no one reads this in the bucket";
const KEY_OBJECT: &str = "encryption/key";

fn ring(id: &str, byte: u8) -> Arc<KeyRing> {
    Arc::new(KeyRing::new(KeyId::new(id).unwrap(), EncryptionKey::new([byte; 32])))
}

/// A folder with a bucket in it.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bucket")).unwrap();
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn plain(&self) -> Remote {
        Remote::url(&format!("file://{}", self.path("bucket").display())).unwrap()
    }

    fn with(&self, keys: &Arc<KeyRing>) -> Remote {
        let fs = EncryptedFs::new(Arc::new(OsFs), keys.clone());
        self.plain().keys(keys.clone()).fs(Arc::new(fs))
    }

    fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        let mut objects = BTreeMap::new();
        add_objects(&self.path("bucket"), "", &mut objects);
        objects
    }

    #[track_caller]
    fn check_no_object_shows_the_data(&self) {
        for (name, bytes) in self.objects() {
            assert!(!bytes.windows(12).any(|part| part == &SECRET.as_bytes()[..12]), "{name}");
            let magic: &[u8] = if name == KEY_OBJECT { b"SILTCRYP" } else { b"SILP" };
            assert!(bytes.starts_with(magic), "{name}");
        }
    }
}

fn add_objects(dir: &Path, above: &str, objects: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{above}{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => add_objects(&entry.path(), &format!("{name}/"), objects),
            false => drop(objects.insert(name, std::fs::read(entry.path()).unwrap())),
        }
    }
}

fn fill(db: &Db, rows: u32) {
    let large = LargeValueOptions::default().threshold_bytes(1 << 10);
    let users = db.partition_with("users", PartitionOptions::new().large_values(large)).unwrap();
    for n in 0..rows {
        let len = if n % 10 == 0 { 3000 } else { 50 };
        let value = SECRET.repeat(len / SECRET.len() + 1);
        users.put(format!("{SECRET} {n:05}"), value).unwrap();
    }
    users.put_with("last", SECRET, Durability::Sync).unwrap();
}

fn check_rows(users: &impl Readable, rows: u32) {
    let mut seen = 0;
    for entry in users.iter() {
        let (key, value) = entry.unwrap();
        assert!(value.starts_with(SECRET.as_bytes()), "{}", key.escape_ascii());
        seen += 1;
    }
    assert_eq!(seen, rows + 1);
}

#[test]
fn no_object_shows_the_data_and_every_part_of_a_remote_reads_it() {
    let place = Place::new();
    let keys = ring("k1", 7);
    let remote = place.with(&keys);
    let primary = remote.primary(place.path("first")).unwrap();
    let db = primary.builder().open().unwrap();
    fill(&db, 400);
    db.flush().unwrap();
    // Longer than what is put as a whole.
    let big = SECRET.repeat((17 << 20) / SECRET.len());
    db.partition("users").unwrap().put_with("big", &big, Durability::Sync).unwrap();
    primary.ship().unwrap();
    let reader = place.with(&keys).cache_dir(place.path("cache"), 4 << 20).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    let reading = users.at(Level::Strong).unwrap();
    check_rows(&reading, 401);
    assert_eq!(reading.get("big").unwrap().as_deref(), Some(big.as_bytes()));
    drop(reading);
    // What comes after the open, from the log.
    db.partition("users").unwrap().put_with("more", SECRET, Durability::Sync).unwrap();
    users.sync(Target::Latest).unwrap();
    check_rows(&users.at(Level::Eventual).unwrap(), 402);
    assert!(remote.verify().unwrap().is_sound());
    assert_eq!(remote.status().unwrap().garbage.objects, 0);

    let second = remote.take_over(place.path("second")).unwrap();
    let new = second.builder().open().unwrap();
    check_rows(&new.partition("users").unwrap(), 402);
    second.restore().unwrap();
    assert!(new.verify(VerifyOptions::default()).unwrap().is_sound());
    remote.restore(place.path("restored"), RestoreTarget::Latest).unwrap();
    let fs = EncryptedFs::new(Arc::new(OsFs), keys.clone());
    let restored = Db::builder(place.path("restored")).fs(Arc::new(fs)).open().unwrap();
    check_rows(&restored.partition("users").unwrap(), 402);
    place.check_no_object_shows_the_data();

    let other = Place::new();
    let other_keys = ring("k2", 8);
    remote.copy_to(&other.with(&other_keys)).unwrap();
    let copied = other.with(&other_keys).reader().unwrap().builder().open().unwrap();
    check_rows(&copied.partition("users").unwrap(), 402);
    other.check_no_object_shows_the_data();
    for folder in ["cache", "second", "restored"] {
        let mut files = BTreeMap::new();
        add_objects(&place.path(folder), "", &mut files);
        for (name, bytes) in files {
            let shows = bytes.windows(12).any(|part| part == &SECRET.as_bytes()[..12]);
            assert!(!shows, "{folder}/{name}");
        }
    }
}

#[test]
fn backups_in_a_bucket_are_encrypted_and_share_as_others_do() {
    let place = Place::new();
    let keys = ring("k1", 7);
    let db = Db::open(place.path("db")).unwrap();
    fill(&db, 400);
    let backups = place.plain().keys(keys.clone()).backups();
    let first = backups.create_backup(&db).unwrap();
    db.partition("users").unwrap().put("more", SECRET).unwrap();
    let second = backups.create_backup(&db).unwrap();
    assert!(second.new_bytes < second.size, "{second:?}");
    for (id, rows) in [(first.backup_id, 400), (second.backup_id, 401)] {
        assert!(backups.verify(Some(id)).unwrap().is_sound());
        let path = place.path(&format!("restored {id}"));
        backups.restore(id, &path).unwrap();
        check_rows(&Db::open(&path).unwrap().partition("users").unwrap(), rows);
    }
    place.check_no_object_shows_the_data();
    let refused = place.plain().backups().info().map(drop).unwrap_err();
    assert!(refused.to_string().contains("opened without keys"), "{refused}");
    let refused = place.plain().backups().create_backup(&db).map(drop).unwrap_err();
    assert!(refused.to_string().contains("opened without keys"), "{refused}");
}

#[track_caller]
fn refused<T>(outcome: Result<T>, kind: ErrorKind, what: &str) {
    let error = outcome.map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn a_bucket_opens_with_its_keys_alone_and_a_refused_open_changes_nothing() {
    use ErrorKind::InvalidArgument;
    let place = Place::new();
    let keys = ring("k1", 7);
    let primary = place.with(&keys).primary(place.path("first")).unwrap();
    fill(&primary.builder().open().unwrap(), 10);
    drop(primary);
    let before = place.objects();
    for (remote, what) in [
        (place.plain(), "the bucket is encrypted, and was opened without keys"),
        (place.plain().keys(ring("k1", 8)), "encryption/key is encrypted with another key"),
        (place.plain().keys(ring("k2", 7)), "encryption/key is encrypted with the key k1"),
    ] {
        refused(remote.reader(), InvalidArgument, what);
        refused(remote.take_over(place.path("second")), InvalidArgument, what);
        refused(remote.verify(), InvalidArgument, what);
        refused(remote.restore(place.path("none"), RestoreTarget::Latest), InvalidArgument, what);
    }
    assert!(place.objects() == before);
    // The other way round.
    let plain = Place::new();
    drop(plain.plain().primary(plain.path("first")).unwrap());
    let before = plain.objects();
    let remote = plain.plain().keys(keys.clone());
    let what = "the bucket is not encrypted";
    refused(
        remote.reader(),
        InvalidArgument,
        "the bucket is not encrypted, and was opened with keys",
    );
    refused(remote.take_over(plain.path("second")), InvalidArgument, what);
    refused(
        remote.backups().create_backup(&Db::open(plain.path("db")).unwrap()),
        InvalidArgument,
        what,
    );
    assert!(plain.objects() == before);
    assert_eq!(plain.plain().key_id().unwrap(), None);
    refused(plain.plain().rewrap_key(&*keys), InvalidArgument, "the bucket is not encrypted");
    // A lost key is no empty bucket.
    std::fs::remove_file(place.path("bucket").join(KEY_OBJECT)).unwrap();
    refused(place.with(&keys).reader(), ErrorKind::Corruption, "the key of the bucket is missing");
    refused(place.with(&keys).take_over(place.path("second")), InvalidArgument, "is not encrypted");
}

/// Verifies the bucket, and reads each value.
fn read_all(place: &Place, keys: &Arc<KeyRing>) -> Result<()> {
    let report = place.with(keys).verify()?;
    if let Some(wrong) = report.wrong.first() {
        let what = format!("{} {}", wrong.name, wrong.what);
        return Err(siltstone::Error::new(ErrorKind::Corruption, what));
    }
    let seen = place.with(keys).reader()?.builder().open()?;
    seen.partition("users")?.iter().try_for_each(|entry| entry.map(drop))
}

#[test]
fn each_changed_object_is_found_and_named() {
    let place = Place::new();
    let keys = ring("k1", 7);
    let primary = place.with(&keys).primary(place.path("first")).unwrap();
    let db = primary.builder().open().unwrap();
    fill(&db, 100);
    db.flush().unwrap();
    db.close().unwrap();
    drop(primary);
    let mut found = 0;
    for (name, bytes) in place.objects() {
        let path = place.path("bucket").join(&name);
        for at in [0, 5, 12, bytes.len() / 2, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            match read_all(&place, &keys) {
                Err(error) => {
                    let kinds = [ErrorKind::Corruption, ErrorKind::Unsupported];
                    assert!(kinds.contains(&error.kind()), "{name} at {at}: {error}");
                    found += 1;
                }
                // One place of the key's two is enough; no one reads an old base or a boundary that is not needed.
                Ok(()) => check_rows(
                    &place
                        .with(&keys)
                        .reader()
                        .unwrap()
                        .builder()
                        .open()
                        .unwrap()
                        .partition("users")
                        .unwrap(),
                    100,
                ),
            }
        }
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(found > 20, "{found}");
}

#[test]
fn a_key_is_changed_while_primary_and_reader_go_on() {
    let place = Place::new();
    let keys = ring("k1", 7);
    let remote = place.with(&keys);
    let primary = remote.primary(place.path("first")).unwrap();
    let db = primary.builder().open().unwrap();
    fill(&db, 10);
    let secondary = remote.reader().unwrap().secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    let new = ring("k2", 8);
    refused(remote.rewrap_key(&*new), ErrorKind::InvalidArgument, "the key k1");
    keys.rotate_to(KeyId::new("k2").unwrap(), EncryptionKey::new([8; 32]));
    // Objects of the commits before are made in the background.
    db.wait_durable(db.visible_seq()).unwrap();
    let before = place.objects();
    assert!(remote.rewrap_key(&*keys).unwrap());
    assert!(!remote.rewrap_key(&*keys).unwrap(), "it belongs to the key already");
    let changed: Vec<_> = place
        .objects()
        .into_iter()
        .filter(|(name, bytes)| before.get(name) != Some(bytes))
        .collect();
    assert!(changed.iter().all(|(name, _)| name == KEY_OBJECT), "{}", changed.len());
    assert_eq!(place.plain().key_id().unwrap().unwrap().as_str(), "k2");
    // Those that are open have the data key.
    db.partition("users").unwrap().put_with("more", SECRET, Durability::Sync).unwrap();
    check_rows(&users.at(Level::Strong).unwrap(), 11);
    let seen = place.plain().keys(new).reader().unwrap().builder().open().unwrap();
    check_rows(&seen.partition("users").unwrap(), 11);
    let old = place.plain().keys(ring("k1", 7));
    refused(old.reader(), ErrorKind::InvalidArgument, "the key k2, which is not given");
}

#[test]
fn writers_that_begin_at_once_have_one_key() {
    let store = Remote::memory().unwrap().store();
    std::thread::scope(|scope| {
        for writer in 0..8_u8 {
            let remote = Remote::with_store(store.clone()).keys(ring("k1", 7));
            scope.spawn(move || {
                let objects = remote.numbered(&format!("record-{writer}"));
                assert!(objects.put(1, &[writer; 100]).unwrap());
            });
        }
    });
    let remote = Remote::with_store(store).keys(ring("k1", 7));
    for writer in 0..8_u8 {
        let objects = remote.numbered(&format!("record-{writer}"));
        assert_eq!(objects.get(1).unwrap().unwrap(), [writer; 100]);
        // A later call that puts the same is that of the same writer: its answer may have been lost.
        assert!(objects.put(1, &[writer; 100]).unwrap());
        assert!(!objects.put(1, &[100; 100]).unwrap());
    }
}

/// A power cut tears the unsynced ends of chunk files, and the headers of new ones.
#[test]
fn what_a_power_cut_tears_of_an_encrypted_folder_keeps_no_primary_from_its_open() {
    let mut rng = Rng::new(910);
    let keys = ring("k1", 7);
    for case in 0..70 {
        let store = SimStore::new(Objects::default(), rng.fork());
        let disk = MemFs::new();
        let primary = over(&store, &disk, &keys, &mut rng).primary("/db").unwrap();
        let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
        let large = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(60_000);
        let values =
            db.partition_with("values", PartitionOptions::new().large_values(large)).unwrap();
        if case % 2 == 0 {
            values.put_with("synced", rng.bytes(5000), Durability::Sync).unwrap();
        }
        for number in 0..rng.range(1..12) {
            let len = *rng.pick(&[120, 300, 3000, 40_000]);
            values.put_with(number.to_be_bytes(), rng.bytes(len), Durability::Os).unwrap();
        }
        let outcome = CrashOutcome::ALL[case % CrashOutcome::ALL.len()];
        let disk = disk.crash_clone(outcome, &mut || rng.next_u64());
        drop((db, primary));
        let again = over(&store, &disk, &keys, &mut rng).primary("/db").unwrap();
        let db = again.builder().background(BackgroundMode::Stepped).open().unwrap();
        let here = entries(&db);
        assert!(case % 2 == 1 || here.contains_key(&b"synced"[..]), "{outcome:?}");
        assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
        again.ship().unwrap();
        drop((db, again));
        // The bucket has all that the open has kept.
        let other = over(&store, &MemFs::new(), &keys, &mut rng).take_over("/db").unwrap();
        let db = other.builder().background(BackgroundMode::Stepped).open().unwrap();
        assert!(entries(&db) == here, "{outcome:?}");
        assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
    }
}

/// The journal has the creation of a chunk file, and a power cut tears the header that came after it.
#[test]
fn a_torn_header_of_a_file_without_bytes_in_the_bucket_keeps_no_primary_from_its_open() {
    let mut rng = Rng::new(911);
    let keys = ring("k1", 7);
    let path = Path::new("/db/0000000000000064-00000063.chunk");
    let mut torn = 0;
    for case in 0..70 {
        let store = SimStore::new(Objects::default(), rng.fork());
        let disk = MemFs::new();
        let primary = over(&store, &disk, &keys, &mut rng).primary("/db").unwrap();
        let chunk = primary.fs().open_append(path, AppendMode::IfAbsent).unwrap();
        primary.fs().sync_dir(Path::new("/db")).unwrap();
        primary.ship().unwrap();
        chunk.append(&rng.bytes(3000)).unwrap();
        let outcome = CrashOutcome::ALL[case % CrashOutcome::ALL.len()];
        let disk = disk.crash_clone(outcome, &mut || rng.next_u64());
        drop(primary);
        let fs = EncryptedFs::new(Arc::new(disk.clone()), keys.clone());
        torn += usize::from(fs.open_read(path).is_err());
        over(&store, &disk, &keys, &mut rng).primary("/db").unwrap();
    }
    assert!(torn > 0);
}

/// The parts that can be read are asked for through every file system around the encrypted one.
#[test]
fn a_file_around_an_encrypted_one_has_its_readable_parts() {
    let mut rng = Rng::new(912);
    let keys = ring("k1", 7);
    let store = SimStore::new(Objects::default(), rng.fork());
    let disk = MemFs::new();
    let path = Path::new("/db/0000000000000064-00000063.chunk");
    let primary = over(&store, &disk, &keys, &mut rng).primary("/db").unwrap();
    let fs = primary.fs();
    // A takeover wants one.
    let manifest = Path::new("/db/0000000000000062-00000063.manifest");
    let manifest = fs.open_append(manifest, AppendMode::IfAbsent).unwrap();
    manifest.append(b"whole").unwrap();
    manifest.sync().unwrap();
    let shipped = fs.open_append(path, AppendMode::IfAbsent).unwrap();
    let encrypted: Arc<dyn Fs> = Arc::new(EncryptedFs::new(Arc::new(disk.clone()), keys.clone()));
    let open = OpenFiles::new(encrypted.clone(), 10);
    let other_path = Path::new("/db/appended");
    let appended = open.create(other_path).unwrap();
    for _ in 0..20 {
        shipped.append(&rng.bytes(4096)).unwrap();
        appended.append(&rng.bytes(4096)).unwrap();
    }
    shipped.sync().unwrap();
    let other_disk = MemFs::new();
    let other = over(&store, &other_disk, &keys, &mut rng).take_over("/db").unwrap();
    let restored = other.fs().open_read(path).unwrap();
    other.restore().unwrap();
    damage(&disk, path);
    damage(&disk, other_path);
    damage(&other_disk, path);
    let around: [(&MemFs, &Path, Arc<dyn File>); 6] = [
        (&disk, path, shipped),
        (&disk, other_path, appended),
        (&disk, path, Arc::new(TableFile::open(&open, path).unwrap())),
        (&disk, path, Uncached(encrypted.clone()).open_read(path).unwrap()),
        (&disk, path, FaultFs::new(encrypted).open_read(path).unwrap()),
        (&other_disk, path, restored),
    ];
    for (number, (disk, path, file)) in around.into_iter().enumerate() {
        let encrypted = EncryptedFs::new(Arc::new(disk.clone()), keys.clone());
        let len = 20 * 4096;
        let parts = encrypted.open_read(path).unwrap().readable(0..len).unwrap();
        assert_eq!(parts.len(), 2, "{parts:?}");
        assert_eq!(file.readable(0..len).unwrap(), parts, "{number}");
    }
}

/// Writes over bytes in the middle of an encrypted file.
fn damage(disk: &MemFs, path: &Path) {
    let mut raw = vec![0; disk.open_read(path).unwrap().len().unwrap() as usize];
    disk.open_read(path).unwrap().read_at(0, &mut raw).unwrap();
    raw[20_000..40_000].fill(7);
    disk.write_raw(path, &raw).unwrap();
}

/// A machine whose disk is encrypted.
fn over(store: &Arc<SimStore>, disk: &MemFs, keys: &Arc<KeyRing>, rng: &mut Rng) -> Remote {
    let fs = EncryptedFs::new(Arc::new(disk.clone()), keys.clone());
    remote_of(store, disk, rng).fs(Arc::new(fs))
}

fn entries(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let Ok(values) = db.open_partition("values") else { return BTreeMap::new() };
    values
        .iter()
        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
        .collect()
}
