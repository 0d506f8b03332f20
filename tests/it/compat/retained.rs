//! A database whose manifest lists segments of the log that are kept for followers, of this epoch and of the one before:
//! `tests/fixtures/retained/`, of the first version that wrote that.
//!
//! `BLESS_FIXTURE=retained cargo test fixture_of_a_retained_log` writes it again. Do this only before its format is
//! released.

use siltstone::SeqNo;
use siltstone::changes::FeedItem;

use super::*;

fn open(fs: &MemFs) -> Db {
    let options = Options::new().wal_segment_bytes(4 << 10).log_retained_bytes(1 << 20);
    stepped(Arc::new(fs.clone()), DIR, 1).options(options.compaction_threads(1)).open().unwrap()
}

/// In each of two epochs nine commits; the first eight are flushed.
fn write_retained() -> MemFs {
    let fs = MemFs::new();
    for epoch in 0..2_u8 {
        let db = open(&fs);
        let left = db.partition("left").unwrap();
        for n in 0..8 {
            left.put([epoch, n], vec![n; 700]).unwrap();
        }
        db.flush().unwrap();
        left.put_with([epoch, 8], "in the log", Durability::Sync).unwrap();
    }
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

#[test]
fn a_fixture_of_a_retained_log_is_verified_and_followed() {
    fixtures::bless("retained", write_retained);
    let fs = fixtures::in_memory("retained");
    for _ in 0..2 {
        let db = open(&fs);
        assert!(db.stats().log_retained_segment_count > 3);
        let report = db.verify(Default::default()).unwrap();
        assert!(report.is_sound(), "{report}");
        for token in 0..18 {
            let mut changes = db.changes(SeqNo::new(token).unwrap()).unwrap();
            for seq in token + 1..=18 {
                let Some(FeedItem::Commit(batch)) = changes.try_next().unwrap() else {
                    panic!("no commit {seq}");
                };
                assert_eq!((batch.seq.get(), batch.changes.len()), (seq, 1));
            }
            assert!(changes.try_next().unwrap().is_none());
        }
        db.close().unwrap();
    }
}
