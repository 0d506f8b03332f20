//! Hooks and listeners that panic: the job or call that ran them fails as a whole and names the
//! hook, nothing hangs, and when the hooks work again everything continues.
//!
//! With threads, chance decides whether the background or the caller meets a panic first; the
//! checks hold in both cases. Nothing here waits for time to pass.

mod background;
mod engine;
pub mod filters;
mod value_store;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use lsm_core::fs::MemFs;
use lsm_core::hooks::{CompactionFilterFactory, HookProvider, ValueStoreFactory};
use siltstone::{
    BackgroundMode, Class, Db, Durability, Error, ErrorKind, Event, EventListener, Hooks, Options,
    Partition, PartitionOptions, Reason, Result, Severity,
};

use crate::sim::is_table;
use crate::test_value_store::{FailureMode, Fuse, TestValueStore};

use filters::{Fused, REPAIR_CALLS};

const MODES: [BackgroundMode; 2] = [BackgroundMode::Stepped, BackgroundMode::Threads];

/// Keys of a partition, and how many of them have values in the value store.
const KEYS: u8 = 150;
const LARGE: usize = 50;

/// The calls that jobs make: name, hook, and whether a flush makes it as well.
const CALLS: [(&str, &str, bool); 13] = [
    ("start", "deciding", true),
    ("decide", "deciding", true),
    ("verifier", "sealing", false),
    ("verify", "sealing", false),
    ("end", "sealing", false),
    ("input", "sealing", false),
    ("output", "sealing", true),
    ("put_payloads", "sealing", true),
    ("boundary", "sealing", true),
    ("finish_table", "sealing", true),
    ("joined", "sealing", false),
    ("relocate", "shelf", false),
    ("edit", "shelf", true),
];

/// The hooks with the fuse of a value store.
pub struct Provider(pub TestValueStore);

impl HookProvider for Provider {
    fn compaction_filter(
        &self,
        name: &str,
        _params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        Some(Arc::new(Fused { fuse: self.0.fuse.clone(), seals: name == "sealing" }))
    }

    fn value_store(&self, _name: &str, _params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        Some(Arc::new(self.0.clone()))
    }
}

/// Sends the events on, through a fuse.
struct FusedListener(Fuse, Mutex<mpsc::Sender<Event>>);

impl EventListener for FusedListener {
    fn on_event(&self, event: &Event) {
        self.0.pass("listener").unwrap();
        let _ = self.1.lock().unwrap().send(event.clone());
    }
}

// ---- a store ----------------------------------------------------------------------------------

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

struct Store {
    mode: BackgroundMode,
    fs: MemFs,
    shelf: TestValueStore,
    db: Db,
    p: Partition,
    q: Partition,
    content: Content,
    round: u8,
    events: mpsc::Receiver<Event>,
}

fn open(
    mode: BackgroundMode,
    fs: &MemFs,
    shelf: &TestValueStore,
) -> Result<(Db, mpsc::Receiver<Event>)> {
    let (send, events) = mpsc::channel();
    let reported = FusedListener(shelf.fuse.clone(), Mutex::new(send));
    let options = Options::new().write_buffer_bytes(256 << 10).cache_bytes(64 << 10);
    let mut word = 0;
    let db = Db::builder(Path::new("/db"))
        .fs(Arc::new(fs.clone()))
        .background(mode)
        .options(options.manifest_bytes_max(4 << 10))
        .random(move || {
            word += 1;
            word
        })
        .hooks(Arc::new(Provider(shelf.clone())))
        .listener(Arc::new(reported))
        .open()?;
    Ok((db, events))
}

fn options() -> PartitionOptions {
    let options = PartitionOptions::new().block_bytes(128).table_bytes(1 << 10);
    options.level_base_bytes(2 << 10).level0_tables(2)
}

/// A store with tables on some levels; partition `p` has all hooks, `q` has none.
fn store(mode: BackgroundMode, logged: bool) -> Store {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let (db, events) = open(mode, &fs, &shelf).unwrap();
    let filter = |seals| Arc::new(Fused { fuse: shelf.fuse.clone(), seals });
    let hooks = Hooks::new().filter(filter(false)).filter(filter(true));
    let hooks = hooks.value_store(Arc::new(shelf.clone()));
    let p = db.partition_with("p", options().logged(logged).hooks(hooks)).unwrap();
    let q = db.partition_with("q", options()).unwrap();
    let content = Content::new();
    let mut store = Store { mode, fs, shelf, db, p, q, content, round: 0, events };
    for _ in 0..3 {
        store.fill();
        store.db.flush().unwrap();
    }
    store.db.wait_idle().unwrap();
    store
}

fn read(p: &Partition) -> Content {
    p.iter().map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
}

impl Store {
    /// Overwrites everything, twice, so that a flush drops handles too.
    fn fill(&mut self) {
        for half in 0..2 {
            self.round += 1;
            for n in 0..KEYS {
                let len = if n.is_multiple_of(3) { 150 } else { 40 };
                let value = vec![self.round; len];
                self.p.put([n], &value).unwrap();
                self.q.put([n], [half; 30]).unwrap();
                self.content.insert(vec![n], value);
            }
        }
    }

    /// Loads entries after all others, too short for the value store.
    fn load(&self) -> Result<()> {
        self.p.bulk_load((200..240_u8).map(|n| ([n], [n; 40]))).map(drop)
    }

    fn set(&self, call: &'static str) {
        self.shelf.fuse.set(call, FailureMode::Panic);
    }

    fn tables(&self) -> Vec<std::path::PathBuf> {
        self.fs.paths().into_iter().filter(|path| is_table(path)).collect()
    }

    /// The failure of background work, made by steps or by threads.
    fn background_failure(&self) -> Error {
        if self.mode == BackgroundMode::Stepped {
            for _ in 0..1_000 {
                if let Err(error) = self.db.step() {
                    return error;
                }
            }
            panic!("nothing fails");
        }
        let error = self.next_error();
        // The failure remains, and no one waits for it forever.
        let again = self.db.wait_idle().unwrap_err();
        assert_eq!(again.kind(), error.kind(), "{again}");
        error
    }

    /// Waits until a failure is reported.
    fn next_error(&self) -> Error {
        let errors = self.events.iter().filter_map(|event| match event {
            Event::BackgroundError(error) => Some(error),
            _ => None,
        });
        { errors }.next().unwrap()
    }

    fn check_content(&self) {
        assert_eq!(read(&self.p), self.content);
        assert_eq!(self.q.iter().count(), usize::from(KEYS));
    }

    /// The hooks work again: all pending work is done, and nothing is left over.
    fn check_goes_on(mut self) {
        self.shelf.fuse.clear();
        // An attempt that was in progress may still fail.
        let idle = (0..9).find(|_| self.db.wait_idle().is_ok());
        assert!(idle.is_some(), "{}", self.db.health());
        assert!(self.db.health().is_healthy(), "{}", self.db.health());
        self.check_content();
        self.fill();
        self.p.compact(..).unwrap();
        self.db.wait_idle().unwrap();
        self.check_content();
        let count: u64 = self
            .db
            .stats()
            .partitions
            .iter()
            .map(|p: &siltstone::PartitionStats| {
                p.levels.iter().map(|l| l.table_count).sum::<u64>()
            })
            .sum();
        assert_eq!(self.tables().len() as u64, count, "{:?}", self.tables());
        assert_eq!(self.shelf.live(), LARGE, "unneeded values are gone");
        let Store { mode, fs, shelf, db, p, q, content, .. } = self;
        drop((p, q));
        db.close().unwrap();
        let (db, _) = open(mode, &fs, &shelf).unwrap();
        assert_eq!(read(&db.partition("p").unwrap()), content);
    }
}

#[track_caller]
fn check_named(error: &Error, call: &str, hook: &str) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::HookPanicked, "{text}");
    let named = format!("{call} of the ");
    for part in ["\"p\"", &named, &format!("{hook:?}"), "has blown"] {
        assert!(text.contains(part), "{text:?} does not name {part}");
    }
}

/// Runs `check` for every call that jobs make, in both modes.
fn each_call(check: impl Fn(BackgroundMode, &'static str, &str, bool)) {
    for mode in MODES {
        for (call, hook, in_flush) in CALLS {
            check(mode, call, hook, in_flush);
        }
    }
}

// ---- jobs -------------------------------------------------------------------------------------

#[test]
fn a_flush_whose_hook_panics_fails_and_says_so() {
    each_call(|mode, call, hook, in_flush| {
        if !in_flush {
            return;
        }
        let mut store = store(mode, true);
        store.set(call);
        store.fill();
        for _ in 0..2 {
            check_named(&store.db.flush().unwrap_err(), call, hook);
            check_named(&store.p.compact(..).unwrap_err(), call, hook);
        }
        // Other partitions continue.
        store.q.put("more", "of it").unwrap();
        store.q.compact(..).unwrap();
        store.q.delete("more").unwrap();
        check_named(&store.background_failure(), call, hook);
        let health = store.db.health();
        let failure = health.background_errors.iter().find(|f| f.reason == Reason::Flush);
        let failure = failure.unwrap_or_else(|| panic!("{health}"));
        assert_eq!((failure.class, failure.severity), (Class::Hook, Severity::Hard));
        check_named(&failure.error, call, hook);
        store.check_content();
        store.check_goes_on();
    });
}

#[test]
fn a_compaction_whose_hook_panics_fails_and_says_so() {
    each_call(|mode, call, hook, _| {
        let mut store = store(mode, true);
        // Keeps overwritten values for the compaction that fails, whatever the threads have merged
        // before it.
        let snapshot = store.db.snapshot();
        store.fill();
        store.db.flush().unwrap();
        store.db.wait_idle().unwrap();
        store.set(call);
        drop(snapshot);
        let fail = |store: &Store| {
            // A part of a level has neighbours.
            let result = match call {
                "joined" => store.p.compact([80]..[81]),
                _ => store.p.compact(..),
            };
            check_named(&result.unwrap_err(), call, hook);
        };
        // A job before the one that fails may have succeeded.
        fail(&store);
        let before = store.tables();
        fail(&store);
        if mode == BackgroundMode::Stepped {
            assert_eq!(store.tables(), before, "inputs stay, and nothing else does");
        }
        store.check_content();
        store.q.compact(..).unwrap();
        store.check_goes_on();
    });
}

/// Damage is no reason to call a panic of the hook one of the engine, or to lose the table.
#[test]
fn a_repair_whose_hook_panics_fails_and_says_so() {
    for mode in MODES {
        for call in REPAIR_CALLS {
            let store = store(mode, true);
            store.set(call);
            let named = call.split(' ').next().unwrap();
            for _ in 0..2 {
                check_named(&store.p.compact(..).unwrap_err(), named, "sealing");
            }
            assert_eq!(store.p.gaps(), [], "{call}");
            store.check_content();
            store.check_goes_on();
        }
    }
}

#[test]
fn a_bulk_load_whose_hook_panics_fails_and_says_so() {
    for call in ["output", "put_payloads", "boundary", "finish_table"] {
        let mut store = store(BackgroundMode::Stepped, true);
        store.set(call);
        check_named(&store.load().unwrap_err(), call, "sealing");
        let before = store.tables();
        check_named(&store.load().unwrap_err(), call, "sealing");
        assert_eq!(store.tables(), before, "nothing is left over");
        store.check_content();
        store.shelf.fuse.clear();
        store.load().unwrap();
        store.content.extend((200..240).map(|n| (vec![n], vec![n; 40])));
        store.check_goes_on();
    }
}

#[test]
fn a_filter_that_panics_in_its_drop_has_done_its_work() {
    for mode in MODES {
        let mut store = store(mode, true);
        store.set("drop");
        store.fill();
        store.p.compact(..).unwrap();
        store.db.wait_idle().unwrap();
        store.check_content();
        store.check_goes_on();
    }
}

// ---- the value store --------------------------------------------------------------------------

// ---- listeners --------------------------------------------------------------------------------

#[test]
fn a_listener_that_panics_ends_no_work_and_shows() {
    for mode in MODES {
        let mut store = store(mode, true);
        store.set("listener");
        store.fill();
        store.db.flush().unwrap();
        store.p.compact(..).unwrap();
        store.db.wait_idle().unwrap();
        // Delivered on the thread of the caller at the latest.
        store.db.flush().unwrap();
        let health = store.db.health();
        let reported = health.listener_panic.clone().unwrap();
        assert!(reported.contains("listener") && reported.contains("has blown"), "{reported}");
        assert!(health.is_healthy() && health.to_string().contains(&reported), "{health}");
        store.check_content();
        store.shelf.fuse.clear();
        store.fill();
        store.db.flush().unwrap();
        // The listener gets later events.
        assert!(store.events.iter().any(|event| matches!(event, Event::Flushed { .. })));
        store.check_goes_on();
    }
}

impl Store {
    fn check_content_of_p(&self) {
        assert_eq!(read(&self.p), self.content);
    }

    /// As [`Store::background_failure`], for work that only `wait_idle` waits for.
    fn background_or_idle_failure(&self) -> Error {
        match self.mode {
            BackgroundMode::Stepped => self.background_failure(),
            BackgroundMode::Threads => {
                let error = self.next_error();
                self.db.wait_idle().unwrap_err();
                error
            }
        }
    }

    /// The name of the manifest.
    fn manifest(&self) -> Option<std::path::PathBuf> {
        self.fs
            .paths()
            .into_iter()
            .filter(|path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "manifest"))
            .max()
    }
}
