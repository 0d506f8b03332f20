//! Reads whose slots go, and the bounds of those that wait.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use remote::{ObjectListing, Remote, Store, StoreError, StoreResult};
use siltstone::SeqNo;

use super::*;
use crate::commands::{COMMANDS, find};
use crate::front::Front;
use crate::level::Wanted;
use crate::node::{Node, NodeOptions};
use crate::options::Options;
use crate::place::Place;
use crate::shards::SlotSet;

/// The slot goes while the value is read. The value may be old by now, so it must not be the reply.
#[test]
fn a_read_whose_slot_goes_meanwhile_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = NodeOptions { shard: Some("a".to_owned()), ..NodeOptions::default() };
    let node = Node::open(Place::folder(folder.path()), true, options).unwrap();
    let options = Options::default();
    let front = Front::new(options.limits, None);
    let shared = Shared::new(options, front, node, "127.0.0.1:0".parse().unwrap());
    let role = shared.node.role();
    let Role::Primary(Primary { owner: Some(owner), .. }) = &*role else {
        panic!("the primary of a shard")
    };
    let slots = SlotSet::parse("12182").unwrap();
    let given = slots.clone();
    let owned = owner.note_changes(1, &slots, |record| {
        record.owned = slots.clone();
        Ok(())
    });
    owned.unwrap();
    let mut session = Session::new(1, &shared);
    let arguments = [Bytes::from("foo")];
    let keys = Keys::Of(&COMMANDS[find(b"GET").unwrap()], &arguments);
    let patience = Patience::MayWait;
    let wish = Read { asked: Asked::default(), is_many: false, patience, keys };
    let mut count = 0;
    let refused = read(&shared, &mut session, &wish, |_| {
        count += 1;
        let changed = owner.change(1, |record| {
            record.give(&given, "b");
            Ok(())
        });
        changed.map(|_| Reply::Nil)
    });
    assert!(matches!(refused, Err(Failure::Refused(text)) if text == "MOVED 12182 b"));
    assert_eq!(count, 1);
    drop(role);
    shared.node.close().unwrap();
}

/// Reads the key `a` at level 1, or at level 3 with a token.
fn get(shared: &Shared, token: Option<Commit>) -> Result<Reply, Failure> {
    let level = Some(Wanted::Number(if token.is_some() { 3 } else { 1 }));
    let asked = Asked { level, token, ..Asked::default() };
    let arguments = [Bytes::from("a")];
    let keys = Keys::Of(&COMMANDS[find(b"GET").unwrap()], &arguments);
    let wish = Read { asked, is_many: false, patience: Patience::MayWait, keys };
    let mut session = Session::new(1, shared);
    read(shared, &mut session, &wish, |view| Ok(Reply::value(view.get(b"a")?)))
}

/// Otherwise the reads that wait take all threads, and a router that asks the node would call it down.
#[test]
fn more_than_some_reads_do_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let [primary, node] = [true, false].map(|is_primary| {
        Node::open(Place::folder(folder.path()), is_primary, NodeOptions::default()).unwrap()
    });
    let Role::Primary(role) = &*primary.role() else { panic!("the primary") };
    role.created("default").unwrap().put("a", "1").unwrap();
    let options = Options { wait: Duration::from_secs(60), ..Options::default() };
    let begun = options.clock.now();
    let front = Front::new(options.limits, None);
    let shared = Shared::new(options, front, node, "127.0.0.1:0".parse().unwrap());
    let many = u32::try_from(crate::front::WAITING_READS).unwrap();
    let waiting = shared.waiting.try_acquire_many(many).unwrap();
    let token = Commit { seq: SeqNo::new(1_000).unwrap(), ..role.latest() };
    let refused = get(&shared, Some(token)).unwrap_err();
    assert!(
        matches!(&refused, Failure::Engine(it) if it.kind() == ErrorKind::Behind),
        "{refused:?}"
    );
    assert!(shared.options.clock.now().saturating_sub(begun) < Duration::from_secs(50));
    // It catches up as others do.
    assert!(matches!(get(&shared, None), Ok(Reply::Value(value)) if value == b"1"[..]));
    drop(waiting);
    shared.node.close().unwrap();
    primary.close().unwrap();
}

/// While the bucket hangs they would take all threads otherwise.
#[test]
fn more_than_some_reads_do_not_wait_for_the_bucket() {
    let [store, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let remote = Remote::url(&format!("file://{}", store.path().display())).unwrap();
    let remote = remote.read_lease(Duration::ZERO);
    let place = Place::bucket(remote, Some(folder.path().join("db")));
    let node = Node::open(place, true, NodeOptions::default()).unwrap();
    let options = Options::default();
    let front = Front::new(options.limits, None);
    let shared = Shared::new(options, front, node, "127.0.0.1:0".parse().unwrap());
    let many = u32::try_from(crate::front::WAITING_READS).unwrap();
    let waiting = shared.waiting.try_acquire_many(many).unwrap();
    let refused = get(&shared, None).unwrap_err();
    assert!(matches!(&refused, Failure::Refused(it) if it.starts_with("NOTYET")), "{refused:?}");
    drop(waiting);
    assert!(matches!(get(&shared, None), Ok(Reply::Nil)));
    shared.node.close().unwrap();
}

/// A store whose puts fail from a moment on.
struct FullStore {
    inner: Arc<dyn Store>,
    is_full: AtomicBool,
}

impl FullStore {
    fn check(&self) -> StoreResult<()> {
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(StoreError::transient("full")),
            false => Ok(()),
        }
    }
}

impl Store for FullStore {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.check()?;
        self.inner.put_if_absent(name, bytes)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.check()?;
        self.inner.put(name, bytes)
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.inner.get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.inner.get_range(name, range)
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        self.inner.list(dir)
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.inner.delete(name)
    }
}

/// A commit holds the lock of the log as long as too much waits for the bucket.
#[test]
fn more_than_some_reads_do_not_wait_for_a_commit_that_waits_for_the_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let inner = Remote::memory().unwrap().store();
    let store = Arc::new(FullStore { inner, is_full: AtomicBool::new(false) });
    let remote = Remote::with_store(store.clone()).backlog_bytes(1_000);
    let place = Place::bucket(remote, Some(folder.path().join("db")));
    let node = Node::open(place, true, NodeOptions::default()).unwrap();
    let options = Options::default();
    let front = Front::new(options.limits, None);
    let shared = Shared::new(options, front, node, "127.0.0.1:0".parse().unwrap());
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { panic!("the primary") };
    let partition = primary.created("default").unwrap();
    store.is_full.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|at| drop(partition.put(format!("{at}"), [0; 2_000]))));
        while primary.begin_strong(Patience::MustNotWait).is_ok() {
            std::thread::yield_now();
        }
        let many = u32::try_from(crate::front::WAITING_READS).unwrap();
        let waiting = shared.waiting.try_acquire_many(many).unwrap();
        let refused = get(&shared, None).unwrap_err();
        assert!(
            matches!(&refused, Failure::Refused(it) if it.starts_with("NOTYET")),
            "{refused:?}"
        );
        drop(waiting);
        store.is_full.store(false, Ordering::SeqCst);
    });
    drop((partition, role));
    shared.node.close().unwrap();
}
