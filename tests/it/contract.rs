//! The calls that other programs are compiled against, exactly as the architecture states them.
//! This file only has to compile; other tests check that the calls work.

use std::path::Path;
use std::sync::Arc;

use siltstone::clock::{Clock, SystemClock};
use siltstone::fs::{Fs, MemFs};
use siltstone::{
    Commit, Db, Durability, MetaHiveOptions, PartitionOptions, Result, Slice, VerifyOptions,
};

fn shareable<T: Clone + Send + Sync + 'static>(_: &T) {}

fn every_call(folder: &Path) -> Result<()> {
    let db = Db::open(folder.join("defaults"))?;
    db.close()?;
    let db = Db::builder(folder.join("data"))
        .cache_bytes(256 << 20)
        .write_buffer_bytes(64 << 20)
        .open()?;
    let users = db.partition("users")?;
    shareable(&db);
    shareable(&users);
    let media =
        db.partition_with("media", PartitionOptions::new().metahive(MetaHiveOptions::default()))?;

    users.put("alice", "admin")?;
    let v: Option<Slice> = users.get("alice")?;
    assert_eq!(v.as_deref(), Some(&b"admin"[..]));
    users.delete("alice")?;
    let commit: Commit =
        db.batch().put(&users, "bob", "ops").delete(&media, "old").commit(Durability::Sync)?;
    let copy = commit;
    assert_eq!((copy.seq, copy.epoch), (commit.seq, commit.epoch));

    for kv in users.range("a".."n").rev() {
        let (k, v) = kv?;
        assert_eq!((&k[..], &v[..]), (&b"bob"[..], &b"ops"[..]));
    }
    assert_eq!(users.range(..).count(), 1);
    assert_eq!(users.range("n".."a").count(), 0);
    assert_eq!(users.iter().count() + users.prefix("b").count() + users.keys().count(), 3);
    let mut c = users.cursor();
    c.seek("bob")?;
    while c.valid() {
        let k: &[u8] = c.key();
        let v: &[u8] = c.value()?;
        assert_eq!((k, v), (&b"bob"[..], &b"ops"[..]));
        c.next()?;
    }
    let snap = db.snapshot();
    shareable(&snap);
    let old = snap.get(&users, "bob")?;
    assert!(old.is_some());
    for kv in snap.range(&users, ..) {
        kv?;
    }

    db.flush()?;
    users.compact(..)?;
    db.wait_idle()?;
    let report = db.verify(VerifyOptions::default())?;
    assert!(report.damage().is_empty());
    let stats = db.stats();
    let health = db.health();
    assert!(stats.partitions.len() == 3 && health.is_healthy());
    db.drop_partition("media")?;
    db.close()
}

#[test]
fn the_contract_compiles_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    every_call(folder.path()).unwrap();
}

#[test]
fn an_application_can_name_file_system_and_clock_of_a_builder() {
    let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Db::builder("/db").fs(fs).clock(clock).open().unwrap();
    db.partition("users").unwrap().put("alice", "admin").unwrap();
    db.close().unwrap();
}
