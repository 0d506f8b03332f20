//! The file system of a primary, called as the engine calls it.

use std::path::Path;
use std::sync::Arc;

use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use remote::{Ack, Primary};
use siltstone::fs::{AppendMode, CrashOutcome, File, Fs, MemFs};
use siltstone::secondary::Level;
use siltstone::{BackgroundMode, Durability, Readable};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

const LOG: &str = "/db/0000000000000063-00000063.wal";
const MANIFEST: &str = "/db/0000000000000062-00000063.manifest";
/// Logs and manifests wait for the recovery, and this does not.
const CLAIM: &str = "/db/epoch-63";
const CHUNK: &str = "/db/0000000000000064-00000063.chunk";
const TABLE: &str = "/db/0000000000000063-00000063.sst";

fn create(fs: &dyn Fs, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = fs.open_append(Path::new(path), AppendMode::IfAbsent).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
    file
}

fn append(fs: &dyn Fs, path: &str, bytes: &[u8]) -> siltstone::Result<()> {
    let file = fs.open_append(Path::new(path), AppendMode::Existing)?;
    file.append(bytes)?;
    file.sync()
}

/// A primary of a new machine, with its store and its disk.
fn primary(objects: &Objects, rng: &mut Rng) -> (Primary, Arc<SimStore>, MemFs) {
    let store = SimStore::new(objects.clone(), rng.fork());
    let disk = MemFs::new();
    let primary = remote_of(&store, &disk, rng).take_over("/db").unwrap();
    (primary, store, disk)
}

#[test]
fn changes_that_do_not_fit_are_refused_and_leave_the_journal_readable() {
    let mut rng = Rng::new(51);
    let objects = Objects::default();
    let (first, store, disk) = primary(&objects, &mut rng);
    create(&*first.fs(), CLAIM, b"one");
    // Bytes that the journal does not know of, as of an append that failed in its middle.
    append(&disk, CLAIM, b"torn").unwrap();
    append(&*first.fs(), CLAIM, b"two").unwrap_err();
    append(&*first.fs(), CLAIM, b"three").unwrap_err();
    assert!(!first.status().is_fenced);
    remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
    // The next open compares the folder with the journal, and ships the difference.
    drop(first);
    let second = remote_of(&store, &disk, &mut rng).primary("/db").unwrap();
    let reader = remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
    let mut bytes = [0; 15];
    assert_eq!(reader.open_read(Path::new(CLAIM)).unwrap().read_at(0, &mut bytes).unwrap(), 15);
    assert_eq!(bytes, *b"onetorntwothree");
    drop(second);
}

#[test]
fn a_deletion_that_waits_is_counted() {
    let mut rng = Rng::new(52);
    let (primary, ..) = primary(&Objects::default(), &mut rng);
    create(&*primary.fs(), LOG, b"one");
    assert_eq!(primary.status().waiting_bytes, 0);
    primary.fs().delete(Path::new(LOG)).unwrap();
    assert!(primary.status().waiting_bytes > 0);
    primary.ship().unwrap();
    assert_eq!(primary.status().waiting_bytes, 0);
}

#[test]
fn a_base_has_no_bytes_of_a_file_that_is_shorter_than_written() {
    let mut rng = Rng::new(53);
    let objects = Objects::default();
    let (primary, _, disk) = primary(&objects, &mut rng);
    create(&*primary.fs(), LOG, b"one");
    disk.delete(Path::new(LOG)).unwrap();
    create(&disk, LOG, b"o");
    let refused = primary.ship().unwrap_err();
    assert!(refused.damage().is_some(), "{refused}");
    assert!(!objects.lock().keys().any(|name| name.starts_with("base/")));
}

#[test]
fn a_restore_leaves_no_file_that_was_deleted_meanwhile() {
    let mut rng = Rng::new(54);
    let objects = Objects::default();
    let (first, ..) = primary(&objects, &mut rng);
    create(&*first.fs(), MANIFEST, b"whole");
    create(&*first.fs(), TABLE, &[7; 100]);
    first.ship().unwrap();
    let (second, store, disk) = primary(&objects, &mut rng);
    assert_eq!(second.status().remote_files, 1);
    let fs = second.fs();
    store.pause_in(0, move || fs.delete(Path::new(TABLE)).unwrap());
    second.restore().unwrap();
    second.ship().unwrap();
    assert_eq!(disk.list(Path::new("/db"), "0000000000000063").unwrap(), []);
}

#[test]
fn two_restores_of_a_file_make_one_whole_file() {
    let mut rng = Rng::new(55);
    let objects = Objects::default();
    let (first, ..) = primary(&objects, &mut rng);
    create(&*first.fs(), MANIFEST, b"whole");
    create(&*first.fs(), TABLE, &vec![7; 11 << 20]);
    first.ship().unwrap();
    let (second, store, disk) = primary(&objects, &mut rng);
    let second = Arc::new(second);
    let (sender, receiver) = std::sync::mpsc::channel();
    let other = second.clone();
    // In the middle of the first one.
    store.pause_in(1, move || {
        sender.send(std::thread::spawn(move || other.restore())).unwrap();
    });
    second.restore().unwrap();
    receiver.recv().unwrap().join().unwrap().unwrap();
    assert_eq!(disk.open_read(Path::new(TABLE)).unwrap().len().unwrap(), 11 << 20);
}

/// The log thread appends the index of a segment, without a lock, that a flush may delete meanwhile.
#[test]
fn a_change_of_a_file_that_is_deleted_is_not_in_the_journal() {
    let mut rng = Rng::new(57);
    let objects = Objects::default();
    let (primary, store, disk) = primary(&objects, &mut rng);
    let fs = primary.fs();
    for (number, ending) in (1..).zip(["wal", "chunk", "manifest"]) {
        for is_shipped in [false, true] {
            let path = format!("/db/{number:016x}-0000000{}.{ending}", u8::from(is_shipped));
            let file = create(&*fs, &path, b"one");
            fs.delete(Path::new(&path)).unwrap();
            if is_shipped {
                primary.ship().unwrap();
            }
            file.append(b"two").unwrap();
            file.preallocate(100).unwrap();
            file.append(b"three").unwrap();
            file.sync().unwrap();
            primary.ship().unwrap();
        }
    }
    create(&*fs, LOG, b"one");
    assert_eq!(disk.list(Path::new("/db"), "0000").unwrap().len(), 1);
    let reader = remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
    assert_eq!(reader.list_names(Path::new(""), "0000").unwrap().len(), 1);
}

#[test]
fn the_log_is_appended_to_through_a_mapping_as_without_a_bucket() {
    let mut rng = Rng::new(56);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let faults = FaultFs::new(Arc::new(MemFs::new()));
    let remote = remote_of(&store, &MemFs::new(), &mut rng).fs(Arc::new(faults.clone()));
    let primary = remote.primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    faults.start_log();
    db.partition("users").unwrap().put_with("key", "x", Durability::Sync).unwrap();
    let maps = faults.take_log().into_iter().filter(|op| op.kind == OpKind::Map);
    let mapped: Vec<_> = maps.filter(|op| op.path.to_string_lossy().ends_with(".wal")).collect();
    assert!(!mapped.is_empty(), "a log is mapped");
    // Its bytes are shipped as those of other files.
    let reader = remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    assert!(users.at(Level::Strong).unwrap().contains("key").unwrap());
}

/// The shipper syncs a chunk file before it puts a range of it. The system reports a failure to it alone.
#[test]
fn a_failed_sync_of_the_shipper_is_one_of_the_chunk_file_and_stops_no_other_file() {
    for action in [FaultAction::SyncLost, FaultAction::SyncReverted] {
        for (ack, is_encrypted) in [(Ack::Stored, false), (Ack::Local, false), (Ack::Local, true)] {
            println!("{action:?} {ack:?} {is_encrypted}");
            let mut rng = Rng::new(57);
            let store = SimStore::new(Objects::default(), rng.fork());
            let mem = MemFs::new();
            let disk = FaultFs::over_mem(mem.clone());
            let id = KeyId::new("k1").unwrap();
            let keys = Arc::new(KeyRing::new(id, EncryptionKey::new([7; 32])));
            let mut fs: Arc<dyn Fs> = Arc::new(disk.clone());
            if is_encrypted {
                fs = Arc::new(EncryptedFs::new(fs, keys.clone()));
            }
            let remote = remote_of(&store, &MemFs::new(), &mut rng).fs(fs).ack(ack);
            let primary = remote.take_over("/db").unwrap();
            let fs = primary.fs();
            // Under `Ack::Local` this is acknowledged, and not put before the failure.
            let chunk = create(&*fs, CHUNK, b"synced");
            chunk.append(b"and not").unwrap();
            let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".chunk".to_owned(), nth: 0 };
            disk.add_rule(FaultRule::once(at, action));
            primary.ship().unwrap();
            assert_eq!(disk.fault_count(), 1);
            for _ in 0..2 {
                chunk.sync().unwrap_err();
            }
            create(&*fs, CLAIM, b"one");
            primary.ship().unwrap();
            let reader = remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
            let mut bytes = [0; 6];
            let shipped = reader.open_read(Path::new(CHUNK)).unwrap();
            assert_eq!(shipped.read_at(0, &mut bytes).unwrap(), 6);
            assert_eq!(bytes, *b"synced");
            // The bucket has no more than the disk after a power cut, so the folder goes on.
            assert_eq!(shipped.len().unwrap(), 6);
            drop((shipped, reader, fs, chunk, primary));
            let cut = mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
            let mut fs: Arc<dyn Fs> = Arc::new(cut);
            if is_encrypted {
                fs = Arc::new(EncryptedFs::new(fs, keys.clone()));
            }
            remote_of(&store, &MemFs::new(), &mut rng).fs(fs).ack(ack).primary("/db").unwrap();
        }
    }
}
