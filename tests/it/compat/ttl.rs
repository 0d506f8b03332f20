//! A store whose tables record when their entries expire: `tests/fixtures/ttl/`, of the first
//! version with a TTL.
//!
//! `BLESS_FIXTURE=ttl cargo test fixture_of_a_ttl` writes it again. Do this only before its format
//! is released.

use siltstone::{TtlFilter, TtlRule};

use super::*;

/// Two tables of sixteen keys each. Half of the keys expire: in the year 2001, and in 2286.
fn write_ttl() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let filter = Arc::new(TtlFilter::stored(&TtlRule::in_value(2)));
    let options = PartitionOptions::new().compression(Compression::None).level0_tables(100);
    let p = db.partition_with("p", options.filter(filter)).unwrap();
    for moment in [1_000_000_000u64, 10_000_000_000] {
        for n in 0..8 {
            p.put(format!("{moment} {n}"), [&b"at"[..], &moment.to_be_bytes()].concat()).unwrap();
            p.put(format!("{moment} {n} stays"), "no moment").unwrap();
        }
    }
    db.flush().unwrap();
    db.close().unwrap();
    fs
}

#[test]
fn a_fixture_of_a_ttl_opens_and_expires() {
    fixtures::bless("ttl", write_ttl);
    let dir = fixtures::on_disk("ttl");
    let db = stepped(Arc::new(OsFs), dir.path(), 1).open().unwrap();
    let p = db.open_partition("p").unwrap();
    assert_eq!(p.iter().count(), 24, "the flush left out what had expired by then");
    db.wait_idle().unwrap();
    assert_eq!(db.stats().compaction_count, 0, "the table knows its times");
    assert!(db.health().is_healthy());
}
