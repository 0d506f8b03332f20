//! Background work and a close with a hook that keeps panicking.

use super::*;

#[test]
fn background_compaction_whose_hook_panics_shows_and_is_tried_again() {
    each_call(|mode, call, hook, in_flush| {
        let mut store = store(mode, true);
        // Due, but threads may have done it.
        for _ in 0..3 {
            store.fill();
            store.db.flush().unwrap();
        }
        store.set(call);
        if mode == BackgroundMode::Threads {
            // A flush that fails is reported as well, and first.
            store.fill();
            while store.db.flush().is_ok() && store.db.health().background_errors.is_empty() {
                store.fill();
            }
        }
        check_named(&store.background_failure(), call, hook);
        let health = store.db.health();
        let failures = &health.background_errors;
        assert!(!health.is_healthy() && failures.iter().all(|f| f.class == Class::Hook));
        if mode == BackgroundMode::Stepped || !in_flush {
            let failure = failures.iter().find(|f| f.reason == Reason::Compaction).unwrap();
            assert_eq!(failure.severity, Severity::Soft);
            check_named(&failure.error, call, hook);
        }
        if mode == BackgroundMode::Stepped {
            let events: Vec<Event> = store.events.try_iter().collect();
            let errors = events.iter().filter(|event| matches!(event, Event::BackgroundError(_)));
            assert_eq!(errors.count(), 1, "{events:?}");
            check_named(&store.db.wait_idle().unwrap_err(), call, hook);
        }
        store.check_content();
        store.check_goes_on();
    });
}

#[test]
fn a_partition_whose_hook_panics_does_not_hold_up_the_others() {
    let mut store = store(BackgroundMode::Stepped, true);
    store.set("start");
    let tables = |store: &Store, partition: usize| {
        let stats = store.db.stats();
        let partition = &stats.partitions[partition];
        (partition.sealed_memtable_count, partition.levels[0].table_count)
    };
    // More is due in `p`, so that it is tried first.
    let fill = |store: &mut Store| {
        store.fill();
        for n in 0..KEYS {
            store.p.put([n], [n; 90]).unwrap();
            store.content.insert(vec![n], vec![n; 90]);
        }
    };
    fill(&mut store);
    check_named(&store.db.flush().unwrap_err(), "start", "deciding");
    assert_eq!((tables(&store, 1), tables(&store, 2)), ((1, 0), (1, 0)));
    assert!(store.db.step().unwrap(), "of q");
    assert_eq!((tables(&store, 1), tables(&store, 2)), ((1, 0), (0, 1)));
    store.shelf.fuse.clear();
    for _ in 0..3 {
        fill(&mut store);
        store.db.flush().unwrap();
        store.p.put([0], [0; 90]).unwrap();
        store.db.flush().unwrap();
    }
    store.set("start");
    // Once, because the first failure is not expected.
    let mut failures = 0;
    while tables(&store, 2).1 > 1 {
        failures += u32::from(store.db.step().is_err());
    }
    assert_eq!(failures, 1, "{:?}", tables(&store, 1));
    assert!(tables(&store, 1).1 > 2);
    store.check_content();
    store.check_goes_on();
}

#[test]
fn memory_that_a_panicking_hook_keeps_full_refuses_writers() {
    for mode in MODES {
        let mut store = store(mode, true);
        store.set("output");
        let refused = (0..100_000_u32).find_map(|n| {
            let key = n % 100;
            let value = vec![7; 99];
            let put = store.p.put(key.to_be_bytes(), &value);
            store.content.insert(key.to_be_bytes().to_vec(), value);
            put.err()
        });
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), ErrorKind::HookPanicked);
        assert!(refused.to_string().contains("writes are stopped"), "{refused}");
        check_named(&refused, "output", "sealing");
        store.check_content_of_p();
        store.check_goes_on();
    }
}

#[test]
fn closing_while_a_hook_panics_ends_and_loses_nothing() {
    each_call(|mode, call, _, _| {
        for is_dropped in [false, true] {
            let mut store = store(mode, true);
            store.set(call);
            store.fill();
            let _ = store.db.flush();
            let Store { fs, shelf, db, p, q, content, .. } = store;
            drop((p, q));
            if is_dropped {
                drop(db);
            } else {
                db.close().unwrap();
            }
            // The sealing filter is called in the replay; it fails instead of losing anything.
            if let Err(error) = open(mode, &fs, &shelf).map(drop) {
                assert_eq!(error.kind(), ErrorKind::HookPanicked, "{error}");
            }
            shelf.fuse.clear();
            let (db, _) = open(mode, &fs, &shelf).unwrap();
            assert_eq!(read(&db.partition("p").unwrap()), content);
            db.wait_idle().unwrap();
        }
    });
}

#[test]
fn closing_reports_a_hook_that_prevents_the_flush_of_an_unlogged_partition() {
    for mode in MODES {
        let mut store = store(mode, false);
        store.set("boundary");
        store.fill();
        let Store { fs, shelf, db, p, q, .. } = store;
        drop((p, q));
        check_named(&db.close().unwrap_err(), "boundary", "sealing");
        shelf.fuse.clear();
        let (db, _) = open(mode, &fs, &shelf).unwrap();
        assert_eq!(
            db.partition("p").unwrap().iter().count(),
            usize::from(KEYS),
            "what was flushed before"
        );
    }
}
