//! A value store that fails or panics: it is notified again, and the call or the sync fails.

use lsm_core::fs::CrashOutcome;

use super::*;

#[test]
fn a_value_store_that_fails_after_the_edit_is_notified_again() {
    let blows = [(FailureMode::Panic, Class::Hook), (FailureMode::Fail, Class::Io)];
    for (mode, (blow, class)) in MODES.into_iter().flat_map(|mode| blows.map(|b| (mode, b))) {
        for call in ["apply", "reclaim"] {
            let mut store = store(mode, true);
            store.shelf.fuse.set(call, blow);
            store.fill();
            // The work itself is done: its edit is durable.
            store.p.compact(..).unwrap();
            store.db.flush().unwrap();
            let error = store.background_or_idle_failure();
            if blow == FailureMode::Panic {
                check_named(&error, call, "shelf");
            }
            let health = store.db.health();
            let [failure] = &health.background_errors[..] else { panic!("{health}") };
            assert_eq!((failure.reason, failure.class), (Reason::Obsolete, class));
            assert!(store.shelf.live() > LARGE, "values wait");
            store.check_content();
            store.check_goes_on();
        }
    }
}

#[test]
fn an_edit_that_a_value_store_missed_reaches_it_at_the_next_open() {
    let mut store = store(BackgroundMode::Stepped, true);
    let dropped_before = store.shelf.dropped_count();
    store.set("apply");
    // Enough for the manifest to begin a new generation, which keeps the pending notifications.
    let before = store.manifest();
    while store.manifest() == before {
        store.fill();
        store.p.compact(..).unwrap();
    }
    let Store { fs, shelf, db, p, q, content, .. } = store;
    drop((p, q));
    check_named(&db.close().unwrap_err(), "apply", "shelf");
    let dropped = shelf.live() - LARGE;
    assert!(dropped > LARGE && shelf.dropped_count() == dropped_before);
    shelf.fuse.clear();
    let (db, _) = open(BackgroundMode::Stepped, &fs, &shelf).unwrap();
    assert_eq!(read(&db.partition("p").unwrap()), content);
    assert_eq!(
        shelf.dropped_count(),
        dropped_before + dropped,
        "of every value that an edit dropped"
    );
}

#[test]
fn a_state_that_a_value_store_cannot_return_is_reported_and_not_needed() {
    for mode in MODES {
        let mut store = store(mode, true);
        store.set("snapshot");
        let before = store.manifest();
        while store.manifest() == before {
            store.fill();
            store.p.compact(..).unwrap();
        }
        store.db.flush().unwrap();
        check_named(&store.next_error(), "snapshot", "shelf");
        store.check_content();
        store.check_goes_on();
    }
}

#[test]
fn a_value_store_that_panics_in_a_sync_fails_it_and_the_store_resumes() {
    for mode in MODES {
        let mut store = store(mode, true);
        store.set("sync");
        store.fill();
        let batch = store.db.batch().put(&store.p, "k", "v");
        let error = batch.commit(Durability::Sync).unwrap_err();
        store.content.insert(b"k".to_vec(), b"v".to_vec());
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert!(
            error.to_string().contains("sync of the value store \"shelf\" panicked"),
            "{error}"
        );
        assert_eq!(store.p.put("k", "w").unwrap_err().kind(), ErrorKind::ReadOnly);
        assert!(store.db.wait_durable(store.db.visible_seq()).is_err());
        assert!(store.db.flush().is_err());
        store.check_content();
        store.shelf.fuse.clear();
        store.db.wait_idle().unwrap();
        store.db.batch().put(&store.p, "k", "w").commit(Durability::Sync).unwrap();
        store.p.delete("k").unwrap();
        store.content.remove(&b"k"[..]);
        store.check_goes_on();
    }
}

#[test]
fn a_value_store_that_panics_on_the_way_of_a_call_fails_that_call() {
    for mode in MODES {
        let store = store(mode, true);
        store.set("put");
        check_named(&store.p.put("k", [7; 200]).unwrap_err(), "put", "shelf");
        for call in ["value", "read"] {
            store.set(call);
            check_named(&store.p.get([0]).unwrap_err(), "read", "shelf");
            let first = store.p.iter().next().unwrap();
            check_named(&first.unwrap_err(), "read", "shelf");
        }
        store.shelf.fuse.clear();
        store.check_content();
        store.check_goes_on();
    }
}

/// An end of the log there would lose commits that a working store has.
#[test]
fn an_open_whose_value_store_does_not_know_what_is_durable_fails_and_changes_nothing() {
    for blow in [FailureMode::Panic, FailureMode::Fail, FailureMode::Corrupt] {
        let store = store(BackgroundMode::Stepped, true);
        store.p.put("k", [7; 200]).unwrap();
        store.q.put("later", "v").unwrap();
        let left = store.fs.crash_clone(CrashOutcome::Everything, &mut || 0);
        let paths = left.paths();
        store.shelf.fuse.set("is_durable", blow);
        let error = open(BackgroundMode::Stepped, &left, &store.shelf).err();
        let error = error.unwrap_or_else(|| panic!("{blow:?}: it was opened"));
        assert!(error.to_string().contains("the fuse of is_durable has blown"), "{error}");
        if blow == FailureMode::Panic {
            check_named(&error, "is_durable", "shelf");
        }
        assert_eq!(left.paths(), paths, "{blow:?}");
        store.shelf.fuse.clear();
        let (db, _) = open(BackgroundMode::Stepped, &left, &store.shelf).unwrap();
        assert_eq!(db.partition("p").unwrap().get("k").unwrap().unwrap(), [7; 200]);
        assert_eq!(db.partition("q").unwrap().get("later").unwrap().unwrap(), *b"v");
    }
}

/// The panic used to end the thread that looks for work.
#[test]
fn a_value_store_that_cannot_say_what_it_holds_ends_no_background_work() {
    for mode in [BackgroundMode::Stepped, BackgroundMode::Threads] {
        let mut store = store(mode, true);
        store.set("stats");
        store.fill();
        store.db.flush().unwrap();
        store.db.wait_idle().unwrap();
        store.check_content();
        store.check_goes_on();
    }
}
