//! Writes that do not wait for compactions.

use std::time::Duration;

use lsm_core::fs::{FaultAction, OpKind};
use siltstone::{BackgroundMode, Durability, ErrorKind, Event, WriteOptions};

use super::store;

#[test]
fn a_write_that_must_not_wait_gets_the_reason() {
    let store = store(BackgroundMode::Stepped);
    store.break_at(OpKind::Append, ".sst", FaultAction::Enospc);
    // Slowed down first: writes pass slowly, then none passes.
    let mut passed = 0;
    let slowed = loop {
        match store.p.try_put("k", [7; 500]) {
            Ok(_) => passed += 1,
            Err(error) => break error,
        }
        assert!(passed < 10_000);
    };
    assert_eq!(slowed.kind(), ErrorKind::WouldStall);
    assert!(slowed.is_retryable() && slowed.to_string().contains("slowed down"), "{slowed}");
    let stopped = loop {
        store.clock.pass(1);
        match store.p.try_put("k", [7; 500]) {
            Ok(_) => passed += 1,
            Err(error) => break error,
        }
        assert!(passed < 10_000);
    };
    let text = stopped.to_string();
    assert!(
        text.contains("stopped") && text.contains("memtables") && text.contains("\"p\""),
        "{text}"
    );
    let options = WriteOptions::new().waits(false);
    let mut transaction = store.db.transaction();
    transaction.get_for_update(&store.p, "k").unwrap();
    transaction.put(&store.p, "k", "v");
    for refused in [
        store.p.try_delete("k"),
        store.db.batch().put(&store.p, "k", "v").try_commit(Durability::Os),
        store.p.put_with("k", "v", options),
        store.p.delete_range_with("a".., options),
        store.p.clear_with(options.durability(Durability::Sync)),
        transaction.commit(options.durability(Durability::Sync)),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::WouldStall);
    }
    let health = store.db.health();
    let stall = health.stalls.iter().find(|stall| stall.partition == "p").unwrap();
    assert_eq!((stall.pressure_permille, health.sealed_memtable_bytes.left()), (1000, 0));
    assert!(stall.since >= Duration::from_secs(1) && !health.is_healthy());
    assert!(health.to_string().contains("delayed by memtables"), "{health}");
    store.fs.heal();
    while store.db.step().unwrap() {}
    store.p.try_put("k", "v").unwrap();
    assert!(store.db.health().is_healthy());
    let stalls = store.heard.0.lock().unwrap();
    let stalls = stalls.iter().filter_map(|event| match event {
        Event::StallChanged { partition, pressure_permille, .. } if partition == "p" => {
            Some(*pressure_permille)
        }
        _ => None,
    });
    let stalls: Vec<u32> = stalls.collect();
    assert!(stalls.contains(&1000) && stalls.last() == Some(&0), "{stalls:?}");
}
