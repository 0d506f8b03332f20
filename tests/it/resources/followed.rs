//! Secondaries that share resources with databases of the process.

use siltstone::secondary::Target;

use super::*;

/// The memtables of a secondary count, whoever writes its database; they delay no writer, and it waits for no one.
#[test]
fn memtables_of_secondaries_count_and_stop_no_writer() {
    let resources = resources(ResourceOptions::new().write_buffer_bytes(256 << 10));
    let fs = Arc::new(MemFs::new());
    // Of another process, as far as the resources know.
    let followed = Db::builder("/db").fs(fs.clone()).open().unwrap();
    let secondary = Secondary::builder("/db").fs(fs).resources(&resources).open().unwrap();
    let there = secondary.partition("default").unwrap();
    fill(&default_of(&followed), 1, 400);
    there.sync(Target::Latest).unwrap();
    let usage = resources.usage();
    assert!(usage.followed_memtable_bytes > 400_000, "more than all may have: {usage:?}");
    assert_eq!(usage.active_memtable_bytes, 0);
    // No one can free that. A database has half of the memory, and writes no tiny tables.
    let db = open(&resources);
    for round in 1..=4 {
        fill(&default_of(&db), round, 200);
        // A flush that lags takes more than one memtable.
        db.wait_idle().unwrap();
    }
    let flushes = db.stats().flush_count;
    assert!((4..=10).contains(&flushes), "{flushes} flushes of 800 KB");
    assert_filled(&default_of(&db), 4, 200);
    // The secondary goes on, too, while the memory is full.
    fill(&default_of(&followed), 2, 600);
    there.sync(Target::Latest).unwrap();
    assert!(there.get(599_u32.to_be_bytes()).unwrap().is_some());
    // A flush of its primary frees it.
    followed.flush().unwrap();
    there.sync(Target::Latest).unwrap();
    let usage = resources.usage();
    assert!(usage.followed_memtable_bytes < 40_000, "{usage:?}");
    fill(&default_of(&followed), 3, 10);
    there.sync(Target::Latest).unwrap();
    drop((there, secondary));
    assert_eq!(resources.usage().followed_memtable_bytes, 0);
}
