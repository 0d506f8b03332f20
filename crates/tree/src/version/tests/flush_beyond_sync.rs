//! Flushes that do not wait for the log: the bytes of the change, and the resulting state of the log in the
//! version.

use super::*;

fn ahead(flushed: u64, durable: u64) -> Change {
    Change::FlushBeyondSync(FlushBeyondSync { flushed: seq(flushed), durable: seq(durable) })
}

fn flushed(id: u32, through: u64) -> Change {
    let memtables_through = MemtableId(1);
    Change::FlushedThrough { partition: PartitionId(id), seq: seq(through), memtables_through }
}

/// A reader that does not know the change refuses the manifest, because of the last bit of its tag.
#[test]
fn bytes_of_a_flush_that_is_ahead_of_the_log_are_these() {
    let edit = VersionEdit { number: 1, changes: vec![ahead(299, 40)] };
    let mut bytes = Vec::new();
    edit.encode(&mut bytes);
    assert_eq!(bytes, [21 << 1, 3, 0xab, 0x02, 40]);
    assert_eq!(VersionEdit::decode(1, &bytes).unwrap(), edit);
}

#[test]
fn the_log_was_durable_through_what_the_last_flush_says() {
    let before = base();
    let id = before.partitions.values().find(|partition| partition.options.logged).unwrap().id.0;
    let waited = with(&before, vec![flushed(id, 1000)]);
    assert_eq!(waited.log_durable_through(), seq(1000));
    let first = with(&waited, vec![flushed(id, 2000), ahead(2000, 1500)]);
    assert_eq!(first.log_durable_through(), seq(1500));
    assert_eq!(first.last_seq, seq(2000), "numbers through it were used");
    let second = with(&first, vec![flushed(id, 3000), ahead(3000, 1500)]);
    assert_eq!(second.log_durable_through(), seq(1500));
    let waited = with(&second, vec![flushed(id, 4000)]);
    assert_eq!(waited.log_durable_through(), seq(4000), "this one has waited for the log");
    let epoch = with(&second, vec![Change::EpochBegan { epoch: Epoch(2), cut: None }]);
    assert_eq!(epoch.flush_beyond_sync, None);
    let copied = VersionBuilder::from_snapshot(DB, &snapshot_edit(&second)).unwrap().finish();
    let copied = copied.unwrap();
    assert_eq!(copied.flush_beyond_sync, second.flush_beyond_sync, "the next generation knows it");
}

#[test]
fn a_log_that_catches_up_is_no_longer_behind() {
    let ahead = FlushBeyondSync { flushed: seq(9), durable: seq(5) };
    for (through, expected) in [(0, Some(5)), (5, Some(5)), (8, Some(8)), (9, None), (12, None)] {
        let now = ahead.durable_through(seq(through));
        assert_eq!(now.map(|now| now.durable.get()), expected, "{through}");
        assert!(now.is_none_or(|now| now.flushed == ahead.flushed));
    }
}

#[test]
fn a_flush_that_goes_back_or_is_not_ahead_is_refused() {
    let before = with(&base(), vec![ahead(2000, 1500)]);
    for (flushed, durable) in [(1999, 1500), (2000, 1499), (2000, 2000), (2001, 2002)] {
        let refused = apply(&before, &next(&before, vec![ahead(flushed, durable)])).unwrap_err();
        assert!(refused.0.contains("ahead"), "{refused}");
    }
    let same = with(&before, vec![ahead(2000, 1500)]);
    assert_eq!(same.flush_beyond_sync, before.flush_beyond_sync);
}
