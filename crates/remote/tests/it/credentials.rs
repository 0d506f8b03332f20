//! A store that refuses credentials: an open fails at once, and what runs waits for new ones.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remote::{Ack, Remote, Store, StoreError, StoreErrorKind, StoreResult};
use siltstone::fs::MemFs;
use siltstone::secondary::Level;
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, Readable};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_with};
use crate::store_layer::{Layered, StoreLayer};

/// A store that refuses the credentials of so many calls.
struct Guarded {
    inner: Arc<SimStore>,
    gets: AtomicU64,
    puts: AtomicU64,
}

fn refuse_one(left: &AtomicU64) -> StoreResult<()> {
    match left.load(Ordering::Relaxed) {
        0 => Ok(()),
        count => {
            left.store(count - 1, Ordering::Relaxed);
            Err(StoreError::new(StoreErrorKind::Refused, "403: AccessDenied"))
        }
    }
}

impl StoreLayer for Guarded {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        refuse_one(&self.puts)?;
        self.inner.put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        refuse_one(&self.puts)?;
        self.inner.put(name, bytes)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        refuse_one(&self.gets)?;
        self.inner.get(name)
    }
}

struct Scene {
    objects: Objects,
    store: Arc<Layered<Guarded>>,
    remote: Remote,
}

fn scene(seed: u64) -> Scene {
    let mut rng = Rng::new(seed);
    let objects = Objects::default();
    let inner = SimStore::new(objects.clone(), rng.fork());
    let store = Layered::new(Guarded { inner, gets: AtomicU64::new(0), puts: AtomicU64::new(0) });
    let remote = remote_with(store.clone(), objects.clone(), &MemFs::new(), &mut rng);
    Scene { objects, store, remote: remote.patience(Duration::from_secs(60)) }
}

fn opened(primary: &remote::Primary) -> Db {
    primary.builder().background(BackgroundMode::Stepped).open().unwrap()
}

fn put(db: &Db, key: &str) -> siltstone::Result<()> {
    db.partition("users")?.put_with(key, "x", Durability::Sync).map(drop)
}

/// Checks that a call fails in less than a second with an error that says what to do.
fn refused_at_once<T>(scene: &Scene, call: impl FnOnce() -> siltstone::Result<T>) {
    let begin = scene.objects.true_time();
    let error = call().map(drop).unwrap_err();
    assert!(scene.objects.true_time() < begin + Duration::from_secs(1), "{error}");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(error.io_source().unwrap().kind(), io::ErrorKind::PermissionDenied, "{error}");
    for part in ["of the application", "refuses the credentials", "docs/remote.md", "403"] {
        assert!(error.to_string().contains(part), "{part:?}: {error}");
    }
}

#[test]
fn an_open_with_refused_credentials_fails_at_once() {
    let scene = scene(221);
    scene.store.puts.store(u64::MAX, Ordering::Relaxed);
    refused_at_once(&scene, || scene.remote.primary("/db"));
    scene.store.puts.store(0, Ordering::Relaxed);
    let primary = scene.remote.primary("/db").unwrap();
    put(&opened(&primary), "one").unwrap();
    // A reader that may not put its lease, and one that puts none.
    scene.store.puts.store(u64::MAX, Ordering::Relaxed);
    refused_at_once(&scene, || scene.remote.reader());
    scene.remote.clone().lease(None).reader().unwrap();
    refused_at_once(&scene, || scene.remote.take_over("/other"));
    scene.store.gets.store(u64::MAX, Ordering::Relaxed);
    refused_at_once(&scene, || scene.remote.clone().lease(None).reader());
    refused_at_once(&scene, || scene.remote.verify());
}

#[test]
fn a_write_waits_for_credentials_that_have_expired() {
    let scene = scene(222);
    let primary = scene.remote.primary("/db").unwrap();
    let db = opened(&primary);
    let reader = scene.remote.reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let begin = scene.objects.true_time();
    scene.store.puts.store(8, Ordering::Relaxed);
    scene.store.gets.store(3, Ordering::Relaxed);
    put(&db, "one").unwrap();
    assert!(scene.objects.true_time() > begin + Duration::from_secs(2));
    assert_eq!(scene.store.puts.load(Ordering::Relaxed), 0);
    let users = secondary.partition("users").unwrap();
    assert!(users.at(Level::Strong).unwrap().contains("one").unwrap());
    assert_eq!(scene.store.gets.load(Ordering::Relaxed), 0);
}

#[test]
fn refused_credentials_show_in_the_health_until_new_ones_are_taken() {
    let scene = scene(223);
    let primary = scene.remote.clone().ack(Ack::Local).primary("/db").unwrap();
    let db = opened(&primary);
    scene.store.puts.store(u64::MAX, Ordering::Relaxed);
    put(&db, "one").unwrap();
    primary.ship().unwrap_err();
    assert!(primary.status().failure.unwrap().is_refusal);
    let why = db.health().storage_failure.unwrap();
    assert!(why.contains("refused the credentials for") && why.contains("403"), "{why}");
    scene.store.puts.store(0, Ordering::Relaxed);
    primary.ship().unwrap();
    assert!(db.health().is_healthy() && primary.status().failure.is_none());
}
