//! Callbacks of the application that panic in a process with threads and files: the process lives on, and the database
//! says which one it was.

use std::sync::Arc;

use lsm_core::hooks::Hooks;
use siltstone::operators::MergeOperator;
use siltstone::{Error, Event, EventListener, PartitionOptions, Result};

use super::*;
use crate::panics::{Provider, filters::Fused};
use crate::test_value_store::{FailureMode, Fuse, TestValueStore};

/// The calls that panic, and the name that is in the report of each.
const CALLBACKS: [(&str, &str); 4] = [
    ("decide", "\"deciding\""),
    ("edit", "\"shelf\""),
    ("fold", "\"joining\""),
    ("event", "listener"),
];

/// A listener and a merge operator with a fuse.
struct Callbacks(Fuse);

impl EventListener for Callbacks {
    fn on_event(&self, _: &Event) {
        self.0.pass("event").unwrap();
    }
}

impl MergeOperator for Callbacks {
    fn name(&self) -> &'static str {
        "joining"
    }

    fn check(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn merge(&self, _: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()> {
        self.0.pass("fold").unwrap();
        value.extend_from_slice(operand);
        Ok(())
    }
}

fn open_with(folder: &Path, store: &TestValueStore) -> Db {
    let listener = Arc::new(Callbacks(store.fuse.clone()));
    let builder = Db::builder(folder).options(options()).hooks(Arc::new(Provider(store.clone())));
    builder.listener(listener).open().unwrap()
}

/// The error that names the callback, of a call that meets it.
fn met(db: &Db, hooked: &Partition, folded: &Partition, call: &str) -> Option<Error> {
    match call {
        "event" => {
            db.flush().unwrap();
            None
        }
        "fold" => folded.get("k").err(),
        _ => {
            hooked.put("k", vec![2; 200]).unwrap();
            hooked.compact(..).err()
        }
    }
}

#[test]
fn child_whose_callbacks_panic() {
    let Some(folder) = folder_of_child() else { return };
    let call = std::env::var(ENDING).unwrap();
    let (call, named) = CALLBACKS.into_iter().find(|(name, _)| *name == call).unwrap();
    let store = TestValueStore::default();
    let db = open_with(&folder, &store);
    let words = db.partition("words").unwrap();
    let [deciding, sealing] =
        [false, true].map(|seals| Arc::new(Fused { fuse: store.fuse.clone(), seals }));
    let hooks = Hooks::new().filter(deciding).filter(sealing);
    let hooks = hooks.value_store(Arc::new(store.clone()));
    let hooked = db.partition_with("hooked", PartitionOptions::new().hooks(hooks)).unwrap();
    let operator = Arc::new(Callbacks(store.fuse.clone()));
    let folded = PartitionOptions::new().merge_operator(operator);
    let folded = db.partition_with("folded", folded).unwrap();
    hooked.put("k", vec![1; 200]).unwrap();
    folded.put("k", "a").unwrap();
    db.flush().unwrap();
    folded.merge("k", "b").unwrap();
    store.fuse.set(call, FailureMode::Panic);
    let met = met(&db, &hooked, &folded, call);
    // Other partitions go on while it panics.
    for number in 1..=WRITES {
        write(&words, number).unwrap();
    }
    words.flush().unwrap();
    let report = match met {
        Some(error) => {
            assert_eq!(error.kind(), ErrorKind::HookPanicked, "{error}");
            error.to_string()
        }
        None => db.health().listener_panic.unwrap(),
    };
    assert!(report.contains(named) && report.contains("has blown"), "{call}: {report}");
    store.fuse.clear();
    hooked.compact(..).unwrap();
    assert_eq!(folded.get("k").unwrap().as_deref(), Some(&b"ab"[..]));
    drop((words, hooked, folded));
    db.close().unwrap();
}

#[test]
fn a_process_outlives_callbacks_that_panic_and_says_which() {
    for (call, _) in CALLBACKS {
        let dir = tempfile::tempdir().unwrap();
        let mut child = child("", "callbacks::child_whose_callbacks_panic", dir.path());
        let done = child.env(ENDING, call).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{call}: {}\n{said}", done.status);
        assert!(said.contains("has blown"), "{call} was called: {said}");
        assert_eq!(last_ack(&done.stdout[..]), WRITES);
        check(dir.path(), WRITES);
    }
}
