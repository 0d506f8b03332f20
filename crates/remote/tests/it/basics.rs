//! The calls of a remote, one by one: on real threads and a store in memory or in a folder.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
use remote::{Ack, Remote, RestoreTarget};
use siltstone::changes::FeedItem;
use siltstone::fs::{CrashOutcome, Fs, MemFs, OsFs};
use siltstone::operators::AppendOperator;
use siltstone::secondary::{Level, Target};
use siltstone::{
    Db, Durability, ErrorKind, Options, PartitionOptions, PrefixExtractor, Readable, SeqNo,
    VerifyOptions,
};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

fn put(db: &Db, key: &str, durability: Durability) {
    db.partition("users").unwrap().put_with(key, "x", durability).unwrap();
}

fn has(db: &Db, key: &str) -> bool {
    db.partition("users").unwrap().contains(key).unwrap()
}

#[test]
fn a_shared_folder_serves_a_primary_readers_and_a_takeover() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    OsFs.create_dir(&bucket).unwrap();
    let remote = Remote::url(&format!("file://{}", bucket.display())).unwrap();
    let first = remote.primary(folder.path().join("first")).unwrap();
    let db = first.builder().open().unwrap();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let db = db.clone();
            std::thread::spawn(move || {
                (0..10).for_each(|n| put(&db, &format!("{writer}-{n}"), Durability::Sync));
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let reader = remote.reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    put(&db, "last", Durability::Sync);
    assert!(users.at(Level::Strong).unwrap().contains("last").unwrap());
    db.flush().unwrap();
    let second = remote.take_over(folder.path().join("second")).unwrap();
    let new = second.builder().open().unwrap();
    let refused = db.partition("users").unwrap().put_with("late", "x", Durability::Sync);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    assert!(db.is_fenced());
    assert!((0..4).all(|writer| (0..10).all(|n| has(&new, &format!("{writer}-{n}")))));
    assert!(second.status().restore.files > 0);
    second.restore().unwrap();
    assert_eq!(second.status().remote_files, 0);
    assert!(has(&new, "last") && !has(&new, "late"));
    put(&new, "newer", Durability::Sync);
    assert!(users.at(Level::Strong).unwrap().contains("newer").unwrap());
    // The old machine returns.
    drop(db);
    drop(first);
    let refused = remote.primary(folder.path().join("first")).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(refused.to_string().contains("take_over"), "{refused}");
    new.close().unwrap();
    drop(second);
    let back = remote.take_over(folder.path().join("first")).unwrap();
    assert!(has(&back.builder().open().unwrap(), "newer"));
}

#[test]
fn a_reader_of_a_bucket_follows_the_changes() {
    let folder = tempfile::tempdir().unwrap();
    let remote = Remote::url("memory:///").unwrap();
    let first = remote.primary(folder.path().join("first")).unwrap();
    let db = first.builder().options(Options::new().log_retained_bytes(u64::MAX)).open().unwrap();
    let reader = remote.reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let mut changes = secondary.changes(SeqNo::ZERO).unwrap();
    for round in 1..4_u64 {
        put(&db, &format!("{round}"), Durability::Sync);
        db.flush().unwrap();
        let FeedItem::Commit(batch) = changes.try_next().unwrap().unwrap() else {
            panic!("{round}")
        };
        assert_eq!(batch.seq.get(), round);
        assert!(changes.try_next().unwrap().is_none());
    }
    // Another machine goes on, with the log of the first one.
    let second = remote.take_over(folder.path().join("second")).unwrap();
    let new = second.builder().options(Options::new().log_retained_bytes(u64::MAX)).open().unwrap();
    put(&new, "4", Durability::Sync);
    let mut numbers = Vec::new();
    let mut own = new.changes(SeqNo::ZERO).unwrap();
    while let Some(FeedItem::Commit(batch)) = own.try_next().unwrap() {
        numbers.push(batch.seq.get());
    }
    assert_eq!(numbers, [1, 2, 3, 4]);
    let FeedItem::Commit(batch) = changes.try_next().unwrap().unwrap() else { panic!("no commit") };
    assert_eq!(batch.seq.get(), 4);
}

#[test]
fn a_reader_of_a_bucket_spares_tables_without_the_prefix_of_a_scan() {
    let remote = Remote::memory().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let primary = remote.primary(folder.path().join("first")).unwrap();
    let db = primary.builder().open().unwrap();
    let options =
        PartitionOptions::new().level0_tables(100).prefix_extractor(PrefixExtractor::Through(b'/'));
    let mails = db.partition_with("mails", options).unwrap();
    for keys in [["a/1", "c/1"], ["a/2", "c/2"], ["a/3", "b/1"]] {
        for key in keys {
            mails.put(key, "x").unwrap();
        }
        db.flush().unwrap();
    }
    mails.put_with("a/4", "x", Durability::Sync).unwrap();
    let reader = remote.reader().unwrap();
    let seen = reader.builder().open().unwrap();
    let mails = seen.partition("mails").unwrap();
    assert_eq!(mails.prefix("b/").count(), 1);
    let stats = seen.stats();
    assert_eq!((stats.prefix_asked_count, stats.prefix_spared_count), (3, 2));
    assert_eq!(mails.prefix("a/").count(), 4);
}

/// The bytes of all files in `dir` as they are on the disk, in one piece.
fn all_bytes(dir: &std::path::Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in OsFs.list(dir, "").unwrap() {
        let file = OsFs.open_read(&dir.join(&entry.name)).unwrap();
        let mut bytes = vec![0; entry.len as usize];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        all.append(&mut bytes);
    }
    all
}

#[test]
fn the_local_folder_of_a_primary_is_encrypted_and_its_bucket_is_not() {
    const SECRET: &str = "not to be read on the disk";
    let keys = KeyRing::new(KeyId::new("k1").unwrap(), EncryptionKey::random().unwrap());
    let fs = Arc::new(EncryptedFs::new(Arc::new(OsFs), Arc::new(keys)));
    for ack in [Ack::Stored, Ack::Local] {
        let folder = tempfile::tempdir().unwrap();
        let bucket = folder.path().join("bucket");
        OsFs.create_dir(&bucket).unwrap();
        let plain = Remote::url(&format!("file://{}", bucket.display())).unwrap().ack(ack);
        let remote = plain.clone().fs(fs.clone());
        let local = folder.path().join("first");
        for round in 0..3 {
            let primary = remote.primary(&local).unwrap();
            assert_eq!(primary.status().remote_files, 0, "the folder is whole");
            let db = primary.builder().open().unwrap();
            // More than one append to the table: then a list shows more than its length.
            let users = db.partition("users").unwrap();
            for n in 0..300 {
                users.put(format!("{SECRET} {round} {n}"), vec![b'x'; 10 << 10]).unwrap();
            }
            put(&db, &format!("{SECRET} {round}"), Durability::Sync);
            db.flush().unwrap();
            assert!(has(&db, &format!("{SECRET} 0 7")));
            db.close().unwrap();
        }
        let bytes = all_bytes(&local);
        assert!(bytes.len() > 9 << 20);
        assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()));
        // Without the key the folder looks like another state. It is refused before anything is replaced.
        let refused = plain.primary(&local).map(drop).unwrap_err();
        assert!(refused.to_string().contains("opened without keys"), "{refused}");
        assert_eq!(all_bytes(&local), bytes);
        let primary = remote.primary(&local).unwrap();
        let db = primary.builder().open().unwrap();
        put(&db, "after it", Durability::Sync);
        primary.ship().unwrap();
        // A reader needs no key.
        let reader = plain.reader().unwrap();
        let seen = reader.builder().open().unwrap();
        assert!(has(&seen, &format!("{SECRET} 2")) && has(&seen, "after it"));
    }
}

#[test]
fn readers_of_a_bucket_fold_operands_and_one_that_is_read_only_has_no_changes() {
    let remote = Remote::memory().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let primary = remote.primary(folder.path().join("first")).unwrap();
    let db = primary.builder().open().unwrap();
    let lists = PartitionOptions::new().merge_operator(Arc::new(AppendOperator::new(",")));
    let lists = db.partition_with("lists", lists).unwrap();
    lists.put("a", "0").unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    lists.merge("a", "1").unwrap();
    db.flush().unwrap();
    drop(snapshot);
    lists.merge_with("a", "2", Durability::Sync).unwrap();
    let reader = remote.reader().unwrap();
    let seen = reader.builder().open().unwrap();
    let folded = seen.partition("lists").unwrap().get("a").unwrap();
    assert_eq!(folded.as_deref(), Some(&b"0,1,2"[..]));
    assert_eq!(seen.changes(SeqNo::ZERO).unwrap_err().kind(), ErrorKind::Unsupported);
    let secondary = reader.secondary().open().unwrap();
    let followed = secondary.partition("lists").unwrap();
    lists.merge_with("a", "3", Durability::Sync).unwrap();
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.get("a").unwrap().as_deref(), Some(&b"0,1,2,3"[..]));
    let second = remote.take_over(folder.path().join("second")).unwrap();
    let new = second.builder().open().unwrap();
    let lists = new.partition("lists").unwrap();
    lists.merge_with("a", "4", Durability::Sync).unwrap();
    assert_eq!(lists.get("a").unwrap().as_deref(), Some(&b"0,1,2,3,4"[..]));
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.get("a").unwrap().as_deref(), Some(&b"0,1,2,3,4"[..]));
}

#[test]
fn a_reader_opens_a_read_only_database_of_the_moment() {
    let remote = Remote::memory().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let primary = remote.primary(folder.path()).unwrap();
    let db = primary.builder().open().unwrap();
    put(&db, "in a table", Durability::Sync);
    db.flush().unwrap();
    put(&db, "in the log", Durability::Sync);
    let reader = remote.reader().unwrap();
    put(&db, "later", Durability::Sync);
    let seen = reader.builder().open().unwrap();
    assert!(has(&seen, "in a table") && has(&seen, "in the log") && !has(&seen, "later"));
    assert!(seen.verify(VerifyOptions::default()).unwrap().is_sound());
    let refused = seen.partition("users").unwrap().put("new", "x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    seen.close().unwrap();
    reader.refresh().unwrap();
    assert!(has(&reader.builder().open().unwrap(), "later"));
}

/// The URL in `folder` after `remote` has opened it.
fn noted_by(remote: Remote, folder: &std::path::Path) -> Option<String> {
    drop(remote.primary(folder).unwrap());
    Remote::url_of_folder(folder).unwrap()
}

#[test]
fn a_folder_names_the_url_of_its_bucket() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("db");
    siltstone::fs::Fs::create_dir(&siltstone::fs::OsFs, &folder).unwrap();
    assert_eq!(Remote::url_of_folder(&folder).unwrap(), None);
    let url = format!("file://{}/bucket", place.path().display());
    let named = Remote::url(&url).unwrap();
    assert_eq!(noted_by(named.clone(), &folder).as_deref(), Some(&*url));
    assert_eq!(noted_by(named.clone().wrap_store(|it| it), &folder).as_deref(), Some(&*url));
    assert_eq!(noted_by(Remote::with_store(named.store()), &folder), None);
    let other = format!("{url}/");
    let noted = noted_by(Remote::url(&other).unwrap(), &folder);
    assert_eq!(noted.as_deref(), Some(&*other));
    // It decides nothing.
    let path = folder.join("remote-url");
    let os: &dyn siltstone::fs::Fs = &siltstone::fs::OsFs;
    os.delete(&path).unwrap();
    os.put_if_absent(&path, &[0xff; 5000]).unwrap();
    assert!(Remote::url_of_folder(&folder).unwrap_err().is_corruption());
    assert_eq!(noted_by(named, &folder).as_deref(), Some(&*url));
}

#[test]
fn the_folder_of_a_writer_is_not_that_of_a_copy() {
    let remote = Remote::memory().unwrap();
    let copy = Remote::memory().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let primary = remote.primary(folder.path()).unwrap();
    let db = primary.builder().open().unwrap();
    put(&db, "early", Durability::Sync);
    remote.copy_to(&copy).unwrap();
    db.flush().unwrap();
    put(&db, "late", Durability::Sync);
    db.close().unwrap();
    drop(primary);
    // The copy would take the later commits from the folder.
    let refused = copy.primary(folder.path()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    let primary = remote.primary(folder.path()).unwrap();
    assert!(has(&primary.builder().open().unwrap(), "late"));
}

#[test]
fn a_restore_of_an_empty_bucket_is_refused() {
    let remote = Remote::memory().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for target in [RestoreTarget::Latest, RestoreTarget::Seq(SeqNo::ZERO)] {
        let refused = remote.restore(folder.path(), target).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains("no database"), "{refused}");
    }
}

#[test]
fn an_async_task_calls_and_drops_a_remote() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let remote = Remote::memory().unwrap();
        let primary = remote.primary(folder.path()).unwrap();
        let db = primary.builder().open().unwrap();
        put(&db, "one", Durability::Sync);
        let reader = remote.reader().unwrap();
        assert!(reader.number() > 0);
    });
}

#[test]
fn a_folder_in_use_and_a_folder_of_another_bucket_are_refused() {
    let remote = Remote::memory().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let primary = remote.primary(folder.path()).unwrap();
    let again = remote.primary(folder.path()).map(drop).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Locked);
    let elsewhere = tempfile::tempdir().unwrap();
    let other = remote.primary(elsewhere.path()).map(drop).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Fenced);
    drop(primary);
    drop(remote.primary(folder.path()).unwrap());
    let emptied = Remote::memory().unwrap().primary(folder.path()).map(drop).unwrap_err();
    assert_eq!(emptied.kind(), ErrorKind::InvalidArgument);
    assert_eq!(Remote::url("nowhere").map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_first_open_that_dies_at_any_call_loses_nothing_of_the_folder() {
    let mut rng = Rng::new(6);
    let full = MemFs::new();
    let db = Db::builder("/db").fs(Arc::new(full.clone())).open().unwrap();
    put(&db, "old", Durability::Sync);
    db.close().unwrap();
    for calls in 0..40 {
        let fs = full.crash_clone(CrashOutcome::Everything, &mut || 0);
        let objects = Objects::default();
        let store = SimStore::new(objects.clone(), rng.fork());
        store.die_in(calls);
        let _ = remote_of(&store, &fs, &mut rng).primary("/db").map(drop);
        let store = SimStore::new(objects, rng.fork());
        let primary = remote_of(&store, &fs, &mut rng).primary("/db").unwrap();
        assert!(has(&primary.builder().open().unwrap(), "old"), "death after {calls} calls");
    }
}

#[test]
fn a_takeover_does_not_replace_a_database_that_was_never_shipped() {
    let remote = Remote::memory().unwrap();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    drop(remote.primary(folders[0].path()).unwrap().builder().open().unwrap());
    let db = Db::open(folders[1].path()).unwrap();
    put(&db, "mine", Durability::Sync);
    db.close().unwrap();
    let refused = remote.take_over(folders[1].path()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(has(&Db::open(folders[1].path()).unwrap(), "mine"));
}

#[test]
fn an_existing_database_is_shipped_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    put(&db, "old", Durability::Sync);
    db.flush().unwrap();
    put(&db, "logged", Durability::Sync);
    db.close().unwrap();
    let remote = Remote::memory().unwrap();
    let primary = remote.primary(folder.path()).unwrap();
    // Only the open knows which commits of the log count.
    let reader = remote.reader().unwrap();
    let early = reader.secondary().open().map(drop).unwrap_err();
    assert!(early.to_string().contains("find a database in"), "{early}");
    let other = tempfile::tempdir().unwrap();
    let refused = remote.take_over(other.path()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(refused.to_string().contains("has not been opened since"), "{refused}");
    let db = primary.builder().open().unwrap();
    reader.refresh().unwrap();
    let secondary = reader.secondary().open().unwrap();
    secondary.sync(Target::Latest).unwrap();
    let users = secondary.partition("users").unwrap();
    let view = users.at(Level::Eventual).unwrap();
    assert!(view.contains("old").unwrap() && view.contains("logged").unwrap());
    drop(db);
    drop(primary);
    let primary = remote.take_over(other.path()).unwrap();
    assert!(has(&primary.builder().open().unwrap(), "logged"));
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    let mut rng = Rng::new(1);
    let store = SimStore::new(Objects::default(), rng.fork());
    store.ignores_conditions.store(true, Ordering::Relaxed);
    let refused = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("does not enforce"), "{refused}");
}

#[test]
fn local_acknowledgement_outlives_a_kill_and_is_not_read_strongly() {
    let mut rng = Rng::new(2);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let fs = MemFs::new();
    let primary = remote_of(&store, &fs, &mut rng).ack(Ack::Local).primary("/db").unwrap();
    let db = primary.builder().open().unwrap();
    put(&db, "stored", Durability::Sync);
    primary.ship().unwrap();
    let puts = store.puts.load(Ordering::Relaxed);
    put(&db, "local", Durability::Sync);
    assert_eq!(store.puts.load(Ordering::Relaxed), puts, "no put is waited for");
    let reader = SimStore::new(objects.clone(), rng.fork());
    let reader = remote_of(&reader, &MemFs::new(), &mut rng).reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    assert_eq!(users.at(Level::Strong).map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(users.at(Level::Eventual).unwrap().contains("stored").unwrap());
    // The process is killed: its folder ships what the bucket lacks.
    let disk = fs.crash_clone(CrashOutcome::Everything, &mut || rng.next_u64());
    store.die_in(0);
    let store = SimStore::new(objects, rng.fork());
    let primary = remote_of(&store, &disk, &mut rng).ack(Ack::Local).primary("/db").unwrap();
    assert!(has(&primary.builder().open().unwrap(), "local"));
    secondary.sync(Target::Latest).unwrap();
    assert!(users.at(Level::Eventual).unwrap().contains("local").unwrap());
}

#[test]
fn a_bucket_that_is_away_fails_a_sync_and_the_database_resumes() {
    let mut rng = Rng::new(3);
    let store = SimStore::new(Objects::default(), rng.fork());
    let primary = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(siltstone::BackgroundMode::Stepped).open().unwrap();
    put(&db, "before", Durability::Sync);
    store.fails_one_of.store(1, Ordering::Relaxed);
    let users = db.partition("users").unwrap();
    let failed = users.put_with("during", "x", Durability::Sync).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::ReadOnly);
    store.fails_one_of.store(0, Ordering::Relaxed);
    while db.step().unwrap() {}
    put(&db, "after", Durability::Sync);
    assert!(has(&db, "before") && has(&db, "during"));
}

#[test]
fn a_base_ends_the_replay_of_the_journal() {
    let mut rng = Rng::new(4);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let primary = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(siltstone::BackgroundMode::Stepped).open().unwrap();
    for number in 0..300 {
        put(&db, &format!("{number}"), Durability::Sync);
        primary.ship().unwrap();
    }
    let status = primary.status();
    assert!(status.base > 250 && status.number - status.base < 256, "{status:?}");
    let reads = SimStore::new(objects, rng.fork());
    let reader = remote_of(&reads, &MemFs::new(), &mut rng).reader().unwrap();
    assert_eq!(reader.number(), status.number);
    let gets = reads.gets.load(Ordering::Relaxed);
    let objects = status.number - status.base;
    // The base, the end of the journal twice, and the boundary after each 64 objects and at the end.
    assert!(gets <= objects + objects / 64 + 6, "{gets} gets");
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    let view = users.at(Level::Strong).unwrap();
    assert!((0..300).all(|number| view.contains(format!("{number}")).unwrap()));
}

#[test]
fn commits_of_a_sync_share_one_put() {
    let mut rng = Rng::new(5);
    let store = SimStore::new(Objects::default(), rng.fork());
    let primary = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(siltstone::BackgroundMode::Stepped).open().unwrap();
    put(&db, "first", Durability::Sync);
    let before = primary.status().objects;
    (0..50).for_each(|number| put(&db, &format!("{number}"), Durability::Os));
    assert_eq!(primary.status().objects, before, "Os is not stored");
    put(&db, "last", Durability::Sync);
    assert_eq!(primary.status().objects, before + 1);
    let _: Arc<dyn siltstone::fs::Fs> = primary.fs();
}
