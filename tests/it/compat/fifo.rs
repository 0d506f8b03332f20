//! A partition that is a FIFO: `tests/fixtures/fifo/`, of the first version with compaction styles.
//!
//! `BLESS_FIXTURE=fifo cargo test fixture_of_a_fifo` writes it again. Do this only before its format is released.

use siltstone::CompactionStyle;

use super::*;
use crate::clock::ManualClock;

const STYLE: CompactionStyle = CompactionStyle::Fifo { bytes_max: 3000, seconds_max: 1000 };

/// Three tables; the first one is 900 seconds old.
fn write_fifo() -> MemFs {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = builder(&fs).clock(Arc::new(clock.clone())).open().unwrap();
    let options = PartitionOptions::new().compression(Compression::None).compaction_style(STYLE);
    let p = db.partition_with("p", options).unwrap();
    for key in ["a", "b", "c"] {
        p.put(key, "event").unwrap();
        db.flush().unwrap();
        clock.pass(450);
    }
    db.close().unwrap();
    fs
}

#[test]
fn a_fixture_of_a_fifo_opens_and_goes_on() {
    fixtures::bless("fifo", write_fifo);
    let dir = fixtures::on_disk("fifo");
    let clock = ManualClock::default();
    clock.pass(1400);
    let db = stepped(Arc::new(OsFs), dir.path(), 1).clock(Arc::new(clock)).open().unwrap();
    let p = db.open_partition("p").unwrap();
    assert_eq!(p.options().get_compaction_style(), STYLE);
    assert!(p.contains("a").unwrap());
    while db.step().unwrap() {}
    let keys: Vec<_> = p.keys().map(|key| key.unwrap().to_vec()).collect();
    assert_eq!(keys, [b"b", b"c"]);
    assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
}
